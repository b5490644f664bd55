package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// describe fills in what lies between base and head, and refuses names, links and sizes that must not leave.
func describe(ctx context.Context, g git, repo string, e *EndState, o CollectOptions) error {
	// First, because everything after it goes over all paths, or opens files: a small pack can hold any number of paths, which
	// git keeps in memory to compare them, and a file of any size.
	paths := &counter{limit: maxPaths}
	if _, err := g.do(ctx, gitRun{repo: repo, out: paths}, "ls-tree", "-r", "-z", "--name-only", "--full-tree", e.Head); err != nil {
		if paths.lines > maxPaths {
			err = fmt.Errorf("%w: more than %d files", ErrTooLarge, maxPaths)
		}
		return err
	}
	largest, err := findLargest(ctx, g, repo, e)
	if err != nil {
		return err
	}
	if largest.Size > o.MaxFile {
		return &TooLargeError{largest.Size, o.MaxFile, []Blob{largest}}
	}
	if err := describeCommits(ctx, g, repo, e, o); err != nil {
		return err
	}
	if err := describeFiles(ctx, g, repo, e, o); err != nil {
		return err
	}
	if err := refuseEscapes(ctx, g, repo, e); err != nil {
		return err
	}
	patch := &capped{limit: o.MaxPatch} // git is stopped there
	if _, err := g.do(ctx, gitRun{repo: repo, out: patch}, "diff-tree", "-r", "-p", "-M", "--binary", "--full-index", "--no-ext-diff", "--no-textconv",
		"--no-color", "--src-prefix=a/", "--dst-prefix=b/", e.Base, e.Head); err != nil {
		return err
	}
	e.Patch, e.PatchTruncated = patch.buf.Bytes(), patch.over
	e.Empty = e.TotalFiles == 0
	return nil
}

const maxMessage = 64 << 10

// maxDate is the last second of the year 9999: JSON has no later one.
const maxDate = 253402300799

func describeCommits(ctx context.Context, g git, repo string, e *EndState, o CollectOptions) error {
	run := gitRun{repo: repo}
	out, err := g.do(ctx, run, "rev-list", "--topo-order", "--reverse", "--max-count="+strconv.Itoa(o.MaxCommits+1), e.Head, "--not", e.Base)
	if err != nil {
		return err
	}
	names := strings.Fields(string(out))
	if len(names) > o.MaxCommits {
		return &HostileError{Reason: fmt.Sprintf("more than %d commits", o.MaxCommits)}
	}
	index := make(map[string]int, len(names))
	err = g.objects(ctx, repo, names, func(name, kind string, data []byte) error {
		c, err := parseCommit(data)
		if err != nil || kind != "commit" {
			return &HostileError{Reason: "a commit cannot be read"}
		}
		c.SHA = name
		index[name] = len(e.Commits)
		e.Commits = append(e.Commits, c)
		return nil
	})
	if err != nil {
		return err
	}
	// What a commit changed counts although a later one took it back: the history is delivered with it.
	out, err = g.do(ctx, gitRun{repo: repo, stdin: strings.NewReader(strings.Join(names, "\n") + "\n")}, "diff-tree", "--stdin", "-r", "-m", "-z", "--root", "--raw", "--no-renames")
	if err != nil {
		return err
	}
	current := -1
	tokens := fields(out)
	for i := 0; i < len(tokens); i++ {
		if !strings.HasPrefix(tokens[i], ":") {
			n, ok := index[tokens[i]]
			if !ok {
				return fmt.Errorf("git diff-tree: unexpected %q", tokens[i])
			}
			current = n
			continue
		}
		if i++; i >= len(tokens) || current < 0 {
			return errors.New("git diff-tree: output ends early")
		}
		if why := badPath(tokens[i]); why != "" {
			return &HostileError{tokens[i], why}
		}
		if c := &e.Commits[current]; len(c.Paths) < o.MaxFiles && !slices.Contains(c.Paths[max(0, len(c.Paths)-1):], tokens[i]) {
			c.Paths = append(c.Paths, tokens[i])
		}
	}
	return nil
}

// parseCommit reads a commit object. Text is made valid UTF-8; fsck has refused NUL bytes.
func parseCommit(data []byte) (Commit, error) {
	head, message, ok := bytes.Cut(data, []byte("\n\n"))
	if !ok {
		head, message = bytes.TrimSuffix(data, []byte("\n")), nil
	}
	var c Commit
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		key, value, _ := strings.Cut(string(line), " ")
		switch key {
		case "parent":
			c.Parents = append(c.Parents, value)
		case "author":
			name, rest, ok1 := strings.Cut(value, " <")
			email, when, ok2 := strings.Cut(rest, "> ")
			seconds, _, ok3 := strings.Cut(when, " ")
			n, err := strconv.ParseInt(seconds, 10, 64)
			if !ok1 || !ok2 || !ok3 || err != nil {
				return c, errors.New("no author")
			}
			c.AuthorName, c.AuthorEmail = strings.ToValidUTF8(name, "\uFFFD"), strings.ToValidUTF8(email, "\uFFFD")
			c.AuthorDate = time.Unix(min(max(n, 0), maxDate), 0).UTC()
		}
	}
	if len(message) > maxMessage {
		message = message[:maxMessage]
	}
	subject, body, _ := strings.Cut(strings.ToValidUTF8(string(message), "\uFFFD"), "\n")
	c.Subject, c.Body = strings.TrimSpace(subject), strings.TrimSpace(body)
	return c, nil
}

func describeFiles(ctx context.Context, g git, repo string, e *EndState, o CollectOptions) error {
	out, err := g.do(ctx, gitRun{repo: repo, limit: 128 << 20}, "diff-tree", "-r", "-z", "-M", "-l1000", "--raw", "--numstat", "--no-ext-diff", "--no-textconv",
		"--abbrev=64", e.Base, e.Head)
	if err != nil {
		return err
	}
	files, oids, err := parseDiff(fields(out))
	if err != nil {
		return err
	}
	var links []treeEntry
	sizes, err := g.sizes(ctx, repo, slices.Collect(maps.Values(oids)))
	if err != nil {
		return err
	}
	for i := range files {
		f := &files[i]
		for _, p := range []string{f.Path, f.OldPath} {
			if p == "" {
				continue
			}
			if why := badPath(p); why != "" {
				return &HostileError{p, why}
			}
		}
		if f.Mode == modeSubmodule || f.OldMode == modeSubmodule {
			e.Submodules = append(e.Submodules, f.Path)
		}
		f.Size = sizes[oids[f.Path]]
		if f.Mode == modeLink {
			if f.Size > maxLink {
				return &HostileError{f.Path, "the link's target is too long"}
			}
			links = append(links, treeEntry{oid: oids[f.Path], path: f.Path})
		}
		e.Additions += f.Additions
		e.Deletions += f.Deletions
	}
	targets, err := g.blobs(ctx, repo, links)
	if err != nil {
		return err
	}
	for i := range files {
		if files[i].Mode == modeLink {
			files[i].LinkTarget = strings.ToValidUTF8(string(targets[oids[files[i].Path]]), "\uFFFD")
		}
	}
	e.TotalFiles = len(files)
	if len(files) > o.MaxFiles {
		files, e.FilesTruncated = files[:o.MaxFiles], true
	}
	e.Files = files
	return nil
}

// parseDiff reads "diff-tree -z --raw --numstat": all raw entries, then the counts, both in the same order. It also
// returns each path's new object.
func parseDiff(tokens []string) (files []File, oids map[string]string, err error) {
	oids = make(map[string]string)
	counted := 0
	for i := 0; i < len(tokens); i++ {
		paths := func(n int) bool { i += n; return i < len(tokens) }
		if raw, ok := strings.CutPrefix(tokens[i], ":"); ok {
			v := strings.Fields(raw) // mode, mode, object, object, status
			if len(v) != 5 || v[4] == "" || !paths(1) {
				return nil, nil, errors.New("git diff-tree: unexpected raw entry")
			}
			f := File{Path: tokens[i], Status: Status(v[4][:1]), OldMode: v[0], Mode: v[1]}
			if f.Status == Renamed {
				f.OldPath = f.Path
				if !paths(1) {
					return nil, nil, errors.New("git diff-tree: unexpected rename")
				}
				f.Path = tokens[i]
			}
			if f.OldMode == modeNone {
				f.OldMode = ""
			}
			if f.Mode == modeNone {
				f.Mode = ""
			} else if f.Mode != modeSubmodule {
				oids[f.Path] = v[3]
			}
			files = append(files, f)
			continue
		}
		v := strings.SplitN(tokens[i], "\t", 3) // added, deleted, path; no path for a rename, whose two follow
		if len(v) != 3 || counted >= len(files) {
			return nil, nil, errors.New("git diff-tree: unexpected count")
		}
		if v[2] == "" && !paths(2) {
			return nil, nil, errors.New("git diff-tree: unexpected count of a rename")
		}
		f := &files[counted]
		counted++
		if v[0] == "-" {
			f.Binary = true
			continue
		}
		var err1, err2 error
		f.Additions, err1 = strconv.Atoi(v[0])
		f.Deletions, err2 = strconv.Atoi(v[1])
		if err1 != nil || err2 != nil {
			return nil, nil, errors.New("git diff-tree: unexpected number")
		}
	}
	if counted != len(files) {
		return nil, nil, errors.New("git diff-tree: counts are missing")
	}
	return files, oids, nil
}

// sizes asks for the size of objects without reading them.
func (g git) sizes(ctx context.Context, repo string, oids []string) (map[string]int64, error) {
	m := make(map[string]int64, len(oids))
	if len(oids) == 0 {
		return m, nil
	}
	out, err := g.do(ctx, gitRun{repo: repo, stdin: strings.NewReader(strings.Join(oids, "\n") + "\n")}, "cat-file", "--batch-check=%(objectname) %(objectsize)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		oid, size, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("git cat-file: no object %q", oid)
		}
		m[oid] = n
	}
	return m, nil
}

// refuseEscapes refuses links that lead out of the tree, or into .git, unless they did so before the run; and those that a
// file system which does not tell upper from lower case takes for a folder of the tree: what goes into that folder would go
// where the link leads.
func refuseEscapes(ctx context.Context, g git, repo string, e *EndState) error {
	after, err := g.links(ctx, repo, e.Head)
	if err != nil || len(after.targets) == 0 {
		return err
	}
	before, err := g.links(ctx, repo, e.Base)
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(after.targets)) {
		why := after.bad(path)
		if why == "" || before.targets[path] == after.targets[path] && before.bad(path) != "" {
			continue
		}
		return &HostileError{path, why}
	}
	return nil
}

// links are the symbolic links of a tree.
type links struct {
	targets map[string]string
	folders map[string]bool // all of the tree's, in lower case
}

// bad says why the link at path is refused, or "".
func (l links) bad(path string) string {
	if l.folders[strings.ToLower(path)] {
		return "a link and a folder differ in upper and lower case only"
	}
	return escapes(l.targets, path)
}

// links returns all symbolic links in a commit's tree.
func (g git) links(ctx context.Context, repo, commit string) (links, error) {
	entries, err := g.tree(ctx, repo, commit)
	if err != nil {
		return links{}, err
	}
	l := links{map[string]string{}, map[string]bool{}}
	for _, t := range entries {
		for dir := path.Dir(strings.ToLower(t.path)); dir != "." && !l.folders[dir]; dir = path.Dir(dir) {
			l.folders[dir] = true
		}
	}
	entries = slices.DeleteFunc(entries, func(t treeEntry) bool { return t.mode != modeLink })
	for _, t := range entries {
		if t.size > maxLink {
			return links{}, &HostileError{t.path, "the link's target is too long"}
		}
	}
	blobs, err := g.blobs(ctx, repo, entries)
	if err != nil {
		return links{}, err
	}
	for _, t := range entries {
		l.targets[t.path] = string(blobs[t.oid])
	}
	return l, nil
}

// maxPaths is how many files a tree may have. The largest repositories have half a million.
const maxPaths = 3_000_000

// counter counts what git lists, and makes it stop after limit.
type counter struct{ lines, limit int }

func (c *counter) Write(p []byte) (int, error) {
	if c.lines += bytes.Count(p, []byte{0}); c.lines > c.limit {
		return 0, ErrTooLarge
	}
	return len(p), nil
}

// findLargest looks for the biggest new file, of all commits, and returns it, or a bigger commit or folder.
func findLargest(ctx context.Context, g git, repo string, e *EndState) (largest Blob, err error) {
	err = g.newObjects(ctx, repo, *e, func(kind string, b newBlob) {
		found := Blob{strings.ToValidUTF8(b.path, "\uFFFD"), b.size}
		if kind == "blob" && b.size > e.Largest.Size {
			e.Largest = found
		}
		if b.size > largest.Size {
			largest = found
		}
	})
	return largest, err
}
