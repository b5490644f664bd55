package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// usePlace makes the user's checkout itself the work tree. The branch stays as it is.
func (w *Workspace) usePlace(ctx context.Context, g git, home string) error {
	w.Dir = w.Top
	if w.BaseBranch != "" {
		w.Branch = w.BaseBranch
	}
	var err error
	if w.Named, err = g.named(ctx, w.Top, home); err != nil {
		return err
	}
	if w.Guard, err = guard(w.Top, w.Named); err != nil {
		return err
	}
	w.Notes = append(w.Notes, "in place: the agent works in your checkout itself; look at what the run says of .git and its hooks before you run git there")
	return nil
}

// Tampered compares what git would run or obey in a checkout that was used in place with what it was before, and returns
// the paths that differ. It is to be called when the sandbox is gone. In other modes there is nothing to compare.
func (w Workspace) Tampered() ([]string, error) {
	if w.Mode != ModeInPlace {
		return nil, nil
	}
	now, err := guard(w.Top, w.Named)
	if err != nil {
		return nil, err
	}
	var differ []string
	for p, hash := range now {
		if w.Guard[p] != hash {
			differ = append(differ, p)
		}
	}
	for p := range w.Guard {
		if _, ok := now[p]; !ok {
			differ = append(differ, p)
		}
	}
	slices.Sort(differ)
	return differ, nil
}

// named lists the paths of a checkout, outside of .git, that git's configuration names: a folder of hooks that the repository
// ignores is as good as .git/hooks for who wants the user's git to run something. Whether a value is a path or a command
// with one in it depends on its key, and keys are git's and anybody's: so each word of each value counts that may be one. The
// user's own configuration counts as well; it is read for this alone.
func (g git) named(ctx context.Context, top, home string) ([]string, error) {
	settings, err := g.listed(ctx, gitRun{dir: top})
	if err != nil {
		return nil, err
	}
	own := []string{"/etc/gitconfig"}
	if home != "" {
		own = append(own, filepath.Join(home, ".gitconfig"), filepath.Join(home, ".config", "git", "config"))
	}
	for _, file := range own {
		if _, err := os.Stat(file); err != nil {
			continue
		}
		more, err := g.listed(ctx, gitRun{dir: top}, "--file", file)
		if _, unreadable := errors.AsType[*GitError](err); err != nil && !unreadable { // nor does the user's git obey that
			return nil, err
		}
		settings = append(settings, more...)
	}
	var list []string
	for _, s := range settings {
		list = append(list, namedBy(top, home, s.key, s.value)...)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// namedBy returns the paths below top that one setting names, relative to top, with slashes. A word that only looks like a path
// costs nothing: there is no such file, before and after.
func namedBy(top, home, key, value string) (list []string) {
	add := func(name, from string, folder bool) {
		if rest, ok := strings.CutPrefix(name, "~/"); ok {
			name = filepath.Join(home, rest)
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(from, name)
		} else if resolved, err := filepath.EvalSymlinks(name); err == nil {
			name = resolved
		}
		rel, err := filepath.Rel(top, name)
		if err != nil || !filepath.IsLocal(rel) || within(name, filepath.Join(top, ".git")) || rel == "." {
			return
		}
		if info, err := os.Lstat(name); err == nil && info.IsDir() && !folder {
			return // a command's word that happens to be one
		}
		list = append(list, filepath.ToSlash(rel))
	}
	if strings.HasSuffix(key, "path") || strings.HasSuffix(key, "file") || strings.HasSuffix(key, "dir") {
		add(value, top, true)
		add(value, filepath.Join(top, ".git"), true) // of an include
		return list
	}
	for _, word := range strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t\n!;|&()<>'\"`=$", r) }) {
		if _, err := os.Lstat(filepath.Join(top, word)); err == nil || strings.Contains(word, "/") {
			add(word, top, false)
		}
	}
	return list
}

// guard hashes what git runs or obeys in a checkout: the files of its .git that make git do something, those that its
// configuration names, and the same of every repository inside it, since git looks for one from the folder where it is called
// upwards. Links are not followed out of the checkout.
func guard(top string, named []string) (map[string]string, error) {
	m := make(hashes)
	root, err := os.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, p := range named {
		if err := m.add(root, p); err != nil {
			return nil, err
		}
	}
	if err := m.repository(root, ".git"); err != nil {
		return nil, err
	}
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && d != nil && d.IsDir() && p != ".":
			return fs.SkipDir // what cannot be read can hold no repository that git would find
		case err != nil:
			return err
		case p == ".git":
		case strings.EqualFold(d.Name(), ".git"):
			if err := m.repository(root, p); err != nil {
				return err
			}
		case d.Name() == "HEAD" && path.Dir(p) != "." && bareAt(root, path.Dir(p)):
			return m.repository(root, path.Dir(p))
		default:
			return nil
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	return m, err
}

// bareAt reports whether git would take a folder for a bare repository.
func bareAt(root *os.Root, dir string) bool {
	for _, name := range []string{"objects", "refs"} {
		if info, err := root.Stat(path.Join(dir, name)); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// repository looks at one git folder, or at what stands in its place. One that is not there has nothing.
func (m hashes) repository(root *os.Root, dir string) error {
	info, err := root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	m[dir] = info.Mode().Type().String()
	if target, err := root.Readlink(dir); err == nil {
		m[dir] += target
		if _, err := root.Stat(dir + "/."); err != nil {
			return nil // out of the checkout
		}
	}
	if info.Mode().IsRegular() { // it names the folder
		m[dir], err = hashFile(root, dir)
		return err
	}
	for _, start := range []string{"config", "config.worktree", "commondir", "hooks", "info", "objects/info", "modules", "worktrees", "refs/replace", "shallow",
		// Lists of what "git rebase --continue" and its like will run.
		"rebase-merge", "rebase-apply", "sequencer"} {
		if err := m.add(root, path.Join(dir, start)); err != nil {
			return err
		}
	}
	return nil
}

// hashes are what there is at the paths of a checkout.
type hashes map[string]string

// add looks at a file, or at all files of a folder. What leads out of the checkout is known by where it leads.
func (m hashes) add(root *os.Root, start string) error {
	link := func(p string) string {
		target, err := root.Readlink(p)
		if err != nil {
			return ""
		}
		return fs.ModeSymlink.String() + target + " "
	}
	if l := link(start); l != "" {
		m[start] = l
	}
	if _, err := root.Stat(start); err != nil { // not there, or out of the checkout, where the agent cannot reach
		return nil
	}
	err := fs.WalkDir(root.FS(), start, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir():
			return nil
		}
		m[p] = d.Type().String() + link(p)
		// A hook is often a link to a file of the repository's.
		if info, err := root.Stat(p); err != nil || !info.Mode().IsRegular() {
			return nil
		}
		hash, err := hashFile(root, p)
		m[p] += hash
		return err
	})
	if err != nil {
		return fmt.Errorf("look at %s: %w", filepath.Join(root.Name(), start), err)
	}
	return nil
}

// maxHashed is how much of a file is hashed: one that was made to be endless is known by its size.
const maxHashed = 64 << 20

func hashFile(root *os.Root, p string) (string, error) {
	f, err := root.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxHashed)); err != nil {
		return "", err
	}
	mode := ""
	if info, err := f.Stat(); err == nil {
		mode = fmt.Sprintf("%v %d", info.Mode(), info.Size())
	}
	return mode + " " + hex.EncodeToString(h.Sum(nil)), nil
}
