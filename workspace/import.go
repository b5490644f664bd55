package workspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EndState is what the agent left, checked. It is plain data.
type EndState struct {
	Base  string `json:"base"`  // the commit it started from
	Head  string `json:"head"`  // the last commit; Base if nothing changed
	Empty bool   `json:"empty"` // nothing changed: no commit, or commits whose files equal the base's

	Commits        []Commit `json:"commits"`                   // oldest first
	Files          []File   `json:"files"`                     // base against head
	FilesTruncated bool     `json:"files_truncated,omitempty"` // there are more than MaxFiles; TotalFiles says how many
	TotalFiles     int      `json:"total_files"`
	Patch          []byte   `json:"patch,omitempty"` // git's binary patch, base against head
	PatchTruncated bool     `json:"patch_truncated,omitempty"`
	Additions      int      `json:"additions"` // lines
	Deletions      int      `json:"deletions"`

	Submodules   []string `json:"submodules,omitempty"`    // paths that are, or become, links to other repositories
	Ignored      int      `json:"ignored"`                 // paths that .gitignore keeps out (a folder counts once); by the sandbox's word
	IgnoredPaths []string `json:"ignored_paths,omitempty"` // the first of them
	Pushed       []Push   `json:"pushed,omitempty"`        // what the agent pushed to the local origin of ModeTracked; by the sandbox's word
	Largest      Blob     `json:"largest,omitzero"`        // the biggest new object
	BundleSize   int64    `json:"bundle_size"`
	Notes        []string `json:"notes,omitempty"` // what a reader should know about how it was produced
}

// Push is a ref of the local origin that is not the base.
type Push struct {
	Ref     string `json:"ref"`
	SHA     string `json:"sha"`
	Commits int    `json:"commits"` // since the base
}

// Commit is one commit of the run. All text is the agent's.
type Commit struct {
	SHA         string    `json:"sha"`
	Parents     []string  `json:"parents,omitempty"`
	AuthorName  string    `json:"author_name,omitempty"`
	AuthorEmail string    `json:"author_email,omitempty"`
	AuthorDate  time.Time `json:"author_date"`
	Subject     string    `json:"subject,omitempty"`
	Body        string    `json:"body,omitempty"`  // cut at 64 KiB
	Paths       []string  `json:"paths,omitempty"` // changed in it, both sides of a rename; cut at MaxFiles
}

// Status is how a file changed.
type Status string

// What can happen to a file. A renamed file may have changed as well; a type change is one from file to link and the like.
const (
	Added       Status = "A"
	Modified    Status = "M"
	Deleted     Status = "D"
	Renamed     Status = "R"
	TypeChanged Status = "T"
)

// File is one changed file.
type File struct {
	Path       string `json:"path"`
	OldPath    string `json:"old_path,omitempty"` // before a rename, else ""
	Status     Status `json:"status"`
	Mode       string `json:"mode,omitempty"`     // git's: 100644, 100755, 120000, 160000; "" for a deleted file
	OldMode    string `json:"old_mode,omitempty"` // "" for an added file
	Additions  int    `json:"additions"`          // lines; 0 if Binary
	Deletions  int    `json:"deletions"`
	Binary     bool   `json:"binary,omitempty"`
	Size       int64  `json:"size"`                  // bytes of the new content
	LinkTarget string `json:"link_target,omitempty"` // of a symbolic link
}

// Import checks a stream of [Workspace.Collect]'s script and keeps its commits in a repository of its own beside the base
// repository, which is not touched. A stream that breaks a rule gives a *HostileError and leaves nothing behind.
//
// The pack goes straight into git index-pack, whose --strict is what transfer.fsckObjects switches on in a fetch: no
// transport, no protocol and no ref of the stream takes part.
func (w Workspace) Import(ctx context.Context, stream io.Reader, o CollectOptions) (_ EndState, err error) {
	o = o.defaults()
	// A small pack can ask for days of work: deltas of deltas, trees of trees.
	ctx, cancel := context.WithTimeoutCause(ctx, o.Check, &HostileError{Reason: fmt.Sprintf("the checks of it take longer than %v", o.Check)})
	defer cancel()
	g, err := w.git()
	if err != nil {
		return EndState{}, err
	}
	in := bufio.NewReaderSize(stream, 64<<10)
	h, err := readHeader(in)
	if err != nil {
		return EndState{}, err
	}
	e := EndState{Base: w.Base, Head: w.Base, Ignored: h.ignored, IgnoredPaths: h.ignoredPaths, Notes: h.notes, Pushed: h.pushed, BundleSize: h.size}
	switch {
	case h.base != w.Base:
		return EndState{}, &HostileError{Reason: "it is for another base commit"}
	case h.kind == "too-large" || h.size > o.MaxBundle:
		return EndState{}, &TooLargeError{h.size, o.MaxBundle, h.largest}
	case h.kind == "empty":
		e.Empty = true
		return e, os.RemoveAll(w.importRepo())
	case h.kind != "commits" && h.kind != "snapshot" || h.size <= 0:
		return EndState{}, &HostileError{Reason: "the header makes no sense"}
	}

	staging := w.importRepo() + ".new"
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	if err := w.openStaging(ctx, g, staging); err != nil {
		return EndState{}, err
	}
	pack := bufio.NewReaderSize(io.LimitReader(in, h.size), 64<<10)
	b, err := readBundleHeader(pack)
	if err != nil {
		return EndState{}, err
	}
	if err := w.unpack(ctx, g, staging, pack, o.MaxBundle); err != nil {
		return EndState{}, err
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(in, 1)); n > 0 || err != nil {
		return EndState{}, errors.Join(err, &HostileError{Reason: "there is more than the header announced"})
	}
	if e.Head, err = w.connect(ctx, g, staging, b, h.kind == "snapshot", o); err != nil {
		return EndState{}, err
	}
	if err := describe(ctx, g, staging, &e, o); err != nil {
		if ge, ok := errors.AsType[*GitError](err); ok && ge.kind == nil {
			err = &HostileError{Reason: "git cannot read it: " + ge.Error()}
		}
		return EndState{}, err
	}
	if _, err := g.do(ctx, gitRun{repo: staging}, "update-ref", headRef, e.Head); err != nil {
		return EndState{}, err
	}
	if err := os.RemoveAll(w.importRepo()); err != nil {
		return EndState{}, err
	}
	return e, os.Rename(staging, w.importRepo())
}

const headRef = "refs/sbxpair/head"

// openStaging makes an empty repository that sees the base repository's objects.
func (w Workspace) openStaging(ctx context.Context, g git, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	format, err := g.line(ctx, gitRun{repo: w.BaseRepo}, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	if err := g.initBare(ctx, dir, format); err != nil {
		return err
	}
	info := filepath.Join(dir, "objects", "info")
	if err := os.MkdirAll(info, 0o700); err != nil {
		return err
	}
	// A path that starts with a quote or # would be read as something else (git's objects/info/alternates): ours is absolute.
	if err := os.WriteFile(filepath.Join(info, "alternates"), []byte(filepath.Join(w.BaseRepo, "objects")+"\n"), 0o600); err != nil {
		return err
	}
	if w.Shallow {
		if err := copyFile(filepath.Join(w.BaseRepo, "shallow"), filepath.Join(dir, "shallow"), 0o600); err != nil {
			return err
		}
	}
	_, err = g.do(ctx, gitRun{repo: dir}, "update-ref", baseRef, w.Base)
	return err
}

// bundle is the head of a bundle file (gitformat-bundle(5)).
type bundle struct {
	needs []string // commits that the receiver has to have
	head  string   // of the one ref
}

// readBundleHeader reads up to the pack. Exactly one ref is accepted, the script's, and no filter.
func readBundleHeader(in *bufio.Reader) (bundle, error) {
	var b bundle
	hostile := func(why string) (bundle, error) {
		return bundle{}, &HostileError{Reason: "bundle: " + why}
	}
	for n := 0; ; n++ {
		raw, err := in.ReadSlice('\n')
		if err != nil || n > 2000 {
			return hostile("its header does not end")
		}
		line := strings.TrimSuffix(string(raw), "\n")
		switch {
		case n == 0:
			if line != "# v2 git bundle" && line != "# v3 git bundle" {
				return hostile("not a bundle")
			}
		case line == "":
			if b.head == "" {
				return hostile("no ref")
			}
			return b, nil
		case strings.HasPrefix(line, "@"):
			if !strings.HasPrefix(line, "@object-format=") {
				return hostile("unknown capability")
			}
		case strings.HasPrefix(line, "-"):
			oid, _, _ := strings.Cut(line[1:], " ")
			if !isOID(oid) {
				return hostile("a prerequisite is no object name")
			}
			b.needs = append(b.needs, oid)
		default:
			oid, ref, _ := strings.Cut(line, " ")
			if !isOID(oid) || ref != headRef || b.head != "" {
				return hostile("a ref that was not asked for")
			}
			b.head = oid
		}
	}
}

// isOID reports whether s is a full object name, SHA-1 or SHA-256.
func isOID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// unpack indexes the pack and checks every object in it.
func (w Workspace) unpack(ctx context.Context, g git, repo string, pack io.Reader, limit int64) error {
	_, err := g.do(ctx, gitRun{repo: repo, stdin: pack}, "index-pack", "--stdin", "--fix-thin", "--strict", "--max-input-size="+strconv.FormatInt(limit, 10))
	if ge, ok := errors.AsType[*GitError](err); ok && ge.kind == nil {
		return &HostileError{Reason: fmt.Sprintf("git's object checks: %q", oneLine(ge.Stderr))}
	}
	return err
}

// connect checks how the new commits hang on the base, and returns the head. A snapshot has no history: its files are put
// on the base here.
func (w Workspace) connect(ctx context.Context, g git, repo string, b bundle, snapshot bool, o CollectOptions) (string, error) {
	run := gitRun{repo: repo}
	hostile := func(why string) (string, error) { return "", &HostileError{Reason: why} }
	kind, err := g.line(ctx, run, "cat-file", "-t", b.head)
	if err != nil || kind != "commit" {
		return hostile("its head is not a commit that it holds")
	}
	if snapshot {
		if len(b.needs) > 0 {
			return hostile("a snapshot asks for other commits")
		}
		if n, err := g.line(ctx, run, "rev-list", "--count", b.head); err != nil || n != "1" {
			return hostile("a snapshot has a history")
		}
		return g.line(ctx, gitRun{repo: repo, stdin: strings.NewReader(o.Message + "\n")}, "commit-tree", b.head+"^{tree}", "-p", w.Base)
	}
	for _, need := range b.needs {
		if _, err := g.do(ctx, run, "merge-base", "--is-ancestor", need, w.Base); err != nil {
			return hostile("it builds on a commit outside of the base's history")
		}
	}
	if _, err := g.do(ctx, run, "merge-base", "--is-ancestor", w.Base, b.head); err != nil {
		return hostile("its head does not descend from the base")
	}
	if _, err := g.do(ctx, run, "rev-list", "--objects", "--quiet", b.head, "--not", w.Base); err != nil {
		return hostile("objects are missing")
	}
	return b.head, nil
}

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
