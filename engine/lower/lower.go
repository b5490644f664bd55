// Package lower puts the read-only lower part of a sandbox's root together: folders and files bound into a skeleton, in a
// mount namespace that ends with the sandbox. gVisor then lays one writable layer of its own over all of it, so that
// programs can be installed inside while nothing is written below.
//
// It runs in a process of its own, between the engine and gVisor, so that the host never sees these mounts.
package lower

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Verb is argv[1] of the process that binds and then becomes gVisor; argv[2] is the file of [Write].
const Verb = "_lower"

// A Bind shows Source, a folder with what is mounted below it or a file, at Target. Neither is a link.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Write notes the binds for [Mount] at path.
func Write(path string, binds []Bind) error {
	if err := os.Remove(failurePath(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	data, err := json.Marshal(binds)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// failurePath is where [Mount] leaves its error: its standard streams become the sandbox's.
func failurePath(path string) string { return path + ".error" }

// Failure is the error of the last [Mount] of the binds at path, or "".
func Failure(path string) string {
	data, err := os.ReadFile(failurePath(path))
	if err != nil {
		return ""
	}
	return string(data)
}

// Isolate makes cmd start in a mount namespace of its own, with rootless in a user namespace whose root is this user.
func Isolate(cmd *exec.Cmd, rootless bool) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	a := cmd.SysProcAttr
	a.Cloneflags |= syscall.CLONE_NEWNS
	if rootless {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		a.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}
	}
}

// Mount carries out the binds noted at path, read only and with what is mounted below their sources. The process must be
// in a mount namespace of its own. From then on it cannot make programs that run as their owner. The error is also left
// for [Failure].
func Mount(path string) error {
	err := mount(path)
	if err == nil {
		err = refuseSetID()
	}
	if err != nil {
		return errors.Join(err, os.WriteFile(failurePath(path), []byte(err.Error()), 0o600))
	}
	return nil
}

func mount(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var binds []Bind
	if err := json.Unmarshal(data, &binds); err != nil {
		return fmt.Errorf("binds: %w", err)
	}
	// Changes made here stay here; what the host mounts later still arrives.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	for _, b := range binds {
		if err := bind(b); err != nil {
			return fmt.Errorf("bind %s: %w", b.Source, err)
		}
	}
	return nil
}

func bind(b Bind) error {
	if err := unix.Mount(b.Source, b.Target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	err := unix.MountSetattr(unix.AT_FDCWD, b.Target, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes})
	if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Before Linux 5.12: the bind alone, without what is mounted below it, which could not be made read only.
	if err := unix.Unmount(b.Target, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := unix.Mount(b.Source, b.Target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(b.Target, &st); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
	for st2, ms := range map[int64]uintptr{unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME} {
		if st.Flags&st2 != 0 { // the kernel refuses to drop a flag that was inherited
			flags |= ms
		}
	}
	return unix.Mount("", b.Target, "", flags, "")
}
