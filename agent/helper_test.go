package agent_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/guest"
)

// host is a Runner whose sandbox is this machine. As with sbx, ending the client does not end the program: only what the
// package itself does ends it.
type host struct {
	home string
	env  []string

	mu       sync.Mutex
	commands []guest.Command
}

func newHost(t *testing.T) *host {
	t.Helper()
	return &host{home: t.TempDir()}
}

func (h *host) Run(ctx context.Context, c guest.Command) (int, error) {
	h.mu.Lock()
	h.commands = append(h.commands, c)
	h.mu.Unlock()
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.home, "GH_TOKEN=leak", "GITHUB_TOKEN=leak"}, h.env...), c.Env...)
	cmd.Stdin = c.Stdin
	cmd.Stdout, cmd.Stderr = c.Stdout, c.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 10 * time.Second
	done := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if _, ok := errors.AsType[*exec.ExitError](err); ok {
			if code := cmd.ProcessState.ExitCode(); code >= 0 {
				return code, nil
			}
			return 128 + int(cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()), nil
		}
		if errors.Is(err, exec.ErrWaitDelay) { // a process that we do not know of holds the pipe
			return cmd.ProcessState.ExitCode(), nil
		}
		return 0, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// script is an adapter's program that runs a shell script; the prompt is on its standard input.
func script(body string) []string { return []string{"sh", "-c", body, "fake-agent"} }

// record collects events.
type record struct {
	events     []agent.Event
	transcript bytes.Buffer
}

func (r *record) options(l agent.Limits) agent.Options {
	return agent.Options{Limits: l, Sink: func(e agent.Event) { r.events = append(r.events, e) }, Transcript: &r.transcript}
}

func (r *record) kinds() string {
	var k []string
	for _, e := range r.events {
		k = append(k, string(e.Kind))
	}
	return strings.Join(k, " ")
}

// processes lists those of this machine whose command line holds mark.
func processes(t *testing.T, mark string) []string {
	t.Helper()
	var list []string
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, d := range dirs {
		data, err := os.ReadFile(d)
		if err == nil && bytes.Contains(data, []byte(mark)) && filepath.Dir(d) != "/proc/"+strings.TrimSpace(itoa(os.Getpid())) {
			list = append(list, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return list
}

func itoa(n int) string {
	var b []byte
	for n > 0 {
		b = append([]byte{byte('0' + n%10)}, b...)
		n /= 10
	}
	return string(b)
}

// eventually polls until ok or the deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
