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

// prepareGroup gives the command a session of its own, and with it a process group: it has no terminal then that it could
// open to ask a question, a Ctrl-C at ours reaches only us, and we choose the order in which things end.
func prepareGroup(cmd *exec.Cmd, shared bool) *group {
	if !shared {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	return &group{cmd, shared}
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
