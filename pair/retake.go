package pair

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/sbx"
)

// ErrOwned matches the error for a run that cannot be taken over: its process may be at work, it was left in place on purpose, or
// somebody else is taking it over at this moment.
var ErrOwned = errors.New("the run is somebody's")

// seize gives this process a run that no living process owns, until the function that it returns is called: of those that
// want to take it over or take it down, one does, and the others see in the lease what came of it. It waits for at most
// wait. The error matches [ErrOwned] if another process has it for longer.
func (s *Store) seize(ctx context.Context, run RunID, wait time.Duration) (Lease, func(), error) {
	if _, err := s.Load(run); err != nil { // a lock would make a folder's remains of a run that is not there
		return Lease{}, nil, err
	}
	lock := flock.New(filepath.Join(s.Dir(run), "retake.lock"))
	held, err := lock.TryLock()
	if err == nil && !held && wait > 0 {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		held, err = lock.TryLockContext(ctx, queuePoll)
		if errors.Is(err, context.DeadlineExceeded) {
			err = nil
		}
	}
	if err != nil {
		return Lease{}, nil, fmt.Errorf("take over run %s: %w", run, err)
	}
	if !held {
		return Lease{}, nil, fmt.Errorf("%w: %s is being taken over by another process", ErrOwned, run)
	}
	l, err := s.Load(run)
	if err != nil {
		lock.Unlock()
		return Lease{}, nil, err
	}
	return l, func() { lock.Unlock() }, nil
}

// TakeDown removes the pair of a run that was left in place, or whose owner is dead, as [Pair.Release] does. seen is its
// lease as the caller found it: the error matches [ErrOwned] if the run belongs to somebody else by now, and nothing is
// done if another process took it down meanwhile. abandon says that its engine is not there any more: then only its record
// is closed. last is the pair's [Pair.Last].
func TakeDown(ctx context.Context, engine Engine, store *Store, seen Lease, limit time.Duration, abandon bool, last func() error) error {
	l, letGo, err := store.seize(ctx, seen.Run, limit)
	if err != nil {
		return err
	}
	defer letGo()
	switch {
	case l.State == Closed:
		return nil
	case l.Owner != seen.Owner:
		return fmt.Errorf("%w: process %d took over %s", ErrOwned, l.Owner.PID, l.Run)
	}
	p := attach(engine, store, l.Run)
	p.Last = last
	if _, err = p.Release(ctx, l.Outcome, limit); abandon && errors.Is(err, sbx.ErrNotInstalled) {
		err = p.Abandon(l.Outcome)
	}
	return err
}

// Retake takes over a run whose process is gone, for a fresh pair under the same names: what is left of the old pair is removed
// first, within limit, and then the lease is this process's and open. The error matches [ErrOwned] if the run cannot be taken,
// and [ErrLeft] if the old pair cannot be removed; the lease is then as it was.
func Retake(ctx context.Context, engine Engine, store *Store, run RunID, now EngineRef, limit time.Duration) (*Pair, error) {
	l, letGo, err := store.seize(ctx, run, 0)
	if err != nil {
		return nil, err
	}
	defer letGo()
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
