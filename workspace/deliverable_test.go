package workspace_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/workspace"
)

// What the agent committed and took back again is not delivered, nor are its messages and identities.
func TestSquashDeliversWhatWasLookedAt(t *testing.T) {
	repo := newRepo(t)
	w := prepare(t, repo)
	sh(t, w.Dir, `echo CANARY >secret; git add .; git commit -qm "Fixes #1 @everyone CANARY" --author="Linus <l@example.com>"; git rm -q secret; echo x >x; git add .; git commit -qm undo`)
	when := time.Unix(1_700_000_000, 0)
	e, err := w.Squash(t.Context(), collect(t, w), "One subject", when)
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.Squash(t.Context(), e, "One subject", when)
	if err != nil || again.Head != e.Head || len(e.Commits) != 1 {
		t.Errorf("squashed to %s and again to %s, %v", e.Head, again.Head, err)
	}
	var out bytes.Buffer
	if err := w.WriteBundle(t.Context(), e, "refs/heads/sbxpair/run-1", &out); err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	if err := os.WriteFile(filepath.Join(at, "b"), out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got := sh(t, at, "git clone -q "+repo+" r && cd r && git fetch -q ../b refs/heads/sbxpair/run-1:got && git log --format='%an %s' got && git cat-file --batch-all-objects --batch")
	if !strings.HasPrefix(got, workspace.AuthorName+" One subject\nu first") || strings.Contains(got, "CANARY") {
		t.Errorf("delivered:\n%s", got)
	}
}

// Verify commands run on what would be delivered: what is ignored is not there.
func TestCheckOutIsWhatIsDelivered(t *testing.T) {
	w := prepare(t, newRepo(t))
	sh(t, w.Dir, `echo x >'a b.txt'; echo hidden >debug.log; mkdir -p build .git/hooks; echo built >build/out; printf 'touch "%s"\n' CANARY >.git/hooks/post-checkout; chmod +x .git/hooks/post-checkout`)
	e := collect(t, w)
	dir := filepath.Join(t.TempDir(), "fresh dir")
	for range 2 { // a second time replaces the first
		if err := w.CheckOut(t.Context(), sandbox{home: t.TempDir()}, e, dir); err != nil {
			t.Fatal(err)
		}
	}
	if got := sh(t, dir, `ls; git status --porcelain; git log --format=%s`); got != "a b.txt\na.txt\nsub\nDelivered state" {
		t.Errorf("checked out:\n%s", got)
	}
}

// What is written on top of the base, and a bundle of all history, both give the very tree of the end state.
func TestVersionsAndHistory(t *testing.T) {
	w := prepare(t, newRepo(t))
	sh(t, w.Dir, `printf '\000\001' >bin; echo run >run.sh; chmod +x run.sh; git mv a.txt moved.txt; ln -s moved.txt link; echo more >>sub/b.txt || true; git add -A; git commit -qm work`)
	e, err := w.Squash(t.Context(), collect(t, w), "One", time.Unix(1_700_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	tree, list, err := w.Versions(t.Context(), e, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var history bytes.Buffer
	if err := w.WriteHistory(t.Context(), e, "refs/heads/sbxpair/run-1", &history); err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	if err := os.WriteFile(filepath.Join(at, "b"), history.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	sh(t, at, "git init -q r && cd r && git fetch -q ../b refs/heads/sbxpair/run-1:got && git checkout -q got~")
	work := filepath.Join(at, "r")
	seen := map[string]bool{}
	for _, v := range list {
		seen[v.OldMode+" "+v.Mode+" "+v.Path] = true
		file := filepath.Join(work, v.Path)
		os.Remove(file)
		var err error
		switch v.Mode {
		case "000000":
		case "120000":
			err = os.Symlink(string(v.Data), file)
		case "100755":
			err = os.WriteFile(file, v.Data, 0o755)
		default:
			err = os.WriteFile(file, v.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := sh(t, work, "git add -A && git write-tree && git rev-parse got^{tree}"); got != tree+"\n"+tree {
		t.Errorf("written %q, want %s twice", got, tree)
	}
	for _, want := range []string{"100644 000000 a.txt", "000000 100644 moved.txt", "000000 100755 run.sh", "000000 120000 link"} {
		if !seen[want] {
			t.Errorf("%q is not among %v", want, seen)
		}
	}
	if _, _, err := w.Versions(t.Context(), e, 3); !errors.Is(err, workspace.ErrTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
}
