package workspace

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

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
