package loop

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/workspace"
)

func (r *run) source() workspace.Source {
	return workspace.Source{Dir: r.req.Dir, Mode: workspace.ModeClone, Branch: r.branch(), Home: r.req.Home, AllowDirty: r.req.AllowDirty}
}

// prepare makes the workspace, or finds the one that an earlier process of the run made.
func (r *run) prepare(ctx context.Context) (string, error) {
	if r.state.Workspace.Dir != "" {
		return "the workspace as the run left it", nil
	}
	var err error
	r.state.Workspace, err = r.look.Prepare(ctx, workspaceDir(r.result.Dir))
	if err != nil {
		return "", err
	}
	for _, note := range r.state.Workspace.Notes {
		r.log.Emit(events.Noted{Text: note})
	}
	return fmt.Sprintf("copy of %s at %.12s", r.state.Workspace.Top, r.state.Workspace.Base), r.save()
}

func workspaceDir(run string) string { return filepath.Join(run, "workspace") }

// RemoveWorkspace removes the workspace from a run's folder; the record of the run stays. The error matches [pair.ErrLeft].
func RemoveWorkspace(run string) error {
	if err := (workspace.Workspace{Root: workspaceDir(run)}).Remove(); err != nil {
		return fmt.Errorf("%w: remove workspace: %w", pair.ErrLeft, err)
	}
	return nil
}

// inside reports whether path lies in folder top. Both are resolved as far as they exist.
func inside(top, path string) bool {
	for ; path != filepath.Dir(path); path = filepath.Dir(path) {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			rel, err := filepath.Rel(top, resolved)
			return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
		}
	}
	return false
}
