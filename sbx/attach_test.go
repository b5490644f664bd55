//go:build linux

package sbx_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sbxpair/sbxpair/sbx"
)

// TestAttachTerminal: with a terminal on both sides the command gets one, and only then.
func TestAttachTerminal(t *testing.T) {
	e := newEngine(t, "0.47").script(`exec: [{match: "^sh$", stdout: "prompt\n", code: 7}]`)
	_, err := e.client().Create(t.Context(), sbx.CreateSpec{Name: "box"})
	ok(t, err)
	screen, tty, err := pty.Open()
	ok(t, err)
	defer screen.Close()
	defer tty.Close()
	go func() { // the person types end of file
		_, _ = screen.WriteString("\x04")
	}()
	code, err := e.process().Attach(t.Context(), "box", sbx.ExecSpec{Argv: []string{"sh"}, Stdin: tty, Stdout: tty, Stderr: tty})
	ok(t, err)
	if code != 7 {
		t.Errorf("code %d", code)
	}
	if last := e.calls()[len(e.calls())-1]; last != "exec -i -t box sh" {
		t.Errorf("call %q", last)
	}
	ok(t, screen.SetReadDeadline(time.Now().Add(10*time.Second)))
	for r := bufio.NewReader(screen); ; {
		line, err := r.ReadString('\n')
		ok(t, err)
		if strings.Contains(line, "prompt") {
			break
		}
	}
}

// TestAttachCancelled: a context that is done ends the command.
func TestAttachCancelled(t *testing.T) {
	e := newEngine(t, "0.47")
	_, err := e.client().Create(t.Context(), sbx.CreateSpec{Name: "box"})
	ok(t, err)
	e.script(`calls: [{match: "^exec", hang: true}]`)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	within(t, 30*time.Second, func() {
		_, err := e.process().Attach(ctx, "box", sbx.ExecSpec{Argv: []string{"sh"}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// TestNoTerminalToOpen: an engine that looks for a terminal behind its closed streams, to ask a question, finds none; one
// that is attached has the caller's.
func TestNoTerminalToOpen(t *testing.T) {
	const open = `if (exec 3</dev/tty) 2>/dev/null; then exit 3; else exit 4; fi`
	if os.Getenv("TERMINAL_HELPER") != "" { // the caller, in a session with a terminal
		if _, err := os.Open("/dev/tty"); err != nil {
			t.Fatalf("no terminal here: %v", err)
		}
		x := sbx.Exec{Path: "/bin/sh"}
		captured, err := x.Run(t.Context(), sbx.Cmd{Args: []string{"-c", open}})
		ok(t, err)
		piped, err := x.Run(t.Context(), sbx.Cmd{Args: []string{"-c", open}, Terminal: true, Stdin: strings.NewReader(""), Stdout: os.Stdout})
		ok(t, err)
		attached, err := x.Run(t.Context(), sbx.Cmd{Args: []string{"-c", open}, Terminal: true, Stdin: os.Stdin, Stdout: os.Stdout})
		ok(t, err)
		fmt.Println("codes", captured.Code, piped.Code, attached.Code)
		// One that ignores the interrupt is killed, and we, in the same group, are not.
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err = sbx.Exec{Path: "/bin/sh", Grace: 100 * time.Millisecond}.Run(ctx, sbx.Cmd{
			Args: []string{"-c", "trap '' INT; exec sleep 60"}, Terminal: true, Stdin: os.Stdin, Stdout: os.Stdout,
		})
		fmt.Println("deadline", errors.Is(err, context.DeadlineExceeded))
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoTerminalToOpen$", "-test.v")
	cmd.Env = append(os.Environ(), "TERMINAL_HELPER=1", "GORACE=atexit_sleep_ms=0")
	screen, err := pty.Start(cmd)
	ok(t, err)
	defer screen.Close()
	var seen strings.Builder
	for r := bufio.NewReader(screen); ; {
		line, err := r.ReadString('\n')
		seen.WriteString(line)
		if err != nil { // the terminal is gone with its last user
			break
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(seen.String(), "codes 4 4 3") || !strings.Contains(seen.String(), "deadline true") {
		t.Errorf("%v\n%s", err, seen.String())
	}
}
