package engine

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/engine/image"
	"github.com/sbxpair/sbxpair/engine/statefile"
)

// HostTemplate names the root that needs no template: the host's system folders under a writable layer.
const HostTemplate = "host"

// Errors about templates.
var (
	ErrNoTemplate = errors.New("no such template")
	ErrRunning    = errors.New("cannot save a running sandbox")
)

// A Template is what new sandboxes can start from: the disk of one that was saved, an image that was loaded, or both.
type Template struct {
	ID         string    `json:"id"` // hex
	Repository string    `json:"repository"`
	Tag        string    `json:"tag"`
	Flavor     string    `json:"flavor"` // the agent of the sandbox it was saved from; "image" for one that was loaded
	CreatedAt  time.Time `json:"created_at"`
	Size       int64     `json:"size"`            // bytes
	Image      string    `json:"image,omitempty"` // id of the image below; "" is the host's system folders
	Env        []string  `json:"env,omitempty"`   // of the image
	Upper      bool      `json:"upper,omitempty"` // there is a disk

	folder  string // its name
	damaged bool   // no more is known of it
}

// Ref is the template's name, REPOSITORY:TAG.
func (t Template) Ref() string { return t.Repository + ":" + t.Tag }

var refShape = regexp.MustCompile(`^[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::[0-9]+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$`)

// parseRef splits REPOSITORY[:TAG]; no tag is latest.
func parseRef(ref string) (repository, tag string, err error) {
	if len(ref) > 255 || !refShape.MatchString(ref) {
		return "", "", fmt.Errorf("invalid template name %q: give NAME:TAG in lower case", ref)
	}
	i := strings.LastIndexByte(ref, ':')
	if i < 0 || strings.Contains(ref[i:], "/") {
		return ref, "latest", nil
	}
	return ref[:i], ref[i+1:], nil
}

func (s *State) templates() string { return filepath.Join(s.Dir, "templates") }
func (s *State) images() string    { return filepath.Join(s.Dir, "images") }

// templateDir is where a template lies: one folder a name.
func (s *State) templateDir(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return filepath.Join(s.templates(), hex.EncodeToString(sum[:8]))
}

func (s *State) imageRoot(id string) string { return filepath.Join(s.images(), id, "rootfs") }

// lockTemplates serialises changes of templates and images, and the moment in which a new sandbox claims one.
func (e *Engine) lockTemplates(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(e.State.Dir, "locks"), 0o700); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(e.State.Dir, "locks", "templates"))
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if _, err := l.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return nil, fmt.Errorf("another command works on the templates: %w", err)
	}
	return func() { l.Unlock() }, nil
}

// Templates lists what was saved and loaded, newest first.
func (e *Engine) Templates() ([]Template, error) {
	entries, err := os.ReadDir(e.State.templates())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Template
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), tmpPrefix) || !entry.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(e.State.templates(), entry.Name(), "template.json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // just being removed
		}
		if err != nil {
			return nil, err
		}
		var t Template
		if json.Unmarshal(data, &t) != nil || t.ID == "" { // it must not keep anybody from the others
			t = Template{ID: entry.Name(), Repository: "damaged", Tag: entry.Name(), damaged: true}
		}
		t.folder = entry.Name()
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b Template) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.Ref(), b.Ref()))
	})
	return list, nil
}

// FindTemplate finds a template by its name or by the start of its id (12 digits or more); the error matches ErrNoTemplate.
func (e *Engine) FindTemplate(ref string) (Template, error) {
	list, err := e.Templates()
	if err != nil {
		return Template{}, err
	}
	if repository, tag, err := parseRef(ref); err == nil {
		folder := filepath.Base(e.State.templateDir(repository + ":" + tag))
		for _, t := range list {
			if t.folder == folder || t.Repository == repository && t.Tag == tag {
				return t, nil
			}
		}
	}
	for _, t := range list {
		if len(ref) >= shortID && strings.HasPrefix(t.ID, strings.TrimPrefix(ref, "sha256:")) {
			return t, nil
		}
	}
	return Template{}, fmt.Errorf("%w: %s", ErrNoTemplate, ref)
}

// shortID is the length of an id as people see it.
const shortID = 12

// Short returns the id as people see it.
func (t Template) Short() string { return t.ID[:min(len(t.ID), shortID)] }

// tmpPrefix marks folders that are being filled.
const tmpPrefix = ".tmp-"

// SaveTemplate keeps the disk of a stopped sandbox as a template, over one of the same name. Workspaces are no part of it;
// rules and secrets neither. The error matches ErrRunning if it is not stopped.
func (e *Engine) SaveTemplate(ctx context.Context, name, ref string) (Template, error) {
	repository, tag, err := parseRef(ref)
	if err != nil {
		return Template{}, err
	}
	unlock, err := e.lock(ctx, name)
	if err != nil {
		return Template{}, err
	}
	defer unlock()
	r, err := e.load(name)
	switch {
	case err != nil:
		return Template{}, err
	case r.Status == Stopping: // by a command that died
		if err := e.end(ctx, &r); err != nil {
			return Template{}, err
		}
	case r.Status != Stopped && !r.Lost():
		return Template{}, ErrRunning
	}
	t := Template{Repository: repository, Tag: tag, Flavor: r.Agent, CreatedAt: time.Now().UTC(), Image: r.Image, Env: r.ImageEnv, Upper: true}
	return e.keepTemplate(ctx, t, "", func(w io.Writer) error {
		f, err := os.Open(e.upperTar(name))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}

// keepTemplate fills a folder and puts it in its place, and with it the image that was unpacked in the folder fresh, unless
// that is "". upper may be nil.
func (e *Engine) keepTemplate(ctx context.Context, t Template, fresh string, upper func(io.Writer) error) (Template, error) {
	if err := os.MkdirAll(e.State.templates(), 0o700); err != nil {
		return t, err
	}
	tmp, err := os.MkdirTemp(e.State.templates(), tmpPrefix)
	if err != nil {
		return t, err
	}
	defer removeAll(tmp)
	h := sha256.New()
	io.WriteString(h, t.Image)
	if upper != nil {
		f, err := os.OpenFile(filepath.Join(tmp, "disk.tar"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return t, err
		}
		w := bufio.NewWriterSize(f, 256<<10)
		room, err := image.Room(tmp)
		if err == nil {
			err = upper(image.Limit(io.MultiWriter(w, h), room))
		}
		fi, statErr := f.Stat()
		if err := errors.Join(err, w.Flush(), statErr, f.Sync(), f.Close()); err != nil {
			return t, err
		}
		if fi, err = os.Stat(f.Name()); err != nil {
			return t, err
		}
		t.Size += fi.Size()
	}
	t.ID = hex.EncodeToString(h.Sum(nil))
	if upper == nil {
		t.ID = t.Image
	}
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return t, err
	}
	if err := statefile.Replace(filepath.Join(tmp, "template.json"), append(data, '\n'), 0o600); err != nil {
		return t, err
	}
	unlock, err := e.lockTemplates(ctx)
	if err != nil {
		return t, err
	}
	defer unlock()
	if fresh != "" {
		err := os.Rename(fresh, filepath.Join(e.State.images(), t.Image))
		if _, statErr := os.Stat(e.State.imageRoot(t.Image)); statErr != nil { // else it was loaded before, and may be in use
			return t, errors.Join(err, statErr)
		}
	}
	dir := e.State.templateDir(t.Ref())
	if err := errors.Join(removeAll(dir), os.Rename(tmp, dir)); err != nil {
		return t, err
	}
	return t, e.collectImages()
}

// RemoveTemplate removes a template; sandboxes made from it live on. The error matches ErrNoTemplate.
func (e *Engine) RemoveTemplate(ctx context.Context, ref string) (Template, error) {
	unlock, err := e.lockTemplates(ctx)
	if err != nil {
		return Template{}, err
	}
	defer unlock()
	t, err := e.FindTemplate(ref)
	if err != nil {
		return t, err
	}
	if err := removeAll(filepath.Join(e.State.templates(), t.folder)); err != nil {
		return t, err
	}
	return t, e.collectImages()
}

// abandoned is the age at which a folder that was being filled is taken for one that a crash left.
const abandoned = time.Hour

// collectImages removes images that no template and no sandbox needs; the caller holds the lock of the templates.
func (e *Engine) collectImages() error {
	for _, dir := range []string{e.State.templates(), e.State.images()} {
		left, err := filepath.Glob(filepath.Join(dir, tmpPrefix+"*"))
		if err != nil {
			return err
		}
		for _, p := range left {
			if fi, err := os.Stat(p); err == nil && time.Since(fi.ModTime()) > abandoned {
				if err := removeAll(p); err != nil {
					return err
				}
			}
		}
	}
	entries, err := os.ReadDir(e.State.images())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	used := map[string]bool{}
	templates, err := e.Templates()
	if err != nil {
		return err
	}
	for _, t := range templates {
		if t.damaged {
			return nil // it may need any of them
		}
		used[t.Image] = true
	}
	boxes, err := e.all()
	if err != nil {
		return err
	}
	for _, r := range boxes {
		if r.Status == Damaged {
			return nil // it may need any of them
		}
		used[r.Image] = true
	}
	for _, entry := range entries {
		if used[entry.Name()] || strings.HasPrefix(entry.Name(), tmpPrefix) {
			continue
		}
		if err := removeAll(filepath.Join(e.State.images(), entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// baseLabel says in an exported template what its layer lies on.
const baseLabel = "sbx-local.base"

// ExportTemplate writes a template as docker save writes an image. One that lies on the host's system folders holds what
// was changed, and can be loaded by this engine only.
func (e *Engine) ExportTemplate(ctx context.Context, t Template, w io.Writer) error {
	unlock, err := e.lockTemplates(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	out := image.NewWriter(w)
	labels := map[string]string{baseLabel: HostTemplate}
	if t.Image != "" {
		labels = nil
		if err := out.Layer(e.State.templates(), func(w io.Writer) error { return image.FromDir(w, e.State.imageRoot(t.Image)) }); err != nil {
			return err
		}
	}
	if t.Upper {
		f, err := os.Open(filepath.Join(e.State.templateDir(t.Ref()), "disk.tar"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := out.Layer(e.State.templates(), func(w io.Writer) error { return image.FromUpper(w, f) }); err != nil {
			return err
		}
	}
	return out.Close(t.Ref(), t.Env, labels, t.CreatedAt)
}

// LoadTemplates takes in the images of an archive: the output of docker save, an OCI layout in a tar, or an exported template.
func (e *Engine) LoadTemplates(ctx context.Context, path string) ([]Template, error) {
	a, err := image.Open(path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	images, err := a.Images()
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		return nil, errors.New("the archive holds no image for this machine")
	}
	var out []Template
	for _, img := range images {
		if len(img.Names) == 0 {
			img.Names = []string{"image-" + img.ID[:shortID] + ":latest"}
		}
		for _, name := range img.Names {
			t, err := e.loadImage(ctx, a, img, name)
			if err != nil {
				return out, fmt.Errorf("%s: %w", name, err)
			}
			out = append(out, t)
		}
	}
	return out, nil
}

func (e *Engine) loadImage(ctx context.Context, a *image.Archive, img image.Image, name string) (Template, error) {
	repository, tag, err := parseRef(name)
	if err != nil {
		return Template{}, err
	}
	t := Template{Repository: repository, Tag: tag, Flavor: "image", CreatedAt: time.Now().UTC()}
	if img.Label(baseLabel) == HostTemplate {
		if img.Layers() != 1 {
			return t, fmt.Errorf("%w: a template on the host's system folders has one layer", image.ErrFormat)
		}
		t.Flavor, t.Upper = "shell", true
		return e.keepTemplate(ctx, t, "", func(w io.Writer) error {
			return a.Layer(ctx, img, 0, func(r io.Reader) error { return image.ToUpper(w, r) })
		})
	}
	t.Image, t.Env = img.ID, img.Env()
	if err := os.MkdirAll(e.State.images(), 0o700); err != nil {
		return t, err
	}
	fresh, err := os.MkdirTemp(e.State.images(), tmpPrefix)
	if err != nil {
		return t, err
	}
	defer removeAll(fresh)
	root := filepath.Join(fresh, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		return t, err
	}
	if t.Size, err = a.Unpack(ctx, img, root, os.Geteuid() == 0); err != nil {
		return t, err
	}
	return e.keepTemplate(ctx, t, fresh, nil)
}

// claimTemplate finds the template of a new sandbox and gives its disk, if it has one. Until release is called the template
// stays; by then the sandbox's record must name the image.
func (e *Engine) claimTemplate(ctx context.Context, ref string) (t Template, disk *os.File, release func(), err error) {
	if ref == "" || ref == HostTemplate {
		return Template{}, nil, func() {}, nil
	}
	unlock, err := e.lockTemplates(ctx)
	if err != nil {
		return t, nil, nil, err
	}
	t, err = e.FindTemplate(ref)
	if err == nil && t.damaged {
		err = fmt.Errorf("template %s cannot be read: it is damaged; to remove it: sbx template rm --force %s", ref, t.ID)
	}
	if err == nil && t.Upper {
		disk, err = os.Open(filepath.Join(e.State.templateDir(t.Ref()), "disk.tar"))
	}
	if err == nil && t.Image != "" {
		_, err = os.Stat(e.State.imageRoot(t.Image))
	}
	if err != nil {
		unlock()
		return t, nil, nil, err
	}
	return t, disk, unlock, nil
}

// mergeDisk writes a saved disk with the tree's entries in the place of its own.
func (t tree) mergeDisk(w io.Writer, disk io.Reader) error {
	tw := tar.NewWriter(w)
	tr := tar.NewReader(disk)
	have := map[string]bool{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("disk of the template: %w", err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		own, ours := t[name]
		if ours && (!own.mode.IsDir() || h.Typeflag != tar.TypeDir) {
			continue
		}
		if _, gone := t[strings.TrimPrefix(h.Linkname, "./")]; gone && h.Typeflag == tar.TypeLink {
			continue // a second name of a file that we replace
		}
		have[cmp.Or(name, ".")] = true
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
	if err := t.entries(tw, have); err != nil {
		return err
	}
	return tw.Close()
}
