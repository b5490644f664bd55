package egress

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"

	"github.com/sbxpair/sbxpair/engine/rules"
)

// overridingHeaders ask a server for another method or path than those of the request's line, which rules decide on.
func overridingHeaders() []string {
	return []string{"x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url"}
}

// overriding returns the name of such a header, "" for none. Some servers take an underscore for a dash.
func overriding(h http.Header) string {
	for name := range h {
		if slices.Contains(overridingHeaders(), strings.ReplaceAll(strings.ToLower(name), "_", "-")) {
			return name
		}
	}
	return ""
}

// isTrailer reports whether a header may come behind the body. Those that decide on a request may not: a server that takes them
// from there would take what was not looked at.
func isTrailer(name string) bool {
	return httpguts.ValidTrailerHeader(name) && name != "Cookie" && name != "Upgrade" && !slices.Contains(credentialHeaders(), name) &&
		overriding(http.Header{name: nil}) == ""
}

// A checkedBody is the body of a request on its way out. What is wrong with its framing or its trailers ends the request.
type checkedBody struct {
	io.ReadCloser
	req     *http.Request     // its trailers are there at the end of the body
	trailer http.Header       // of the request that goes out: what was announced, and nothing else
	marked  func(string) bool // of a trailer's text; nil where none was announced
	note    func(rules.Entry)
	why     atomic.Pointer[refusal]
}

// checkBody puts a checkedBody into the request that goes out, if there is a body. The error is a [*refusal].
func (x *exchange) checkBody(s *session, req *http.Request, note func(rules.Entry)) error {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	for name := range req.Trailer {
		if !isTrailer(name) {
			return credentialRefusal(name + " in a trailer")
		}
	}
	x.body = &checkedBody{ReadCloser: req.Body, req: req, note: note}
	if len(req.Trailer) > 0 {
		known, err := s.vault.Placeholders()
		if err != nil {
			return &refusal{http.StatusBadGateway, "credential", "Secrets cannot be read"}
		}
		x.body.marked = func(text string) bool { return isMarked(text, known) }
		x.body.trailer = http.Header{}
		for name := range req.Trailer {
			x.body.trailer[name] = nil
		}
	}
	x.out.Body, x.out.Trailer = x.body, x.body.trailer
	return nil
}

// refused tells why the body was not passed on to its end, nil if it was.
func (b *checkedBody) refused() *refusal {
	if b == nil {
		return nil
	}
	return b.why.Load()
}

func (b *checkedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		if why := b.takeTrailer(); why != nil {
			return n, b.refuse(why)
		}
	case b.req.ProtoMajor == 1 && isMalformed(err):
		return n, b.refuse(&refusal{http.StatusBadRequest, "protocol", "Malformed request: body"})
	}
	return n, err
}

// isMalformed tells a body that cannot be read as it is from one that does not come.
func isMalformed(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return !network && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe)
}

func (b *checkedBody) refuse(why *refusal) error {
	if b.why.CompareAndSwap(nil, why) {
		b.note(rules.Entry{Type: rules.Forward, Kind: why.kind, Reason: why.reason})
	}
	return why
}

// takeTrailer passes on what was announced.
func (b *checkedBody) takeTrailer() *refusal {
	for name := range b.trailer {
		for _, text := range b.req.Trailer[name] {
			if b.marked(text) {
				return credentialRefusal("Placeholder in the " + name + " trailer; only headers are filled in")
			}
		}
		b.trailer[name] = b.req.Trailer[name]
	}
	return nil
}

// isMarked reports whether a text holds a placeholder: one of those that are known, which may be another sandbox's, or one that can
// be told by its form.
func isMarked(text string, known []string) bool {
	return strings.Contains(text, "sbxproxymanaged") || strings.Contains(text, "sbx-cs-") ||
		slices.ContainsFunc(known, func(placeholder string) bool { return strings.Contains(text, placeholder) })
}
