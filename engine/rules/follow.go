package rules

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// followEvery is how soon a decision is seen by a follower.
const followEvery = 100 * time.Millisecond

// A follower reads what is appended to the file of a log, which is replaced when it is made smaller and goes with a reset.
type follower struct {
	path string
	file *os.File
	at   int64     // read so far
	part []byte    // a line without its end
	last time.Time // of the newest decision given
	// again: the file has taken the place of one that was read, and may begin with decisions that were given already. Elsewhere
	// the times mean nothing: a clock can be set back.
	again bool
}

// Follow gives each decision that is written from now on to each, until ctx is done, each fails, or the log cannot be
// read; it returns the reason. The daemon may end and start, and the log may be made smaller or removed meanwhile.
func (l *Log) Follow(ctx context.Context, each func(Entry) error) error {
	f := &follower{path: l.path, last: time.Now().UTC()}
	defer f.close()
	if err := f.open(); err != nil {
		return err
	}
	if f.file != nil {
		end, err := f.file.Seek(0, io.SeekEnd)
		if err != nil {
			return fmt.Errorf("policy log: %w", err)
		}
		f.at = end
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if err := f.step(each); err != nil {
			return err
		}
	}
}

// step gives what has come.
func (f *follower) step(each func(Entry) error) error {
	if f.file != nil {
		if err := f.read(each); err != nil { // to its end first, also when it has been replaced
			return err
		}
		if f.current() {
			return nil
		}
		f.close()
		f.again = true
	}
	if err := f.open(); err != nil || f.file == nil {
		return err
	}
	err := f.read(each)
	f.again = false
	return err
}

func (f *follower) open() error {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("policy log: %w", err)
	}
	f.file, f.at, f.part = file, 0, nil
	return nil
}

func (f *follower) close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

// current reports whether the open file is still the log.
func (f *follower) current() bool {
	have, err1 := f.file.Stat()
	now, err2 := os.Stat(f.path)
	return err1 == nil && err2 == nil && os.SameFile(have, now) && now.Size() >= f.at
}

func (f *follower) read(each func(Entry) error) error {
	in := bufio.NewReader(io.NewSectionReader(f.file, f.at, 1<<62))
	for {
		piece, err := in.ReadSlice('\n')
		f.at += int64(len(piece))
		if len(f.part) <= maxLine { // what is longer is no line of ours
			f.part = append(f.part, piece...)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return fmt.Errorf("policy log: %w", err)
		}
		line := bytes.Clone(f.part)
		f.part = f.part[:0]
		var e Entry
		if json.Unmarshal(line, &e) != nil || e.Host == "" || f.again && !e.Time.After(f.last) {
			continue
		}
		f.last = e.Time
		if err := each(e); err != nil {
			return err
		}
	}
}

// Line is the entry as "policy log --follow" prints it: one line, in local time.
func (e Entry) Line(local *time.Location) string {
	verdict := "blocked"
	if e.Allowed {
		verdict = "allowed"
	}
	line := fmt.Sprintf("%s   %s   %s   %s   %s", e.Time.In(local).Format("15:04:05 02-Jan"), e.Sandbox, verdict, e.Host, e.Type)
	if e.Method != "" {
		line += "   " + e.Method
	}
	if e.Path != "" {
		line += " " + e.Path
	}
	return line + "   " + e.Reason
}
