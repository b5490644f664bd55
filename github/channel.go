package github

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

const (
	channelLife = 30 * time.Minute // of one exec; a new one is started when it is over
	grace       = 5 * time.Second  // for the sandbox to say itself what went wrong
	maxPreamble = 64 << 10         // bytes an engine may print before the channel speaks, such as "Sandbox x started"
	maxErrText  = 64 << 10         // bytes of curl's standard error
	frameSize   = 1 << 20          // bytes of a body that go in one piece; channelScript has it too
	uploadSize  = 256 << 10        // bytes of a request's body that are held
)

var errNotOurForm = fmt.Errorf("%w: the channel does not speak our form", ErrMalformed)

// channel is one exec of channelScript.
type channel struct {
	in     *io.PipeWriter
	out    *bufio.Reader
	outR   *io.PipeReader
	cancel context.CancelCauseFunc
	done   chan struct{}
	opened time.Time
	err    error       // how the exec ended; valid after done
	rest   *time.Timer // ends it when nobody uses it; nil at first. Guarded by the transport

	killed atomic.Pointer[error] // why we ended it
}

// openChannel starts the exec. It outlives ctx, which only lends its values: close ends it.
func openChannel(ctx context.Context, r Runner) *channel {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ch := &channel{in: inW, out: bufio.NewReaderSize(outR, 64<<10), outR: outR, cancel: cancel, done: make(chan struct{}), opened: time.Now()}
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

// kill ends the exec at once; cause is what its user gets to read. Only the first one counts.
func (c *channel) kill(cause error) {
	if c.killed.CompareAndSwap(nil, &cause) {
		c.in.CloseWithError(cause)
		c.outR.CloseWithError(cause)
		c.cancel(cause)
	}
}

// close ends the exec in good order, by the end of its input, and waits for it; one that was killed only has to be waited for.
func (c *channel) close() {
	c.in.Close()
	late := time.AfterFunc(grace, func() { c.cancel(nil) })
	defer late.Stop()
	<-c.done
	c.cancel(nil)
}

// exchange is one request on a channel, and the raw answer as a reader: what curl printed, status line and header first.
type exchange struct {
	t          *Transport
	ch         *channel
	id         uint64
	host       string
	redirected bool
	stop       func() bool   // takes the channel out of the context's hands
	after      func()        // once the exchange is over
	sent       chan struct{} // closed when the request's body is through
	read       int64         // bytes of the answer
	inBody     bool          // its header has been read
	left       int           // bytes of the frame that is being read
	over       error         // set once there is no more to read: io.EOF, or what went wrong
	orderly    bool          // the script has said that this one is over, and waits for the next
	ended      sync.Once

	mu    sync.Mutex
	still *time.Timer // runs while we wait for the sandbox
}

// start sends the request without its body, and returns when the script says that it starts curl for it.
func (x *exchange) start(config []byte, length int64) error {
	defer x.watch()()
	if _, err := x.ch.in.Write(append(fmt.Appendf(nil, "%d %d %d\n", x.id, len(config), length), config...)); err != nil {
		return err
	}
	for skipped := 0; skipped <= maxPreamble; {
		text, err := x.ch.out.ReadSlice('\n')
		if f := strings.Fields(string(text)); err == nil && len(f) == 2 && f[0] == "sbxpair-go" && f[1] == strconv.FormatUint(x.id, 10) {
			return nil
		}
		if skipped += len(text); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
	return errNotOurForm
}

// watch ends the channel if nothing moves either way until the returned func is called. It is called around a wait for the
// sandbox alone: a reader of ours may take its time.
func (x *exchange) watch() (done func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.still = time.AfterFunc(x.t.RequestTimeout+grace, func() { x.ch.kill(context.DeadlineExceeded) })
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.still.Stop()
		x.still = nil
	}
}

// moved is told when a piece of the request's body went out.
func (x *exchange) moved() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.still != nil {
		x.still.Reset(x.t.RequestTimeout + grace)
	}
}

// upload sends the request's body, each piece as it comes.
func (x *exchange) upload(body io.ReadCloser, length int64) {
	defer close(x.sent)
	if body == nil {
		return
	}
	defer body.Close()
	buf := make([]byte, min(length, uploadSize))
	for left := length; left > 0; {
		n, err := body.Read(buf[:min(int64(len(buf)), left)])
		if n > 0 {
			left -= int64(n)
			if over := x.t.count(n); over != nil {
				x.ch.kill(over)
				return
			}
			if _, werr := x.ch.in.Write(fmt.Appendf(nil, "%d\n", n)); werr != nil {
				return // the reader of the answer says why
			}
			if _, werr := x.ch.in.Write(buf[:n]); werr != nil {
				return
			}
			x.moved()
		}
		if err != nil && left > 0 {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			x.ch.kill(fmt.Errorf("read request body, %d of %d bytes: %w", length-left, length, err))
			return
		}
	}
}

// Read reads what curl printed. At its end it returns io.EOF if curl ended well.
func (x *exchange) Read(p []byte) (int, error) {
	if x.over != nil {
		return 0, x.over
	}
	defer x.watch()()
	if x.left == 0 {
		if x.over = x.frame(); x.over != nil {
			return 0, x.over
		}
	}
	n, err := x.ch.out.Read(p[:min(len(p), x.left)])
	x.left -= n
	x.read += int64(n)
	switch {
	case err != nil:
		x.over, _ = x.broken(err, true)
	case !x.inBody && x.read > maxHead:
		x.over = fmt.Errorf("header: %w of %d bytes", ErrTooLarge, maxHead)
	}
	return n, x.over
}

// frame reads the line before the next piece, or the end of the answer.
func (x *exchange) frame() error {
	text, err := x.ch.out.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		err, _ = x.broken(err, true)
		return err
	}
	f := strings.Fields(string(text))
	if err != nil || len(f) < 3 || f[1] != strconv.FormatUint(x.id, 10) {
		return errNotOurForm
	}
	var n []int
	for _, text := range f[2:] {
		v, err := strconv.Atoi(text)
		if err != nil || v < 0 {
			return errNotOurForm
		}
		n = append(n, v)
	}
	switch {
	case f[0] == "sbxpair-data" && len(n) == 1 && n[0] > 0 && n[0] <= frameSize:
		x.left = n[0]
		return nil
	case f[0] == "sbxpair-end" && len(n) == 3 && n[2] <= maxErrText:
		errText := make([]byte, n[2])
		if _, err := io.ReadFull(x.ch.out, errText); err != nil {
			err, _ = x.broken(err, true)
			return err
		}
		x.orderly = true
		if err := x.curlError(n[0], n[1], errText); err != nil {
			return err
		}
		return io.EOF
	}
	return errNotOurForm
}

// broken makes the error of a channel that broke, and tells if the request may be put on another one: the sandbox went away
// before it was started.
func (x *exchange) broken(err error, started bool) (_ error, again bool) {
	if errors.Is(err, errNotOurForm) {
		x.ch.kill(err)
		return err, false
	}
	cause := x.ch.killed.Load()
	if cause == nil {
		x.ch.in.Close() // what ended its output ends the exec
	}
	select {
	case <-x.ch.done:
	case <-time.After(grace):
		x.ch.kill(err)
		<-x.ch.done
	}
	network := &NetworkError{Host: x.host, Sent: started}
	if cause != nil {
		if !errors.Is(*cause, context.Canceled) && !errors.Is(*cause, context.DeadlineExceeded) {
			return *cause, false
		}
		network.Trouble, network.Detail, network.err = TroubleTimeout, "no answer from the sandbox", *cause
		return network, false
	}
	if errors.Is(x.ch.err, ErrTool) {
		return x.ch.err, false
	}
	network.Trouble, network.err = TroubleSandbox, x.ch.err
	if x.ch.err != nil {
		err = x.ch.err
	}
	network.Detail = oneLine(err.Error(), 300)
	return network, !started
}

// end gives the channel back, or ends it where the answer was not read to its end.
func (x *exchange) end() {
	x.ended.Do(func() {
		x.stop()
		if x.orderly {
			select {
			case <-x.sent:
			case <-time.After(time.Second): // answered before the request was through: the rest is not waited for
				x.orderly = false
			}
		}
		if !x.orderly {
			x.ch.kill(errors.New("the answer was not read to its end"))
		}
		x.t.put(x.ch, x.orderly && x.ch.killed.Load() == nil)
		x.after()
	})
}

// answerBody is the body of an answer. It ends the exchange at its end.
type answerBody struct {
	x    *exchange
	r    io.ReadCloser
	left int64 // bytes that are allowed yet
	err  error
}

func (b *answerBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		err = fmt.Errorf("answer of %s: %w of %d bytes", b.x.host, ErrTooLarge, b.x.t.MaxBody)
	}
	if over := b.x.t.count(n); over != nil {
		err = over
	}
	if err == nil {
		return n, nil
	}
	switch {
	case err == io.EOF: // of the body; what curl has to say comes yet
		if _, end := io.CopyN(io.Discard, b.x, 1); end != io.EOF {
			err = end
			if end == nil {
				err = fmt.Errorf("answer of %s: %w: it goes on after its end", b.x.host, ErrMalformed)
			}
		}
	case b.x.over != nil && b.x.over != io.EOF:
		err = b.x.over
	case !errors.Is(err, ErrTooLarge):
		err = fmt.Errorf("answer of %s: %w: body cut off: %w", b.x.host, ErrMalformed, err)
	}
	b.err = err
	b.x.end()
	return n, err
}

// Close ends the exec if the answer was not read to its end.
func (b *answerBody) Close() error {
	if b.err == nil {
		b.err = http.ErrBodyReadAfterClose
	}
	b.x.end()
	return nil
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
