//go:build unix

package sbx_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// shell runs a script as if it were the engine's command.
func shell(grace time.Duration) sbx.Exec {
	return sbx.Exec{Path: "/bin/sh", Env: sbx.Environ([]string{"PATH=/usr/bin:/bin"}), Grace: grace}
}

func script(text string) sbx.Cmd { return sbx.Cmd{Args: []string{"-c", text}} }

// within fails if the work took longer than limit. Limits are far above what the work needs: they catch waiting, not
// slowness.
func within(t *testing.T, limit time.Duration, work func()) {
	t.Helper()
	start := time.Now()
	work()
	if took := time.Since(start); took > limit {
		t.Errorf("took %s, want at most %s", took, limit)
	}
}

// waitGone fails unless the process ends soon.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; {
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) || zombie(pid) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(b, []byte(") Z "))
}

func pids(t *testing.T, out []byte) []int {
	t.Helper()
	var list []int
	for word := range strings.FieldsSeq(string(out)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatalf("pid %q", word)
		}
		list = append(list, pid)
	}
	return list
}

func TestExecRunner(t *testing.T) {
	t.Run("streams apart, exit code, null input", func(t *testing.T) {
		res, err := shell(0).Run(t.Context(), script(`cat; echo o; echo e >&2; exit 42`))
		ok(t, err)
		if string(res.Stdout) != "o\n" || string(res.Stderr) != "e\n" || res.Code != 42 || res.Killed {
			t.Errorf("%q %q %+v", res.Stdout, res.Stderr, res)
		}
	})
	t.Run("no such program", func(t *testing.T) {
		_, err := sbx.Exec{Path: "/nowhere/sbx"}.Run(t.Context(), sbx.Cmd{})
		wantKinds(t, err, sbx.ErrNotInstalled)
		_, err = sbx.Exec{Path: "no-such-program-anywhere"}.Run(t.Context(), sbx.Cmd{})
		wantKinds(t, err, sbx.ErrNotInstalled)
		text := filepath.Join(t.TempDir(), "sbx")
		ok(t, os.WriteFile(text, []byte("not a program"), 0o755))
		_, err = sbx.Exec{Path: text}.Run(t.Context(), sbx.Cmd{})
		wantKinds(t, err, sbx.ErrNotInstalled)
	})
	t.Run("own process group, no terminal", func(t *testing.T) { // and none to open: TestNoTerminalToOpen
		res, err := shell(0).Run(t.Context(), script(`ps -o pgid= -p $$; echo $$; tty || true`))
		ok(t, err)
		lines := strings.Fields(string(res.Stdout))
		if len(lines) < 2 || lines[0] != lines[1] || !strings.Contains(string(res.Stdout), "not a tty") {
			t.Errorf("%q", res.Stdout)
		}
	})
	t.Run("killed", func(t *testing.T) {
		res, err := shell(0).Run(t.Context(), script(`echo half; kill -9 $$`))
		ok(t, err)
		if !res.Killed || res.Code != -1 || string(res.Stdout) != "half\n" {
			t.Errorf("%+v", res)
		}
	})
	t.Run("bounded, tail kept", func(t *testing.T) {
		c := script(`i=0; while [ $i -lt 3000 ]; do echo "line $i ........................................"; i=$((i+1)); done`)
		c.MaxCapture = 4096
		res, err := shell(0).Run(t.Context(), c)
		ok(t, err)
		if len(res.Stdout) != 4096 || !res.StdoutTruncated || !strings.Contains(string(res.Stdout), "line 2999 ") ||
			!strings.HasPrefix(string(res.StdoutHead), "line 0 ") || res.StdoutBytes < 100_000 {
			t.Errorf("%d bytes of %d, head %q", len(res.Stdout), res.StdoutBytes, res.StdoutHead)
		}
	})
	t.Run("masked, also byte by byte and at the cut", func(t *testing.T) {
		value := secrets.New("canary-0123456789-canary")
		c := script(`for c in c a n a r y - 0 1 2 3 4 5 6 7 8 9 - c a n a r y; do printf %s $c; printf %s $c >&2; done; echo; echo`)
		c.Redact, c.MaxCapture = []secrets.Value{value}, 16
		var streamed bytes.Buffer
		c.Stdout = &streamed
		res, err := shell(0).Run(t.Context(), c)
		ok(t, err)
		for _, out := range [][]byte{res.Stdout, res.Stderr, res.StdoutHead, streamed.Bytes()} {
			if bytes.Contains(out, []byte("canary")) || !bytes.Contains(out, []byte("***")) {
				t.Errorf("%q", out)
			}
		}
	})
	t.Run("a writer that fails", func(t *testing.T) {
		c := script(`while :; do echo x; done`)
		c.Stdout = failingWriter{}
		within(t, 20*time.Second, func() {
			_, err := shell(0).Run(t.Context(), c)
			if !errors.Is(err, io.ErrShortWrite) {
				t.Errorf("error %v", err)
			}
		})
	})
	t.Run("input that nobody reads", func(t *testing.T) {
		c := script(`exit 3`)
		c.Stdin = strings.NewReader(strings.Repeat("x", 1<<20))
		res, err := shell(0).Run(t.Context(), c)
		ok(t, err)
		if res.Code != 3 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("input that breaks off", func(t *testing.T) { // half of it must not pass for all
		c := script(`cat`)
		c.Stdin = io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrNoProgress))
		res, err := shell(0).Run(t.Context(), c)
		if !errors.Is(err, io.ErrNoProgress) || string(res.Stdout) != "half" {
			t.Errorf("%q, error %v", res.Stdout, err)
		}
	})
	t.Run("input that never ends", func(t *testing.T) {
		r, w := io.Pipe()
		defer w.Close()
		c := script(`exit 0`)
		c.Stdin = r
		within(t, 20*time.Second, func() {
			_, err := shell(100*time.Millisecond).Run(t.Context(), c)
			ok(t, err)
		})
	})
	t.Run("a command line that is too long", func(t *testing.T) { // it is there, and was never started
		_, err := shell(0).Run(t.Context(), sbx.Cmd{Args: []string{"-c", "exit 0", strings.Repeat("x", 4<<20)}})
		wantKinds(t, err, sbx.ErrInvalid)
		if errors.Is(err, sbx.ErrNotInstalled) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("context done before the start", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("because"))
		_, err := shell(0).Run(ctx, script(`exit 0`))
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "because") {
			t.Errorf("error %v", err)
		}
	})
}

// pace is a writer that takes its time: for the first write, until it is released.
type pace struct {
	bytes.Buffer
	entered chan struct{} // closed at the first write
	release chan struct{}
	once    sync.Once
}

func newPace() *pace { return &pace{entered: make(chan struct{}), release: make(chan struct{})} }

func (p *pace) Write(b []byte) (int, error) {
	p.once.Do(func() { close(p.entered) })
	<-p.release
	return p.Buffer.Write(b)
}

// TestSlowWriter: a caller that takes its time, also far beyond the grace time, gets everything, and one that fails then is
// an error.
func TestSlowWriter(t *testing.T) {
	const text = `i=0; while [ $i -lt 4000 ]; do echo "line $i ........................................"; i=$((i+1)); done`
	t.Run("everything arrives", func(t *testing.T) {
		in, more := io.Pipe()
		c, w := script(`echo first; read -r more; i=0; while [ $i -lt 800 ]; do echo "line $i ........................................"; i=$((i+1)); done`), newPace()
		c.Stdout, c.Stdin = w, in
		go func() {
			<-w.entered // the rest comes behind a write that takes eight times the grace time
			fmt.Fprintln(more, "go")
			time.Sleep(400 * time.Millisecond)
			close(w.release)
		}()
		res, err := shell(50*time.Millisecond).Run(t.Context(), c)
		ok(t, err)
		if got := w.String(); strings.Count(got, "\n") != 801 || !strings.HasSuffix(got, "line 799 ........................................\n") || got != string(res.Stdout) {
			t.Errorf("%d bytes passed on, %d captured", len(got), len(res.Stdout))
		}
		if res.Held || res.StdoutTruncated || res.Code != 0 {
			t.Errorf("%v %v %d", res.Held, res.StdoutTruncated, res.Code)
		}
	})
	t.Run("one writer for both", func(t *testing.T) {
		c, w := script(text+` >&2; `+text), &exclusive{}
		c.Stdout, c.Stderr = w, w
		_, err := shell(0).Run(t.Context(), c)
		ok(t, err)
		if w.n.Load() < 8000*45 || w.twice.Load() {
			t.Errorf("%d bytes; two writes at once: %v", w.n.Load(), w.twice.Load())
		}
	})
	t.Run("one writer for both of a command in a sandbox", func(t *testing.T) { // whose output Client.Exec looks at on its way
		both := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
			var wg sync.WaitGroup
			for _, w := range []io.Writer{c.Stdout, c.Stderr} {
				wg.Go(func() {
					for range 2000 {
						fmt.Fprintln(w, "line")
					}
				})
			}
			wg.Wait()
			return sbx.Result{}, nil
		})
		w := &exclusive{}
		_, err := sbx.New("", v47(), sbx.WithRunner(both)).Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"x"}, Stdout: w, Stderr: w})
		ok(t, err)
		if w.n.Load() != 4000*5 || w.twice.Load() {
			t.Errorf("%d bytes; two writes at once: %v", w.n.Load(), w.twice.Load())
		}
	})
	t.Run("a failure at the end", func(t *testing.T) { // after the command has gone
		c := script(`echo x`)
		c.Stdout = lateFailure{}
		_, err := shell(50*time.Millisecond).Run(t.Context(), c)
		if !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("error %v", err)
		}
	})
}

type lateFailure struct{}

func (lateFailure) Write([]byte) (int, error) {
	time.Sleep(200 * time.Millisecond)
	return 0, nil
}

// exclusive notices when two goroutines write to it at once: its first write waits a moment for another.
type exclusive struct {
	busy, twice atomic.Bool
	n           atomic.Int64
}

func (e *exclusive) Write(p []byte) (int, error) {
	if !e.busy.CompareAndSwap(false, true) {
		e.twice.Store(true)
	}
	for wait := time.Now().Add(100 * time.Millisecond); e.n.Load() == 0 && !e.twice.Load() && time.Now().Before(wait); {
		runtime.Gosched()
	}
	e.busy.Store(false)
	e.n.Add(int64(len(p)))
	return len(p), nil
}

// TestBlockedCaller: a writer or reader that blocks for ever holds no call past its context, captured or attached.
func TestBlockedCaller(t *testing.T) {
	for name, text := range map[string]string{
		"command runs":       `while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done`,
		"command has exited": `echo x`,
		"command is deaf":    `trap '' INT TERM; echo x; while :; do sleep 1; done`,
	} {
		for _, terminal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, terminal), func(t *testing.T) {
				w := newPace()
				defer close(w.release)
				never, end := io.Pipe()
				defer end.Close()
				c := script(text)
				c.Stdin, c.Stdout, c.Terminal = never, w, terminal
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				within(t, 20*time.Second, func() {
					res, err := shell(100*time.Millisecond).Run(ctx, c)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%+v, error %v", res.Code, err)
					}
				})
			})
		}
	}
	t.Run("reader/attached", func(t *testing.T) { // the command is done, and nobody waits for what the caller may type
		never, end := io.Pipe()
		defer end.Close()
		c := script(`exit 5`)
		c.Stdin, c.Terminal = never, true
		res, err := shell(10*time.Minute).Run(t.Context(), c)
		ok(t, err)
		if res.Code != 5 {
			t.Errorf("%+v", res)
		}
	})
}

// TestLeftBehind: a process that the command left behind holds the output open and never stops writing, much or little.
func TestLeftBehind(t *testing.T) {
	for name, text := range map[string]string{
		"much":          `yes & echo $! >&2`,
		"little":        `while :; do echo x; sleep 0.03; done & echo $! >&2`,
		"little, twice": `while :; do echo x; echo x >&2; sleep 0.03; done 3>&- & echo $! >&2`,
	} {
		t.Run(name, func(t *testing.T) {
			within(t, 30*time.Second, func() {
				res, err := shell(100*time.Millisecond).Run(t.Context(), script(text))
				ok(t, err)
				if !res.Held || res.Code != 0 {
					t.Errorf("held %v, code %d", res.Held, res.Code)
				}
				pid, _, _ := strings.Cut(strings.TrimPrefix(string(res.Stderr), "x\n"), "\n")
				for _, pid := range pids(t, []byte(pid)) {
					waitGone(t, pid) // of its closed output
				}
			})
		})
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestFieldReportsProcesses has the rows of the field reports that are about processes and their streams.
func TestFieldReportsProcesses(t *testing.T) {
	t.Run("R095", func(t *testing.T) { // Ctrl-C of the caller's group does not reach the engine
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInterruptedHelper$", "-test.v")
		cmd.Env = append(os.Environ(), "INTERRUPT_HELPER=1", "GORACE=atexit_sleep_ms=0")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("engine finished with 7")) {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("R106", func(t *testing.T) { // a time-out is an error, with what came until then
		e := newEngine(t, "0.47")
		_, err := e.client().Create(t.Context(), sbx.CreateSpec{Name: "box"})
		ok(t, err)
		e.script("calls: [{match: ^exec, stdout: \"half\\n\", stderr: \"e\\n\", hang: true}]")
		res, err := e.process().Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"sleep", "10"}, Timeout: time.Second})
		wantKinds(t, err, sbx.ErrTimeout)
		if !errors.Is(err, context.DeadlineExceeded) || string(res.Stdout) != "half\n" || string(res.Stderr) != "e\n" || res.Code != -1 {
			t.Errorf("%v, %+v", err, res)
		}
	})
	t.Run("R107", func(t *testing.T) { // a grandchild that holds the pipe does not hold us
		within(t, 20*time.Second, func() {
			res, err := shell(200*time.Millisecond).Run(t.Context(), script(`sleep 60 & echo done; echo $! >&2`))
			ok(t, err)
			if string(res.Stdout) != "done\n" || !res.Held || res.Code != 0 {
				t.Errorf("%+v", res)
			}
			for _, pid := range pids(t, res.Stderr) {
				ok(t, syscall.Kill(pid, syscall.SIGKILL)) // ours: started by this very script
			}
		})
	})
	t.Run("R108", func(t *testing.T) { // everything of the call ends with it, on this side
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		res, err := shell(200*time.Millisecond).Run(ctx, script(
			`trap '' INT; for i in 1 2 3; do sh -c 'trap "" INT; while :; do :; done & echo $!; while :; do :; done & echo $!; sleep 60' & echo $!; done; wait`))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v", err)
		}
		list := pids(t, res.Stdout)
		if len(list) != 9 {
			t.Errorf("%d processes", len(list))
		}
		for _, pid := range list {
			waitGone(t, pid)
		}
	})
	t.Run("R109", func(t *testing.T) { // captured calls leave the caller's standard input alone
		r, w, err := os.Pipe()
		ok(t, err)
		old := os.Stdin
		os.Stdin = r
		defer func() { os.Stdin = old; r.Close() }()
		_, err = w.WriteString("y\n")
		ok(t, err)
		ok(t, w.Close())
		for range 2 {
			res, err := shell(0).Run(t.Context(), script(`cat`))
			ok(t, err)
			if len(res.Stdout) > 0 {
				t.Errorf("read %q", res.Stdout)
			}
		}
		if b, err := io.ReadAll(r); err != nil || string(b) != "y\n" {
			t.Errorf("left %q, %v", b, err)
		}
	})
	t.Run("R110", func(t *testing.T) { // binary output arrives as it is
		var out bytes.Buffer
		c := script(`head -c 65536 /dev/urandom | tee /dev/stderr`)
		c.Stdout = &out
		res, err := shell(0).Run(t.Context(), c)
		ok(t, err)
		if out.Len() != 65536 || sha256.Sum256(out.Bytes()) != sha256.Sum256(res.Stderr) || !bytes.Equal(out.Bytes(), res.Stdout) {
			t.Errorf("%d bytes, not the same", out.Len())
		}
	})
	t.Run("R114", func(t *testing.T) { // a chatty standard error
		c := script(`head -c 10000000 /dev/zero | tr '\0' x >&2; echo end >&2`)
		c.MaxCapture = 64 << 10
		within(t, 60*time.Second, func() {
			res, err := shell(0).Run(t.Context(), c)
			ok(t, err)
			if len(res.Stderr) != 64<<10 || !res.StderrTruncated || !bytes.HasSuffix(res.Stderr, []byte("xend\n")) || len(res.Stdout) != 0 {
				t.Errorf("%d bytes", len(res.Stderr))
			}
		})
	})
	t.Run("R120", func(t *testing.T) { // a child that ignores being asked
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		within(t, 20*time.Second, func() {
			res, err := shell(200*time.Millisecond).Run(ctx, script(`trap '' INT TERM; echo $$; while :; do sleep 0.05; done`))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			for _, pid := range pids(t, res.Stdout) {
				waitGone(t, pid)
			}
		})
	})
	t.Run("R124", func(t *testing.T) { // interactive: the two streams stay apart
		e := newEngine(t, "0.47").script("exec: [{match: ^both, stdout: \"o\\n\", stderr: \"e\\n\", code: 5}]")
		_, err := e.client().Create(t.Context(), sbx.CreateSpec{Name: "box"})
		ok(t, err)
		var out, errOut bytes.Buffer
		code, err := e.process().Attach(t.Context(), "box", sbx.ExecSpec{Argv: []string{"both"}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut})
		ok(t, err)
		if code != 5 || out.String() != "o\n" || errOut.String() != "e\n" {
			t.Errorf("%d %q %q", code, out.String(), errOut.String())
		}
		if last := e.calls()[len(e.calls())-1]; last != "exec -i box both" { // no -t: these are no terminals
			t.Errorf("call %q", last)
		}
		_, err = e.process().Attach(t.Context(), "nobody", sbx.ExecSpec{Argv: []string{"true"}})
		wantKinds(t, err, sbx.ErrNotFound)
	})
}

// TestInterruptedHelper is the caller of TestFieldReportsProcesses/R095: it interrupts its own process group in the middle of a call.
func TestInterruptedHelper(t *testing.T) {
	if os.Getenv("INTERRUPT_HELPER") == "" {
		t.Skip("only as a process of its own")
	}
	got := make(chan os.Signal, 1)
	notifyInterrupt(got)
	r, w, err := os.Pipe()
	ok(t, err)
	c := script(`echo up; while read -r line; do exit 7; done`)
	c.Stdin = r
	up := make(chan struct{}, 1)
	c.Stdout = sbx.Lines(func([]byte) { up <- struct{}{} })
	done := make(chan sbx.Result, 1)
	go func() {
		res, err := shell(0).Run(t.Context(), c)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	<-up
	ok(t, syscall.Kill(0, syscall.SIGINT)) // as a terminal does
	<-got
	_, err = w.WriteString("go on\n")
	ok(t, err)
	fmt.Printf("engine finished with %d\n", (<-done).Code)
}

// TestDeadlines: a verb that hangs is ended by its own deadline, and a context that is done ends it at once.
func TestDeadlines(t *testing.T) {
	e := newEngine(t, "0.47").script(`calls: [{match: "^ls", hang: true, deaf: true}, {match: "^policy", hang: true}, {match: "^inspect", stdout: "Restart now? (y/N): ", hang: true}, {match: "^stop", stdout: "half", crash: true}]`)
	c := e.process(v47(), sbx.WithTimeouts(sbx.Timeouts{Query: 500 * time.Millisecond}))
	within(t, 30*time.Second, func() {
		_, err := c.List(t.Context())
		wantKinds(t, err, sbx.ErrTimeout)
		if sbx.Hint(err) != "check with: sbx daemon status" {
			t.Errorf("hint %q", sbx.Hint(err))
		}
	})
	within(t, 30*time.Second, func() {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("the run's time is up"))
		defer cancel()
		_, err := c.PolicyList(ctx, "")
		wantKinds(t, err, sbx.ErrTimeout)
	})
	within(t, 30*time.Second, func() {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(200*time.Millisecond, func() { cancel(errors.New("signal")) })
		_, err := c.PolicyList(ctx, "")
		if !errors.Is(err, context.Canceled) || errors.Is(err, sbx.ErrTimeout) || !strings.Contains(err.Error(), "signal") {
			t.Errorf("error %v", err)
		}
	})
	// It waits for an answer to a question: that is what it is then. A busy machine takes its time to ask.
	_, err := c.Inspect(t.Context(), "box")
	for limit := time.Second; !errors.Is(err, sbx.ErrPrompt) && limit < time.Minute; limit *= 2 {
		_, err = e.process(v47(), sbx.WithTimeouts(sbx.Timeouts{Query: limit})).Inspect(t.Context(), "box")
	}
	wantKinds(t, err, sbx.ErrPrompt, sbx.ErrVersionMismatch, sbx.ErrTimeout)
	wantKinds(t, c.Stop(t.Context(), "box"), sbx.ErrConnectionLost)
}
