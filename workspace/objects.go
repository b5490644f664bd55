package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// newBlob is the content of a file that the base does not have.
type newBlob struct {
	oid, path string
	size      int64
}

// newObjects goes over what the base does not have: blobs, trees and commits.
func (g git) newObjects(ctx context.Context, repo string, e EndState, each func(kind string, b newBlob)) error {
	out, err := g.do(ctx, gitRun{repo: repo}, "rev-list", "--objects", e.Head, "--not", e.Base)
	if err != nil {
		return err
	}
	paths := make(map[string]string)
	var names strings.Builder
	for line := range strings.Lines(string(out)) {
		oid, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !isOID(oid) {
			continue // rev-list prints a name with a line break as it is; what follows the break is no object
		}
		paths[oid] = path
		names.WriteString(oid + "\n")
	}
	if len(paths) == 0 {
		return nil
	}
	out, err = g.do(ctx, gitRun{repo: repo, stdin: strings.NewReader(names.String())}, "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return fmt.Errorf("git cat-file: unexpected %q", line)
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return fmt.Errorf("git cat-file: unexpected %q", line)
		}
		each(f[1], newBlob{f[0], paths[f[0]], size})
	}
	return nil
}

// Blobs calls each with the content of every file version that the run's commits bring, also of those that a later commit
// took back: the history is delivered with them, so a scan for secrets has to see them. Content is cut at max bytes. path
// is one name under which the content is found.
func (w Workspace) Blobs(ctx context.Context, e EndState, max int64, each func(path string, data []byte) error) error {
	if e.Head == e.Base {
		return nil
	}
	g, err := w.git()
	if err != nil {
		return err
	}
	var list []newBlob
	err = g.newObjects(ctx, w.importRepo(), e, func(kind string, b newBlob) {
		if kind == "blob" {
			list = append(list, b)
		}
	})
	if err != nil {
		return err
	}
	var batch []string
	var size int64
	paths := make(map[string]string)
	flush := func() error {
		defer func() { batch, size = nil, 0 }()
		return g.objects(ctx, w.importRepo(), batch, func(name, _ string, data []byte) error {
			return each(paths[name], data)
		})
	}
	for _, b := range list {
		paths[b.oid] = b.path
		if b.size > max {
			head := &capped{limit: max}
			if _, err := g.do(ctx, gitRun{repo: w.importRepo(), out: head}, "cat-file", "blob", b.oid); err != nil {
				return err
			}
			if err := each(b.path, head.buf.Bytes()); err != nil {
				return err
			}
			continue
		}
		if size+b.size > 32<<20 {
			if err := flush(); err != nil {
				return err
			}
		}
		batch, size = append(batch, b.oid), size+b.size
	}
	return flush()
}

// WriteBundle writes our own bundle of base..head with the one ref, such as "refs/heads/sbxpair/1a2b": what crosses into the
// github sandbox. The error matches [ErrEmpty] if there is no commit to bundle.
func (w Workspace) WriteBundle(ctx context.Context, e EndState, ref string, out io.Writer) error {
	return w.bundle(ctx, e, ref, out, "^"+e.Base)
}

// WriteHistory writes a bundle of all history up to head, for a repository that has none of it.
func (w Workspace) WriteHistory(ctx context.Context, e EndState, ref string, out io.Writer) error {
	return w.bundle(ctx, e, ref, out)
}

func (w Workspace) bundle(ctx context.Context, e EndState, ref string, out io.Writer, without ...string) error {
	branch, ok := strings.CutPrefix(ref, "refs/heads/")
	if !ok {
		return &Error{Kind: ErrBadBranch, Path: ref, Detail: "not below refs/heads/"}
	}
	if err := checkBranch(branch); err != nil {
		return err
	}
	if e.Head == w.Base {
		return ErrEmpty
	}
	g, err := w.imported(ctx, e)
	if err != nil {
		return err
	}
	if _, err := g.do(ctx, gitRun{repo: w.importRepo()}, "update-ref", ref, e.Head); err != nil {
		return err
	}
	_, err = g.do(ctx, gitRun{repo: w.importRepo(), out: out}, append([]string{"bundle", "create", "--quiet", "-", ref}, without...)...)
	return err
}

// imported is git for the end state that was imported last, which e has to be.
func (w Workspace) imported(ctx context.Context, e EndState) (git, error) {
	g, err := w.git()
	if err != nil {
		return g, err
	}
	if got, err := g.line(ctx, gitRun{repo: w.importRepo()}, "rev-parse", "--verify", "--quiet", headRef); err != nil || got != e.Head || e.Base != w.Base {
		return g, errors.Join(err, fmt.Errorf("the end state %s is not the one that was imported last", e.Head))
	}
	return g, nil
}

// A Version is one path of a change as it should be. A rename is a path that goes and one that comes.
type Version struct {
	Path    string
	Mode    string // "000000" if it goes
	OldMode string // "000000" if it comes
	Data    []byte // a link's target, too
}

// Versions returns what has to be written on top of the base to get the tree of the end state, and that tree's id: for a
// delivery that does not use git. The error matches [ErrTooLarge] if that is more than limit bytes.
func (w Workspace) Versions(ctx context.Context, e EndState, limit int64) (tree string, list []Version, err error) {
	g, err := w.imported(ctx, e)
	if err != nil {
		return "", nil, err
	}
	run := gitRun{repo: w.importRepo()}
	if tree, err = g.line(ctx, run, "rev-parse", "--verify", "--quiet", e.Head+"^{tree}"); err != nil {
		return "", nil, err
	}
	out, err := g.do(ctx, gitRun{repo: w.importRepo(), limit: 64 << 20}, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--no-ext-diff", e.Base, e.Head)
	if err != nil {
		return "", nil, err
	}
	tokens := fields(out)
	oids := make([]string, 0, len(tokens)/2)
	for i := 0; i+1 < len(tokens); i += 2 {
		f := strings.Fields(strings.TrimPrefix(tokens[i], ":")) // modes, objects, status
		if len(f) != 5 {
			return "", nil, fmt.Errorf("git diff-tree: unexpected line %q", tokens[i])
		}
		list = append(list, Version{Path: tokens[i+1], OldMode: f[0], Mode: f[1]})
		oids = append(oids, f[3])
	}
	var wanted []string
	for i, v := range list {
		if v.Mode != modeNone && v.Mode != modeSubmodule {
			wanted = append(wanted, oids[i])
		}
	}
	sizes, err := g.sizes(ctx, w.importRepo(), wanted)
	if err != nil {
		return "", nil, err
	}
	var sum int64
	for _, oid := range wanted {
		sum += sizes[oid]
	}
	if sum > limit {
		return "", nil, &Error{Kind: ErrTooLarge, Detail: fmt.Sprintf("%d bytes of changed files, the limit is %d", sum, limit)}
	}
	data := map[string][]byte{}
	if err := g.objects(ctx, w.importRepo(), wanted, func(name, _ string, b []byte) error { data[name] = b; return nil }); err != nil {
		return "", nil, err
	}
	for i := range list {
		list[i].Data = data[oids[i]]
	}
	return tree, list, nil
}
