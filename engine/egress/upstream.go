package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/proxy"
)

// ErrUpstream matches the errors of a proxy of the machine's own: one that is described wrongly, is not there, or refuses.
var ErrUpstream = errors.New("upstream proxy")

// lookupPatience bounds the look at the addresses of a name that the upstream proxy will look up for itself.
const lookupPatience = 2 * time.Second

// A hop is the proxy on the way to one target.
type hop struct{ url *url.URL }

// upstreamOf returns the proxy on the way to t, nil for none. No error holds its address, which may hold a password.
func (s *session) upstreamOf(t target, secure bool) (*hop, error) {
	if s.upstream == nil || s.staysHere(t) {
		return nil, nil
	}
	conf, err := s.upstream()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUpstream, err)
	}
	u, err := conf.For(t.host.String(), t.port, secure)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUpstream, err)
	}
	if u == nil {
		return nil, nil
	}
	return &hop{u}, nil
}

// tunnelsOnly reports whether the proxy carries connections and knows nothing of requests.
func (h *hop) tunnelsOnly() bool { return h.url.Scheme != "http" && h.url.Scheme != "https" }

func (h *hop) addr() string {
	port := h.url.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[h.url.Scheme]
	}
	if port == "" {
		port = "1080"
	}
	return net.JoinHostPort(h.url.Hostname(), port)
}

// vouch decides on the addresses of a target that an upstream proxy will look up for itself. A name that cannot be
// looked up here passes: behind such a proxy there often is no name server that knows the outside.
func (s *session) vouch(ctx context.Context, t target) error {
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	_, err := s.addresses(ctx, t)
	if denied, ok := errors.AsType[*deniedError](err); ok {
		return denied
	}
	return nil
}

// dial opens a connection to t through the proxy.
func (h *hop) dial(ctx context.Context, t target, roots *x509.CertPool) (net.Conn, error) {
	c, err := h.open(ctx, t, roots)
	if err != nil {
		return nil, upstreamError(ctx, err)
	}
	return c, nil
}

// upstreamError words an error of the way to the proxy, without its address.
func upstreamError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%w: %s", ErrUpstream, describe(err))
}

func (h *hop) open(ctx context.Context, t target, roots *x509.CertPool) (net.Conn, error) {
	to := t.host.Join(t.port)
	if h.tunnelsOnly() {
		var auth *proxy.Auth
		if u := h.url.User; u != nil {
			password, _ := u.Password()
			auth = &proxy.Auth{User: u.Username(), Password: password}
		}
		d, err := proxy.SOCKS5("tcp", h.addr(), auth, &net.Dialer{KeepAlive: 30 * time.Second})
		if err != nil {
			return nil, err
		}
		return d.(proxy.ContextDialer).DialContext(ctx, "tcp", to)
	}
	c, err := dialUpstream(ctx, "tcp", h.addr())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if h.url.Scheme == "https" {
		tc := tls.Client(c, &tls.Config{ServerName: h.url.Hostname(), RootCAs: roots, MinVersion: tls.VersionTLS12})
		if err := tc.HandshakeContext(ctx); err != nil {
			c.Close()
			return nil, err
		}
		c = tc
	}
	head := "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n"
	if u := h.url.User; u != nil {
		password, _ := u.Password()
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		c.Close()
		return nil, err
	}
	br := bufio.NewReaderSize(c, maxHead)
	resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	if err != nil {
		c.Close()
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		c.Close()
		return nil, &dialError{fmt.Errorf("it answers %d %s to CONNECT %s", resp.StatusCode, http.StatusText(resp.StatusCode), to)}
	}
	if !stop() {
		c.Close()
		return nil, context.Cause(ctx)
	}
	if br.Buffered() > 0 { // a server that speaks first
		return bufferedConn{c, br}, nil
	}
	return c, nil
}

func dialUpstream(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return d.DialContext(ctx, network, addr)
}

// An upstreamTrip sends a request without TLS by way of a proxy.
type upstreamTrip struct {
	transport *http.Transport
	hop       *hop
}

type hopKey struct{}

func (u upstreamTrip) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := u.transport.RoundTrip(req.WithContext(context.WithValue(req.Context(), hopKey{}, u.hop)))
	if _, denied := errors.AsType[*deniedError](err); err != nil && !denied && !errors.Is(err, ErrUpstream) {
		return nil, upstreamError(req.Context(), err)
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusProxyAuthRequired {
		resp.Body.Close()
		return nil, fmt.Errorf("%w: it wants a user and a password", ErrUpstream)
	}
	return resp, nil
}

// chosenUpstream is the Proxy function of the transport: the choice was made before, with the request.
func chosenUpstream(req *http.Request) (*url.URL, error) {
	h, ok := req.Context().Value(hopKey{}).(*hop)
	if !ok {
		return nil, fmt.Errorf("%w: none was chosen", ErrUpstream)
	}
	return h.url, nil
}

// dialClear connects for requests without TLS: straight, or by a proxy that carries connections only.
func (s *session) dialClear(ctx context.Context, t target) (net.Conn, error) {
	h, ok := ctx.Value(hopKey{}).(*hop)
	if !ok {
		return s.dialStraight(ctx, t)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return h.dial(ctx, t, s.roots)
}
