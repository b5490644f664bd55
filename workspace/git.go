package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/guest"
)

// Identity of every commit that we make. The domain is reserved (RFC 2606), so nobody can own the address.
const (
	AuthorName  = "sbxpair agent"
	AuthorEmail = "agent@sbxpair.invalid"
)

// git runs git on the host, closed off from the user's configuration.
type git struct {
	path string // of the program
	home string // private folder with our .gitconfig and nothing else
}

// newGit finds git and writes the private home folder.
//
// safe.directory has to stand in a configuration *file*: git drops "-c" settings from the environment of the
// upload-pack that a fetch from a local path starts, and upload-pack refuses a repository of another owner (git 2.39.4).
func newGit(home string) (git, error) {
	path, err := exec.LookPath("git")
	if err != nil {
		return git{}, &Error{Kind: ErrNoGit, Remedy: "install git 2.32 or newer"}
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return git{}, err
	}
	const config = "[safe]\n\tdirectory = *\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(config), 0o600); err != nil {
		return git{}, err
	}
	return git{path, home}, nil
}

// gitRun is one git process.
type gitRun struct {
	dir   string   // working folder
	repo  string   // --git-dir; "" lets git look for it
	proto string   // the one protocol allowed, "" = none
	env   []string // added
	stdin io.Reader
	out   io.Writer // nil: collected and returned, up to limit
	limit int64     // of collected output; 0 = 64 MiB
}

// memory is the largest single allocation that git may make. Objects of an agent are not to be trusted with more: a
// delta can name a result of any size. GIT_ALLOC_LIMIT is in git since 2014 (wrapper.c).
const memory = "1g"

func (g git) environ(proto string) []string {
	return []string{
		"PATH=" + filepath.Dir(g.path) + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=" + g.home, "XDG_CONFIG_HOME=" + filepath.Join(g.home, "none"),
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + filepath.Join(g.home, ".gitconfig"), "GIT_ATTR_NOSYSTEM=1",
		"LC_ALL=C", "TZ=UTC", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "GIT_SSH_COMMAND=/bin/false",
		"GIT_PAGER=cat", "GIT_EDITOR=/bin/false", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1",
		"GIT_ALLOW_PROTOCOL=" + proto, "GIT_ALLOC_LIMIT=" + memory,
		"GIT_AUTHOR_NAME=" + AuthorName, "GIT_AUTHOR_EMAIL=" + AuthorEmail,
		"GIT_COMMITTER_NAME=" + AuthorName, "GIT_COMMITTER_EMAIL=" + AuthorEmail,
	}
}

// neutral are settings that a repository's own configuration cannot override.
func neutral() []string {
	return []string{
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.pager=cat", "-c", "core.attributesFile=/dev/null",
		"-c", "core.excludesFile=/dev/null", "-c", "core.sshCommand=/bin/false", "-c", "core.gitProxy=", "-c", "core.alternateRefsCommand=/bin/false",
		"-c", "credential.helper=", "-c", "commit.gpgSign=false", "-c", "tag.gpgSign=false", "-c", "log.showSignature=false",
		"-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "submodule.recurse=false", "-c", "fetch.recurseSubmodules=false",
		"-c", "core.bigFileThreshold=16m", "-c", "advice.detachedHead=false", "-c", "init.defaultBranch=main",
	}
}

// gitTime bounds one git process: what it reads can be a pipe that nobody writes to, or made so that it never ends. A large
// repository takes minutes.
const gitTime = 30 * time.Minute

// do runs git and returns its output. The error is a *GitError if git exited non-zero, or matches [ErrTooLarge] if it said
// more than the limit: a kilobyte of trees can stand for a billion paths, so it is stopped there. Where r.out is capped,
// that is no error.
func (g git) do(ctx context.Context, r gitRun, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, gitTime, fmt.Errorf("no end after %v", gitTime))
	defer cancel()
	argv := neutral()
	if r.repo != "" {
		argv = append(argv, "--git-dir="+r.repo)
	}
	argv = append(argv, args...)
	cmd := exec.CommandContext(ctx, g.path, argv...)
	cmd.Dir = r.dir
	if cmd.Dir == "" {
		cmd.Dir = g.home
	}
	cmd.Env = append(g.environ(r.proto), r.env...)
	cmd.Stdin = r.stdin
	limit := r.limit
	if limit == 0 {
		limit = 64 << 20
	}
	stdout := &capped{limit: limit, stop: cancel}
	cmd.Stdout = stdout
	enough, _ := r.out.(*capped)
	if r.out != nil {
		cmd.Stdout = r.out
	}
	if enough != nil {
		enough.stop = cancel
	}
	stderr := &guest.Tail{Limit: 4 << 10}
	cmd.Stderr = stderr
	endTogether(cmd)
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Start()
	if err == nil {
		limitMemory(cmd.Process.Pid)
		err = cmd.Wait()
	}
	op := args[0]
	switch _, exited := errors.AsType[*exec.ExitError](err); {
	case stdout.over:
		return nil, &GitError{Op: op, Code: -1, Stderr: fmt.Sprintf("it prints more than %d bytes", limit), kind: ErrTooLarge}
	case err == nil || enough != nil && enough.over:
		return stdout.buf.Bytes(), nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("git %s: %w", op, context.Cause(ctx))
	case exited:
		ge := &GitError{Op: op, Code: cmd.ProcessState.ExitCode(), Stderr: stderr.String()}
		if strings.Contains(ge.Stderr, "No space left on device") {
			ge.kind = ErrNoSpace
		}
		if strings.Contains(strings.ToLower(ge.Stderr), "out of memory") {
			ge.kind = ErrTooLarge
		}
		return stdout.buf.Bytes(), ge
	default:
		return nil, fmt.Errorf("git %s: %w", op, err)
	}
}

// line runs git and returns its output without the final newline.
func (g git) line(ctx context.Context, r gitRun, args ...string) (string, error) {
	out, err := g.do(ctx, r, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

// capped keeps the first limit bytes, and stops whoever writes more.
type capped struct {
	buf   bytes.Buffer
	limit int64
	over  bool
	stop  func()
}

func (c *capped) Write(p []byte) (int, error) {
	if room := c.limit - int64(c.buf.Len()); int64(len(p)) > room {
		c.over = true
		c.buf.Write(p[:room])
		c.stop()
		return len(p), nil
	}
	return c.buf.Write(p)
}

// fields splits NUL-terminated output.
func fields(out []byte) []string {
	s := strings.TrimSuffix(string(out), "\x00")
	if s == "" {
		return nil
	}
	return strings.Split(s, "\x00")
}
