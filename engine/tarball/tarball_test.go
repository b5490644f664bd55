package tarball_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/engine/tarball"
)

// archive packs headers as a hostile sandbox may; regular files hold "evil".
func archive(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len("evil"))
		}
		if h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o755
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := tw.Write([]byte("evil")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func place(b *bytes.Buffer, dst, base string, contents bool) error {
	r, err := tarball.NewReader(b)
	if err != nil {
		return err
	}
	return tarball.Place(r, dst, base, contents)
}

// No archive writes outside the destination, whatever its names and links say.
func TestHostileArchives(t *testing.T) {
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir} }
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	for name, headers := range map[string][]tar.Header{
		"climbing name":          {dir("."), file("../victim")},
		"absolute name":          {dir("."), file("/victim")},
		"climbing in the middle": {dir("."), file("a/../../victim")},
		"link to a folder":       {dir("."), link("d", ".."), file("d/victim")},
		"absolute link":          {dir("."), link("d", "/"), file("d/victim")},
		"folder over a link":     {dir("."), link("d", ".."), dir("d"), file("d/victim")},
		"link chain":             {dir("."), link("a", ".."), link("b", "a"), file("b/victim")},
		"hard link":              {dir("."), {Name: "h", Typeflag: tar.TypeLink, Linkname: "../victim"}},
		"device":                 {dir("."), {Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"fifo":                   {dir("."), {Name: "f", Typeflag: tar.TypeFifo}},
		"no root":                {file("victim")},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			victim := filepath.Join(top, "victim")
			dst := filepath.Join(top, "dst")
			if err := errors.Join(os.WriteFile(victim, []byte("safe"), 0o600), os.Mkdir(dst, 0o755)); err != nil {
				t.Fatal(err)
			}
			if err := place(archive(t, headers...), dst, "base", false); err == nil {
				t.Error("the archive was accepted")
			}
			if got, err := os.ReadFile(victim); err != nil || string(got) != "safe" {
				t.Errorf("the file outside is %q, %v", got, err)
			}
			if _, err := os.Lstat("/victim"); err == nil {
				t.Error("/victim was made")
			}
		})
	}
	t.Run("hostile base name", func(t *testing.T) {
		for _, base := range []string{"", "..", "a/b", "/"} {
			if err := place(archive(t, file(".")), t.TempDir(), base, false); err == nil {
				t.Errorf("base %q was accepted", base)
			}
		}
	})
	t.Run("setuid is dropped, an existing link is replaced and not followed", func(t *testing.T) {
		top := t.TempDir()
		victim := filepath.Join(top, "victim")
		if err := errors.Join(os.WriteFile(victim, []byte("safe"), 0o600), os.Symlink(victim, filepath.Join(top, "x"))); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		if err := errors.Join(tw.WriteHeader(&tar.Header{Name: ".", Typeflag: tar.TypeReg, Mode: 0o4755}), tw.Close()); err != nil {
			t.Fatal(err)
		}
		if err := place(&b, top, "x", false); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(filepath.Join(top, "x"))
		if err != nil || fi.Mode() != 0o755 {
			t.Errorf("x: %v, %v; want a plain file, mode 0755", fi.Mode(), err)
		}
		if got, err := os.ReadFile(victim); err != nil || string(got) != "safe" {
			t.Errorf("what the link led to is %q, %v", got, err)
		}
	})
}

// A folder that a sandbox owns can change while it is packed: what lies outside is not packed for that, and nothing waits.
func TestFolderThatChanges(t *testing.T) {
	src, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	file := filepath.Join(src, "sub", "file")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(outside, []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tmp := filepath.Join(src, "tmp")
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			switch i % 3 {
			case 0:
				os.WriteFile(tmp, []byte("plain"), 0o600)
			case 1:
				os.Symlink(outside, tmp)
			case 2:
				unix.Mkfifo(tmp, 0o600)
			}
			os.Rename(tmp, file)
		}
	}()
	for _, from := range []string{src, file} {
		for range 300 {
			var b bytes.Buffer
			tarball.Write(&b, from) // an error is allowed: it was replaced
			if bytes.Contains(b.Bytes(), []byte("secret")) {
				t.Fatalf("%s: a file outside was packed", from)
			}
		}
	}
	close(stop)
	<-stopped
	if _, err := tarball.Write(io.Discard, "/dev/zero"); !errors.Is(err, tarball.ErrKind) {
		t.Errorf("a device: error %v, want ErrKind", err)
	}
}

// A copy that is cut off leaves the file that was there, and nothing beside it.
func TestCutArchive(t *testing.T) {
	src, dst := filepath.Join(t.TempDir(), "file"), t.TempDir()
	old := filepath.Join(dst, "file")
	if err := errors.Join(os.WriteFile(src, bytes.Repeat([]byte("new"), 1<<16), 0o600), os.WriteFile(old, []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if _, err := tarball.Write(&archive, src); err != nil {
		t.Fatal(err)
	}
	r, err := tarball.NewReader(io.LimitReader(&archive, 100_000))
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.Place(r, dst, "file", false); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want io.ErrUnexpectedEOF", err)
	}
	left, err := os.ReadDir(dst)
	if data, readErr := os.ReadFile(old); err != nil || len(left) != 1 || string(data) != "old" {
		t.Errorf("left %v; the file is %q (%v, %v)", left, data, err, readErr)
	}
}

// What is packed comes out the same, links as links, FIFOs left out.
func TestRoundTrip(t *testing.T) {
	src := filepath.Join(t.TempDir(), "src")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(src, "sub", "empty"), 0o755), os.WriteFile(filepath.Join(src, "a"), []byte("A"), 0o640),
		os.WriteFile(filepath.Join(src, "sub", "ro"), bytes.Repeat([]byte("x"), 1<<20), 0o444), os.Symlink("../a", filepath.Join(src, "sub", "l")),
		os.Chmod(filepath.Join(src, "sub"), 0o555),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(src, "sub"), 0o755) })
	var b bytes.Buffer
	if _, err := tarball.Write(&b, src); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "dst")
	if err := place(&b, dst, "src", false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(dst, "sub"), 0o755) })
	for path, mode := range map[string]fs.FileMode{"a": 0o640, "sub": fs.ModeDir | 0o555, "sub/ro": 0o444, "sub/empty": fs.ModeDir | 0o755} {
		if fi, err := os.Lstat(filepath.Join(dst, path)); err != nil || fi.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", path, fi.Mode(), err, mode)
		}
	}
	if to, err := os.Readlink(filepath.Join(dst, "sub", "l")); err != nil || to != "../a" {
		t.Errorf("link leads to %q, %v", to, err)
	}
	if err := place(bytes.NewBuffer(nil), dst, "x", false); err == nil {
		t.Error("an empty archive was accepted")
	}
}

// TestFieldReports holds the rows of the category cp that unpacking answers.
func TestFieldReports(t *testing.T) {
	t.Run("R132", func(t *testing.T) { // a global header is no entry, and a file replaces a link of the same name
		dst := t.TempDir()
		b := archive(t,
			tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}},
			tar.Header{Typeflag: tar.TypeDir, Name: "."},
			tar.Header{Typeflag: tar.TypeReg, Name: "real"},
			tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "real"},
			tar.Header{Typeflag: tar.TypeReg, Name: "l"},
		)
		real := filepath.Join(dst, "real")
		if err := place(b, dst, "", true); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(filepath.Join(dst, "l")); err != nil || !info.Mode().IsRegular() {
			t.Errorf("l is %v, %v; want the file that came last", info, err)
		}
		if err := os.WriteFile(filepath.Join(dst, "l"), []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(real); err != nil || string(text) != "evil" {
			t.Errorf("real holds %q, %v: it was written through the link", text, err)
		}
	})
	t.Run("R136", func(t *testing.T) { // what a file has beside its content is no file
		src, dst := t.TempDir(), t.TempDir()
		for _, name := range []string{"a", "b"} {
			path := filepath.Join(src, name)
			if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := unix.Setxattr(path, "user.com.apple.provenance", []byte("x"), 0); err != nil {
				t.Skipf("no attributes in the temporary folder: %v", err)
			}
		}
		var b bytes.Buffer
		if _, err := tarball.Write(&b, src); err != nil {
			t.Fatal(err)
		}
		if err := place(&b, dst, "", true); err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(dst); err != nil || len(list) != 2 || list[0].Name() != "a" || list[1].Name() != "b" {
			t.Errorf("%v arrived, %v", list, err)
		}
	})
	t.Run("R137", func(t *testing.T) { // a folder that may not be written keeps its files, and its mode at the end
		src, dst := t.TempDir(), t.TempDir()
		locked := filepath.Join(src, "locked")
		if err := os.Mkdir(locked, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(locked, "file"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(locked, 0o555); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := tarball.Write(&b, src); err != nil {
			t.Fatal(err)
		}
		if err := place(&b, dst, "", true); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dst, "locked", "file"))
		info, statErr := os.Stat(filepath.Join(dst, "locked"))
		if err != nil || statErr != nil || string(text) != "x" || info.Mode().Perm() != 0o555 {
			t.Errorf("file %q, %v; folder %v, %v", text, err, info, statErr)
		}
		for _, dir := range []string{locked, filepath.Join(dst, "locked")} { // so that the test's folders can be removed
			os.Chmod(dir, 0o755)
		}
	})
}
