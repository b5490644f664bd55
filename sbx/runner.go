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
	"syscall"
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

	// Stdout and Stderr receive the streams while they arrive, masked; nil means that the Result alone has them. A writer
	// that is slow slows the command down and loses nothing. One that blocks past ctx is left to return by itself; the call
	// has an error then, since not all was passed on.
	Stdout, Stderr io.Writer
	// MaxCapture bounds the bytes kept of each stream for the Result; the end is kept. 0 means 8 MiB.
	MaxCapture int
	// Terminal hands over the caller's own streams: those of Stdin, Stdout and Stderr that are files are the command's,
	// and nothing is captured. If Stdin is a terminal, the command stays in the caller's process group.
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
	Held                             bool   // it exited, and a process that it left behind still held its output open: what that wrote later is not here
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

// Exec is the Runner that starts real processes: no terminal that it could open, standard input from the null device
// unless given, a process group of its own. When ctx is done, the group gets an interrupt, and is killed after
// Grace.
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
	p := &process{cmd: exec.Command(x.Path, c.Args...), grace: x.Grace}
	if p.grace <= 0 {
		p.grace = defaultGrace
	}
	p.cmd.Env = append(append([]string{}, x.Env...), c.Env...)
	// Only the foreground group of a terminal may read from it, and hears of its size.
	p.group = prepareGroup(p.cmd, c.Terminal && isTerminal(c.Stdin))
	defer p.group.close()
	if err := p.connect(c); err != nil {
		p.closeEnds()
		return Result{Code: -1}, fmt.Errorf("start %s: %w", x.Path, err)
	}
	start := time.Now()
	err := p.cmd.Start()
	if err != nil {
		p.closeEnds()
		return Result{Code: -1, Took: time.Since(start)}, startError(x.Path, err)
	}
	_ = p.group.started() // without it only the direct child can be ended
	ended, interrupted := p.wait(ctx, start)
	res := Result{Code: -1, Held: p.held, Took: p.took}
	if s := p.stdout; s != nil && !c.Terminal {
		res.Stdout, res.StdoutTruncated = s.capture.bytes(), s.capture.dropped()
		res.StdoutHead, res.StdoutBytes = s.capture.head, s.capture.total
	}
	if s := p.stderr; s != nil && !c.Terminal {
		res.Stderr, res.StderrTruncated = s.capture.bytes(), s.capture.dropped()
	}
	if ended == nil { // not even killed: it hangs in the system
		return res, fmt.Errorf("process %d cannot be ended: %w", p.cmd.Process.Pid, ctxError(ctx))
	}
	res.Code = p.cmd.ProcessState.ExitCode()
	if interrupted {
		return res, ctxError(ctx)
	}
	if inputErr := p.input.failed(); inputErr != nil {
		return res, fmt.Errorf("read input: %w", inputErr)
	}
	// The command may have died of its closed output: that is not its own doing.
	if passErr := errors.Join(p.stdout.failed(ctx), p.stderr.failed(ctx)); passErr != nil {
		return res, fmt.Errorf("pass output on: %w", passErr)
	}
	if killedBySignal(p.cmd) {
		res.Killed, res.Code = true, -1
		return res, nil
	}
	if _, exited := errors.AsType[*exec.ExitError](*ended); exited {
		return res, nil
	}
	return res, *ended
}

// process is one call under way. os/exec would count the time that a caller's writer takes as time that the output is held
// open, and give up the rest; and it would wait for a reader or writer that blocks for ever. So the pipes are our own.
type process struct {
	cmd            *exec.Cmd
	group          *group
	grace          time.Duration
	ends           []*os.File // the command's ends of our pipes
	input          inputReader
	stdout, stderr *stream // nil: the command has the caller's file, or the null device
	held           bool
	took           time.Duration // until the command had ended
}

// connect makes the pipes.
func (p *process) connect(c Cmd) (err error) {
	if f, isFile := c.Stdin.(*os.File); isFile {
		p.cmd.Stdin = f
	} else if c.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		p.cmd.Stdin, p.ends = r, append(p.ends, r)
		p.input.r, p.input.pipe = c.Stdin, w
	}
	redact := secrets.NewRedactor(c.Redact...)
	limit := c.MaxCapture
	if limit <= 0 {
		limit = defaultMaxCapture
	}
	var both *sync.Mutex
	if sameWriter(c.Stdout, c.Stderr) {
		both = new(sync.Mutex)
	}
	output := func(w io.Writer) (io.Writer, *stream, error) {
		if f, isFile := w.(*os.File); isFile && c.Terminal {
			return f, nil, nil
		}
		if w == nil && c.Terminal {
			return nil, nil, nil
		}
		r, end, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		p.ends = append(p.ends, end)
		s := &stream{r: r, capture: newCapture(limit), done: make(chan struct{})}
		if w != nil {
			s.relay = newRelay(w, both)
		}
		s.w = redact.Writer(&sink{capture: s.capture, relay: s.relay})
		return end, s, nil
	}
	if p.cmd.Stdout, p.stdout, err = output(c.Stdout); err != nil {
		return err
	}
	p.cmd.Stderr, p.stderr, err = output(c.Stderr)
	return err
}

// closeEnds releases what connect made, if nothing was started.
func (p *process) closeEnds() {
	for _, f := range p.ends {
		_ = f.Close()
	}
	p.input.close()
	for _, s := range []*stream{p.stdout, p.stderr} {
		if s != nil {
			_ = s.r.Close()
		}
	}
}

// wait sees the started command to its end, and its output to the caller. ended is what os/exec says of it; nil if it
// could not be ended. interrupted reports that ctx was done before.
func (p *process) wait(ctx context.Context, start time.Time) (ended *error, interrupted bool) {
	for _, f := range p.ends {
		_ = f.Close()
	}
	if p.input.pipe != nil {
		go p.input.feed()
	}
	streams := make([]*stream, 0, 2)
	for _, s := range []*stream{p.stdout, p.stderr} {
		if s != nil {
			streams = append(streams, s)
			s.start()
		}
	}
	exited := make(chan error, 1)
	go func() { exited <- p.cmd.Wait() }()
	select {
	case err := <-exited:
		ended = &err
	case <-ctx.Done():
		interrupted = true
		_ = p.group.interrupt()
	}
	p.input.ended() // nobody is left to read it
	if interrupted {
		ended = p.end(exited)
	}
	p.took = time.Since(start)
	for _, s := range streams {
		s.exitWait, s.exitRead = s.used()
	}
	// What is left of the output is passed on for as long as it takes, but not past ctx.
	over, release := p.over(ctx, interrupted)
	defer release()
	for _, s := range streams {
		p.held = s.drain(p.grace, over) || p.held
	}
	for _, s := range streams {
		s.passed(over)
	}
	return ended, interrupted
}

// end waits for an interrupted command, and kills it and what it left behind.
func (p *process) end(exited <-chan error) (ended *error) {
	timer := time.NewTimer(p.grace)
	defer timer.Stop()
	select {
	case err := <-exited:
		ended = &err
	case <-timer.C:
	}
	p.group.kill() // the leader, or what it left behind
	if ended == nil {
		timer.Reset(p.grace)
		select {
		case err := <-exited:
			ended = &err
		case <-timer.C:
		}
	}
	return ended
}

// over returns a channel that is closed a grace time after ctx is done.
func (p *process) over(ctx context.Context, interrupted bool) (over <-chan struct{}, release func()) {
	c := make(chan struct{})
	if interrupted {
		timer := time.AfterFunc(p.grace, func() { close(c) })
		return c, func() { timer.Stop() }
	}
	stop := context.AfterFunc(ctx, func() {
		p.group.kill() // what the command left behind
		time.AfterFunc(p.grace, func() { close(c) })
	})
	return c, func() { stop() }
}

// ctxError gives both that the context is done and why: which deadline, which signal.
func ctxError(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

func startError(path string, err error) error {
	if errors.Is(err, syscall.E2BIG) {
		return fmt.Errorf("start %s: %w: the command line is too long; use standard input: %w", path, ErrInvalid, err)
	}
	for _, ours := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ETXTBSY} {
		if errors.Is(err, ours) { // this machine has too little of something, or the program is being replaced
			return fmt.Errorf("start %s: %w", path, err)
		}
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	if _, isPath := errors.AsType[*os.PathError](err); isPath { // not a program: wrong architecture, a text file
		return fmt.Errorf("%w: %s cannot be run: %w", ErrNotInstalled, path, err)
	}
	return fmt.Errorf("start %s: %w", path, err)
}
