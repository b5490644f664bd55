package github

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Defaults of a Transport.
const (
	DefaultMaxBody         = 512 << 20        // bytes of one request's or one answer's body
	DefaultMaxTotal        = 8 << 30          // bytes of all bodies, both ways, of one Transport
	DefaultRequestTimeout  = 60 * time.Second // of silence in one request without a nearer deadline
	DefaultTransferTimeout = 10 * time.Minute // of one request with its bodies
	DefaultIdleTimeout     = 30 * time.Second // until an unused channel closes itself

	maxChannels = 4        // at a time, and so requests
	maxHead     = 1 << 20  // bytes of status line and headers
	maxPage     = 64 << 10 // bytes of a page of the sandbox's proxy
)

// Transport is an http.RoundTripper whose requests leave from inside the github sandbox. It keeps an exec open as a channel,
// over which one request goes after the other; a request that meets it in use, because an answer is still being read, takes
// a further one. A channel opens when it is needed, closes after IdleTimeout without a request, and opens again when the sandbox was
// restarted. The host opens no connection.
//
// Bodies stream both ways, at the pace of whoever is slower, and nothing of them is kept: neither here nor in the sandbox. So
// the body of an answer has to be read to its end or closed, which ends its exec. A request's body has to tell its length: then one
// that breaks off can never pass for whole.
//
// Only https to the endpoint's API and upload hosts goes out; anything else is refused with ErrOutOfBounds before any
// exec. Cancelling a request's context ends its exec.
type Transport struct {
	runner   Runner
	endpoint Endpoint

	// MaxBody bounds the body of a request and of an answer, in bytes. Over it: ErrTooLarge.
	MaxBody int64
	// MaxTotal bounds all bodies together, over the Transport's life.
	MaxTotal int64
	// RequestTimeout is how long a request may stand still: no byte either way, the answer's first included.
	RequestTimeout time.Duration
	// TransferTimeout bounds one request with its bodies.
	TransferTimeout time.Duration
	// IdleTimeout is how long an unused channel stays open; 0 or less closes it after every request.
	IdleTimeout time.Duration

	slots chan struct{} // one token for each request on its way

	mu    sync.Mutex        // guards what follows
	open  map[*channel]bool // true: in use
	idle  []*channel        // the last used one last
	shut  bool
	next  uint64
	total int64
}

// NewTransport returns a Transport with the default limits. Close it when done.
func NewTransport(r Runner, e Endpoint) *Transport {
	return &Transport{
		runner: r, endpoint: e,
		MaxBody: DefaultMaxBody, MaxTotal: DefaultMaxTotal,
		RequestTimeout: DefaultRequestTimeout, TransferTimeout: DefaultTransferTimeout, IdleTimeout: DefaultIdleTimeout,
		slots: make(chan struct{}, maxChannels), open: map[*channel]bool{},
	}
}

// RoundTrip carries one request and returns when the answer's header is there. Its errors, and those of reading the body, are a
// [*NetworkError], a [*BlockedError], or match ErrOutOfBounds, ErrTooLarge, ErrMalformed, ErrTool or the context's error. A status
// of GitHub's own is an answer, not an error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.roundTrip(req)
	if err != nil && req.Body != nil {
		req.Body.Close()
	}
	return resp, err
}

func (t *Transport) roundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil || req.URL.Scheme != "https" || req.URL.User != nil || !t.endpoint.allows(req.URL.Host) {
		return nil, fmt.Errorf("%w: only https to the API of %s leaves the sandbox", ErrOutOfBounds, t.endpoint.Host())
	}
	if req.Host != "" && req.Host != req.URL.Host {
		return nil, fmt.Errorf("%w: a host header beside the URL", ErrOutOfBounds)
	}
	length, err := t.length(req)
	if err != nil {
		return nil, err
	}
	left := t.TransferTimeout
	if d, ok := req.Context().Deadline(); ok {
		left = min(left, time.Until(d))
	}
	config, err := curlConfig(req, length, min(left, t.RequestTimeout), left, t.MaxBody)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), t.TransferTimeout+grace) // curl's own limit fires first
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(ctx)
	}
	x, err := t.begin(ctx, req, config, length)
	if err != nil {
		cancel()
		<-t.slots
		if cause := req.Context().Err(); cause != nil {
			return nil, errors.Join(cause, err)
		}
		return nil, err
	}
	x.after = func() { cancel(); <-t.slots }
	resp, err := x.answer(req)
	if err != nil {
		x.end()
		if cause := req.Context().Err(); cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, err
	}
	return resp, nil
}

// length is that of the request's body.
func (t *Transport) length(req *http.Request) (int64, error) {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return 0, nil
	case req.Method == http.MethodGet || req.Method == http.MethodHead:
		return 0, fmt.Errorf("%w: %s with a body", ErrOutOfBounds, req.Method)
	case req.ContentLength <= 0:
		return 0, fmt.Errorf("%w: a body that does not tell its length", ErrOutOfBounds)
	case req.ContentLength > t.MaxBody:
		return 0, fmt.Errorf("request body: %w of %d bytes", ErrTooLarge, t.MaxBody)
	}
	return req.ContentLength, nil
}

// count adds to the sum of all bodies.
func (t *Transport) count(n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.total += int64(n); t.total > t.MaxTotal {
		return fmt.Errorf("all requests together: %w of %d bytes", ErrTooLarge, t.MaxTotal)
	}
	return nil
}

// begin puts a request on a channel. One that a channel took but did not start, because the sandbox went away, is put on a fresh
// channel once; a request that was started never is.
func (t *Transport) begin(ctx context.Context, req *http.Request, config []byte, length int64) (*exchange, error) {
	for attempt := 0; ; attempt++ {
		ch, id, err := t.take(ctx, attempt > 0)
		if err != nil {
			return nil, err
		}
		x := &exchange{t: t, ch: ch, id: id, host: req.URL.Host, redirected: req.Response != nil, sent: make(chan struct{})}
		x.stop = context.AfterFunc(ctx, func() { ch.kill(errors.Join(ctx.Err(), context.Cause(ctx))) })
		err = x.start(config, length)
		if err == nil {
			go x.upload(req.Body, length)
			return x, nil
		}
		x.stop()
		err, again := x.broken(err, false)
		t.put(ch, false)
		if !again || attempt > 0 {
			return nil, err
		}
	}
}

// take returns a channel that is not in use, or a fresh one.
func (t *Transport) take(ctx context.Context, fresh bool) (*channel, uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shut {
		return nil, 0, errors.New("use of a closed transport")
	}
	t.next++
	for len(t.idle) > 0 {
		ch := t.idle[len(t.idle)-1]
		t.idle = t.idle[:len(t.idle)-1]
		if ch.rest.Stop() && !fresh && time.Since(ch.opened) < channelLife-t.TransferTimeout-time.Minute {
			t.open[ch] = true
			return ch, t.next, nil
		}
		go t.forget(ch) // too old, or of a sandbox that went away
	}
	ch := openChannel(ctx, t.runner)
	t.open[ch] = true
	return ch, t.next, nil
}

// put takes a channel back: to be used again, or to be ended.
func (t *Transport) put(ch *channel, again bool) {
	t.mu.Lock()
	if !again || t.shut || t.IdleTimeout <= 0 {
		t.mu.Unlock()
		t.forget(ch)
		return
	}
	defer t.mu.Unlock()
	t.open[ch] = false
	t.idle = append(t.idle, ch)
	ch.rest = time.AfterFunc(t.IdleTimeout, func() {
		t.mu.Lock()
		i := slices.Index(t.idle, ch)
		if i >= 0 {
			t.idle = slices.Delete(t.idle, i, i+1)
		}
		t.mu.Unlock()
		if i >= 0 {
			t.forget(ch)
		}
	})
}

// forget ends a channel that nobody uses, in good order if it is in good order.
func (t *Transport) forget(ch *channel) {
	ch.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, ch)
}

// Close ends all channels, those in use too, and waits until their execs are over. Requests after it fail.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.shut, t.idle = true, nil
	open := make([]*channel, 0, len(t.open))
	for ch, used := range t.open {
		if used {
			ch.kill(errors.New("the transport was closed"))
		}
		if ch.rest != nil {
			ch.rest.Stop()
		}
		open = append(open, ch)
	}
	t.mu.Unlock()
	for _, ch := range open {
		ch.close()
	}
	return nil
}

// curlError makes the error of curl's end, nil if it ended well. connect is the status of the proxy's answer to CONNECT, 0 if none.
func (x *exchange) curlError(exit, connect int, errText []byte) error {
	detail := oneLine(strings.TrimPrefix(string(errText), "curl: "), 300)
	switch {
	case exit == 0:
		return nil
	case connect == http.StatusForbidden:
		return &BlockedError{Host: x.host, Detail: detail, Redirected: x.redirected}
	case exit == 63:
		return fmt.Errorf("answer of %s: %w of %d bytes", x.host, ErrTooLarge, x.t.MaxBody)
	case exit == 126 || exit == 127:
		return fmt.Errorf("%w: curl does not run: %s", ErrTool, detail)
	case exit == 2: // "failed to initialize" and any option that this curl does not know
		return fmt.Errorf("%w: curl 7.54 or newer is needed: %s", ErrTool, detail)
	}
	trouble, sent := curlTrouble(exit)
	return &NetworkError{Trouble: trouble, Host: x.host, Exit: exit, Detail: detail, Sent: sent}
}

// answer reads the header of the answer; its body is read from x.
func (x *exchange) answer(req *http.Request) (*http.Response, error) {
	resp, err := readResponse(bufio.NewReader(x), req)
	if err != nil {
		if x.over != nil && x.over != io.EOF {
			return nil, x.over
		}
		return nil, fmt.Errorf("answer of %s: %w", x.host, err)
	}
	x.inBody = true
	if resp.ContentLength > x.t.MaxBody {
		return nil, fmt.Errorf("answer of %s: %w of %d bytes", x.host, ErrTooLarge, x.t.MaxBody)
	}
	resp.Body = &answerBody{x: x, r: resp.Body, left: x.t.MaxBody}
	if resp.Body, err = pageOf(x, resp); err != nil {
		return nil, err
	}
	if req.Method == http.MethodHead || resp.ContentLength == 0 { // nobody reads a body that is not there
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// readResponse reads the header of one HTTP response. One that is cut off matches ErrMalformed.
func readResponse(r *bufio.Reader, req *http.Request) (*http.Response, error) {
	for range 8 { // interim answers come first
		resp, err := http.ReadResponse(r, req)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", ErrMalformed, oneLine(err.Error(), 200))
		}
		switch {
		case resp.StatusCode >= 200:
			resp.TransferEncoding = nil
			return resp, nil
		case resp.StatusCode < 100:
			return nil, fmt.Errorf("%w: status %d", ErrMalformed, resp.StatusCode)
		}
	}
	return nil, fmt.Errorf("%w: interim answers without end", ErrMalformed)
}

// pageOf tells a page of the sandbox's proxy from an answer of GitHub's, and makes the error of it. The pages are text/plain with
// status 403 (sbx 0.35 to 0.47 and sbx-local); GitHub's REST answers are JSON and carry a request id.
func pageOf(x *exchange, resp *http.Response) (io.ReadCloser, error) {
	if resp.StatusCode != http.StatusForbidden || resp.Header.Get("X-GitHub-Request-Id") != "" {
		return resp.Body, nil
	}
	if ct, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(ct), "text/plain") {
		return resp.Body, nil
	}
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err != nil {
		return nil, err
	}
	if line, blocked := blockLine(string(page)); blocked {
		return nil, &BlockedError{Host: x.host, Detail: line, Redirected: x.redirected}
	}
	return readCloser{io.MultiReader(bytes.NewReader(page), resp.Body), resp.Body}, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// blockLine reads the first line of a page, or what git prints of one.
func blockLine(page string) (string, bool) {
	first, _, _ := strings.Cut(strings.TrimSpace(page), "\n")
	for _, p := range []string{"Blocked by ", "Approval required for "} {
		if strings.HasPrefix(first, p) {
			return oneLine(first, 200), true
		}
	}
	return "", false
}
