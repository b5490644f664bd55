package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// forward decides on one request, carries it to its target and answers it. It reports whether the connection can take
// another request.
func (cl *client) forward(ctx context.Context, req *http.Request, t target, secure bool) bool {
	x, stop := cl.prepare(ctx, req, t, secure)
	if stop != nil {
		return cl.page(req, stop.status, stop.text)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &flow{t, x.asked, false, cancel}
	defer cl.begin(f)()
	watch := newWatcher(cl.c, cl.br, cancel)
	defer watch.stop()
	body := &requestBody{client: cl, body: x.out.Body, expect: x.expect, left: x.out.ContentLength, ended: watch.start}
	defer body.close()
	if x.out.Body == nil || x.out.Body == http.NoBody || x.out.ContentLength == 0 {
		x.out.Body = http.NoBody
		body.done = true
		watch.start()
	} else {
		x.out.Body = body
	}
	resp, stop := cl.send(ctx, x, f)
	if stop != nil {
		if ctx.Err() != nil {
			return false // the client is gone, or we are stopping
		}
		return cl.answerUnread(body, watch, req, stop.status, stop.text)
	}
	defer resp.Body.Close()
	body.answering()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if !x.agreed(resp) { // behind it requests would go by unseen
			const why = "The server changes to a protocol that it was not asked for"
			cl.record(t, rules.Entry{Type: rules.Forward, Kind: "protocol", Reason: why, Method: x.out.Method, Path: x.out.URL.EscapedPath()})
			return cl.answerUnread(body, watch, req, http.StatusBadGateway, why+".\n")
		}
		watch.stop()
		cl.switchProtocols(ctx, resp)
		return false
	}
	return cl.answer(req, resp, body, x.used, watch)
}

// An exchange is one request that may go.
type exchange struct {
	target  target
	secure  bool
	asked   policy.Request
	verdict policy.Decision
	out     *http.Request // without a context; its body is the client's
	upgrade string
	expect  bool            // the client waits for a 100
	used    []secrets.Value // what was put in
	body    *checkedBody    // nil without a body
}

// agreed reports whether an answer changes to a protocol that the request offered.
func (x *exchange) agreed(resp *http.Response) bool {
	offered := fields(x.upgrade)
	taken := fields(upgradeOf(resp.Header))
	return len(taken) > 0 && !slices.ContainsFunc(taken, func(name string) bool { return !slices.Contains(offered, name) })
}

// fields returns the parts of a header that is a list, in lower case.
func fields(list string) []string {
	var out []string
	for part := range strings.SplitSeq(strings.ToLower(list), ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// A stop is the page for a request that does not go, or did not get there. It is in the log already.
type stop struct {
	status int
	text   string
}

// prepare decides on a request and makes the one that goes out, credentials included.
func (s *session) prepare(ctx context.Context, req *http.Request, t target, secure bool) (*exchange, *stop) {
	note := func(e rules.Entry) {
		e.Method, e.Path = req.Method, req.URL.EscapedPath()
		s.record(t, e)
	}
	refuse := func(why *refusal) (*exchange, *stop) {
		note(rules.Entry{Type: rules.Forward, Kind: why.kind, Reason: why.reason})
		return nil, &stop{why.status, "Refused by the proxy: " + why.reason + ".\n"}
	}
	path, pathErr := policy.ParsePath(rawPath(req))
	asked := policy.Request{Host: t.rule, Port: t.port, Method: req.Method, Path: path}
	d := s.decide(asked)
	if d.Inspect && pathErr != nil {
		return refuse(&refusal{http.StatusBadRequest, "protocol", "Request path cannot be decided on"})
	}
	if !d.Allowed {
		note(entryOf(d))
		return nil, &stop{http.StatusForbidden, blockPage(t, d)}
	}
	if name := overriding(req.Header); d.Inspect && name != "" {
		return refuse(&refusal{http.StatusForbidden, "protocol", "The " + name + " header asks for something else than what the rules decide on"})
	}
	out := &http.Request{
		Method: req.Method, URL: upstreamURL(req, t, secure), Host: t.wireHost(secure), Header: req.Header.Clone(),
		ContentLength: req.ContentLength, Body: req.Body,
	}
	if d.Inspect && path.Changed() {
		// Ask for what was decided on, not for what it could be read as.
		if u, err := url.ParseRequestURI(path.Wire()); err == nil {
			out.URL.Path, out.URL.RawPath = u.Path, u.RawPath
		}
	}
	x := &exchange{target: t, secure: secure, asked: asked, verdict: d, out: out, upgrade: upgradeOf(out.Header)}
	if changesHTTP(x.upgrade) {
		x.upgrade = "" // RFC 9110 lets a server ignore it, and behind it requests would go by unseen
	}
	x.expect = strings.EqualFold(out.Header.Get("Expect"), "100-continue")
	trailers := req.ProtoMajor == 2 && strings.EqualFold(out.Header.Get("Te"), "trailers")
	cleanHop(out.Header)
	out.Header.Del("Expect")
	if trailers {
		out.Header.Set("Te", "trailers") // gRPC servers look for it
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // or the transport writes its own
	}
	if x.upgrade != "" {
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", x.upgrade)
	}
	used, err := s.inject(ctx, t, secure, out.URL, out.Header)
	if err == nil {
		err = x.checkBody(s, req, note)
	}
	if err != nil {
		why, _ := errors.AsType[*refusal](err)
		return refuse(why)
	}
	if x.used = used; len(used) > 0 {
		out.Header.Set("Accept-Encoding", "identity") // what is compressed cannot be masked
	}
	return x, nil
}

// send carries a request, whose flow is f, to its target and returns the answer, with what was put in masked. The decision is
// written down when a connection is there and before a byte has gone out on it: at that point the addresses have been decided
// on too.
func (s *session) send(ctx context.Context, x *exchange, f *flow) (*http.Response, *stop) {
	once := sync.Once{}
	note := func(e rules.Entry) (first bool) {
		once.Do(func() {
			first = true
			e.Method, e.Path = x.out.Method, x.out.URL.EscapedPath()
			s.record(x.target, e)
		})
		return first
	}
	trip, err := s.transport(ctx, x)
	var resp *http.Response
	if err == nil {
		trace := ctx
		if _, byProxy := trip.(upstreamTrip); !byProxy { // whose connection is not one to the target
			trace = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
				s.reached(f, got.Conn)
				note(entryOf(x.verdict))
			}})
		}
		resp, err = trip.RoundTrip(x.out.WithContext(trace))
	}
	if err != nil {
		if why := x.body.refused(); why != nil { // is in the log
			return nil, &stop{why.status, "Refused by the proxy: " + why.reason + ".\n"}
		}
		if denied, ok := errors.AsType[*deniedError](err); ok {
			note(entryOf(denied.decision))
			return nil, &stop{http.StatusForbidden, blockPage(x.target, denied.decision)}
		}
		e, reason := entryOf(x.verdict), describe(err)
		e.Kind, e.Reason = "dial", x.verdict.Reason+", but not reached: "+reason
		if !note(e) && ctx.Err() == nil { // that nothing came of it is written down too
			e.Reason, e.Method, e.Path = x.verdict.Reason+", but not answered: "+reason, x.out.Method, x.out.URL.EscapedPath()
			s.record(x.target, e)
		}
		return nil, &stop{http.StatusBadGateway, fmt.Sprintf("The proxy cannot reach %s: %s.\n", x.target.host.Join(x.target.port), reason)}
	}
	note(entryOf(x.verdict)) // for a transport that does not trace
	s.mask(resp.Header, x.used)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = maskBody(resp, x.used)
	}
	return resp, nil
}

// answerUnread sends a page in place of an answer; the request's body may not have been read.
func (cl *client) answerUnread(body *requestBody, watch *watcher, req *http.Request, status int, text string) bool {
	if !body.isDone() {
		req.Close = true
	}
	watch.stop()
	body.close()
	bare := *req
	bare.Body = nil
	return cl.page(&bare, status, text)
}

// transport chooses how a request goes out. With a proxy of the machine's own on the way, a request without TLS is handed
// to that in its own form, after a look at the addresses.
func (s *session) transport(ctx context.Context, x *exchange) (http.RoundTripper, error) {
	_, overridden := s.overrideOf(x.target)
	s.mu.Lock()
	pool := s.pool
	s.mu.Unlock()
	switch {
	case !x.secure:
		up, err := s.upstreamOf(x.target, false)
		if err != nil {
			return nil, err
		}
		if up == nil {
			return pool.clear, nil
		}
		if err := s.vouch(ctx, x.target); err != nil {
			return nil, err
		}
		if up.tunnelsOnly() {
			return upstreamTrip{pool.clear, up}, nil
		}
		return upstreamTrip{pool.handed, up}, nil
	case overridden && x.upgrade != "":
		return pool.overrideH1, nil
	case overridden:
		return pool.override, nil
	case x.upgrade != "":
		return pool.plainH1, nil
	}
	return pool.plain, nil
}

// changesHTTP reports whether an upgrade is to another form of HTTP or to TLS.
func changesHTTP(upgrade string) bool {
	for _, name := range fields(upgrade) {
		if name == "h2c" || strings.HasPrefix(name, "http/") || strings.HasPrefix(name, "tls/") {
			return true
		}
	}
	return false
}

// rawPath is the path as it came, which a parsed URL may spell differently.
func rawPath(req *http.Request) string {
	raw, _, _ := strings.Cut(req.RequestURI, "?")
	if req.URL.IsAbs() {
		_, rest, _ := strings.Cut(raw, "://")
		slash := strings.IndexByte(rest, '/')
		if slash < 0 {
			return "/"
		}
		return rest[slash:]
	}
	return raw
}

func upstreamURL(req *http.Request, t target, secure bool) *url.URL {
	u := *req.URL
	u.Scheme, u.User, u.Fragment, u.RawFragment = "http", nil, "", ""
	if secure {
		u.Scheme = "https"
	}
	u.Host = t.host.Join(t.port)
	if u.Path == "*" { // OPTIONS *
		u.Opaque = "*"
	}
	return &u
}

// wireHost is the Host header: without the port where it is the scheme's own. The host's loopback is called localhost,
// as its servers expect (sbx 0.47).
func (t target) wireHost(secure bool) string {
	own := uint16(80)
	if secure {
		own = 443
	}
	if t.port != own {
		return t.rule.Join(t.port)
	}
	if t.rule.Addr().Is6() {
		return "[" + t.rule.String() + "]"
	}
	return t.rule.String()
}

// A requestBody streams the client's body to the server. It says "100 Continue" when the server's side first reads,
// and calls ended at its end.
type requestBody struct {
	client *client
	body   io.Reader
	left   int64 // bytes to come; negative: until EOF
	ended  func()

	reading sync.Mutex // held while the client's connection is read

	mu       sync.Mutex
	expect   bool
	answered bool // an answer has begun: no more 100 Continue
	done     bool
	closed   bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if err := b.begin(); err != nil {
		return 0, err
	}
	n, err := b.body.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
	}
	if errors.Is(err, io.EOF) || b.left == 0 {
		b.mu.Lock()
		first := !b.done
		b.done = true
		b.mu.Unlock()
		if first {
			b.client.c.SetReadDeadline(time.Time{})
			b.ended()
		}
	}
	return n, err
}

func (b *requestBody) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("request is over")
	}
	if b.done {
		return io.EOF
	}
	b.client.c.SetReadDeadline(time.Now().Add(idleTimeout))
	if b.expect && !b.answered {
		b.expect = false
		_, err := io.WriteString(b.client.c, "HTTP/1.1 100 Continue\r\n\r\n")
		return err
	}
	return nil
}

// Close is called by the transport, also while an answer is still to come.
func (b *requestBody) Close() error { return nil }

// close ends reading for good, a read that is under way included: afterwards the connection is ours alone again.
func (b *requestBody) close() {
	b.mu.Lock()
	open := !b.closed && !b.done
	b.closed = true
	if open {
		b.client.c.SetReadDeadline(time.Unix(1, 0))
	}
	b.mu.Unlock()
	b.reading.Lock() // waits for the read that the deadline ends
	b.reading.Unlock()
}

func (b *requestBody) isDone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

func (b *requestBody) answering() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered = true
}

// A watcher waits for the client to hang up while the server works, and cancels the request then. It reads ahead into
// the buffer at most; stop ends it before the next request is read.
type watcher struct {
	c      net.Conn
	br     *bufio.Reader
	cancel context.CancelFunc

	mu      sync.Mutex
	running chan struct{}
	stopped bool
}

func newWatcher(c net.Conn, br *bufio.Reader, cancel context.CancelFunc) *watcher {
	return &watcher{c: c, br: br, cancel: cancel}
}

func (w *watcher) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.running != nil || w.br.Buffered() > 0 {
		return
	}
	w.c.SetReadDeadline(time.Time{})
	done := make(chan struct{})
	w.running = done
	go func() { // ends with stop
		defer close(done)
		if _, err := w.br.Peek(1); err != nil {
			w.mu.Lock()
			stopped := w.stopped
			w.mu.Unlock()
			if !stopped {
				w.cancel()
			}
		}
	}()
}

func (w *watcher) stop() {
	w.mu.Lock()
	first := !w.stopped
	w.stopped = true
	running := w.running
	w.mu.Unlock()
	if !first || running == nil {
		return
	}
	w.c.SetReadDeadline(time.Unix(1, 0)) // ends the Peek
	<-running
	w.c.SetReadDeadline(time.Time{})
}

// answer writes the server's answer as it comes and reports whether the connection can take another request.
func (cl *client) answer(req *http.Request, resp *http.Response, body *requestBody, used []secrets.Value, watch *watcher) bool {
	upstreamClosesBody := false
	h := resp.Header
	cleanHop(h)
	h.Del("Content-Length")
	bodiless := req.Method == http.MethodHead || resp.StatusCode == http.StatusNoContent ||
		resp.StatusCode == http.StatusNotModified || resp.StatusCode < 200
	chunked := false
	switch {
	case resp.StatusCode < 200, resp.StatusCode == http.StatusNoContent, resp.StatusCode == http.StatusNotModified:
	case resp.ContentLength >= 0:
		h.Set("Content-Length", fmt.Sprint(resp.ContentLength))
	case bodiless:
	case req.ProtoAtLeast(1, 1):
		chunked = true
		h.Set("Transfer-Encoding", "chunked")
	default:
		upstreamClosesBody = true
	}
	keep := !req.Close && body.isDone() && !upstreamClosesBody && req.ProtoAtLeast(1, 1)
	if !keep {
		h.Set("Connection", "close")
	}
	w := bufio.NewWriterSize(deadlineWriter{cl.c}, 32<<10)
	fmt.Fprintf(w, "HTTP/1.1 %d %s\r\n", resp.StatusCode, http.StatusText(resp.StatusCode))
	writeHeader(w, h)
	if w.Flush() != nil {
		return false
	}
	if bodiless {
		watch.stop()
		return keep
	}
	if err := copyBody(w, resp.Body, chunked); err != nil {
		return false // closed in the middle, so that the client sees that it is not whole
	}
	if chunked {
		io.WriteString(w, "0\r\n")
		cl.mask(resp.Trailer, used)
		cleanHop(resp.Trailer)
		writeHeader(w, resp.Trailer)
	}
	if w.Flush() != nil {
		return false
	}
	watch.stop()
	if !keep {
		body.close()
		cl.lingerClose()
	}
	return keep
}

// writeHeader writes the lines and the empty one that ends them. Names and values come from a parser, but what an
// HTTP/2 server sent could still not fit into lines.
func writeHeader(w *bufio.Writer, h http.Header) {
	for name, values := range h {
		if !isToken(name) {
			continue
		}
		for _, v := range values {
			v = strings.Map(func(r rune) rune {
				if r < ' ' && r != '\t' || r == 0x7f {
					return ' '
				}
				return r
			}, v)
			w.WriteString(name)
			w.WriteString(": ")
			w.WriteString(v)
			w.WriteString("\r\n")
		}
	}
	w.WriteString("\r\n")
}

// copyPiece is how much of a body is passed on at once, at most.
const copyPiece = 64 << 10

// copyBody passes on each piece as it comes: an event stream must not wait for a buffer to fill.
func copyBody(w *bufio.Writer, body io.Reader, chunked bool) error {
	buf := make([]byte, copyPiece)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if chunked {
				fmt.Fprintf(w, "%x\r\n", n)
			}
			w.Write(buf[:n])
			if chunked {
				w.WriteString("\r\n")
			}
			if werr := w.Flush(); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A deadlineWriter gives each write idleTimeout.
type deadlineWriter struct{ c net.Conn }

func (d deadlineWriter) Write(p []byte) (int, error) {
	d.c.SetWriteDeadline(time.Now().Add(idleTimeout))
	return d.c.Write(p)
}

// switchProtocols passes on a 101 and joins both sides.
func (cl *client) switchProtocols(ctx context.Context, resp *http.Response) {
	up, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		cl.page(nil, http.StatusBadGateway, "The server cannot change protocols.\n")
		return
	}
	upgrade := resp.Header.Get("Upgrade")
	cleanHop(resp.Header)
	resp.Header.Set("Connection", "Upgrade")
	resp.Header.Set("Upgrade", upgrade)
	w := bufio.NewWriter(deadlineWriter{cl.c})
	fmt.Fprintf(w, "HTTP/1.1 101 %s\r\n", http.StatusText(http.StatusSwitchingProtocols))
	writeHeader(w, resp.Header)
	if w.Flush() != nil {
		return
	}
	end := func() {
		up.Close()
		cl.c.Close()
	}
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer stop()
	// The server's side has no deadlines of its own; a silent connection ends when the client's side has been idle.
	down := make(chan struct{})
	cl.work.Go(func() {
		defer close(down)
		defer end()
		io.Copy(deadlineWriter{cl.c}, up)
	})
	buf := make([]byte, 32<<10)
	for {
		cl.c.SetReadDeadline(time.Now().Add(idleTimeout))
		n, err := cl.br.Read(buf)
		if n > 0 {
			if _, werr := up.Write(buf[:n]); werr != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	end()
	<-down
}
