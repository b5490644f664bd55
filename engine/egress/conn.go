package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/policy"
)

// A client is one connection from a sandbox, or what is inside a CONNECT whose TLS ends here.
type client struct {
	*session
	c  net.Conn
	br *bufio.Reader
	// inner is the CONNECT target; nil on the outer connection, which speaks proxy form.
	inner   *target
	tls     bool             // the inner connection is TLS
	blocked *policy.Decision // why its CONNECT was denied: every request is answered with that
}

func (s *session) serve(ctx context.Context, c net.Conn) {
	cl := &client{session: s, c: c, br: bufio.NewReaderSize(c, maxHead)}
	cl.loop(ctx)
}

// turnAway answers one connection over the limit.
func (s *session) turnAway(c net.Conn) {
	cl := &client{session: s, c: c, br: bufio.NewReaderSize(c, maxHead)}
	c.SetDeadline(time.Now().Add(time.Second))
	why := fmt.Sprintf("Too many connections from this sandbox (limit %d)", s.maxConns)
	cl.record(cl.subject(target{}), rules.Entry{Type: rules.Forward, Kind: "protocol", Reason: why})
	cl.page(nil, http.StatusServiceUnavailable, why+".\n")
	cl.lingerClose()
}

// loop serves requests one after the other until the connection is to be closed.
func (cl *client) loop(ctx context.Context) {
	for ctx.Err() == nil {
		req, hostHeader, err := readRequest(cl.c, cl.br)
		if err != nil {
			cl.refuseHead(err)
			return
		}
		if !cl.one(ctx, req, hostHeader) {
			return
		}
	}
}

// refuseHead answers a request that cannot be read; a connection that just ended gets nothing.
func (cl *client) refuseHead(err error) {
	bad, ok := errors.AsType[*headError](err)
	if !ok {
		return
	}
	cl.record(cl.subject(target{}), rules.Entry{Type: rules.Forward, Kind: "protocol", Reason: "Malformed request: " + bad.why})
	cl.page(nil, bad.status, "Refused by the proxy: "+bad.why+".\n")
	cl.lingerClose()
}

// subject is what a line of the log is about: t, or else the CONNECT around it, or else the proxy, which was asked for
// nothing that has a name.
func (cl *client) subject(t target) target {
	switch {
	case !t.host.IsZero():
		return t
	case cl.inner != nil:
		return *cl.inner
	}
	host, _ := policy.ParseHost(Gateway) // a constant name
	return target{host, gatewayPort, host}
}

// one serves one request and reports whether the connection can take another.
func (cl *client) one(ctx context.Context, req *http.Request, hostHeader string) bool {
	if cl.blocked != nil {
		req.Close = true
		return cl.page(req, http.StatusForbidden, blockPage(*cl.inner, *cl.blocked))
	}
	if req.Method == http.MethodConnect && cl.inner == nil {
		cl.connect(ctx, req, hostHeader)
		return false
	}
	t, secure, why := cl.address(req, hostHeader)
	if why != nil {
		cl.record(cl.subject(t), rules.Entry{Type: rules.Forward, Kind: why.kind, Reason: why.reason, Method: req.Method})
		return cl.page(req, why.status, why.reason+".\n")
	}
	return cl.forward(ctx, req, t, secure)
}

// A refusal is why the proxy itself, not a rule about the host, stops something.
type refusal struct {
	status int
	kind   string // of the log: "protocol", "credential"
	reason string
}

func (r *refusal) Error() string { return r.reason }

// address tells where a request goes: its own target, its Host header and the CONNECT around it must agree.
func (cl *client) address(req *http.Request, hostHeader string) (t target, secure bool, why *refusal) {
	refuse := func(status int, reason string) (target, bool, *refusal) {
		return t, false, &refusal{status, "protocol", reason}
	}
	if cl.inner != nil {
		t = *cl.inner
		if req.Method == http.MethodConnect {
			return refuse(http.StatusBadRequest, "CONNECT inside CONNECT")
		}
		scheme := "http"
		if cl.tls {
			scheme = "https"
		}
		if req.URL.IsAbs() && !strings.EqualFold(req.URL.Scheme, scheme) {
			return refuse(http.StatusBadRequest, "Scheme of the request does not match its connection")
		}
		if req.URL.User != nil {
			return refuse(http.StatusBadRequest, "User name in the request target")
		}
		if !t.isNamed(hostHeader) || req.URL.IsAbs() && !t.isNamed(req.URL.Host) {
			return refuse(http.StatusForbidden, "Host header does not match the CONNECT target")
		}
		return t, cl.tls, nil
	}
	if !req.URL.IsAbs() || req.URL.Host == "" {
		return refuse(http.StatusBadRequest, "This is a proxy; send the request in proxy form or use CONNECT")
	}
	fallback := uint16(80)
	switch strings.ToLower(req.URL.Scheme) {
	case "http":
	case "https":
		fallback = 443
	default:
		return refuse(http.StatusBadRequest, "Only http and https are carried")
	}
	if req.URL.User != nil {
		return refuse(http.StatusBadRequest, "User name in the request target")
	}
	host, port, err := policy.ParseHostPort(req.URL.Host, fallback)
	if err != nil {
		return refuse(http.StatusBadRequest, "Host of the request target is malformed")
	}
	t = cl.target(host, port)
	if why := t.unservable(); why != nil {
		return t, false, why
	}
	if !t.isNamed(hostHeader) {
		return refuse(http.StatusForbidden, "Host header does not match the request target")
	}
	return t, fallback == 443, nil
}

// isNamed reports whether text, a Host header or the authority of a target, names the target; the port may be left out.
func (t target) isNamed(text string) bool {
	host, port, err := policy.ParseHostPort(text, t.port)
	return err == nil && host == t.host && port == t.port
}

// unservable refuses targets that no rule is asked about.
func (t target) unservable() *refusal {
	switch {
	case t.isSelf():
		return &refusal{http.StatusForbidden, "protocol", "The proxy does not connect to itself"}
	case t.isSandboxLocal():
		return &refusal{http.StatusForbidden, "protocol", "localhost is the sandbox itself; the host's loopback is " + policy.HostAlias}
	}
	return nil
}

// page answers with a text and reports whether the connection can take another request.
func (cl *client) page(req *http.Request, status int, text string) bool {
	keep := req != nil && !req.Close && (req.Body == nil || req.Body == http.NoBody)
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Length: %d\r\nContent-Type: text/plain\r\n", status, http.StatusText(status), len(text))
	if !keep {
		b.WriteString("Connection: close\r\n")
	}
	b.WriteString("\r\n")
	if req == nil || req.Method != http.MethodHead {
		b.WriteString(text)
	}
	cl.c.SetWriteDeadline(time.Now().Add(headTimeout))
	if _, err := io.WriteString(cl.c, b.String()); err != nil {
		return false
	}
	if !keep {
		cl.lingerClose()
	}
	return keep
}

// lingerClose ends the sending side and takes what the client still sends for a moment: closing at once would reset
// the connection, and the client would never see the answer.
func (cl *client) lingerClose() {
	if w, ok := cl.c.(interface{ CloseWrite() error }); ok {
		if w.CloseWrite() != nil {
			return
		}
	}
	cl.c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	io.CopyN(io.Discard, cl.br, 1<<20)
}

// blockPage is the text for a denial (sbx 0.47 for a missing rule, the wording of 0.33 to 0.43 otherwise).
func blockPage(t target, d policy.Decision) string {
	host := t.rule.Join(t.port)
	if d.Kind == policy.Implicit {
		return "Approval required for " + host + ".\n\nReview and respond with:\n  sbx policy approval ls\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Blocked by network policy: domain %s\n", host)
	if d.Rule != "" {
		fmt.Fprintf(&b, "  rule: %s (domain, deny)\n", strconv.Quote(strings.TrimPrefix(d.Rule, "local:")))
	}
	fmt.Fprintf(&b, "  origin: local\n  detail: %s\n", d.Reason)
	return b.String()
}
