package workspace

import "golang.org/x/sys/unix"

// maxMemory is what a git process may take, in bytes. What it maps from files does not count.
const maxMemory = 4 << 30

// limitMemory bounds a process that has just begun, and the helpers that it will start.
func limitMemory(pid int) {
	// It may have ended already; and a bound that cannot be set leaves the deadlines.
	_ = unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: maxMemory, Max: maxMemory}, nil)
}
