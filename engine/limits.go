package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What [Record.Limits] says.
const (
	limitsCgroup = "cgroup"
	limitsNone   = "none: cgroups are not writable for this user"
)

func cgroupPath(r Record) string { return "/sbx-local-" + r.ID }

// cgroupsWritable tries what gVisor will do: make a group in each hierarchy that limits need.
func cgroupsWritable() bool {
	const base = "/sys/fs/cgroup"
	dirs := []string{base + "/memory", base + "/cpu", base + "/pids"}
	if _, err := os.Stat(base + "/cgroup.controllers"); err == nil {
		dirs = []string{base}
	}
	for _, d := range dirs {
		probe := filepath.Join(d, fmt.Sprintf("sbx-local-probe-%d-%s", os.Getpid(), newID()[:8]))
		if os.Mkdir(probe, 0o755) != nil {
			return false
		}
		os.Remove(probe)
	}
	return true
}

func resources(r Record) *specs.LinuxResources {
	res := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: int64(r.Pids)}}
	if r.MemoryMiB > 0 {
		limit := int64(r.MemoryMiB) << 20
		res.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	if r.CPUs > 0 {
		period := uint64(100_000) // microseconds
		quota := int64(r.CPUs) * int64(period)
		res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return res
}

// cgroupTimeout bounds the wait for the last processes of a killed sandbox: the stubs in which its programs ran die after it.
const cgroupTimeout = 10 * time.Second

// removeCgroups removes what gVisor leaves when it is killed. Empty groups only: the kernel refuses others.
func removeCgroups(ctx context.Context, r Record) error {
	if r.Limits != limitsCgroup {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cgroupTimeout)
	defer cancel()
	for _, pattern := range []string{"/sys/fs/cgroup" + cgroupPath(r), "/sys/fs/cgroup/*" + cgroupPath(r)} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, d := range dirs {
			for {
				err := os.Remove(d)
				if err == nil || errors.Is(err, os.ErrNotExist) {
					break
				}
				if pause(ctx, 2*time.Millisecond) != nil {
					return fmt.Errorf("control group: %w", err)
				}
			}
		}
	}
	return nil
}

// hostMemoryMiB is the machine's memory, or 0 if it is not known.
func hostMemoryMiB() int {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib int
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); err == nil {
			return kib >> 10
		}
	}
	return 0
}
