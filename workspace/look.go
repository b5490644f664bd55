package workspace

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"
)

// Checkout is a checkout that was looked at and can be copied. It is good for this process, for a short while.
type Checkout struct {
	Workspace // what there is to know; Root, Dir and BaseRepo are empty
	source    Source
	head      string // the commit that was looked at
}

// OnBranch returns the checkout for a run with another branch of its own.
func (co Checkout) OnBranch(branch string) (Checkout, error) {
	if err := checkBranch(branch); err != nil {
		return Checkout{}, err
	}
	co.source.Branch, co.Branch = branch, branch
	return co, nil
}

// gitHome names the folders that git has for its home while a checkout is looked at.
const gitHome = "sbxpair-git-*"

// homeAge is how old such a folder is that its process was killed: it is there for seconds.
const homeAge = time.Hour

// sweepHomes removes those in dir that killed processes left. The place may be everybody's: nothing is followed, and what holds more
// than git's configuration stays.
func sweepHomes(dir string) {
	homes, _ := filepath.Glob(filepath.Join(dir, gitHome)) // the pattern is well formed
	for _, home := range homes {
		info, err := os.Lstat(home)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < homeAge {
			continue
		}
		root, err := os.OpenRoot(home)
		if err != nil {
			continue
		}
		if opened, err := root.Stat("."); err == nil && os.SameFile(info, opened) {
			root.Remove(".gitconfig")
		}
		root.Close()
		os.Remove(home)
	}
}

// Inspect looks at a checkout without copying anything, and refuses what cannot be copied (but for LFS files, which show only
// in a copy). [Checkout.Prepare] makes the workspace.
func Inspect(ctx context.Context, s Source) (co Checkout, err error) {
	found, err := s.locate()
	if err != nil {
		return Checkout{}, err
	}
	sweepHomes(os.TempDir())
	home, err := os.MkdirTemp("", gitHome)
	if err != nil {
		return Checkout{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	g, err := newGit(home)
	if err != nil {
		return Checkout{}, err
	}
	co = Checkout{Workspace: Workspace{Mode: s.Mode, Branch: s.Branch, Top: found.top, Subdir: found.sub}, source: s}
	if s.Mode == ModeEmpty {
		return co, nil
	}
	co.head, err = co.inspect(ctx, g, s)
	return co, err
}
