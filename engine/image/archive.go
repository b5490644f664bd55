// Package image reads saved container images (docker save, or an OCI layout in a tar) and unpacks their layers into a
// folder. An archive is hostile: nothing is read or written outside of it and the folder, whatever names and links it holds,
// no device is made, no set-user bit is kept, and its size is bounded.
package image

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrFormat matches the error for a file that is neither kind of archive.
var ErrFormat = errors.New("not a saved image: give the output of docker save, or an OCI layout in a tar")

// Bounds of an archive.
const (
	maxEntries  = 1 << 20
	maxDocument = 8 << 20 // bytes of one JSON document
	maxNesting  = 4       // indexes within indexes
)

// An Archive is an open archive.
type Archive struct {
	f       *os.File
	entries map[string]section
	links   map[string]string // older docker saves a layer that repeats as a link to the first
}

type section struct{ offset, size int64 }

// An Image is one image in an archive.
type Image struct {
	ID     string   // sha256 of its configuration, hex
	Names  []string // REPOSITORY:TAG
	Config Config
	layers []string // entries, lowest first
}

// Config is what we use of an image's configuration.
type Config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Env    []string          `json:"Env"`
		Labels map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"` // sha256:HEX of each layer, uncompressed
	} `json:"rootfs"`
}

// Open reads the archive's table of contents. The error matches ErrFormat if it is none of ours.
func Open(name string) (*Archive, error) {
	// A pipe, even one that nobody writes to, must not keep us here: the archive is read in any order.
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%w: not a file", ErrFormat))
	}
	a := &Archive{f, map[string]section{}, map[string]string{}}
	if err := a.index(); err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

// Close closes the file.
func (a *Archive) Close() error { return a.f.Close() }

func (a *Archive) index() error {
	tr := tar.NewReader(a.f)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFormat, err)
		}
		if n >= maxEntries {
			return fmt.Errorf("%w: too many entries", ErrFormat)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := a.f.Seek(0, io.SeekCurrent) // the reader has read the header and nothing more
			if err != nil {
				return err
			}
			a.entries[name] = section{at, h.Size}
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		}
	}
}

// open returns the content of an entry.
func (a *Archive) open(name string) (*io.SectionReader, error) {
	name = path.Clean(name)
	if target, ok := a.links[name]; ok {
		name = target
	}
	s, ok := a.entries[name]
	if !ok {
		return nil, fmt.Errorf("%w: %s is missing", ErrFormat, name)
	}
	return io.NewSectionReader(a.f, s.offset, s.size), nil
}

func (a *Archive) document(name string, out any) ([]byte, error) {
	r, err := a.open(name)
	if err != nil {
		return nil, err
	}
	if r.Size() > maxDocument {
		return nil, fmt.Errorf("%w: %s is too large", ErrFormat, name)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFormat, name, err)
	}
	return data, nil
}

// Images lists the images of the archive, those for this machine only.
func (a *Archive) Images() ([]Image, error) {
	if _, err := a.open("manifest.json"); err == nil {
		return a.dockerImages()
	}
	if _, err := a.open("index.json"); err == nil {
		return a.ociImages("index.json", nil, 0)
	}
	return nil, ErrFormat
}

func (a *Archive) dockerImages() ([]Image, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if _, err := a.document("manifest.json", &list); err != nil {
		return nil, err
	}
	var out []Image
	for _, m := range list {
		img, err := a.image(m.Config, m.Layers, m.RepoTags)
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	return out, nil
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform"`
}

func (a *Archive) ociImages(name string, names []string, depth int) ([]Image, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("%w: indexes within indexes", ErrFormat)
	}
	var doc struct {
		Manifests []descriptor `json:"manifests"`
		Config    *descriptor  `json:"config"`
		Layers    []descriptor `json:"layers"`
	}
	if _, err := a.document(name, &doc); err != nil {
		return nil, err
	}
	if doc.Config != nil {
		config, err := blob(doc.Config.Digest)
		if err != nil {
			return nil, err
		}
		var layers []string
		for _, l := range doc.Layers {
			layer, err := blob(l.Digest)
			if err != nil {
				return nil, err
			}
			layers = append(layers, layer)
		}
		img, err := a.image(config, layers, names)
		return []Image{img}, err
	}
	var out []Image
	for _, d := range doc.Manifests {
		if p := d.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			continue
		}
		entry, err := blob(d.Digest)
		if err != nil {
			return nil, err
		}
		own := names
		if n := cmp.Or(d.Annotations["io.containerd.image.name"], d.Annotations["org.opencontainers.image.ref.name"]); n != "" {
			own = []string{n}
		}
		images, err := a.ociImages(entry, own, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, images...)
	}
	return out, nil
}

var digestShape = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func blob(digest string) (string, error) {
	if !digestShape.MatchString(digest) {
		return "", fmt.Errorf("%w: digest %q", ErrFormat, digest)
	}
	return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:"), nil
}

func (a *Archive) image(config string, layers, names []string) (Image, error) {
	img := Image{Names: names, layers: layers}
	data, err := a.document(config, &img.Config)
	if err != nil {
		return img, err
	}
	if len(img.Config.RootFS.DiffIDs) != len(layers) {
		return img, fmt.Errorf("%w: %d layers, but %d digests of layers", ErrFormat, len(layers), len(img.Config.RootFS.DiffIDs))
	}
	if os := img.Config.OS; os != "" && os != "linux" {
		return img, fmt.Errorf("the image is for %s, not linux", os)
	}
	if arch := img.Config.Architecture; arch != "" && arch != runtime.GOARCH {
		return img, fmt.Errorf("the image is for %s, not %s", arch, runtime.GOARCH)
	}
	img.ID = sum(data)
	return img, nil
}

// Label returns the value of a label, or "".
func (i Image) Label(label string) string { return i.Config.Config.Labels[label] }

// Env returns the image's variables as NAME=VALUE.
func (i Image) Env() []string { return slices.Clone(i.Config.Config.Env) }

// local cleans an entry's name; ok is false if it leads outside.
func local(name string) (string, bool) {
	name = path.Clean("/" + filepath.ToSlash(name))[1:]
	return cmp.Or(name, "."), !strings.Contains(name, "\x00")
}
