package engine

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sbxpair/sbxpair/engine/statefile"
)

// ErrDisk matches the error for a sandbox whose disk cannot be kept: written out, holes and all, it is larger than it may be.
var ErrDisk = errors.New("its disk is too large to be kept")

// saveDisk writes what the sandbox changed outside its workspaces beside its record; the old one stays until it is whole.
func (e *Engine) saveDisk(ctx context.Context, r Record) error {
	tmp := e.upperTar(r.Name) + ".new"
	if err := os.Remove(tmp); err != nil && !os.IsNotExist(err) {
		return err
	}
	takeBack := lendMemory(cgroupRoot, r)
	err := e.dumpDisk(ctx, r, tmp)
	if err == nil {
		err = statefile.Sync(tmp) // or a power cut could leave the new name without its content
	}
	if err != nil {
		takeBack()
		return errors.Join(fmt.Errorf("save the disk: %w", err), os.RemoveAll(tmp))
	}
	return os.Rename(tmp, e.upperTar(r.Name))
}

// dumpDisk has gVisor write the disk into a pipe and not into the file: a file of the sandbox may be one hole of a thousand
// times its limit, which gVisor fills with zeros, and goes on filling when nobody waits for it any more.
func (e *Engine) dumpDisk(ctx context.Context, r Record, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() {
		err := copyDisk(f, read, diskLimit(r))
		read.Close() // gVisor must not go on
		copied <- err
	}()
	err = e.runscWith(ctx, saveTimeout, r, []*os.File{write}, "tar", "rootfs-upper", "--file=/proc/self/fd/3", containerID(r.ID))
	write.Close()
	if err != nil {
		read.Close()
	}
	if copyErr := <-copied; copyErr != nil && !errors.Is(copyErr, os.ErrClosed) {
		return copyErr // gVisor's own error follows from it
	}
	return errors.Join(err, f.Close())
}

// diskSize is how many bytes of a stopped sandbox's disk a start reads in.
func (e *Engine) diskSize(name string) int64 {
	fi, err := os.Stat(e.upperTar(name))
	if err != nil {
		return 0
	}
	return fi.Size()
}

// diskGiB is the most that a sandbox may hold outside of its workspaces.
func diskGiB(r Record) int { return cmp.Or(r.DiskGiB, 1) }

func diskLimit(r Record) int64 { return int64(diskGiB(r)) << 30 }

// copyDisk copies an archive to its end if its files come to no more than limit bytes: it could not be unpacked again.
func copyDisk(to io.Writer, from io.Reader, limit int64) error {
	w := bufio.NewWriterSize(to, 256<<10)
	tr := tar.NewReader(io.TeeReader(bufio.NewReaderSize(from, 256<<10), w))
	for left := limit; ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return w.Flush()
		}
		if err != nil {
			return err
		}
		if left -= h.Size; left < 0 {
			return fmt.Errorf("%w: with %s its files come to more than %d GiB, holes included; remove some of them, or the sandbox", ErrDisk, h.Name, limit>>30)
		}
	}
}
