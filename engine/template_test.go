package engine_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
)

// dashImage is an image with dash and the libraries it needs, and no other program; some of its links are malicious.
func dashImage(t *testing.T, secretDir string) string {
	t.Helper()
	ldd, err := exec.Command("ldd", "/bin/dash").Output()
	if err != nil {
		t.Skipf("this host has no dash to make an image of: %v", err)
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	add := func(h tar.Header, text []byte) {
		h.Size = int64(len(text))
		if err := errors.Join(tw.WriteHeader(&h), func() error { _, err := tw.Write(text); return err }()); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range map[string]string{"bin/sh": "/bin/dash"} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		add(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, data)
	}
	for _, lib := range regexp.MustCompile(`/[^ \n]+\.so\S*`).FindAllString(string(ldd), -1) {
		data, err := os.ReadFile(lib)
		if err != nil {
			t.Fatal(err)
		}
		add(tar.Header{Name: strings.TrimPrefix(lib, "/"), Typeflag: tar.TypeReg, Mode: 0o755}, data)
	}
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add(tar.Header{Name: "etc/motd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("hello from the image\n"))
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}, nil)
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeSymlink, Linkname: "../../../../../../../etc/group"}, nil)
	first := strings.Split(secretDir, "/")[1]
	add(tar.Header{Name: first, Typeflag: tar.TypeSymlink, Linkname: "/" + first}, nil) // on the way to the workspace
	add(tar.Header{Name: "home", Typeflag: tar.TypeSymlink, Linkname: secretDir}, nil)
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Env": []string{"PATH=/tools:/bin", "FROM_IMAGE=yes", "HTTP_PROXY=http://evil.example.com"}},
		"rootfs": map[string]any{"diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tw = tar.NewWriter(f)
	add(tar.Header{Name: "config.json", Typeflag: tar.TypeReg}, config)
	add(tar.Header{Name: "layer.tar", Typeflag: tar.TypeReg}, layer.Bytes())
	add(tar.Header{Name: "manifest.json", Typeflag: tar.TypeReg}, []byte(`[{"Config":"config.json","RepoTags":["team/tiny:v1"],"Layers":["layer.tar"]}]`))
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// An image that has neither bash nor curl nor a package makes a sandbox; what it says of links stays inside; the image
// goes when nothing needs it any more.
func TestImage(t *testing.T) {
	e, workspace := newEngine(t)
	secret := t.TempDir()
	list, err := e.LoadTemplates(t.Context(), dashImage(t, secret))
	if err != nil || len(list) != 1 || list[0].Ref() != "team/tiny:v1" {
		t.Fatalf("load: %+v, %v", list, err)
	}
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", Template: "team/tiny:v1", Workspaces: []engine.Workspace{{Path: workspace}}})
	if err != nil {
		t.Fatal(err)
	}
	const script = `read line < /etc/motd; echo "$line"; echo $PATH $FROM_IMAGE $HTTP_PROXY; pwd; echo from inside > note; [ -e /bin/bash ] || echo no bash
[ -e /usr/bin/env ] || echo no env; while read l; do echo "$l"; done < /etc/passwd; echo kept > /etc/kept; cd /home/agent/workspace && echo at home`
	want := "hello from the image\n/etc/sbx/bin:/tools:/bin yes http://gateway.docker.internal:3128\n" + workspace + "\nno bash\nno env\nagent:x:0:0:agent:/home/agent:/bin/sh\nat home"
	if got := sh(t, e, r, script); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if data, err := os.ReadFile(filepath.Join(workspace, "note")); err != nil || string(data) != "from inside\n" {
		t.Errorf("the workspace holds %q, %v", data, err)
	}
	if left, err := os.ReadDir(secret); err != nil || len(left) > 0 {
		t.Errorf("a link of the image led to the host: %v, %v", left, err)
	}
	if _, err := e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"bash"}}); err == nil {
		t.Error("a bash was found")
	}
	back := t.TempDir()
	if _, err := e.CopyOut(t.Context(), r, "/etc/motd", back, false); err != nil {
		t.Error(err)
	}
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	saved, err := e.SaveTemplate(t.Context(), "demo", "mine")
	if err != nil || saved.Ref() != "mine:latest" {
		t.Fatalf("save: %+v, %v", saved, err)
	}
	file := filepath.Join(t.TempDir(), "mine.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.ExportTemplate(t.Context(), saved, f), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"team/tiny:v1", "mine:latest"} {
		if _, err := e.RemoveTemplate(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	if r, _, _, err = e.Ensure(t.Context(), "demo"); err != nil { // the image stays for it
		t.Fatal(err)
	}
	if got := sh(t, e, r, "read l < /etc/kept; echo $l"); got != "kept" {
		t.Errorf("after a stop: %q", got)
	}
	if err := e.Remove(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(e.State.Dir, "images", "*")); len(left) > 0 {
		t.Errorf("images are left: %q", left)
	}
	if _, err := e.LoadTemplates(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	r, err = e.Create(t.Context(), engine.CreateSpec{Name: "again", Agent: "shell", Template: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, r, "read l < /etc/kept; read m < /etc/motd; echo $l $m"); got != "kept hello from the image" {
		t.Errorf("from the exported one: %q", got)
	}
	if _, err := e.Create(t.Context(), engine.CreateSpec{Name: "other", Agent: "shell", Template: "no/such"}); !errors.Is(err, engine.ErrNoTemplate) {
		t.Errorf("an unknown template: %v, want ErrNoTemplate", err)
	}
	if err := e.ExportTemplate(t.Context(), saved, io.Discard); err == nil {
		t.Error("a removed template was exported")
	}
}

// An export that is under way, or was killed, is nobody's template and keeps nobody from the others.
func TestExportLeavesNothing(t *testing.T) {
	e, workspace := newEngine(t)
	create(t, e, "demo", workspace)
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	saved, err := e.SaveTemplate(t.Context(), "demo", "kept:1")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(e.State.Dir, "templates")
	if err := os.WriteFile(filepath.Join(dir, "layer-123"), nil, 0o600); err != nil { // as a killed one of an earlier version left it
		t.Fatal(err)
	}
	looked := false
	err = e.ExportTemplate(t.Context(), saved, writerFunc(func(p []byte) (int, error) {
		looked = true
		list, err := e.Templates()
		if err != nil || len(list) != 1 {
			t.Errorf("meanwhile: %+v, %v", list, err)
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 2 {
			t.Errorf("meanwhile: %v, %v; a killed export would leave them", files, err)
		}
		return len(p), err
	}))
	if err != nil || !looked {
		t.Error(looked, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
