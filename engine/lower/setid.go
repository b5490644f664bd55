package lower

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refuseSetID makes the kernel refuse this process, and all that it becomes and starts, to set the set-user-id and
// set-group-id bits of a file. What a sandbox writes in a workspace belongs to whoever made the sandbox: with such a bit,
// a program of the sandbox's would run as that user for everybody on the host. gVisor has no switch for it.
func refuseSetID() error {
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if arch == 0 {
		return fmt.Errorf("no filter of set-user-id bits for %s", runtime.GOARCH)
	}
	// Offsets in struct seccomp_data; of an argument, the lower half in little-endian order.
	const number, architecture, arguments = 0, 4, 16
	const bits = unix.S_ISUID | unix.S_ISGID
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jump := func(test uint16, k uint32, ifNot uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jf: ifNot}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	allow := answer(unix.SECCOMP_RET_ALLOW)
	other := jump(unix.BPF_JEQ, arch, 0)
	other.Jt = 1 // over the answer for calls of another architecture, which no program here makes
	program := []unix.SockFilter{load(architecture), other, allow, load(number)}
	for _, call := range modeCalls() {
		program = append(program, jump(unix.BPF_JEQ, call.number, 4), load(arguments+8*call.argument),
			jump(unix.BPF_JSET, bits, 1), answer(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)), allow)
	}
	program = append(program, allow)
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("filter of set-user-id bits: %w", errno)
	}
	return nil
}

// A modeCall is a system call that takes a file's mode, and which of its arguments that is.
type modeCall struct{ number, argument uint32 }

// commonModeCalls are those of every architecture.
func commonModeCalls() []modeCall {
	return []modeCall{
		{unix.SYS_FCHMOD, 1}, {unix.SYS_FCHMODAT, 2}, {unix.SYS_FCHMODAT2, 2}, {unix.SYS_OPENAT, 3}, {unix.SYS_MKDIRAT, 2}, {unix.SYS_MKNODAT, 2},
	}
}
