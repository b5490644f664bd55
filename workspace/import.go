package workspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

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
