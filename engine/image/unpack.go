package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of an unpacked image.
const (
	maxFiles = 4 << 20
	maxBytes = 64 << 30
	maxLinks = 40 // links followed for one name
)

// The names by which a layer takes away what lower ones hold.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// Unpack applies the image's layers, lowest first, to the empty folder dir, and returns the bytes of its files. Each layer
// must have the digest that the configuration gives it. With owners, files get their owners' numbers; else all are ours.
func (a *Archive) Unpack(ctx context.Context, img Image, dir string, owners bool) (int64, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	room, err := Room(dir)
	if err != nil {
		return 0, err
	}
	u := &unpacker{root: root, owners: owners, modes: map[string]fs.FileMode{}, room: room}
	for i, name := range img.layers {
		err := a.Layer(ctx, img, i, func(r io.Reader) error { return u.layer(r) })
		if err != nil {
			return 0, fmt.Errorf("layer %s: %w", name, err)
		}
	}
	for name, mode := range u.modes { // folders are closed when all is in them
		if fi, err := root.Lstat(name); err != nil || !fi.IsDir() {
			continue // a later layer has something else there
		}
		if err := root.Chmod(name, mode); err != nil {
			return 0, err
		}
	}
	return u.bytes, nil
}

// spare is what is left free on the file system that an image goes to.
const spare = 1 << 30

// Room returns how many bytes an image may take in the folder dir. An archive of a few kilobytes can hold any number of them:
// packed, or as the holes of a file.
func Room(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	free := min(st.Bavail, math.MaxInt64>>20) * uint64(st.Bsize)
	return min(maxBytes, int64(free)-spare), nil
}

// ErrRoom matches the error for an image that takes more than there is room for.
var ErrRoom = errors.New("the image is too large for the disk it goes to")

// Limit, for what is not unpacked, returns a writer to w that takes room bytes and no more; its error then matches ErrRoom.
func Limit(w io.Writer, room int64) io.Writer { return &limited{w, room} }

type limited struct {
	w    io.Writer
	room int64
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.room {
		return 0, ErrRoom
	}
	n, err := l.w.Write(p)
	l.room -= int64(n)
	return n, err
}

// Layers returns the number of layers.
func (i Image) Layers() int { return len(i.layers) }

// Layer reads one layer, uncompressed, and then checks its digest.
func (a *Archive) Layer(ctx context.Context, img Image, i int, read func(io.Reader) error) error {
	section, err := a.open(img.layers[i])
	if err != nil {
		return err
	}
	plain, err := decompress(section)
	if err != nil {
		return err
	}
	h := sha256.New()
	tee := io.TeeReader(&bounded{ctx, plain, maxBytes}, h)
	if err := read(tee); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != img.Config.RootFS.DiffIDs[i] {
		return fmt.Errorf("%w: its content is %s, not %s", ErrFormat, got, img.Config.RootFS.DiffIDs[i])
	}
	return nil
}

// decompress tells by the first bytes how a layer is packed.
func decompress(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, _ := b.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, errors.New("it is compressed with zstd, which is not supported; save the image with docker save")
	}
	return b, nil
}

// bounded reads until ctx is done or more than left bytes came.
type bounded struct {
	ctx  context.Context
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, ErrRoom
	}
	return n, err
}

// An unpacker applies layers to a folder. The root keeps every path inside; links are resolved as a program in the image
// would see them, so that a layer may write through a link that a lower one made.
type unpacker struct {
	root   *os.Root
	owners bool
	modes  map[string]fs.FileMode // of folders, set at the end
	files  int
	bytes  int64
	room   int64 // most bytes of files
}

func (u *unpacker) layer(r io.Reader) error {
	mine := map[string]bool{} // paths that this layer made: an opaque mark takes away those of lower layers only
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if u.files++; u.files > maxFiles {
			return errors.New("too many files")
		}
		if err := u.entry(h, tr, mine); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

func (u *unpacker) entry(h *tar.Header, content io.Reader, mine map[string]bool) error {
	name, ok := local(h.Name)
	if !ok {
		return errors.New("bad name")
	}
	if name == "." {
		return nil // the root's own mode is ours
	}
	dir, err := u.resolve(path.Dir(name), 0)
	if err != nil {
		return err
	}
	base := path.Base(name)
	if base == opaque {
		return u.clear(dir, mine)
	}
	if gone, ok := strings.CutPrefix(base, whiteout); ok {
		if gone == "" || gone == "." || gone == ".." {
			return errors.New("bad whiteout")
		}
		return u.root.RemoveAll(path.Join(dir, gone))
	}
	if err := u.makeDirs(dir); err != nil {
		return err
	}
	at := path.Join(dir, base)
	mine[at] = true
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag != tar.TypeDir {
		if err := u.root.RemoveAll(at); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.makeDir(at); err != nil {
			return err
		}
		if h.Mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		u.modes[at] = mode
	case tar.TypeReg:
		if h.Size > u.room-u.bytes { // before a byte is written
			return ErrRoom
		}
		if err := u.file(at, mode, content); err != nil {
			return err
		}
		u.root.Chtimes(at, h.ModTime, h.ModTime) // a time that cannot be kept is no failure
	case tar.TypeSymlink:
		if err := u.root.Symlink(h.Linkname, at); err != nil {
			return err
		}
	case tar.TypeLink:
		target, ok := local(h.Linkname)
		if !ok {
			return errors.New("bad link")
		}
		parent, err := u.resolve(path.Dir(target), 0)
		if err != nil {
			return err
		}
		return u.root.Link(path.Join(parent, path.Base(target)), at)
	default:
		return nil // devices and FIFOs: a sandbox has its own /dev
	}
	if u.owners {
		return u.root.Lchown(at, h.Uid, h.Gid)
	}
	return nil
}

// resolve follows the links in the path of a folder as if the root were /, and returns a path without any. What does not
// exist yet is taken as it is.
func (u *unpacker) resolve(dir string, followed int) (string, error) {
	at := "."
	rest := strings.Split(dir, "/")
	for i, part := range rest {
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		fi, err := u.root.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) || err == nil && fi.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if err != nil {
			return "", err
		}
		if followed++; followed > maxLinks {
			return "", errors.New("too many links")
		}
		target, err := u.root.Readlink(next)
		if err != nil {
			return "", err
		}
		if !path.IsAbs(target) {
			target = path.Join("/", at, target)
		}
		return u.resolve(path.Join(append([]string{path.Clean(target)[1:]}, rest[i+1:]...)...), followed)
	}
	return at, nil
}

// makeDirs makes a folder that no entry named, and those above it.
func (u *unpacker) makeDirs(dir string) error {
	if dir == "." {
		return nil
	}
	if fi, err := u.root.Lstat(dir); err == nil && fi.IsDir() {
		return nil
	}
	if err := u.makeDirs(path.Dir(dir)); err != nil {
		return err
	}
	u.modes[dir] = 0o755
	return u.makeDir(dir)
}

// makeDir makes a folder that we can write in, in the place of a file or link if need be.
func (u *unpacker) makeDir(at string) error {
	fi, err := u.root.Lstat(at)
	if err == nil && fi.IsDir() {
		return nil
	}
	if err == nil {
		if err := u.root.Remove(at); err != nil {
			return err
		}
	}
	return u.root.Mkdir(at, 0o700)
}

func (u *unpacker) file(at string, mode fs.FileMode, content io.Reader) error {
	f, err := u.root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	u.bytes += n
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// clear removes what lower layers put in a folder.
func (u *unpacker) clear(dir string, mine map[string]bool) error {
	f, err := u.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		at := path.Join(dir, n)
		if !mine[at] {
			if err := u.root.RemoveAll(at); err != nil {
				return err
			}
			continue
		}
		if fi, err := u.root.Lstat(at); err == nil && fi.IsDir() { // named by this layer, but what is in it may be older
			if err := u.clear(at, mine); err != nil {
				return err
			}
		}
	}
	return nil
}
