package lower

import "golang.org/x/sys/unix"

func modeCalls() []modeCall {
	return append(commonModeCalls(), modeCall{unix.SYS_CHMOD, 1}, modeCall{unix.SYS_OPEN, 2}, modeCall{unix.SYS_CREAT, 1},
		modeCall{unix.SYS_MKDIR, 1}, modeCall{unix.SYS_MKNOD, 1})
}
