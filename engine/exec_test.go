package engine_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

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
