package sbx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/sbxpair/sbxpair/secrets"
)

const (
	opExec   = "exec"
	opAttach = "attach"
)

// ExecSpec describes a command to run in a sandbox.
type ExecSpec struct {
	Argv []string // passed on item by item, no shell; empty items, line ends and quotes arrive as given
	Env  []EnvVar // for this process only; on the host's command line, so never a credential
	User string   // "" is the sandbox's user, agent
	Dir  string   // absolute; "" is the primary workspace

	Stdin io.Reader // nil: closed. Large input and secrets go here, not into Argv
	// Stdout and Stderr receive the streams as they arrive; see [Lines]. The end of each is in the result either way.
	Stdout, Stderr io.Writer
	MaxCapture     int             // bytes kept of each stream, from the end; 0 means 8 MiB
	Redact         []secrets.Value // masked in everything that comes out
	Timeout        time.Duration   // 0: no limit but the context's; negative is refused

	// KillTree makes sure that the command ends with a call that is cut short, and all that it started. sbx-local does so
	// by itself; on sbx, which leaves them running, a shell in the sandbox starts the command with a mark in its
	// environment, and a second call, of up to 20 s, kills what has the mark. A process that has left both the group of
	// its parent and its environment behind escapes.
	KillTree bool
}

// ExecResult is what the command did. A non-zero exit is a result, not an error.
type ExecResult struct {
	Stdout, Stderr []byte
	Code           int  // exit status of the command; 128 plus the number if a signal ended it
	Truncated      bool // earlier bytes of a stream were dropped
	Held           bool // a process that the command left behind on the host's side still held its output open
	Took           time.Duration
}

// Exec runs a command in a sandbox to its end, and starts the sandbox first if it is stopped.
//
// The error matches [ErrNotFound] if there is no such sandbox or it was removed meanwhile, [ErrNotRunning] if it was stopped
// meanwhile, [ErrLaunch] if the program cannot be started in it,
// [ErrTimeout] if spec.Timeout passed, [ErrConnectionLost] if the engine's command was killed; the result then holds what
// had come until then. When a call is cut short, sbx leaves the command running in the sandbox unless spec.KillTree is set;
// sbx-local ends it.
//
// sbx exits 1 for its own failures, as many commands do. A failure counts as the engine's only if standard output is
// empty, standard error has the engine's words about this very sandbox, and the listing does not contradict it.
func (c *Client) Exec(ctx context.Context, sandbox string, spec ExecSpec) (ExecResult, error) {
	args, err := execArgs(opExec, sandbox, spec, spec.Stdin != nil, false)
	if err != nil {
		return ExecResult{}, err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return ExecResult{Code: -1}, err
	}
	var marked *tree
	if spec.KillTree && !v.IsLocal() {
		t := newTree()
		marked = &t
		if args, err = execArgs(opExec, sandbox, t.wrap(spec), spec.Stdin != nil, false); err != nil {
			return ExecResult{}, err
		}
	}
	cmd := Cmd{
		Args: args, Stdin: spec.Stdin, Stdout: spec.Stdout, Stderr: spec.Stderr,
		MaxCapture: spec.MaxCapture, Redact: spec.Redact,
	}
	strip := !v.IsLocal()
	var filter *preambleFilter
	if strip && spec.Stdout != nil {
		filter = &preambleFilter{w: spec.Stdout, sandbox: sandbox, lock: new(sync.Mutex)}
		cmd.Stdout = filter
		if sameWriter(spec.Stdout, spec.Stderr) { // the runner cannot see it any more
			cmd.Stderr = &lockedWriter{w: spec.Stderr, lock: filter.lock}
		}
	}
	res, err := c.start(ctx, opExec, spec.Timeout, cmd)
	if filter != nil {
		err = errors.Join(err, filter.end())
	}
	if strip && !res.StdoutTruncated {
		before := len(res.Stdout)
		res.Stdout = stripPreamble(res.Stdout, sandbox)
		res.StdoutHead = stripPreamble(res.StdoutHead, sandbox)
		res.StdoutBytes -= int64(before - len(res.Stdout))
	}
	out := ExecResult{
		Stdout: res.Stdout, Stderr: res.Stderr, Code: res.Code,
		Truncated: res.StdoutTruncated || res.StderrTruncated, Held: res.Held, Took: res.Took,
	}
	if marked != nil && err != nil && !errors.Is(err, ErrNotInstalled) {
		err = errors.Join(err, c.endTree(ctx, sandbox, *marked))
	}
	if err != nil {
		out.Code = -1
		return out, err
	}
	return out, c.execFailure(ctx, sandbox, spec, res)
}

// execFailure tells the engine's failure from the command's.
func (c *Client) execFailure(ctx context.Context, sandbox string, spec ExecSpec, res Result) error {
	if text := launchText(spec, res); text != "" {
		return &LaunchError{Sandbox: sandbox, Program: spec.Argv[0], Code: res.Code, Text: c.maskShapes(text)}
	}
	if res.Code == 128+9 || res.Code == 128+15 {
		return c.endedWith(ctx, sandbox, res)
	}
	if res.Code != 1 || res.StderrTruncated {
		return nil
	}
	text := clean(res.Stderr)
	kinds := classify(text, []string{opExec, sandbox})
	message := trimError(text)
	switch {
	case len(kinds) == 0 || !engineShaped(text):
		return nil
	case errors.Is(kinds[0], ErrNotFound) && !strings.Contains(message, "'"+sandbox+"'") && !strings.Contains(message, `"`+sandbox+`"`):
		return nil
	}
	// The command may have printed these words itself. The engine knows better.
	failure := c.failure(opExec, res, []string{opExec, sandbox})
	if strings.HasPrefix(message, "ensure daemon:") { // a listing would wait for the same daemon
		if state, err := c.DaemonStatus(ctx); err == nil && state.Running {
			return nil
		}
		return failure
	}
	s, err := c.Get(ctx, sandbox)
	switch {
	case err == nil && s.Status == StatusRunning:
		return nil
	case res.StdoutBytes > 0 && err != nil && !errors.Is(err, ErrNotFound):
		return nil // a command that ran to some point; nothing says that it was not its own end
	}
	return failure
}

// launchText gives the runtime's words if it could not start the program: on standard output in every version seen, with
// 127 or 126. A container tool in the sandbox says the same of a program of its own, by another name.
func launchText(spec ExecSpec, res Result) string {
	if res.Code != 127 && res.Code != 126 {
		return ""
	}
	for _, out := range [][]byte{res.StdoutHead, res.Stderr[:min(len(res.Stderr), headSize)]} {
		text, _, _ := strings.Cut(clean(out), "\n")
		if !strings.HasPrefix(text, "OCI runtime exec failed:") {
			continue
		}
		_, program, named := strings.Cut(text, `exec: "`)
		program, _, _ = strings.Cut(program, `"`)
		if named && program != spec.Argv[0] && program != "sh" { // quoteEmpty and KillTree start a shell
			return ""
		}
		return text
	}
	return ""
}

// endedWith looks whether a command that was killed went down with its sandbox. A command that runs out of memory is killed
// too, and that is its own exit.
func (c *Client) endedWith(ctx context.Context, sandbox string, res Result) error {
	s, err := c.Get(ctx, sandbox)
	kind := ErrNotRunning
	switch {
	case errors.Is(err, ErrNotFound):
		kind = ErrNotFound
	case err != nil || s.Status != StatusStopped:
		return nil
	}
	return &ExitError{
		Op: opExec, Code: res.Code, kinds: []error{kind},
		Stderr: strings.TrimSpace("the sandbox went away while the command ran\n" + tailText(c.text(Result{Stderr: res.Stderr}), maxErrorText)),
	}
}

// engineShaped reports whether the first line that counts looks like one of the engine's own errors.
func engineShaped(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || isWarning(line) || isPreamble(line) {
			continue
		}
		return hasErrorPrefix(line) || strings.HasPrefix(line, "list local sandboxes:") ||
			strings.HasPrefix(line, "You are not authenticated to Docker") || strings.HasPrefix(line, "sandbox \"")
	}
	return false
}

// execArgs builds the call. The engine stops reading flags at the sandbox's name.
func execArgs(op, sandbox string, spec ExecSpec, stdin, tty bool) ([]string, error) {
	if err := checkNames(op, []string{sandbox}); err != nil {
		return nil, err
	}
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return nil, invalid(op, "no command")
	}
	if spec.Timeout < 0 {
		return nil, invalid(op, "timeout %s: want 0 for none, or a positive time", spec.Timeout)
	}
	if spec.MaxCapture < 0 {
		return nil, invalid(op, "capture limit %d", spec.MaxCapture)
	}
	args := []string{"exec"}
	if stdin {
		args = append(args, "-i")
	}
	if tty {
		args = append(args, "-t")
	}
	for _, e := range spec.Env {
		if !envName.MatchString(e.Name) || strings.ContainsRune(e.Value, 0) {
			return nil, invalid(op, "environment variable %q", e.Name)
		}
		args = append(args, "-e", e.Name+"="+e.Value)
	}
	if spec.User != "" {
		if strings.HasPrefix(spec.User, "-") {
			return nil, invalid(op, "user %q", spec.User)
		}
		args = append(args, "-u", spec.User)
	}
	if spec.Dir != "" {
		if !strings.HasPrefix(spec.Dir, "/") {
			return nil, invalid(op, "directory %q: want an absolute path", spec.Dir)
		}
		args = append(args, "-w", spec.Dir)
	}
	for _, arg := range spec.Argv {
		if strings.ContainsRune(arg, 0) {
			return nil, invalid(op, "argument with a zero byte")
		}
	}
	return append(append(args, sandbox), quoteEmpty(spec.Argv)...), nil
}

// quoteEmpty lets a shell in the sandbox put empty items back, which the daemon refuses (0.38).
func quoteEmpty(argv []string) []string {
	if slices.Contains(argv, "") {
		return []string{"sh", "-c", "exec " + shellQuote(argv)}
	}
	return argv
}

// shellQuote writes argv so that a POSIX shell reads exactly it.
func shellQuote(argv []string) string {
	quoted := make([]string, len(argv))
	for i, arg := range argv {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// Attach runs a command in a sandbox with the streams of spec, which are usually the caller's terminal, and returns its
// exit code. A terminal is asked for in the sandbox only if both Stdin and Stdout are one. Nothing is captured, masked or
// bounded in time; the listing is read first, so that a missing sandbox is an error and not an exit code.
func (c *Client) Attach(ctx context.Context, sandbox string, spec ExecSpec) (code int, err error) {
	tty := isTerminal(spec.Stdin) && isTerminal(spec.Stdout)
	args, err := execArgs(opAttach, sandbox, spec, spec.Stdin != nil, tty)
	if err != nil {
		return -1, err
	}
	if _, err := c.Get(ctx, sandbox); err != nil {
		return -1, err
	}
	res, err := c.start(ctx, opAttach, spec.Timeout, Cmd{
		Args: args, Stdin: spec.Stdin, Stdout: spec.Stdout, Stderr: spec.Stderr, Terminal: true,
	})
	if err != nil {
		return -1, err
	}
	return res.Code, nil
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// startedLine is what exec may print when it wakes a sandbox; on which stream is not established (measured on 0.38).
func startedLine(sandbox string) string {
	return "Sandbox " + sandbox + " started successfully"
}

func startedQuoted(sandbox string) string { return startedLine("'" + sandbox + "'") }

var daemonStarted = regexp.MustCompile(`^Daemon started \(PID: \d+, socket: [^)]+\)$`)

const daemonStarting = "Starting sandboxd daemon..."

// preambleLen gives the length of what the engine itself put before a command's output: that it starts the daemon, that the
// daemon was started, where its log is, that the sandbox was started; each once, in this order, and the first and the third
// only beside another. Whatever else looks alike is the command's. undecided says that more output could make it longer.
func preambleLen(out []byte, sandbox string) (n int, undecided bool) {
	for at, stage := 0, 0; ; {
		end := bytes.IndexByte(out[at:], '\n')
		if end < 0 {
			return n, mayBecomePreamble(string(out[at:]), sandbox, stage)
		}
		line := strings.TrimRight(string(out[at:at+min(end, maxPreambleLine)]), "\r")
		at += end + 1
		switch {
		case end > maxPreambleLine:
			return n, false
		case stage == 0 && line == daemonStarting:
			stage = 1 // it takes another line to tell
		case stage < 2 && daemonStarted.MatchString(line):
			n, stage = at, 2
		case stage == 2 && strings.HasPrefix(line, "Logs: ") && strings.HasSuffix(line, "daemon.log"):
			n, stage = at, 3
		case line == startedLine(sandbox) || line == startedQuoted(sandbox):
			return at, false
		default:
			return n, false
		}
	}
}

// mayBecomePreamble reports whether the start of a line can become one that preambleLen takes at this stage.
func mayBecomePreamble(start, sandbox string, stage int) bool {
	lines := []string{startedLine(sandbox) + "\r", startedQuoted(sandbox) + "\r"}
	if stage == 0 {
		lines = append(lines, daemonStarting+"\r")
	}
	if stage < 2 {
		lines = append(lines, "Daemon started (PID: ")
	}
	if stage == 2 {
		lines = append(lines, "Logs: ")
	}
	return len(start) <= maxPreambleLine && slices.ContainsFunc(lines, func(line string) bool {
		n := min(len(line), len(start))
		return line[:n] == start[:n]
	})
}

// stripPreamble removes the engine's own lines from the start of a command's output.
func stripPreamble(out []byte, sandbox string) []byte {
	n, _ := preambleLen(out, sandbox)
	return out[n:]
}

// maxPreambleLine bounds what is held back of a stream to see whether it is the engine's.
const maxPreambleLine = 512

// preambleFilter does the same for a stream. It holds back only what can still become one of the lines.
type preambleFilter struct {
	w       io.Writer
	sandbox string
	lock    *sync.Mutex // held during a write
	held    []byte
	passing bool
}

// Write implements io.Writer.
func (f *preambleFilter) Write(p []byte) (int, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.passing {
		return f.w.Write(p)
	}
	f.held = append(f.held, p...)
	if _, undecided := preambleLen(f.held, f.sandbox); undecided {
		return len(p), nil
	}
	if err := f.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// end passes on what is still held back. A writer that was left behind because it blocks has that already, and is not waited for.
func (f *preambleFilter) end() error {
	if !f.lock.TryLock() {
		return nil
	}
	defer f.lock.Unlock()
	return f.flush()
}

func (f *preambleFilter) flush() error {
	f.passing = true
	held := stripPreamble(f.held, f.sandbox)
	f.held = nil
	if len(held) == 0 {
		return nil
	}
	n, err := f.w.Write(held)
	if err == nil && n < len(held) {
		err = io.ErrShortWrite
	}
	return err
}

// lockedWriter writes under a lock that it shares.
type lockedWriter struct {
	w    io.Writer
	lock *sync.Mutex
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.w.Write(p)
}

// maxLine is the longest line that Lines keeps whole.
const maxLine = 1 << 20

// Lines returns a writer for [ExecSpec] that calls fn with each line as it arrives, without its line end. A line of more
// than 1 MiB comes in pieces. Close delivers a last line that has no end; Exec does not close it.
func Lines(fn func(line []byte)) io.WriteCloser { return &lineWriter{fn: fn} }

type lineWriter struct {
	fn  func([]byte)
	buf []byte
}

// Write never fails.
func (l *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.buf = append(l.buf, p...)
			for len(l.buf) >= maxLine {
				l.fn(l.buf[:maxLine])
				l.buf = append([]byte(nil), l.buf[maxLine:]...)
			}
			break
		}
		line := p[:i]
		if len(l.buf) > 0 {
			line = append(l.buf, line...)
		}
		l.fn(bytes.TrimSuffix(line, []byte("\r")))
		l.buf = l.buf[:0]
		p = p[i+1:]
	}
	return n, nil
}

// Close delivers what is left.
func (l *lineWriter) Close() error {
	if len(l.buf) > 0 {
		l.fn(l.buf)
		l.buf = nil
	}
	return nil
}

func execProblem(op, what string, res ExecResult) error {
	return fmt.Errorf("sbx %s: %s: exit %d: %s", op, what, res.Code, tailText(strings.TrimSpace(clean(res.Stderr)), 512))
}
