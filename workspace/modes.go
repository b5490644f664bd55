package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Edits change the files that ModeTracked hands over, in the order of the fields. A run can so be compared with one that
// lacks a rule of an instruction file.
type Edits struct {
	Remove []Removal         // whole files, or lines of one
	Write  map[string][]byte // path to content: replaces the file, or adds it
	Patch  []byte            // in git's format
	Hooks  map[string][]byte // name of a git hook to its script; they run inside the sandbox only
	Origin bool              // give the agent a local bare "origin" to push to; the end state shows what arrived there
}

// Removal takes a file out, or lines of it.
type Removal struct {
	Path  string
	Lines [][2]int // first and last line, from 1; none means the whole file
}

func (e Edits) isZero() bool {
	return len(e.Remove) == 0 && len(e.Write) == 0 && len(e.Patch) == 0 && len(e.Hooks) == 0 && !e.Origin
}

// neutralDate is that of every first commit that we make, so that the same files give the same commit.
const neutralDate = "2000-01-01T00:00:00+0000"

func editError(path, format string, args ...any) error {
	return &Error{Kind: ErrEdit, Path: path, Detail: fmt.Sprintf(format, args...)}
}

// makeEmpty makes a workspace of nothing.
func (w *Workspace) makeEmpty(ctx context.Context, g git) error {
	w.Dir = filepath.Join(w.Root, workFolder, "repo")
	w.BaseBranch = "main"
	if err := g.initBare(ctx, w.BaseRepo, "sha1"); err != nil {
		return err
	}
	tree, err := g.line(ctx, gitRun{repo: w.BaseRepo, stdin: strings.NewReader("")}, "mktree")
	if err != nil {
		return err
	}
	if err := w.commitBase(ctx, g, w.BaseRepo, tree); err != nil {
		return err
	}
	return w.checkout(ctx, g)
}

// commitBase makes tree the base, as a commit without a past.
func (w *Workspace) commitBase(ctx context.Context, g git, repo, tree string) error {
	run := gitRun{repo: repo, stdin: strings.NewReader("base\n"), env: []string{"GIT_AUTHOR_DATE=" + neutralDate, "GIT_COMMITTER_DATE=" + neutralDate}}
	var err error
	if w.Base, err = g.line(ctx, run, "commit-tree", tree); err != nil {
		return err
	}
	_, err = g.do(ctx, gitRun{repo: repo}, "update-ref", baseRef, w.Base)
	return err
}

// copyTracked makes the base repository of HEAD's files alone. The user's commits stay in a repository that is removed.
func (w *Workspace) copyTracked(ctx context.Context, g git, edits Edits, head string) error {
	format, err := g.line(ctx, gitRun{dir: w.Top}, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	stage := filepath.Join(w.Root, "stage.git")
	if err := g.initBare(ctx, stage, format); err != nil {
		return err
	}
	run := gitRun{repo: stage, proto: "file"}
	// Through file:// because a depth is ignored for plain paths.
	source := "file://" + percent(w.Top)
	if _, err := g.do(ctx, run, "fetch", "--quiet", "--no-tags", "--depth=1", "--no-write-fetch-head", source, "+HEAD:refs/sbxpair/head"); err != nil {
		return err
	}
	now, err := g.line(ctx, run, "rev-parse", "refs/sbxpair/head")
	if err == nil {
		err = w.unmoved(now, head)
	}
	if err != nil {
		return err
	}
	run = gitRun{repo: stage, env: []string{"GIT_INDEX_FILE=" + filepath.Join(stage, "edits.index")}}
	if _, err := g.do(ctx, run, "read-tree", "refs/sbxpair/head"); err != nil {
		return err
	}
	if err := g.applyEdits(ctx, run, edits); err != nil {
		return err
	}
	tree, err := g.line(ctx, run, "write-tree")
	if err != nil {
		return err
	}
	if err := w.commitBase(ctx, g, stage, tree); err != nil {
		return err
	}
	if err := g.initBare(ctx, w.BaseRepo, format); err != nil {
		return err
	}
	if _, err := g.do(ctx, gitRun{repo: w.BaseRepo, proto: "file"}, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", stage, "+"+baseRef+":"+baseRef); err != nil {
		return err
	}
	w.Shallow = false
	return os.RemoveAll(stage)
}

// percent writes a path for a file URL: git decodes %xx in it.
func percent(path string) string { return strings.ReplaceAll(path, "%", "%25") }

// applyEdits changes the index that r names.
func (g git) applyEdits(ctx context.Context, r gitRun, edits Edits) error {
	var info strings.Builder // for update-index --index-info
	files := make(map[string]treeEntry)
	out, err := g.do(ctx, r, "ls-files", "--stage", "-z")
	if err != nil {
		return err
	}
	for _, line := range fields(out) {
		meta, p, ok := strings.Cut(line, "\t")
		f := strings.Fields(meta) // mode, object, stage
		if ok && len(f) == 3 {
			files[p] = treeEntry{mode: f[0], oid: f[1], path: p}
		}
	}
	put := func(mode, p string, data []byte) error {
		oid, err := g.line(ctx, gitRun{repo: r.repo, stdin: bytes.NewReader(data)}, "hash-object", "-w", "--stdin")
		if err != nil {
			return err
		}
		fmt.Fprintf(&info, "%s %s\t%s\x00", mode, oid, p)
		return nil
	}
	for _, rm := range edits.Remove {
		e, ok := files[rm.Path]
		switch {
		case !ok:
			return editError(rm.Path, "there is no such file in HEAD")
		case len(rm.Lines) == 0:
			fmt.Fprintf(&info, "0 %s\t%s\x00", strings.Repeat("0", len(e.oid)), rm.Path)
			continue
		case e.mode != modeFile && e.mode != modeExec:
			return editError(rm.Path, "it is no regular file")
		}
		blobs, err := g.blobs(ctx, r.repo, []treeEntry{e})
		if err != nil {
			return err
		}
		kept, err := cutLines(blobs[e.oid], rm)
		if err != nil {
			return err
		}
		if err := put(e.mode, rm.Path, kept); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(edits.Write)) {
		if why := badPath(p); why != "" || path.Clean(p) != p {
			return editError(p, "%s", or(why, "not in its shortest form"))
		}
		mode := modeFile
		if files[p].mode == modeExec {
			mode = modeExec
		}
		if err := put(mode, p, edits.Write[p]); err != nil {
			return err
		}
	}
	if info.Len() > 0 {
		r.stdin = strings.NewReader(info.String())
		if _, err := g.do(ctx, r, "update-index", "-z", "--add", "--replace", "--index-info"); err != nil {
			return err
		}
	}
	if len(edits.Patch) > 0 {
		r.stdin = bytes.NewReader(edits.Patch)
		_, err := g.do(ctx, r, "apply", "--cached", "--whitespace=nowarn", "-")
		if ge, ok := errors.AsType[*GitError](err); ok && ge.kind == nil {
			return editError("", "the patch does not apply: %s", oneLine(ge.Stderr))
		}
		return err
	}
	return nil
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// cutLines removes line ranges from a file.
func cutLines(data []byte, rm Removal) ([]byte, error) {
	lines := slices.Collect(bytes.Lines(data))
	gone := make([]bool, len(lines))
	for _, r := range rm.Lines {
		if r[0] < 1 || r[1] < r[0] || r[1] > len(lines) {
			return nil, editError(rm.Path, "lines %d to %d of %d", r[0], r[1], len(lines))
		}
		for i := r[0] - 1; i < r[1]; i++ {
			gone[i] = true
		}
	}
	var kept []byte
	for i, line := range lines {
		if !gone[i] {
			kept = append(kept, line...)
		}
	}
	return kept, nil
}

// originDir is where the local origin lies: inside .git it is mounted with the tree and no part of it.
const originDir = "sbxpair-origin.git"

// furnish adds hooks and a local origin to the fresh work tree.
func (w *Workspace) furnish(ctx context.Context, g git, edits Edits) error {
	dotgit := filepath.Join(w.Dir, ".git")
	for name, script := range edits.Hooks {
		if !hookName(name) {
			return editError(name, "not the name of a git hook")
		}
		if err := os.MkdirAll(filepath.Join(dotgit, "hooks"), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dotgit, "hooks", name), script, 0o755); err != nil {
			return err
		}
	}
	if !edits.Origin {
		return nil
	}
	origin := filepath.Join(dotgit, originDir)
	format, err := g.line(ctx, gitRun{repo: w.BaseRepo}, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	if err := g.initBare(ctx, origin, format); err != nil {
		return err
	}
	if err := copyTree(filepath.Join(w.BaseRepo, "objects"), filepath.Join(origin, "objects")); err != nil {
		return err
	}
	branch := or(w.BaseBranch, "main")
	for _, args := range [][]string{{"update-ref", "refs/heads/" + branch, w.Base}, {"symbolic-ref", "HEAD", "refs/heads/" + branch}} {
		if _, err := g.do(ctx, gitRun{repo: origin}, args...); err != nil {
			return err
		}
	}
	// The sandbox's user may not be the owner, and git clears "-c" settings for the other side of a local push: it gets
	// its own (see newGit).
	const safe = "env GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=* "
	run := gitRun{repo: dotgit}
	for _, kv := range [][2]string{{"url", origin}, {"fetch", "+refs/heads/*:refs/remotes/origin/*"}, {"uploadpack", safe + "git-upload-pack"}, {"receivepack", safe + "git-receive-pack"}} {
		if _, err := g.do(ctx, run, "config", "remote.origin."+kv[0], kv[1]); err != nil {
			return err
		}
	}
	_, err = g.do(ctx, run, "update-ref", "refs/remotes/origin/"+branch, w.Base)
	return err
}

// hookName reports whether git has a hook of that name (githooks(5)).
func hookName(name string) bool {
	return slices.Contains([]string{"applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg",
		"post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "post-rewrite", "post-index-change", "reference-transaction", "push-to-checkout"}, name)
}
