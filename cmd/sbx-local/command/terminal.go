package command

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// withTerminal joins the caller's terminal to a new pseudo terminal while run has its slave side: raw, so that Ctrl-C is
// the program's, and with the size followed.
func withTerminal(ctx context.Context, in *os.File, out io.Writer, run func(slave *os.File, resized <-chan struct{}) (int, error)) (int, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return 0, err
	}
	defer master.Close()
	defer slave.Close()
	if err := pty.InheritSize(in, master); err != nil {
		return 0, err
	}
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return 0, err
	}
	defer term.Restore(int(in.Fd()), old)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-resized:
				pty.InheritSize(in, master)
				select {
				case told <- struct{}{}:
				default: // that it is told is enough
				}
			}
		}
	}()
	go io.Copy(master, in) // ends with the process: a terminal's read cannot be taken back
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(out, master)
	}()
	code, err := run(slave, told)
	slave.Close() // the last one: the master reads to its end
	select {
	case <-copied:
	case <-time.After(200 * time.Millisecond): // something left running still holds the terminal
	}
	return code, err
}
