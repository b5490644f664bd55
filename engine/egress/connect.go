package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/policy"
)

const established = "HTTP/1.1 200 OK\r\n\r\n"

// connect serves a CONNECT request; the connection is used up by it.
func (cl *client) connect(ctx context.Context, req *http.Request, hostHeader string) {
	host, port, err := policy.ParseHostPort(req.RequestURI, 0)
	if err != nil || port == 0 {
		const why = "CONNECT needs HOST:PORT"
		cl.record(cl.subject(target{}), rules.Entry{Type: rules.Forward, Kind: "protocol", Reason: why, Method: req.Method})
		cl.page(nil, http.StatusBadRequest, why+".\n")
		return
	}
	t := cl.target(host, port)
	why := t.unservable()
	if why == nil && hostHeader != "" && !t.isNamed(hostHeader) { // older clients send none
		why = &refusal{http.StatusForbidden, "protocol", "Host header does not match the CONNECT target"}
	}
	if why == nil && req.ContentLength != 0 {
		why = &refusal{http.StatusBadRequest, "protocol", "CONNECT with a body"}
	}
	if why != nil {
		cl.record(t, rules.Entry{Type: rules.Forward, Kind: why.kind, Reason: why.reason, Method: req.Method})
		cl.page(nil, why.status, why.reason+".\n")
		return
	}
	d := cl.decide(policy.Request{Host: t.rule, Port: t.port})
	if !d.Allowed {
		cl.block(ctx, t, d)
		return
	}
	bound, err := cl.isBound(t)
	if err != nil {
		cl.logger.Error("secrets cannot be read", "sandbox", cl.sandbox, "err", err)
		cl.record(t, rules.Entry{Type: rules.Forward, Kind: "credential", Reason: "Secrets cannot be read"})
		cl.page(nil, http.StatusBadGateway, "The proxy cannot read its secrets.\n")
		return
	}
	if _, overridden := cl.overrideOf(t); bound || d.Inspect || overridden && cl.ownRoots {
		cl.intercept(ctx, t)
		return
	}
	cl.tunnel(ctx, t, d)
}

func (cl *client) isBound(t target) (bool, error) {
	bindings, err := cl.vault.Bindings(cl.sandbox)
	if err != nil {
		return false, err
	}
	return covered(bindings, t), nil
}

// block lets a denied CONNECT through to a page that says why; a client that speaks neither TLS nor HTTP is cut off.
func (cl *client) block(ctx context.Context, t target, d policy.Decision) {
	cl.record(t, entryOf(d))
	inner, err := cl.enter(ctx, t)
	if err != nil {
		return
	}
	inner.blocked = &d
	inner.inside(ctx)
}

func entryOf(d policy.Decision) rules.Entry {
	return rules.Entry{Type: rules.Forward, Allowed: d.Allowed, Kind: string(d.Kind), Rule: d.Rule, Reason: d.Reason}
}

// intercept ends the client's TLS here and serves the requests inside.
func (cl *client) intercept(ctx context.Context, t target) {
	inner, err := cl.enter(ctx, t)
	if err != nil {
		if why, ok := errors.AsType[*refusal](err); ok {
			cl.record(t, rules.Entry{Type: rules.Forward, Kind: why.kind, Reason: why.reason})
		}
		return
	}
	inner.inside(ctx)
}

// inside serves what is in a CONNECT to its end.
func (cl *client) inside(ctx context.Context) {
	defer cl.c.Close()
	if tc, ok := cl.c.(*tls.Conn); ok && tc.ConnectionState().NegotiatedProtocol == http2.NextProtoTLS {
		cl.serveStreams(ctx, tc)
		return
	}
	cl.loop(ctx)
}

// enter answers 200 to a CONNECT and returns the client inside, past the TLS handshake if it speaks TLS. The error is
// a [*refusal] if it is worth a line in the log.
func (cl *client) enter(ctx context.Context, t target) (*client, error) {
	cl.c.SetWriteDeadline(time.Now().Add(headTimeout))
	if _, err := io.WriteString(cl.c, established); err != nil {
		return nil, err
	}
	cl.c.SetDeadline(time.Now().Add(firstByteTimeout))
	first, err := cl.br.Peek(1)
	if err != nil {
		return nil, err // a connection kept for later; no decision was asked for
	}
	outer := bufferedConn{cl.c, cl.br}
	if first[0] != tlsHandshake {
		if first[0] < 'A' || first[0] > 'Z' || bytes.HasPrefix(peekBuffered(cl.br), []byte("SSH-")) {
			return nil, &refusal{0, "protocol", "Neither TLS nor HTTP inside CONNECT; this host carries HTTPS only"}
		}
		cl.c.SetDeadline(time.Time{})
		return &client{session: cl.session, c: outer, br: cl.br, inner: &t}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	var mismatch *refusal
	conn := tls.Server(outer, &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{http2.NextProtoTLS, "http/1.1"},
		// A resumed connection would pass by GetCertificate, and with it by the check of the name.
		SessionTicketsDisabled: true,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if mismatch = checkSNI(hello.ServerName, t); mismatch != nil {
				return nil, mismatch
			}
			return cl.ca.leaf(t.host)
		},
	})
	cl.c.SetDeadline(time.Time{})
	if err := conn.HandshakeContext(ctx); err != nil {
		switch {
		case mismatch != nil:
			return nil, mismatch
		case isAlert(err):
			return nil, &refusal{0, "tls", "Client refused the proxy's certificate; it must trust the CA of the proxy"}
		}
		return nil, err
	}
	return &client{session: cl.session, c: conn, br: bufio.NewReaderSize(conn, maxHead), inner: &t, tls: true}, nil
}

// isAlert reports whether the peer ended the handshake with an alert, as a client does that does not trust us.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// checkSNI refuses a TLS server name that is not the CONNECT target: the server could serve another site by it.
func checkSNI(name string, t target) *refusal {
	if name == "" {
		return nil
	}
	if h, err := policy.ParseHost(name); err == nil && h == t.host {
		return nil
	}
	return &refusal{0, "protocol", "TLS server name does not match the CONNECT target"}
}

// tlsHandshake is the first byte of a TLS connection.
const tlsHandshake = 0x16

func peekBuffered(br *bufio.Reader) []byte {
	b, _ := br.Peek(br.Buffered()) // what is there needs no reading
	return b
}

// A bufferedConn is a connection some of whose bytes are in a reader already.
type bufferedConn struct {
	net.Conn
	br *bufio.Reader
}

func (c bufferedConn) Read(p []byte) (int, error) { return c.br.Read(p) }

func (c bufferedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// tunnel joins the client to the server without looking inside, but for the TLS server name.
func (cl *client) tunnel(ctx context.Context, t target, d policy.Decision) {
	up, err := cl.dial(ctx, t)
	if denied, ok := errors.AsType[*deniedError](err); ok {
		cl.block(ctx, t, denied.decision)
		return
	}
	e := entryOf(d)
	e.Type = rules.Bypass
	if err != nil {
		e.Kind, e.Reason = "dial", d.Reason+", but not reached: "+err.Error()
		cl.record(t, e)
		cl.page(nil, http.StatusBadGateway, fmt.Sprintf("The proxy cannot reach %s: %v.\n", t.host.Join(t.port), err))
		return
	}
	defer up.Close()
	stop := context.AfterFunc(ctx, func() { up.Close() })
	defer stop()
	f := &flow{t, policy.Request{Host: t.rule, Port: t.port}, true, func() { up.Close(); cl.c.Close() }}
	cl.reached(f, up)
	defer cl.begin(f)()
	cl.c.SetWriteDeadline(time.Now().Add(headTimeout))
	if _, err := io.WriteString(cl.c, established); err != nil {
		cl.record(t, e)
		return
	}
	cl.c.SetDeadline(time.Time{})
	var mismatch *refusal
	cl.join(up, func() error {
		// Waits for the client's first bytes while the server's already flow: some servers speak first.
		if mismatch = cl.peekSNI(t); mismatch != nil {
			e = rules.Entry{Type: rules.Forward, Kind: mismatch.kind, Reason: mismatch.reason}
			cl.record(t, e)
			return mismatch
		}
		cl.record(t, e)
		return nil
	})
}

// peekSNI looks at the server name of the client's TLS hello, which stays in the reader. What is no TLS passes.
func (cl *client) peekSNI(t target) *refusal {
	defer cl.c.SetReadDeadline(time.Time{})
	cl.c.SetReadDeadline(time.Now().Add(idleTimeout))
	first, err := cl.br.Peek(1)
	if err != nil || first[0] != tlsHandshake {
		return nil
	}
	cl.c.SetReadDeadline(time.Now().Add(handshakeTimeout))
	var name string
	seen := false
	// The handshake is stopped by an error once the hello is parsed; nothing is written to the client.
	probe := tls.Server(&helloConn{Conn: cl.c, br: cl.br}, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, seen = hello.ServerName, true
			return nil, errHelloSeen
		},
	})
	if err := probe.Handshake(); !seen && err != nil {
		return &refusal{0, "protocol", "TLS hello cannot be read"}
	}
	return checkSNI(name, t)
}

var errHelloSeen = errors.New("hello seen")

// A helloConn reads ahead in br without taking anything out of it, and writes nowhere.
type helloConn struct {
	net.Conn
	br  *bufio.Reader
	off int
}

func (h *helloConn) Read(p []byte) (int, error) {
	for h.br.Buffered() <= h.off {
		if _, err := h.br.Peek(h.off + 1); err != nil {
			return 0, err
		}
	}
	b := peekBuffered(h.br)
	n := copy(p, b[h.off:])
	h.off += n
	return n, nil
}

func (h *helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (h *helloConn) SetDeadline(time.Time) error      { return nil }
func (h *helloConn) SetWriteDeadline(time.Time) error { return nil }
func (h *helloConn) Close() error                     { return nil }

// join copies in both directions until both have ended, one has failed, or nothing has passed for idleTimeout. Before
// anything goes to the server, first is called; its error ends both.
func (cl *client) join(up net.Conn, first func() error) {
	var lively liveness
	lively.touch()
	down := make(chan struct{})
	cl.work.Go(func() {
		defer close(down)
		if copyIdle(cl.c, up, &lively) != nil {
			cl.c.Close()
			up.Close()
			return
		}
		closeWrite(cl.c)
	})
	err := first()
	if err == nil {
		if n := cl.br.Buffered(); n > 0 {
			up.SetWriteDeadline(time.Now().Add(idleTimeout))
			_, err = io.CopyN(up, cl.br, int64(n))
		}
	}
	if err == nil {
		if err = copyIdle(up, cl.c, &lively); err == nil {
			err = closeWrite(up)
		}
	}
	if err != nil {
		cl.c.Close()
		up.Close()
	}
	<-down
}

// A liveness is when something last passed in either direction.
type liveness struct{ at atomic.Int64 }

func (l *liveness) touch() { l.at.Store(time.Now().UnixNano()) }

func (l *liveness) idle() bool { return time.Since(time.Unix(0, l.at.Load())) > idleTimeout }

// copyIdle copies src to dst to its end, in the kernel (splice) where that can. Reading stops once a minute to see whether
// the other direction is alive; a reader that takes nothing for idleTimeout ends the copy.
func copyIdle(dst, src net.Conn, lively *liveness) error {
	const tick = time.Minute
	for {
		start := time.Now()
		src.SetReadDeadline(start.Add(tick))
		dst.SetWriteDeadline(start.Add(idleTimeout))
		n, err := io.Copy(dst, src)
		if n > 0 {
			lively.touch()
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Since(start) < idleTimeout && !lively.idle():
			// It was the read: the deadline of the write is later.
		default:
			return err
		}
	}
}
