package workspace_test

import (
	"bytes"
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
