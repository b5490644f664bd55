// Package gateway stands on the host between agent sandboxes and the providers of models. It holds the provider's key, so
// that no sandbox, no engine and no proxy does; lets a run speak to the endpoints of its own models and to nothing else;
// passes answers on as they come; counts tokens and money call by call; and stops a run, or a batch of runs, at its cap.
//
// A run is known by a key of its own, which the gateway makes ([Gateway.Register]) and which is worth nothing elsewhere: a
// run cannot spend under another one's name, nor begin anew at zero, since what it has spent stands in the [Ledger]. The
// sandbox reaches the gateway as host.docker.internal, by one rule for one port of the host's loopback.
package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/secrets"
)

// Caps bound what is spent. Zero is no bound. A call that is under way when a cap is reached is answered to its end: what is
// spent can be above a cap by what a run's calls cost that were under way, of which there are at most [MaxCalls].
type Caps struct {
	Tokens int64
	USD    float64
}

// MaxCalls is how many calls of one run may be under way at once. One more waits for none and is refused.
const MaxCalls = 8

// Upstream is where an API's calls go.
type Upstream struct {
	URL string // https, or http on a loopback address; "" is the provider's own
	Key secrets.Value
}

// Options say how a gateway works.
type Options struct {
	Upstreams map[API]Upstream // an API that is not in it is not served
	Prices    prices.Table
	Ledger    *Ledger
	Batch     string // name of the batch in the ledger
	BatchCaps Caps
	Transport http.RoundTripper                     // to the providers; nil is one of the gateway's own
	Proxy     func(*http.Request) (*url.URL, error) // for that one; nil is none
	Log       *slog.Logger                          // nil is silent
	Limit     time.Duration                         // of one call, from its first byte to its last; 0 is 30 minutes
	Linger    time.Duration                         // for the bill of an answer that nobody reads any more; 0 is 2 seconds
}

// Grant is what one run may do.
type Grant struct {
	Run  string
	APIs []API
	Caps Caps
	// Models that may be called, by the names that the provider gives them. None is any model of the provider's.
	Models []string
}

// Access is what a sandbox needs to use the gateway.
type Access struct {
	Key  secrets.Value  // takes the place of the provider's key
	URLs map[API]string // base addresses, as a client of the API wants them
}

// Errors.
var (
	ErrInvalid    = errors.New("invalid gateway")
	ErrRegistered = errors.New("the run is known to the gateway already")
)

// Gateway serves runs until it is closed.
type Gateway struct {
	o        Options
	upstream map[API]*url.URL
	redact   *secrets.Redactor
	server   *http.Server
	listener net.Listener
	ctx      context.Context // of the calls: one goes on when its client has hung up, and not when the gateway has ended
	done     chan struct{}   // closed when the server has ended
	calls    sync.WaitGroup
	reading  sync.Mutex

	mu     sync.Mutex
	closed bool
	runs   []*grant
	capped map[string]string // run: the cap that it has met
}

type grant struct {
	Grant
	key     secrets.Value
	calls   chan struct{} // a token for each call under way
	refused atomic.Int32
}

// maxConnections bounds what other programs on this host, and a sandbox, can open.
const maxConnections = 256

// Serve starts a gateway on a free port of the loopback address. It ends with [Gateway.Close], or when ctx does.
func Serve(ctx context.Context, o Options) (*Gateway, error) {
	if o.Ledger == nil {
		return nil, fmt.Errorf("%w: no ledger", ErrInvalid)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limit, o.Linger = cmp.Or(o.Limit, 30*time.Minute), cmp.Or(o.Linger, 2*time.Second)
	if o.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy, t.DisableCompression, t.ResponseHeaderTimeout = o.Proxy, true, 10*time.Minute
		o.Transport = t
		context.AfterFunc(ctx, t.CloseIdleConnections)
	}
	g := &Gateway{o: o, upstream: map[API]*url.URL{}, done: make(chan struct{}), capped: map[string]string{}}
	var keys []secrets.Value
	for api, up := range o.Upstreams {
		u, err := checkUpstream(api, up)
		if err != nil {
			return nil, err
		}
		g.upstream[api] = u
		keys = append(keys, up.Key)
	}
	g.redact = secrets.NewRedactor(keys...)
	var err error
	if g.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	g.listener = netutil.LimitListener(g.listener, maxConnections)
	ctx, cancel := context.WithCancel(ctx)
	g.ctx = ctx
	g.server = &http.Server{
		Handler: g, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(g.done)
		if err := g.server.Serve(g.listener); !errors.Is(err, http.ErrServerClosed) {
			o.Log.Warn("gateway ended", "err", err)
		}
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		cancel()
		g.calls.Wait() // what was under way is on the books
	}()
	context.AfterFunc(ctx, func() { g.server.Close() })
	return g, nil
}

// checkUpstream holds that a key goes out encrypted, or does not leave the machine.
func checkUpstream(api API, up Upstream) (*url.URL, error) {
	s, known := speechOf(api)
	if !known {
		return nil, fmt.Errorf("%w: no API is called %q", ErrInvalid, api)
	}
	if up.Key.IsZero() {
		return nil, fmt.Errorf("%w: %s has no key", ErrInvalid, api)
	}
	raw := up.URL
	if raw == "" {
		raw = s.upstream
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%w: upstream of %s: %q is not an address of a server", ErrInvalid, api, raw)
	}
	ip := net.ParseIP(u.Hostname())
	if loopback := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme != "https" && !(u.Scheme == "http" && loopback) {
		return nil, fmt.Errorf("%w: upstream of %s: %q: the key would go out in the clear; want https", ErrInvalid, api, raw)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

// Port is the port on the host's loopback.
func (g *Gateway) Port() int { return g.listener.Addr().(*net.TCPAddr).Port }

// Register makes a run known and returns what its sandbox needs. A run that has spent something before, in this process or
// in another, goes on from there. The error matches [ErrRegistered] if it is known already, and [ErrInvalid] for an API
// that the gateway has no key for.
func (g *Gateway) Register(want Grant, host string) (Access, error) {
	if want.Run == "" || len(want.APIs) == 0 {
		return Access{}, fmt.Errorf("%w: a grant names a run and an API", ErrInvalid)
	}
	secret := make([]byte, 24)
	rand.Read(secret) // never fails
	r := &grant{Grant: want, key: secrets.New("sbxpair-gateway-" + hex.EncodeToString(secret)), calls: make(chan struct{}, MaxCalls)}
	access := Access{Key: r.key, URLs: map[API]string{}}
	for _, api := range want.APIs {
		s, _ := speechOf(api)
		if g.upstream[api] == nil {
			return Access{}, fmt.Errorf("%w: there is no key for %s", ErrInvalid, api)
		}
		access.URLs[api] = fmt.Sprintf("http://%s:%d%s", host, g.Port(), s.base)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.runs {
		if other.Run == want.Run {
			return Access{}, fmt.Errorf("%w: %s", ErrRegistered, want.Run)
		}
	}
	g.runs = append(g.runs, r)
	return access, nil
}

// Revoke makes the key of a run worthless. What the run has spent stays on the ledger.
func (g *Gateway) Revoke(run string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, r := range g.runs {
		if r.Run == run {
			g.runs = append(g.runs[:i:i], g.runs[i+1:]...)
			return
		}
	}
}

// Spent returns what the run has spent by now, and the cap that has stopped it, or "".
func (g *Gateway) Spent(run string) (spent Spent, capped string, err error) {
	spent, _, err = g.o.Ledger.Sum(run, g.o.Batch)
	g.mu.Lock()
	defer g.mu.Unlock()
	return spent, g.capped[run], err
}

// Close ends the calls that are under way and the server. It returns when nothing of it runs any more, or ctx ends.
func (g *Gateway) Close(ctx context.Context) error {
	err := g.server.Close()
	select {
	case <-g.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
