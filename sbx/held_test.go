//go:build unix

package sbx_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// TestHeldByALittle: what a process left behind writes now and then buys it no time, whatever its pace, on whichever stream,
// with and without somebody who takes it meanwhile.
func TestHeldByALittle(t *testing.T) {
	for name, text := range map[string]string{
		"more often than the grace time": `(while :; do echo x >&2; sleep 0.1; done) & echo done`,
		"less often":                     `(while :; do echo x >&2; sleep 1; done) & echo done`,
		"on both":                        `(while :; do echo x; echo x >&2; sleep 0.02; done) & echo done`,
	} {
		for _, c := range []sbx.Cmd{script(text), {Args: []string{"-c", text}, Stderr: &exclusive{}}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				within(t, 30*time.Second, func() {
					res, err := shell(300*time.Millisecond).Run(t.Context(), c)
					ok(t, err)
					if !res.Held || res.Code != 0 || len(res.Stdout) < 5 {
						t.Errorf("held %v, code %d, %q", res.Held, res.Code, res.Stdout)
					}
				})
			})
		}
	}
}

// idle is a reader that gives nothing and no error.
type idle struct{ asked atomic.Int64 }

func (i *idle) Read([]byte) (int, error) {
	i.asked.Add(1)
	runtime.Gosched()
	return 0, nil
}

// TestIdleReader: a reader that never gives anything is not asked any more once the command is gone.
func TestIdleReader(t *testing.T) {
	c, in := script(`exit 0`), &idle{}
	c.Stdin = in
	_, err := shell(0).Run(t.Context(), c)
	ok(t, err)
	deadline := time.Now().Add(10 * time.Second)
	for before := int64(-1); before != in.asked.Load(); time.Sleep(20 * time.Millisecond) {
		before = in.asked.Load()
		if time.Now().After(deadline) {
			t.Fatal("it is still asked")
		}
	}
}

// short is a writer that takes all but the last byte, and does not say so.
type short struct{}

func (short) Write(p []byte) (int, error) { return len(p) - 1, nil }

// TestShortWriter: what a writer did not take did not pass, also where the start was held back to look at it.
func TestShortWriter(t *testing.T) {
	for _, out := range []string{"x\n", "Daemon started (PID: 1, socket: /s)\nx\n", "Starting sandboxd daemon..."} {
		runner := sbx.WithRunner(sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
			return result(c, []byte(out), nil, 0)
		}))
		_, err := sbx.New("", v47(), runner).Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"x"}, Stdout: short{}})
		if !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%q: error %v", out, err)
		}
	}
}
