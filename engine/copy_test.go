package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
)

func TestCopy(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	host := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(host, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("file", "text", 0o640)
	write("dir/a", "A", 0o755)
	write("dir/sub/b", "B", 0o600)
	if err := errors.Join(os.Symlink("a", filepath.Join(host, "dir/link")), os.Symlink("file", filepath.Join(host, "tofile"))); err != nil {
		t.Fatal(err)
	}
	in := func(src, dst string, follow bool) error {
		_, err := e.CopyIn(t.Context(), r, src, dst, follow)
		return err
	}
	out := func(src, dst string, follow bool) error {
		_, err := e.CopyOut(t.Context(), r, src, dst, follow)
		return err
	}

	for _, step := range []struct {
		src, dst string
		follow   bool
		check    string // a script that must succeed inside
	}{
		{"file", "/tmp/f", false, "[ $(cat /tmp/f) = text ] && [ $(stat -c %a:%U /tmp/f) = 640:agent ]"},
		{"file", "/tmp", false, "[ $(cat /tmp/file) = text ]"},
		{"file", "/tmp/", false, "true"},
		{"dir", "/tmp/new", false, "[ $(cat /tmp/new/sub/b) = B ] && [ $(readlink /tmp/new/link) = a ] && [ $(stat -c %a /tmp/new/a) = 755 ]"},
		{"dir", "/tmp/new", false, "[ $(cat /tmp/new/dir/a) = A ]"},
		{"dir/.", "/tmp/new", false, "[ $(cat /tmp/new/sub/b) = B ]"},
		{"tofile", "/tmp/l", false, "[ $(readlink /tmp/l) = file ]"},
		{"tofile", "/tmp/l2", true, "[ ! -L /tmp/l2 ] && [ $(cat /tmp/l2) = text ]"},
	} {
		src := host + "/" + step.src
		if err := in(src, step.dst, step.follow); err != nil {
			t.Errorf("cp %s demo:%s: %v", step.src, step.dst, err)
			continue
		}
		sh(t, e, r, step.check)
	}
	for src, dst := range map[string]string{host + "/missing": "/tmp/x", host + "/file": "/no/such/x", host + "/file/": "/tmp/y", host + "/dir": "/tmp/f"} {
		if err := in(src, dst, false); err == nil {
			t.Errorf("cp %s demo:%s succeeded", src, dst)
		}
	}

	back := t.TempDir()
	if err := errors.Join(out("/tmp/f", back+"/g", false), out("/tmp/new", back, false), out("/tmp/new/.", back+"/all", false), out("/tmp/l2", back+"/z", true)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"g": "text", "new/sub/b": "B", "all/a": "A", "z": "text"} {
		if got, err := os.ReadFile(filepath.Join(back, path)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", path, got, err, want)
		}
	}
	if err := out("/no/such", back+"/no", false); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("cp of nothing: %v, want an error that names it", err)
	}
	if _, err := os.Lstat(back + "/no"); err == nil {
		t.Error("a failed copy left something")
	}

	t.Run("pipes, sockets and devices", func(t *testing.T) {
		odd := filepath.Join(t.TempDir(), "odd")
		if err := errors.Join(os.Mkdir(odd, 0o755), os.WriteFile(odd+"/a", []byte("A"), 0o644), syscall.Mkfifo(odd+"/pipe", 0o644)); err != nil {
			t.Fatal(err)
		}
		const want = `left out, for they are neither files, folders nor links: ["pipe"]`
		if left, err := e.CopyIn(t.Context(), r, odd, "/tmp", false); err != nil || left != want {
			t.Errorf("in: %q, %v; want %q", left, err, want)
		}
		sh(t, e, r, "cd /tmp/odd && [ $(cat a) = A ] && [ ! -e pipe ] && mkfifo pipe")
		if left, err := e.CopyOut(t.Context(), r, "/tmp/odd", back, false); err != nil || left != want {
			t.Errorf("out: %q, %v; want %q", left, err, want)
		}
		for _, err := range []error{in(odd+"/pipe", "/tmp/p", false), out("/tmp/odd/pipe", back+"/p", false), out("/dev/null", back+"/p", false)} {
			if err == nil || !strings.Contains(err.Error(), "only files, folders and links can be copied") {
				t.Errorf("alone: %v", err)
			}
		}
	})

	t.Run("links do not lead out", func(t *testing.T) { // as CVE-2026-17106 in sbx before 0.38
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("host's"), 0o600); err != nil {
			t.Fatal(err)
		}
		sh(t, e, r, "mkdir -p /tmp/evil && ln -s "+filepath.Dir(secret)+" /tmp/evil/d && ln -s "+secret+" /tmp/evil/f && ln -s / /tmp/evil/r")
		dst := t.TempDir()
		if err := out("/tmp/evil", dst, false); err != nil {
			t.Fatal(err)
		}
		sh(t, e, r, "cd /tmp/evil && rm d && mkdir d && echo owned > d/secret")
		if err := out("/tmp/evil", dst, false); err == nil {
			t.Error("a folder was written through a link")
		}
		if err := out("/tmp/evil/d/secret", filepath.Join(dst, "evil", "f"), false); err == nil {
			t.Log("a file replaced the link, not what it leads to")
		}
		if got, err := os.ReadFile(secret); err != nil || string(got) != "host's" {
			t.Errorf("the host's file is %q, %v", got, err)
		}
		if err := out("/proc/1/root"+secret, dst, true); err == nil {
			t.Error("a file of the host was copied through /proc")
		}
	})
}

// A sandbox sees its workspaces only, at their own paths, read only where that was asked for.
func TestWorkspaces(t *testing.T) {
	e, workspace := newEngine(t)
	docs := filepath.Join(t.TempDir(), "docs")
	secret := filepath.Join(t.TempDir(), "secret")
	for _, d := range []string{docs, secret} {
		if err := errors.Join(os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "f"), []byte("x"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(secret, "f"), filepath.Join(workspace, "out")); err != nil {
		t.Fatal(err)
	}
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}, {Path: docs, ReadOnly: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, r, "cat "+docs+"/f"); got != "x" {
		t.Errorf("docs: %q", got)
	}
	for _, script := range []string{"echo y > " + docs + "/f", "rm " + docs + "/f", "touch " + docs + "/n", "cat out", "cat " + secret + "/f", "ls " + filepath.Join(workspace, "..", "..", "..") + "/*/secret"} {
		if out, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", script}}); code == 0 {
			t.Errorf("%s: succeeded: %s", script, out)
		}
	}
	bare, err := e.Create(t.Context(), engine.CreateSpec{Name: "bare", Agent: "shell"})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, bare, "pwd; echo $WORKSPACE_DIR"); got != "/home/agent/workspace\n/home/agent/workspace" {
		t.Errorf("without a workspace: %q", got)
	}
}
