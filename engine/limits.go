package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What [Record.Limits] says: this, or why there are none.
const (
	limitsCgroup   = "cgroup"
	limitsRootless = "none: cgroups are not writable for this user"
)

const cgroupRoot = "/sys/fs/cgroup"

// controllers are the cgroup controllers that our limits need.
var controllers = []string{"cpu", "memory", "pids"}

func cgroupPath(r Record) string { return "/sbx-local-" + r.ID }

// tryCgroups does below root what gVisor will do, and returns what [Record.Limits] says. With cgroup v2 the controllers are
// handed down to the groups below first, which the kernel refuses in a container whose own processes are in its top group.
func tryCgroups(root string) string {
	dirs := []string{root}
	data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	switch {
	case err == nil:
		have := strings.Fields(string(data))
		for _, c := range controllers {
			if !slices.Contains(have, c) {
				return "none: this machine has no cgroup controller for " + c
			}
		}
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+strings.Join(have, " +")), 0o644); err != nil {
			return "none: cgroup controllers cannot be handed down (" + errors.Unwrap(err).Error() + ")"
		}
	case errors.Is(err, os.ErrNotExist): // version 1: one tree for each controller
		dirs = nil
		for _, c := range controllers {
			dir := filepath.Join(root, c)
			if _, err := os.Stat(dir); err != nil {
				return "none: this machine has no cgroup controller for " + c
			}
			dirs = append(dirs, dir)
		}
	default:
		return limitsRootless
	}
	for _, d := range dirs {
		probe := filepath.Join(d, fmt.Sprintf("sbx-local-probe-%d-%s", os.Getpid(), uuid.NewString()[:8]))
		if os.Mkdir(probe, 0o755) != nil {
			return limitsRootless
		}
		os.Remove(probe)
	}
	return limitsCgroup
}

// resources are the limits of a sandbox that starts from a disk of so many bytes.
func resources(r Record, disk int64) *specs.LinuxResources {
	res := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: int64(r.Pids)}}
	if r.MemoryMiB > 0 {
		limit := int64(r.MemoryMiB)<<20 + diskMemory(disk)
		res.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	if r.CPUs > 0 {
		period := uint64(100_000) // microseconds
		quota := int64(r.CPUs) * int64(period)
		res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return res
}

// diskMemory is what gVisor needs on top of a sandbox's memory to take in a disk of so many bytes: it holds the whole disk,
// in buffers that grow by doubling (v0.0.0-20260905: tarDefaultReaderCallbacks). A sandbox that is killed for it would never
// start again.
func diskMemory(disk int64) int64 {
	most := int64(hostMemoryMiB()) << 19 // half of the machine's
	return min(3*disk, most)
}

// lendMemory lifts the memory limit of a sandbox that writes its disk out, which it does file by file, each held whole, by as
// much as its largest file may need and half of what the machine has free. The func takes it back; a sandbox that ends needs none.
func lendMemory(root string, r Record) (takeBack func()) {
	if r.Limits != limitsCgroup {
		return func() {}
	}
	lent := min(diskLimit(r), meminfoMiB("MemAvailable")<<19)
	for _, path := range []string{filepath.Join(root, "memory", cgroupPath(r), "memory.limit_in_bytes"), filepath.Join(root, cgroupPath(r), "memory.max")} {
		old, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(old)), 10, 64)
		if err != nil || limit > math.MaxInt64-lent { // "max"
			continue
		}
		if os.WriteFile(path, strconv.AppendInt(nil, limit+lent, 10), 0) == nil { // else it has what it has
			return func() { os.WriteFile(path, old, 0) }
		}
	}
	return func() {}
}

// cgroupTimeout bounds the wait for the last processes of a killed sandbox: the stubs in which its programs ran die after it.
const cgroupTimeout = 10 * time.Second

// removeCgroups removes what gVisor leaves when it is killed. Empty groups only: the kernel refuses others.
func removeCgroups(ctx context.Context, root string, r Record) error {
	if r.Limits != limitsCgroup {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cgroupTimeout)
	defer cancel()
	for _, pattern := range []string{root + cgroupPath(r), root + "/*" + cgroupPath(r)} {
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
func hostMemoryMiB() int { return int(meminfoMiB("MemTotal")) }

// meminfoMiB is a line of the kernel's account of the machine's memory, or 0.
func meminfoMiB(name string) int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib int64
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, name+": %d kB", &kib); err == nil {
			return kib >> 10
		}
	}
	return 0
}
