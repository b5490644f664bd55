package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/sbxpair/sbxpair/engine/rules"
)

// maxStreams bounds the requests that are under way on one connection of HTTP/2.
const maxStreams = 128

// serveStreams serves a client that speaks HTTP/2 to the end of its connection.
func (cl *client) serveStreams(ctx context.Context, c *tls.Conn) {
	server := &http2.Server{CountError: func(kind string) {
		// The server resets such a stream by itself (golang.org/x/net v0.62: WHAT_PROTOCOL_ERROR_WHY).
		if _, why, ok := strings.Cut(kind, "_PROTOCOL_ERROR_"); ok {
			cl.record(*cl.inner, rules.Entry{Type: rules.Forward, Kind: "protocol", Reason: "Malformed request: " + strings.ReplaceAll(why, "_", " ")})
		}
	}}
	server.ServeConn(c, &http2.ServeConnOpts{
		Context: ctx,
		BaseConfig: &http.Server{
			MaxHeaderBytes: maxHead, IdleTimeout: idleTimeout, ErrorLog: log.New(io.Discard, "", 0),
			HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, WriteByteTimeout: idleTimeout, SendPingTimeout: idleTimeout},
		},
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			cl.work.Add(1) // the connection's own keeps the count above zero
			defer cl.work.Done()
			cl.stream(rw, req)
		}),
	})
}

// stream serves one request over HTTP/2. What framing is there, the server has checked; what a request is about is
// checked as over HTTP/1.1.
func (cl *client) stream(rw http.ResponseWriter, req *http.Request) {
	page := func(status int, text string) {
		rw.Header().Set("Content-Type", "text/plain")
		rw.WriteHeader(status)
		io.WriteString(rw, text)
	}
	if cl.blocked != nil {
		page(http.StatusForbidden, blockPage(*cl.inner, *cl.blocked))
		return
	}
	select {
	case cl.streams <- struct{}{}:
		defer func() { <-cl.streams }()
	default:
		why := fmt.Sprintf("Too many requests from this sandbox (limit %d)", cl.maxConns)
		cl.record(*cl.inner, rules.Entry{Type: rules.Forward, Kind: "protocol", Reason: why})
		page(http.StatusServiceUnavailable, why+".\n")
		return
	}
	t, secure, why := cl.address(req, req.Host)
	for _, other := range req.Header["Host"] { // beside :authority
		if why == nil && !t.isNamed(other) {
			why = &refusal{http.StatusForbidden, "protocol", "Host header does not match the CONNECT target"}
		}
	}
	if why == nil && (!isToken(req.Method) || !isTarget(req.RequestURI)) {
		why = &refusal{http.StatusBadRequest, "protocol", "Malformed request: request line"}
	}
	if why != nil {
		cl.record(cl.subject(t), rules.Entry{Type: rules.Forward, Kind: why.kind, Reason: why.reason, Method: req.Method})
		page(why.status, why.reason+".\n")
		return
	}
	req.Header.Del("Host")
	x, stop := cl.prepare(req.Context(), req, t, secure)
	if stop != nil {
		page(stop.status, stop.text)
		return
	}
	if x.out.ContentLength == 0 {
		x.out.Body = http.NoBody
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	f := &flow{t, x.asked, false, cancel}
	defer cl.begin(f)()
	resp, stop := cl.send(ctx, x, f)
	if stop != nil {
		page(stop.status, stop.text)
		return
	}
	defer resp.Body.Close()
	if cl.pass(rw, resp, x) != nil {
		panic(http.ErrAbortHandler) // the stream is reset, so that the client sees that the answer is not whole
	}
}

// pass writes an answer as it comes, trailers included: of gRPC they are what counts.
func (cl *client) pass(rw http.ResponseWriter, resp *http.Response, x *exchange) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return errors.New("an upgrade nobody asked for")
	}
	cleanHop(resp.Header)
	for name, values := range resp.Header {
		rw.Header()[name] = values
	}
	rw.WriteHeader(resp.StatusCode)
	out := http.NewResponseController(rw)
	if resp.ContentLength != 0 { // a gRPC answer of trailers alone must stay one piece
		if err := out.Flush(); err != nil {
			return err
		}
	}
	buf := make([]byte, copyPiece)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			out.SetWriteDeadline(time.Now().Add(idleTimeout))
			if _, err := rw.Write(buf[:n]); err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	cl.mask(resp.Trailer, x.used)
	cleanHop(resp.Trailer)
	for name, values := range resp.Trailer {
		rw.Header()[http.TrailerPrefix+name] = values
	}
	return nil
}
