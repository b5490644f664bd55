package workspace_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/workspace"
)

// TestEndState does to the work tree what agents do and looks at what comes back.
func TestEndState(t *testing.T) {
	for _, tt := range []struct {
		name    string
		agent   string
		files   []string // "STATUS path", sorted; a rename as "R old>new"
		commits int
		note    string // part of a note that has to be there
	}{
		{name: "nothing", agent: `true`},
		{name: "unstaged", agent: `echo three >>a.txt`, files: []string{"M a.txt"}, commits: 1},
		{name: "staged", agent: `echo three >>a.txt; git add a.txt`, files: []string{"M a.txt"}, commits: 1},
		{name: "untracked", agent: `echo new >new.txt`, files: []string{"A new.txt"}, commits: 1},
		{name: "committed", agent: `echo new >new.txt; git add -A; git commit -qm mine`, files: []string{"A new.txt"}, commits: 1},
		{name: "committed and more", agent: `echo new >new.txt; git add -A; git commit -qm mine; rm sub/b.txt`, files: []string{"A new.txt", "D sub/b.txt"}, commits: 2},
		{name: "rename", agent: `git mv a.txt c.txt`, files: []string{"R a.txt>c.txt"}, commits: 1},
		{name: "mode", agent: `chmod +x a.txt`, files: []string{"M a.txt"}, commits: 1},
		{name: "link", agent: `ln -s a.txt l`, files: []string{"A l"}, commits: 1},
		{name: "file to link", agent: `rm sub/b.txt; ln -s ../a.txt sub/b.txt`, files: []string{"T sub/b.txt"}, commits: 1},
		{name: "binary", agent: `printf 'a\000b' >bin`, files: []string{"A bin"}, commits: 1},
		{name: "empty file", agent: `: >empty`, files: []string{"A empty"}, commits: 1},
		{name: "dot files", agent: `mkdir -p .github/workflows; echo x >.github/workflows/x.yml; echo y >.env.example`,
			files: []string{"A .env.example", "A .github/workflows/x.yml"}, commits: 1},
		{name: "ignored left out", agent: `mkdir build; echo x >build/o; echo y >x.log; echo z >kept`, files: []string{"A kept"}, commits: 1},
		{name: "detached", agent: `git checkout -q --detach; echo n >n; git add n; git commit -qm d`, files: []string{"A n"}, commits: 1},
		{name: "other branch", agent: `git checkout -qb side; echo n >n; git add n; git commit -qm s`, files: []string{"A n"}, commits: 1},
		{name: "went back to main", agent: `echo n >n; git add n; git commit -qm s; git checkout -q main`, files: []string{"A n"}, commits: 1, note: "the run's branch were taken"},
		{name: "commits on a branch that is not checked out", agent: `git checkout -qb side; echo n >n; git add n; git commit -qm s; git checkout -q sbxpair/run-1; echo m >m`,
			files: []string{"A m"}, commits: 1, note: `1 commits on "refs/heads/side" were not taken`},
		{name: "amended base", agent: `echo n >n; git add n; git commit -q --amend -m rewritten`, files: []string{"A n"}, commits: 1, note: "base is not in HEAD's history"},
		{name: "orphan", agent: `git checkout -q --orphan o; git commit -qm o; echo n >n`, files: []string{"A n"}, commits: 1, note: "base is not in HEAD's history"},
		{name: "merge of own branch", agent: `git checkout -qb s; echo n >n; git add n; git commit -qm s; git checkout -q sbxpair/run-1; echo m >m; git add m; git commit -qm m; git merge -q -m j s`,
			files: []string{"A m", "A n"}, commits: 3},
		{name: "changed and changed back", agent: `echo x >>a.txt; git commit -qam x; git revert --no-edit HEAD >/dev/null`, commits: 2},
		{name: "index lock left", agent: `echo n >n; touch .git/index.lock`, files: []string{"A n"}, commits: 1},
		{name: "broken index", agent: `echo n >n; echo junk >.git/index`, files: []string{"A n"}, commits: 1},
		{name: "broken config", agent: `echo n >n; echo '[[[' >.git/config`, files: []string{"A n"}, commits: 1},
		{name: "broken HEAD", agent: `echo n >n; echo junk >.git/HEAD`, files: []string{"A n"}, commits: 1, note: "HEAD names no commit"},
		{name: "broken packed-refs", agent: `echo n >n; echo junk >.git/packed-refs`, files: []string{"A n"}, commits: 1},
		{name: "broken ref", agent: `echo n >n; echo junk >.git/refs/heads/junk`, files: []string{"A n"}, commits: 1},
		{name: "no git folder", agent: `echo n >n; rm -rf .git`, files: []string{"A n"}, commits: 1, note: "broken or gone"},
		{name: "new git folder", agent: `echo n >n; rm -rf .git; git init -q; git add -A; git commit -qm new`, files: []string{"A n"}, commits: 1, note: "broken or gone"},
		{name: "objects gone", agent: `echo n >n; rm -rf .git/objects; mkdir .git/objects`, files: []string{"A n"}, commits: 1, note: "broken or gone"},
		{name: "hidden by index flags", agent: `git update-index --assume-unchanged a.txt; git update-index --skip-worktree sub/b.txt; echo x >>a.txt; echo y >>sub/b.txt`,
			files: []string{"M a.txt", "M sub/b.txt"}, commits: 1},
		{name: "hidden by excludes", agent: `echo n >n; echo n >>.git/info/exclude; git config core.excludesFile "$PWD/.git/info/exclude"`, files: []string{"A n"}, commits: 1},
		{name: "file mode off", agent: `git config core.fileMode false; chmod +x a.txt`, files: []string{"M a.txt"}, commits: 1},
		{name: "replace ref", agent: `echo n >n; git add n; git commit -qm n; git replace HEAD HEAD~1`, files: []string{"A n"}, commits: 1},
		{name: "repository inside", agent: `mkdir r; git init -q r; echo x >r/x; (cd r; git add -A; git commit -qm r); echo n >n`, files: []string{"A n"}, commits: 1, note: "1 repositories inside"},
		{name: "empty repository inside", agent: `git init -q r; echo n >n`, files: []string{"A n"}, commits: 1},
		{name: "line ends", agent: `printf '* text eol=crlf\n' >.gitattributes; printf 'x\r\n' >crlf`, files: []string{"A .gitattributes", "A crlf"}, commits: 1},
		{name: "merge left open", agent: `git checkout -qb s; echo s >a.txt; git commit -qam s; git checkout -q sbxpair/run-1; echo m >a.txt; git commit -qam m; git merge s >/dev/null || true`,
			files: []string{"M a.txt"}, commits: 2, note: "merge was left unfinished"},
		{name: "fifo and socket", agent: `mkfifo pipe; echo n >n`, files: []string{"A n"}, commits: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, newRepo(t))
			sh(t, w.Dir, tt.agent)
			e := collect(t, w)
			var got []string
			for _, f := range e.Files {
				s := string(f.Status) + " " + f.Path
				if f.OldPath != "" {
					s = string(f.Status) + " " + f.OldPath + ">" + f.Path
				}
				got = append(got, s)
			}
			if slices.Sort(got); !slices.Equal(got, tt.files) {
				t.Errorf("files %q, want %q", got, tt.files)
			}
			if len(e.Commits) != tt.commits {
				t.Errorf("%d commits, want %d: %+v", len(e.Commits), tt.commits, e.Commits)
			}
			if e.Empty != (len(tt.files) == 0) {
				t.Errorf("Empty = %v with files %q", e.Empty, got)
			}
			if notes := strings.Join(e.Notes, "; "); !strings.Contains(notes, tt.note) {
				t.Errorf("notes %q, want %q", notes, tt.note)
			}
			// The patch, applied to the base, gives the head's tree.
			if len(e.Files) > 0 {
				check := t.TempDir()
				sh(t, check, "git clone -q -n "+w.BaseRepo+" r && cd r && git fetch -q "+w.BaseRepo+" refs/sbxpair/base && git checkout -q FETCH_HEAD")
				if err := os.WriteFile(filepath.Join(check, "p"), e.Patch, 0o600); err != nil {
					t.Fatal(err)
				}
				sh(t, filepath.Join(check, "r"), "git apply --index ../p")
				tree := sh(t, filepath.Join(check, "r"), "git write-tree")
				if want := sh(t, w.Root, "git --git-dir=import.git rev-parse "+e.Head+"^{tree}"); tree != want {
					t.Errorf("the patch gives tree %s, the head has %s", tree, want)
				}
			}
		})
	}
}

func TestEndStateDetails(t *testing.T) {
	w := prepare(t, newRepo(t))
	sh(t, w.Dir, `printf 'one\n2\nthree\n' >a.txt
git -c user.name='Some One' -c user.email=x@y.z commit -qam 'subject line

body
text' --author='An Agent <a@b.c>' --date='2026-01-02T03:04:05Z'
mkdir build; echo o >build/o; echo l >"odd
name.log"; chmod +x sub/b.txt; ln -s sub/b.txt link; git mv sub/b.txt sub/c.txt`)
	e := collect(t, w)
	if e.Base != w.Base || e.Head == e.Base || e.Empty || e.Additions != 3 || e.Deletions != 1 {
		t.Errorf("base %s head %s empty %v +%d -%d", e.Base, e.Head, e.Empty, e.Additions, e.Deletions)
	}
	c := e.Commits[0]
	if c.Subject != "subject line" || c.Body != "body\ntext" || c.AuthorName != "An Agent" || c.AuthorEmail != "a@b.c" ||
		c.AuthorDate.Format("2006-01-02T15:04:05Z07:00") != "2026-01-02T03:04:05Z" || !slices.Equal(c.Paths, []string{"a.txt"}) || c.Parents[0] != e.Base {
		t.Errorf("first commit %+v", c)
	}
	last := e.Commits[1]
	if last.SHA != e.Head || last.Subject != "Changes made by the agent" || last.AuthorName != workspace.AuthorName || last.AuthorEmail != workspace.AuthorEmail {
		t.Errorf("last commit %+v", last)
	}
	if f := file(t, e, "a.txt"); f.Additions != 2 || f.Deletions != 1 || f.Size != 12 || f.Mode != "100644" || f.OldMode != "100644" {
		t.Errorf("a.txt %+v", f)
	}
	if f := file(t, e, "link"); f.Mode != "120000" || f.LinkTarget != "sub/b.txt" || f.OldMode != "" {
		t.Errorf("link %+v", f)
	}
	if f := file(t, e, "sub/c.txt"); f.Status != workspace.Renamed || f.OldPath != "sub/b.txt" || f.Mode != "100755" || f.OldMode != "100644" {
		t.Errorf("sub/c.txt %+v", f)
	}
	if want := []string{"build/", "odd\nname.log"}; e.Ignored != 2 || !slices.Equal(e.IgnoredPaths, want) {
		t.Errorf("ignored %d %q, want %q", e.Ignored, e.IgnoredPaths, want)
	}
	if e.Largest.Path != "a.txt" || e.Largest.Size != 12 {
		t.Errorf("largest %+v", e.Largest)
	}
}

// TestCollectAgain: the loop collects after every revision.
func TestCollectAgain(t *testing.T) {
	w := prepare(t, newRepo(t))
	if e := collect(t, w); !e.Empty {
		t.Fatalf("%+v", e)
	}
	sh(t, w.Dir, `echo x >x`)
	first := collect(t, w)
	sh(t, w.Dir, `echo y >y; git add x; git commit -qm x`)
	second := collect(t, w)
	if len(first.Files) != 1 || len(second.Files) != 2 || len(second.Commits) != 2 {
		t.Fatalf("first %+v\nsecond %+v", first.Files, second.Files)
	}
	if err := w.WriteBundle(t.Context(), first, "refs/heads/sbxpair/x", &bytes.Buffer{}); err == nil {
		t.Error("a bundle of an end state that was replaced")
	}
	sh(t, w.Dir, `git reset -q --hard main; rm -f y`)
	if e := collect(t, w); !e.Empty || e.Head != w.Base {
		t.Errorf("after the agent took all back: %+v", e)
	}
}

// TestWriteBundle checks that a repository with the base alone can take the bundle in.
func TestWriteBundle(t *testing.T) {
	repo := newRepo(t)
	w := prepare(t, repo)
	sh(t, w.Dir, `echo x >x; git add x; git commit -qm x; echo y >y`)
	e := collect(t, w)
	var out bytes.Buffer
	if err := w.WriteBundle(t.Context(), e, "refs/heads/sbxpair/run-1", &out); err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	if err := os.WriteFile(filepath.Join(at, "b"), out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got := sh(t, at, "git clone -q "+repo+" r && cd r && git bundle list-heads ../b && git fetch -q ../b refs/heads/sbxpair/run-1:got && git log --format=%s got")
	if want := e.Head + " refs/heads/sbxpair/run-1\nChanges made by the agent\nx\nfirst"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, ref := range []string{"HEAD", "refs/tags/x", "refs/heads/", "refs/heads/-x", "refs/heads/a..b", "refs/heads/a b", "refs/heads/x.lock"} {
		if err := w.WriteBundle(t.Context(), e, ref, &out); !errors.Is(err, workspace.ErrBadBranch) {
			t.Errorf("ref %q: %v", ref, err)
		}
	}
	sh(t, w.Dir, "git reset -q --hard main; rm -f y")
	if err := w.WriteBundle(t.Context(), collect(t, w), "refs/heads/sbxpair/run-1", &out); !errors.Is(err, workspace.ErrEmpty) {
		t.Errorf("empty: %v", err)
	}
}

// TestBlobs: a secret that was committed and taken back is in the history, and has to be seen.
func TestBlobs(t *testing.T) {
	w := prepare(t, newRepo(t))
	sh(t, w.Dir, `echo s3cret >s; git add s; git commit -qm s; git rm -q s; git commit -qm gone; head -c 5000 /dev/zero | tr '\0' x >big`)
	e := collect(t, w)
	got := map[string]string{}
	if err := w.Blobs(t.Context(), e, 4096, func(path string, data []byte) error {
		got[path] = string(data)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got["s"] != "s3cret\n" || len(got["big"]) != 4096 || len(got) != 2 {
		t.Errorf("%d blobs, s = %q, big of %d bytes", len(got), got["s"], len(got["big"]))
	}
	if !slices.Contains(e.Commits[1].Paths, "s") {
		t.Errorf("paths of the second commit: %q", e.Commits[1].Paths)
	}
}

func TestLimits(t *testing.T) {
	w := prepare(t, newRepo(t))
	sh(t, w.Dir, `head -c 300000 /dev/urandom >big.bin; head -c 1000 /dev/urandom >small.bin; i=0; while [ $i -lt 20 ]; do echo $i >f$i; i=$((i+1)); done`)
	_, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{MaxBundle: 100_000})
	tl, ok := errors.AsType[*workspace.TooLargeError](err)
	if !ok || tl.Size < 300_000 || tl.Limit != 100_000 || len(tl.Largest) == 0 || tl.Largest[0].Path != "big.bin" || tl.Largest[0].Size != 300_000 {
		t.Fatalf("over the limit: %v (%+v)", err, tl)
	}
	e, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{MaxPatch: 1000, MaxFiles: 5})
	if err != nil {
		t.Fatal(err)
	}
	if !e.PatchTruncated || len(e.Patch) != 1000 || !e.FilesTruncated || len(e.Files) != 5 || e.TotalFiles != 22 || e.Largest.Path != "big.bin" {
		t.Errorf("patch %d truncated %v, files %d of %d truncated %v, largest %+v", len(e.Patch), e.PatchTruncated, len(e.Files), e.TotalFiles, e.FilesTruncated, e.Largest)
	}
	sh(t, w.Dir, `i=0; while [ $i -lt 4 ]; do git commit -q --allow-empty -m $i; i=$((i+1)); done`)
	if _, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{MaxCommits: 3}); !errors.Is(err, workspace.ErrHostile) {
		t.Errorf("too many commits: %v", err)
	}
}
