package sbx

import (
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// group is the process group and job object of one engine call.
type group struct {
	cmd    *exec.Cmd
	shared bool // the caller's own group, with its console
	job    windows.Handle
}

// prepareGroup gives the command a console process group of its own: Ctrl-C at our console reaches only us.
func prepareGroup(cmd *exec.Cmd, shared bool) *group {
	if !shared {
		cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
	}
	return &group{cmd: cmd, shared: shared}
}

// started puts the running process into a job object, so that its descendants can be ended with it. The job does not
// kill when its handle closes: the call may have started the engine's daemon, which has to stay.
func (g *group) started() error {
	if g.shared {
		return nil
	}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return err
	}
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(g.cmd.Process.Pid))
	if err != nil {
		windows.CloseHandle(job)
		return err
	}
	defer windows.CloseHandle(process)
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_BREAKAWAY_OK
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil {
		windows.CloseHandle(job)
		return err
	}
	if err := windows.AssignProcessToJobObject(job, process); err != nil {
		windows.CloseHandle(job)
		return err
	}
	g.job = job
	return nil
}

// interrupt sends Ctrl-Break to the group: Ctrl-C cannot be sent to one group alone. The console of a shared one would pass
// it to the caller as well, so that its command is ended.
func (g *group) interrupt() error {
	if g.shared {
		return g.cmd.Process.Kill()
	}
	return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(g.cmd.Process.Pid))
}

// kill ends the process and its descendants.
func (g *group) kill() {
	if g.job != 0 {
		_ = windows.TerminateJobObject(g.job, 1)
		return
	}
	_ = g.cmd.Process.Kill()
}

// close releases the job object.
func (g *group) close() {
	if g.job != 0 {
		windows.CloseHandle(g.job)
		g.job = 0
	}
}

// statusControlC is the exit code that Windows gives a process ended by a console event.
const statusControlC = 0xC000013A

// killedBySignal reports whether the process was ended from outside.
func killedBySignal(cmd *exec.Cmd) bool { return uint32(cmd.ProcessState.ExitCode()) == statusControlC }
