package doctor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func freeDisk(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// freeMemory is what new programs can have without swapping (proc(5), MemAvailable).
func freeMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errUnsure
}

// holder finds the process that listens on a unix socket, and reads a variable of its environment. ok is false if it
// cannot be told: no such process, or another user's.
func holder(socket, variable string) (pid int, value string, ok bool) {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return 0, "", false
	}
	var link string
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		if len(f) == 8 && f[7] == socket && f[3] == "00010000" {
			link = fmt.Sprintf("socket:[%s]", f[6])
		}
	}
	if link == "" {
		return 0, "", false
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, "", false
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err != nil || target != link {
			continue
		}
		process := filepath.Dir(filepath.Dir(fd))
		environ, err := os.ReadFile(filepath.Join(process, "environ"))
		if err != nil {
			return 0, "", false
		}
		pid, _ := strconv.Atoi(filepath.Base(process)) // the pattern says it is a number
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if v, found := bytes.CutPrefix(entry, []byte(variable+"=")); found {
				value = string(v)
			}
		}
		return pid, value, true
	}
	return 0, "", false
}
