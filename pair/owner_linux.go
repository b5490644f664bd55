package pair

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// processStart reads the state and the start time (in clock ticks since boot) of a process from /proc (proc(5)).
func processStart(pid int) (string, processState) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return "", processGone
	}
	if err != nil {
		return "", processUnknown
	}
	// The second field is the command name in parentheses and may hold anything, so count from the last one.
	_, rest, ok := cutLast(string(text), ")")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return "", processUnknown
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "", processGone
	}
	return fields[19], processThere
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// machineID is made of the id that the system has since it was installed, which is not to be shown as it is (machine-id(5)).
func machineID() string {
	text, err := os.ReadFile("/etc/machine-id")
	if id := strings.TrimSpace(string(text)); err == nil && len(id) == 32 { // else not set yet
		sum := sha256.Sum256([]byte("sbxpair owner " + id))
		return hex.EncodeToString(sum[:8])
	}
	return ""
}

// pidSpace names the namespace in which this process's id means something (pid_namespaces(7)).
func pidSpace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}
