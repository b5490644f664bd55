package workspace

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// inspect reads what there is to know about the user's checkout, and refuses what cannot be copied. It returns HEAD's commit.
func (w *Workspace) inspect(ctx context.Context, g git, s Source) (head string, err error) {
	if err := refusePipes(w.Top); err != nil {
		return "", err
	}
	run := gitRun{dir: w.Top}
	settings, err := g.settings(ctx, run)
	if err != nil {
		return "", err
	}
	for key := range settings {
		if key == "extensions.partialclone" || promisor.MatchString(key) && settings[key] != "false" {
			return "", &Error{Kind: ErrPartialClone, Path: w.Top, Detail: "objects are missing that git would fetch on demand",
				Remedy: "git fetch --refetch --no-filter, or clone it again without --filter"}
		}
	}
	info, err := g.line(ctx, run, "rev-parse", "--is-bare-repository", "--is-shallow-repository", "--show-toplevel")
	lines := strings.SplitN(info, "\n", 3)
	switch {
	case len(lines) > 0 && lines[0] == "true":
		return "", &Error{Kind: ErrBare, Path: w.Top, Detail: "core.bare is set", Remedy: "git config core.bare false, or clone it"}
	case err != nil:
		return "", err
	case len(lines) != 3 || filepath.Clean(lines[2]) != w.Top:
		return "", &Error{Kind: ErrNotRepository, Path: w.Top, Detail: "core.worktree points elsewhere", Remedy: "git config --unset core.worktree"}
	}
	w.Shallow = lines[1] == "true"
	if head, err = g.line(ctx, run, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"); err != nil {
		if _, ok := errors.AsType[*GitError](err); ok {
			return "", &Error{Kind: ErrNoCommits, Path: w.Top, Remedy: "git add -A && git commit -m start"}
		}
		return "", err
	}
	w.BaseBranch, err = g.line(ctx, run, "symbolic-ref", "--quiet", "--short", "HEAD")
	if _, ok := errors.AsType[*GitError](err); ok {
		w.BaseBranch = ""
	} else if err != nil {
		return "", err
	}
	w.Origin = pickOrigin(settings)
	if err := w.refuseSubmodules(ctx, g, run); err != nil {
		return "", err
	}
	dirty, err := g.dirty(ctx, run, settings)
	if err != nil {
		return "", err
	}
	if len(dirty) > 0 && s.Mode == ModeInPlace {
		if !s.AllowDirty {
			return "", &Error{Kind: ErrDirty, Path: w.Top, Files: first(dirty), Total: len(dirty),
				Remedy: "commit or stash them; or allow a dirty tree: they are then counted among the agent's changes"}
		}
		w.Notes = append(w.Notes, fmt.Sprintf("%d uncommitted changes of yours are counted among the agent's: %s", len(dirty), quoted(first(dirty))))
		return head, nil
	}
	if len(dirty) > 0 && !s.AllowDirty {
		return "", &Error{Kind: ErrDirty, Path: w.Top, Files: first(dirty), Total: len(dirty),
			Remedy: "commit or stash them; or allow it (--allow-dirty): they then stay out of the agent's copy"}
	}
	if w.BaseBranch == "" {
		w.Notes = append(w.Notes, "HEAD is detached: there is no base branch to return to")
	}
	if len(dirty) > 0 {
		w.Notes = append(w.Notes, fmt.Sprintf("%d uncommitted changes stay behind: %s", len(dirty), quoted(first(dirty))))
	}
	if w.Subdir != "" {
		w.Notes = append(w.Notes, fmt.Sprintf("%q is a folder of the repository %q, which is used as a whole", w.Subdir, w.Top))
	}
	if w.Shallow {
		w.Notes = append(w.Notes, "the checkout is shallow, so is the copy")
	}
	return head, nil
}

// refuseSubmodules looks for links to other repositories in HEAD.
func (w *Workspace) refuseSubmodules(ctx context.Context, g git, r gitRun) error {
	r.limit = 256 << 20
	out, err := g.do(ctx, r, "ls-tree", "-r", "-z", "--full-tree", "HEAD")
	if err != nil {
		return err
	}
	var subs []string
	for _, line := range fields(out) {
		if meta, path, ok := strings.Cut(line, "\t"); ok && strings.HasPrefix(meta, modeSubmodule) {
			subs = append(subs, path)
		}
	}
	if len(subs) == 0 {
		return nil
	}
	return &Error{Kind: ErrSubmodules, Path: w.Top, Files: first(subs), Total: len(subs),
		Remedy: "run in the submodule itself, or on a branch that has its files in the tree"}
}

var promisor = regexp.MustCompile(`^remote\..*\.promisor$`)

// settings reads the checkout's own configuration. Of what is set twice, the last counts.
func (g git) settings(ctx context.Context, r gitRun) (map[string]string, error) {
	list, err := g.listed(ctx, r)
	m := make(map[string]string)
	for _, entry := range list {
		m[entry.key] = entry.value
	}
	return m, err
}

// setting is one line of a configuration. Keys are in git's canonical form.
type setting struct{ key, value string }

// listed reads all of the checkout's own configuration, that of its work tree included (extensions.worktreeConfig), which
// --local would leave out; or what else is asked for. Our own settings are the last.
func (g git) listed(ctx context.Context, r gitRun, from ...string) (list []setting, err error) {
	out, err := g.do(ctx, r, append(append([]string{"config"}, from...), "--includes", "--null", "--list")...)
	if err != nil {
		return nil, err
	}
	for _, entry := range fields(out) {
		key, value, _ := strings.Cut(entry, "\n")
		list = append(list, setting{key, value})
	}
	return list, nil
}

// pickOrigin returns the origin remote, or the only remote that is GitHub-like.
func pickOrigin(settings map[string]string) Origin {
	if o, ok := ParseOrigin(settings["remote.origin.url"]); ok {
		return o
	}
	var found []Origin
	for key, value := range settings {
		if strings.HasPrefix(key, "remote.") && strings.HasSuffix(key, ".url") && key != "remote.origin.url" {
			if o, ok := ParseOrigin(value); ok {
				found = append(found, o)
			}
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return Origin{}
}

// dirty lists what differs from HEAD, untracked files included. Filters that the checkout's configuration names are
// switched off: status would run them on files whose time stamp changed.
func (g git) dirty(ctx context.Context, r gitRun, settings map[string]string) ([]string, error) {
	var off []string
	for key := range settings {
		if strings.HasPrefix(key, "filter.") {
			for _, last := range []string{".clean", ".smudge", ".process", ".required"} {
				if strings.HasSuffix(key, last) {
					off = append(off, key)
				}
			}
		}
	}
	slices.Sort(off)
	r.env = append(slices.Clone(r.env), "GIT_CONFIG_COUNT="+strconv.Itoa(len(off)))
	for i, key := range off {
		r.env = append(r.env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=", i))
	}
	out, err := g.do(ctx, r, "status", "--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=all", "--no-renames")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range fields(out) {
		if len(entry) > 3 {
			names = append(names, entry[3:])
		}
	}
	return names, nil
}
