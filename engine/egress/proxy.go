package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/upstream"
	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// Limits of the proxy.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	headTimeout      = 30 * time.Second // from the first byte of a request to the end of its header
	firstByteTimeout = 10 * time.Second // after CONNECT, before a client that must speak first has spoken
	idleTimeout      = 10 * time.Minute // without a byte in either direction
	maxHead          = 32 << 10         // bytes of a request's line and header
	maxResponseHead  = 256 << 10        // bytes of an answer's header
	streamBuffer     = 1 << 20          // bytes of one answer over HTTP/2 that wait for a client who does not take them
	// DefaultMaxConns bounds the connections of one sandbox, and the requests under way over HTTP/2.
	DefaultMaxConns = 512
)

// Gateway is the name under which a sandbox reaches the proxy (sbx 0.47).
const Gateway = "gateway.docker.internal"

// gatewayPort is the proxy's port there.
const gatewayPort = 3128

// A Resolver looks names up; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config is what a Proxy works with. Rules, Vault, CA and Log are needed.
type Config struct {
	Rules    *rules.Store
	Vault    *vault.Store
	CA       *CA
	Log      *rules.Log
	Logger   *slog.Logger   // nil: none
	Roots    *x509.CertPool // trusted for servers; nil: the system's
	Resolver Resolver       // nil: the system's name servers
	MaxConns int            // of one sandbox, and its requests over HTTP/2; 0: DefaultMaxConns
	// Upstream is asked for each connection which proxies of the machine's own are on the way; nil: none.
	Upstream func() (upstream.Proxies, error)
}

// A Sandbox is whom a listener belongs to.
type Sandbox struct {
	Name string // scope of rules and secrets, and the log's name for it
	ID   string
	// Resolve sends HOST or HOST:PORT to a loopback address and port instead of looking it up. Rules are asked all the same.
	Resolve map[string]string
	// UpstreamRoots are trusted, instead of Config.Roots, for the hosts in Resolve. The sandbox does not trust them, so
	// that TLS to these hosts ends in the proxy even if nothing is bound to them. nil: Config.Roots, and tunnels as ever.
	UpstreamRoots *x509.CertPool
}

// A Proxy serves sandboxes. It is safe for concurrent use.
type Proxy struct {
	rules    *rules.Store
	vault    *vault.Store
	ca       *CA
	log      *rules.Log
	logger   *slog.Logger
	roots    *x509.CertPool
	resolver Resolver
	maxConns int
	upstream func() (upstream.Proxies, error)
}

// New returns a Proxy. It starts nothing; see [Proxy.Serve].
func New(c Config) *Proxy {
	p := &Proxy{c.Rules, c.Vault, c.CA, c.Log, c.Logger, c.Roots, c.Resolver, c.MaxConns, c.Upstream}
	if p.logger == nil {
		p.logger = slog.New(slog.DiscardHandler)
	}
	if p.resolver == nil {
		// Go's own resolver asks the next name server when one is silent, and stops when the context ends.
		p.resolver = &net.Resolver{PreferGo: true}
	}
	if p.maxConns <= 0 {
		p.maxConns = DefaultMaxConns
	}
	return p
}

// Serve serves one sandbox on l until ctx is done, then closes l and every connection, and returns nil when all that it
// started has ended. Another error means that l or sb cannot be used; the connections are closed then as well.
func (p *Proxy) Serve(ctx context.Context, l net.Listener, sb Sandbox) error {
	s, err := p.newSession(sb)
	if err != nil {
		l.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(closed)
		l.Close()
		s.closeConns()
	})
	s.work.Go(func() { s.watchRules(ctx) })
	err = s.accept(ctx, l)
	if ctx.Err() != nil {
		err = nil
	}
	cancel()
	<-closed
	s.work.Wait()
	s.closeIdle()
	return err
}

// A session is one sandbox being served.
type session struct {
	*Proxy
	sandbox   string
	overrides map[string]netip.AddrPort // by "host" and "host:port", canonical
	ownRoots  bool                      // the hosts in overrides have certificates that the sandbox does not trust

	overrideRoots *x509.CertPool // trusted for them; nil: the system's

	work    sync.WaitGroup
	streams chan struct{} // one for each request under way over HTTP/2

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	flows  map[*flow]struct{}
	done   bool
	lastOf *policy.Set // rules the connections in pool were made under
	pool   *pool
	old    []*pool // of earlier rules: requests may still be under way
	masks  map[string]*secrets.Redactor
}

func (p *Proxy) newSession(sb Sandbox) (*session, error) {
	s := &session{
		Proxy: p, sandbox: sb.Name, overrides: map[string]netip.AddrPort{}, conns: map[net.Conn]struct{}{},
		flows: map[*flow]struct{}{}, masks: map[string]*secrets.Redactor{}, streams: make(chan struct{}, p.maxConns),
	}
	for from, to := range sb.Resolve {
		host, port, err := policy.ParseHostPort(from, 0)
		if err != nil {
			return nil, fmt.Errorf("resolve override: %w", err)
		}
		addr, err := netip.ParseAddrPort(to)
		if err != nil || !addr.Addr().Unmap().IsLoopback() || addr.Port() == 0 {
			return nil, fmt.Errorf("resolve override %s: %q is not a loopback address with a port", host, to)
		}
		key := host.String()
		if port != 0 {
			key = host.Join(port)
		}
		s.overrides[key] = addr
	}
	s.overrideRoots, s.ownRoots = p.roots, sb.UpstreamRoots != nil
	if s.ownRoots {
		s.overrideRoots = sb.UpstreamRoots
	}
	s.pool = s.newPool()
	return s, nil
}

// A pool is connections that were made under one set of rules. Its transports differ in what they trust and in whether they
// speak HTTP/2; upgrades need HTTP/1.1. The last two are for requests without TLS: straight, and by the machine's own proxy.
type pool struct{ plain, plainH1, override, overrideH1, clear, handed *http.Transport }

func (s *session) newPool() *pool {
	p := &pool{
		plain: s.newTransport(s.roots, true, s.dial), plainH1: s.newTransport(s.roots, false, s.dial),
		override: s.newTransport(s.overrideRoots, true, s.dial), overrideH1: s.newTransport(s.overrideRoots, false, s.dial),
		clear: s.newTransport(s.roots, false, s.dialClear), handed: s.newTransport(s.roots, false, nil),
	}
	p.handed.DialContext, p.handed.Proxy = dialUpstream, chosenUpstream
	return p
}

// closeIdle closes what is kept for later; what becomes idle later is closed then.
func (p *pool) closeIdle() {
	for _, t := range []*http.Transport{p.plain, p.plainH1, p.override, p.overrideH1, p.clear, p.handed} {
		t.CloseIdleConnections()
	}
}

func (s *session) newTransport(roots *x509.CertPool, http2 bool, dial func(context.Context, target) (net.Conn, error)) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, port, err := policy.ParseHostPort(addr, 0)
			if err != nil {
				return nil, err
			}
			c, err := dial(ctx, s.target(host, port))
			if err != nil {
				return nil, &dialError{err}
			}
			return c, nil
		},
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		ResponseHeaderTimeout:  idleTimeout,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConnsPerHost:    16,
		MaxResponseHeaderBytes: maxResponseHead,
		DisableCompression:     true, // bodies pass as they are
		ForceAttemptHTTP2:      http2,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: streamBuffer},
		ReadBufferSize:         32 << 10,
		WriteBufferSize:        32 << 10,
	}
	if !http2 {
		t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return t
}

func (s *session) accept(ctx context.Context, l net.Listener) error {
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("proxy listener: %w", err)
			}
			// Descriptors run out and come back: wait and go on, or every sandbox would lose its way out for good.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.logger.Warn("proxy cannot accept", "sandbox", s.sandbox, "err", err)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		full, ok := s.track(c)
		if !ok {
			c.Close()
			continue
		}
		s.work.Go(func() {
			defer s.untrack(c)
			defer c.Close()
			if full {
				s.turnAway(c)
				return
			}
			s.serve(ctx, c)
		})
	}
}

// track takes c into the books. Beyond the limit a few more are taken to be told so; beyond that they are closed.
func (s *session) track(c net.Conn) (full, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done || len(s.conns) >= s.maxConns+32 {
		return false, false
	}
	full = len(s.conns) >= s.maxConns
	s.conns[c] = struct{}{}
	return full, true
}

func (s *session) untrack(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *session) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	for c := range s.conns {
		c.Close()
	}
}

// record writes one decision to the policy log. That the log cannot be written stops nothing, but is said.
func (s *session) record(t target, e rules.Entry) {
	e.Sandbox, e.Host, e.HostType = s.sandbox, t.rule.Join(t.port), rules.ResourceType(t.rule)
	if err := s.log.Append(e); err != nil {
		s.logger.Error("policy log cannot be written", "sandbox", s.sandbox, "err", err)
	}
}

// decide asks the rules as they are now. An unreadable store denies.
func (s *session) decide(q policy.Request) policy.Decision {
	set, err := s.rules.Set(s.sandbox)
	if err != nil {
		if !errors.Is(err, rules.ErrUninitialised) {
			s.logger.Error("network policy cannot be read", "sandbox", s.sandbox, "err", err)
		}
		return policy.Decision{Kind: policy.Implicit, Reason: "Network policy cannot be read: " + err.Error()}
	}
	s.renew(set)
	return set.Decide(q)
}

// renew makes a pool of its own for new rules: a connection that was made under others is used for nothing new.
func (s *session) renew(set *policy.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastOf != nil && s.lastOf != set {
		// Those dropped here have had time enough; a connection that is still in use ends with its request.
		const keep = 8
		s.old = append(s.old[max(0, len(s.old)-keep+1):], s.pool)
		s.pool = s.newPool()
		for _, p := range s.old {
			p.closeIdle()
		}
	}
	s.lastOf = set
}

func (s *session) closeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range append(slices.Clip(s.old), s.pool) {
		p.closeIdle()
	}
}
