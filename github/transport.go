package github

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// Defaults of a Transport.
const (
	DefaultMaxBody        = 32 << 20         // bytes of one request's or one answer's body
	DefaultRequestTimeout = 60 * time.Second // of one request without a nearer deadline
	DefaultIdleTimeout    = 30 * time.Second // until an unused channel closes itself
	channelLife           = 30 * time.Minute // of one exec; a new one is started when it is over
	maxHead               = 1 << 20          // bytes of status line and headers
	maxPreamble           = 64 << 10         // bytes an engine may print before the channel speaks, such as "Sandbox x started"
)

// Transport is an http.RoundTripper whose requests leave from inside the github sandbox. It keeps one exec open as a
// channel and sends one request at a time over it; the channel opens at the first request, closes after IdleTimeout
// without one, and opens again when the sandbox was restarted. The host opens no connection.
//
// Only https to the endpoint's API and upload hosts goes out; anything else is refused with ErrOutOfBounds before any
// exec. Cancelling a request's context ends the exec. Answers are read whole, up to MaxBody, before RoundTrip returns.
type Transport struct {
	runner   Runner
	endpoint Endpoint

	// MaxBody bounds request and answer bodies, in bytes. Over it: ErrTooLarge.
	MaxBody int64
	// RequestTimeout bounds one request in the sandbox.
	RequestTimeout time.Duration
	// IdleTimeout is how long an unused channel stays open; 0 or less closes it after every request.
	IdleTimeout time.Duration

	turn chan struct{} // holds one token: who has it may use ch
	mu   sync.Mutex    // guards idle and closed
	ch   *channel
	idle *time.Timer
	shut bool
	next uint64
}

// NewTransport returns a Transport with the default limits. Close it when done.
func NewTransport(r Runner, e Endpoint) *Transport {
	return &Transport{
		runner: r, endpoint: e,
		MaxBody: DefaultMaxBody, RequestTimeout: DefaultRequestTimeout, IdleTimeout: DefaultIdleTimeout,
		turn: make(chan struct{}, 1),
	}
}

// RoundTrip carries one request. Its errors are a [*NetworkError], a [*BlockedError], or match ErrOutOfBounds, ErrTooLarge,
// ErrMalformed, ErrTool or the context's error. A status of GitHub's own is an answer, not an error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if req.URL == nil || req.URL.Scheme != "https" || req.URL.User != nil || !t.endpoint.allows(req.URL.Host) {
		return nil, fmt.Errorf("%w: only https to the API of %s leaves the sandbox", ErrOutOfBounds, t.endpoint.Host())
	}
	if req.Host != "" && req.Host != req.URL.Host {
		return nil, fmt.Errorf("%w: a host header beside the URL", ErrOutOfBounds)
	}
	body, hasBody, err := t.body(req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), t.RequestTimeout+5*time.Second) // curl's own limit fires first
	defer cancel()
	timeout := t.RequestTimeout
	if d, ok := req.Context().Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	config, err := curlConfig(req, hasBody, timeout, t.MaxBody)
	if err != nil {
		return nil, err
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ans, err := t.send(ctx, req.URL.Host, config, body)
	if err != nil {
		if cause := req.Context().Err(); cause != nil {
			return nil, errors.Join(cause, err)
		}
		return nil, err
	}
	return t.read(req, ans)
}

// body reads the request's body. A method that usually has one gets an empty one, so that curl sends its length.
func (t *Transport) body(req *http.Request) ([]byte, bool, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, req.Method != http.MethodGet && req.Method != http.MethodHead, nil
	}
	b, err := io.ReadAll(io.LimitReader(req.Body, t.MaxBody+1))
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read request body: %w", err)
	case int64(len(b)) > t.MaxBody:
		return nil, false, fmt.Errorf("request body: %w of %d bytes", ErrTooLarge, t.MaxBody)
	case len(b) > 0 && (req.Method == http.MethodGet || req.Method == http.MethodHead):
		return nil, false, fmt.Errorf("%w: %s with a body", ErrOutOfBounds, req.Method)
	case len(b) == 0:
		return nil, req.Method != http.MethodGet && req.Method != http.MethodHead, nil
	}
	return b, true, nil
}

// answer is what came back over the channel for one request.
type answer struct {
	exit    int // curl's
	connect int // status of the proxy's answer to CONNECT, 0 if none
	out     []byte
	errText []byte
}

// send puts one request on the channel. A request that a channel took but did not start, because the sandbox went away, is
// sent once more on a fresh channel; a request that was started never is.
func (t *Transport) send(ctx context.Context, host string, config, body []byte) (answer, error) {
	t.stopIdle()
	for attempt := 0; ; attempt++ {
		t.next++
		if t.ch == nil {
			if t.closed() {
				return answer{}, errors.New("use of a closed transport")
			}
			t.ch = openChannel(ctx, t.runner)
		}
		ans, started, err := t.ch.do(ctx, t.next, config, body, t.MaxBody+maxHead)
		if err == nil {
			t.rest()
			return ans, nil
		}
		exitErr := t.ch.close(err)
		t.ch = nil
		if ctx.Err() != nil {
			return answer{}, &NetworkError{Trouble: TroubleTimeout, Host: host, Sent: started, Detail: "no answer from the sandbox", err: context.Cause(ctx)}
		}
		if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrMalformed) {
			return answer{}, err
		}
		if errors.Is(exitErr, ErrTool) {
			return answer{}, exitErr
		}
		if started || attempt > 0 {
			detail := err
			if exitErr != nil {
				detail = exitErr
			}
			return answer{}, &NetworkError{Trouble: TroubleSandbox, Host: host, Sent: started, Detail: oneLine(detail.Error(), 300), err: exitErr}
		}
	}
}

// read makes the response.
func (t *Transport) read(req *http.Request, ans answer) (*http.Response, error) {
	host := req.URL.Host
	detail := oneLine(strings.TrimPrefix(string(ans.errText), "curl: "), 300)
	switch {
	case ans.exit == 0:
	case ans.connect == http.StatusForbidden:
		return nil, &BlockedError{Host: host, Detail: detail, Redirected: req.Response != nil}
	case ans.exit == 63:
		return nil, fmt.Errorf("answer of %s: %w of %d bytes", host, ErrTooLarge, t.MaxBody)
	case ans.exit == 126 || ans.exit == 127:
		return nil, fmt.Errorf("%w: curl does not run: %s", ErrTool, detail)
	case ans.exit == 2: // "failed to initialize" and any option that this curl does not know
		return nil, fmt.Errorf("%w: curl 7.54 or newer is needed: %s", ErrTool, detail)
	default:
		trouble, sent := curlTrouble(ans.exit)
		return nil, &NetworkError{Trouble: trouble, Host: host, Exit: ans.exit, Detail: detail, Sent: sent}
	}
	resp, err := parseResponse(ans.out, req, t.MaxBody)
	if err != nil {
		return nil, fmt.Errorf("answer of %s: %w", host, err)
	}
	if line, blocked := blockPage(resp); blocked {
		return nil, &BlockedError{Host: host, Detail: line, Redirected: req.Response != nil}
	}
	return resp, nil
}

// parseResponse reads one HTTP response with its whole body. A body cut short is an error that matches ErrMalformed.
func parseResponse(raw []byte, req *http.Request, maxBody int64) (*http.Response, error) {
	r := bufio.NewReader(bytes.NewReader(raw))
	for range 8 { // interim answers come first
		resp, err := http.ReadResponse(r, req)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", ErrMalformed, oneLine(err.Error(), 200))
		}
		if resp.StatusCode < 200 {
			if resp.StatusCode < 100 {
				return nil, fmt.Errorf("%w: status %d", ErrMalformed, resp.StatusCode)
			}
			continue
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
		resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("%w: body cut off after %d bytes: %w", ErrMalformed, len(body), err)
		}
		if int64(len(body)) > maxBody {
			return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, maxBody)
		}
		resp.Body = io.NopCloser(bytes.NewReader(body))
		if req == nil || req.Method != http.MethodHead {
			resp.ContentLength = int64(len(body))
		}
		resp.TransferEncoding = nil
		return resp, nil
	}
	return nil, fmt.Errorf("%w: interim answers without end", ErrMalformed)
}

// blockPage tells a page of the sandbox's proxy from an answer of GitHub's. The pages are text/plain with status 403 (sbx
// 0.35 to 0.47 and sbx-local); GitHub's REST answers are JSON and carry a request id.
func blockPage(resp *http.Response) (firstLine string, ok bool) {
	if resp.StatusCode != http.StatusForbidden || resp.Header.Get("X-GitHub-Request-Id") != "" {
		return "", false
	}
	if ct, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(ct), "text/plain") {
		return "", false
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", false
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return blockLine(string(body))
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

// Close ends the channel and waits until its exec is over. Requests after it fail.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.shut = true
	t.mu.Unlock()
	t.stopIdle()
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	t.dropChannel()
	return nil
}

func (t *Transport) closed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shut
}

// dropChannel closes the channel in good order. The caller has the turn.
func (t *Transport) dropChannel() {
	if t.ch != nil {
		t.ch.close(nil)
		t.ch = nil
	}
}

// rest decides what becomes of the channel after a request. The caller has the turn.
func (t *Transport) rest() {
	if t.IdleTimeout <= 0 || t.ch.age() > channelLife-t.RequestTimeout-time.Minute {
		t.dropChannel()
		return
	}
	ch := t.ch
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = time.AfterFunc(t.IdleTimeout, func() {
		select {
		case t.turn <- struct{}{}:
			defer func() { <-t.turn }()
			if t.ch == ch && ch.uses == ch.usesAtRest {
				t.dropChannel()
			}
		default: // in use
		}
	})
	ch.usesAtRest = ch.uses
}

func (t *Transport) stopIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle != nil {
		t.idle.Stop()
		t.idle = nil
	}
}

// channel is one exec of channelScript. Only who has the transport's turn uses it.
type channel struct {
	in     *io.PipeWriter
	out    *bufio.Reader
	outR   *io.PipeReader
	cancel context.CancelCauseFunc
	done   chan struct{}
	opened time.Time
	err    error // how the exec ended; valid after done

	uses, usesAtRest int
}

// openChannel starts the exec. It outlives ctx, which only lends its values: close ends it.
func openChannel(ctx context.Context, r Runner) *channel {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ch := &channel{in: inW, out: bufio.NewReader(outR), outR: outR, cancel: cancel, done: make(chan struct{}), opened: time.Now()}
	go func() {
		defer close(ch.done)
		var stderr tailBuffer
		res, err := r.Exec(ctx, sbx.ExecSpec{
			Argv:  []string{"/bin/sh", "-c", channelScript},
			Stdin: inR, Stdout: outW, Stderr: &stderr,
			Timeout: channelLife, MaxCapture: 4 << 10,
		})
		ch.err = channelEnd(res, err, stderr.String())
		end := ch.err
		if end == nil {
			end = io.ErrUnexpectedEOF
		}
		inR.CloseWithError(end)
		outW.CloseWithError(end)
	}()
	return ch
}

// channelEnd reads how the script ended.
func channelEnd(res sbx.ExecResult, err error, stderr string) error {
	switch {
	case errors.Is(err, sbx.ErrLaunch):
		return fmt.Errorf("%w: %w", ErrTool, err)
	case err != nil:
		return fmt.Errorf("exec in the github sandbox: %w", err)
	case res.Code == 0:
		return nil
	case res.Code == 126 || res.Code == 127:
		return fmt.Errorf("%w: %s", ErrTool, oneLine(stderr, 200))
	}
	return fmt.Errorf("request channel ended with %d: %s", res.Code, oneLine(stderr, 200))
}

func (c *channel) age() time.Duration { return time.Since(c.opened) }

// do sends one request and reads its answer. started is true once the script said that it runs curl for it.
func (c *channel) do(ctx context.Context, id uint64, config, body []byte, limit int64) (ans answer, started bool, err error) {
	c.uses++
	stop := context.AfterFunc(ctx, func() { // ends a write or read that hangs
		c.in.CloseWithError(ctx.Err())
		c.outR.CloseWithError(ctx.Err())
		c.cancel(context.Cause(ctx))
	})
	defer stop()
	request := bytes.Join([][]byte{fmt.Appendf(nil, "%d %d %d\n", id, len(config), len(body)), config, body}, nil) // one write
	if _, err := c.in.Write(request); err != nil {
		return answer{}, false, err
	}
	skipped := 0
	for {
		text, err := c.out.ReadSlice('\n')
		if err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				err = fmt.Errorf("%w: the channel does not speak our form", ErrMalformed)
			}
			return answer{}, started, err
		}
		f := strings.Fields(string(text))
		switch {
		case len(f) == 2 && f[0] == "sbxpair-go" && f[1] == strconv.FormatUint(id, 10):
			started = true
			continue
		case started && len(f) == 6 && f[0] == "sbxpair-http" && f[1] == strconv.FormatUint(id, 10):
			ans, err := c.readAnswer(f[2:], limit)
			return ans, true, err
		}
		if skipped += len(text); started || skipped > maxPreamble {
			return answer{}, started, fmt.Errorf("%w: the channel does not speak our form", ErrMalformed)
		}
	}
}

// readAnswer reads what follows the answer's line; f holds its four numbers.
func (c *channel) readAnswer(f []string, limit int64) (answer, error) {
	var n [4]int64
	for i := range n {
		v, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil || v < 0 {
			return answer{}, fmt.Errorf("%w: the channel does not speak our form", ErrMalformed)
		}
		n[i] = v
	}
	if n[2] > limit || n[3] > limit {
		return answer{}, fmt.Errorf("answer of %d bytes: %w", n[2], ErrTooLarge)
	}
	ans := answer{exit: int(n[0]), connect: int(n[1]), out: make([]byte, n[2]), errText: make([]byte, n[3])}
	if _, err := io.ReadFull(c.out, ans.out); err != nil {
		return answer{}, err
	}
	_, err := io.ReadFull(c.out, ans.errText)
	return ans, err
}

// close ends the exec and waits for it: in good order (cause nil) by the end of its input, else by cancelling it. It returns
// how the exec ended of its own accord, nil if it was we who ended it.
func (c *channel) close(cause error) error {
	c.in.Close()
	if cause != nil {
		c.outR.CloseWithError(cause)
		select {
		case <-c.done: // it ended by itself, and that is the reason
		case <-time.After(time.Second):
			c.cancel(cause)
			<-c.done
			return nil
		}
		c.cancel(nil)
		return c.err
	}
	grace := time.AfterFunc(5*time.Second, func() { c.cancel(nil) })
	defer grace.Stop()
	<-c.done
	c.cancel(nil)
	return c.err
}

// tailBuffer keeps the last 4 KiB written to it.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - 4<<10; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
