package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type header = tar.Header

func file(name, text string) entry {
	return entry{header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}, text}
}
func dir(name string) entry {
	return entry{header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}
func symlink(name, to string) entry {
	return entry{header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}, ""}
}
func hardlink(name, to string) entry {
	return entry{header{Name: name, Typeflag: tar.TypeLink, Linkname: to}, ""}
}

type entry struct {
	header
	text string
}

func pack(t *testing.T, list ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range list {
		if err := tw.WriteHeader(&e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func config(t *testing.T, arch string, layers ...[]byte) string {
	t.Helper()
	ids := []string{}
	for _, l := range layers {
		ids = append(ids, "sha256:"+sum(l))
	}
	return marshal(t, map[string]any{"architecture": arch, "os": "linux", "config": map[string]any{"Env": []string{"PATH=/bin", "X=1"}}, "rootfs": map[string]any{"diff_ids": ids}})
}

func open(t *testing.T, data []byte) (*Archive, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := Open(path)
	if err == nil {
		t.Cleanup(func() { a.Close() })
	}
	return a, err
}

// docker is an archive as docker save made it before OCI layouts, the second layer a link to the first where they repeat.
func docker(t *testing.T, layers ...[]byte) []byte {
	t.Helper()
	list := []entry{file("c.json", config(t, runtime.GOARCH, layers...))}
	var names []string
	for i, l := range layers {
		name := string(rune('a'+i)) + "/layer.tar"
		names = append(names, name)
		list = append(list, file(name, string(l)))
	}
	return pack(t, append(list, file("manifest.json", marshal(t, []map[string]any{{"Config": "c.json", "RepoTags": []string{"demo:v1"}, "Layers": names}})))...)
}

func unpack(t *testing.T, data []byte) (map[string]string, error) {
	t.Helper()
	a, err := open(t, data)
	if err != nil {
		return nil, err
	}
	images, err := a.Images()
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		t.Fatalf("%d images, want 1", len(images))
	}
	root := filepath.Join(t.TempDir(), "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Unpack(t.Context(), images[0], root, os.Getuid() == 0); err != nil {
		return nil, err
	}
	got := map[string]string{}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel := strings.TrimPrefix(p, root+"/")
		switch {
		case d.IsDir():
			got[rel] = "dir"
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			got[rel] = "-> " + to
		default:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			got[rel] = string(data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, nil
}

func TestUnpack(t *testing.T) {
	for name, tt := range map[string]struct {
		layers [][]entry
		want   map[string]string
	}{
		"later layers win, whiteouts take away": {
			[][]entry{{dir("etc/"), file("etc/a", "1"), file("etc/b", "1"), dir("gone/"), file("gone/x", "1")}, {file("./etc/a", "2"), file("etc/.wh.b", ""), file(".wh.gone", "")}},
			map[string]string{"etc": "dir", "etc/a": "2"},
		},
		"an opaque folder hides lower layers only, wherever the mark comes": {
			[][]entry{{dir("d"), file("d/old", "1"), dir("d/s"), file("d/s/old", "1")}, {dir("d"), file("d/new", "2"), dir("d/s"), file("d/s/new", "2"), file("d/.wh..wh..opq", "")}},
			map[string]string{"d": "dir", "d/new": "2", "d/s": "dir", "d/s/new": "2"},
		},
		"through links of the image, as seen inside": {
			[][]entry{{dir("usr"), dir("usr/lib"), symlink("lib", "/usr/lib"), symlink("up", "../../usr")}, {file("lib/x", "1"), file("up/y", "2")}},
			map[string]string{"usr": "dir", "usr/lib": "dir", "usr/lib/x": "1", "usr/y": "2", "lib": "-> /usr/lib", "up": "-> ../../usr"},
		},
		"a folder replaces a link, a file a folder": {
			[][]entry{{symlink("a", "b"), dir("b"), file("b/x", "1"), dir("c"), file("c/x", "1")}, {dir("a"), file("a/y", "2"), file("c", "3")}},
			map[string]string{"a": "dir", "a/y": "2", "b": "dir", "b/x": "1", "c": "3"},
		},
		"hard links, missing folders": {
			[][]entry{{file("x/y/z", "1"), hardlink("x/l", "/x/y/z")}},
			map[string]string{"x": "dir", "x/y": "dir", "x/y/z": "1", "x/l": "1"},
		},
		"devices are left out": {
			[][]entry{{entry{header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""}, entry{header{Name: "p", Typeflag: tar.TypeFifo}, ""}, file("f", "")}},
			map[string]string{"f": ""},
		},
		"names that lead outside stay inside": {
			[][]entry{{file("../../../up", "1"), file("/abs", "2"), symlink("out", "../../../../../../tmp"), file("out/sbx-image-test", "3")}},
			map[string]string{"up": "1", "abs": "2", "out": "-> ../../../../../../tmp", "tmp": "dir", "tmp/sbx-image-test": "3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range tt.layers {
				layers = append(layers, pack(t, l...))
			}
			got, err := unpack(t, docker(t, layers...))
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range tt.want {
				if text, ok := got[name]; !ok || text != want {
					t.Errorf("%s = %q, %v; want %q", name, text, ok, want)
				}
				delete(got, name)
			}
			for name, text := range got {
				t.Errorf("%s = %q, want nothing", name, text)
			}
		})
	}
	if _, err := os.Lstat("/tmp/sbx-image-test"); err == nil {
		t.Error("a file was written outside")
	}
}

func TestUnpackRefuses(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	layer := pack(t, file("a", "1"))
	other := config(t, map[bool]string{true: "arm64", false: "amd64"}[runtime.GOARCH == "amd64"], layer)
	manifest := file("manifest.json", `[{"Config":"c.json","Layers":["l"]}]`)
	for name, data := range map[string][]byte{
		"not an archive":             []byte(strings.Repeat("x", 2048)),
		"no table of contents":       pack(t, file("x", "")),
		"broken table":               pack(t, file("manifest.json", "{")),
		"missing configuration":      pack(t, file("manifest.json", `[{"Config":"c.json","Layers":[]}]`)),
		"missing layer":              pack(t, manifest, file("c.json", config(t, runtime.GOARCH, layer))),
		"another layer":              pack(t, manifest, file("c.json", config(t, runtime.GOARCH, layer)), file("l", string(pack(t, file("a", "2"))))),
		"fewer digests than layers":  pack(t, manifest, file("c.json", config(t, runtime.GOARCH)), file("l", string(layer))),
		"another machine":            pack(t, manifest, file("c.json", other), file("l", string(layer))),
		"zstd":                       pack(t, manifest, file("c.json", config(t, runtime.GOARCH, layer)), file("l", "\x28\xb5\x2f\xfd....")),
		"hard link to the host":      docker(t, pack(t, hardlink("l", "../../../.."+secret))),
		"hard link through a link":   docker(t, pack(t, symlink("d", filepath.Dir(secret)), hardlink("l", "d/secret"))),
		"links in a circle":          docker(t, pack(t, symlink("a", "b"), symlink("b", "a"), file("a/x", ""))),
		"whiteout of the folder":     docker(t, pack(t, file("d/.wh...", ""))),
		"digest that is a path":      pack(t, file("index.json", `{"manifests":[{"digest":"sha256:../../x"}]}`)),
		"index that contains itself": loop(t),
	} {
		if got, err := unpack(t, data); err == nil {
			t.Errorf("%s: unpacked %v", name, got)
		}
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "host's" {
		t.Errorf("the host's file is %q, %v", data, err)
	}
}

// holes packs a file that is nothing but a hole of size bytes (GNU sparse 1.0), which takes two kilobytes here.
func holes(t *testing.T, size int64) []byte {
	record := func(name, value string) string {
		n := len(name) + len(value) + 3
		for s := ""; ; n = len(s) {
			if s = fmt.Sprintf("%d %s=%s\n", n, name, value); len(s) == n {
				return s
			}
		}
	}
	real := strconv.FormatInt(size, 10)
	pax := pack(t, file("pax", record("GNU.sparse.major", "1")+record("GNU.sparse.minor", "0")+record("GNU.sparse.name", "hole")+record("GNU.sparse.realsize", real)))
	pax = pax[:len(pax)-1024]  // without its end
	pax[156] = tar.TypeXHeader // the writer makes none by hand
	copy(pax[148:156], "        ")
	sum := 0
	for _, b := range pax[:512] {
		sum += int(b)
	}
	copy(pax[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return append(pax, pack(t, file("x", "1\n"+real+"\n0\n"+strings.Repeat("\x00", 512)[:512-len(real)-5]))...)
}

// A few kilobytes do not become more than the disk holds.
func TestBombs(t *testing.T) {
	if got, err := unpack(t, docker(t, holes(t, 1<<20))); err != nil || len(got["hole"]) != 1<<20 {
		t.Fatalf("a small hole: %d bytes, %v", len(got["hole"]), err)
	}
	if _, err := unpack(t, docker(t, holes(t, 1<<55))); !errors.Is(err, ErrRoom) {
		t.Errorf("a hole of 32 PiB: %v, want ErrRoom", err)
	}
	w := Limit(io.Discard, 10)
	if _, err := w.Write(make([]byte, 8)); err != nil {
		t.Error(err)
	}
	if _, err := w.Write(make([]byte, 3)); !errors.Is(err, ErrRoom) {
		t.Errorf("11 bytes of 10: %v, want ErrRoom", err)
	}
}

func loop(t *testing.T) []byte {
	digest := strings.Repeat("ab", 32)
	doc := `{"manifests":[{"digest":"sha256:` + digest + `"}]}`
	return pack(t, file("index.json", doc), file("blobs/sha256/"+digest, doc))
}

// An OCI layout: an index of two platforms, a compressed layer, a name by annotation.
func TestOCI(t *testing.T) {
	layer := pack(t, file("a", "1"))
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	zw.Write(layer)
	zw.Close()
	conf := config(t, runtime.GOARCH, layer)
	var list []entry
	put := func(text string) string {
		list = append(list, file("blobs/sha256/"+sum([]byte(text)), text))
		return "sha256:" + sum([]byte(text))
	}
	manifest := put(marshal(t, map[string]any{"config": map[string]string{"digest": put(conf)}, "layers": []map[string]string{{"digest": put(zipped.String())}}}))
	index := put(marshal(t, map[string]any{"manifests": []map[string]any{
		{"digest": "sha256:" + strings.Repeat("0", 64), "platform": map[string]string{"os": "windows", "architecture": "amd64"}},
		{"digest": manifest, "platform": map[string]string{"os": "linux", "architecture": runtime.GOARCH}},
	}}))
	list = append(list, file("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), file("index.json", marshal(t, map[string]any{"manifests": []map[string]any{{"digest": index, "annotations": map[string]string{"io.containerd.image.name": "team/tools:v2"}}}})))
	data := pack(t, list...)
	a, err := open(t, data)
	if err != nil {
		t.Fatal(err)
	}
	images, err := a.Images()
	if err != nil || len(images) != 1 || !slices.Equal(images[0].Names, []string{"team/tools:v2"}) || images[0].ID != sum([]byte(conf)) || !slices.Equal(images[0].Env(), []string{"PATH=/bin", "X=1"}) {
		t.Fatalf("images %+v, %v", images, err)
	}
	if got, err := unpack(t, data); err != nil || got["a"] != "1" {
		t.Errorf("unpacked %v, %v", got, err)
	}
}

// What gVisor writes of a sandbox's changes comes back as it was after a trip through an image.
func TestUpperRoundTrip(t *testing.T) {
	hidden := entry{header{Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 3, PAXRecords: map[string]string{xattrOpaque: "y"}}, ""}
	upper := pack(t, dir("./"), hidden, file("./d/f", "text"), entry{header{Name: "./d/gone", Typeflag: tar.TypeChar, Mode: 0o600}, ""},
		symlink("./l", "d/f"), hardlink("./h", "./d/f"), entry{header{Name: "./p", Typeflag: tar.TypeFifo, Mode: 0o600}, ""})
	var layer, back bytes.Buffer
	if err := errors.Join(FromUpper(&layer, bytes.NewReader(upper)), ToUpper(&back, bytes.NewReader(layer.Bytes()))); err != nil {
		t.Fatal(err)
	}
	list := func(data []byte) (lines []string) {
		for tr := tar.NewReader(bytes.NewReader(data)); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return lines
			}
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(tr)
			lines = append(lines, strings.Join([]string{h.Name, string(h.Typeflag), h.Linkname, string(text), h.PAXRecords[xattrOpaque]}, " "))
		}
	}
	if got, want := list(back.Bytes()), list(upper); !slices.Equal(got, want) {
		t.Errorf("came back as\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := list(layer.Bytes()); !slices.Contains(got, "d/.wh.gone 0   ") || !slices.Contains(got, "d/.wh..wh..opq 0   ") {
		t.Errorf("layer: %q", got)
	}
	for name, bad := range map[string][]byte{
		"no folder":       pack(t, file("a/b", "")),
		"twice":           pack(t, file("a", ""), file("a", "")),
		"below a file":    pack(t, file("a", ""), file("a/b", "")),
		"link to nowhere": pack(t, hardlink("a", "b")),
	} {
		if err := ToUpper(io.Discard, bytes.NewReader(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}
