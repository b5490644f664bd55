package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// Entry is one line of the ledger. A call that goes to a provider has two: one before it is made, with what its question is
// guessed to use, and one when it has ended, which takes the first one's place. So a call whose end nobody wrote down (the
// process was killed, the disk is full) is counted all the same. A call that was refused has one.
type Entry struct {
	At       time.Time `json:"at"`
	Call     string    `json:"call,omitempty"` // the same in both lines of a call
	UnderWay bool      `json:"under_way,omitempty"`
	Batch    string    `json:"batch,omitempty"`
	Run      string    `json:"run"`
	API      API       `json:"api"`
	Model    string    `json:"model,omitempty"`
	Status   int       `json:"status"` // of the provider's answer; 0 if there was none
	Usage
	USD      float64 `json:"usd"`
	Unpriced bool    `json:"unpriced,omitempty"` // the table has no price for the model
	TookMS   int64   `json:"took_ms"`
	Refused  string  `json:"refused,omitempty"` // why the gateway did not let the call through
}

// Spent is a sum of entries.
type Spent struct {
	Calls  int     `json:"calls"` // that reached a provider
	Input  int64   `json:"input"`
	Cached int64   `json:"cached"`
	Output int64   `json:"output"`
	USD    float64 `json:"usd"`
	// Unpriced are the models without a price: what they cost is not part of USD.
	Unpriced []string `json:"unpriced,omitempty"`
}

func (s *Spent) add(e Entry) {
	s.Calls++
	s.Input += e.Input
	s.Cached += e.Cached
	s.Output += e.Output
	s.USD += e.USD
	if e.Unpriced && !slices.Contains(s.Unpriced, e.Model) {
		s.Unpriced = append(slices.Clip(s.Unpriced), e.Model)
	}
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
	open    map[string]Entry // calls under way, by their name: their guesses are not in the sums
	begun   map[string]bool  // those of them that began here, so that their end will be told
}

// ErrLedger matches errors of a ledger that cannot be read or written. No call goes through without its line.
var ErrLedger = errors.New("the ledger of model calls cannot be kept")

// OpenLedger opens the ledger in the file, which is made with mode 0600 if it is not there.
func OpenLedger(path string) (*Ledger, error) {
	l := &Ledger{path: path, lock: flock.New(path + ".lock"), runs: map[string]Spent{}, batches: map[string]Spent{}, open: map[string]Entry{}, begun: map[string]bool{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLedger, err)
	}
	return l, l.sync(func() *Entry { return nil })
}

// Append writes the entry into the file.
func (l *Ledger) Append(e Entry) error { return l.sync(func() *Entry { return &e }) }

// Begin writes the first line of a call, unless admit refuses it for what its run and its batch have spent, with the guesses
// of all that is under way: nobody else writes in between.
func (l *Ledger) Begin(e Entry, admit func(ofRun, ofBatch Spent) bool) error {
	return l.sync(func() *Entry {
		if !admit(l.spent(e.Run, e.Batch, true)) {
			return nil
		}
		l.begun[e.Call] = true
		return &e
	})
}

// Sum returns what the run and the batch have spent by now, in all processes. Calls under way in others count by their guess:
// that process may be gone.
func (l *Ledger) Sum(run, batch string) (ofRun, ofBatch Spent, err error) {
	err = l.sync(func() *Entry {
		ofRun, ofBatch = l.spent(run, batch, false)
		return nil
	})
	return ofRun, ofBatch, err
}

// maxLine is far above what an entry takes.
const maxLine = 64 << 10

// lockWait bounds the wait for another process that has the file: it holds it for the time of one line.
const lockWait = 20 * time.Second

// sync reads what others have written since, and appends what next returns, if it returns anything.
func (l *Ledger) sync(next func() *Entry) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrLedger, err)
		}
	}()
	ctx, cancel := context.WithTimeoutCause(context.Background(), lockWait, fmt.Errorf("another process has held %s.lock for %v", l.path, lockWait))
	defer cancel()
	if _, err := l.lock.TryLockContext(ctx, time.Millisecond); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	defer func() { err = errors.Join(err, l.lock.Unlock()) }()
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() || info.Size() < l.read {
		return fmt.Errorf("%s was cut short or replaced while it was in use: what has been spent is not known", l.path)
	}
	news, err := io.ReadAll(io.NewSectionReader(f, l.read, math.MaxInt64-l.read))
	if err != nil {
		return err
	}
	// A line that a crash cut off has no end and never counts; it is ended here, so that the next one stands by itself.
	if cut := bytes.LastIndexByte(news, '\n') + 1; cut < len(news) {
		if _, err := f.WriteString("\n"); err != nil {
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
	e := next()
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

// count takes an entry into the sums.
func (l *Ledger) count(e Entry) {
	delete(l.open, e.Call)
	if !e.UnderWay {
		delete(l.begun, e.Call)
	}
	switch {
	case e.Refused != "":
	case e.UnderWay:
		l.open[e.Call] = e
	default:
		run, batch := l.runs[e.Run], l.batches[e.Batch]
		run.add(e)
		batch.add(e)
		l.runs[e.Run], l.batches[e.Batch] = run, batch
	}
}

// spent returns the sums, with the guesses of what is under way, here too or only elsewhere.
func (l *Ledger) spent(run, batch string, here bool) (ofRun, ofBatch Spent) {
	ofRun, ofBatch = l.runs[run], l.batches[batch]
	for call, e := range l.open {
		if l.begun[call] && !here {
			continue
		}
		if e.Run == run {
			ofRun.add(e)
		}
		if e.Batch == batch {
			ofBatch.add(e)
		}
	}
	return ofRun, ofBatch
}
