//go:build unix

package sbx

import (
	"os/exec"
	"syscall"
)

// group is the process group of one engine call.
type group struct{ cmd *exec.Cmd }

// prepareGroup gives the command a process group of its own, so that a Ctrl-C at our terminal reaches only us and we
// choose the order in which things end.
func prepareGroup(cmd *exec.Cmd) *group {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return &group{cmd}
}

// started is called once the process runs.
func (g *group) started() error { return nil }

// interrupt asks the whole group to end.
func (g *group) interrupt() error { return syscall.Kill(-g.cmd.Process.Pid, syscall.SIGINT) }

// kill ends the whole group.
func (g *group) kill() { _ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL) }

// close releases what the group holds.
func (g *group) close() {}

// killedBySignal reports whether the process was ended by a signal rather than by itself.
func killedBySignal(cmd *exec.Cmd) bool {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// interruptOne asks a command without a group of its own to end.
func interruptOne(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGINT) }
