package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/engine/ports"
	"github.com/sbxpair/sbxpair/engine/sentry"
)

// CloneSource is where a sandbox that works in a clone sees the repository, read only.
const CloneSource = "/run/sandbox/source"

// clonePort is where the sandbox's git daemon listens.
const clonePort = 9418

// Deadlines of git, inside and on the host.
const (
	cloneTimeout = 10 * time.Minute
	gitTimeout   = 30 * time.Second
)

// A CloneError is a folder that cannot be worked on in a clone.
type CloneError struct {
	Path     string
	Worktree bool // it is one of several work trees of a repository
}

func (e *CloneError) Error() string {
	if e.Worktree {
		return fmt.Sprintf("--clone is not supported when run from a Git worktree (%s); run from the main repository instead", e.Path)
	}
	return fmt.Sprintf("--clone requires a Git repository, but %s is not in a Git repository", e.Path)
}

// FindRepository returns the top folder of the repository that dir is in; the error is a *CloneError.
func FindRepository(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		fi, err := os.Lstat(filepath.Join(at, ".git"))
		switch {
		case err == nil && fi.IsDir():
			return at, nil
		case err == nil:
			return "", &CloneError{at, true}
		case at == "/" || at == ".":
			return "", &CloneError{dir, false}
		}
	}
}

// checkClone refuses what git cannot make refs of.
func checkClone(name string) error {
	if strings.Contains(name, "..") || strings.HasSuffix(name, ".lock") {
		return &NameError{name, "cannot be part of a Git ref, as --clone needs"}
	}
	return nil
}

// RemoteName is the remote that a repository gets for a sandbox that works in a clone of it.
func (r Record) RemoteName() string { return "sandbox-" + r.Name }

// GitURL is where the sandbox's git daemon is reached, or "".
func (r Record) GitURL() string {
	if r.Clone == nil {
		return ""
	}
	for _, p := range r.Ports {
		if p.SandboxPort == clonePort {
			return fmt.Sprintf("git://%s/%s", p.Host(), path.Base(r.Clone.Path))
		}
	}
	return ""
}

func gitPort() ports.Port {
	return ports.Port{HostIP: "127.0.0.1", SandboxPort: clonePort, Protocol: "tcp4"}
}

// makeClone clones the repository inside, at its own path.
func (e *Engine) makeClone(ctx context.Context, r Record) error {
	ctx, cancel := context.WithTimeout(ctx, cloneTimeout)
	defer cancel()
	for _, argv := range [][]string{
		{"git", "config", "--global", "--add", "safe.directory", CloneSource}, // it may belong to somebody else
		{"git", "config", "--global", "--add", "safe.directory", CloneSource + "/.git"},
		{"git", "clone", "--quiet", "--no-hardlinks", "--", CloneSource, r.Clone.Path},
	} {
		if err := e.inside(ctx, r, argv...); err != nil {
			return fmt.Errorf("clone of %s: %w", r.Clone.Path, err)
		}
	}
	return nil
}

// serveClone starts the git daemon inside; nothing can be pushed to it.
func (e *Engine) serveClone(ctx context.Context, r Record) error {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	err := e.inside(ctx, r, "git", "daemon", "--detach", "--reuseaddr", "--export-all", "--listen=127.0.0.1", fmt.Sprintf("--port=%d", clonePort),
		"--base-path="+path.Dir(r.Clone.Path), r.Clone.Path)
	if err != nil {
		return fmt.Errorf("git daemon: %w", err)
	}
	return nil
}

// inside runs a program of the sandbox to its end; its last words are the error.
func (e *Engine) inside(ctx context.Context, r Record, argv ...string) error {
	var words bytes.Buffer
	proc := sentry.Process{Argv: argv, Env: mergeEnv(r.Env), Dir: "/", Bounding: capabilityBits, Held: capabilityBits}
	res, err := e.execute(ctx, r, proc, ExecSpec{Stderr: &words}, "")
	if launch, ok := errors.AsType[*LaunchError](err); ok {
		return errors.New(launch.Text) // no program of the caller's
	}
	if err != nil {
		return err
	}
	if res.code != 0 {
		return fmt.Errorf("%s %s: exit %d: %s", argv[0], argv[1], res.code, strings.TrimSpace(words.String()))
	}
	return nil
}

// addRemote tells the user's repository of the clone, so that "git fetch sandbox-NAME" brings its branches.
func (e *Engine) addRemote(ctx context.Context, r Record) error {
	section := "remote." + r.RemoteName()
	for _, args := range [][]string{
		{"config", "--replace-all", section + ".url", r.GitURL()},
		{"config", "--replace-all", section + ".fetch", "+refs/heads/*:refs/remotes/" + r.RemoteName() + "/*"},
		{"config", "--add", section + ".fetch", "+refs/heads/*:refs/sandboxes/" + r.Name + "/*"},
	} {
		if err := hostGit(ctx, r.Clone.Source, args...); err != nil {
			return err
		}
	}
	return nil
}

// removeRemote takes the remote away again; refs/sandboxes/NAME stay. A repository that is gone has none.
func (e *Engine) removeRemote(ctx context.Context, r Record) error {
	if r.Clone == nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(r.Clone.Source, ".git")); err != nil {
		return nil
	}
	if hostGit(ctx, r.Clone.Source, "config", "--get", "remote."+r.RemoteName()+".url") != nil {
		return nil
	}
	return hostGit(ctx, r.Clone.Source, "remote", "remove", r.RemoteName())
}

// hostGit runs git on the user's own repository, which the sandbox can only read. It changes configuration and refs.
func hostGit(ctx context.Context, repository string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-C", repository}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0"}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("git is not installed on this machine")
	}
	if err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
