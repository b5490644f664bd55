//go:build !linux

package pair

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// processStart can only tell whether a process exists on these systems; a reused id counts as alive, which errs
// towards keeping.
func processStart(pid int) (string, processState) {
	process, err := os.FindProcess(pid)
	if err != nil {
		return "", processGone // Windows looks the process up here
	}
	defer process.Release()
	if runtime.GOOS == "windows" {
		return "", processThere
	}
	switch err := process.Signal(syscall.Signal(0)); {
	case err == nil, errors.Is(err, os.ErrPermission):
		return "", processThere
	case errors.Is(err, os.ErrProcessDone), errors.Is(err, syscall.ESRCH):
		return "", processGone
	}
	return "", processUnknown
}

func bootID() string { return "" }

func machineID() string { return "" }

func pidSpace() string { return "" }
