package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/workspace"
)

// What a pair needs, in bytes, where the configuration does not say.
const (
	mib          = 1 << 20
	diskLow      = 3 << 30   // warn: sbx's first template takes 2.1 GB (measured by others, 0.39)
	diskTooLow   = 512 * mib // a pair can hardly be made
	memoryTooLow = 256 * mib // for a pair
)

// errUnsure is a question that this system has no answer to.
var errUnsure = errors.New("this system does not tell")

func (e *examination) git(ctx context.Context) {
	e.ask(ctx, "host.git", func(ctx context.Context) (Check, error) {
		path, err := exec.LookPath("git")
		if err != nil {
			return Check{Verdict: Bad, Detail: "git is not installed", Remedy: "install git 2.32 or newer"}, nil
		}
		search, _ := e.Lookup("PATH") // it may be a script that looks for the real one
		res, err := sbx.Exec{Path: path, Env: []string{"LC_ALL=C", "PATH=" + search}}.Run(ctx, sbx.Cmd{Op: "git", Args: []string{"--version"}})
		if err == nil && res.Code != 0 {
			err = fmt.Errorf("exit %d: %.200s", res.Code, oneLine(string(res.Stderr)))
		}
		if err != nil {
			return Check{}, fmt.Errorf("%s --version: %w", path, err)
		}
		out := res.Stdout
		version := sbx.ParseSemver(string(out))
		switch {
		case !version.Known():
			return Check{}, fmt.Errorf("%s --version says %q", path, bytes.TrimSpace(out))
		case version.Compare(sbx.ParseSemver("2.32.0")) < 0:
			return Check{Verdict: Bad, Detail: fmt.Sprintf("git %s at %s is too old", version, path), Remedy: "install git 2.32 or newer"}, nil
		}
		return Check{Verdict: OK, Detail: fmt.Sprintf("git %s at %s", version, path)}, nil
	})
}

// source is the checkout as a run takes it.
func (e *examination) source(allowDirty bool) workspace.Source {
	return workspace.Source{Dir: e.Dir, Mode: workspace.ModeClone, Branch: "sbxpair/doctor", Home: e.Home, AllowDirty: allowDirty}
}

func (e *examination) checkout(ctx context.Context) {
	if e.Dir == "" {
		return
	}
	e.ask(ctx, "checkout", func(ctx context.Context) (Check, error) {
		look, err := workspace.Inspect(ctx, e.source(false))
		refused, is := errors.AsType[*workspace.Error](err)
		switch {
		case err == nil && look.BaseBranch == "":
			return Check{Verdict: Warn, Detail: look.Top + ": HEAD is on no branch", Remedy: "git switch BRANCH, or say where the pull request goes: --base BRANCH"}, nil
		case err == nil:
			return Check{Verdict: OK, Detail: fmt.Sprintf("%s, branch %s", look.Top, look.BaseBranch)}, nil
		case errors.Is(err, workspace.ErrNotRepository) && !e.Asked:
			return Check{Verdict: OK, Detail: "this folder is no checkout; name the one that a run is for with --dir"}, nil
		case errors.Is(err, workspace.ErrForbiddenDir) && !e.Asked:
			return Check{Verdict: Warn, Detail: oneLine(err.Error()), Remedy: "name the checkout that a run is for with --dir"}, nil
		case errors.Is(err, workspace.ErrDirty):
			return Check{Verdict: Warn, Detail: oneLine(err.Error()), Remedy: refused.Remedy}, nil
		case is && !errors.Is(err, workspace.ErrNoGit):
			return Check{Verdict: Bad, Detail: oneLine(err.Error()), Remedy: refused.Remedy}, nil
		}
		return Check{}, err
	})
}

func (e *examination) machine(ctx context.Context) {
	e.ask(ctx, "host.state", func(context.Context) (Check, error) {
		dir := existing(e.State)
		made, err := os.MkdirTemp(dir, ".doctor-")
		if err == nil {
			err = os.Remove(made)
		}
		if err != nil {
			return Check{Verdict: Bad, Detail: fmt.Sprintf("nothing can be kept in %s: %s", e.State, oneLine(err.Error())), Remedy: "make it a folder that you may write to, or name another with XDG_STATE_HOME"}, nil
		}
		return Check{Verdict: OK, Detail: "records are kept in " + e.State}, nil
	})
	e.ask(ctx, "host.disk", func(context.Context) (Check, error) {
		dir := existing(e.State)
		free, err := freeDisk(dir)
		if err != nil {
			return Check{}, fmt.Errorf("free space of %s: %w", dir, err)
		}
		c := Check{Verdict: OK, Detail: fmt.Sprintf("%s free at %s", size(free), dir)}
		switch {
		case free < diskTooLow:
			c.Verdict, c.Remedy = Bad, "free some space on the disk of "+dir+"; sbxpair prune removes what is ours"
		case free < diskLow:
			c.Verdict, c.Remedy = Warn, "free some space on the disk of "+dir
		}
		return c, nil
	})
	e.ask(ctx, "host.memory", func(context.Context) (Check, error) {
		free, err := freeMemory()
		if err != nil {
			return Check{}, err
		}
		ref := pair.EngineRef{Kind: pair.EngineSbx}
		if e.Config.Engine.Kind == "local" || runtime.GOOS == "linux" && e.Config.Engine.Kind == "auto" {
			ref.Kind = pair.EngineLocal
		}
		needs := uint64(provision.PairMemoryMiB(ref, e.Config.Sandbox.MemoryMiB)) * mib
		c := Check{Verdict: OK, Detail: fmt.Sprintf("%s free; a pair takes up to %s", size(free), size(needs))}
		switch {
		case free < memoryTooLow:
			c.Verdict, c.Remedy = Bad, "end other programs, or: sbxpair prune"
		case free < needs:
			c.Verdict, c.Remedy = Warn, "end other programs, or set sandbox.memoryMiB lower"
		}
		return c, nil
	})
}

// existing is the nearest folder above dir that is there.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func size(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n/mib)
}

// path looks at every program called sbx, since the name is not Docker's alone.
func (e *examination) path(ctx context.Context) {
	e.ask(ctx, "engine.path", func(ctx context.Context) (Check, error) {
		var docker, foreign []string
		for _, file := range programs(e.Path) {
			if file == e.mute {
				return Check{}, fmt.Errorf("%s does not tell its version in time", file)
			}
			v, err := sbx.New(file, e.Locate.Client...).Version(ctx)
			switch {
			case err == nil && !v.IsLocal():
				docker = append(docker, fmt.Sprintf("%s (%s)", file, v))
			case err == nil, errors.Is(err, sbx.ErrForeignTool):
				foreign = append(foreign, file)
			default:
				return Check{}, fmt.Errorf("%s does not tell its version: %w", file, err)
			}
		}
		switch {
		case len(foreign) > 0:
			return Check{Verdict: Warn, Remedy: "put Docker's first on the path, or name it in engine.path",
				Detail: "another tool has the name sbx: " + strings.Join(foreign, ", ") + "; Docker's: " + orNone(docker)}, nil
		case len(docker) > 1:
			return Check{Verdict: Warn, Remedy: "name one in engine.path", Detail: "there are several, of which the first is taken: " + strings.Join(docker, ", ")}, nil
		case len(docker) == 0:
			return Check{Verdict: OK, Detail: "no program on the path is called sbx"}, nil
		}
		return Check{Verdict: OK, Detail: "one program is called sbx: " + docker[0]}, nil
	})
}

// programs lists the files called sbx that a shell would start, each once, the first of the path first.
func programs(path string) []string {
	name := "sbx"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	var files []string
	seen := map[string]bool{}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		if dir == "" || err != nil || !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode().Perm()&0o111 == 0 {
			continue
		}
		if real, err := filepath.EvalSymlinks(file); err == nil && !seen[real] {
			seen[real] = true
			files = append(files, file)
		}
	}
	return files
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
