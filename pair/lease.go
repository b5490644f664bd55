package pair

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrNoLease matches the error for a run of which there is no record.
var ErrNoLease = errors.New("no such run")

// ErrUnreadable matches the error for a run whose record is there and says nothing: torn, edited, or of a later version.
var ErrUnreadable = errors.New("the record of the run cannot be read")

// The kinds of engine.
const (
	EngineSbx   = "sbx"
	EngineLocal = "sbx-local"
)

// EngineRef says which engine holds a pair, so that a later process can reach it.
type EngineRef struct {
	Kind    string `json:"kind"` // EngineSbx or EngineLocal
	Path    string `json:"path"`
	Version string `json:"version"`
	// Isolation is the engine's own word for what separates a sandbox from the host; empty where it does not say.
	Isolation string `json:"isolation,omitempty"`
	AppName   string `json:"app_name,omitempty"`
	// PolicyUnset says that the network policy of our own engine is not set up yet, so that making a pair does (sbx.Locate tells;
	// that somebody was faster is fine). It is about now, so no record holds it.
	PolicyUnset bool `json:"-"`
}

// Same reports whether both speak to the same engine's state: its version may have changed in between.
func (e EngineRef) Same(o EngineRef) bool { return e.Kind == o.Kind && e.AppName == o.AppName }

// State is where a run stands.
type State string

// The states of a run.
const (
	Open   State = "open"   // it may own sandboxes
	Closed State = "closed" // everything it owned is gone
)

// Lease is the record of what a run may own and which process owns it. It is on disk before the first create.
type Lease struct {
	Run        RunID     `json:"run"`
	State      State     `json:"state"`
	Created    time.Time `json:"created"`
	Closed     time.Time `json:"closed,omitzero"`
	Owner      Owner     `json:"owner"`
	Engine     EngineRef `json:"engine"`
	Sandboxes  []string  `json:"sandboxes"`
	Repository string    `json:"repository,omitempty"` // OWNER/NAME
	Host       string    `json:"host,omitempty"`       // of GitHub
	// Kept is set by `up` and by --keep: the pair outlives its process on purpose, until `down`.
	Kept bool `json:"kept,omitempty"`
	// Environment is for processes that are started in the agent sandbox of a kept pair: placeholders, never values.
	Environment []string `json:"environment,omitempty"`
	// Outcome is the run's own word for how it ended; empty while it runs.
	Outcome string `json:"outcome,omitempty"`

	// MemoryMiB is what the pair may take of the host's memory, for the admission of others.
	MemoryMiB int `json:"memory_mib,omitempty"`
	// Dir is where processes start that somebody runs in the agent sandbox, if that is not its first mount.
	Dir string `json:"dir,omitempty"`
	// Pool is set for a pair that was booted ahead of time, until a run claims it.
	Pool Pool `json:"pool,omitzero"`

	// Beat is when the owner last said that it lives, by the lease file's time.
	Beat time.Time `json:"-"`
}

// Pool says what a pair was booted ahead of time for.
type Pool struct {
	Key     string    `json:"key"`   // of pairs that can stand for one another
	Ready   bool      `json:"ready"` // both sandboxes run and nobody owns them; before that its owner is booting them
	Expires time.Time `json:"expires"`
}

// Pooled reports whether l is a pair that waits for a run to claim it.
func (l Lease) Pooled() bool { return l.State == Open && l.Pool.Ready }

// BeatInterval is how often the owner of a pair says that it lives. After three without a word, nobody takes it for alive
// who cannot look at its process.
const BeatInterval = 30 * time.Second

// OwnerAlive tells whether the owner lives: by its process where that can be looked at, else by its heartbeat. A silent
// owner that cannot be looked at is Unknown: its host may sleep.
func (l Lease) OwnerAlive() Verdict {
	v := l.Owner.Check()
	if v == Unknown && time.Since(l.Beat) < 3*BeatInterval {
		return Alive
	}
	return v
}

// Orphaned reports whether l is open, neither kept on purpose nor in the pool, and its owner is dead.
func (l Lease) Orphaned() bool {
	return l.State == Open && !l.Kept && !l.Pool.Ready && l.Owner.Check() == Dead
}

// A Store is the folder of run folders, one for each run, each with its lease. Folders are readable by their owner only.
type Store struct{ root string }

// NewStore returns the store under root, which is made when it is first written to.
func NewStore(root string) *Store { return &Store{filepath.Join(root, "runs")} }

// Dir returns the folder of a run.
func (s *Store) Dir(run RunID) string { return filepath.Join(s.root, string(run)) }

// Create makes the run's folder and writes its first lease, synced to disk.
func (s *Store) Create(l Lease) error {
	if err := os.MkdirAll(s.root, 0o700); err != nil {
		return fmt.Errorf("create run folder: %w", err)
	}
	if err := os.Mkdir(s.Dir(l.Run), 0o700); err != nil {
		return fmt.Errorf("create run folder: %w", err)
	}
	return s.Save(l)
}

// Save replaces the run's lease: whole or not at all, synced to disk before it returns.
func (s *Store) Save(l Lease) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	if err := writeSynced(filepath.Join(s.Dir(l.Run), "lease.json"), append(text, '\n')); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	return nil
}

func writeSynced(path string, text []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	// The new name itself must reach the disk; not every system lets a folder be synced, and none needs it to fail for that.
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		dir.Sync()
		dir.Close()
	}
	return nil
}

// beat touches the run's lease every [BeatInterval] until the function that it returns is called.
func (s *Store) beat(run RunID) func() {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(BeatInterval)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				os.Chtimes(filepath.Join(s.Dir(run), "lease.json"), now, now) // a beat that is lost is made up for by the next
			}
		}
	}()
	return sync.OnceFunc(func() { close(quit); <-done })
}

// maxLease is more bytes than any lease has.
const maxLease = 1 << 20

// Load reads the run's lease; the error matches [ErrNoLease] if there is none.
func (s *Store) Load(run RunID) (Lease, error) {
	path := filepath.Join(s.Dir(run), "lease.json")
	unreadable := func(why string) (Lease, error) {
		return Lease{}, fmt.Errorf("%w: %s: %s: %s", ErrUnreadable, run, path, why)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Lease{}, fmt.Errorf("%w: %s", ErrNoLease, run)
	case err != nil:
		return unreadable(err.Error())
	case !info.Mode().IsRegular(): // a pipe would be waited for without end
		return unreadable("it is no plain file")
	case info.Size() > maxLease:
		return unreadable(fmt.Sprintf("it has %d bytes", info.Size()))
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return Lease{}, fmt.Errorf("%w: %s", ErrNoLease, run)
	}
	if err != nil {
		return unreadable(err.Error())
	}
	l := Lease{Beat: info.ModTime()}
	if err := json.Unmarshal(text, &l); err != nil {
		return unreadable(err.Error())
	}
	if l.Run != run {
		return unreadable(fmt.Sprintf("it is of run %.20q", l.Run))
	}
	if l.State != Open && l.State != Closed { // to take it for closed would say that nothing of it is left
		return unreadable(fmt.Sprintf("state %.20q is not one that this version of sbxpair knows", l.State))
	}
	return l, nil
}

// strayAge is how long nobody has touched a run's folder without a lease that nobody will write one into any more.
const strayAge = 3 * BeatInterval

// Strays lists the runs that have a folder and no lease for a while: their process died before it wrote one, which is before it
// made anything, or while it removed the record.
func (s *Store) Strays() ([]RunID, error) {
	entries, err := os.ReadDir(s.root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	var list []RunID
	for _, entry := range entries {
		run, err := ParseRunID(entry.Name())
		if err != nil {
			continue // not ours
		}
		if _, err := s.Load(run); !errors.Is(err, ErrNoLease) {
			continue
		}
		if info, err := entry.Info(); err == nil && info.IsDir() && time.Since(info.ModTime()) > strayAge {
			list = append(list, run)
		}
	}
	return list, nil
}

// Sweep removes the folder of a run that has no lease.
func (s *Store) Sweep(run RunID) error {
	return s.Locked(func() error {
		if _, err := s.Load(run); !errors.Is(err, ErrNoLease) {
			return err
		}
		if err := os.RemoveAll(s.Dir(run)); err != nil {
			return fmt.Errorf("remove the folder of run %s: %w", run, err)
		}
		return nil
	})
}

// Forget removes the record of a closed run with everything in its folder. The record of an open one is refused: what
// it names may exist.
func (s *Store) Forget(run RunID) error {
	l, err := s.Load(run)
	if err != nil {
		return err
	}
	if l.State != Closed {
		return fmt.Errorf("forget run %s: it is %s", run, l.State)
	}
	if err := os.RemoveAll(s.Dir(run)); err != nil {
		return fmt.Errorf("forget run %s: %w", run, err)
	}
	return nil
}

// List returns the leases of all runs, oldest first. A run whose lease cannot be read is reported in the error and
// does not hide the others.
func (s *Store) List() ([]Lease, error) {
	entries, err := os.ReadDir(s.root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	var list []Lease
	var errs []error
	for _, entry := range entries {
		run, err := ParseRunID(entry.Name())
		if err != nil {
			continue // not ours
		}
		l, err := s.Load(run)
		switch {
		case errors.Is(err, ErrNoLease): // its process died before the first write: nothing was created
		case err != nil:
			errs = append(errs, err)
		default:
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b Lease) int { return strings.Compare(string(a.Run), string(b.Run)) })
	return list, errors.Join(errs...)
}
