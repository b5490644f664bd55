package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// Isolation names what separates this engine's sandboxes from the host.
func (e *Engine) Isolation() string {
	if e.Rootless {
		return "gvisor/systrap (rootless)"
	}
	return "gvisor/systrap"
}

// Probe reports whether gVisor can run here by what the kernel allows, in a few milliseconds; the error is an
// *IsolationError. That a sandbox really starts is known only by starting one.
func (e *Engine) Probe(ctx context.Context) error {
	if !e.Rootless {
		return nil
	}
	return tryUserNamespace(ctx, e.Self)
}

// tryUserNamespace makes a user namespace with this user as its root, as gVisor does when rootless.
func tryUserNamespace(ctx context.Context, self string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "_true")
	cmd.Args[0] = "sbx-local"
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return namespaceError(err.Error(), readSetting)
	}
	return nil
}

// readSetting returns a kernel setting, or "" if the kernel does not have it.
func readSetting(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// namespaceError names the setting that keeps an ordinary user from making a user namespace.
func namespaceError(detail string, setting func(string) string) error {
	const asRoot = ", or run sbx-local as root"
	e := &IsolationError{Detail: detail}
	switch {
	case setting("/proc/sys/user/max_user_namespaces") == "0":
		e.Cause = "user namespaces are switched off (user.max_user_namespaces is 0)"
		e.Remedy = "run: sudo sysctl -w user.max_user_namespaces=15000" + asRoot
	case setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		e.Cause = "ordinary users may not make user namespaces (kernel.unprivileged_userns_clone is 0)"
		e.Remedy = "run: sudo sysctl -w kernel.unprivileged_userns_clone=1" + asRoot
	case setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		e.Cause = "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)"
		e.Remedy = "add an AppArmor profile with 'userns,' for sbx-local, or run: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" + asRoot
	default:
		e.Cause = "the kernel refuses a user namespace (" + detail + ")"
		e.Remedy = "allow user namespaces for this user (a container needs --security-opt seccomp=unconfined or its own user namespace)" + asRoot
	}
	return e
}

// explain turns gVisor's failure to start into an error that says what to do, where the cause can be told.
func (e *Engine) explain(ctx context.Context, words string) error {
	if err := e.Probe(ctx); err != nil {
		if known, ok := errors.AsType[*IsolationError](err); ok {
			known.Detail = words
			return known
		}
	}
	switch {
	case strings.Contains(words, "ptrace") || strings.Contains(words, "seccomp"):
		return &IsolationError{
			Cause:  "the kernel or an outer container forbids what gVisor's systrap platform needs (ptrace and seccomp)",
			Remedy: "check /proc/sys/kernel/yama/ptrace_scope, and the seccomp profile of the container around this", Detail: words,
		}
	case strings.Contains(words, "operation not permitted") || strings.Contains(words, "permission denied"):
		return &IsolationError{
			Cause:  "the kernel or an outer container refuses a privilege (" + words + ")",
			Remedy: "run as an ordinary user with user namespaces allowed, or as root outside of a restricted container", Detail: words,
		}
	}
	return fmt.Errorf("start gVisor: %s", words)
}

// Limits says what holds sandboxes to their share of the machine: "cgroup", or why nothing does.
func (e *Engine) Limits() string {
	if e.Rootless {
		return limitsRootless
	}
	return tryCgroups(cgroupRoot)
}

// BootTest starts an empty sandbox, without network or policy, and removes it. The error is an *IsolationError where the
// cause is known.
func (e *Engine) BootTest(ctx context.Context) (err error) {
	if err := e.Probe(ctx); err != nil {
		return err
	}
	id := uuid.NewString()
	r := Record{Version: recordVersion, Name: "boot-test-" + id[:8], ID: id, Status: Creating, Limits: limitsRootless, Probe: true}
	unlock, err := e.lock(ctx, r.Name)
	if err != nil {
		return err
	}
	defer unlock()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		err = errors.Join(err, e.destroy(ctx, r), os.RemoveAll(e.State.ProxyDir(r.ID)), removeAll(e.State.SandboxDir(r.Name)))
		e.State.dropRuntime()
	}()
	if err := errors.Join(os.MkdirAll(e.State.SandboxDir(r.Name), 0o700), e.save(r)); err != nil {
		return err
	}
	if err := errors.Join(e.State.makeRuntime(), os.MkdirAll(e.State.ProxyDir(r.ID), 0o700), e.writeDisk(r, nil, nil), e.writeBundle(r)); err != nil {
		return err
	}
	return e.boot(ctx, &r)
}
