// Package sentry speaks to the kernel of one gVisor sandbox by its control socket: it starts a program there and waits for it,
// as `runsc exec` does, which would be a process of gVisor's more for each program.
package sentry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone matches the error when the kernel does not answer, or ends before it has answered: the sandbox does not run any more.
var ErrGone = errors.New("the sandbox's kernel is gone")

// A RefusalError is the kernel's answer that it does not do what was asked, in its words.
type RefusalError struct{ Words string }

func (e *RefusalError) Error() string { return "gVisor: " + e.Words }

// Socket is where the kernel of one container listens. Whoever can connect to it has the sandbox in his hands.
type Socket struct {
	Path      string
	Container string
}

// Process is a program to start.
type Process struct {
	Argv     []string
	Env      []string
	Dir      string // absolute
	UID, GID uint32
	Groups   []uint32
	// Sets of capabilities, a bit each: what it may ever have, and what it starts with.
	Bounding, Held uint64
	// Terminal makes the terminal that is its first three files its controlling one.
	Terminal bool
	Files    []*os.File // its descriptors from 0 on
}

// A Program is one that was asked for. Close it.
type Program struct {
	socket Socket
	conn   *net.UnixConn
	answer *json.Decoder
}

// What the kernel's server calls its methods, and the shape of their arguments. The names of fields are gVisor's.
const (
	methodExec   = "containerManager.ExecuteAsync"
	methodWait   = "containerManager.WaitPID"
	methodSignal = "containerManager.Signal"
)

type execArgs struct {
	Argv             []string `json:"argv"`
	Envv             []string `json:"envv"`
	WorkingDirectory string   `json:"wd"`
	KUID, KGID       uint32
	ExtraKGIDs       []uint32
	Capabilities     capabilities
	StdioIsPty       bool
	SupportTTYs      bool
	GuestFDs         []int
	ContainerID      string
}

type capabilities struct{ PermittedCaps, InheritableCaps, EffectiveCaps, BoundingCaps, AmbientCaps uint64 }

type waitArgs struct {
	PID int
	CID string
}

type signalArgs struct {
	CID   string
	Signo int
	PID   int // with gVisor's mode 0, which is left out here: of this process alone
}

// Start asks for a program and returns when the kernel has the request with its files, but not yet begun with it: the caller
// may close its ends. The error matches [ErrGone] if nobody listens.
func Start(ctx context.Context, s Socket, p Process) (*Program, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	args := execArgs{
		Argv: p.Argv, Envv: p.Env, WorkingDirectory: p.Dir, KUID: p.UID, KGID: p.GID, ExtraKGIDs: p.Groups,
		Capabilities: capabilities{PermittedCaps: p.Held, EffectiveCaps: p.Held, BoundingCaps: p.Bounding},
		StdioIsPty:   p.Terminal, SupportTTYs: true, ContainerID: s.Container,
	}
	for i := range p.Files {
		args.GuestFDs = append(args.GuestFDs, i)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetWriteDeadline(time.Now()) })
	defer stop()
	if err := send(conn, methodExec, args, p.Files); err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return &Program{socket: s, conn: conn, answer: json.NewDecoder(conn)}, nil
}

// PID returns the program's process id in the sandbox as soon as it was started. The error is a *RefusalError if it was not,
// or matches [ErrGone]. Call it once, before Wait.
func (p *Program) PID() (int, error) {
	var pid int
	err := receive(p.answer, &pid)
	return pid, err
}

// Wait returns how the program ended. The error matches [ErrGone] if the sandbox ended with it.
func (p *Program) Wait(pid int) (syscall.WaitStatus, error) {
	if err := send(p.conn, methodWait, waitArgs{PID: pid, CID: p.socket.Container}, nil); err != nil {
		return 0, err
	}
	var status uint32
	err := receive(p.answer, &status)
	return syscall.WaitStatus(status), err
}

// GiveUp ends what PID and Wait wait for after the given time.
func (p *Program) GiveUp(after time.Duration) { p.conn.SetReadDeadline(time.Now().Add(after)) }

// Close ends the connection; the program goes on.
func (p *Program) Close() error { return p.conn.Close() }

// Signal sends a signal to the process with this id in the sandbox.
func (s Socket) Signal(ctx context.Context, pid int, signal syscall.Signal) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()
	if err := send(conn, methodSignal, signalArgs{CID: s.Container, Signo: int(signal), PID: pid}, nil); err != nil {
		return err
	}
	return receive(json.NewDecoder(conn), &struct{}{})
}

func (s Socket) dial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.Path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return conn.(*net.UnixConn), nil
}

// send writes one call: JSON, whose first bytes carry the files. The error matches ErrGone if nobody takes it.
func send(conn *net.UnixConn, method string, arg any, files []*os.File) error {
	data, err := json.Marshal(struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}{method, arg})
	if err != nil {
		return err
	}
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		n, _, err := conn.WriteMsgUnix(data, unix.UnixRights(fds...), nil)
		runtime.KeepAlive(files)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		data = data[n:]
	}
	if len(data) > 0 {
		if _, err = conn.Write(data); err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return nil
}

func receive(from *json.Decoder, result any) error {
	answer := struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
		Result  any    `json:"result"`
	}{Result: result}
	if err := from.Decode(&answer); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	if !answer.Success {
		return &RefusalError{Words: answer.Err}
	}
	return nil
}
