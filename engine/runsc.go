package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sbxpair/sbxpair/engine/lower"
	"github.com/sbxpair/sbxpair/engine/sentry"
)

// Deadlines of single gVisor calls.
const (
	startTimeout  = 30 * time.Second
	deleteTimeout = 15 * time.Second
	startEachMiB  = 100 * time.Millisecond // of a disk that is read in
	saveTimeout   = 5 * time.Minute        // the disk's changes are written out; they may be large
)

// containerID names the sandbox to gVisor: short, since gVisor makes a socket path of it.
func containerID(id string) string { return id[:13] }

func (e *Engine) runscRoot(id string) string { return filepath.Join(e.State.Runtime, id+".runsc") }

// controlSocket is where the sandbox's kernel listens, as gVisor names it.
func (e *Engine) controlSocket(id string) sentry.Socket {
	container := containerID(id)
	return sentry.Socket{Path: filepath.Join(e.runscRoot(id), "runsc-"+container+".sock"), Container: container}
}

// runscArgs are gVisor's global flags for the sandbox, then args.
func (e *Engine) runscArgs(r Record, args ...string) []string {
	dir := e.State.SandboxDir(r.Name)
	flags := []string{
		"_runsc", "--root=" + e.runscRoot(r.ID), "--platform=systrap", "--network=none", "--host-uds=open",
		"--overlay2=root:dir=" + dir + ",size=" + strconv.Itoa(diskGiB(r)) + "g",
		// The default makes a bind mount in our runtime folder that stays there.
		"--gofer-network-namespace=new",
		"--log=" + filepath.Join(dir, "runsc.log"), "--log-format=json", "--allow-rootfs-tar-annotation",
	}
	if e.Rootless {
		flags = append(flags, "--rootless")
	}
	if r.Limits != limitsCgroup {
		flags = append(flags, "--ignore-cgroups")
	}
	return append(flags, args...)
}

// command prepares one gVisor process in a session of its own, with an environment of its own and nothing on its streams:
// gVisor hands its streams to what it leaves running, and a caller that reads them to the end would wait for that.
func (e *Engine) command(ctx context.Context, r Record, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.Self, e.runscArgs(r, args...)...)
	cmd.Args[0] = "sbx-local"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	return cmd
}

// runsc runs one gVisor command to its end. An error carries gVisor's last words.
func (e *Engine) runsc(ctx context.Context, timeout time.Duration, r Record, args ...string) error {
	return e.runscWith(ctx, timeout, r, nil, args...)
}

// runscWith is runsc for a command that gets files, as descriptors from 3 on.
func (e *Engine) runscWith(ctx context.Context, timeout time.Duration, r Record, files []*os.File, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log := filepath.Join(e.State.SandboxDir(r.Name), "runsc.log")
	os.Truncate(log, 0) // it grows by a few lines a command; only the last ones are ever read
	cmd := e.command(ctx, r, args...)
	cmd.ExtraFiles = files
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("gVisor: %w", context.Cause(ctx))
	}
	if words := lastError(log); words != "" {
		return fmt.Errorf("gVisor: %s", words)
	}
	return fmt.Errorf("gVisor: %w", err)
}

// lastError returns the last error that gVisor wrote to its log.
func lastError(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	last := ""
	for line := range bytes.Lines(data) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg != "" && (entry.Level == "error" || entry.Level == "fatal") {
			last = entry.Msg
		}
	}
	return strings.TrimSpace(last)
}

// boot starts the sandbox from its bundle and returns when its process 1 is ready. The record gets the process.
func (e *Engine) boot(ctx context.Context, r *Record) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout+time.Duration(e.diskSize(r.Name)>>20)*startEachMiB)
	defer cancel()
	dir := e.State.SandboxDir(r.Name)
	if err := errors.Join(e.State.makeRuntime(), os.MkdirAll(e.runscRoot(r.ID), 0o700)); err != nil {
		return err
	}
	ready, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	log := filepath.Join(dir, "runsc.log")
	os.Truncate(log, 0)
	pidFile := filepath.Join(dir, "pid")
	cmd := e.command(ctx, *r, "run", "--detach", "--bundle="+dir, "--pid-file="+pidFile, "--pass-fd=3:3", containerID(r.ID))
	cmd.ExtraFiles = []*os.File{write}
	cmd.Args = slices.Insert(cmd.Args, 1, lower.Verb, e.bindsPath(r.Name))
	lower.Isolate(cmd, e.Rootless)
	err = cmd.Run()
	write.Close()
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("start gVisor: %w", context.Cause(ctx))
		}
		return e.explain(ctx, cmp.Or(lower.Failure(e.bindsPath(r.Name)), lastError(log), err.Error()))
	}
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Now()) })
	defer stop()
	if n, err := ready.Read(make([]byte, 1)); n == 0 {
		return fmt.Errorf("process 1 of the sandbox did not become ready: %w", errors.Join(err, ctx.Err()))
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	if r.Process, err = strconv.Atoi(strings.TrimSpace(string(data))); err != nil {
		return fmt.Errorf("gVisor's pid file: %w", err)
	}
	if r.ProcessStart = processStart(r.Process); r.ProcessStart == 0 {
		return errors.New("the sandbox ended right after its start")
	}
	return nil
}

// destroy ends whatever of the sandbox runs, and removes gVisor's and the daemon's files of it. Nothing there is success.
func (e *Engine) destroy(ctx context.Context, r Record) error {
	ctx = context.WithoutCancel(ctx)
	root := e.runscRoot(r.ID)
	var errs []error
	entries, err := os.ReadDir(root)
	there := err == nil && len(entries) > 0
	whole := r.Status == Stopped && !there || r.Status == Running && e.endKernel(r) == nil
	if !whole && there {
		err := e.runsc(ctx, deleteTimeout, r, "delete", "--force", containerID(r.ID))
		if err != nil {
			e.logger().Warn("gVisor could not delete a sandbox; killing it", "sandbox", r.Name, "err", err)
		}
		whole = err == nil && (r.Status == Running || r.Status == Stopped)
	}
	// What gVisor knows nothing of, or could not end: every process of the sandbox has this argument. Where no command died
	// over a start or stop, all have ended by now, and a look at every process of the machine is saved: each of many
	// sandboxes has several.
	if !whole {
		errs = append(errs, endByArg("--root="+root))
	}
	errs = append(errs, removeCgroups(ctx, cgroupRoot, r), removeAll(root))
	return errors.Join(errs...)
}

// endKernel ends the kernel of a running sandbox and its file server, which gVisor keeps by number, and waits for their end. It is
// what gVisor's own delete does (container.Destroy), without the start of one more program.
func (e *Engine) endKernel(r Record) error {
	container, root := containerID(r.ID), e.runscRoot(r.ID)
	data, err := os.ReadFile(filepath.Join(root, container+"_sandbox:"+container+".state"))
	if err != nil {
		return err
	}
	var state struct {
		Gofer   int `json:"goferPid"`
		Sandbox struct {
			Kernel int `json:"pid"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return err
	}
	if state.Sandbox.Kernel != r.Process || state.Gofer <= 0 {
		return fmt.Errorf("gVisor knows the processes %d and %d, not %d", state.Sandbox.Kernel, state.Gofer, r.Process)
	}
	return errors.Join(endProcess(state.Sandbox.Kernel, "--root="+root), endProcess(state.Gofer, "--root="+root))
}

// removeAll is os.RemoveAll, but also of folders that their owner made unwritable.
func removeAll(path string) error {
	if err := os.RemoveAll(path); err == nil {
		return nil
	}
	filepath.WalkDir(path, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}
