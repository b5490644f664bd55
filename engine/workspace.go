package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// systemDirs are never mounted, nor anything below them: they are the host's own state, or come with the root anyway.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/.sbx"}

// bareDirs are not mounted themselves; folders below them may be.
var bareDirs = []string{"/", "/var", "/root", "/home", "/tmp", "/opt", "/srv", "/mnt", "/media"}

// ParseWorkspace reads a workspace argument, PATH or PATH:ro; relative paths are taken from dir.
func ParseWorkspace(arg, dir string) Workspace {
	w := Workspace{Path: arg}
	for _, suffix := range []string{":ro", ":readonly"} {
		if p, ok := strings.CutSuffix(arg, suffix); ok {
			w.Path, w.ReadOnly = p, true
		}
	}
	if !filepath.IsAbs(w.Path) {
		w.Path = filepath.Join(dir, w.Path)
	}
	w.Path = filepath.Clean(w.Path)
	return w
}

// checkWorkspaces resolves the workspaces and refuses what must not be shared: system folders, the home folder itself,
// the engine's state, and anything that would contain one of them.
func (e *Engine) checkWorkspaces(list []Workspace) ([]Workspace, error) {
	out := make([]Workspace, 0, len(list))
	seen := map[string]bool{}
	for i, w := range list {
		source, err := filepath.EvalSymlinks(w.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &WorkspaceError{w.Path, "does not exist"}
		}
		if err != nil {
			return nil, fmt.Errorf("workspace: %w", err)
		}
		fi, err := os.Stat(source)
		if err != nil {
			return nil, fmt.Errorf("workspace: %w", err)
		}
		w.Source, w.File = source, fi.Mode().IsRegular()
		if !fi.IsDir() && !(w.File && w.ReadOnly && i > 0) {
			return nil, &WorkspaceError{w.Path, "is not a directory"}
		}
		if i == 0 && w.ReadOnly {
			return nil, &WorkspaceError{w.Path, "primary workspace must be read/write (remove ':ro' or ':readonly')"}
		}
		if !utf8.ValidString(w.Path) || !utf8.ValidString(source) {
			return nil, &WorkspaceError{w.Path, "is not UTF-8"}
		}
		if reason := e.refuse(w.Path); reason != "" {
			return nil, &WorkspaceError{w.Path, reason}
		}
		if reason := e.refuse(source); reason != "" {
			return nil, &WorkspaceError{w.Path, reason}
		}
		if seen[w.Path] {
			return nil, &WorkspaceError{w.Path, "is given twice"}
		}
		seen[w.Path] = true
		out = append(out, w)
	}
	return out, nil
}

func (e *Engine) refuse(path string) string {
	for _, d := range systemDirs {
		if below(path, d) {
			return "is a system folder and cannot be mounted"
		}
	}
	for _, d := range bareDirs {
		if path == d {
			return "is too wide: mount a project folder instead"
		}
	}
	if e.Home != "" && below(e.Home, path) {
		return "is or holds your home folder: mount a project folder instead"
	}
	for _, d := range []string{e.State.Dir, e.State.Runtime} {
		if below(path, d) || below(d, path) {
			return "holds the engine's own state"
		}
	}
	return ""
}

// below reports whether path is dir or inside it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
