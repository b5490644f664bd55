package workspace

import (
	"context"
	"errors"
	"os"
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

// Inspect looks at a checkout without copying anything, and refuses what cannot be copied (but for LFS files, which show only
// in a copy). [Checkout.Prepare] makes the workspace.
func Inspect(ctx context.Context, s Source) (co Checkout, err error) {
	found, err := s.locate()
	if err != nil {
		return Checkout{}, err
	}
	home, err := os.MkdirTemp("", "sbxpair-git-*")
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
