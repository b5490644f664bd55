package workspace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/workspace"
)

// TestSmallButEndless: a kilobyte that stands for a billion paths, and a pack of deltas that stand for terabytes, are left
// before they keep the host busy.
func TestSmallButEndless(t *testing.T) {
	t.Run("trees of trees", func(t *testing.T) {
		f := newForge(t)
		tree, mode := f.object("blob", "x"), "100644"
		for range 9 {
			var entries []string
			for i := range 10 {
				entries = append(entries, f.entry(mode, fmt.Sprint("n", i), tree))
			}
			tree, mode = f.tree(entries...), "40000"
		}
		s := f.stream("commits", f.bundle(f.commit(tree, f.w.Base), f.w.Base))
		_, err := f.w.Import(t.Context(), bytes.NewReader(s), workspace.CollectOptions{})
		if !errors.Is(err, workspace.ErrTooLarge) {
			t.Errorf("a bundle of %d bytes: %v", len(s), err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		f := newForge(t)
		s := f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "a", f.object("blob", "x"))), f.w.Base), f.w.Base))
		_, err := f.w.Import(t.Context(), bytes.NewReader(s), workspace.CollectOptions{Check: time.Nanosecond})
		if !errors.Is(err, workspace.ErrHostile) || !strings.Contains(err.Error(), "take longer") {
			t.Errorf("%v", err)
		}
		if left, _ := filepath.Glob(filepath.Join(f.w.Root, "i*")); len(left) != 0 {
			t.Errorf("something is left: %q", left)
		}
	})
	t.Run("a message as large as a file may be", func(t *testing.T) {
		f := newForge(t)
		head := f.object("commit", "tree "+f.tree()+"\nparent "+f.w.Base+"\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n"+strings.Repeat("x", 2<<20))
		s := f.stream("commits", f.bundle(head, f.w.Base))
		if _, err := f.w.Import(t.Context(), bytes.NewReader(s), workspace.CollectOptions{MaxFile: 1 << 20}); !errors.Is(err, workspace.ErrTooLarge) {
			t.Errorf("%v", err)
		}
	})
}

// TestEndStateCanBeWrittenDown: what git takes for a date and JSON does not.
func TestEndStateCanBeWrittenDown(t *testing.T) {
	t.Parallel()
	for _, date := range []string{"253402300800", "9000000000000000000", "0"} {
		f := newForge(t)
		tree := f.tree(f.entry("100644", "a", f.object("blob", "x")))
		head := f.object("commit", "tree "+tree+"\nparent "+f.w.Base+"\nauthor a <a@b> "+date+" +0000\ncommitter a <a@b> 1 +0000\n\nx\n")
		e, err := f.w.Import(t.Context(), bytes.NewReader(f.stream("commits", f.bundle(head, f.w.Base))), workspace.CollectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(e); err != nil {
			t.Errorf("%s: %v", date, err)
		}
	}
}

// TestLinkAndFolderByCase: on a file system that takes upper for lower case, what goes into the folder would go where the
// link leads.
func TestLinkAndFolderByCase(t *testing.T) {
	t.Parallel()
	f := newForge(t)
	folder := f.tree(f.entry("100644", "pre-commit", f.object("blob", "x")))
	head := f.commit(f.tree(f.entry("120000", "A", f.object("blob", "sub")), f.entry("40000", "a", f.tree(f.entry("40000", "b", folder)))), f.w.Base)
	_, err := f.w.Import(t.Context(), bytes.NewReader(f.stream("commits", f.bundle(head, f.w.Base))), workspace.CollectOptions{})
	if !errors.Is(err, workspace.ErrHostile) || !strings.Contains(err.Error(), `"A"`) {
		t.Errorf("%v", err)
	}
}

// TestPipesInThePlaceOfFiles: git would wait for what nobody writes into them; the work is there all the same.
func TestPipesInThePlaceOfFiles(t *testing.T) {
	for name, trap := range map[string]string{
		"ignore files": `rm .gitignore; mkfifo .gitignore sub/.gitignore sub/.gitattributes`,
		"refs":         `mkfifo .git/refs/heads/x .git/refs/y; ln -s / .git/refs/heads/z`,
		"HEAD":         `rm .git/HEAD; mkfifo .git/HEAD`,
		"objects":      `mkdir -p .git/objects/pack .git/objects/info; n=.git/objects/pack/pack-$(printf %040d 0); mkfifo $n.idx $n.pack .git/objects/info/alternates`,
		"others":       `rm -f .git/packed-refs .git/index .git/config; mkfifo .git/packed-refs .git/shallow .git/index .git/config; mkfifo p`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, newRepo(t))
			sh(t, w.Dir, trap+"; echo work >work.txt")
			e, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			file(t, e, "work.txt")
			if told := strings.Contains(strings.Join(e.Notes, "; "), "3 things that git would wait for"); told != (name == "ignore files") {
				t.Errorf("notes %q", e.Notes)
			}
		})
	}
	t.Run("a script that does not end", func(t *testing.T) {
		w := prepare(t, newRepo(t))
		slow := sandbox{home: t.TempDir(), path: t.TempDir() + ":"}
		sh(t, strings.TrimSuffix(slow.path, ":"), "printf '#!/bin/sh\nexec >/dev/null 2>&1\nexec sleep 60\n' >git; chmod +x git")
		_, err := w.Collect(t.Context(), slow, workspace.CollectOptions{Timeout: 100 * time.Millisecond})
		if !errors.Is(err, workspace.ErrGuest) || !strings.Contains(err.Error(), "no end after") {
			t.Errorf("%v", err)
		}
	})
}

// TestFoldersThatCannotBeRead are told of: here one below a path that is longer than the kernel takes.
func TestFoldersThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := prepare(t, newRepo(t))
	root, err := os.OpenRoot(w.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 25 {
		name := strings.Repeat("d", 200)
		if err := root.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := root.OpenRoot(name)
		root.Close()
		if err != nil {
			t.Fatal(err)
		}
		root = next
	}
	if err := root.WriteFile("f", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	root.Close()
	sh(t, w.Dir, "echo work >work.txt")
	e := collect(t, w)
	file(t, e, "work.txt")
	if len(e.Files) != 1 || !strings.Contains(strings.Join(e.Notes, ";"), "could not be read") {
		t.Errorf("%+v, notes %q", e.Files, e.Notes)
	}
	if err := w.Remove(); err != nil {
		t.Error(err)
	}
}

// TestTampered: what the agent can leave in the .git of a checkout in place, for the user's next git command.
func TestTampered(t *testing.T) {
	for name, tt := range map[string]struct{ before, after, want string }{
		"what rebase --continue runs":   {"", `mkdir .git/rebase-merge; echo 'exec touch x' >.git/rebase-merge/git-rebase-todo`, ".git/rebase-merge/git-rebase-todo"},
		"what cherry-pick goes on to":   {"", `mkdir .git/sequencer; echo x >.git/sequencer/todo`, ".git/sequencer/todo"},
		"objects that stand for others": {"", `git replace HEAD:a.txt $(echo evil | git hash-object -w --stdin)`, ".git/refs/replace/"},
		"another .git folder":           {`mv .git ../real; echo "gitdir: ../real" >.git`, `cp -R ../real evil; echo "gitdir: evil" >.git`, ".git"},
		"no .git folder":                {"", `rm -rf .git`, ".git"},
		"hooks behind a link":           {`rm -rf .git/hooks; mkdir hk; echo x >hk/y; git add .; git commit -qm h; ln -s ../hk .git/hooks`, `echo evil >hk/pre-commit`, ".git/hooks/pre-commit"},
		"hooks of the user's elsewhere": {`rm -rf .git/hooks; mkdir ../hk; ln -s ../../hk .git/hooks`, `rm .git/hooks; mkdir .git/hooks; echo evil >.git/hooks/pre-commit`, ".git/hooks"},
		"a repository in a folder":      {`echo '/build/' >.gitignore; git add .; git commit -qm i; mkdir build`, `git init -q build/x; git -C build/x config core.fsmonitor 'touch x'`, "build/x/.git\n"},
		"a bare one":                    {"", `git init -q --bare sub/data; git -C sub/data config core.fsmonitor 'touch x'`, "sub/data\n"},
		"one that was there":            {`git init -q sub/own; echo /sub/own/ >.gitignore; git add .; git commit -qm i`, `echo x >sub/own/.git/hooks/pre-commit`, "sub/own/.git/hooks/pre-commit\n"},
		"an endless hook":               {"", `mkdir -p .git/hooks; truncate -s 1T .git/hooks/pre-commit`, ".git/hooks/pre-commit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := newRepo(t)
			sh(t, repo, tt.before)
			w, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "b", Mode: workspace.ModeInPlace}, filepath.Join(t.TempDir(), "ws"))
			if err != nil {
				t.Fatal(err)
			}
			if list, err := w.Tampered(); err != nil || len(list) > 0 {
				t.Fatalf("before: %q, %v", list, err)
			}
			sh(t, repo, tt.after)
			if list, err := w.Tampered(); err != nil || !strings.Contains(strings.Join(list, "\n")+"\n", tt.want) {
				t.Errorf("%q, %v", list, err)
			}
		})
	}
}
