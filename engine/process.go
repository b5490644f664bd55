package engine

import (
	"cmp"
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
		if fd := held(pid, arg); fd >= 0 {
			if unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0) == nil {
				n++
			}
			unix.Close(fd)
		}
	}
	return n
}

// held holds the process of that number if arg is among its arguments, so that the number cannot come to mean another one. It is
// negative if it is not.
func held(pid int, arg string) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !hasArg(string(cmdline), arg) {
		unix.Close(fd)
		return -1
	}
	return fd
}

// endProcess kills the process of that number if arg is among its arguments, and waits for its end. If it is not, another
// process has the number, and the one that was meant has ended.
func endProcess(pid int, arg string) error {
	fd := held(pid, arg)
	if fd < 0 {
		return nil
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(deleteTimeout); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err == nil || !errors.Is(err, unix.EINTR):
			return fmt.Errorf("process %d does not end: %w", pid, cmp.Or(err, os.ErrDeadlineExceeded))
		}
	}
}

func hasArg(cmdline, arg string) bool {
	for a := range strings.SplitSeq(cmdline, "\x00") {
		if a == arg {
			return true
		}
	}
	return false
}
