package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
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
)

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

// A daemon that cannot start is not waited for, and its reason is told.
func TestDaemonThatCannotStart(t *testing.T) {
	e, _ := newEngine(t)
	ca := filepath.Join(e.State.CADir(), "proxy-ca.pem")
	if err := errors.Join(os.MkdirAll(filepath.Dir(ca), 0o700), os.WriteFile(ca, []byte("nonsense"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := e.Session(t.Context())
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, engine.ErrDaemon) || !strings.Contains(err.Error(), "could not start (") || !strings.Contains(err.Error(), "proxy-ca.pem") {
		t.Errorf("error %v", err)
	}
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
