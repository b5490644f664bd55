package workspace_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/workspace"
)

func TestEmptyMode(t *testing.T) {
	s := workspace.Source{Mode: workspace.ModeEmpty, Branch: "sbxpair/x"}
	if _, err := workspace.Inspect(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w, err := workspace.Prepare(t.Context(), s, filepath.Join(t.TempDir(), "ws"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Probe(t.Context(), sandbox{home: t.TempDir()}); err != nil {
		t.Error(err)
	}
	if e := collect(t, w); !e.Empty {
		t.Errorf("%+v", e)
	}
	sh(t, w.Dir, "echo x >x; git add x; git commit -qm x")
	if e := collect(t, w); len(e.Commits) != 1 || len(e.Files) != 1 {
		t.Errorf("%+v", e)
	}
	again, err := workspace.Prepare(t.Context(), s, filepath.Join(t.TempDir(), "ws"))
	if err != nil || again.Base != w.Base {
		t.Errorf("the same nothing gives %s and %s (%v)", w.Base, again.Base, err)
	}
}

func TestTrackedMode(t *testing.T) {
	repo := newRepo(t)
	sh(t, repo, `printf 'rule 1\nrule 2\nrule 3\nrule 4\n' >AGENTS.md; printf '#!/bin/sh\n' >run.sh; chmod +x run.sh; git add -A; git commit -qm 'secret history'; echo u >untracked.txt; echo x >>.git/info/exclude; echo untracked.txt >>.git/info/exclude`)
	source := func(e workspace.Edits) workspace.Source {
		return workspace.Source{Dir: repo, Mode: workspace.ModeTracked, Branch: "sbxpair/x", Edits: e}
	}
	made := func(t *testing.T, e workspace.Edits) workspace.Workspace {
		t.Helper()
		w, err := workspace.Prepare(t.Context(), source(e), filepath.Join(t.TempDir(), "ws"))
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	t.Run("plain", func(t *testing.T) {
		w := made(t, workspace.Edits{})
		if got := sh(t, w.Dir, "git rev-list --count --all; git log --format='%an %ae %ad %s' --date=iso; ls -A | grep -v '^.git$' | tr '\\n' ' '; git remote; git status --porcelain"); got !=
			"1\nsbxpair agent agent@sbxpair.invalid 2000-01-01 00:00:00 +0000 base\n.gitignore AGENTS.md a.txt run.sh sub" {
			t.Errorf("got %q", got)
		}
		for _, dir := range []string{w.Dir, w.BaseRepo} {
			if got := sh(t, dir, "git cat-file --batch-all-objects --batch-check | grep -c commit"); got != "1" {
				t.Errorf("%s commits in %s", got, dir)
			}
		}
		if again := made(t, workspace.Edits{}); again.Base != w.Base {
			t.Error("the same files give another commit")
		}
		sh(t, w.Dir, "echo n >n")
		file(t, collect(t, w), "n")
		if left, _ := filepath.Glob(filepath.Join(w.Root, "stage*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	t.Run("edits", func(t *testing.T) {
		w := made(t, workspace.Edits{
			Remove: []workspace.Removal{{Path: "sub/b.txt"}, {Path: "AGENTS.md", Lines: [][2]int{{2, 2}, {4, 4}}}},
			Write:  map[string][]byte{"extra/new.txt": []byte("new\n"), "run.sh": []byte("#!/bin/sh\nexit 0\n")},
			Patch:  []byte("--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
			Hooks:  map[string][]byte{"pre-commit": []byte("#!/bin/sh\ntouch hooked\n")},
		})
		if got := sh(t, w.Dir, "cat AGENTS.md a.txt extra/new.txt run.sh; test -x run.sh; ls sub 2>/dev/null || true; git status --porcelain"); got != "rule 1\nrule 3\none\n2\nnew\n#!/bin/sh\nexit 0" {
			t.Errorf("got %q", got)
		}
		sh(t, w.Dir, "git commit -q --allow-empty -m x")
		e := collect(t, w)
		file(t, e, "hooked")
	})
	t.Run("local origin", func(t *testing.T) {
		w := made(t, workspace.Edits{Origin: true})
		sh(t, w.Dir, `echo n >n; git add n; git commit -qm n; git push -q origin HEAD:refs/heads/feature; git fetch -q; git branch -r`)
		e := collect(t, w)
		if len(e.Pushed) != 1 || e.Pushed[0].Ref != "refs/heads/feature" || e.Pushed[0].SHA != e.Head || e.Pushed[0].Commits != 1 || len(e.Files) != 1 {
			t.Errorf("%+v", e)
		}
	})
	for name, bad := range map[string]workspace.Edits{
		"no such file":      {Remove: []workspace.Removal{{Path: "nope"}}},
		"no such lines":     {Remove: []workspace.Removal{{Path: "a.txt", Lines: [][2]int{{2, 3}}}}},
		"lines reversed":    {Remove: []workspace.Removal{{Path: "a.txt", Lines: [][2]int{{2, 1}}}}},
		"outside":           {Write: map[string][]byte{"../x": nil}},
		"into .git":         {Write: map[string][]byte{".git/hooks/pre-commit": nil}},
		"not shortest":      {Write: map[string][]byte{"a//b": nil}},
		"patch":             {Patch: []byte("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-nope\n+2\n")},
		"patch of .git":     {Patch: []byte("--- /dev/null\n+++ b/.git/config\n@@ -0,0 +1 @@\n+x\n")},
		"hook that is none": {Hooks: map[string][]byte{"../config": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			dest := filepath.Join(t.TempDir(), "ws")
			if _, err := workspace.Prepare(t.Context(), source(bad), dest); !errors.Is(err, workspace.ErrEdit) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(dest); err == nil {
				t.Error("something is left")
			}
		})
	}
	if _, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "b", Edits: workspace.Edits{Origin: true}}, filepath.Join(t.TempDir(), "ws")); !errors.Is(err, workspace.ErrEdit) {
		t.Errorf("edits in another mode: %v", err)
	}
}

func TestInPlaceMode(t *testing.T) {
	repo := newRepo(t)
	source := workspace.Source{Dir: repo, Mode: workspace.ModeInPlace, Branch: "sbxpair/x"}
	w, err := workspace.Prepare(t.Context(), source, filepath.Join(t.TempDir(), "ws"))
	if err != nil {
		t.Fatal(err)
	}
	if w.Dir != repo || w.Branch != "main" || len(w.Notes) != 1 {
		t.Errorf("%+v", w)
	}
	if p, err := w.Tampered(); err != nil || len(p) != 0 {
		t.Errorf("%v %q", err, p)
	}
	sh(t, repo, `echo n >n; git add n; git commit -qm n; echo m >m`)
	e := collect(t, w)
	if len(e.Files) != 2 || len(e.Commits) != 2 {
		t.Errorf("%+v", e)
	}
	if got := sh(t, repo, "git status --porcelain; git symbolic-ref HEAD"); got != "?? m\nrefs/heads/main" {
		t.Errorf("collecting changed the checkout: %q", got)
	}
	sh(t, repo, `git config core.fsmonitor ./x; echo x >.git/hooks/post-checkout; chmod -x .git/hooks/pre-push.sample; rm .git/hooks/update.sample; ln -s /etc .git/hooks/pre-commit`)
	if p, err := w.Tampered(); err != nil || !slices.Equal(p, []string{".git/config", ".git/hooks/post-checkout", ".git/hooks/pre-commit", ".git/hooks/pre-push.sample", ".git/hooks/update.sample"}) {
		t.Errorf("%v %q", err, p)
	}
	if err := w.Remove(); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, repo, "cat a.txt n m"); got != "one\ntwo\nn\nm" {
		t.Errorf("Remove took the user's files: %q", got)
	}
	if _, err := workspace.Prepare(t.Context(), source, filepath.Join(t.TempDir(), "ws")); !errors.Is(err, workspace.ErrDirty) || !strings.Contains(err.Error(), `"m"`) {
		t.Errorf("dirty: %v", err)
	}
	source.AllowDirty = true
	w, err = workspace.Prepare(t.Context(), source, filepath.Join(t.TempDir(), "ws"))
	if err != nil {
		t.Fatal(err)
	}
	file(t, collect(t, w), "m")
}

// What git's configuration names, the repository's and the user's, is watched like .git itself, also where the repository ignores it.
func TestInPlaceNamed(t *testing.T) {
	repo, home := newRepo(t), t.TempDir()
	sh(t, repo, `mkdir -p .husky/_ tools; echo '*' >.husky/_/.gitignore; echo x >.husky/_/h; echo /tools/ >.gitignore; echo x >tools/clean; echo x >tools/check; echo x >tools/own
git add -A; git commit -qm hooks
git config core.hooksPath .husky/_; git config filter.x.clean 'sh -c "tools/clean %f"'; git config include.path ../later
ln -s ../../tools/check .git/hooks/pre-push`)
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[alias]\n\tst = !tools/own\n[user]\n\tname = a.txt sub\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Mode: workspace.ModeInPlace, Branch: "sbxpair/x", Home: home}, filepath.Join(t.TempDir(), "ws"))
	if err != nil {
		t.Fatal(err)
	}
	sh(t, repo, "echo n >sub/n; echo n >tools/n")
	if p, err := w.Tampered(); err != nil || len(p) != 0 {
		t.Errorf("what nothing names: %v %q", err, p)
	}
	sh(t, repo, "for f in .husky/_/h .husky/_/new tools/clean tools/check tools/own later; do echo evil >>$f; done")
	want := []string{".git/hooks/pre-push", ".husky/_/h", ".husky/_/new", "later", "tools/clean", "tools/own"}
	if p, err := w.Tampered(); err != nil || !slices.Equal(p, want) {
		t.Errorf("%v %q", err, p)
	}
	text, err := json.Marshal(w) // a run is gone on with from its record
	var again workspace.Workspace
	if err := errors.Join(err, json.Unmarshal(text, &again)); err != nil {
		t.Fatal(err)
	}
	if p, err := again.Tampered(); err != nil || !slices.Equal(p, want) {
		t.Errorf("from the record: %v %q", err, p)
	}
}
