package workspace_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/workspace"
)

// sh runs a script in dir with git closed off from the machine's configuration, as the user or as the agent.
func sh(t *testing.T, dir, script string) string {
	t.Helper()
	return shell(t, dir, script)
}

func shell(t testing.TB, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=u", "GIT_AUTHOR_EMAIL=u@example.com", "GIT_COMMITTER_NAME=u", "GIT_COMMITTER_EMAIL=u@example.com",
		"GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=init.defaultBranch", "GIT_CONFIG_VALUE_0=main",
		"GIT_CONFIG_KEY_1=protocol.file.allow", "GIT_CONFIG_VALUE_1=always", "GIT_CONFIG_KEY_2=safe.directory", "GIT_CONFIG_VALUE_2=*"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newRepo makes a repository of three files and one commit.
func newRepo(t *testing.T) string {
	t.Helper()
	return newRepoAt(t, filepath.Join(t.TempDir(), "proj"))
}

func newRepoAt(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sh(t, dir, `git init -q
printf 'one\ntwo\n' >a.txt
mkdir sub && echo deep >sub/b.txt
printf 'build/\n*.log\n' >.gitignore
git add -A && git commit -qm first`)
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

func prepare(t *testing.T, dir string) workspace.Workspace {
	t.Helper()
	w, err := workspace.Prepare(t.Context(), workspace.Source{Dir: dir, Branch: "sbxpair/run-1"}, filepath.Join(t.TempDir(), "ws"))
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	return w
}

// sandbox runs a sandbox's commands on this machine.
type sandbox struct {
	home string // its HOME, with whatever the agent put there
	path string // put before PATH
}

func (g sandbox) Run(ctx context.Context, c guest.Command) (int, error) {
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append([]string{"PATH=" + g.path + os.Getenv("PATH"), "HOME=" + g.home, "LANG=C"}, c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		return cmd.ProcessState.ExitCode(), nil
	}
	return 0, err
}

// runnerFunc is a Runner from a function.
type runnerFunc func(ctx context.Context, c guest.Command) (int, error)

func (f runnerFunc) Run(ctx context.Context, c guest.Command) (int, error) { return f(ctx, c) }

func collect(t *testing.T, w workspace.Workspace) workspace.EndState {
	t.Helper()
	e, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{})
	if err != nil {
		t.Fatalf("Collect: %v", err)
	}
	return e
}

// file finds a changed file.
func file(t *testing.T, e workspace.EndState, path string) workspace.File {
	t.Helper()
	for _, f := range e.Files {
		if f.Path == path {
			return f
		}
	}
	t.Fatalf("no %q among the changed files: %+v", path, e.Files)
	return workspace.File{}
}
