package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// WordFD is the descriptor on which the helper "tty" says why a program could not be started.
const WordFD = 3

// ttyPatience bounds the wait for output of what a program left running on its terminal.
const ttyPatience = 200 * time.Millisecond

// runTTY runs a program on a terminal of the sandbox's own, joined to the host's on standard input: so it has a name, which
// the host's has not in here, and tty, tmux and gpg work. Size and keys pass through; what keys mean is decided inside.
// It returns the program's exit code, 128+n if signal n ended it. The error says why the program was not started, in gVisor's
// words where it has some.
func runTTY(argv []string) (int, error) {
	outer := os.Stdin
	master, slave, err := pty.Open()
	if err != nil {
		return 0, fmt.Errorf("terminal: %w", err)
	}
	defer master.Close()
	defer slave.Close()
	if _, err := term.MakeRaw(int(outer.Fd())); err != nil {
		return 0, fmt.Errorf("terminal: %w", err)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	pty.InheritSize(outer, master) // a size that is not known is none
	go func() {
		for range resized {
			pty.InheritSize(outer, master)
		}
	}()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		return 0, launchWords(err)
	}
	slave.Close()
	go io.Copy(master, outer) // ends with us
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(os.Stdout, master) // ends with the last one who has the terminal
	}()
	if _, exited := errors.AsType[*exec.ExitError](cmd.Wait()); !exited && cmd.ProcessState == nil {
		return 0, errors.New("terminal: the program was lost")
	}
	select {
	case <-copied:
	case <-time.After(ttyPatience):
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

func launchWords(err error) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return syscall.ENOENT
	case errors.Is(err, fs.ErrPermission):
		return syscall.EACCES
	}
	return err
}
