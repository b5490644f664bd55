// Package guest is how the packages that work inside a sandbox say what they need of it: a program to be run there. The agent
// adapters and the workspace both run programs in the agent sandbox, and know nothing of engines; one type serves both, so
// that one value can stand for the machine.
//
// The package is a leaf.
package guest

import (
	"context"
	"io"
	"strings"
)

// Command is one program to run inside the sandbox.
type Command struct {
	Argv   []string
	Env    []string // "K=V", added to the sandbox's environment; never a credential
	User   string   // "" is the sandbox's own user
	Dir    string   // "" is the sandbox's own default
	Stdin  io.Reader
	Stdout io.Writer // nil discards; written to by one goroutine at a time
	Stderr io.Writer
}

// Runner runs programs inside the sandbox. A program that exits non-zero is a code, not an error; an error says that it
// could not be run or that ctx ended. Output has to arrive while the program runs.
type Runner interface {
	Run(ctx context.Context, c Command) (code int, err error)
}

// Tail is a writer that keeps the last Limit bytes. The zero value keeps none. It is not safe for concurrent use.
type Tail struct {
	Limit int
	buf   []byte
	cut   bool // something was dropped
}

// Write keeps what fits. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.cut = t.cut || len(t.buf)+len(p) > t.Limit
	t.buf = append(t.buf, p[max(0, len(p)-t.Limit):]...)
	if len(t.buf) > 2*t.Limit {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-t.Limit:]...)
	}
	return len(p), nil
}

// String returns what was kept as valid UTF-8: a letter that the cut halved is dropped.
func (t *Tail) String() string {
	kept := string(t.buf[max(0, len(t.buf)-t.Limit):])
	if t.cut {
		kept = strings.TrimLeftFunc(kept, func(r rune) bool { return r == '\uFFFD' })
	}
	return strings.ToValidUTF8(kept, "\uFFFD")
}
