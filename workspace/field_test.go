package workspace_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/workspace"
)

// TestFieldReports takes the rows of the categories workspace and cp that concern this package. R145 and R162 stand in
// TestRefusals as well; R153 is the command's.
func TestFieldReports(t *testing.T) {
	source := func(dir string) workspace.Source { return workspace.Source{Dir: dir, Branch: "sbxpair/x"} }
	t.Run("R145 linked work tree", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, "git worktree add -q ../wt")
		wt := filepath.Join(filepath.Dir(repo), "wt")
		_, err := workspace.Prepare(t.Context(), source(wt), filepath.Join(t.TempDir(), "ws"))
		if !errors.Is(err, workspace.ErrLinkedWorktree) {
			t.Errorf("%v", err)
		}
		if _, err := workspace.Inspect(t.Context(), source(wt)); !errors.Is(err, workspace.ErrLinkedWorktree) {
			t.Errorf("Inspect: %v", err)
		}
	})
	t.Run("R146 workspace reached through a link", func(t *testing.T) {
		repo := newRepo(t)
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(filepath.Dir(repo), link); err != nil {
			t.Fatal(err)
		}
		w := prepare(t, filepath.Join(link, "proj"))
		if w.Top != repo {
			t.Errorf("top %q, want %q", w.Top, repo)
		}
		if _, err := workspace.Prepare(t.Context(), source(repo), filepath.Join(link, "proj", "ws")); !errors.Is(err, workspace.ErrNested) {
			t.Errorf("a destination inside, seen through a link: %v", err)
		}
	})
	t.Run("R147 checkout of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to give a checkout to somebody else")
		}
		repo := newRepo(t)
		sh(t, repo, "chown -R 4711:4711 .")
		w := prepare(t, repo)
		if err := w.Probe(t.Context(), sandbox{home: t.TempDir()}); err != nil {
			t.Error(err)
		}
		sh(t, w.Dir, "echo n >n; chown 4712 n; chown -R 4712 .git")
		file(t, collect(t, w), "n")
		if got := sh(t, repo, "stat -c %u a.txt .git/HEAD"); got != "4711\n4711" {
			t.Errorf("owners in the user's checkout: %q", got)
		}
	})
	t.Run("R148 colon in a folder's name", func(t *testing.T) {
		w := prepare(t, newRepoAt(t, filepath.Join(t.TempDir(), "proj:ro")))
		if strings.Contains(w.Dir, ":") {
			t.Errorf("the mounted path reads as a mount option: %q", w.Dir)
		}
	})
	t.Run("R149 R135 dot files are delivered, what is left out is listed", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		sh(t, w.Dir, `mkdir -p .github/workflows build; echo x >.github/workflows/x.yml; echo '*.tmp' >.gitignore; echo y >.env.example; echo z >z.tmp; echo o >build/o`)
		e := collect(t, w)
		for _, name := range []string{".github/workflows/x.yml", ".gitignore", ".env.example", "build/o"} {
			file(t, e, name)
		}
		if e.Ignored != 1 || !slices.Equal(e.IgnoredPaths, []string{"z.tmp"}) {
			t.Errorf("left out: %d %q", e.Ignored, e.IgnoredPaths)
		}
	})
	t.Run("R135 everything is ignored", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		sh(t, w.Dir, `mkdir build; echo o >build/o`)
		if e := collect(t, w); !e.Empty || e.Ignored != 1 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("R150 empty file, and nothing", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		if e := collect(t, w); !e.Empty || len(e.Commits) != 0 {
			t.Errorf("nothing done: %+v", e)
		}
		sh(t, w.Dir, `: >empty`)
		e := collect(t, w)
		if f := file(t, e, "empty"); f.Size != 0 || f.Status != workspace.Added || e.Empty {
			t.Errorf("%+v", e)
		}
		if err := w.WriteBundle(t.Context(), e, "refs/heads/x", io.Discard); err != nil {
			t.Error(err)
		}
	})
	t.Run("R151 spaces, Unicode, CDPATH, called from elsewhere", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "my proj é")
		repo := newRepoAt(t, dir)
		t.Setenv("CDPATH", "/")
		t.Setenv("GIT_DIR", "/nonexistent")
		t.Setenv("GIT_WORK_TREE", "/")
		t.Setenv("GIT_INDEX_FILE", "/nonexistent")
		t.Chdir("/")
		dest := filepath.Join(t.TempDir(), "the runs é")
		w, err := workspace.Prepare(t.Context(), source(dir), dest)
		if err != nil {
			t.Fatal(err)
		}
		if w.Top != repo || !strings.HasPrefix(w.Dir, dest) {
			t.Errorf("%+v", w)
		}
		sh(t, w.Dir, `echo n >'new file é'`)
		e := collect(t, w)
		file(t, e, "new file é")
		if err := w.WriteBundle(t.Context(), e, "refs/heads/x", io.Discard); err != nil {
			t.Error(err)
		}
		t.Chdir(filepath.Dir(repo))
		if rel, err := workspace.Inspect(t.Context(), source("my proj é")); err != nil || rel.Top != repo {
			t.Errorf("relative: %v %+v", err, rel)
		}
	})
	t.Run("R152 the user's files never change", func(t *testing.T) {
		repo := newRepo(t)
		w := prepare(t, repo)
		sh(t, w.Dir, `echo x >>a.txt; git add .; git commit -qm x; git gc -q --prune=now; find .git/objects -type f | xargs chmod u+w; for f in $(find .git/objects -type f); do echo junk >"$f"; done`)
		if got := sh(t, repo, "cat a.txt; git fsck --strict; git status --porcelain"); got != "one\ntwo" {
			t.Errorf("the user's checkout: %q", got)
		}
	})
	t.Run("R157 links work at the inside path", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		if err := w.Probe(t.Context(), sandbox{home: t.TempDir()}); err != nil {
			t.Error(err)
		}
	})
	t.Run("R162 files in LFS are refused, and where they come from is said", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, `echo '*.bin filter=lfs' >.gitattributes; git remote add origin git@github.com:o/n
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n' >model.bin; git add -A; git commit -qm lfs`)
		if _, err := workspace.Prepare(t.Context(), source(repo), filepath.Join(t.TempDir(), "ws")); !errors.Is(err, workspace.ErrLFS) || !strings.Contains(err.Error(), "github.com and the storage host it names") {
			t.Errorf("%v", err)
		}
	})
	t.Run("R161 clean afterwards", func(t *testing.T) {
		repo := newRepo(t)
		w := prepare(t, repo)
		collect(t, w)
		if err := w.Remove(); err != nil {
			t.Error(err)
		}
		if got := sh(t, repo, "git status --porcelain --ignored"); got != "" {
			t.Errorf("left in the checkout: %q", got)
		}
	})
	t.Run("R222 uncommitted changes, and a lock that stops git", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		sh(t, w.Dir, `echo x >x; touch .git/index.lock .git/HEAD.lock .git/refs/heads/sbxpair/run-1.lock; git add x 2>/dev/null || true`)
		file(t, collect(t, w), "x")
	})
	t.Run("R134 links stay links, outward ones are refused", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		sh(t, w.Dir, `ln -s a.txt rel; ln -s nowhere dangling`)
		e := collect(t, w)
		if f := file(t, e, "rel"); f.LinkTarget != "a.txt" {
			t.Errorf("%+v", f)
		}
		if f := file(t, e, "dangling"); f.LinkTarget != "nowhere" {
			t.Errorf("%+v", f)
		}
		sh(t, w.Dir, `ln -s ../../../etc/passwd out`)
		_, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{})
		if he, ok := errors.AsType[*workspace.HostileError](err); !ok || he.Path != "out" {
			t.Errorf("%v", err)
		}
	})
	t.Run("R197 over the cap: told with the sizes", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		sh(t, w.Dir, `head -c 1300000 /dev/urandom >big`)
		_, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{MaxBundle: 1 << 20})
		if tl, ok := errors.AsType[*workspace.TooLargeError](err); !ok || tl.Largest[0].Path != "big" || tl.Limit != 1<<20 {
			t.Errorf("%v", err)
		}
	})
}
