//go:build unix

package workspace

import (
	"os/exec"
	"syscall"
)

// endTogether makes the end of cmd's context end the helpers that git starts as well.
func endTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
