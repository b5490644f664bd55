// Package statefile keeps one value of the engine in one JSON file: read by many processes, changed under a lock, and
// replaced as a whole, so that a reader sees the old value or the new one and a crash leaves one of them.
//
// Readers take no lock. A [File] remembers what it read and reads again when the file's inode, time or size differ, so
// that a change made by a command acts at once in a running daemon.
package statefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// LockTimeout bounds the wait for another process that changes the same file.
const LockTimeout = 30 * time.Second

// maxSize bounds what is read into memory, in bytes.
const maxSize = 64 << 20

// ErrCorrupt matches the error for a file that is not what we wrote. Nothing is assumed in its place.
var ErrCorrupt = errors.New("state file is damaged")

// ErrLocked matches the error after [LockTimeout].
var ErrLocked = errors.New("state file is locked by another process")

// A File is a value of type T on disk. It is safe for concurrent use. A missing file reads as the zero T.
type File[T any] struct {
	path string
	mode fs.FileMode

	mu    sync.Mutex
	seen  stamp
	value *T
}

type stamp struct {
	dev, ino     uint64
	size, sec, n int64
}

// New returns the File at path. Its folder is made with mode 0700 when something is written; the file gets mode.
func New[T any](path string, mode fs.FileMode) *File[T] { return &File[T]{path: path, mode: mode} }

// Path returns where the file is.
func (f *File[T]) Path() string { return f.path }

// Read returns the value. Do not change it: it is shared by all readers. The pointer stays the same for as long as the file does.
func (f *File[T]) Read() (*T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := stat(f.path)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if f.value != nil && now == f.seen {
		return f.value, nil
	}
	value, read, err := load[T](f.path)
	if err != nil {
		return nil, err
	}
	f.value, f.seen = value, read
	return value, nil
}

// Update changes the value under the lock: change gets a copy of its own, read afresh, and what it leaves there is
// written if it returns nil. Its error is returned as it is and leaves the file alone.
func (f *File[T]) Update(ctx context.Context, change func(*T) error) error {
	return f.locked(ctx, func() error {
		value, _, err := load[T](f.path)
		if err != nil {
			return err
		}
		if err := change(value); err != nil {
			return err
		}
		return f.write(value)
	})
}

// Remove deletes the file; that it is not there is success.
func (f *File[T]) Remove(ctx context.Context) error {
	return f.locked(ctx, func() error {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove state: %w", err)
		}
		return nil
	})
}

func (f *File[T]) locked(ctx context.Context, work func() error) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, LockTimeout, ErrLocked)
	defer cancel()
	lock := flock.New(f.path+".lock", flock.SetPermissions(0o600))
	if ok, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil || !ok {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("lock %s: %w", filepath.Base(f.path), err)
	}
	err := work()
	return errors.Join(err, lock.Close())
}

func (f *File[T]) write(value *T) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return Replace(f.path, append(data, '\n'), f.mode)
}

// Replace writes data to path as a whole: a temporary file beside it, synced, then renamed.
func Replace(path string, data []byte, mode fs.FileMode) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(tmp.Name())
			err = fmt.Errorf("write state: %w", err)
		}
	}()
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Chmod(mode)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

// Sync returns when the content of the file or folder at path is on the disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func stat(path string) (stamp, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return stamp{}, nil
	}
	if err != nil {
		return stamp{}, err
	}
	return stampOf(info), nil
}

func stampOf(info fs.FileInfo) stamp {
	t := info.ModTime()
	s := stamp{size: info.Size(), sec: t.Unix(), n: int64(t.Nanosecond())}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino = uint64(sys.Dev), sys.Ino
	}
	return s
}

// load reads the value and the stamp of the very file it read: the path may name another one a moment later.
func load[T any](path string) (*T, stamp, error) {
	value := new(T)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return value, stamp{}, nil
	}
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read state: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read state: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read state: %w", err)
	}
	if len(data) > maxSize {
		return nil, stamp{}, fmt.Errorf("%w: %s is larger than %d bytes", ErrCorrupt, filepath.Base(path), maxSize)
	}
	if err := json.Unmarshal(data, value); err != nil {
		// The decoder's message may quote the content, which can be a secret.
		return nil, stamp{}, fmt.Errorf("%w: %s", ErrCorrupt, filepath.Base(path))
	}
	return value, stampOf(info), nil
}
