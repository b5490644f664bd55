package engine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processStart returns the start time of a process in clock ticks since boot, or 0 if there is none or it is a zombie.
func processStart(pid int) uint64 {
	if pid <= 0 {
		return 0
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	stat := string(data)
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return 0
	}
	return start
}

func sameProcess(pid int, start uint64) bool { return start != 0 && processStart(pid) == start }

// endByArg kills the processes of ours that have arg among their arguments until there are none, for as long as [deleteTimeout].
func endByArg(arg string) error {
	for deadline := time.Now().Add(deleteTimeout); killByArg(arg) > 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("processes of the sandbox do not end")
		}
	}
	return nil
}

// killByArg kills the processes of ours that have arg among their arguments, and returns how many there were. It finds
// what a crashed command started and never recorded.
func killByArg(arg string) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0) // held over the check, so that the number cannot come to mean another process
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && hasArg(string(cmdline), arg) {
			if unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0) == nil {
				n++
			}
		}
		unix.Close(fd)
	}
	return n
}

func hasArg(cmdline, arg string) bool {
	for a := range strings.SplitSeq(cmdline, "\x00") {
		if a == arg {
			return true
		}
	}
	return false
}
