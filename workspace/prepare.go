package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Mode says what of the user's checkout the agent gets.
type Mode string

// Modes.
const (
	// ModeClone gives the committed state of HEAD with its history, on a branch of its own.
	ModeClone Mode = "clone"
	// ModeTracked gives the files of HEAD alone, after Source.Edits, as one commit of a neutral author and date. Nothing of
	// the history is in it, so what the agent does there cannot be pushed to where the checkout came from.
	ModeTracked Mode = "tracked"
	// ModeInPlace gives the user's checkout itself. The agent can then change what git runs there, also for the user; the
	// end state says whether it did.
	ModeInPlace Mode = "in-place"
	// ModeEmpty gives an empty repository with one empty commit.
	ModeEmpty Mode = "empty"
)

// Source says what to make a workspace of.
type Source struct {
	Dir        string // the user's checkout or a folder of it
	Mode       Mode   // zero is ModeClone
	Branch     string // the run's own branch, such as "sbxpair/1a2b"
	AllowDirty bool   // go on although there are uncommitted changes; they stay behind
	AllowLFS   bool   // go on although files are in Git LFS; the agent sees their pointers
	Home       string // the user's home folder: it and the folders above it are refused. "" checks neither
	Edits      Edits  // of ModeTracked
}

// Workspace is a prepared copy. It is plain data, so that a run can be resumed from its record.
type Workspace struct {
	Mode       Mode
	Root       string   // folder that holds all of it
	Dir        string   // the work tree: what is mounted into the agent sandbox
	BaseRepo   string   // bare repository with the base commit; never mounted
	Base       string   // the commit that the agent starts from
	BaseBranch string   // branch that HEAD was on, "" if it was detached
	Branch     string   // the run's own branch
	Top        string   // top of the user's checkout
	Subdir     string   // folder below Top that was asked for, "" for Top itself
	Origin     Origin   // where the user's checkout came from, zero if that is not GitHub-like
	Shallow    bool     // the history is cut off, as it is in the user's checkout
	Notes      []string // what the user should know

	// Guard is what git would run or obey in a checkout that is used in place, by path, hashed: of its .git, and of Named.
	Guard map[string]string `json:",omitempty"`
	Named []string          `json:",omitempty"` // paths of that checkout which git's configuration names
}

// Prepare makes a workspace of s in dest, which has to be absent or a folder with nothing in it but an empty folder "work".
// The user's checkout is only read.
// When Prepare fails, nothing of it is left. Refusals are [*Error].
func Prepare(ctx context.Context, s Source, dest string) (Workspace, error) {
	co, err := Inspect(ctx, s)
	if err != nil {
		return Workspace{}, err
	}
	return co.Prepare(ctx, dest)
}

// Prepare makes a workspace of the checkout in dest, which has to be absent or a folder with nothing in it but an empty folder "work". When it fails, nothing of it
// is left. A commit that was made since the checkout was looked at is refused: it was not looked at.
func (co Checkout) Prepare(ctx context.Context, dest string) (ws Workspace, err error) {
	dest, err = emptyDest(dest, co.Top)
	if err != nil {
		return Workspace{}, err
	}
	if err := os.MkdirAll(dest, 0o700); err != nil {
		return Workspace{}, err
	}
	ws = co.Workspace
	ws.Root = dest
	defer func() {
		if err != nil {
			err = errors.Join(err, ws.Remove())
			ws = Workspace{}
		}
	}()
	g, err := ws.git()
	if err != nil {
		return ws, err
	}
	ws.BaseRepo = filepath.Join(dest, "base.git")
	if ws.Mode == ModeEmpty {
		return ws, ws.makeEmpty(ctx, g)
	}
	ws.Dir = Folder(dest, co.Top)
	switch ws.Mode {
	case ModeTracked:
		err = ws.copyTracked(ctx, g, co.source.Edits, co.head)
	default:
		err = ws.copyBase(ctx, g, co.head)
	}
	if err != nil {
		return ws, err
	}
	if ws.Mode == ModeInPlace {
		return ws, ws.usePlace(ctx, g, co.source.Home)
	}
	if err := ws.checkout(ctx, g); err != nil {
		return ws, err
	}
	if err := ws.checkLFS(ctx, g, co.source.AllowLFS); err != nil {
		return ws, err
	}
	return ws, ws.furnish(ctx, g, co.source.Edits)
}

// locate checks what can be told without git, and finds the checkout.
func (s *Source) locate() (checkout, error) {
	if s.Mode == "" {
		s.Mode = ModeClone
	}
	if err := checkBranch(s.Branch); err != nil {
		return checkout{}, err
	}
	switch s.Mode {
	case ModeClone, ModeTracked, ModeInPlace:
	case ModeEmpty:
		return checkout{}, nil
	default:
		return checkout{}, &Error{Kind: ErrMode, Path: string(s.Mode), Remedy: "use clone, tracked, in-place or empty"}
	}
	if s.Mode != ModeTracked && !s.Edits.isZero() {
		return checkout{}, &Error{Kind: ErrEdit, Detail: "only mode tracked takes edits", Remedy: "use tracked"}
	}
	co, err := findCheckout(s.Dir)
	if err != nil {
		return checkout{}, err
	}
	return co, refuseForbidden(co.top, s.Home)
}

// workFolder holds the copy, in a folder of the repository's name.
const workFolder = "work"

// Folder is where in dest the copy of the checkout whose top is given goes: what Prepare returns as Dir.
func Folder(dest, top string) string {
	return filepath.Join(dest, workFolder, folderName(filepath.Base(top)))
}

// git returns the git runner of this workspace.
func (w Workspace) git() (git, error) { return newGit(filepath.Join(w.Root, "home")) }

// Remove deletes all of the workspace, folders that the agent made unreadable included. Gone already is success.
func (w Workspace) Remove() error {
	if w.Root == "" {
		return nil
	}
	if err := os.RemoveAll(w.Root); err == nil {
		return nil
	}
	// A folder without permissions keeps its entries. WalkDir calls before it reads a folder and follows no links; no
	// sandbox mounts the tree any more. What cannot be changed shows in the error of the second removal.
	filepath.WalkDir(w.Root, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && err == nil {
			return os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(w.Root)
}

// baseRef names the base commit in the base repository, outside of refs/heads so that no branch can take its place.
const baseRef = "refs/sbxpair/base"

// copyBase makes the clean base repository by a fetch: the pack protocol copies objects, whatever the user's
// repository shares with others by alternates or hard links.
func (w *Workspace) copyBase(ctx context.Context, g git, head string) error {
	format, err := g.line(ctx, gitRun{dir: w.Top}, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	if err := g.initBare(ctx, w.BaseRepo, format); err != nil {
		return err
	}
	run := gitRun{repo: w.BaseRepo, proto: "file"}
	if _, err := g.do(ctx, run, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow", w.Top, "+HEAD:"+baseRef); err != nil {
		return err
	}
	if w.Base, err = g.line(ctx, run, "rev-parse", baseRef); err != nil {
		return err
	}
	return w.unmoved(w.Base, head)
}

// unmoved refuses a checkout whose HEAD is not the one that was looked at.
func (w *Workspace) unmoved(now, head string) error {
	if now == head {
		return nil
	}
	return &Error{Kind: ErrMoved, Path: w.Top, Detail: fmt.Sprintf("HEAD is %.12s, and was %.12s a moment ago", now, head), Remedy: "try again"}
}

// initBare makes a bare repository without hooks, whose HEAD names no branch: newer gits read attributes from HEAD's
// tree in bare repositories.
func (g git) initBare(ctx context.Context, dir, format string) error {
	if _, err := g.do(ctx, gitRun{}, "init", "--quiet", "--bare", "--template=", "--object-format="+format, "--initial-branch=none", dir); err != nil {
		return err
	}
	return nil
}

// checkout makes the work tree: own repository, copied objects, no remote, no hooks.
func (w *Workspace) checkout(ctx context.Context, g git) error {
	format, err := g.line(ctx, gitRun{repo: w.BaseRepo}, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		return err
	}
	if _, err := g.do(ctx, gitRun{}, "init", "--quiet", "--template=", "--object-format="+format, "--initial-branch="+w.Branch, w.Dir); err != nil {
		return err
	}
	dotgit := filepath.Join(w.Dir, ".git")
	if err := copyTree(filepath.Join(w.BaseRepo, "objects"), filepath.Join(dotgit, "objects")); err != nil {
		return err
	}
	if w.Shallow {
		if err := copyFile(filepath.Join(w.BaseRepo, "shallow"), filepath.Join(dotgit, "shallow"), 0o644); err != nil {
			return err
		}
	}
	config := []byte("[user]\n\tname = " + AuthorName + "\n\temail = " + AuthorEmail + "\n" +
		"[commit]\n\tgpgSign = false\n[tag]\n\tgpgSign = false\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n[advice]\n\tdetachedHead = false\n")
	if err := appendFile(filepath.Join(dotgit, "config"), config); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dotgit, "info"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dotgit, "info", "attributes"), []byte(exactBytes), 0o644); err != nil {
		return err
	}
	run := gitRun{dir: w.Dir, repo: dotgit}
	if _, err := g.do(ctx, run, "update-ref", "refs/heads/"+w.Branch, w.Base); err != nil {
		return err
	}
	if w.BaseBranch != "" && !clash(w.BaseBranch, w.Branch) {
		// Agents compare with the branch they came from ("git diff main").
		if _, err := g.do(ctx, run, "update-ref", "refs/heads/"+w.BaseBranch, w.Base); err != nil {
			return err
		}
	}
	_, err = g.do(ctx, run, "reset", "--quiet", "--hard", w.Base)
	return err
}

// exactBytes are attributes that outrank those of the tree: files are checked out and added byte for byte. Without them
// the end state, which knows no time stamps, would show files as changed that the agent never touched (line ends), and
// would ask for filters. "!" is right for the encoding: git dies on an unset one.
const exactBytes = "* -text -ident -filter !working-tree-encoding\n"

// clash reports whether two branches cannot exist side by side.
func clash(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

const lfsPointer = "version https://git-lfs.github.com/spec/v1\n"

// checkLFS refuses a tree in which files are Git LFS pointers (field report R162): the agent would work on, and deliver,
// three lines of text in place of a file. It runs in the fresh checkout, before the agent sees it.
func (w *Workspace) checkLFS(ctx context.Context, g git, allow bool) error {
	entries, err := g.tree(ctx, w.BaseRepo, w.Base)
	if err != nil {
		return err
	}
	var names strings.Builder
	small := make(map[string]treeEntry)
	attributes := false
	for _, e := range entries {
		attributes = attributes || filepath.Base(e.path) == ".gitattributes"
		if e.size > 0 && e.size <= 1024 && (e.mode == modeFile || e.mode == modeExec) { // a pointer is "less than 1024 bytes" (git-lfs spec)
			small[e.path] = e
			names.WriteString(e.path + "\x00")
		}
	}
	if !attributes {
		return nil
	}
	// The base repository as git folder: the work tree's own has attributes that switch filters off.
	run := gitRun{dir: w.Dir, repo: w.BaseRepo, env: []string{"GIT_WORK_TREE=" + w.Dir}, stdin: strings.NewReader(names.String())}
	out, err := g.do(ctx, run, "check-attr", "--stdin", "-z", "filter")
	if err != nil {
		return err
	}
	var candidates []treeEntry
	for triple := range slices.Chunk(fields(out), 3) {
		if len(triple) == 3 && triple[2] == "lfs" {
			candidates = append(candidates, small[triple[0]])
		}
	}
	var found []string
	blobs, err := g.blobs(ctx, w.BaseRepo, candidates)
	if err != nil {
		return err
	}
	for _, e := range candidates {
		if strings.HasPrefix(string(blobs[e.oid]), lfsPointer) {
			found = append(found, e.path)
		}
	}
	switch {
	case len(found) == 0:
		return nil
	case allow:
		w.Notes = append(w.Notes, fmt.Sprintf("%d files are in Git LFS; the agent sees their pointers: %s", len(found), quoted(first(found))))
		return nil
	}
	host := "the LFS server"
	if w.Origin.Host != "" {
		host = w.Origin.Host + " and the storage host it names"
	}
	return &Error{Kind: ErrLFS, Path: w.Top, Files: first(found), Total: len(found),
		Detail: "their content comes from " + host + ", which the agent sandbox cannot reach",
		Remedy: "if the task does not touch these files: set workspace.lfs (SBXPAIR_WORKSPACE_LFS=true), and the agent gets the pointers"}
}
