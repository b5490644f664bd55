package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// checkout is a repository found on disk.
type checkout struct {
	top string // resolved
	sub string // what was asked for, relative to top
}

// findCheckout looks for the repository that dir lies in, as git does, but without asking git: what is there decides
// which refusal the user sees, and nothing may run before that is known.
func findCheckout(dir string) (checkout, error) {
	if strings.ContainsAny(dir, "\n\r\x00") {
		return checkout{}, &Error{Kind: ErrBadPath, Path: dir, Detail: "line break in the name", Remedy: "rename the folder"}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return checkout{}, err
	}
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return checkout{}, &Error{Kind: ErrBadPath, Path: dir, Detail: cause(err), Remedy: "give an existing folder"}
	}
	if strings.ContainsAny(resolved, "\n\r\x00") {
		return checkout{}, &Error{Kind: ErrBadPath, Path: resolved, Detail: "line break in the name", Remedy: "rename the folder"}
	}
	if info, err := os.Stat(resolved); err != nil || !info.IsDir() {
		return checkout{}, &Error{Kind: ErrBadPath, Path: dir, Detail: "not a folder", Remedy: "give the folder of the repository"}
	}
	for top := resolved; ; top = filepath.Dir(top) {
		if filepath.Base(top) == ".git" {
			return checkout{}, &Error{Kind: ErrBadPath, Path: dir, Detail: "inside a .git folder", Remedy: "give the folder above it"}
		}
		dotgit := filepath.Join(top, ".git")
		info, err := os.Lstat(dotgit)
		switch {
		case err == nil && info.Mode().IsRegular():
			if err := refuseLinked(top, dotgit); err != nil {
				return checkout{}, err
			}
			return newCheckout(top, resolved)
		case err == nil:
			return newCheckout(top, resolved)
		case isBare(top):
			return checkout{}, &Error{Kind: ErrBare, Path: top, Remedy: "git clone " + shellWord(top) + " and use the clone"}
		case top == filepath.Dir(top):
			return checkout{}, &Error{Kind: ErrNotRepository, Path: dir,
				Remedy: "cd " + shellWord(dir) + " && git init && git add -A && git commit -m start"}
		}
	}
}

func newCheckout(top, dir string) (checkout, error) {
	sub, err := filepath.Rel(top, dir)
	if err != nil {
		return checkout{}, err
	}
	if sub == "." {
		sub = ""
	}
	return checkout{top, sub}, nil
}

func isBare(dir string) bool {
	head, err := os.Lstat(filepath.Join(dir, "HEAD"))
	if err != nil || !head.Mode().IsRegular() {
		return false
	}
	for _, name := range []string{"objects", "refs"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// refuseLinked refuses a linked work tree (field report R145): its .git is a file, and the folder that the file names
// has a "commondir". A submodule's checkout or a --separate-git-dir has such a file too and is fine.
func refuseLinked(top, dotgit string) error {
	f, err := os.Open(dotgit)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 8<<10))
	if err != nil {
		return err
	}
	gitdir, ok := strings.CutPrefix(strings.TrimRight(string(text), "\r\n"), "gitdir: ")
	if !ok {
		return &Error{Kind: ErrNotRepository, Path: top, Detail: "its .git file names no folder", Remedy: "clone the repository again"}
	}
	if !filepath.IsAbs(gitdir) {
		gitdir = filepath.Join(top, gitdir)
	}
	if _, err := os.Stat(gitdir); err != nil {
		return &Error{Kind: ErrNotRepository, Path: top, Detail: "its .git file names a folder that is not there: " + gitdir,
			Remedy: "git worktree repair, or clone the repository again"}
	}
	if _, err := os.Stat(filepath.Join(gitdir, "commondir")); err != nil {
		return nil
	}
	main := "the main checkout"
	if common := filepath.Clean(filepath.Join(gitdir, "..", "..")); filepath.Base(common) == ".git" {
		main = shellWord(filepath.Dir(common))
	}
	return &Error{Kind: ErrLinkedWorktree, Path: top, Detail: "its .git is a file that points to " + gitdir,
		Remedy: "use " + main + ", or git clone it"}
}

// credentialMarks are what makes a folder look like somebody's home.
func credentialMarks() []string {
	return []string{".ssh", ".gnupg", ".netrc", ".git-credentials", ".aws/credentials", ".kube/config", ".docker/config.json",
		".config/gh", ".config/gcloud", ".config/git/credentials", ".azure", ".copilot", ".claude/.credentials.json", ".codex/auth.json"}
}

func refuseForbidden(top, home string) error {
	const remedy = "keep the project in a folder of its own"
	if home != "" {
		if resolved, err := filepath.EvalSymlinks(home); err == nil {
			home = resolved
		}
		if within(home, top) {
			return &Error{Kind: ErrForbiddenDir, Path: top, Detail: "it is, or holds, the home folder", Remedy: remedy}
		}
	}
	if top == string(filepath.Separator) {
		return &Error{Kind: ErrForbiddenDir, Path: top, Remedy: remedy}
	}
	for _, mark := range credentialMarks() {
		if _, err := os.Lstat(filepath.Join(top, filepath.FromSlash(mark))); err == nil {
			return &Error{Kind: ErrForbiddenDir, Path: top, Detail: "found " + mark, Remedy: remedy}
		}
	}
	return nil
}

// within reports whether path is dir or below it. Both are resolved and clean.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// emptyDest resolves dest and checks that the workspace can go there. A folder inside the checkout would make the
// user's tree dirty (field report R161), and both sides are resolved before they are compared (R146).
func emptyDest(dest, top string) (string, error) {
	abs, err := filepath.Abs(dest)
	if err != nil {
		return "", err
	}
	if strings.ContainsAny(abs, "\n\r\x00") {
		return "", &Error{Kind: ErrBadPath, Path: dest, Detail: "line break in the name", Remedy: "use another folder for runs"}
	}
	existing, rest := abs, ""
	for {
		if _, err := os.Lstat(existing); err == nil || existing == filepath.Dir(existing) {
			break
		}
		rest = filepath.Join(filepath.Base(existing), rest)
		existing = filepath.Dir(existing)
	}
	resolved, err := filepath.EvalSymlinks(existing)
	if err != nil {
		return "", &Error{Kind: ErrDestination, Path: dest, Detail: cause(err)}
	}
	abs = filepath.Join(resolved, rest)
	if top != "" && within(abs, top) {
		return "", &Error{Kind: ErrNested, Path: abs, Detail: "the repository is " + top, Remedy: "keep the state folder outside of repositories"}
	}
	if rest != "" {
		return abs, nil
	}
	// A sandbox that was made before the workspace mounts the folder in which it is made.
	if inner, err := os.ReadDir(filepath.Join(abs, workFolder)); err == nil && len(inner) > 0 {
		return "", &Error{Kind: ErrDestination, Path: filepath.Join(abs, workFolder)}
	}
	entries, err := os.ReadDir(abs)
	others := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != workFolder || !e.IsDir() })
	if err != nil || others {
		return "", &Error{Kind: ErrDestination, Path: abs}
	}
	return abs, nil
}

// CheckBranch reports whether name can be a branch: the rules of git check-ref-format(1), and ours. The error is an [*Error] of kind [ErrBadBranch].
func CheckBranch(name string) error { return checkBranch(name) }

// checkBranch applies the rules of git check-ref-format(1), and ours: no leading dash, ASCII without shell characters.
func checkBranch(name string) error {
	bad := func(why string) error {
		return &Error{Kind: ErrBadBranch, Path: name, Detail: why, Remedy: "use letters, digits, dots, dashes and slashes"}
	}
	if name == "" || len(name) > 200 {
		return bad("empty, or over 200 characters")
	}
	if strings.HasPrefix(name, "-") || strings.HasPrefix(name, "refs/") || name == "HEAD" || name == "@" {
		return bad("reserved")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") || strings.Contains(part, "..") {
			return bad("a part is empty or misplaces a dot")
		}
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./+@#=", r)) || strings.Contains(name, "@{") {
			return bad(fmt.Sprintf("character %q", r))
		}
	}
	return nil
}

// folderName is the name of the mounted folder: the repository's own, because tools show it, without what a mount
// argument could misread (sbx takes "path:ro", field report R148).
func folderName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, name)
	name = strings.TrimLeft(name, ".-")
	if len(name) > 60 {
		name = name[:60]
	}
	if name == "" {
		return "repo"
	}
	return name
}

// refusePipes refuses a checkout in which git would wait for what nobody writes.
func refusePipes(top string) error {
	for _, name := range []string{"HEAD", "config", "config.worktree", "commondir", "index", "packed-refs", "shallow"} {
		info, err := os.Stat(filepath.Join(top, ".git", name))
		if err == nil && !info.Mode().IsRegular() {
			return &Error{Kind: ErrNotRepository, Path: top, Detail: "its .git/" + name + " is no plain file", Remedy: "clone the repository again"}
		}
	}
	return nil
}

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

// copyTree copies the plain files below src. On file systems that can share blocks (btrfs, xfs) the kernel does so; a
// hard link is never made.
func copyTree(src, dst string) error {
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		target := filepath.Join(dst, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case d.Type().IsRegular():
			return copyFile(path, target, 0o444)
		}
		return nil
	})
}

func copyFile(src, dst string, mode fs.FileMode) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

func appendFile(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write(data)
	return err
}

// cause returns the reason of a file error without the path, which the Error names itself.
func cause(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

// shellWord quotes s for a hint that can be pasted into a shell.
func shellWord(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
