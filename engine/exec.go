package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/google/uuid"
	"github.com/sbxpair/sbxpair/engine/guest"
	"github.com/sbxpair/sbxpair/engine/sentry"
)

// ExecSpec is a program to run in a sandbox.
type ExecSpec struct {
	Argv   []string  // as it is, no shell
	Env    []string  // NAME=VALUE, over the sandbox's own
	User   string    // NAME or UID, with :GID; "" is agent
	Dir    string    // absolute; "" is the first workspace
	Stdin  io.Reader // nil: empty. It may be read from once more after Exec returned.
	Stdout io.Writer // nil: discarded. When ctx ended the call, it may still get what was on its way.
	Stderr io.Writer
	// TTY is the slave side of a pseudo terminal that becomes the program's three streams and its controlling terminal.
	TTY *os.File
	// Resized tells that the terminal has another size.
	Resized <-chan struct{}
}

// launchPatience bounds the wait for word of an exec whose client vanished while it was being started.
const launchPatience = 2 * time.Second

// Exec runs a program in a running sandbox and returns its exit code, 128+n if signal n ended it. When ctx is done the
// program and everything it started are killed; so they are when this process dies. The error is a *LaunchError if the
// program could not be started.
func (e *Engine) Exec(ctx context.Context, r Record, spec ExecSpec) (int, error) {
	user, err := e.user(ctx, r, spec.User)
	if err != nil {
		return 0, err
	}
	dir := spec.Dir
	if dir == "" {
		if dir = r.Primary(); dir == "" {
			dir = mountlessDir
		}
	}
	mark := uuid.NewString()
	session, err := e.session(ctx, r.ID, mark)
	if err != nil {
		return 0, err
	}
	defer session.Close()
	session.keep(ctx)
	e.touch(r.Name)
	defer e.touch(r.Name)
	env := mergeEnv(r.Env, []string{"HOME=" + user.home, guest.Mark + "=" + mark}, spec.Env)
	proc := sentry.Process{Argv: spec.Argv, Env: env, Dir: dir, UID: user.uid, GID: user.gid, Bounding: capabilityBits}
	if user.uid == 0 {
		proc.Held = capabilityBits
	}
	res, err := e.execute(ctx, r, proc, spec, e.execPID(r, mark))
	defer os.Remove(e.execPID(r, mark))
	if ctx.Err() != nil {
		return 0, errors.Join(context.Cause(ctx), e.killExec(context.WithoutCancel(ctx), r, mark))
	}
	return res.code, err
}

// execPID is the file that holds the program's pid inside the sandbox.
func (e *Engine) execPID(r Record, mark string) string {
	return filepath.Join(e.State.SandboxDir(r.Name), "exec-"+mark+".pid")
}

// execMarks lists the execs that run or were left, by mark, with the name of their sandbox.
func (e *Engine) execMarks() map[string]string {
	marks := map[string]string{}
	files, err := filepath.Glob(filepath.Join(e.State.sandboxes(), "*", "exec-*.pid"))
	if err != nil {
		return marks
	}
	for _, f := range files {
		mark := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "exec-"), ".pid")
		if validID(mark) {
			marks[mark] = filepath.Base(filepath.Dir(f))
		}
	}
	return marks
}

// mergeEnv joins environments; of two values for one name the later holds.
func mergeEnv(lists ...[]string) []string {
	var out []string
	at := map[string]int{}
	for _, kv := range slices.Concat(lists...) {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

// An account is a user of the sandbox.
type account struct {
	uid, gid uint32
	home     string
}

// user resolves USER[:GROUP] as docker exec does.
func (e *Engine) user(ctx context.Context, r Record, text string) (account, error) {
	name, group, hasGroup := strings.Cut(text, ":")
	u := account{home: homeDir}
	switch uid, err := strconv.ParseUint(name, 10, 32); {
	case name == "" || name == "agent":
	case name == "root":
		u.home = "/root"
	case err == nil:
		u.uid, u.gid = uint32(uid), uint32(uid)
		if uid != 0 {
			u.home = "/"
		}
	default:
		if err := e.lookup(ctx, r, "user", name, &u.uid, &u.gid, &u.home); err != nil {
			return u, err
		}
	}
	if !hasGroup {
		return u, nil
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		err = e.lookup(ctx, r, "group", group, &gid)
	}
	u.gid = uint32(gid)
	return u, err
}

// lookup asks the sandbox's own files for a user or a group.
func (e *Engine) lookup(ctx context.Context, r Record, kind, name string, into ...any) error {
	var out bytes.Buffer
	res, err := e.helper(ctx, r, nil, &out, kind, name)
	if err != nil {
		return err
	}
	if res.code != 0 {
		return errors.New(strings.TrimSpace(res.stderr))
	}
	if _, err := fmt.Sscan(out.String(), into...); err != nil {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	return nil
}

// killExec kills what the exec with the mark started.
func (e *Engine) killExec(ctx context.Context, r Record, mark string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	path := e.execPID(r, mark)
	defer os.Remove(path)
	root := "0"
	wait, cancelWait := context.WithTimeout(ctx, launchPatience)
	defer cancelWait()
	for {
		data, err := os.ReadFile(path)
		if err == nil && len(data) > 0 {
			root = string(data)
			break
		}
		if pause(wait, 5*time.Millisecond) != nil {
			break // never started, as far as anybody knows; the mark is looked for all the same
		}
	}
	res, err := e.helper(ctx, r, nil, nil, "kill", mark, root)
	if err != nil {
		return err
	}
	if res.code != 0 {
		return errors.New(strings.TrimSpace(res.stderr))
	}
	return nil
}

// checkText refuses what is not UTF-8: it travels to gVisor as JSON, which would put other bytes in its place without a word.
func checkText(what string, list ...string) error {
	for _, text := range list {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%w: %s %q", ErrText, what, text[:min(len(text), 80)])
		}
	}
	return nil
}

// checkEnv is checkText for variables, whose values no error tells.
func checkEnv(env []string) error {
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); !utf8.ValidString(kv) {
			return fmt.Errorf("%w: variable %q", ErrText, name)
		}
	}
	return nil
}

// helper runs our own program inside the sandbox.
func (e *Engine) helper(ctx context.Context, r Record, stdin io.Reader, stdout io.Writer, args ...string) (execResult, error) {
	var stderr bytes.Buffer
	proc := sentry.Process{
		Argv: append([]string{guest.Path, guest.Verb}, args...), Env: []string{"PATH=" + guestPath, "HOME=" + homeDir}, Dir: "/",
		Bounding: capabilityBits, Held: capabilityBits,
	}
	res, err := e.execute(ctx, r, proc, ExecSpec{Stdin: stdin, Stdout: stdout, Stderr: &stderr}, "")
	if err != nil {
		return execResult{}, err // and leave stderr: it may still be written to
	}
	res.stderr = stderr.String()
	return res, nil
}

type execResult struct {
	code   int
	stderr string // of a helper
}

// execute starts the program in the sandbox and carries its streams. There is always a pipe between: gVisor would change the
// flags of a file it is given, and keeps an offset of its own in it.
func (e *Engine) execute(ctx context.Context, r Record, proc sentry.Process, spec ExecSpec, pidFile string) (execResult, error) {
	if !filepath.IsAbs(proc.Dir) {
		return execResult{}, fmt.Errorf("working directory %q is not absolute", proc.Dir)
	}
	if err := errors.Join(checkText("argument", proc.Argv...), checkEnv(proc.Env), checkText("working directory", proc.Dir)); err != nil {
		return execResult{}, err
	}
	name, argv := proc.Argv[0], proc.Argv
	var p plumbing
	defer p.close()
	tty := spec.TTY
	var refusal *os.File // why the program on the terminal was not started
	if tty != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return execResult{}, err
		}
		p.guest, p.host, refusal = append(p.guest, w), append(p.host, r), r
		proc.Argv, proc.Terminal = append([]string{guest.Path, guest.Verb, "tty"}, argv...), true
		proc.Files = []*os.File{tty, tty, tty, w} // the last one is guest.WordFD
	} else {
		ends, err := p.connect(spec)
		if err != nil {
			return execResult{}, err
		}
		proc.Files = ends
	}
	socket := e.controlSocket(r.ID)
	program, err := sentry.Start(ctx, socket, proc)
	if err != nil {
		if errors.Is(err, sentry.ErrGone) {
			return execResult{}, fmt.Errorf("%w: %w", ErrNotRunning, err)
		}
		return execResult{}, err
	}
	p.started()
	done := make(chan ending, 1)
	go func() { done <- follow(ctx, socket, program, pidFile, spec.Resized) }()
	var end ending
	select {
	case end = <-done:
	case <-ctx.Done(): // who ends the program ends the waiting too, or else we do
		program.GiveUp(launchPatience)
		return execResult{}, context.Cause(ctx)
	}
	if err := p.drain(ctx); err != nil {
		return execResult{}, err
	}
	if refused, ok := errors.AsType[*sentry.RefusalError](end.err); ok {
		return execResult{}, launchFailure(refused.Words, name, proc.Dir)
	}
	switch {
	case errors.Is(end.err, sentry.ErrGone) && end.pid != 0: // the sandbox was stopped or killed under the program
		return execResult{code: 128 + int(syscall.SIGKILL)}, nil
	case errors.Is(end.err, sentry.ErrGone):
		return execResult{}, fmt.Errorf("%w: %w", ErrNotRunning, end.err)
	case end.err != nil:
		return execResult{}, end.err
	}
	if refusal != nil {
		refusal.SetReadDeadline(time.Now().Add(launchPatience)) // its writer has ended
		if text, _ := io.ReadAll(io.LimitReader(refusal, 4<<10)); len(text) > 0 {
			return execResult{}, launchFailure(string(text), name, proc.Dir)
		}
	}
	if end.status.Signaled() {
		return execResult{code: 128 + int(end.status.Signal())}, nil
	}
	return execResult{code: end.status.ExitStatus()}, nil
}

// An ending is what became of a program that was asked for; pid is 0 if it was not started.
type ending struct {
	pid    int
	status syscall.WaitStatus
	err    error
}

// follow notes the program's pid, tells it of new sizes of its terminal, and waits for its end. It closes the program.
func follow(ctx context.Context, socket sentry.Socket, program *sentry.Program, pidFile string, resized <-chan struct{}) (end ending) {
	defer program.Close()
	if end.pid, end.err = program.PID(); end.err != nil {
		return end
	}
	if pidFile != "" {
		if end.err = os.WriteFile(pidFile, []byte(strconv.Itoa(end.pid)), 0o600); end.err != nil {
			return end
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if resized != nil {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-resized:
					socket.Signal(ctx, end.pid, syscall.SIGWINCH) // a program that has just ended needs no size
				}
			}
		}()
	}
	end.status, end.err = program.Wait(end.pid)
	return end
}

// launchFailure words gVisor's refusal to start a program as the OCI runtime of sbx does.
func launchFailure(words, name, dir string) error {
	const prefix = "OCI runtime exec failed: exec failed: unable to start container process: "
	switch {
	case strings.Contains(words, "working directory"):
		return &LaunchError{fmt.Sprintf("%schdir to cwd (%q) set in config.json failed: no such file or directory", prefix, dir)}
	case strings.Contains(words, "permission denied"):
		return &LaunchError{fmt.Sprintf("%sexec: %q: permission denied", prefix, name)}
	case strings.Contains(words, "no such file") && strings.ContainsRune(name, '/'):
		return &LaunchError{fmt.Sprintf("%sexec: %q: stat %s: no such file or directory", prefix, name, name)}
	case strings.Contains(words, "no such file"):
		return &LaunchError{fmt.Sprintf("%sexec: %q: executable file not found in $PATH", prefix, name)}
	}
	return &LaunchError{prefix + fmt.Sprintf("exec: %q: ", name) + strings.TrimSpace(words)}
}

// plumbing carries a program's three streams through pipes.
type plumbing struct {
	guest  []*os.File // the program's ends, ours to close once it has them
	host   []*os.File
	copies []copying
}

type copying struct {
	from *os.File
	done chan struct{}
}

// connect makes the pipes and returns the program's ends: stdin, stdout, stderr.
func (p *plumbing) connect(spec ExecSpec) ([]*os.File, error) {
	if spec.Stdin == nil {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		p.guest = append(p.guest, null)
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		p.guest, p.host = append(p.guest, r), append(p.host, w)
		go func() { // ends with its reader, which may be a terminal that nobody types on: not waited for
			defer w.Close()
			io.Copy(w, spec.Stdin)
		}()
	}
	for _, to := range []io.Writer{spec.Stdout, spec.Stderr} {
		if to == nil {
			to = io.Discard
		}
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		p.guest, p.host = append(p.guest, w), append(p.host, r)
		c := copying{r, make(chan struct{})}
		p.copies = append(p.copies, c)
		go func() {
			defer close(c.done)
			defer r.Close() // a consumer that left must be felt inside
			io.Copy(to, r)
		}()
	}
	return p.guest, nil
}

func (p *plumbing) started() {
	for _, f := range p.guest {
		f.Close()
	}
}

// drain waits until all that the program wrote is carried over. What it left running may keep the pipes open: that is not
// waited for once they are empty.
func (p *plumbing) drain(ctx context.Context) error {
	for _, c := range p.copies {
		for wait := 50 * time.Microsecond; !isClosed(c.done); wait = min(2*wait, 5*time.Millisecond) {
			if empty(c.from) {
				c.from.SetReadDeadline(time.Now())
			}
			if err := pause(ctx, wait); err != nil {
				return err
			}
		}
	}
	return nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func empty(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	n := 0
	if err := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return true
	}
	return err != nil || n == 0
}

// close closes every end. A copy that is blocked in its consumer is not waited for: a caller that gives up must get away.
func (p *plumbing) close() {
	for _, f := range slices.Concat(p.guest, p.host) {
		f.Close()
	}
}
