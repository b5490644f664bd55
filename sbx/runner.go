package sbx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/secrets"
)

// Cmd is one call of the engine's command.
type Cmd struct {
	Op     string          // client method, for messages
	Args   []string        // public on the host: never a secret
	Env    []string        // added to the runner's environment
	Stdin  io.Reader       // the way in for secrets; nil is the null device, never the caller's own input. It may be read from until it returns, even after the call
	Redact []secrets.Value // masked in everything that comes out

	// Stdout and Stderr receive the streams while they arrive, masked; nil means that the Result alone has them.
	Stdout, Stderr io.Writer
	// MaxCapture bounds the bytes kept of each stream for the Result; the end is kept. 0 means 8 MiB.
	MaxCapture int
	// Terminal hands the caller's terminal to the command: Stdin, Stdout and Stderr are passed on as they are (files),
	// the command stays in the caller's process group, and nothing is captured.
	Terminal bool
}

// Result is what one call left.
type Result struct {
	Stdout, Stderr                   []byte // the last Cmd.MaxCapture bytes of each, masked
	StdoutTruncated, StderrTruncated bool   // earlier bytes were dropped
	StdoutHead                       []byte // the first 1 KiB, also when streamed
	StdoutBytes                      int64  // how many bytes came in all
	Code                             int    // exit status; -1 if Killed
	Killed                           bool   // ended by a signal that we did not send
	Held                             bool   // it exited, and a process that it left behind still held its output open
	Took                             time.Duration
}

// A Runner runs one call to its end, and returns soon after ctx is done. A non-zero exit is a Result, not an error.
// The error matches [ErrNotInstalled] if there is no such program, or is ctx's error, with its cause; the Result then
// holds what had come until then.
type Runner interface {
	Run(ctx context.Context, c Cmd) (Result, error)
}

// RunnerFunc is a function that is a Runner.
type RunnerFunc func(ctx context.Context, c Cmd) (Result, error)

// Run calls f.
func (f RunnerFunc) Run(ctx context.Context, c Cmd) (Result, error) { return f(ctx, c) }

// Exec is the Runner that starts real processes: no terminal, standard input from the null device unless given, a
// process group of its own. When ctx is done, the group gets an interrupt, and is killed after Grace.
type Exec struct {
	Path  string        // program
	Env   []string      // whole environment; see [Environ]
	Grace time.Duration // from interrupt to kill, and the longest wait for output held open by others; 0 means 2 s
}

const (
	defaultGrace      = 2 * time.Second
	defaultMaxCapture = 8 << 20
)

// Run implements [Runner].
func (x Exec) Run(ctx context.Context, c Cmd) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{Code: -1}, ctxError(ctx)
	}
	grace := x.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	cmd := exec.CommandContext(ctx, x.Path, c.Args...)
	cmd.Env = append(append([]string{}, x.Env...), c.Env...)
	cmd.WaitDelay = grace
	if c.Terminal {
		return x.runTerminal(ctx, cmd, c)
	}

	g := prepareGroup(cmd)
	defer g.close()
	cmd.Cancel = g.interrupt
	redact := secrets.NewRedactor(c.Redact...)
	limit := c.MaxCapture
	if limit <= 0 {
		limit = defaultMaxCapture
	}
	stdout, stderr := newCapture(limit), newCapture(limit)
	outSink, errSink := &sink{capture: stdout, w: c.Stdout}, &sink{capture: stderr, w: c.Stderr}
	outW, errW := redact.Writer(outSink), redact.Writer(errSink)
	cmd.Stdout, cmd.Stderr = outW, errW
	input := &inputReader{r: c.Stdin}
	feed, err := feeder(cmd, input)
	if err != nil {
		return Result{Code: -1}, fmt.Errorf("start %s: %w", x.Path, err)
	}

	start := time.Now()
	err = cmd.Start()
	if err == nil {
		feed()
		_ = g.started() // without it only the direct child can be ended, which WaitDelay bounds
		err = cmd.Wait()
		if ctx.Err() != nil {
			g.kill() // what the leader left behind, or the leader itself
		}
	}
	_, _ = outW.Close(), errW.Close() // the sinks keep the error
	sinkErr := errors.Join(outSink.err, errSink.err)
	res := Result{
		Stdout: stdout.bytes(), StdoutTruncated: stdout.dropped(), StdoutHead: stdout.head, StdoutBytes: stdout.total,
		Stderr: stderr.bytes(), StderrTruncated: stderr.dropped(),
		Code: -1, Took: time.Since(start),
	}
	if cmd.ProcessState == nil { // never started
		if ctx.Err() != nil {
			return res, ctxError(ctx)
		}
		return res, startError(x.Path, err)
	}
	res.Code = cmd.ProcessState.ExitCode()
	if ctx.Err() != nil && err != nil {
		return res, ctxError(ctx)
	}
	if inputErr := input.failed(); inputErr != nil {
		return res, fmt.Errorf("read input: %w", inputErr)
	}
	if sinkErr != nil { // the command may have died of its closed output: that is not its own doing
		return res, fmt.Errorf("pass output on: %w", sinkErr)
	}
	if killedBySignal(cmd) {
		res.Killed, res.Code = true, -1
		return res, nil
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		res.Held, err = true, nil
	}
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		err = nil
	}
	return res, err
}

// runTerminal runs the command with the caller's own files, in the caller's process group: only the foreground group
// of a terminal may read from it.
func (x Exec) runTerminal(ctx context.Context, cmd *exec.Cmd, c Cmd) (Result, error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.Cancel = func() error { return interruptOne(cmd) }
	start := time.Now()
	err := cmd.Run()
	res := Result{Code: -1, Took: time.Since(start)}
	if cmd.ProcessState == nil {
		if ctx.Err() != nil {
			return res, ctxError(ctx)
		}
		return res, startError(x.Path, err)
	}
	res.Code = cmd.ProcessState.ExitCode()
	if ctx.Err() != nil && err != nil {
		return res, ctxError(ctx)
	}
	if killedBySignal(cmd) {
		res.Killed, res.Code = true, -1
		return res, nil
	}
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		err = nil
	}
	return res, err
}

// feeder prepares standard input and returns what starts to feed it. os/exec would wait for a reader that blocks although
// the command is gone; this leaves the reader to whoever made it.
func feeder(cmd *exec.Cmd, input *inputReader) (feed func(), err error) {
	if input.r == nil {
		return func() {}, nil
	}
	if f, isFile := input.r.(*os.File); isFile {
		cmd.Stdin = f
		return func() {}, nil
	}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return func() {
		go func() {
			// A command that ends without reading everything is its own business; Wait closes the pipe.
			_, _ = io.Copy(pipe, input)
			_ = pipe.Close()
		}()
	}, nil
}

// inputReader keeps the error of a reader: input that was cut short must not pass for all of it.
type inputReader struct {
	r   io.Reader
	mu  sync.Mutex
	err error
}

// Read implements io.Reader.
func (i *inputReader) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if err != nil && err != io.EOF {
		i.mu.Lock()
		i.err = err
		i.mu.Unlock()
	}
	return n, err
}

func (i *inputReader) failed() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// ctxError gives both that the context is done and why: which deadline, which signal.
func ctxError(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

func startError(path string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	var pathErr *os.PathError
	if errors.As(err, &pathErr) { // not a program: wrong architecture, a text file
		return fmt.Errorf("%w: %s cannot be run: %w", ErrNotInstalled, path, err)
	}
	return fmt.Errorf("start %s: %w", path, err)
}

// sink captures a stream and passes it on. It keeps the first error of doing so.
type sink struct {
	capture *capture
	w       io.Writer
	err     error
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	n, _ := s.capture.Write(p)
	if s.w == nil || s.err != nil {
		return n, s.err
	}
	if _, err := s.w.Write(p); err != nil {
		s.err = err
		return 0, err
	}
	return n, nil
}

// capture keeps the first headSize bytes and the last max bytes of what is written to it, in bounded memory.
type capture struct {
	max   int
	head  []byte
	tail  []byte // at most 2*max, cut to the last max when that is reached
	total int64
}

const headSize = 1 << 10

func newCapture(limit int) *capture { return &capture{max: limit} }

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.total += int64(n)
	if room := headSize - len(c.head); room > 0 {
		c.head = append(c.head, p[:min(room, n)]...)
	}
	if n >= c.max {
		c.tail = append(c.tail[:0], p[n-c.max:]...)
		return n, nil
	}
	if len(c.tail)+n > 2*c.max {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-c.max:]...)
	}
	c.tail = append(c.tail, p...)
	return n, nil
}

func (c *capture) bytes() []byte {
	if len(c.tail) > c.max {
		return c.tail[len(c.tail)-c.max:]
	}
	return c.tail
}

func (c *capture) dropped() bool { return c.total > int64(c.max) }
