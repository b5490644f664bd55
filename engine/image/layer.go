package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// xattrOpaque marks a folder of gVisor's upper layer that hides all of the lower one.
const xattrOpaque = "SCHILY.xattr.trusted.overlay.opaque"

// FromUpper writes gVisor's archive of an upper layer as an image's layer: what was deleted is told by names, not devices.
func FromUpper(w io.Writer, upper io.Reader) error {
	tw := tar.NewWriter(w)
	tr := tar.NewReader(upper)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		name, ok := local(h.Name)
		if !ok {
			return fmt.Errorf("bad name %q", h.Name)
		}
		if name == "." {
			continue
		}
		h.Name = name
		switch {
		case h.Typeflag == tar.TypeDir:
			h.Name += "/"
		case h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0:
			h = &tar.Header{Name: path.Join(path.Dir(name), whiteout+path.Base(name)), Typeflag: tar.TypeReg, Mode: 0o600, ModTime: h.ModTime}
		case h.Typeflag == tar.TypeLink:
			if h.Linkname, ok = local(h.Linkname); !ok {
				return fmt.Errorf("bad link %q", h.Name)
			}
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
		if h.PAXRecords[xattrOpaque] != "" {
			if err := tw.WriteHeader(&tar.Header{Name: path.Join(name, opaque), Typeflag: tar.TypeReg, Mode: 0o600, ModTime: h.ModTime}); err != nil {
				return err
			}
		}
	}
}

// ToUpper is the way back: it writes a layer of [FromUpper] as an archive that gVisor takes for an upper layer. The layer is
// hostile: an entry whose folder is not named before it is refused.
func ToUpper(w io.Writer, layer io.Reader) error {
	tw := tar.NewWriter(w)
	tr := tar.NewReader(layer)
	if err := tw.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Now().Truncate(time.Second)}); err != nil {
		return err
	}
	dirs, files := map[string]bool{".": true}, map[string]bool{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		name, ok := local(h.Name)
		if !ok || name == "." {
			continue
		}
		dir, base := path.Dir(name), path.Base(name)
		if !dirs[dir] || dirs[name] || files[name] {
			return fmt.Errorf("%w: entry %q is out of order", ErrFormat, h.Name)
		}
		if base == opaque {
			continue // its folder says so itself
		}
		if gone, ok := strings.CutPrefix(base, whiteout); ok {
			h = &tar.Header{Typeflag: tar.TypeChar, ModTime: h.ModTime}
			name = path.Join(dir, gone)
		}
		h.Name = "./" + name
		switch h.Typeflag {
		case tar.TypeDir:
			dirs[name] = true
			h.Name += "/"
		case tar.TypeReg, tar.TypeSymlink, tar.TypeFifo, tar.TypeChar:
			if h.Typeflag == tar.TypeChar && (h.Devmajor != 0 || h.Devminor != 0) {
				continue
			}
			files[name] = true
		case tar.TypeLink:
			target, ok := local(h.Linkname)
			if !ok || !files[target] {
				return fmt.Errorf("%w: link %q leads nowhere", ErrFormat, h.Name)
			}
			files[name] = true
			h.Linkname = "./" + target
		default:
			continue
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
}

// FromDir writes a folder as an image's layer.
func FromDir(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if fi.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(p); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(fi, link)
		if err != nil {
			return err
		}
		h.Name, h.Uname, h.Gname = strings.TrimPrefix(p, dir+"/"), "", ""
		if st := fi.Sys().(*syscall.Stat_t); os.Getuid() != 0 && int(st.Uid) == os.Getuid() {
			h.Uid, h.Gid = 0, 0 // unpacked by an ordinary user: all of it is root's
		}
		if fi.IsDir() {
			h.Name += "/"
		}
		if err := tw.WriteHeader(h); err != nil || !fi.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(tw, f)
		return err
	})
	return errors.Join(err, tw.Close())
}

// A Writer writes one image as docker save does.
type Writer struct {
	tw     *tar.Writer
	layers []string // digests
}

// NewWriter begins an archive.
func NewWriter(w io.Writer) *Writer { return &Writer{tw: tar.NewWriter(w)} }

// Layer adds a layer, by way of a file in tmp since its size and digest come first.
func (w *Writer) Layer(tmp string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(tmp, "layer-*")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // it is ours alone by its descriptor, and goes with us however we end
		return err
	}
	h := sha256.New()
	n := &counter{h: h}
	if err := write(io.MultiWriter(f, n)); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	digest := hex.EncodeToString(h.Sum(nil))
	if err := w.tw.WriteHeader(&tar.Header{Name: "blobs/sha256/" + digest, Typeflag: tar.TypeReg, Mode: 0o644, Size: n.n}); err != nil {
		return err
	}
	if _, err := io.Copy(w.tw, f); err != nil {
		return err
	}
	w.layers = append(w.layers, digest)
	return nil
}

type counter struct {
	h hash.Hash
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.h.Write(p)
}

// Close writes the configuration and the table of contents, and ends the archive.
func (w *Writer) Close(name string, env []string, labels map[string]string, created time.Time) error {
	var layers, ids []string
	for _, d := range w.layers {
		layers, ids = append(layers, "blobs/sha256/"+d), append(ids, "sha256:"+d)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": created.UTC(), "config": map[string]any{"Env": env, "Labels": labels},
		"rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	})
	if err != nil {
		return err
	}
	at := "blobs/sha256/" + sum(config)
	manifest, err := json.Marshal([]map[string]any{{"Config": at, "RepoTags": []string{name}, "Layers": layers}})
	if err != nil {
		return err
	}
	for _, doc := range []struct {
		name string
		data []byte
	}{{at, config}, {"manifest.json", manifest}} {
		if err := w.tw.WriteHeader(&tar.Header{Name: doc.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(doc.data))}); err != nil {
			return err
		}
		if _, err := io.Copy(w.tw, bytes.NewReader(doc.data)); err != nil {
			return err
		}
	}
	return w.tw.Close()
}
