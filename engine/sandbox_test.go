package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
	"github.com/sbxpair/sbxpair/engine/guest"
	"github.com/sbxpair/sbxpair/engine/ports"
)

// stores is a policy and secrets for tests: everything is there and nothing is in it. The daemon has its own.
type stores struct {
	mu      sync.Mutex
	dropped []string
}

func (*stores) Ready() error                 { return nil }
func (*stores) CA() ([]byte, error)          { return []byte("-----BEGIN CERTIFICATE-----\n"), nil }
func (*stores) Env(string) ([]string, error) { return []string{"GH_TOKEN=gho_placeholder"}, nil }
func (s *stores) Drop(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = append(s.dropped, name)
	return nil
}

// newEngine is an engine over the real sbx-local, with a state of its own and a workspace.
func newEngine(t *testing.T) (e *engine.Engine, workspace string) {
	t.Helper()
	t.Parallel()
	binary := enginetest.Binary(t)
	st := enginetest.State(t, binary)
	e = &engine.Engine{
		State: st, Self: binary, Rootless: os.Geteuid() != 0, Stores: &stores{},
		DaemonArgs: []string{"daemon", "start", "--auto"}, DaemonEnv: []string{enginetest.Env(st)},
	}
	enginetest.Require(t, e)
	workspace = filepath.Join(t.TempDir(), "project")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	return e, workspace
}

func create(t *testing.T, e *engine.Engine, name, workspace string) engine.Record {
	t.Helper()
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: name, Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func run(t *testing.T, e *engine.Engine, r engine.Record, spec engine.ExecSpec) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	spec.Stdout, spec.Stderr = &out, &errs
	code, err := e.Exec(t.Context(), r, spec)
	if err != nil {
		t.Fatalf("exec %q: %v", spec.Argv, err)
	}
	return out.String(), errs.String(), code
}

// cli is a process of the real command on the engine's state.
func cli(ctx context.Context, e *engine.Engine, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.Self, args...)
	cmd.Env = append(os.Environ(), enginetest.Env(e.State))
	return cmd
}

func sh(t *testing.T, e *engine.Engine, r engine.Record, script string) string {
	t.Helper()
	out, errs, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", script}})
	if code != 0 {
		t.Fatalf("%s: exit %d: %s%s", script, code, out, errs)
	}
	return strings.TrimSpace(out)
}

// One sandbox, and everything that may be asked of it.
func TestSandbox(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)

	t.Run("streams and exit codes", func(t *testing.T) {
		out, errs, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 42"}})
		if out != "out\n" || errs != "err\n" || code != 42 {
			t.Errorf("got %q, %q, %d", out, errs, code)
		}
		if _, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "kill -9 $$"}}); code != 137 {
			t.Errorf("killed by signal 9: exit %d, want 137", code)
		}
		if _, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "exit 128"}}); code != 128 {
			t.Errorf("exit %d, want the guest's own 128", code)
		}
	})
	t.Run("argv is verbatim", func(t *testing.T) {
		argv := []string{"printf", "%s|", "a b", "$HOME", "*", "-n", "--", "\"'\n"}
		if out, _, _ := run(t, e, r, engine.ExecSpec{Argv: argv}); out != "a b|$HOME|*|-n|--|\"'\n|" {
			t.Errorf("got %q", out)
		}
	})
	t.Run("stdin to its end, byte for byte", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef\x00\n"), 1<<16)
		out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"cat"}, Stdin: bytes.NewReader(data)})
		if out != string(data) {
			t.Errorf("%d bytes came back of %d", len(out), len(data))
		}
		if out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"cat"}}); out != "" {
			t.Errorf("no stdin: read %q", out)
		}
	})
	t.Run("output into a file goes after what is there", func(t *testing.T) { // engine.md, trap 2
		f, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		io.WriteString(f, "first\n")
		if _, err := e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"echo", "second"}, Stdout: f}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(f.Name())
		if err != nil || string(got) != "first\nsecond\n" {
			t.Errorf("file holds %q, %v", got, err)
		}
	})
	t.Run("what is left running does not hold the caller", func(t *testing.T) {
		start := time.Now()
		if out := sh(t, e, r, "sleep 60 & echo started"); out != "started" || time.Since(start) > 20*time.Second {
			t.Errorf("got %q after %v", out, time.Since(start))
		}
		sh(t, e, r, "pkill sleep")
	})
	t.Run("environment, user, folder", func(t *testing.T) {
		if got := sh(t, e, r, "pwd; id -un; echo $HOME $GH_TOKEN $SANDBOX_NAME $WORKSPACE_DIR"); got != workspace+"\nagent\n/home/agent gho_placeholder demo "+workspace {
			t.Errorf("got %q", got)
		}
		out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "id -u; pwd; echo $X $GH_TOKEN"}, User: "1234:5", Dir: "/tmp", Env: []string{"X=y", "GH_TOKEN=z"}})
		if out != "1234\n/tmp\ny z\n" {
			t.Errorf("got %q", out)
		}
		if out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "id -un; echo $HOME"}, User: "nobody"}); out != "nobody\n/nonexistent\n" {
			t.Errorf("got %q", out)
		}
		if _, err := e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"true"}, User: "stranger"}); err == nil {
			t.Error("an unknown user was accepted")
		}
		if got := sh(t, e, r, "sudo -n -E -u root X=1 sh -c 'echo $X $0' arg"); got != "1 arg" {
			t.Errorf("sudo: %q", got)
		}
	})
	t.Run("launch failures", func(t *testing.T) {
		for _, spec := range []engine.ExecSpec{{Argv: []string{"no-such-program"}}, {Argv: []string{"/no/such"}}, {Argv: []string{"true"}, Dir: "/no/such"}, {Argv: []string{"/etc/hosts"}}} {
			_, err := e.Exec(t.Context(), r, spec)
			if launch, ok := errors.AsType[*engine.LaunchError](err); !ok || !strings.HasPrefix(launch.Text, "OCI runtime exec failed: ") {
				t.Errorf("exec %q in %q: %v, want a *LaunchError", spec.Argv, spec.Dir, err)
			}
		}
	})
	t.Run("workspace both ways, as its owner", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(workspace, "in"), []byte("host"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, e, r, "cat in; echo guest > out; stat -c %U out"); got != "hostagent" && got != "host\nagent" {
			t.Errorf("got %q", got)
		}
		fi, err := os.Stat(filepath.Join(workspace, "out"))
		if err != nil {
			t.Fatal(err)
		}
		if uid := fi.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Getuid() {
			t.Errorf("file made inside belongs to %d, want %d", uid, os.Getuid())
		}
	})
	t.Run("no way out but the proxy", func(t *testing.T) {
		for _, script := range []string{
			"curl -sS -m 5 --noproxy '*' http://1.1.1.1/", "curl -sS -m 5 --noproxy '*' 'http://[2606:4700:4700::1111]/'",
			"curl -sS -m 5 --noproxy '*' http://169.254.169.254/latest/meta-data/", "getent hosts example.com", "curl -sS -m 5 --noproxy '*' http://example.com/",
			"exec 3<>/dev/udp/8.8.8.8/53 && echo x >&3",
		} {
			if out, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"bash", "-c", script}}); code == 0 {
				t.Errorf("%s: succeeded: %s", script, out)
			}
		}
		if got := sh(t, e, r, "getent hosts gateway.docker.internal host.docker.internal | cut -d' ' -f1 | sort -u"); got != "127.0.0.1" {
			t.Errorf("gateway.docker.internal is %q", got)
		}
		got := sh(t, e, r, "curl -s -m 10 -o /dev/null -w '%{http_code}' http://example.com/")
		if got != "403" {
			t.Errorf("through the proxy, without a policy: %s, want 403", got)
		}
	})
	t.Run("nothing of the host", func(t *testing.T) {
		for _, path := range []string{"/etc/machine-id", "/etc/ssh", "/etc/sudoers", "/root/.bashrc", "/var/log/dpkg.log", "/var/lib/systemd", e.State.Dir, e.State.DaemonSocket()} {
			if _, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"test", "-e", path}}); code == 0 {
				t.Errorf("%s is visible", path)
			}
		}
		if got := sh(t, e, r, "cut -d: -f1 /etc/passwd /etc/shadow | sort -u | tr '\n' ' '"); got != "agent nobody root" {
			t.Errorf("users: %q", got)
		}
		if got := sh(t, e, r, "ls -A /home/agent /root /run/sbx /.sbx | tr '\n' ' '"); got != "/.sbx: sbx-local  /home/agent: workspace  /root:  /run/sbx: ports.sock proxy.sock" {
			t.Errorf("folders: %q", got)
		}
		for _, script := range []string{"echo x >> /.sbx/sbx-local", "rm /run/sbx/proxy.sock", "mount -t tmpfs x /usr", "ls /proc/1/root/etc/machine-id"} {
			if out, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", script}}); code == 0 {
				t.Errorf("%s: succeeded: %s", script, out)
			}
		}
		if got := sh(t, e, r, "uname -r"); !strings.Contains(got, "gvisor") {
			t.Errorf("kernel is %q", got)
		}
	})
	t.Run("the host's programs do not change", func(t *testing.T) {
		name := "sbx-test-" + r.ID
		sh(t, e, r, "touch /usr/bin/"+name+" /usr/local/bin/"+name+" && rm /usr/bin/env && echo '#!/bin/sh' > /usr/bin/true && chmod 700 /usr && chown 1:1 /usr/bin/id")
		for _, path := range []string{"/usr/bin/" + name, "/usr/local/bin/" + name} {
			if _, err := os.Lstat(path); err == nil {
				t.Errorf("%s is on the host", path)
			}
		}
		for _, path := range []string{"/usr/bin/env", "/usr/bin/true", "/usr/bin/id", "/usr"} {
			fi, err := os.Stat(path)
			if err != nil || fi.Sys().(*syscall.Stat_t).Uid != 0 || fi.Mode().Perm() != 0o755 || fi.Size() < 100 {
				t.Errorf("%s on the host: %v, %v", path, fi, err)
			}
		}
		if data, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(data), e.State.Dir) {
			t.Errorf("the host sees a mount of the sandbox (%v)", err)
		}
	})
	t.Run("not even gVisor may write below", func(t *testing.T) {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, f := range files {
			args, _ := os.ReadFile(f)
			mounts, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "mountinfo"))
			if !strings.Contains(string(args), "runsc-gofer") || !strings.Contains(string(args), r.ID) {
				continue
			}
			for line := range strings.Lines(string(mounts)) {
				if col := strings.Fields(line); len(col) > 5 && col[4] != workspace && !strings.HasPrefix(col[4], "/proc") {
					seen++
					if !strings.HasPrefix(col[5], "ro,") {
						t.Errorf("%s is mounted %s", col[4], col[5])
					}
				}
			}
		}
		if seen < 3 { // the root, /usr, the proxy's folder
			t.Errorf("%d mounts seen", seen)
		}
	})
	t.Run("/tmp is on the disk", func(t *testing.T) {
		if got := sh(t, e, r, "stat -f -c %i / /tmp /home/agent | sort -u | wc -l"); got != "1" {
			t.Errorf("%s file systems, want 1", got)
		}
	})
	t.Run("R234 process 1 collects orphans", func(t *testing.T) { // whose parents never wait
		sh(t, e, r, "i=0; while [ $i -lt 100 ]; do (sleep 0.01 &); i=$((i+1)); done")
		enginetest.Eventually(t, "a zombie stays", func() bool {
			out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status"}})
			return out == ""
		})
	})
}

// Whatever ends the client of an exec ends everything that the exec started, whatever it did to hide.
func TestExecEndsWithItsClient(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	const script = "sleep 71 & (setsid sleep 72 &); (sleep 73 &); env -i sleep 74 & env -i setsid sleep 75 & nohup sleep 76 & sleep 77"
	sleeps := func() int {
		out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^7[1-7]$'"}})
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatalf("count: %q", out)
		}
		return n
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd := cli(t.Context(), e, "exec", "demo", "sh", "-c", script)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			enginetest.Eventually(t, "the programs do not start", func() bool { return sleeps() == 7 })
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			if want := 128 + int(sig); sig != syscall.SIGKILL && cmd.ProcessState.ExitCode() != want {
				t.Errorf("exit %d, want %d", cmd.ProcessState.ExitCode(), want)
			}
			enginetest.Eventually(t, "programs are left", func() bool { return sleeps() == 0 })
		})
	}
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := e.Exec(ctx, r, engine.ExecSpec{Argv: []string{"sh", "-c", script}})
			done <- err
		}()
		enginetest.Eventually(t, "the programs do not start", func() bool { return sleeps() == 7 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
		if n := sleeps(); n != 0 {
			t.Errorf("%d programs are left when Exec has returned", n)
		}
	})
}

// The disk outlives a stop, and a kill of the sandbox's process loses what came after it, and says so.
func TestStopStart(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	sh(t, e, r, "echo kept > /home/agent/a; rm /etc/inputrc 2>/dev/null; chmod 700 /home/agent; ln -s a /home/agent/l")
	for range 2 { // the second has nothing to do
		if _, err := e.Stop(t.Context(), "demo"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := e.Get("demo"); err != nil || got.Status != engine.Stopped || got.StoppedAt.IsZero() {
		t.Fatalf("after stop: %+v, %v", got, err)
	}
	if left := sandboxProcesses(e.State); len(left) > 0 {
		t.Errorf("a stopped sandbox has processes: %q", left)
	}
	if _, err := e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"true"}}); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("exec in a stopped sandbox: %v, want ErrNotRunning", err)
	}
	r, started, lost, err := e.Ensure(t.Context(), "demo")
	if err != nil || !started || lost {
		t.Fatalf("Ensure: started %v, lost %v, %v", started, lost, err)
	}
	if got := sh(t, e, r, "cat /home/agent/l; stat -c %a /home/agent; ls /etc/inputrc 2>&1 | grep -c such"); got != "kept\n700\n1" {
		t.Errorf("after start: %q", got)
	}
	sh(t, e, r, "echo lost > /home/agent/b")
	if err := syscall.Kill(r.Process, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	enginetest.Eventually(t, "the loss is not seen", func() bool {
		got, err := e.Get("demo")
		return err == nil && got.Lost()
	})
	r, started, lost, err = e.Ensure(t.Context(), "demo")
	if err != nil || !started || !lost {
		t.Fatalf("Ensure after a kill: started %v, lost %v, %v", started, lost, err)
	}
	if got := sh(t, e, r, "ls /home/agent"); got != "a\nl\nworkspace" {
		t.Errorf("after a kill: %q", got)
	}
}

// A published port leads to a program inside, over a kill of the daemon and a stop of the sandbox; taken back, it is closed.
func TestPublish(t *testing.T) {
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("no python3 here to listen in the sandbox")
	}
	e, workspace := newEngine(t)
	want, err := ports.Parse("8080")
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}, Ports: want})
	if err != nil {
		t.Fatal(err)
	}
	serve := func() {
		sh(t, e, r, `cat > /tmp/s.py <<'X'
import socketserver
class H(socketserver.BaseRequestHandler):
    def handle(self):
        while d := self.request.recv(65536): self.request.sendall(d.upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 8080), H).serve_forever()
X
nohup python3 /tmp/s.py >/dev/null 2>&1 &`)
	}
	serve()
	p := r.Ports[0]
	talk := func(p ports.Port) string {
		conn, err := net.Dial("tcp", p.Host())
		if err != nil {
			return ""
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(conn, "hello")
		conn.(*net.TCPConn).CloseWrite()
		data, _ := io.ReadAll(conn)
		return string(data)
	}
	answers := func(what string, p ports.Port) {
		t.Helper()
		enginetest.Eventually(t, what, func() bool { return talk(p) == "HELLO" })
	}
	answers("no answer", p)
	more, err := ports.Parse("8080/tcp")
	if err != nil {
		t.Fatal(err)
	}
	both, err := e.Publish(t.Context(), "demo", more)
	if err != nil || len(both) != 2 || both[0].HostPort != both[1].HostPort {
		t.Fatalf("both families: %v, %v", both, err)
	}
	answers("no answer on the second port", both[0])
	for _, taken := range []ports.Port{p, {HostIP: "127.0.0.1", HostPort: busyPort(t), SandboxPort: 1, Protocol: "tcp4"}} {
		if _, err := e.Publish(t.Context(), "demo", []ports.Port{taken}); !isPortError(err) {
			t.Errorf("%s: %v, want a *PortError", taken, err)
		}
	}
	if got, err := e.Get("demo"); err != nil || len(got.Ports) != 3 {
		t.Errorf("recorded %v, %v; want three", got.Ports, err)
	}
	h, err := e.DaemonHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	enginetest.Eventually(t, "the daemon lives", func() bool { return !daemonRuns(t, e) })
	if err := e.EnsureDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers("no answer after a kill of the daemon", p)
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	if got := talk(p); got != "" {
		t.Errorf("a stopped sandbox answers %q", got)
	}
	if r, _, _, err = e.Ensure(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	serve()
	answers("no answer after a stop", p)
	if gone, err := e.Unpublish(t.Context(), "demo", func(q ports.Port) bool { return q == p }); err != nil || len(gone) != 1 {
		t.Errorf("unpublish: %v, %v", gone, err)
	}
	if got := talk(p); got != "" {
		t.Errorf("a port that was taken back answers %q", got)
	}
}

func isPortError(err error) bool {
	_, ok := errors.AsType[*engine.PortError](err)
	return ok
}

// busyPort is a port that the test itself holds.
func busyPort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().(*net.TCPAddr).Port
}

// With a grace period, a sandbox without a session is stopped, one that is kept alive or in use is not; whoever comes just
// then finds it again.
func TestAutoStop(t *testing.T) {
	e, workspace := newEngine(t)
	for _, name := range []string{"idle", "used", "kept"} {
		create(t, e, name, workspace)
	}
	if err := e.KeepAlive(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	used, err := e.Get("used")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := e.Exec(ctx, used, engine.ExecSpec{Argv: []string{"sleep", "600"}})
		done <- err
	}()
	enginetest.Eventually(t, "the exec does not register", func() bool {
		h, err := e.DaemonHealth(t.Context())
		return err == nil && h.SessionsOf[used.ID] == 1
	})
	if out, err := cli(t.Context(), e, "settings", "set", "autostop.graceSeconds", "1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stopped := func(name string) bool {
		r, err := e.Get(name)
		return err == nil && r.Status == engine.Stopped
	}
	enginetest.Eventually(t, "the idle one runs", func() bool { return stopped("idle") })
	if stopped("used") || stopped("kept") {
		t.Error("one that is in use or kept alive was stopped")
	}
	cancel()
	<-done
	enginetest.Eventually(t, "it runs without a session", func() bool { return stopped("used") })
	if stopped("kept") {
		t.Error("one that is kept alive was stopped")
	}
	for _, gap := range []time.Duration{0, 1000, 1200} { // about when it is stopped
		last := time.Now()
		enginetest.Eventually(t, "time passes", func() bool { return time.Since(last) > gap*time.Millisecond })
		out, err := cli(t.Context(), e, "exec", "idle", "echo", "here").Output()
		if err != nil || string(out) != "here\n" {
			t.Fatalf("exec: %q, %v", out, err)
		}
	}
	log, err := os.ReadFile(e.State.DaemonLog())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"msg":"session disconnected, deferring auto-stop"`, `"runtime":"used","delay":1000000000`, `"msg":"auto-stop grace period expired, stopping runtime"`, `"msg":"auto-stopped runtime after last session disconnected"`} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

// Packages can be installed as on a machine of one's own, and stay over a stop.
func TestPackages(t *testing.T) {
	if _, err := os.Stat("/var/lib/dpkg/status"); err != nil {
		t.Skip("this host's packages are not dpkg's")
	}
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	sh(t, e, r, `set -e; mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin /tmp/p/etc; cd /tmp
printf 'Package: greet\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDepends: dpkg\nDescription: x\n' > p/DEBIAN/control
printf '#!/bin/sh\nset -e\necho ran > /var/lib/greet\n' > p/DEBIAN/postinst; chmod 755 p/DEBIAN/postinst
printf '#!/bin/sh\necho hello\n' > p/usr/bin/greet; chmod 755 p/usr/bin/greet; dpkg-deb -b p greet.deb
sudo dpkg -i greet.deb`)
	sh(t, e, r, "touch /opt/mark; dpkg -s greet | grep -q 'ok installed' && apt-get check >/dev/null && [ $(greet) = hello ]")
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	r, _, _, err := e.Ensure(t.Context(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, r, "greet; cat /var/lib/greet; ls /opt/mark; dpkg -s greet | grep -c 'ok installed'; sudo dpkg -r greet >/dev/null; test -e /usr/bin/greet || echo gone"); got != "hello\nran\n/opt/mark\n1\ngone" {
		t.Errorf("after a stop: %q", got)
	}
}

// apt-get installs from a package source that policy allows, by way of the proxy, and from no other.
func TestAptGet(t *testing.T) {
	if _, err := os.Stat("/usr/bin/apt-get"); err != nil {
		t.Skip("this host has no apt-get")
	}
	e, workspace := newEngine(t)
	srv := httptest.NewServer(http.FileServer(http.Dir(workspace)))
	t.Cleanup(srv.Close)
	for _, args := range [][]string{
		{"policy", "init", "deny-all"}, {"policy", "allow", "network", "packages.example.com"},
		{"create", "-q", "shell", "--name", "demo", "--resolve", "packages.example.com=" + srv.Listener.Addr().String(), workspace},
	} {
		if out, err := cli(t.Context(), e, args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	r, err := e.Get("demo")
	if err != nil {
		t.Fatal(err)
	}
	got := sh(t, e, r, `set -e; mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin
printf 'Package: greet\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDescription: x\n' > /tmp/p/DEBIAN/control
printf '#!/bin/sh\necho hello\n' > /tmp/p/usr/bin/greet; chmod 755 /tmp/p/usr/bin/greet; dpkg-deb -b /tmp/p greet.deb >/dev/null
{ cat /tmp/p/DEBIAN/control; echo "Filename: ./greet.deb"; echo "Size: $(stat -c %s greet.deb)"; echo "SHA256: $(sha256sum greet.deb | cut -d' ' -f1)"; } > Packages
rm -f /etc/apt/sources.list.d/*; echo 'deb [trusted=yes allow-insecure=yes] http://packages.example.com ./' > /etc/apt/sources.list
sudo apt-get update >/tmp/log 2>&1 && sudo DEBIAN_FRONTEND=noninteractive apt-get install -y greet >>/tmp/log 2>&1 || cat /tmp/log; greet
echo 'deb [trusted=yes allow-insecure=yes] http://other.example.com ./' > /etc/apt/sources.list
sudo apt-get update 2>&1 | grep -c '403' | sed 's/^[1-9].*/blocked/'`)
	if got != "hello\nblocked" {
		t.Errorf("got %q", got)
	}
}

func sandboxProcesses(st *engine.State) []string {
	var left []string
	for _, p := range enginetest.Processes(st) {
		if strings.Contains(p, ".runsc") {
			left = append(left, p)
		}
	}
	return left
}

// Nothing is left of a sandbox that was removed: no process, file, socket, group or daemon.
func TestRemoveLeavesNothing(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	sh(t, e, r, "mkdir -p a/b && chmod 500 a && chmod 000 a/b; mkdir /home/agent/x; chmod 000 /home/agent/x")
	if err := e.Remove(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	if err := e.Remove(t.Context(), "demo"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("second removal: %v, want ErrNotFound", err)
	}
	if got := e.Stores.(*stores).dropped; len(got) != 1 || got[0] != "demo" {
		t.Errorf("dropped rules and secrets of %q", got)
	}
	enginetest.Eventually(t, "the daemon stays", func() bool { return len(enginetest.Processes(e.State)) == 0 && !daemonRuns(t, e) })
	enginetest.Eventually(t, "the daemon's folder stays", func() bool { // it goes after the daemon has let go of its lock
		_, err := os.Stat(e.State.Runtime)
		return errors.Is(err, os.ErrNotExist)
	})
	for _, pattern := range []string{filepath.Join(e.State.Dir, "sandboxes", "*"), "/sys/fs/cgroup/*" + r.ID, "/sys/fs/cgroup/*/*" + r.ID} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
	if data, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(data), e.State.Runtime) {
		t.Errorf("a mount is left (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(workspace, "a")); err != nil {
		t.Errorf("the workspace lost something: %v", err)
	}
	os.Chmod(filepath.Join(workspace, "a"), 0o700)
}

// Where the daemon was stopped before the sandbox was removed, nothing is left either.
func TestRemoveWithoutDaemon(t *testing.T) {
	e, workspace := newEngine(t)
	create(t, e, "demo", workspace)
	if err := errors.Join(e.DaemonShutdown(t.Context()), e.Remove(t.Context(), "demo")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(e.State.Runtime); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the runtime folder is left: %v", err)
	}
}

func daemonRuns(t *testing.T, e *engine.Engine) bool {
	_, err := e.DaemonHealth(t.Context())
	return err == nil
}

// Of several creates with one name one wins; what a dead create left is cleared by the next.
func TestCreateRaces(t *testing.T) {
	e, workspace := newEngine(t)
	const n = 4
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}})
			errs <- err
		}()
	}
	won := 0
	for range n {
		switch err := <-errs; {
		case err == nil:
			won++
		case !errors.Is(err, engine.ErrExists):
			t.Errorf("create: %v, want ErrExists", err)
		}
	}
	if won != 1 {
		t.Errorf("%d creates won, want 1", won)
	}
	if left := sandboxProcesses(e.State); len(left) == 0 {
		t.Error("the sandbox does not run")
	}
}

// A create that fails or is killed leaves nothing, or something that the next command clears.
func TestCreateInterrupted(t *testing.T) {
	e, workspace := newEngine(t)
	spec := engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}}
	empty := func() bool {
		left, _ := filepath.Glob(filepath.Join(e.State.Dir, "sandboxes", "*"))
		return len(left) == 0 && len(sandboxProcesses(e.State)) == 0
	}
	t.Run("error in the middle", func(t *testing.T) {
		failed := spec
		failed.Prepare = func(context.Context, engine.Record) error { return errors.New("no rule") }
		if _, err := e.Create(t.Context(), failed); err == nil || !empty() {
			t.Errorf("error %v, nothing left: %v", err, empty())
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		for _, after := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			_, err := e.Create(ctx, spec)
			cancel()
			if err == nil {
				err = e.Remove(t.Context(), "demo")
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v: %v, want context.DeadlineExceeded", after, err)
			}
			if !empty() {
				t.Fatalf("after %v something is left (%v)", after, err)
			}
		}
	})
	t.Run("killed", func(t *testing.T) {
		for _, after := range []time.Duration{30 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond} {
			if out, err := cli(t.Context(), e, "policy", "init", "deny-all").CombinedOutput(); err != nil && !strings.Contains(string(out), "already") {
				t.Fatalf("%v: %s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), after) // ends in SIGKILL
			cli(ctx, e, "create", "shell", "--name", "demo", workspace).Run()
			cancel()
			r, err := e.Create(t.Context(), spec)
			if errors.Is(err, engine.ErrExists) { // it had finished
				r, err = e.Get("demo")
			}
			if err != nil {
				t.Fatalf("create after a kill at %v: %v", after, err)
			}
			sh(t, e, r, "true")
			if err := e.Remove(t.Context(), "demo"); err != nil {
				t.Fatal(err)
			}
			if !empty() {
				t.Fatalf("killed after %v: something is left", after)
			}
		}
	})
}

// The daemon may die in any way: the next command starts another, and the sandbox's way out is back.
func TestDaemonDies(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	code := func() string { return sh(t, e, r, "curl -s -m 10 -o /dev/null -w '%{http_code}' http://example.com/") }
	if got := code(); got != "403" {
		t.Fatalf("before: %s, want 403", got)
	}
	h, err := e.DaemonHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	enginetest.Eventually(t, "the daemon lives", func() bool { return !daemonRuns(t, e) })
	if got := code(); got != "403" {
		t.Errorf("after a kill: %s, want 403", got)
	}
	if err := e.DaemonShutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := code(); got != "403" {
		t.Errorf("after a stop: %s, want 403", got)
	}
	d := &engine.Daemon{Engine: e}
	if err := d.Run(t.Context(), nil); !errors.Is(err, engine.ErrDaemonRuns) {
		t.Errorf("a second daemon: %v, want ErrDaemonRuns", err)
	}
}

// A daemon that dies under a running exec is brought back by the exec's client: the program's way out is there again, and
// the loss of the client still ends the program.
func TestDaemonDiesUnderExec(t *testing.T) {
	e, workspace := newEngine(t)
	var hits atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	t.Cleanup(srv.Close)
	for _, args := range [][]string{
		{"policy", "init", "deny-all"}, {"policy", "allow", "network", "api.example.com"},
		{"create", "-q", "shell", "--name", "demo", "--resolve", "api.example.com=" + srv.Listener.Addr().String(), workspace},
	} {
		if out, err := cli(t.Context(), e, args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	client := cli(t.Context(), e, "exec", "demo", "sh", "-c", "while :; do curl -s -m 5 http://api.example.com/; sleep 0.02; done")
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	more := func() {
		t.Helper()
		start, from := time.Now(), hits.Load()
		enginetest.Eventually(t, "no request comes out", func() bool { return hits.Load() > from+1 })
		t.Logf("requests after %v", time.Since(start).Round(time.Millisecond))
	}
	more()
	for range 2 {
		h, err := e.DaemonHealth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		enginetest.Eventually(t, "the daemon lives", func() bool {
			now, err := e.DaemonHealth(t.Context())
			return err != nil || now.PID != h.PID
		})
		more()
	}
	t.Run("a stop is obeyed, and the next daemon knows the exec", func(t *testing.T) {
		if err := e.DaemonShutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if daemonRuns(t, e) {
			t.Error("the daemon runs after it was told to stop")
		}
		if err := e.EnsureDaemon(t.Context()); err != nil {
			t.Fatal(err)
		}
		more()
		enginetest.Eventually(t, "the exec does not register", func() bool {
			h, err := e.DaemonHealth(t.Context())
			return err == nil && len(h.SessionsOf) == 1
		})
	})
	if err := client.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	client.Wait()
	r, err := e.Get("demo")
	if err != nil {
		t.Fatal(err)
	}
	enginetest.Eventually(t, "the program outlives its client", func() bool {
		out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | grep -c '[a]pi.example.com'"}})
		return strings.TrimSpace(out) == "0"
	})
}

// When client and daemon of an exec are killed together, the next daemon ends what the exec started, and nothing else.
func TestExecOrphan(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	client := cli(t.Context(), e, "exec", "demo", "sleep", "71")
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := e.Exec(ctx, r, engine.ExecSpec{Argv: []string{"sleep", "72"}})
		done <- err
	}()
	defer func() {
		cancel()
		<-done
	}()
	sleeps := func() string {
		out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep '^7[12]$' | sort | tr '\\n' ' '"}})
		return out
	}
	enginetest.Eventually(t, "the programs do not start", func() bool { return sleeps() == "71 72 " })
	h, err := e.DaemonHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Kill(h.PID, syscall.SIGKILL), client.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	client.Wait()
	deadline := time.Now().Add(30 * time.Second) // the clients of others get ten to register
	for sleeps() != "72 " {
		if time.Now().After(deadline) {
			t.Fatalf("running: %q, want the one with a client", sleeps())
		}
	}
}

// Many sandboxes at once share one daemon, and the daemon leaves after the last; a create that comes then is served.
func TestManySandboxes(t *testing.T) {
	e, workspace := newEngine(t)
	for range 2 {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				name := "box" + strconv.Itoa(i)
				r, err := e.Create(t.Context(), engine.CreateSpec{Name: name, Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}})
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				var out bytes.Buffer
				if _, err := e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"hostname"}, Stdout: &out}); err != nil || out.String() != name+"\n" {
					t.Errorf("%s: %q, %v", name, out.String(), err)
				}
				if err := e.Remove(t.Context(), name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
	}
}

func TestCopy(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	host := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(host, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("file", "text", 0o640)
	write("dir/a", "A", 0o755)
	write("dir/sub/b", "B", 0o600)
	if err := errors.Join(os.Symlink("a", filepath.Join(host, "dir/link")), os.Symlink("file", filepath.Join(host, "tofile"))); err != nil {
		t.Fatal(err)
	}
	in := func(src, dst string, follow bool) error {
		_, err := e.CopyIn(t.Context(), r, src, dst, follow)
		return err
	}
	out := func(src, dst string, follow bool) error {
		_, err := e.CopyOut(t.Context(), r, src, dst, follow)
		return err
	}

	for _, step := range []struct {
		src, dst string
		follow   bool
		check    string // a script that must succeed inside
	}{
		{"file", "/tmp/f", false, "[ $(cat /tmp/f) = text ] && [ $(stat -c %a:%U /tmp/f) = 640:agent ]"},
		{"file", "/tmp", false, "[ $(cat /tmp/file) = text ]"},
		{"file", "/tmp/", false, "true"},
		{"dir", "/tmp/new", false, "[ $(cat /tmp/new/sub/b) = B ] && [ $(readlink /tmp/new/link) = a ] && [ $(stat -c %a /tmp/new/a) = 755 ]"},
		{"dir", "/tmp/new", false, "[ $(cat /tmp/new/dir/a) = A ]"},
		{"dir/.", "/tmp/new", false, "[ $(cat /tmp/new/sub/b) = B ]"},
		{"tofile", "/tmp/l", false, "[ $(readlink /tmp/l) = file ]"},
		{"tofile", "/tmp/l2", true, "[ ! -L /tmp/l2 ] && [ $(cat /tmp/l2) = text ]"},
	} {
		src := host + "/" + step.src
		if err := in(src, step.dst, step.follow); err != nil {
			t.Errorf("cp %s demo:%s: %v", step.src, step.dst, err)
			continue
		}
		sh(t, e, r, step.check)
	}
	for src, dst := range map[string]string{host + "/missing": "/tmp/x", host + "/file": "/no/such/x", host + "/file/": "/tmp/y", host + "/dir": "/tmp/f"} {
		if err := in(src, dst, false); err == nil {
			t.Errorf("cp %s demo:%s succeeded", src, dst)
		}
	}

	back := t.TempDir()
	if err := errors.Join(out("/tmp/f", back+"/g", false), out("/tmp/new", back, false), out("/tmp/new/.", back+"/all", false), out("/tmp/l2", back+"/z", true)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"g": "text", "new/sub/b": "B", "all/a": "A", "z": "text"} {
		if got, err := os.ReadFile(filepath.Join(back, path)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", path, got, err, want)
		}
	}
	if err := out("/no/such", back+"/no", false); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("cp of nothing: %v, want an error that names it", err)
	}
	if _, err := os.Lstat(back + "/no"); err == nil {
		t.Error("a failed copy left something")
	}

	t.Run("pipes, sockets and devices", func(t *testing.T) {
		odd := filepath.Join(t.TempDir(), "odd")
		if err := errors.Join(os.Mkdir(odd, 0o755), os.WriteFile(odd+"/a", []byte("A"), 0o644), syscall.Mkfifo(odd+"/pipe", 0o644)); err != nil {
			t.Fatal(err)
		}
		const want = `left out, for they are neither files, folders nor links: ["pipe"]`
		if left, err := e.CopyIn(t.Context(), r, odd, "/tmp", false); err != nil || left != want {
			t.Errorf("in: %q, %v; want %q", left, err, want)
		}
		sh(t, e, r, "cd /tmp/odd && [ $(cat a) = A ] && [ ! -e pipe ] && mkfifo pipe")
		if left, err := e.CopyOut(t.Context(), r, "/tmp/odd", back, false); err != nil || left != want {
			t.Errorf("out: %q, %v; want %q", left, err, want)
		}
		for _, err := range []error{in(odd+"/pipe", "/tmp/p", false), out("/tmp/odd/pipe", back+"/p", false), out("/dev/null", back+"/p", false)} {
			if err == nil || !strings.Contains(err.Error(), "only files, folders and links can be copied") {
				t.Errorf("alone: %v", err)
			}
		}
	})

	t.Run("links do not lead out", func(t *testing.T) { // as CVE-2026-17106 in sbx before 0.38
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("host's"), 0o600); err != nil {
			t.Fatal(err)
		}
		sh(t, e, r, "mkdir -p /tmp/evil && ln -s "+filepath.Dir(secret)+" /tmp/evil/d && ln -s "+secret+" /tmp/evil/f && ln -s / /tmp/evil/r")
		dst := t.TempDir()
		if err := out("/tmp/evil", dst, false); err != nil {
			t.Fatal(err)
		}
		sh(t, e, r, "cd /tmp/evil && rm d && mkdir d && echo owned > d/secret")
		if err := out("/tmp/evil", dst, false); err == nil {
			t.Error("a folder was written through a link")
		}
		if err := out("/tmp/evil/d/secret", filepath.Join(dst, "evil", "f"), false); err == nil {
			t.Log("a file replaced the link, not what it leads to")
		}
		if got, err := os.ReadFile(secret); err != nil || string(got) != "host's" {
			t.Errorf("the host's file is %q, %v", got, err)
		}
		if err := out("/proc/1/root"+secret, dst, true); err == nil {
			t.Error("a file of the host was copied through /proc")
		}
	})
}

// A sandbox sees its workspaces only, at their own paths, read only where that was asked for.
func TestWorkspaces(t *testing.T) {
	e, workspace := newEngine(t)
	docs := filepath.Join(t.TempDir(), "docs")
	secret := filepath.Join(t.TempDir(), "secret")
	for _, d := range []string{docs, secret} {
		if err := errors.Join(os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "f"), []byte("x"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(secret, "f"), filepath.Join(workspace, "out")); err != nil {
		t.Fatal(err)
	}
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}, {Path: docs, ReadOnly: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, r, "cat "+docs+"/f"); got != "x" {
		t.Errorf("docs: %q", got)
	}
	for _, script := range []string{"echo y > " + docs + "/f", "rm " + docs + "/f", "touch " + docs + "/n", "cat out", "cat " + secret + "/f", "ls " + filepath.Join(workspace, "..", "..", "..") + "/*/secret"} {
		if out, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", script}}); code == 0 {
			t.Errorf("%s: succeeded: %s", script, out)
		}
	}
	bare, err := e.Create(t.Context(), engine.CreateSpec{Name: "bare", Agent: "shell"})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, bare, "pwd; echo $WORKSPACE_DIR"); got != "/home/agent/workspace\n/home/agent/workspace" {
		t.Errorf("without a workspace: %q", got)
	}
}

// The helper refuses calls that the engine would not make.
func TestGuestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"init", "x"}, {"put", "a"}, {"kill", "x", "y"}, {"nothing"}} {
		var errs bytes.Buffer
		if code := guest.Main(args, strings.NewReader(""), io.Discard, &errs); code != 1 || errs.Len() == 0 {
			t.Errorf("guest %q: exit %d, %q", args, code, errs.String())
		}
	}
}

// Where control groups can be had, the limits hold; where not, the record says so.
func TestLimits(t *testing.T) {
	e, workspace := newEngine(t)
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", MemoryMiB: 512, Workspaces: []engine.Workspace{{Path: workspace}}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Limits != "cgroup" {
		if !strings.HasPrefix(r.Limits, "none: ") {
			t.Errorf("limits %q, want a reason", r.Limits)
		}
		t.Skipf("limits cannot be had here: %s", r.Limits)
	}
	if code, err := e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"sh", "-c", "head -c 900M /dev/zero | tail -c 800M >/dev/null"}}); err == nil && code == 0 {
		t.Error("800 MiB of memory were had within 512")
	}

	if out, err := cli(t.Context(), e, "settings", "set", "limits.pids", "96").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r = create(t, e, "threads", workspace)
	groups, _ := filepath.Glob("/sys/fs/cgroup/*" + r.ID) // version 2
	if len(groups) == 0 {
		groups, _ = filepath.Glob("/sys/fs/cgroup/pids/*" + r.ID)
	}
	if len(groups) != 1 {
		t.Fatalf("control groups %q", groups)
	}
	number := func(file string) int {
		data, err := os.ReadFile(filepath.Join(groups[0], file))
		if err != nil {
			return 0 // the sandbox has ended at its limit
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(data)))
		return n
	}
	if n := number("pids.max"); n != 96 {
		t.Errorf("the kernel's limit is %d, want 96", n)
	}
	var out bytes.Buffer // the sandbox may end at the limit, and the exec with it
	_, err = e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"sh", "-c", "i=0; while [ $i -lt 300 ]; do sleep 60 & i=$((i+1)); done; echo all"}, Stdout: &out})
	if n := number("pids.current"); n > 96 {
		t.Errorf("%d threads on the host, of 96", n)
	}
	if err == nil && out.String() == "all\n" {
		t.Error("300 processes were had with 96 threads")
	}
	if _, _, _, err := e.Ensure(t.Context(), "threads"); err != nil { // whatever became of it
		t.Errorf("after its limit: %v", err)
	}
}

// What a sandbox may hold outside its workspaces is bounded.
func TestDiskLimit(t *testing.T) {
	e, workspace := newEngine(t)
	if out, err := cli(t.Context(), e, "settings", "set", "limits.diskGiB", "1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := create(t, e, "demo", workspace)
	if got := sh(t, e, r, "echo $(( $(stat -f -c '%b * %S' / ) >> 20 ))"); got != "1024" {
		t.Errorf("the disk has %s MiB, want 1024", got)
	}
	if out, errs, code := run(t, e, r, engine.ExecSpec{Argv: []string{"fallocate", "-l", "1100M", "/usr/b"}}); code == 0 {
		t.Errorf("1.1 GB were had of 1 GiB: %s%s", out, errs)
	}
	// Holes cost a sandbox nothing, and the host the zeros that are written in their place.
	sh(t, e, r, "rm -f /usr/b; truncate -s 900T /home/agent/hole")
	if _, err := e.Stop(t.Context(), "demo"); !errors.Is(err, engine.ErrDisk) {
		t.Errorf("stop with a hole of 900 TB: %v, want ErrDisk", err)
	}
	if left, err := filepath.Glob(filepath.Join(e.State.SandboxDir("demo"), "*.new")); err != nil || left != nil {
		t.Errorf("left behind: %q, %v", left, err)
	}
	enginetest.Eventually(t, "it does not go on", func() bool { // its kernel makes room for the zeros first, and may end by that
		r, _, _, err := e.Ensure(t.Context(), "demo")
		if err != nil {
			return false
		}
		_, err = e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"rm", "-f", "/home/agent/hole"}})
		return err == nil
	})
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Errorf("stop without the hole: %v", err)
	}
}

// The daemon and the sandbox outlive the command that started them, and hold nothing that its caller had open.
func TestNothingInherited(t *testing.T) { // engine.md, trap 3
	e, workspace := newEngine(t)
	if out, err := cli(t.Context(), e, "policy", "init", "deny-all").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := cli(t.Context(), e, "create", "shell", "--name", "demo", workspace)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = nil, write, write, []*os.File{write}
	err = cmd.Run()
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	read.SetReadDeadline(time.Now().Add(20 * time.Second))
	if out, err := io.ReadAll(read); err != nil || !strings.Contains(string(out), "Created sandbox demo") {
		t.Errorf("reading to the end: %q, %v", out, err)
	}
}
