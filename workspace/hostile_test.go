package workspace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/workspace"
)

// trapHook makes the program that a sprung trap runs: it makes the file CANARY.
const trapHook = `printf '#!/bin/sh\ntouch "%s"\n' "$CANARY" >"$CANARY.sh"; chmod +x "$CANARY.sh"; `

type repositoryTrap struct {
	name, trap string
	naive      string // what springs the trap when it is done without care: shows that the trap is one
}

// repositoryTraps are what an agent may do to its repository so that git, or a shell, runs a program of its own.
func repositoryTraps() []repositoryTrap {
	return []repositoryTrap{
		{"hooks", `mkdir -p .git/hooks; for h in pre-commit commit-msg post-commit prepare-commit-msg post-checkout post-merge pre-push reference-transaction post-index-change pre-auto-gc update pre-receive post-rewrite post-applypatch pre-merge-commit fsmonitor-watchman; do cp "$CANARY.sh" .git/hooks/$h; done`, `git add work.txt; git commit -qm x`},
		{"core.hooksPath", `mkdir h; cp "$CANARY.sh" h/pre-commit; cp "$CANARY.sh" h/reference-transaction; git config core.hooksPath "$PWD/h"`, `git add work.txt; git commit -qm x`},
		{"fsmonitor", `git config core.fsmonitor "$CANARY.sh"`, `git status`},
		{"filters", `git config filter.x.clean "$CANARY.sh"; git config filter.x.smudge "$CANARY.sh"; git config filter.x.process "$CANARY.sh"; git config filter.x.required true; echo '* filter=x' >.gitattributes; rm .git/info/attributes`, `git add -A`},
		{"filters in info/attributes", `git config filter.x.clean "$CANARY.sh"; echo '* filter=x' >.git/info/attributes`, `git add -A`},
		{"diff and merge drivers", `git config diff.x.command "$CANARY.sh"; git config diff.x.textconv "$CANARY.sh"; git config merge.x.driver "$CANARY.sh"; git config diff.external "$CANARY.sh"; echo '* diff=x merge=x' >.gitattributes`, `echo y >>a.txt; git diff`},
		{"aliases", `for c in status commit add bundle rev-parse log; do git config alias.$c "!$CANARY.sh"; done`, ``},
		{"sshCommand", `git config core.sshCommand "$CANARY.sh"; git remote add origin ssh://evil.invalid/x; git config remote.origin.promisor true; git config extensions.partialClone origin`, `git fetch ssh://evil.invalid/x`},
		{"ext remote as promisor", `git config remote.o.url "ext::$CANARY.sh"; git config remote.o.promisor true; git config extensions.partialClone o; git config protocol.ext.allow always; rm -f .git/objects/pack/*.idx`, ``},
		{"credential helper", `git config credential.helper "!$CANARY.sh"; git config core.askPass "$CANARY.sh"`, `printf "protocol=https\nhost=x.invalid\n\n" | git credential fill`},
		{"included configuration", `printf '[core]\n\tfsmonitor = %s\n\thooksPath = %s\n' "$CANARY.sh" "$PWD" >inc; cp "$CANARY.sh" pre-commit; git config include.path "$PWD/inc"; git config includeIf.gitdir:/.path "$PWD/inc"`, `git status`},
		{"gpg program", `git config commit.gpgSign true; git config gpg.program "$CANARY.sh"; git config user.signingKey x; git config log.showSignature true`, `git add work.txt; git commit -qm x`},
		{"pager and editor", `git config core.pager "$CANARY.sh"; git config core.editor "$CANARY.sh"; git config pager.log "$CANARY.sh"; git config sequence.editor "$CANARY.sh"`, ``},
		{"upload-pack hook", `git config uploadpack.packObjectsHook "$CANARY.sh"; git config remote.origin.uploadpack "$CANARY.sh"`, ``},
		{"alternate refs command", `git config core.alternateRefsCommand "$CANARY.sh"`, ``},
		{"trailer command", `git config trailer.x.command "$CANARY.sh"; git config trailer.x.key X; git config trailer.x.ifmissing add`, `git commit -q --allow-empty --trailer X=1 -m x`},
		{"global configuration of the agent", `printf '[core]\n\tfsmonitor = %s\n\tsshCommand = %s\n[alias]\n\tadd = !%s\n' "$CANARY.sh" "$CANARY.sh" "$CANARY.sh" >"$GUESTHOME/.gitconfig"`, `HOME="$GUESTHOME" git status`},
		{"template folder", `mkdir -p "$GUESTHOME/tpl/hooks"; cp "$CANARY.sh" "$GUESTHOME/tpl/hooks/reference-transaction"; printf '[init]\n\ttemplateDir = %s\n' "$GUESTHOME/tpl" >"$GUESTHOME/.gitconfig"`, `HOME="$GUESTHOME" git init -q t; cd t; git commit -q --allow-empty -m x`},
		{"work tree elsewhere", `git config core.worktree "$GUESTHOME"; printf '[core]\n\tfsmonitor = %s\n' "$CANARY.sh" >>.git/config`, `git status`},
		{"bare repository inside", `mkdir -p b; cd b; git init -q --bare .; printf '[core]\n\tfsmonitor = %s\n' "$CANARY.sh" >>config; cd ..`, `cd b; git --work-tree=. status`},
		{"repository inside", `git init -q r; cd r; echo x >x; git add x; git commit -qm x; git config core.fsmonitor "$CANARY.sh"; cd ..`, `cd r; git status`},
		{"file names", `echo x >"$(printf 'a\nb')"; echo x >'"q"'; echo x >'-rf'; echo x >'--upload-pack=touch'; echo x >'$(touch '"$(basename "$CANARY")"')'; echo x >'; touch x'; mkdir -p -- '-d/ e'; echo x >'-d/ e/f'`, ``},
		{"ref and branch names", `git branch -- 'a;touch${IFS}x' 2>/dev/null || git branch 'x"y' ; git commit -q --allow-empty -m "$(printf '$(touch %s)\n` + "`touch %s`" + `' "$CANARY" "$CANARY")"`, ``},
		{"git folder is a link", `mv .git "$GUESTHOME/g"; ln -s "$GUESTHOME/g" .git; git config core.fsmonitor "$CANARY.sh"`, `git status`},
		{"git folder is a file", `mv .git "$GUESTHOME/g"; echo "gitdir: $GUESTHOME/g" >.git; printf '[core]\n\tfsmonitor = %s\n' "$CANARY.sh" >>"$GUESTHOME/g/config"`, `git status`},
		{"shell start files", `echo 'touch "$CANARY"' >"$GUESTHOME/.profile"; cp "$GUESTHOME/.profile" "$GUESTHOME/.shrc"; cp "$GUESTHOME/.profile" "$GUESTHOME/.bashrc"`, `HOME="$GUESTHOME" sh -c '. "$HOME/.profile"'`},
		{"textconv in attributes with cat-file", `git config diff.x.textconv "$CANARY.sh"; git config diff.x.cachetextconv true; echo '* diff=x' >.gitattributes`, `echo y >>a.txt; git diff --textconv`},
	}
}

// TestHostileRepository plants traps in the agent's tree that would run a program, and looks whether any did: neither the
// script inside nor anything on the host may spring one. CANARY is the file that a sprung trap makes.
func TestHostileRepository(t *testing.T) {
	for _, tt := range repositoryTraps() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			repo := newRepo(t)
			w := prepare(t, repo)
			canary := filepath.Join(t.TempDir(), "canary")
			g := sandbox{home: t.TempDir()}
			export := fmt.Sprintf("export CANARY='%s' GUESTHOME='%s'; ", canary, g.home)
			sh(t, w.Dir, export+trapHook+tt.trap+"\n"+`rm -f "$CANARY"; echo work >work.txt`)
			e, err := w.Collect(t.Context(), g, workspace.CollectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			file(t, e, "work.txt")
			if err := w.WriteBundle(t.Context(), e, "refs/heads/x", io.Discard); err != nil {
				t.Error(err)
			}
			if err := w.Blobs(t.Context(), e, 1<<20, func(string, []byte) error { return nil }); err != nil {
				t.Error(err)
			}
			if err := w.Remove(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(canary); err == nil {
				t.Error("the trap was sprung")
			}
			if tt.naive == "" {
				return
			}
			w = prepare(t, repo)
			sh(t, w.Dir, export+trapHook+tt.trap+"\n"+`rm -f "$CANARY"; echo work >work.txt`+"\n("+tt.naive+") </dev/null >/dev/null 2>&1 || true")
			if _, err := os.Lstat(canary); err != nil {
				t.Error("the trap is none: carelessness does not spring it")
			}
		})
	}
}

// checkoutTraps are what somebody may have done to the checkout that the user names.
func checkoutTraps() []checkoutTrap {
	return []checkoutTrap{
		{"fsmonitor", `git config core.fsmonitor "$CANARY.sh"`, nil},
		{"hooks", `mkdir -p .git/hooks; for h in post-checkout reference-transaction post-index-change pre-commit; do cp "$CANARY.sh" .git/hooks/$h; done`, nil},
		{"filters", `echo '* filter=x' >.gitattributes; git add .; git commit -qm f; git config filter.x.clean "$CANARY.sh"; git config filter.x.smudge "$CANARY.sh"; git config filter.x.process "$CANARY.sh"; touch -d '2020-01-01' a.txt sub/b.txt`, nil},
		{"filters in the work tree's own configuration", `echo '* filter=x' >.gitattributes; git add .; git commit -qm f; git config extensions.worktreeConfig true; git config --worktree filter.x.clean "$CANARY.sh"; git config --worktree filter.x.process "$CANARY.sh"; touch -d '2020-01-01' a.txt sub/b.txt`, nil},
		{"filter with an equals sign", `echo '* filter=x=y' >.gitattributes; git add .; git commit -qm f; git config filter.x=y.clean "$CANARY.sh"; touch -d '2020-01-01' a.txt`, nil},
		{"promisor with an ext remote", `git config remote.o.url "ext::$CANARY.sh"; git config remote.o.promisor true; git config extensions.partialClone o; git config protocol.ext.allow always; rm -rf .git/objects/??`, workspace.ErrPartialClone},
		{"upload-pack hook", `git config uploadpack.packObjectsHook "$CANARY.sh"`, nil},
		{"included configuration", `printf '[core]\n\tfsmonitor = %s\n' "$CANARY.sh" >.git/inc; git config include.path inc`, nil},
		{"alternate refs command", `git config core.alternateRefsCommand "$CANARY.sh"; git clone -q --bare . ../alt; echo "$PWD/../alt/objects" >.git/objects/info/alternates`, nil},
		{"pager", `git config core.pager "$CANARY.sh"; git config pager.status "$CANARY.sh"; git config alias.status "!$CANARY.sh"`, nil},
	}
}

type checkoutTrap struct {
	name, trap string
	kind       error
}

// TestHostileCheckout: the user's own checkout may come out of somebody's archive.
func TestHostileCheckout(t *testing.T) {
	for _, tt := range checkoutTraps() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			repo := newRepo(t)
			canary := filepath.Join(t.TempDir(), "canary")
			sh(t, repo, fmt.Sprintf("export CANARY='%s'; ", canary)+trapHook+tt.trap+"\n"+`rm -f "$CANARY"`)
			_, err := workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: "b"}, filepath.Join(t.TempDir(), "ws"))
			if !errors.Is(err, tt.kind) {
				t.Errorf("Prepare: %v, want %v", err, tt.kind)
			}
			if _, err := os.Lstat(canary); err == nil {
				t.Error("the trap was sprung")
			}
		})
	}
}

// forge makes a stream as the script would, of a repository that a real git would not make.
type forge struct {
	t    *testing.T
	w    workspace.Workspace
	repo string
}

func newForge(t *testing.T) *forge {
	w := prepare(t, newRepo(t))
	repo := filepath.Join(t.TempDir(), "forge.git")
	sh(t, t.TempDir(), "git clone -q --bare "+w.Dir+" "+repo)
	return &forge{t, w, repo}
}

// object writes a loose object without checks.
func (f *forge) object(kind string, data string) string {
	cmd := exec.CommandContext(f.t.Context(), "git", "--git-dir="+f.repo, "hash-object", "-t", kind, "-w", "--literally", "--stdin")
	cmd.Stdin = strings.NewReader(data)
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("hash-object: %v %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// entry is one line of a tree object.
func (f *forge) entry(mode, name, oid string) string {
	var raw strings.Builder
	raw.WriteString(mode + " " + name + "\x00")
	for i := 0; i < len(oid); i += 2 {
		var b byte
		fmt.Sscanf(oid[i:i+2], "%02x", &b)
		raw.WriteByte(b)
	}
	return raw.String()
}

func (f *forge) tree(entries ...string) string { return f.object("tree", strings.Join(entries, "")) }

func (f *forge) commit(tree string, parents ...string) string {
	text := "tree " + tree + "\n"
	for _, p := range parents {
		text += "parent " + p + "\n"
	}
	return f.object("commit", text+"author a <a@b> 1700000000 +0000\ncommitter a <a@b> 1700000000 +0000\n\nforged\n")
}

// bundle packs head without what not names.
func (f *forge) bundle(head string, not ...string) []byte {
	var script strings.Builder
	fmt.Fprintf(&script, "git update-ref refs/sbxpair/head %s; git bundle create -q %s.b refs/sbxpair/head", head, f.repo)
	for _, n := range not {
		script.WriteString(" ^" + n)
	}
	sh(f.t, f.repo, script.String())
	data, err := os.ReadFile(f.repo + ".b")
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}

// stream puts the header before a bundle.
func (f *forge) stream(kind string, bundle []byte) []byte {
	return append([]byte(fmt.Sprintf("sbxpair-end-state 1\nkind %s\nbase %s\nhead x\nsize %d\nignored 0\nend\n", kind, f.w.Base, len(bundle))), bundle...)
}

// hostileStream is an end state that no honest script makes.
type hostileStream struct {
	name string
	make func(f *forge) []byte
	want string // part of the reason
}

func hostileStreams() []hostileStream {
	one := func(mode, name, content string) func(f *forge) []byte {
		return func(f *forge) []byte {
			return f.stream("commits", f.bundle(f.commit(f.tree(f.entry(mode, name, f.object("blob", content))), f.w.Base), f.w.Base))
		}
	}
	inDir := func(name string) func(f *forge) []byte {
		return func(f *forge) []byte {
			sub := f.tree(f.entry("100644", "config", f.object("blob", "x")))
			return f.stream("commits", f.bundle(f.commit(f.tree(f.entry("40000", name, sub)), f.w.Base), f.w.Base))
		}
	}
	return []hostileStream{
		{"file in .git", inDir(".git"), "hasDotgit"},
		{"file in .GIT", inDir(".GIT"), "hasDotgit"},
		{"NTFS short name", inDir("git~1"), "hasDotgit"},
		{"HFS ignored character", inDir(".g\u200cit"), "hasDotgit"},
		{"trailing dot and space", inDir(".git. "), "hasDotgit"},
		{"NTFS stream", inDir(".git::$INDEX_ALLOCATION"), ".git"},
		{"parent folder", inDir(".."), "hasDotdot"},
		{"dot folder", inDir("."), "hasDot"},
		{"slash in a name", one("100644", "../../etc/cron.d/x", "x"), "fullPathname"},
		{"absolute name", one("100644", "/etc/passwd", "x"), "fullPathname"},
		{"backslashes", one("100644", `a\.git\config`, "x"), ".git"},
		{"backslash and parents", one("100644", `..\..\x`, "x"), "dot folder"},
		{"name that is not UTF-8", one("100644", "a\xff", "x"), "UTF-8"},
		{"link to the root", one("120000", "l", "/etc/passwd"), "out of the repository"},
		{"link to the parent", one("120000", "l", "../x"), "out of the repository"},
		{"link into .git", one("120000", "l", ".git/hooks/pre-commit"), "into .git"},
		{"link with a long target", one("120000", "l", strings.Repeat("a/", 3000)), "too long"},
		{"gitmodules is a link", one("120000", ".gitmodules", "a.txt"), "gitmodulesSymlink"},
		{"submodule URL", one("100644", ".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = --upload-pack=touch x\n"), "gitmodulesUrl"},
		{"submodule name", one("100644", ".gitmodules", "[submodule \"../../hooks\"]\n\tpath = x\n\turl = https://x.invalid/y\n"), "gitmodulesName"},
		{"submodule update command", one("100644", ".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = https://x.invalid/y\n\tupdate = !touch x\n"), "gitmodulesUpdate"},
		{"links that only meet outside", func(f *forge) []byte {
			deep := f.tree(f.entry("120000", "x", f.object("blob", "../..")), f.entry("120000", "y", f.object("blob", "x/../..")))
			return f.stream("commits", f.bundle(f.commit(f.tree(f.entry("40000", "a", f.tree(f.entry("40000", "b", deep)))), f.w.Base), f.w.Base))
		}, "out of the repository"},
		{"same name twice", func(f *forge) []byte {
			b := f.object("blob", "x")
			return f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "a", b), f.entry("100644", "a", b)), f.w.Base), f.w.Base))
		}, "duplicateEntries"},
		{"evil path in a commit that is taken back", func(f *forge) []byte {
			sub := f.tree(f.entry("100644", `x\..\y`, f.object("blob", "x")))
			evil := f.commit(f.tree(f.entry("40000", "d", sub)), f.w.Base)
			return f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "n", f.object("blob", "n"))), evil), f.w.Base))
		}, "dot folder"},
		{"commit without author", func(f *forge) []byte {
			c := f.object("commit", "tree "+f.tree()+"\nparent "+f.w.Base+"\n\nx\n")
			return f.stream("commits", f.bundle(c, f.w.Base))
		}, "missingAuthor"},
		{"other history", func(f *forge) []byte {
			return f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "a", f.object("blob", "x"))))))
		}, "does not descend"},
		{"snapshot with history", func(f *forge) []byte {
			return f.stream("snapshot", f.bundle(f.commit(f.tree(), f.commit(f.tree()))))
		}, "has a history"},
		{"snapshot with prerequisites", func(f *forge) []byte {
			return f.stream("snapshot", f.bundle(f.commit(f.tree(), f.w.Base), f.w.Base))
		}, "asks for other commits"},
		{"prerequisite that is not ours", func(f *forge) []byte {
			foreign := f.commit(f.tree(f.entry("100644", "f", f.object("blob", "f"))), f.w.Base)
			return f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "a", f.object("blob", "x"))), foreign), foreign))
		}, ""},
		{"other ref", func(f *forge) []byte {
			b := f.bundle(f.commit(f.tree(), f.w.Base), f.w.Base)
			return f.stream("commits", bytes.Replace(b, []byte("refs/sbxpair/head"), []byte("refs/heads/mainxy"), 1))
		}, "not asked for"},
		{"two refs", func(f *forge) []byte {
			b := f.bundle(f.commit(f.tree(), f.w.Base), f.w.Base)
			return f.stream("commits", bytes.Replace(b, []byte("\n\n"), []byte("\n"+f.w.Base+" refs/heads/main\n\n"), 1))
		}, "not asked for"},
		{"filter capability", func(f *forge) []byte {
			b := f.bundle(f.commit(f.tree(), f.w.Base), f.w.Base)
			return f.stream("commits", bytes.Replace(b, []byte("# v2 git bundle\n"), []byte("# v3 git bundle\n@filter=blob:none\n"), 1))
		}, "capability"},
		{"head that is not in the pack", func(f *forge) []byte {
			head := f.commit(f.tree(), f.w.Base)
			b := f.bundle(head, f.w.Base)
			return f.stream("commits", bytes.Replace(b, []byte(head), []byte(strings.Repeat("a", 40)), 1))
		}, "not a commit"},
		{"head is a tag", func(f *forge) []byte {
			tag := f.object("tag", "object "+f.commit(f.tree(f.entry("100644", "a", f.object("blob", "x"))), f.w.Base)+"\ntype commit\ntag x\ntagger a <a@b> 1700000000 +0000\n\nx\n")
			return f.stream("commits", f.bundle(tag, f.w.Base))
		}, "not a commit"},
		{"cut off", func(f *forge) []byte {
			s := f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "a", f.object("blob", "x"))), f.w.Base), f.w.Base))
			return s[:len(s)-30]
		}, "git's object checks"},
		{"flipped bit", func(f *forge) []byte {
			s := f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "a", f.object("blob", "x"))), f.w.Base), f.w.Base))
			s[len(s)-25] ^= 1
			return s
		}, "git's object checks"},
		{"more than announced", func(f *forge) []byte {
			return append(f.stream("commits", f.bundle(f.commit(f.tree(f.entry("100644", "a", f.object("blob", "x"))), f.w.Base), f.w.Base)), 'x')
		}, "more than the header"},
		{"other base", func(f *forge) []byte {
			return bytes.Replace(f.stream("empty", nil), []byte(f.w.Base), []byte(strings.Repeat("0", 40)), 1)
		}, "another base"},
		{"no bundle", func(f *forge) []byte { return f.stream("commits", []byte("hello\n\n")) }, "not a bundle"},
		{"nothing", func(*forge) []byte { return nil }, "ends before"},
		{"no header", func(*forge) []byte { return []byte(strings.Repeat("x\n", 300_000)) }, "too long"},
		{"endless line", func(*forge) []byte { return bytes.Repeat([]byte("x"), 1<<20) }, "too long"},
		{"unknown kind", func(f *forge) []byte { return f.stream("magic", []byte("x")) }, "makes no sense"},
		{"negative size", func(f *forge) []byte {
			return bytes.Replace(f.stream("commits", nil), []byte("size 0"), []byte("size -5"), 1)
		}, "makes no sense"},
	}
}

// TestHostileBundle feeds streams that no honest script makes.
func TestHostileBundle(t *testing.T) {
	f := newForge(t)
	before := sh(t, f.w.Root, "find base.git -type f | sort | xargs cksum")
	for _, tt := range hostileStreams() {
		t.Run(tt.name, func(t *testing.T) {
			f.t = t
			e, err := f.w.Import(t.Context(), bytes.NewReader(tt.make(f)), workspace.CollectOptions{})
			if !errors.Is(err, workspace.ErrHostile) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v and %v, want a refusal with %q", e, err, tt.want)
			}
			if left, _ := filepath.Glob(filepath.Join(f.w.Root, "i*")); len(left) != 0 {
				t.Errorf("something is left: %q", left)
			}
		})
	}
	if after := sh(t, f.w.Root, "find base.git -type f | sort | xargs cksum"); after != before {
		t.Errorf("the base repository changed:\n%s\n%s", before, after)
	}
}

// TestForgedButFine: the forge itself is sound, and what is odd but harmless comes through.
func TestForgedButFine(t *testing.T) {
	f := newForge(t)
	link := f.entry("120000", "sub", f.object("blob", "d/../d/./x"))
	gitlink := f.entry("160000", "mod", strings.Repeat("1", 40))
	odd := f.entry("100644", "\n\"'$(touch x)", f.object("blob", "x"))
	dash := f.entry("100644", "-rf", f.object("blob", "x"))
	head := f.commit(f.tree(odd, dash, f.entry("40000", "d", f.tree(f.entry("100755", "x", f.object("blob", "y")))), gitlink, link), f.w.Base)
	e, err := f.w.Import(t.Context(), bytes.NewReader(append([]byte("Sandbox x started successfully\n"), f.stream("commits", f.bundle(head, f.w.Base))...)), workspace.CollectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Head != head || len(e.Submodules) != 1 || e.Submodules[0] != "mod" {
		t.Errorf("%+v", e)
	}
	for _, name := range []string{"\n\"'$(touch x)", "-rf", "d/x", "sub", "mod"} {
		file(t, e, name)
	}
}

// TestOldEscapeStays: a link that led out before the run is none of the agent's doing.
func TestOldEscapeStays(t *testing.T) {
	repo := newRepo(t)
	sh(t, repo, "ln -s /etc/hosts out; ln -s a.txt in; git add -A; git commit -qm l")
	w := prepare(t, repo)
	sh(t, w.Dir, "echo n >n")
	if e := collect(t, w); len(e.Files) != 1 {
		t.Errorf("%+v", e.Files)
	}
	sh(t, w.Dir, "ln -sf /etc/passwd in")
	if _, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{}); !errors.Is(err, workspace.ErrHostile) || !strings.Contains(err.Error(), `"in"`) {
		t.Errorf("a link turned outward: %v", err)
	}
}

// TestHostileGuest: the sandbox's side of the conversation is the agent's too.
func TestHostileGuest(t *testing.T) {
	w := prepare(t, newRepo(t))
	flood := runnerFunc(func(ctx context.Context, c guest.Command) (int, error) {
		for {
			if _, err := c.Stdout.Write(bytes.Repeat([]byte("x"), 1<<16)); err != nil {
				return 0, err
			}
		}
	})
	if _, err := w.Collect(t.Context(), flood, workspace.CollectOptions{MaxBundle: 1 << 20}); !errors.Is(err, workspace.ErrTooLarge) {
		t.Errorf("a flood: %v", err)
	}
	noGit := sandbox{home: t.TempDir(), path: t.TempDir() + ":"}
	sh(t, strings.TrimSuffix(noGit.path, ":"), "printf '#!/bin/sh\necho broken >&2\nexit 3\n' >git; chmod +x git")
	_, err := w.Collect(t.Context(), noGit, workspace.CollectOptions{})
	if ge, ok := errors.AsType[*workspace.GuestError](err); !ok || ge.Code == 0 || !strings.Contains(ge.Stderr, "broken") {
		t.Errorf("a broken git inside: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	hang := runnerFunc(func(ctx context.Context, c guest.Command) (int, error) {
		cancel()
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if _, err := w.Collect(ctx, hang, workspace.CollectOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.Root, "i*")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestBomb: a few kilobytes that unpack to hundreds of megabytes, also in a commit that is taken back.
func TestBomb(t *testing.T) {
	w := prepare(t, newRepo(t))
	sh(t, w.Dir, "truncate -s 90M zeros")
	if e := collect(t, w); e.BundleSize > 1<<20 || e.Largest.Path != "zeros" || e.Largest.Size != 90<<20 {
		t.Errorf("bundle of %d bytes, largest %+v", e.BundleSize, e.Largest)
	}
	sh(t, w.Dir, "truncate -s 200M zeros; git add zeros; git commit -qm z; git rm -q zeros; git commit -qm gone; echo n >n")
	_, err := w.Collect(t.Context(), sandbox{home: t.TempDir()}, workspace.CollectOptions{})
	if tl, ok := errors.AsType[*workspace.TooLargeError](err); !ok || tl.Size != 200<<20 || tl.Largest[0].Path != "zeros" {
		t.Errorf("%v", err)
	}
}
