package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

// unreadable wants that a file cannot be read, or holds nothing of the host's.
func unreadable(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error(), nil
	}
	return "", fmt.Errorf("%s can be read: %.80q", path, data)
}

// failed wants err.
func failed(what string, err error) (string, error) {
	if err != nil {
		return err.Error(), nil
	}
	return "", errors.New(what)
}

func fileAttempts() []attempt {
	list := []attempt{
		{name: "host-file", what: "a file of the host by its path: outside the workspace, the engine's state, its sockets, /etc/shadow's entries", try: func(_ context.Context, a *attacker) (string, error) {
			return each(append(append([]string{a.HostFile}, a.StateFiles...), a.Sockets...), func(path string) (string, error) {
				_, err := os.Lstat(path)
				return failed(path+" is there", err)
			})
		}},
		{name: "file-symlink", what: "a link in the workspace that leads to a file of the host", try: func(_ context.Context, a *attacker) (string, error) {
			return each([]string{a.HostFile, a.StateFiles[0], filepath.Join("..", filepath.Base(filepath.Dir(a.HostFile)), filepath.Base(a.HostFile))}, func(target string) (string, error) {
				link := filepath.Join(a.Workspace, "link")
				os.Remove(link)
				if err := os.Symlink(target, link); err != nil {
					return err.Error(), nil
				}
				defer os.Remove(link)
				return unreadable(link)
			})
		}},
		{name: "file-symlink-folder", what: "a link to a folder of the host, and writing through it", try: func(_ context.Context, a *attacker) (string, error) {
			link := filepath.Join(a.Workspace, "folder")
			if err := os.Symlink(filepath.Dir(a.HostFile), link); err != nil {
				return err.Error(), nil
			}
			defer os.Remove(link)
			return failed("written", os.WriteFile(filepath.Join(link, "planted"), []byte("x"), 0o600))
		}},
		{name: "file-symlink-race", what: "a folder that turns into a link while a file in it is opened", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.race()
		}},
		{name: "file-hard-link", what: "a hard link to a file of the host", try: func(_ context.Context, a *attacker) (string, error) {
			return each(append([]string{a.HostFile}, a.StateFiles...), func(path string) (string, error) {
				return failed("linked", os.Link(path, filepath.Join(a.Workspace, "hard")))
			})
		}},
		{name: "file-rename", what: "moving a file out of the workspace, and one of the host in", try: func(_ context.Context, a *attacker) (string, error) {
			mine := filepath.Join(a.Workspace, "mine")
			if err := os.WriteFile(mine, []byte("x"), 0o600); err != nil {
				return "", err
			}
			defer os.Remove(mine)
			return all(
				func() (string, error) {
					return failed("moved out", os.Rename(mine, filepath.Join(filepath.Dir(a.HostFile), "planted")))
				},
				func() (string, error) {
					return failed("moved in", os.Rename(a.HostFile, filepath.Join(a.Workspace, "theirs")))
				},
				func() (string, error) { return failed("moved over", os.Rename(mine, a.HostFile)) },
			)
		}},
		{name: "file-dots", what: "paths with dot segments out of the workspace", try: func(_ context.Context, a *attacker) (string, error) {
			up := strings.Repeat("../", strings.Count(a.Workspace, "/")+3)
			return each([]string{filepath.Join(a.Workspace, "..", filepath.Base(filepath.Dir(a.HostFile)), filepath.Base(a.HostFile)), a.Workspace + "/" + up + a.HostFile}, unreadable)
		}},
		{name: "file-handle", what: "opening a file by handle, past all paths", try: func(_ context.Context, a *attacker) (string, error) {
			handle, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, a.Workspace, 0)
			if err != nil {
				return err.Error(), nil
			}
			fd, err := unix.OpenByHandleAt(mount, handle, unix.O_RDONLY)
			if err == nil {
				unix.Close(fd)
			}
			return failed("opened", err)
		}},
		{name: "file-proc-root", what: "the host's root by the links of /proc", try: func(_ context.Context, a *attacker) (string, error) {
			roots, err := filepath.Glob("/proc/[0-9]*/root")
			if err != nil {
				return "", err
			}
			return each(append(roots, "/proc/self/cwd/../../../../../..", "/proc/1/cwd"), func(root string) (string, error) { return unreadable(root + a.HostFile) })
		}},
		{name: "file-chroot", what: "leaving the root by a second one", try: func(_ context.Context, a *attacker) (string, error) {
			dir, err := os.Open("/")
			if err != nil {
				return "", err
			}
			if err := os.MkdirAll("/tmp/cell", 0o700); err != nil {
				return "", err
			}
			if err := syscall.Chroot("/tmp/cell"); err != nil {
				return err.Error(), nil
			}
			dir.Chdir()
			for range 50 {
				os.Chdir("..")
			}
			syscall.Chroot(".")
			return unreadable(a.HostFile)
		}},
		{name: "file-fifo", what: "a named pipe in the workspace: who reads it on the host must not wait for ever", try: func(_ context.Context, a *attacker) (string, error) {
			if err := unix.Mkfifo(filepath.Join(a.Workspace, "fifo"), 0o666); err != nil {
				return err.Error(), nil
			}
			return "made; the test copies it out", nil
		}},
		{name: "file-device", what: "a node for a device of the host: in the workspace, elsewhere, opened", try: func(_ context.Context, a *attacker) (string, error) {
			return each([]string{a.Workspace, "/tmp", "/dev"}, func(dir string) (string, error) {
				return each([]string{"b 8 0", "b 254 0", "c 1 1", "c 10 232", "c 4 64"}, func(spec string) (string, error) {
					var kind string
					var major, minor uint32
					fmt.Sscan(spec, &kind, &major, &minor)
					path, mode := filepath.Join(dir, "node"), uint32(unix.S_IFCHR)
					if kind == "b" {
						mode = unix.S_IFBLK
					}
					if err := unix.Mknod(path, mode|0o666, int(unix.Mkdev(major, minor))); err != nil {
						return err.Error(), nil
					}
					defer os.Remove(path)
					f, err := os.OpenFile(path, os.O_RDWR, 0)
					if err == nil {
						f.Close()
					}
					return failed("opened "+spec, err)
				})
			})
		}},
		{name: "file-devices-there", what: "disks, memory and ports that are there already", try: func(context.Context, *attacker) (string, error) {
			return each([]string{"/dev/mem", "/dev/kmem", "/dev/port", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/loop-control", "/dev/kmsg", "/dev/mapper/control", "/dev/bus/usb/001/001"}, func(path string) (string, error) {
				f, err := os.Open(path)
				if err == nil {
					f.Close()
				}
				return failed(path+" opens", err)
			})
		}},
		{name: "file-owner", what: "the engine's own files in the sandbox: its program, the proxy's folder", try: func(context.Context, *attacker) (string, error) {
			return all(
				func() (string, error) { return failed("program written", appendFile("/.sbx/sbx-local", "x")) },
				func() (string, error) { return failed("socket removed", os.Remove("/run/sbx/proxy.sock")) },
				func() (string, error) { return failed("file made", os.WriteFile("/run/sbx/planted", nil, 0o600)) },
				func() (string, error) { return failed("folder replaced", os.Rename("/run/sbx", "/run/old")) },
			)
		}},
		{name: "file-system-folders", what: "programs of the host, over the layer of the sandbox", try: func(context.Context, *attacker) (string, error) {
			// Written here, and not on the host: the test looks there.
			if err := os.WriteFile("/usr/bin/attack-planted", []byte("#!/bin/sh\n"), 0o755); err != nil {
				return err.Error(), nil
			}
			return "written in the sandbox's own layer; the test looks on the host", nil
		}},
		{name: "file-setuid", what: "a program in the workspace that runs as its owner for everybody on the host", try: func(_ context.Context, a *attacker) (string, error) {
			path := filepath.Join(a.Workspace, "setuid")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
				return "", err
			}
			var last error
			for _, mode := range []uint32{0o4755, 0o2755, 0o6777} {
				last = errors.Join(last, syscall.Chmod(path, mode))
			}
			f, err := os.OpenFile(path+"2", os.O_CREATE|os.O_WRONLY, os.ModeSetuid|0o755)
			if err == nil {
				f.Close()
			}
			return fmt.Sprintf("%v, %v; the test looks on the host", last, err), nil
		}},
		{name: "file-capabilities", what: "the same by file capabilities, an extended attribute", try: func(_ context.Context, a *attacker) (string, error) {
			path := filepath.Join(a.Workspace, "capable")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
				return "", err
			}
			// Version 2, every capability permitted and effective.
			all := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0}
			return fmt.Sprintf("%v; the test looks on the host", unix.Setxattr(path, "security.capability", all, 0)), nil
		}},
	}
	return grouped(groupFiles, list)
}

// race swaps a folder for a link to the host while a file in it is opened again and again.
func (a *attacker) race() (string, error) {
	dir, link, name := filepath.Join(a.Workspace, "dir"), filepath.Join(a.Workspace, "other"), filepath.Base(a.HostFile)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
		return "", err
	}
	if err := os.Symlink(filepath.Dir(a.HostFile), link); err != nil {
		return err.Error(), nil
	}
	defer os.Remove(link)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
				os.Rename(dir, dir+"2")
				os.Rename(link, dir)
				os.Rename(dir+"2", link)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil && string(data) != "mine" {
			return "", fmt.Errorf("read %.80q", data)
		}
	}
	return "never more than its own file", nil
}

func kernelAttempts() []attempt {
	call := func(number uintptr, args ...uintptr) func() (string, error) {
		return func() (string, error) {
			var full [6]uintptr
			copy(full[:], args)
			_, _, errno := unix.Syscall6(number, full[0], full[1], full[2], full[3], full[4], full[5])
			if errno != 0 {
				return errno.Error(), nil
			}
			return "", fmt.Errorf("call %d succeeds", number)
		}
	}
	calls := func(ways ...func() (string, error)) func(context.Context, *attacker) (string, error) {
		return func(context.Context, *attacker) (string, error) { return all(ways...) }
	}
	write := func(paths ...string) func(context.Context, *attacker) (string, error) {
		return func(context.Context, *attacker) (string, error) {
			return each(paths, func(path string) (string, error) {
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					return err.Error(), nil
				}
				defer f.Close()
				_, err = f.WriteString("|/tmp/x\n")
				return failed(path+" is written", err)
			})
		}
	}
	list := []attempt{
		{name: "kernel-mount", what: "mounting: a new file system, /proc, a bind, over the workspace", try: func(_ context.Context, a *attacker) (string, error) {
			os.MkdirAll("/tmp/mnt", 0o700)
			return all(
				func() (string, error) { return failed("tmpfs", unix.Mount("x", "/tmp/mnt", "tmpfs", 0, "")) },
				func() (string, error) { return failed("proc", unix.Mount("x", "/tmp/mnt", "proc", 0, "")) },
				func() (string, error) { return failed("bind", unix.Mount("/", "/tmp/mnt", "", unix.MS_BIND, "")) },
				func() (string, error) {
					return failed("remount", unix.Mount("", "/run/sbx", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
				},
				func() (string, error) { return failed("unmount", unix.Unmount(a.Workspace, unix.MNT_DETACH)) },
				func() (string, error) { return failed("pivot", unix.PivotRoot("/tmp", "/tmp/mnt")) },
			)
		}},
		{name: "kernel-user-namespace", what: "a user namespace of its own, with every capability in it: mounts there show nothing of the host", try: func(_ context.Context, a *attacker) (string, error) {
			if err := unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNS); err != nil {
				return err.Error(), nil
			}
			os.MkdirAll("/tmp/mnt", 0o700)
			unix.Mount("x", "/tmp/mnt", "proc", 0, "")
			return unreadable("/tmp/mnt/1/root" + a.HostFile)
		}},
		{name: "kernel-namespaces", what: "entering the namespaces of process 1", try: func(context.Context, *attacker) (string, error) {
			return each([]string{"mnt", "net", "pid", "user", "uts", "ipc"}, func(kind string) (string, error) {
				fd, err := unix.Open("/proc/1/ns/"+kind, unix.O_RDONLY, 0)
				if err != nil {
					return err.Error(), nil
				}
				defer unix.Close(fd)
				err = unix.Setns(fd, 0)
				if err == nil { // its own, as it is for every process here
					return "the sandbox's own", nil
				}
				return err.Error(), nil
			})
		}},
		{name: "kernel-host-process", what: "a process of the host: seeing, signalling, tracing it", try: func(_ context.Context, a *attacker) (string, error) {
			return all(
				func() (string, error) { return failed("signalled", unix.Kill(a.HostPID, 0)) },
				func() (string, error) { return failed("traced", unix.PtraceAttach(a.HostPID)) },
				func() (string, error) {
					_, err := os.Stat(fmt.Sprintf("/proc/%d", a.HostPID))
					return failed("seen", err)
				},
			)
		}},
		{name: "kernel-trace-init", what: "tracing process 1, which knows no more than its socket: it holds nothing of the host", try: func(context.Context, *attacker) (string, error) {
			files, err := filepath.Glob("/proc/1/fd/*")
			if err != nil {
				return "", err
			}
			return each(files, func(path string) (string, error) {
				to, err := os.Readlink(path)
				if err == nil && strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/dev/null") {
					return "", fmt.Errorf("process 1 holds %s", to)
				}
				return "no file", nil
			})
		}},
		{name: "kernel-proc-writes", what: "switches in /proc that make the host's kernel run or stop something", try: write("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/vm/drop_caches", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/panic")},
		{name: "kernel-sys-writes", what: "switches in /sys", try: write("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/kernel/security/apparmor/.load", "/sys/firmware/efi/vars/new_var")},
		{name: "kernel-memory", what: "the kernel's memory and symbols", try: func(context.Context, *attacker) (string, error) {
			return each([]string{"/proc/kcore", "/proc/kallsyms", "/sys/kernel/debug/tracing/trace", "/proc/kpagecount", "/boot/vmlinuz"}, unreadable)
		}},
		{name: "kernel-log", what: "the host's kernel log: what there is, is the sandbox's own kernel's", try: func(context.Context, *attacker) (string, error) {
			buf := make([]byte, 16<<10)
			n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf)
			if err != nil {
				return err.Error(), nil
			}
			if text := string(buf[:n]); strings.Contains(text, "Linux version") || !strings.Contains(text, "gVisor") {
				return "", fmt.Errorf("%.200q", text)
			}
			return "gVisor's own", nil
		}},
		{name: "kernel-modules", what: "loading a module or another kernel", try: calls(call(unix.SYS_INIT_MODULE), call(unix.SYS_FINIT_MODULE, ^uintptr(0)), call(unix.SYS_DELETE_MODULE), call(unix.SYS_KEXEC_LOAD))},
		{name: "kernel-programs", what: "programs inside the kernel: BPF, performance events, io_uring, userfaultfd", try: calls(
			call(unix.SYS_BPF, 5, 0, 0), call(unix.SYS_PERF_EVENT_OPEN, 0, 0, ^uintptr(0), ^uintptr(0)), call(unix.SYS_USERFAULTFD, 0), call(unix.SYS_IO_URING_REGISTER, ^uintptr(0)))},
		{name: "kernel-machine", what: "the machine itself: reboot, swap, clock, host name of the host, ports", try: calls(
			call(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF), call(unix.SYS_SWAPON, 0, 0), call(unix.SYS_SETTIMEOFDAY, 0, 0), call(unix.SYS_ADJTIMEX, 0), call(unix.SYS_ACCT, 0))},
		{name: "kernel-keys", what: "the keyrings of the host's user", try: func(context.Context, *attacker) (string, error) {
			id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, false)
			if err != nil {
				return err.Error(), nil
			}
			data := make([]byte, 4096)
			n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, id, data, 0)
			if err != nil {
				return err.Error(), nil
			}
			if n > 0 {
				return "", fmt.Errorf("%d bytes of keys", n)
			}
			return "empty", nil
		}},
		{name: "kernel-shared-memory", what: "shared memory and queues of the host's programs", try: func(context.Context, *attacker) (string, error) {
			data, err := os.ReadFile("/proc/sysvipc/shm")
			if err != nil {
				return err.Error(), nil
			}
			if strings.Count(string(data), "\n") > 1 {
				return "", fmt.Errorf("segments: %.200q", data)
			}
			return "none", nil
		}},
	}
	return grouped(groupKernel, list)
}

func limitAttempts() []attempt {
	list := []attempt{
		{name: "limit-forks", from: "forks", what: "a fork bomb", try: func(ctx context.Context, _ *attacker) (string, error) {
			var attr syscall.ProcAttr
			for n := range 20_000 {
				if ctx.Err() != nil {
					return fmt.Sprintf("%d processes in the time given", n), nil
				}
				if _, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "600"}, &attr); err != nil {
					return fmt.Sprintf("%v after %d processes", err, n), nil
				}
			}
			return "", errors.New("20,000 processes")
		}},
		{name: "limit-disk", from: "disk", what: "filling the disk", try: func(_ context.Context, _ *attacker) (string, error) {
			f, err := os.Create("/tmp/full")
			if err != nil {
				return "", err
			}
			defer f.Close()
			block := make([]byte, 8<<20)
			for i := range block {
				block[i] = byte(i)
			}
			for n := range 256 {
				if _, err := f.Write(block); err != nil {
					return fmt.Sprintf("%v after %d MiB", err, n*8), nil
				}
			}
			return "", errors.New("2 GiB are written")
		}},
		{name: "limit-holes", from: "holes", what: "a file that is one hole of a hundred thousand times the limit, which the host would write out as zeros when it keeps the disk", try: func(_ context.Context, _ *attacker) (string, error) {
			f, err := os.Create("/tmp/hole")
			if err != nil {
				return "", err
			}
			defer f.Close()
			if err := f.Truncate(100 << 40); err != nil {
				return fmt.Sprint(err), nil
			}
			return "made; the host refuses to keep it", nil
		}},
		{name: "limit-memory", from: "memory", what: "taking all memory", try: func(context.Context, *attacker) (string, error) {
			var keep [][]byte
			for range 4 << 10 {
				block := make([]byte, 1<<20)
				for i := 0; i < len(block); i += 4096 {
					block[i] = byte(i)
				}
				keep = append(keep, block)
			}
			return "", fmt.Errorf("%d MiB are taken", len(keep))
		}},
		{name: "limit-http2-resets", what: "requests over HTTP/2 that are taken back at once, without an end: no more are under way than may be, and others go on", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.http2Flood(ctx, true, func(fr *http2.Framer, id uint32, head []byte) error {
				if err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndStream: true, EndHeaders: true}); err != nil {
					return err
				}
				return fr.WriteRSTStream(id, http2.ErrCodeCancel)
			})
		}},
		{name: "limit-http2-header", what: "a header over HTTP/2 that goes on without an end", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.http2Flood(ctx, false, func(fr *http2.Framer, id uint32, head []byte) error {
				if id == 1 {
					return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndStream: true})
				}
				return fr.WriteContinuation(1, false, bytes.Repeat([]byte("\x00\x03x-a\x0a0123456789"), 800))
			})
		}},
		{name: "limit-http2-requests", what: "more requests at once over HTTP/2 than connections may be open: those on top are turned away, and others go on", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.crowd(ctx)
		}, host: "api.github.com:443", reason: "Too many requests"},
		{name: "limit-connections", what: "all connections of the proxy: others go on, and so does this one afterwards", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.flood(ctx)
		}, host: "gateway.docker.internal:3128", reason: "Too many connections"},
	}
	return grouped(groupLimits, list)
}
