package workspace

import (
	"context"
	"errors"
	"os"
)

// Inspect answers as [Prepare] would, without copying anything: it refuses what Prepare refuses (but for LFS files,
// which show only in a copy), and returns what there is to know about the checkout. Root, Dir and BaseRepo stay empty.
func Inspect(ctx context.Context, s Source) (ws Workspace, err error) {
	co, err := s.locate()
	if err != nil {
		return Workspace{}, err
	}
	home, err := os.MkdirTemp("", "sbxpair-git-*")
	if err != nil {
		return Workspace{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	g, err := newGit(home)
	if err != nil {
		return Workspace{}, err
	}
	ws = Workspace{Mode: s.Mode, Branch: s.Branch, Top: co.top, Subdir: co.sub}
	if s.Mode == ModeEmpty {
		return ws, nil
	}
	return ws, ws.inspect(ctx, g, s)
}
