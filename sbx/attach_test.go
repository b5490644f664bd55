//go:build linux

package sbx_test

import (
	"bufio"
	"context"
	"errors"
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
