package events

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/gofrs/flock"
)

// Append adds one event to a log that no [Log] has open, and makes the file, readable by its owner only, if there is none.
// Processes that append at the same time wait for each other. The error matches [ErrBroken] if the chain does not hold.
func Append(path, run string, mask func([]byte) []byte, p Payload) (err error) {
	lock := flock.New(path + ".lock")
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("lock event log: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open event log: %w", err)
	}
	list, head, err := Read(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	l := &Log{file: file, run: run, mask: mask, now: time.Now, seq: int64(len(list)), prev: head}
	l.emit(p)
	return l.Close()
}

// ReadFile reads a log by its path as [Read] does. A log that is not there is an empty one.
func ReadFile(path string) ([]Event, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open event log: %w", err)
	}
	defer file.Close()
	list, _, err := Read(file)
	return list, err
}
