package workspace

import (
	"context"
	"slices"
	"strings"
)

// maxBaseFile bounds what [Workspace.BaseFiles] reads of one file, in bytes. Bigger ones come empty.
const maxBaseFile = 1 << 20

// BaseFiles returns the plain files at the top of the base commit whose names want says it wants, with their content. They are
// read from the repository that the agent cannot reach; nothing of them is run.
func (w Workspace) BaseFiles(ctx context.Context, want func(name string) bool) (map[string][]byte, error) {
	g, err := w.git()
	if err != nil {
		return nil, err
	}
	entries, err := g.tree(ctx, w.BaseRepo, w.Base)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	entries = slices.DeleteFunc(entries, func(e treeEntry) bool {
		return strings.Contains(e.path, "/") || e.mode != modeFile && e.mode != modeExec || !want(e.path)
	})
	for _, e := range entries {
		files[e.path] = nil
	}
	entries = slices.DeleteFunc(entries, func(e treeEntry) bool { return e.size > maxBaseFile })
	blobs, err := g.blobs(ctx, w.BaseRepo, entries)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		files[e.path] = blobs[e.oid]
	}
	return files, nil
}
