//go:build unix

package sbx

import (
	"os/exec"
	"syscall"
)

// group is what one engine call runs in.
type group struct {
	cmd    *exec.Cmd
	shared bool // the caller's own group, with its terminal
}

// prepareGroup gives the command a process group of its own, so that a Ctrl-C at our terminal reaches only us and we choose
// the order in which things end; and, if we have a terminal, a session of its own, so that it has none that it could open to
// ask a question. A session costs more than a group where the kernel shares out processor time by session (Linux
// autogroup).
func prepareGroup(cmd *exec.Cmd, shared bool) *group {
	switch {
	case shared:
	case hasTerminal():
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	default:
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	return &group{cmd, shared}
}

// hasTerminal reports whether this process has a controlling terminal.
func hasTerminal() bool {
	fd, err := syscall.Open("/dev/tty", syscall.O_RDONLY|syscall.O_NOCTTY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

// started is called once the process runs.
func (g *group) started() error { return nil }

// interrupt asks the whole group to end; of a shared one, the command alone.
func (g *group) interrupt() error {
	if g.shared {
		return g.cmd.Process.Signal(syscall.SIGINT)
	}
	return syscall.Kill(-g.cmd.Process.Pid, syscall.SIGINT)
}

// kill ends the whole group; of a shared one, the command alone.
func (g *group) kill() {
	if g.shared {
		_ = g.cmd.Process.Kill()
		return
	}
	_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL)
}

// close releases what the group holds.
func (g *group) close() {}

// killedBySignal reports whether the process was ended by a signal rather than by itself.
func killedBySignal(cmd *exec.Cmd) bool {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}
