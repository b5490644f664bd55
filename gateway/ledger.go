package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// Entry is one line of the ledger: one call that reached a provider, or was refused.
type Entry struct {
	At     time.Time `json:"at"`
	Batch  string    `json:"batch,omitempty"`
	Run    string    `json:"run"`
	API    API       `json:"api"`
	Model  string    `json:"model,omitempty"`
	Status int       `json:"status"` // of the provider's answer; 0 if there was none
	Usage
	USD     float64 `json:"usd"`
	TookMS  int64   `json:"took_ms"`
	Refused string  `json:"refused,omitempty"` // why the gateway did not let the call through
}

// Spent is a sum of entries.
type Spent struct {
	Calls  int     `json:"calls"` // that reached a provider
	Input  int64   `json:"input"`
	Cached int64   `json:"cached"`
	Output int64   `json:"output"`
	USD    float64 `json:"usd"`
}

func (s *Spent) add(e Entry) {
	if e.Refused != "" {
		return
	}
	s.Calls++
	s.Input += e.Input
	s.Cached += e.Cached
	s.Output += e.Output
	s.USD += e.USD
}

// Ledger is a file with a line for each call, which several processes write to and read from: what a batch of runs has
// spent is one sum, and a run that is resumed by another process goes on with its own. Safe for concurrent use.
type Ledger struct {
	path string
	lock *flock.Flock

	mu      sync.Mutex
	read    int64 // how far the file is summed up
	runs    map[string]Spent
	batches map[string]Spent
}

// ErrLedger matches errors of a ledger that cannot be read or written. No call goes through without its line.
var ErrLedger = errors.New("the ledger of model calls cannot be kept")

// OpenLedger opens the ledger in the file, which is made with mode 0600 if it is not there.
func OpenLedger(path string) (*Ledger, error) {
	l := &Ledger{path: path, lock: flock.New(path + ".lock"), runs: map[string]Spent{}, batches: map[string]Spent{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLedger, err)
	}
	return l, l.sync(nil)
}

// Append writes the entry to the disk.
func (l *Ledger) Append(e Entry) error { return l.sync(&e) }

// Sum returns what the run and the batch have spent by now, in all processes.
func (l *Ledger) Sum(run, batch string) (ofRun, ofBatch Spent, err error) {
	err = l.sync(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[run], l.batches[batch], err
}

// maxLine is far above what an entry takes.
const maxLine = 64 << 10

// sync reads what others have written since, and appends e if there is one.
func (l *Ledger) sync(e *Entry) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrLedger, err)
		}
	}()
	if err := l.lock.Lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.lock.Unlock()) }()
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Seek(l.read, io.SeekStart); err != nil {
		return err
	}
	news, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	// A line that a crash cut off has no end and never counts; it is ended here, so that the next one stands by itself.
	if cut := bytes.LastIndexByte(news, '\n') + 1; cut < len(news) {
		if _, err := f.Write([]byte("\n")); err != nil {
			return err
		}
		news = append(news, '\n')
	}
	for line := range bytes.Lines(news) {
		var old Entry
		if len(line) <= maxLine && json.Unmarshal(line, &old) == nil {
			l.count(old)
		}
	}
	l.read += int64(len(news))
	if e == nil {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if _, err := f.Write(line); err != nil {
		return err
	}
	l.read += int64(len(line))
	l.count(*e)
	return nil
}

func (l *Ledger) count(e Entry) {
	run, batch := l.runs[e.Run], l.batches[e.Batch]
	run.add(e)
	batch.add(e)
	l.runs[e.Run], l.batches[e.Batch] = run, batch
}
