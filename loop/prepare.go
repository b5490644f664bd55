package loop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/workspace"
)

// source is the workspace that is asked for, without its edits, which need files of the user's.
func (r *run) source() workspace.Source {
	w := r.req.Config.Workspace
	return workspace.Source{Dir: r.req.Dir, Mode: workspace.Mode(w.Mode), Branch: r.branch(), Home: r.req.Home, AllowDirty: r.req.AllowDirty, AllowLFS: w.LFS}
}

// maxEdit bounds a file that goes into the workspace by configuration, in bytes.
const maxEdit = 16 << 20

// edits reads what the configuration changes in the agent's copy.
func (r *run) edits() (workspace.Edits, error) {
	w := r.req.Config.Workspace
	e := workspace.Edits{Origin: w.Origin, Write: map[string][]byte{}, Hooks: map[string][]byte{}}
	for _, entry := range w.Remove {
		path, lines, err := config.ParseRemoval(entry)
		if err != nil {
			return e, err
		}
		e.Remove = append(e.Remove, workspace.Removal{Path: path, Lines: lines})
	}
	read := func(path string) ([]byte, error) {
		info, err := os.Stat(path)
		if err == nil && (!info.Mode().IsRegular() || info.Size() > maxEdit) {
			err = fmt.Errorf("%s is no plain file of at most %d bytes", path, maxEdit)
		}
		if err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}
	var err error
	for name, path := range w.Write {
		if e.Write[name], err = read(path); err != nil {
			return e, err
		}
	}
	for name, path := range w.Hooks {
		if e.Hooks[name], err = read(path); err != nil {
			return e, err
		}
	}
	if w.Patch != "" {
		e.Patch, err = read(w.Patch)
	}
	return e, err
}

// deliverable reports whether what the agent leaves has a place on GitHub: a copy without history has none.
func (r *run) deliverable() bool {
	mode := workspace.Mode(r.req.Config.Workspace.Mode)
	return mode != workspace.ModeTracked && mode != workspace.ModeEmpty
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
