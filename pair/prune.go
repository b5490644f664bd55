package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// Leftover is a lease that outlived its owner, or what an engine holds under a name of ours that no lease covers.
type Leftover struct {
	Run       RunID    `json:"run"`
	Sandboxes []string `json:"sandboxes"` // those that the engine still lists
	Secrets   int      `json:"secrets"`   // that are scoped to the run's sandboxes
	Rules     int      `json:"rules"`
	Reason    string   `json:"reason"`
	// RecordOnly says that the engine cannot be asked, because it is not there any more: prune closes the record.
	RecordOnly bool `json:"record_only,omitempty"`
	lease      *Lease
}

// FindLeftovers lists what prune would remove on the engine that ref names: the pairs of open leases whose owner is
// dead, and sandboxes, secrets and rules with names of ours for which there is no lease, or a closed one. If the
// engine's program is not there any more, the leases of dead owners are listed all the same. It changes nothing.
func FindLeftovers(ctx context.Context, engine Engine, store *Store, ref EngineRef) ([]Leftover, error) {
	leases, leaseErr := store.List() // an unreadable lease is reported below, and keeps its own sandboxes safe
	boxes, err := engine.List(ctx)
	missing := errors.Is(err, sbx.ErrNotInstalled)
	if err != nil && !missing {
		return nil, errors.Join(err, leaseErr)
	}
	there := map[RunID]*Leftover{}
	at := func(sandbox string) *Leftover {
		run, _, ours := ParseName(sandbox)
		if !ours {
			return &Leftover{}
		}
		if there[run] == nil {
			there[run] = &Leftover{Run: run}
		}
		return there[run]
	}
	for _, box := range boxes {
		left := at(box.Name)
		left.Sandboxes = append(left.Sandboxes, box.Name)
	}
	if !missing {
		held, err := scoped(ctx, engine, func(box string) bool { _, _, ours := ParseName(box); return ours })
		if err != nil {
			return nil, errors.Join(err, leaseErr)
		}
		for _, s := range held.secrets {
			at(s.Sandbox).Secrets++
		}
		for _, r := range held.rules {
			at(r.Sandbox).Rules++
		}
	}
	var found []Leftover
	add := func(run RunID, reason string, l *Lease) {
		left := Leftover{Run: run}
		if have := there[run]; have != nil {
			left = *have
			slices.Sort(left.Sandboxes)
		}
		left.Reason, left.RecordOnly, left.lease = reason, missing, l
		if missing {
			left.Reason += ", and its engine " + ref.Path + " is not there any more: only the record is closed"
		}
		found = append(found, left)
	}
	known := map[RunID]bool{}
	for _, l := range leases {
		known[l.Run] = true
		switch {
		case !l.Engine.Same(ref): // another engine's
		case l.Orphaned():
			add(l.Run, fmt.Sprintf("owner (process %d) is dead", l.Owner.PID), &l)
		case l.Pooled() && time.Now().After(l.Pool.Expires):
			add(l.Run, "has been in the pool for too long", &l)
		case l.Pooled() && (there[l.Run] == nil || len(there[l.Run].Sandboxes) < len(l.Sandboxes)):
			add(l.Run, "is in the pool, and a sandbox of it is gone", &l)
		case l.State == Closed && there[l.Run] != nil:
			add(l.Run, "run is closed, something of it is still there", &l)
		}
	}
	for run := range there { // also where another run's record cannot be read
		if _, err := store.Load(run); !known[run] && errors.Is(err, ErrNoLease) { // else it began while the engine was asked
			add(run, "no record of this run", nil)
		}
	}
	slices.SortFunc(found, func(a, b Leftover) int { return strings.Compare(string(a.Run), string(b.Run)) })
	return found, leaseErr
}

// Recorded reports whether the run's lease is here. One without may have it elsewhere, and be alive: another user's state
// folder, a container's.
func (l Leftover) Recorded() bool { return l.lease != nil }

// Bounds of a prune.
const (
	pruneLimit = 2 * time.Minute // of one leftover
	// MaxAtOnce is how many pairs are taken down at the same time: more only wait for the engine's daemon.
	MaxAtOnce = 8
)

// Prune removes the given leftovers and closes their leases, several at the same time. It goes on after a failure; the
// error matches [ErrLeft]. last is each pair's [Pair.Last]; nil is fine.
func Prune(ctx context.Context, engine Engine, store *Store, leftovers []Leftover, last func(RunID) error) error {
	engine = Together(engine)
	err := Several(leftovers, func(left Leftover) error {
		if err := prune(ctx, engine, store, left, last); err != nil {
			return fmt.Errorf("run %s: %w", left.Run, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

// prune removes one leftover if it still is one: between the plan and the yes to it somebody may have claimed it from the
// pool, gone on with the run, or taken it down.
func prune(ctx context.Context, engine Engine, store *Store, left Leftover, last func(RunID) error) error {
	switch {
	case left.lease == nil:
		if _, err := store.Load(left.Run); !errors.Is(err, ErrNoLease) {
			return err
		}
	case left.lease.Pooled():
		taken, err := store.Take(func(l Lease) bool { return l.Run == left.Run }, Self())
		if err != nil || taken.Run == "" {
			return err
		}
	default:
		l, letGo, err := store.seize(ctx, left.Run, pruneLimit)
		if errors.Is(err, ErrNoLease) || errors.Is(err, ErrOwned) {
			return nil
		}
		if err != nil {
			return err
		}
		defer letGo()
		if l.State != Closed && !l.Orphaned() || l.State == Closed && left.lease.State == Open {
			return nil
		}
	}
	p := attach(engine, store, left.Run)
	if last != nil {
		p.Last = func() error { return last(left.Run) }
	}
	if left.RecordOnly {
		return p.Abandon(outcomeOf(*left.lease, "orphaned, engine gone"))
	}
	if err := p.Undo.Unwind(ctx, pruneLimit/2, pruneLimit); err != nil {
		return err
	}
	if left.lease == nil {
		return p.last()
	}
	return p.close(outcomeOf(*left.lease, "orphaned"))
}

// outcomeOf is how the run of l ended: as it said itself, else as given.
func outcomeOf(l Lease, otherwise string) string {
	if l.Outcome != "" {
		return l.Outcome
	}
	return otherwise
}

// Several calls do for every item, at most [MaxAtOnce] at a time, and returns when all have ended.
func Several[T any](items []T, do func(T) error) error {
	slots := make(chan struct{}, MaxAtOnce)
	errs := make([]error, len(items))
	var wg sync.WaitGroup
	for i, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = Caught(func() error { return do(item) })
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
