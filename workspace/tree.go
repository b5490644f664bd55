package workspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Modes of a tree entry, as git prints them.
const (
	modeFile      = "100644"
	modeExec      = "100755"
	modeLink      = "120000"
	modeSubmodule = "160000"
	modeNone      = "000000" // in a diff: there is nothing on this side
)

// treeEntry is one line of ls-tree.
type treeEntry struct {
	mode, oid, path string
	size            int64 // of a blob
}

// tree lists every file of a commit.
func (g git) tree(ctx context.Context, repo, commit string) ([]treeEntry, error) {
	out, err := g.do(ctx, gitRun{repo: repo, limit: 256 << 20}, "ls-tree", "-r", "-z", "-l", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	var list []treeEntry
	for _, line := range fields(out) {
		meta, path, ok := strings.Cut(line, "\t")
		f := strings.Fields(meta) // mode, type, object, size
		if !ok || len(f) != 4 {
			return nil, fmt.Errorf("git ls-tree: unexpected line %q", line)
		}
		size, err := strconv.ParseInt(f[3], 10, 64)
		if err != nil && f[3] != "-" {
			return nil, fmt.Errorf("git ls-tree: unexpected size %q", f[3])
		}
		list = append(list, treeEntry{f[0], f[2], path, size})
	}
	return list, nil
}

// objects reads whole objects, in the order given. Callers bound the sizes beforehand.
func (g git) objects(ctx context.Context, repo string, names []string, each func(name, kind string, data []byte) error) error {
	if len(names) == 0 {
		return nil
	}
	out, err := g.do(ctx, gitRun{repo: repo, stdin: strings.NewReader(strings.Join(names, "\n") + "\n"), limit: 128 << 20}, "cat-file", "--batch")
	if err != nil {
		return err
	}
	in := bufio.NewReader(bytes.NewReader(out))
	for _, name := range names {
		head, err := in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("git cat-file: %w", err)
		}
		f := strings.Fields(head) // object, type, size
		if len(f) != 3 {
			return fmt.Errorf("git cat-file: no object %s", name)
		}
		size, err := strconv.Atoi(f[2])
		if err != nil || size < 0 {
			return errors.New("git cat-file: unexpected size")
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(in, data); err != nil {
			return fmt.Errorf("git cat-file: %w", err)
		}
		if _, err := in.Discard(1); err != nil {
			return fmt.Errorf("git cat-file: %w", err)
		}
		if err := each(name, f[1], data); err != nil {
			return err
		}
	}
	return nil
}

// blobs reads the content of small files, by object name.
func (g git) blobs(ctx context.Context, repo string, entries []treeEntry) (map[string][]byte, error) {
	var names []string
	for _, e := range entries {
		names = append(names, e.oid)
	}
	m := make(map[string][]byte, len(names))
	err := g.objects(ctx, repo, names, func(name, _ string, data []byte) error {
		m[name] = data
		return nil
	})
	return m, err
}
