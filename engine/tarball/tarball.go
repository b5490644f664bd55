// Package tarball packs and places what cp carries between host and sandbox. Both ends use it, and each treats the
// other's archive as hostile: nothing is written outside the destination, and nothing but files, folders and links is made.
package tarball

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// root is the name of the archive's first entry: the copied file or folder itself, whose real name does not travel.
const root = "."

// ErrNoFolder matches the error for a destination whose folder does not exist.
var ErrNoFolder = errors.New("no such directory")

// ErrNotFolder matches the error for a folder copied onto something that is none.
var ErrNotFolder = errors.New("cannot copy directory: destination is not a directory")

// ErrKind matches the error for something to copy that is neither a file nor a folder nor a link.
var ErrKind = errors.New("only files, folders and links can be copied")

// LeftOut is what was not packed because it is neither a file nor a folder nor a link: sockets, FIFOs and devices.
type LeftOut struct {
	N     int
	Names []string // the first few, relative to what was packed
}

// maxNames is how many of those are named.
const maxNames = 5

func (l *LeftOut) add(name string) {
	if l.N++; len(l.Names) < maxNames {
		l.Names = append(l.Names, name)
	}
}

// String is "" if nothing was left out.
func (l LeftOut) String() string {
	if l.N == 0 {
		return ""
	}
	text := fmt.Sprintf("left out, for they are neither files, folders nor links: %q", l.Names)
	if more := l.N - len(l.Names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Write packs the file or folder at src; symbolic links are packed as links. Sockets, FIFOs and devices below src are left
// out. What is packed is below src whatever becomes of it meanwhile: a sandbox may own the folder.
func Write(w io.Writer, src string) (left LeftOut, err error) {
	tw := tar.NewWriter(w)
	base := filepath.Clean(src)
	fi, err := os.Lstat(base)
	if err != nil {
		return left, err
	}
	switch {
	case fi.IsDir():
		err = addFolder(tw, base, &left)
	case fi.Mode().IsRegular() || fi.Mode()&fs.ModeSymlink != 0:
		err = add(tw, root, fi, func() (string, error) { return os.Readlink(base) }, func() (*os.File, error) {
			return os.OpenFile(base, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		})
	default:
		err = fmt.Errorf("%s: %w", src, ErrKind)
	}
	if err != nil {
		return left, err
	}
	return left, tw.Close()
}

func addFolder(tw *tar.Writer, base string, left *LeftOut) error {
	at, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer at.Close()
	return fs.WalkDir(at.FS(), root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if !fi.Mode().IsRegular() && !fi.IsDir() && fi.Mode()&fs.ModeSymlink == 0 {
			left.add(p)
			return nil
		}
		return add(tw, p, fi, func() (string, error) { return at.Readlink(p) }, func() (*os.File, error) {
			return at.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
		})
	})
}

// add packs one entry that was fi when it was looked at. open must not wait: by then it may be a pipe.
func add(tw *tar.Writer, name string, fi fs.FileInfo, readlink func() (string, error), open func() (*os.File, error)) error {
	var link string
	var err error
	if fi.Mode()&fs.ModeSymlink != 0 {
		if link, err = readlink(); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Uid, h.Gid = name, "", "", 0, 0
	if !fi.Mode().IsRegular() {
		return tw.WriteHeader(h)
	}
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(fi, now) {
		return errors.Join(err, fmt.Errorf("%s was replaced while it was copied", fi.Name()))
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	// The header promises the size seen before: a file that grows is cut there, one that shrank is an error.
	_, err = io.CopyN(tw, f, h.Size)
	return err
}

// A Reader is an archive whose first entry has been read.
type Reader struct {
	tr    *tar.Reader
	first *tar.Header
}

// NewReader reads the archive's first entry.
func NewReader(r io.Reader) (*Reader, error) {
	tr := tar.NewReader(r)
	h, err := next(tr)
	if err != nil {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	if path.Clean(h.Name) != root {
		return nil, errors.New("read archive: does not start with its root")
	}
	return &Reader{tr, h}, nil
}

// next returns the next entry; a pax header for the whole archive, which git and others put first, is none (sbx-go-sdk
// commit 3ed94bd, field report R132).
func next(tr *tar.Reader) (*tar.Header, error) {
	for {
		h, err := tr.Next()
		if err != nil || h.Typeflag != tar.TypeXGlobalHeader {
			return h, err
		}
	}
}

// Dir reports whether the archive holds a folder.
func (r *Reader) Dir() bool { return r.first.Typeflag == tar.TypeDir }

// Place unpacks at dst as docker cp decides: if dst is a folder, what was copied goes into it under the name base (with
// contents: its contents do); else it becomes dst, whose parent must exist.
func Place(r *Reader, dst, base string, contents bool) error {
	fi, err := os.Stat(dst)
	exists := err == nil
	slash := strings.HasSuffix(dst, "/") || strings.HasSuffix(dst, "/.")
	switch {
	case exists && fi.IsDir():
		if contents && r.Dir() {
			return extract(r, dst, root)
		}
		return extract(r, dst, base)
	case exists && r.Dir():
		return fmt.Errorf("%w: %s", ErrNotFolder, dst)
	case exists && slash:
		return fmt.Errorf("%s is not a directory", dst)
	case !exists && slash && !r.Dir():
		return fmt.Errorf("%w: %s", ErrNoFolder, dst)
	}
	parent, name := filepath.Split(filepath.Clean(dst))
	if parent == "" {
		parent = "."
	}
	if fi, err := os.Stat(parent); err != nil || !fi.IsDir() {
		return fmt.Errorf("%w: %s", ErrNoFolder, filepath.Clean(parent))
	}
	return extract(r, parent, name)
}

// extract unpacks below dir with the archive's root named name. An os.Root keeps every path inside, whatever links the
// archive or the folder holds.
func extract(r *Reader, dir, name string) error {
	if name != root && (name == "" || name == ".." || strings.ContainsRune(name, '/')) {
		return fmt.Errorf("bad file name %q", name)
	}
	at, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer at.Close()
	if r.Dir() && name != root { // a link in the archive must not even lead to the copy's siblings
		if err := makeDir(at, name); err != nil {
			return err
		}
		inner, err := at.OpenRoot(name)
		if err != nil {
			return err
		}
		defer inner.Close()
		if err := unpack(r, inner, root); err != nil {
			return err
		}
		return at.Chmod(name, fs.FileMode(r.first.Mode).Perm())
	}
	return unpack(r, at, name)
}

// unpack writes the entries below at, with the archive's root named name.
func unpack(r *Reader, at *os.Root, name string) error {
	type chmod struct {
		name string
		mode fs.FileMode
	}
	var later []chmod // a folder that we may not write is closed when it is complete
	for h := r.first; ; {
		rel := path.Clean(h.Name)
		if !filepath.IsLocal(rel) {
			return fmt.Errorf("archive entry %q leads outside", h.Name)
		}
		p := path.Join(name, rel)
		mode := fs.FileMode(h.Mode).Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			if err := makeDir(at, p); err != nil {
				return err
			}
			if p != root {
				later = append(later, chmod{p, mode})
			}
		case tar.TypeReg:
			if err := makeFile(at, p, mode, r.tr); err != nil {
				return err
			}
			at.Chtimes(p, h.ModTime, h.ModTime) // a time that cannot be kept is no failure of the copy
		case tar.TypeSymlink:
			if err := place(at, p, func(tmp string) error { return at.Symlink(h.Linkname, tmp) }); err != nil {
				return err
			}
		default:
			return fmt.Errorf("archive entry %q is of a kind we do not copy", h.Name)
		}
		var err error
		if h, err = next(r.tr); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
	}
	for _, c := range later {
		if err := at.Chmod(c.name, c.mode); err != nil {
			return err
		}
	}
	return nil
}

func makeDir(at *os.Root, p string) error {
	if p == root {
		return nil
	}
	if fi, err := at.Lstat(p); err == nil && !fi.IsDir() {
		if st, err := at.Stat(p); err == nil && st.IsDir() {
			return nil // a link to a folder below the same root
		}
		return fmt.Errorf("cannot overwrite non-directory %q with directory", p)
	}
	if err := at.Mkdir(p, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// place puts what make made under another name beside p in p's place, all at once: a copy that is cut off leaves what was
// there. A folder is never replaced.
func place(at *os.Root, p string, make func(tmp string) error) error {
	if fi, err := at.Lstat(p); err == nil && fi.IsDir() {
		return fmt.Errorf("cannot overwrite directory %q with non-directory", p)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmp := path.Join(path.Dir(p), ".sbx-cp-"+rand.Text())
	err := make(tmp)
	if err == nil {
		err = at.Rename(tmp, p)
	}
	if err != nil {
		at.Remove(tmp)
	}
	return err
}

func makeFile(at *os.Root, p string, mode fs.FileMode, r io.Reader) error {
	return place(at, p, func(tmp string) error {
		f, err := at.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Chmod(mode), f.Close())
	})
}
