package pair

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// ErrOwned matches the error for a run that cannot be taken over: its process may be at work, it was left in place on purpose, or
// somebody else is taking it over at this moment.
var ErrOwned = errors.New("the run is somebody's")

// Retake takes over a run whose process is gone, for a fresh pair under the same names: what is left of the old pair is removed
// first, within limit, and then the lease is this process's and open. The error matches [ErrOwned] if the run cannot be taken,
// and [ErrLeft] if the old pair cannot be removed; the lease is then as it was.
func Retake(ctx context.Context, engine Engine, store *Store, run RunID, now EngineRef, limit time.Duration) (*Pair, error) {
	lock := flock.New(filepath.Join(store.Dir(run), "retake.lock"))
	held, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("take over run %s: %w", run, err)
	}
	if !held {
		return nil, fmt.Errorf("%w: %s is being taken over by another process", ErrOwned, run)
	}
	defer lock.Unlock()
	l, err := store.Load(run)
	if err != nil {
		return nil, err
	}
	switch {
	case l.Kept && l.State == Open:
		return nil, fmt.Errorf("%w: the pair of %s was left in place; take it down first: sbxpair down %s", ErrOwned, run, run)
	case l.State == Open && l.OwnerAlive() != Dead:
		return nil, fmt.Errorf("%w: process %d may be at work on %s", ErrOwned, l.Owner.PID, run)
	case !l.Engine.Same(now):
		return nil, fmt.Errorf("%w: %s is a run of engine %s, not %s", ErrOwned, run, l.Engine.Kind, now.Kind)
	}
	if err := attach(engine, store, run).Undo.Unwind(ctx, limit*2/3, limit); err != nil {
		return nil, fmt.Errorf("%w: remove the old pair of %s: %w", ErrLeft, run, err)
	}
	l.State, l.Closed, l.Outcome, l.Kept, l.Environment = Open, time.Time{}, "", false, nil
	l.Owner, l.Engine, l.Sandboxes = Self(), now, run.Names()
	if err := store.Save(l); err != nil {
		return nil, err
	}
	p := attach(engine, store, run)
	p.still = store.beat(run)
	return p, nil
}
