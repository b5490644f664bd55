// Package events is the record of a run: typed events, one JSON line each, chained by hashes so that a removed or
// altered line shows, and masked at the source.
//
// A [Log] writes them as they happen, and hands each to a sink, which is how the terminal shows a run without the
// loop knowing of terminals. [Read] and [Verify] read a log back; a log can be read while it is written.
//
// The package is a leaf: anyone may import it, and it imports nothing of the house.
package events

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Payload is the typed content of an event. Each type has one fixed name, its Kind.
type Payload interface{ Kind() string }

// Event is one line of a log.
type Event struct {
	Seq  int64           `json:"seq"`  // from 1, without gaps
	Time time.Time       `json:"time"` // UTC
	Run  string          `json:"run"`
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
	Prev string          `json:"prev"` // SHA-256 of the line before, hex; empty in the first
}

// ErrBroken matches the error of a log whose chain does not hold.
var ErrBroken = errors.New("event log broken")

// maxLine bounds a line that is read back; the agent's messages are cut far below it when they are written.
const maxLine = 4 << 20

// A Log appends events to a file. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	file *os.File
	run  string
	mask func([]byte) []byte
	sink func(Payload)
	now  func() time.Time
	seq  int64
	prev string
	err  error
}

// Create makes the log file, which must not exist, readable by its owner only. sink, if not nil, is called with every payload after it
// is written, one at a time. mask is
// applied to each payload's JSON before it is written (a Redactor's Bytes); a payload given to sink is as it came.
func Create(path, run string, mask func([]byte) []byte, sink func(Payload)) (*Log, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create event log: %w", err)
	}
	return newLog(file, run, mask, sink), nil
}

func newLog(file *os.File, run string, mask func([]byte) []byte, sink func(Payload)) *Log {
	if sink == nil {
		sink = func(Payload) {}
	}
	return &Log{file: file, run: run, mask: mask, sink: sink, now: time.Now}
}

// Emit writes one event. A failure to write is kept and returned by Close: a full disk must not stop the clean-up of a run.
func (l *Log) Emit(p Payload) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.emit(p)
	l.sink(p)
}

func (l *Log) emit(p Payload) {
	if l.err != nil {
		return
	}
	data, err := json.Marshal(p)
	if err != nil {
		l.err = fmt.Errorf("encode event %s: %w", p.Kind(), err)
		return
	}
	line, err := json.Marshal(Event{l.seq + 1, l.now().UTC(), l.run, p.Kind(), l.mask(data), l.prev})
	if err != nil {
		l.err = fmt.Errorf("encode event %s: %w", p.Kind(), err)
		return
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		l.err = fmt.Errorf("write event log: %w", err)
		return
	}
	l.seq++
	l.prev = hash(line)
}

// Head returns the number of events and the hash of the last one: what a receipt pins.
func (l *Log) Head() (seq int64, hash string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq, l.prev
}

// Err returns the first error of writing, after which nothing more is written.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close syncs and closes the file, and returns the first error of writing, if any.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.err, l.file.Sync(), l.file.Close())
}

func hash(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// Read returns the events of a log and the hash of its last line. It checks the chain as it goes: the error matches
// [ErrBroken] at the first line that does not follow, and the events before it are returned with it. A last line
// without an end, as a killed writer leaves it, is left out.
func Read(r io.Reader) (list []Event, head string, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(in)
		if err == io.EOF {
			return list, head, nil
		}
		if err != nil {
			return list, head, err
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return list, head, fmt.Errorf("%w: line %d: %w", ErrBroken, len(list)+1, err)
		}
		if e.Seq != int64(len(list)+1) || e.Prev != head {
			return list, head, fmt.Errorf("%w: line %d does not follow the line before it", ErrBroken, len(list)+1)
		}
		list, head = append(list, e), hash(line)
	}
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > maxLine:
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", ErrBroken, maxLine)
		}
	}
}
