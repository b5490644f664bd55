package workspace_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/workspace"
)

func TestPrepare(t *testing.T) {
	repo := newRepo(t)
	sh(t, repo, `git remote add origin https://user:t0ken@github.com/octo/demo.git; git tag v1; git branch other
echo 'secret' >build.log; git config alias.x '!touch pwned'; printf '#!/bin/sh\ntouch hooked\n' >.git/hooks/post-checkout; chmod +x .git/hooks/post-checkout`)
	const listing = "find . -newer .git/hooks/post-checkout; find . | sort | xargs -d '\n' ls -ld --time-style=full-iso"
	before := sh(t, repo, listing)
	w := prepare(t, repo)
	if w.Base != sh(t, repo, "git rev-parse HEAD") || w.BaseBranch != "main" || w.Top != repo || w.Subdir != "" || w.Mode != workspace.ModeClone {
		t.Errorf("%+v", w)
	}
	if w.Origin != (workspace.Origin{Host: "github.com", Owner: "octo", Name: "demo"}) || w.Origin.Slug() != "octo/demo" {
		t.Errorf("origin %+v", w.Origin)
	}
	got := sh(t, w.Dir, `git status --porcelain; git symbolic-ref --short HEAD; git remote; git config user.name; git config user.email; git for-each-ref --format='%(refname)'; ls -A .git/hooks 2>/dev/null || true; cat a.txt; git config alias.x || echo none`)
	want := "sbxpair/run-1\n" + workspace.AuthorName + "\n" + workspace.AuthorEmail + "\nrefs/heads/main\nrefs/heads/sbxpair/run-1\none\ntwo\nnone"
	if got != want {
		t.Errorf("work tree: got %q\nwant %q", got, want)
	}
	if got := sh(t, w.BaseRepo, "git for-each-ref --format='%(refname)'; git cat-file -e "+w.Base+"^{tree}; ls hooks 2>/dev/null || true"); got != "refs/sbxpair/base" {
		t.Errorf("base repository holds %q", got)
	}
	if after := sh(t, repo, listing); after != before {
		t.Errorf("the user's checkout changed:\n%s\n%s", before, after)
	}
	if filepath.Base(w.Dir) != "proj" {
		t.Errorf("folder %q", w.Dir)
	}
	if err := w.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if err := w.Remove(); err != nil {
		t.Errorf("second Remove: %v", err)
	}
}

// TestNoSharedObjects: an object file with two names would let the agent write into the user's repository.
func TestNoSharedObjects(t *testing.T) {
	repo := newRepo(t)
	sh(t, repo, "git gc -q")
	w := prepare(t, repo)
	inodes := map[uint64]string{}
	for _, root := range []string{repo, w.BaseRepo, w.Dir} {
		if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			st := info.Sys().(*syscall.Stat_t)
			if other := inodes[st.Ino]; other != "" || st.Nlink != 1 {
				t.Errorf("%s has %d names, one is %q", path, st.Nlink, other)
			}
			inodes[st.Ino] = path
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if alternates, err := os.ReadFile(filepath.Join(w.Dir, ".git/objects/info/alternates")); err == nil {
		t.Errorf("the work tree borrows objects: %s", alternates)
	}
}

func TestRefusals(t *testing.T) {
	type refusal struct {
		name   string
		make   func(t *testing.T, dir string) workspace.Source // dir is an empty folder
		kind   error
		detail string // part of the message
		remedy string // part of the remedy
	}
	repo := func(t *testing.T, dir, then string) workspace.Source {
		at := newRepoAt(t, filepath.Join(dir, "r"))
		sh(t, at, then)
		return workspace.Source{Dir: at}
	}
	for _, tt := range []refusal{
		{"not git", func(t *testing.T, dir string) workspace.Source { return workspace.Source{Dir: dir} }, workspace.ErrNotRepository, "", "git init"},
		{"absent", func(t *testing.T, dir string) workspace.Source {
			return workspace.Source{Dir: filepath.Join(dir, "no")}
		}, workspace.ErrBadPath, "no such file", "existing"},
		{"a file", func(t *testing.T, dir string) workspace.Source {
			sh(t, dir, "touch f")
			return workspace.Source{Dir: filepath.Join(dir, "f")}
		}, workspace.ErrBadPath, "not a folder", ""},
		{"no commit", func(t *testing.T, dir string) workspace.Source {
			sh(t, dir, "git init -q")
			return workspace.Source{Dir: dir}
		}, workspace.ErrNoCommits, "", "git commit"},
		{"dirty", func(t *testing.T, dir string) workspace.Source {
			return repo(t, dir, "echo x >>a.txt; i=10; while [ $i -lt 25 ]; do echo x >n$i; i=$((i+1)); done")
		}, workspace.ErrDirty, `16 in all: "a.txt", "n10", "n11", "n12", "n13", "n14", "n15", "n16", "n17", "n18", …`, "commit or stash"},
		{"staged only", func(t *testing.T, dir string) workspace.Source { return repo(t, dir, "echo x >>a.txt; git add .") }, workspace.ErrDirty, `"a.txt"`, ""},
		{"linked work tree (R145)", func(t *testing.T, dir string) workspace.Source {
			repo(t, dir, "git worktree add -q ../wt")
			return workspace.Source{Dir: filepath.Join(dir, "wt")}
		}, workspace.ErrLinkedWorktree, "worktrees/wt", "/r"},
		{"git file to nowhere", func(t *testing.T, dir string) workspace.Source {
			sh(t, dir, "echo 'gitdir: ../no' >.git")
			return workspace.Source{Dir: dir}
		}, workspace.ErrNotRepository, "not there", ""},
		{"a pipe in the place of the index", func(t *testing.T, dir string) workspace.Source {
			return repo(t, dir, "rm .git/index; mkfifo .git/index")
		}, workspace.ErrNotRepository, ".git/index is no plain file", "clone"},
		{"bare", func(t *testing.T, dir string) workspace.Source {
			sh(t, dir, "git init -q --bare")
			return workspace.Source{Dir: dir}
		}, workspace.ErrBare, "", "git clone"},
		{"core.bare", func(t *testing.T, dir string) workspace.Source { return repo(t, dir, "git config core.bare true") }, workspace.ErrBare, "core.bare", ""},
		{"core.worktree", func(t *testing.T, dir string) workspace.Source {
			return repo(t, dir, "mkdir ../else; git config core.worktree ../../else")
		}, workspace.ErrNotRepository, "core.worktree", ""},
		{"inside .git", func(t *testing.T, dir string) workspace.Source {
			s := repo(t, dir, "")
			s.Dir = filepath.Join(s.Dir, ".git", "objects")
			return s
		}, workspace.ErrBadPath, ".git", ""},
		{"submodule", func(t *testing.T, dir string) workspace.Source {
			other := newRepoAt(t, filepath.Join(dir, "other"))
			return repo(t, dir, "git submodule --quiet add "+other+" lib && git commit -qm sub")
		}, workspace.ErrSubmodules, `"lib"`, "submodule"},
		{"LFS (R162)", func(t *testing.T, dir string) workspace.Source {
			return repo(t, dir, `printf '*.bin filter=lfs diff=lfs merge=lfs -text\n' >.gitattributes
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n' >model.bin
git remote add origin git@github.com:o/n; git add -A; git commit -qm lfs`)
		}, workspace.ErrLFS, `github.com and the storage host it names`, "LFS"},
		{"partial clone", func(t *testing.T, dir string) workspace.Source {
			return repo(t, dir, "git config extensions.partialClone origin")
		}, workspace.ErrPartialClone, "", "refetch"},
		{"promisor remote", func(t *testing.T, dir string) workspace.Source {
			return repo(t, dir, "git config remote.origin.promisor true")
		}, workspace.ErrPartialClone, "", ""},
		{"home folder", func(t *testing.T, dir string) workspace.Source { s := repo(t, dir, ""); s.Home = s.Dir; return s }, workspace.ErrForbiddenDir, "home folder", "folder of its own"},
		{"above the home folder", func(t *testing.T, dir string) workspace.Source {
			s := repo(t, dir, "mkdir -p build/me")
			s.Home = filepath.Join(s.Dir, "build", "me")
			return s
		}, workspace.ErrForbiddenDir, "home folder", ""},
		{"home folder through a link", func(t *testing.T, dir string) workspace.Source {
			s := repo(t, dir, "ln -s r ../home")
			s.Home = filepath.Join(dir, "home")
			return s
		}, workspace.ErrForbiddenDir, "home folder", ""},
		{"holds keys", func(t *testing.T, dir string) workspace.Source {
			return repo(t, dir, "mkdir .ssh; echo .ssh >>.git/info/exclude")
		}, workspace.ErrForbiddenDir, "found .ssh", ""},
		{"line break", func(t *testing.T, dir string) workspace.Source {
			return workspace.Source{Dir: newRepoAt(t, filepath.Join(dir, "a\nb"))}
		}, workspace.ErrBadPath, "line break", ""},
		{"line break behind a link", func(t *testing.T, dir string) workspace.Source {
			at := newRepoAt(t, filepath.Join(dir, "a\nb"))
			if err := os.Symlink(at, filepath.Join(dir, "l")); err != nil {
				t.Fatal(err)
			}
			return workspace.Source{Dir: filepath.Join(dir, "l")}
		}, workspace.ErrBadPath, "line break", ""},
		{"mode", func(t *testing.T, dir string) workspace.Source {
			s := repo(t, dir, "")
			s.Mode = "magic"
			return s
		}, workspace.ErrMode, "magic", ""},
		{"branch", func(t *testing.T, dir string) workspace.Source {
			s := repo(t, dir, "")
			s.Branch = "--upload-pack=x"
			return s
		}, workspace.ErrBadBranch, "reserved", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.make(t, t.TempDir())
			if s.Branch == "" {
				s.Branch = "sbxpair/x"
			}
			dest := filepath.Join(t.TempDir(), "ws")
			w, err := workspace.Prepare(t.Context(), s, dest)
			if !errors.Is(err, tt.kind) {
				t.Fatalf("error %v, want %v", err, tt.kind)
			}
			e, ok := errors.AsType[*workspace.Error](err)
			if !ok || !strings.Contains(e.Error(), tt.detail) || !strings.Contains(e.Remedy, tt.remedy) || strings.Contains(e.Error(), "\n") {
				t.Errorf("message %q, remedy %q; want %q and %q", err, e.Remedy, tt.detail, tt.remedy)
			}
			if w.Dir != "" || w.Root != "" {
				t.Errorf("a workspace beside the error: %+v", w)
			}
			if _, err := os.Stat(dest); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something is left: %v", err)
			}
		})
	}
}

func TestDestination(t *testing.T) {
	repo := newRepo(t)
	link := filepath.Join(t.TempDir(), "l")
	if err := os.Symlink(repo, link); err != nil {
		t.Fatal(err)
	}
	full := t.TempDir()
	sh(t, full, "touch x")
	for dest, want := range map[string]error{
		filepath.Join(repo, ".sbxpair"):      workspace.ErrNested, // R161
		filepath.Join(link, "deep", "ws"):    workspace.ErrNested, // R146
		filepath.Join(repo, ".git", "ws"):    workspace.ErrNested,
		full:                                 workspace.ErrDestination,
		filepath.Join(full, "x"):             workspace.ErrDestination,
		filepath.Join(t.TempDir(), "a\nb"):   workspace.ErrBadPath,
		filepath.Join(t.TempDir(), "ok"):     nil,
		t.TempDir():                          nil,
		filepath.Join(repo+"-sibling", "ws"): nil,
	} {
		_, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "b"}, dest)
		if !errors.Is(err, want) {
			t.Errorf("dest %q: %v, want %v", dest, err, want)
		}
	}
	if got := sh(t, repo, "git status --porcelain"); got != "" {
		t.Errorf("the checkout is dirty: %s", got)
	}
}

func TestPrepareKinds(t *testing.T) {
	t.Run("allow dirty", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, "echo x >>a.txt; echo n >n")
		w, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "b", AllowDirty: true}, filepath.Join(t.TempDir(), "ws"))
		if err != nil {
			t.Fatal(err)
		}
		if got := sh(t, w.Dir, "cat a.txt; ls"); got != "one\ntwo\na.txt\nsub" {
			t.Errorf("got %q", got)
		}
		if len(w.Notes) != 1 || !strings.Contains(w.Notes[0], `2 uncommitted changes stay behind: "a.txt", "n"`) {
			t.Errorf("notes %q", w.Notes)
		}
	})
	t.Run("subfolder", func(t *testing.T) {
		repo := newRepo(t)
		w := prepare(t, filepath.Join(repo, "sub"))
		if w.Top != repo || w.Subdir != "sub" || len(w.Notes) != 1 {
			t.Errorf("%+v", w)
		}
	})
	t.Run("detached", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, "git checkout -q --detach")
		w := prepare(t, repo)
		if w.BaseBranch != "" || len(w.Notes) != 1 {
			t.Errorf("%+v", w)
		}
		sh(t, w.Dir, "echo n >n")
		file(t, collect(t, w), "n")
	})
	t.Run("shallow", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, "echo 2 >2; git add 2; git commit -qm 2; echo 3 >3; git add 3; git commit -qm 3; git clone -q --depth=2 file://$PWD ../shallow")
		w := prepare(t, filepath.Join(filepath.Dir(repo), "shallow"))
		if !w.Shallow || sh(t, w.Dir, "git rev-list --count HEAD") != "2" {
			t.Errorf("%+v", w)
		}
		sh(t, w.Dir, "echo n >n; git add n; git commit -qm n; echo m >m")
		e := collect(t, w)
		if len(e.Commits) != 2 || len(e.Files) != 2 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("sha256", func(t *testing.T) {
		repo := t.TempDir()
		sh(t, repo, "git init -q --object-format=sha256; echo x >x; git add x; git commit -qm x")
		w := prepare(t, repo)
		sh(t, w.Dir, "echo n >n")
		if e := collect(t, w); len(e.Base) != 64 || len(e.Files) != 1 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("borrowed objects", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, "git clone -q --shared . ../shared")
		w := prepare(t, filepath.Join(filepath.Dir(repo), "shared"))
		if err := os.RemoveAll(repo); err != nil {
			t.Fatal(err)
		}
		sh(t, w.Dir, "git fsck --strict")
	})
	t.Run("submodule as such", func(t *testing.T) {
		dir := t.TempDir()
		newRepoAt(t, filepath.Join(dir, "lib"))
		sh(t, newRepoAt(t, filepath.Join(dir, "super")), "git submodule --quiet add ../lib lib; git commit -qm sub")
		w := prepare(t, filepath.Join(dir, "super", "lib"))
		if filepath.Base(w.Dir) != "lib" || sh(t, w.Dir, "cat a.txt") != "one\ntwo" {
			t.Errorf("%+v", w)
		}
	})
	t.Run("base branch in the way of the run's", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, "git branch -m sbxpair")
		w := prepare(t, repo)
		if w.BaseBranch != "sbxpair" || sh(t, w.Dir, "git symbolic-ref HEAD") != "refs/heads/sbxpair/run-1" {
			t.Errorf("%+v", w)
		}
	})
	t.Run("LFS allowed", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, `echo '*.bin filter=lfs' >.gitattributes; printf 'version https://git-lfs.github.com/spec/v1\noid x\n' >m.bin; echo real >n.bin; git add -A; git commit -qm l`)
		w, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "b", AllowLFS: true}, filepath.Join(t.TempDir(), "ws"))
		if err != nil || len(w.Notes) != 1 || !strings.Contains(w.Notes[0], `1 files are in Git LFS; the agent sees their pointers: "m.bin"`) {
			t.Errorf("%v %q", err, w.Notes)
		}
	})
	t.Run("carriage returns stay", func(t *testing.T) {
		repo := newRepo(t)
		sh(t, repo, `printf 'x\r\ny\r\n' >crlf; git add crlf; printf '* text=auto\ncrlf text eol=crlf\n' >.gitattributes; git add .gitattributes; git commit -qm c`)
		w, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "b", AllowDirty: true}, filepath.Join(t.TempDir(), "ws"))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(filepath.Join(w.Dir, "crlf")); string(got) != "x\r\ny\r\n" {
			t.Errorf("got %q", got)
		}
		if e := collect(t, w); !e.Empty {
			t.Errorf("untouched files show as changed: %+v", e.Files)
		}
	})
}

// TestRemoveUnreadable: agents leave folders that nobody may enter (Go's module cache is read-only, for one).
func TestRemoveUnreadable(t *testing.T) {
	w := prepare(t, newRepo(t))
	sh(t, w.Dir, "mkdir -p x/y/z; touch x/y/z/f; chmod 0 x/y/z; chmod 500 x/y; chmod 0 x")
	if err := w.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestProbe(t *testing.T) {
	w := prepare(t, newRepo(t))
	if err := w.Probe(t.Context(), sandbox{home: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, w.Dir, "git status --porcelain --ignored"); got != "" {
		t.Errorf("the probe left %q", got)
	}
	moved := w
	moved.Dir += "-elsewhere"
	err := moved.Probe(t.Context(), sandbox{home: t.TempDir()})
	if !errors.Is(err, workspace.ErrUnusable) || !strings.Contains(err.Error(), "the folder is not there") {
		t.Errorf("absent: %v", err)
	}
	moved = w
	moved.Base = strings.Repeat("0", 40)
	if err := moved.Probe(t.Context(), sandbox{home: t.TempDir()}); !errors.Is(err, workspace.ErrUnusable) || !strings.Contains(err.Error(), "HEAD is "+w.Base) {
		t.Errorf("wrong HEAD: %v", err)
	}
	if os.Geteuid() != 0 {
		sh(t, w.Dir, "chmod 555 .")
		t.Cleanup(func() { os.Chmod(w.Dir, 0o755) })
		if err := w.Probe(t.Context(), sandbox{home: t.TempDir()}); !errors.Is(err, workspace.ErrUnusable) || !strings.Contains(err.Error(), "cannot write there") {
			t.Errorf("read-only: %v", err)
		}
	}
}

func TestParseOrigin(t *testing.T) {
	for in, want := range map[string]string{
		"https://github.com/o/n":                   "github.com o/n",
		"https://github.com/o/n.git/":              "github.com o/n",
		"https://user:pass@GitHub.com:443/o/n.git": "github.com o/n",
		"git@github.com:o/n.git":                   "github.com o/n",
		"org-123@github.com:/o/n.git":              "github.com o/n",
		"ssh://git@ghe.example.com:2222/o/n.x.git": "ghe.example.com o/n.x",
		"github:o/n":                "github o/n",
		"/srv/git/o/n":              "",
		"../o/n":                    "",
		"file:///srv/o/n":           "",
		"https://github.com/o":      "",
		"https://github.com/o/n/x":  "",
		"https://github.com/o/..":   "",
		"https://github.com/o/-n":   "",
		"https://github.com/o/n%0A": "",
		"ext::sh -c o/n":            "",
		"./a:o/n":                   "",
		"":                          "",
		"https://github.com/" + strings.Repeat("o", 101) + "/n": "",
	} {
		o, ok := workspace.ParseOrigin(in)
		got := ""
		if ok {
			got = o.Host + " " + o.Slug()
		}
		if got != want {
			t.Errorf("ParseOrigin(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestTwoAtOnce: two runs of one checkout at the same time.
func TestTwoAtOnce(t *testing.T) {
	repo := newRepo(t)
	var names []string
	errs := make(chan error)
	for i := range 3 {
		dest := filepath.Join(t.TempDir(), "ws")
		names = append(names, dest)
		go func() {
			_, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "sbxpair/" + string(rune('a'+i))}, dest)
			errs <- err
		}()
	}
	for range names {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if slices.Sort(names); len(slices.Compact(names)) != 3 {
		t.Error("folders are shared")
	}
}

// What was looked at is what is copied: a commit that comes in between is refused.
func TestMovedMeanwhile(t *testing.T) {
	for _, mode := range []workspace.Mode{workspace.ModeClone, workspace.ModeTracked, workspace.ModeInPlace} {
		repo := newRepo(t)
		co, err := workspace.Inspect(t.Context(), workspace.Source{Dir: repo, Mode: mode, Branch: "sbxpair/run-1"})
		if err != nil {
			t.Fatal(err)
		}
		sh(t, repo, "git commit -q --allow-empty -m between")
		dest := filepath.Join(t.TempDir(), "ws")
		if _, err := co.Prepare(t.Context(), dest); !errors.Is(err, workspace.ErrMoved) {
			t.Errorf("%s: %v, want ErrMoved", mode, err)
		}
		if entries, err := os.ReadDir(dest); err == nil && len(entries) > 0 {
			t.Errorf("%s: something is left in %s", mode, dest)
		}
	}
}

// What a killed process left where temporary files are goes with the next look, and nothing else does.
func TestInspectSweepsHomes(t *testing.T) {
	tmp, elsewhere, repo := t.TempDir(), t.TempDir(), newRepo(t)
	t.Setenv("TMPDIR", tmp)
	long := time.Now().Add(-24 * time.Hour)
	plant := func(name string, age time.Time, files ...string) {
		dir := filepath.Join(tmp, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(dir, age, age); err != nil {
			t.Fatal(err)
		}
	}
	plant("sbxpair-git-1", long, ".gitconfig")
	plant("sbxpair-git-2", time.Now(), ".gitconfig") // of a process that is at it
	plant("sbxpair-git-3", long, ".gitconfig", "mine")
	plant("other", long, ".gitconfig")
	if err := errors.Join(os.WriteFile(filepath.Join(elsewhere, ".gitconfig"), nil, 0o600), os.Chtimes(elsewhere, long, long),
		os.Symlink(elsewhere, filepath.Join(tmp, "sbxpair-git-4"))); err != nil {
		t.Fatal(err)
	}
	if _, err := workspace.Inspect(t.Context(), workspace.Source{Dir: repo, Branch: "sbxpair/run-1"}); err != nil {
		t.Fatal(err)
	}
	got := sh(t, tmp, "find . -mindepth 1 | sort; ls -A '"+elsewhere+"'")
	if want := "./other\n./other/.gitconfig\n./sbxpair-git-2\n./sbxpair-git-2/.gitconfig\n./sbxpair-git-3\n./sbxpair-git-3/mine\n./sbxpair-git-4\n.gitconfig"; got != want {
		t.Errorf("left:\n%s\nwant\n%s", got, want)
	}
}
