//go:build linux

package sbx_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/sbx"
)

// leaving is an engine that starts the commands of its sandbox on this machine and, like sbx, leaves them running when its
// own call is cut off. The mark in their environment keeps them apart from everything else here.
type leaving struct {
	attr syscall.SysProcAttr
	done []<-chan struct{} // of what was left running, once it was reaped
}

func (l *leaving) Run(ctx context.Context, c sbx.Cmd) (sbx.Result, error) {
	if c.Args[0] == "ls" {
		return says(`{"sandboxes":[{"name":"box","status":"running"}]}`, "", 0), nil
	}
	at := slices.Index(c.Args, "box")
	cmd := exec.Command(c.Args[at+1], c.Args[at+2:]...) //nolint:noctx // the point is that it outlives the call
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	for i, arg := range c.Args[:at] {
		if arg == "-e" {
			cmd.Env = append(cmd.Env, c.Args[i+1])
		}
	}
	var out, errOut bytes.Buffer
	attr := l.attr
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &out, &errOut, &attr
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return sbx.Result{Code: -1}, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	select {
	case <-done:
		return result(c, out.Bytes(), errOut.Bytes(), cmd.ProcessState.ExitCode())
	case <-ctx.Done():
		l.done = append(l.done, done)
		return sbx.Result{Code: -1}, ctx.Err()
	}
}

// TestKillTree: a command that is cut short leaves nothing running, whichever way the engine started it, and the arguments
// and the exit status of one that is not are its own.
func TestKillTree(t *testing.T) {
	for name, attr := range map[string]syscall.SysProcAttr{
		"session leader": {Setsid: true}, "group leader": {Setpgid: true}, "neither": {},
	} {
		t.Run(name, func(t *testing.T) {
			l := &leaving{attr: attr}
			c := sbx.New("", v47(), sbx.WithRunner(l))
			run := func(spec sbx.ExecSpec) (sbx.ExecResult, error) {
				spec.KillTree = true
				return c.Exec(t.Context(), "box", spec)
			}
			argv := []string{"printf", "%s|", "a\nb", `'"$HOME`, "", "-x", "$(id)"}
			res, err := run(sbx.ExecSpec{Argv: argv})
			if want := "a\nb|'\"$HOME||-x|$(id)|"; err != nil || string(res.Stdout) != want {
				t.Errorf("%q, %v, want %q", res.Stdout, err, want)
			}
			res, err = run(sbx.ExecSpec{Argv: []string{"sh", "-c", "kill -TERM $$"}})
			if err != nil || res.Code != -1 { // this engine's own way to say so: nothing was between it and the command
				t.Errorf("%d, %v", res.Code, err)
			}
			res, err = run(sbx.ExecSpec{Argv: []string{"sh", "-c", "exit 42"}})
			if err != nil || res.Code != 42 {
				t.Errorf("%d, %v", res.Code, err)
			}
			_, err = run(sbx.ExecSpec{Argv: []string{"no-such-program"}})
			wantKinds(t, err, sbx.ErrLaunch)

			t.Run("R108 R116", func(t *testing.T) { // children that are busy, deaf, or in a session of their own
				file := filepath.Join(t.TempDir(), "pids")
				_, err = run(sbx.ExecSpec{Timeout: 2 * time.Second, Argv: []string{"sh", "-c", `
					trap '' INT TERM HUP
					(trap '' INT TERM; while :; do sleep 0.2; done) & echo $! >>"$0"
					setsid sh -c 'echo $$ >>"$0"; exec sleep 600' "$0" &
					env -i /bin/sh -c 'echo $$ >>"$0"; exec /bin/sleep 600' "$0" &
					nohup sleep 600 >/dev/null 2>&1 & echo $! >>"$0"
					echo $$ >>"$0"
					wait`, file}})
				wantKinds(t, err, sbx.ErrTimeout)
				b, err := os.ReadFile(file)
				ok(t, err)
				list := pids(t, b)
				if len(list) != 5 {
					t.Errorf("%d processes", len(list))
				}
				t.Cleanup(func() {
					if t.Failed() { // ours: started by the script above
						for _, pid := range list {
							_ = syscall.Kill(pid, syscall.SIGKILL)
						}
					}
				})
				for _, pid := range list {
					waitGone(t, pid)
				}
				for _, done := range l.done {
					<-done
				}
			})
		})
	}
}

// TestKillTreeCalls: what is sent, and that nothing is where nothing can be left.
func TestKillTreeCalls(t *testing.T) {
	e := newEngine(t, "0.47")
	c := e.process()
	_, err := c.Create(t.Context(), sbx.CreateSpec{Name: "box"})
	ok(t, err)
	res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"echo", "hi"}, KillTree: true})
	if err != nil || string(res.Stdout) != "hi\n" {
		t.Errorf("%q, %v", res.Stdout, err)
	}
	before := len(e.calls())
	e.script(`calls: [{match: slow, hang: true}]`)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { // once it runs
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if logged, err := fake.Calls(e.dir); err != nil || len(logged) > before {
				break
			}
		}
		cancel(errors.New("interrupted"))
	}()
	_, err = c.Exec(ctx, "box", sbx.ExecSpec{Argv: []string{"slow"}, KillTree: true})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	sent := e.calls()[before:]
	if len(sent) != 3 || !strings.HasPrefix(sent[0], "exec -e SBXPAIR_TREE=sbxpair-tree-") || sent[1] != "ls --json" ||
		!strings.HasPrefix(sent[2], "exec -u root -w / box sh -c ") {
		t.Fatalf("sent %q", sent)
	}
	_, mark, _ := strings.Cut(strings.Fields(sent[0])[2], "=")
	if !strings.HasSuffix(sent[2], " sbxpair-kill "+mark) {
		t.Errorf("the second call ends %q, the mark was %s", sent[2][len(sent[2])-80:], mark)
	}

	// A sandbox that is stopped has no processes, and must not be started to look for them.
	e.script(`calls: [{match: slow, hang: true}, {match: "^ls", stdout: '{"sandboxes":[{"name":"box","status":"stopped"}]}'}]`)
	before = len(e.calls())
	_, err = c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"slow"}, KillTree: true, Timeout: 300 * time.Millisecond})
	wantKinds(t, err, sbx.ErrTimeout)
	if sent := e.calls()[before:]; len(sent) != 2 {
		t.Errorf("sent %q", sent)
	}
	// That it did not work is said.
	e.script(`calls: [{match: slow, hang: true}, {match: sbxpair-kill, code: 1, stdout: "3\n"}]`)
	_, err = c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"slow"}, KillTree: true, Timeout: 300 * time.Millisecond})
	wantKinds(t, err, sbx.ErrTimeout)
	if !strings.Contains(err.Error(), "may be left in the sandbox") {
		t.Errorf("error %v", err)
	}

	// sbx-local does this itself.
	var calls int
	local := sbx.New("", sbx.WithVersion(sbx.Version{Engine: sbx.EngineLocal, Client: sbx.ParseSemver("v0.47.0")}),
		sbx.WithRunner(sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
			calls++
			if !slices.Equal(c.Args, []string{"exec", "box", "slow"}) {
				t.Errorf("sent %q", c.Args)
			}
			return sbx.Result{Code: -1}, context.DeadlineExceeded
		})))
	if _, err := local.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"slow"}, KillTree: true}); err == nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
