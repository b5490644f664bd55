package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// A stop that is killed in the middle loses nothing: either the sandbox runs on, or it comes back with its disk whole.
func TestStopKilled(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	written := 0
	again := func(what string) {
		t.Helper()
		got, _, lost, err := e.Ensure(t.Context(), "demo")
		if err != nil || lost {
			t.Fatalf("%s: lost %v, %v", what, lost, err)
		}
		r = got
		if n := sh(t, e, r, "ls /home/agent | grep -c note"); n != fmt.Sprint(written) {
			t.Fatalf("%s: %s files of %d", what, n, written)
		}
	}
	for _, after := range []time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond, 150 * time.Millisecond} {
		written++
		sh(t, e, r, fmt.Sprintf("head -c 4M /dev/urandom > /home/agent/note%d", written))
		ctx, cancel := context.WithTimeout(t.Context(), after) // ends in SIGKILL
		cli(ctx, e, "stop", "demo").Run()
		cancel()
		again("killed after " + after.String())
	}
	t.Run("between the disk and the end", func(t *testing.T) {
		written++
		sh(t, e, r, fmt.Sprintf("touch /home/agent/note%d", written))
		if lost, err := e.Stop(t.Context(), "demo"); err != nil || lost {
			t.Fatal(lost, err)
		}
		again("stopped")
		record := filepath.Join(e.State.SandboxDir("demo"), "record.json")
		data, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(data), `"status": "running"`, `"status": "stopping"`, 1)
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := e.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := e.Get("demo"); err != nil || got.Status != engine.Stopped || len(sandboxProcesses(e.State)) > 0 {
			t.Errorf("%+v, %v; processes %q", got, err, sandboxProcesses(e.State))
		}
		again("recovered")
	})
	t.Run("a lost one is told by the stop", func(t *testing.T) {
		if err := syscall.Kill(r.Process, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		enginetest.Eventually(t, "the loss is not seen", func() bool {
			got, err := e.Get("demo")
			return err == nil && got.Lost()
		})
		if lost, err := e.Stop(t.Context(), "demo"); err != nil || !lost {
			t.Errorf("lost %v, %v", lost, err)
		}
	})
}

// A copy that is killed in the middle leaves the destination as it was, nothing that runs, and the next one works.
func TestCopyKilled(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	host := t.TempDir()
	big := filepath.Join(host, "big")
	f, err := os.Create(big)
	if err == nil {
		err = errors.Join(f.Truncate(1<<30), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	back := filepath.Join(host, "back")
	if err := os.WriteFile(back, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh(t, e, r, "echo old > /home/agent/big; truncate -s 1G /tmp/src")
	for _, tt := range []struct {
		args []string
		seen func() bool // that it is in the middle
	}{
		{[]string{"cp", big, "demo:/home/agent/big"}, func() bool {
			out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "ls /home/agent/.sbx-cp-*"}})
			return out != ""
		}},
		{[]string{"cp", "demo:/tmp/src", back}, func() bool {
			found, _ := filepath.Glob(filepath.Join(host, ".sbx-cp-*"))
			return len(found) > 0
		}},
	} {
		cmd := cli(t.Context(), e, tt.args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		enginetest.Eventually(t, "the copy does not begin", tt.seen)
		cmd.Process.Kill()
		cmd.Wait()
	}
	if data, err := os.ReadFile(back); err != nil || string(data) != "old" {
		t.Errorf("on the host: %d bytes, %v; want the old file", len(data), err)
	}
	if got := sh(t, e, r, "cat /home/agent/big"); got != "old" {
		t.Errorf("inside: %d bytes, want the old file", len(got))
	}
	enginetest.Eventually(t, "a helper is left", func() bool {
		out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -cE '_guest (get|put)'; ls -A /home/agent | grep -c sbx-cp"}})
		return out == "0\n0\n"
	})
	if err := os.Truncate(big, 1000); err != nil {
		t.Fatal(err)
	}
	_, errIn := e.CopyIn(t.Context(), r, big, "/home/agent/big", false)
	_, errOut := e.CopyOut(t.Context(), r, "/home/agent/big", back, false)
	if err := errors.Join(errIn, errOut); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(back); err != nil || fi.Size() != 1000 {
		t.Errorf("the next copy: %v, %v", fi, err)
	}
}

// A sandbox whose file server is killed is lost as a whole, and told.
func TestGoferKilled(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	for _, f := range files {
		args, _ := os.ReadFile(f)
		if strings.Contains(string(args), "runsc-gofer") && strings.Contains(string(args), r.ID) {
			var pid int
			fmt.Sscanf(f, "/proc/%d/", &pid)
			killed = syscall.Kill(pid, syscall.SIGKILL) == nil
		}
	}
	if !killed {
		t.Fatal("no file server was found")
	}
	enginetest.Eventually(t, "the loss is not seen", func() bool {
		got, err := e.Get("demo")
		return err == nil && got.Lost()
	})
	r, _, lost, err := e.Ensure(t.Context(), "demo")
	if err != nil || !lost {
		t.Fatalf("lost %v, %v", lost, err)
	}
	sh(t, e, r, "true")
}

// A daemon that dies while a sandbox is made is replaced, and the sandbox has its way out.
func TestDaemonDiesInCreate(t *testing.T) {
	e, workspace := newEngine(t)
	r, err := e.Create(t.Context(), engine.CreateSpec{
		Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}},
		Prepare: func(ctx context.Context, _ engine.Record) error {
			h, err := e.DaemonHealth(ctx)
			if err != nil {
				return err
			}
			if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
				return err
			}
			enginetest.Eventually(t, "the daemon lives", func() bool { return !daemonRuns(t, e) })
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, r, "curl -s -m 10 -o /dev/null -w '%{http_code}' http://example.com/"); got != "403" {
		t.Errorf("way out: %s, want 403", got)
	}
}

// A runtime folder that is removed, as at the end of a login session, takes what runs along: the daemon ends, the next
// command says what is lost, and all is as before.
func TestRuntimeRemoved(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	create(t, e, "other", workspace)
	h, err := e.DaemonHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(e.State.Runtime); err != nil {
		t.Fatal(err)
	}
	enginetest.Eventually(t, "the daemon stays", func() bool { return syscall.Kill(h.PID, 0) != nil })
	r, _, lost, err := e.Ensure(t.Context(), "demo")
	if err != nil || !lost {
		t.Fatalf("lost %v, %v", lost, err)
	}
	if got := sh(t, e, r, "curl -s -m 10 -o /dev/null -w '%{http_code}' http://example.com/"); got != "403" {
		t.Errorf("way out: %s, want 403", got)
	}
	if lost, err := e.Stop(t.Context(), "other"); err != nil || !lost {
		t.Errorf("stop: lost %v, %v", lost, err)
	}
}

// A daemon without descriptors, and one with hundreds of connections that say nothing, serves again when they are gone.
func TestDaemonExhausted(t *testing.T) {
	e, workspace := newEngine(t)
	if err := e.EnsureDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.DaemonShutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n 48; exec "$0" daemon start`, e.Self)
	daemon.Env = append(os.Environ(), enginetest.Env(e.State))
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		daemon.Process.Signal(syscall.SIGTERM)
		daemon.Wait()
	}()
	enginetest.Eventually(t, "the daemon does not answer", func() bool { return daemonRuns(t, e) })
	r := create(t, e, "demo", workspace)
	code := func() string {
		out, _, _ := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "curl -s -m 5 -o /dev/null -w '%{http_code}' http://example.com/"}})
		return out
	}
	for _, socket := range []string{filepath.Join(e.State.ProxyDir(r.ID), "proxy.sock"), e.State.DaemonSocket()} {
		var conns []net.Conn
		for i := range 300 {
			conn, err := net.DialTimeout("unix", socket, time.Second)
			if err != nil {
				continue // its queue is full: that is what a bound is for
			}
			conns = append(conns, conn)
			io.WriteString(conn, "GET http://a.te")
			if i%2 == 0 {
				conn.(*net.UnixConn).CloseWrite()
			}
		}
		if len(conns) < 48 {
			t.Errorf("%d connections were had", len(conns))
		}
		for _, c := range conns {
			c.Close()
		}
		enginetest.Eventually(t, "it does not recover", func() bool { return code() == "403" })
	}
	if h, err := e.DaemonHealth(t.Context()); err != nil || h.PID != daemon.Process.Pid {
		t.Errorf("the daemon is %d, want %d (%v)", h.PID, daemon.Process.Pid, err)
	}
}

// A sandbox whose record is damaged, or of another version, keeps nobody from the others, and can be removed with all that runs of it.
func TestDamagedRecord(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "broken", workspace)
	record := filepath.Join(e.State.SandboxDir("broken"), "record.json")
	for what, text := range map[string]string{"empty": "", "cut": `{"version": 1, "na`, "null": "null", "newer": `{"version": 99, "name": "broken", "status": "paused"}`, "another's": `{"version": 1, "name": "other"}`} {
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Get("broken"); !errors.Is(err, engine.ErrRecord) {
			t.Errorf("%s: Get = %v", what, err)
		}
		list, err := e.List()
		if err != nil || len(list) != 1 || list[0].Name != "broken" || list[0].ID != r.ID || list[0].Status != engine.Damaged {
			t.Errorf("%s: List = %+v, %v", what, list, err)
		}
	}
	other := create(t, e, "whole", t.TempDir())
	if out := sh(t, e, other, "echo hi"); out != "hi" {
		t.Errorf("beside it: %q", out)
	}
	if err := e.Remove(t.Context(), "broken"); err != nil {
		t.Fatal(err)
	}
	for _, p := range sandboxProcesses(e.State) {
		if strings.Contains(p, r.ID) {
			t.Errorf("still runs: %s", p)
		}
	}
	for _, path := range []string{e.State.SandboxDir("broken"), e.State.ProxyDir(r.ID)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	// Not even its bundle can be read.
	r = create(t, e, "broken", workspace)
	for _, path := range []string{record, filepath.Join(filepath.Dir(record), "config.json")} {
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Remove(t.Context(), "broken"); err != nil {
		t.Fatal(err)
	}
	for _, p := range sandboxProcesses(e.State) {
		if strings.Contains(p, r.ID) {
			t.Errorf("still runs: %s", p)
		}
	}
	if out := sh(t, e, other, "echo hi"); out != "hi" {
		t.Errorf("the other afterwards: %q", out)
	}
}

// When the state folder goes, nobody knows of its sandboxes any more: the daemon ends them, and itself.
func TestStateRemoved(t *testing.T) {
	e, workspace := newEngine(t)
	create(t, e, "demo", workspace)
	h, err := e.DaemonHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(sandboxProcesses(e.State)) == 0 {
		t.Fatal("no process of the sandbox is seen")
	}
	if err := errors.Join(os.RemoveAll(e.State.Dir), os.RemoveAll(e.State.Runtime)); err != nil {
		t.Fatal(err)
	}
	enginetest.Eventually(t, "something of it still runs", func() bool {
		return len(sandboxProcesses(e.State)) == 0 && errors.Is(syscall.Kill(h.PID, 0), syscall.ESRCH)
	})
}
