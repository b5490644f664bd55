package provision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// PoolEngine is what making and removing pairs needs of an engine's client.
type PoolEngine interface {
	Engine
	SetupEngine
	pair.Engine
}

// A Pool is pairs that are booted ahead of time: two running sandboxes without a credential, rules of their own, or
// anything in the workspace's mount. A run that claims one gives it those, and removes it at its end: no pair is used
// twice. Its records are the leases themselves, so several processes can fill, claim and drain at the same time.
type Pool struct {
	Engine PoolEngine
	Store  *pair.Store
	Ref    pair.EngineRef
	// For is what the pairs are made for; Run, Repo, Workspace and Empty are of no account.
	For    Input
	Size   int           // pairs that wait
	MaxAge time.Duration // of a pair that waits
	Budget int           // MiB of the host's memory for all pairs; 0 is no bound
}

// Mount is the folder that a pooled pair's agent sandbox mounts. The workspace is made in it.
func Mount(store *pair.Store, run pair.RunID) string {
	return filepath.Join(store.Dir(run), "workspace", "work")
}

func emptyFolder(store *pair.Store, run pair.RunID) string {
	return filepath.Join(store.Dir(run), "empty")
}

// plan is that of a pooled pair: a plan like any, of which only the sandboxes are made.
func (p Pool) plan(run pair.RunID) (Plan, error) {
	in := p.For
	in.Run, in.Engine, in.Repo, in.Fork, in.Only = run, p.Ref, "sbxpair/pool", "", ""
	if in.Gateway != nil { // where it listens is settled by the rules that a run brings
		in.Gateway = &Through{Port: 1}
	}
	in.Workspace = sbx.Workspace{Path: Mount(p.Store, run)}
	if in.Empty != "" {
		in.Empty = emptyFolder(p.Store, run)
	}
	return New(in)
}

// Key tells pairs that can stand for one another: whatever is settled when a sandbox is made is the same.
func (p Pool) Key() (string, error) {
	const any = pair.RunID("222222222222")
	plan, err := p.plan(any)
	if err != nil {
		return "", err
	}
	var specs []sbx.CreateSpec
	for _, s := range plan.Specs() {
		spec := (&apply{plan: plan}).spec(s)
		spec.Name = string(s.Role)
		specs = append(specs, spec)
	}
	text, err := json.Marshal(specs)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(text, p.Ref.Kind+" "+p.Ref.AppName+" "+p.Ref.Version...))
	return hex.EncodeToString(sum[:8]), nil
}

// List returns the leases of the pool: pairs that wait, and those that are being booted. All keys are listed.
func (p Pool) List() ([]pair.Lease, error) {
	all, err := p.Store.List()
	var list []pair.Lease
	for _, l := range all {
		if l.State == pair.Open && l.Pool.Key != "" && !l.Orphaned() {
			list = append(list, l)
		}
	}
	return list, err
}

// Claim takes a fitting pair out of the pool for the run that l describes; without one, the pair is nil. The pair's id
// becomes the run's. [Apply] then gives it rules and secrets in one round of calls.
func (p Pool) Claim(l pair.Lease) (*pair.Pair, error) {
	key, err := p.Key()
	if err != nil {
		return nil, err
	}
	return pair.Claim(p.Engine, p.Store, key, l)
}

// Missing is how many pairs Fill would boot.
func (p Pool) Missing() (int, error) {
	key, err := p.Key()
	if err != nil {
		return 0, err
	}
	return p.missing(key)
}

func (p Pool) missing(key string) (int, error) {
	list, err := p.List()
	n := p.Size
	for _, l := range list {
		if l.Pool.Key == key && time.Now().Before(l.Pool.Expires) {
			n--
		}
	}
	return max(n, 0), err
}

// What a sandbox takes of the host's memory where its size is left to the engine: the most that was measured of sbx 0.39,
// and of sbx-local with an agent at work.
const (
	sandboxSbxMiB   = 1700
	sandboxLocalMiB = 400
)

// PairMemoryMiB is what a pair of two sandboxes of the given size takes of the host's memory; size 0 is the engine's own.
func PairMemoryMiB(ref pair.EngineRef, size int) int {
	switch {
	case size > 0:
		return 2 * size
	case ref.Kind == pair.EngineLocal:
		return 2 * sandboxLocalMiB
	}
	return 2 * sandboxSbxMiB
}

// fillers is how many pairs are booted at the same time.
const fillers = 2

// bootLimit bounds the removal of a pair that could not be booted.
const bootLimit = time.Minute

// Fill boots pairs until Size of them wait or the host's memory is taken, and returns the new ones. What could not be booted is
// removed again. The error matches [pair.ErrNoRoom] if there is no memory for all of them, or somebody waits for it.
func (p Pool) Fill(ctx context.Context) ([]pair.RunID, error) {
	key, err := p.Key()
	if err != nil {
		return nil, err
	}
	var booting []*pair.Pair
	admission := pair.Admission{Need: PairMemoryMiB(p.Ref, p.For.MemoryMiB), Budget: p.Budget, Wait: pair.NoWait}
	full := false
	for i := 0; i < p.Size && err == nil && !full; i++ {
		err = p.Store.Admit(ctx, admission, func() error { // in which two processes do not both make what is missing
			n, err := p.missing(key)
			if full = n == 0; full || err != nil {
				return err
			}
			now := time.Now()
			one, err := pair.Acquire(p.Engine, p.Store, pair.Lease{Run: pair.NewRunID(now), Created: now.UTC(), Owner: pair.Self(), Engine: p.Ref,
				MemoryMiB: admission.Need, Pool: pair.Pool{Key: key, Expires: now.Add(p.MaxAge).UTC()}})
			if err == nil {
				booting = append(booting, one)
			}
			return err
		})
	}
	errs := []error{err}
	slots, failed := make(chan struct{}, fillers), make([]error, len(booting))
	var wg sync.WaitGroup
	for i, one := range booting {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			failed[i] = pair.Caught(func() error { return p.boot(ctx, one) })
		})
	}
	wg.Wait()
	var made []pair.RunID
	for i, one := range booting {
		if failed[i] == nil {
			made = append(made, one.Run)
			continue
		}
		one.Last = p.unmount(one.Run)
		_, releaseErr := one.Release(ctx, "not booted", bootLimit)
		errs = append(errs, fmt.Errorf("boot a pair for the pool: %w", errors.Join(failed[i], releaseErr)))
	}
	return made, errors.Join(errs...)
}

// boot makes both sandboxes of a pair, with nothing in them.
func (p Pool) boot(ctx context.Context, one *pair.Pair) error {
	plan, err := p.plan(one.Run)
	if err != nil {
		return err
	}
	for _, s := range plan.Specs() {
		if len(s.Workspaces) > 0 { // the first is ours, the others are the user's
			if err := os.MkdirAll(s.Workspaces[0].Path, 0o700); err != nil {
				return err
			}
		}
	}
	a := &apply{engine: p.Engine, pair: one, plan: plan}
	if p.Ref.PolicyUnset {
		if err := a.initPolicy(ctx); err != nil {
			return err
		}
	}
	var creates []func(context.Context) error
	var specs []sbx.CreateSpec
	for _, s := range plan.Specs() {
		creates = append(creates, func(ctx context.Context) error { return a.create(ctx, s) })
		specs = append(specs, a.spec(s))
	}
	if err := both(ctx, creates...); err != nil {
		return err
	}
	if _, err := p.Engine.VerifyCreated(ctx, specs...); err != nil {
		return err
	}
	return one.Shelve()
}

// Drain removes pairs from the pool: all of this engine, or with stale only those that no run will claim: too old, for
// another engine version or other settings. It returns what is gone; the error matches [pair.ErrLeft].
func (p Pool) Drain(ctx context.Context, stale bool) ([]pair.RunID, error) {
	chosen, err := p.Drainable(stale)
	if err != nil {
		return nil, err
	}
	gone := make([]bool, len(chosen))
	index := map[pair.RunID]int{}
	for i, l := range chosen {
		index[l.Run] = i
	}
	engine := pair.Together(p.Engine)
	err = pair.Several(chosen, func(l pair.Lease) (err error) {
		gone[index[l.Run]], err = p.remove(ctx, engine, l)
		return err
	})
	var removed []pair.RunID
	for i, l := range chosen {
		if gone[i] {
			removed = append(removed, l.Run)
		}
	}
	return removed, err
}

// remove takes one pair out of the pool and removes it; a run may have been faster.
func (p Pool) remove(ctx context.Context, engine pair.Engine, l pair.Lease) (bool, error) {
	taken, err := p.Store.Take(func(have pair.Lease) bool { return have.Run == l.Run }, pair.Self())
	if err != nil || taken.Run == "" {
		return false, err
	}
	gone := pair.Attach(engine, p.Store, taken)
	gone.Last = p.unmount(l.Run)
	_, err = gone.Release(ctx, "drained", bootLimit)
	return err == nil, err
}

// unmount removes the folder that a pair's agent sandbox mounted.
func (p Pool) unmount(run pair.RunID) func() error {
	return func() error { return os.RemoveAll(filepath.Dir(Mount(p.Store, run))) }
}

// Yield removes the pair that has waited longest, for the memory that it holds, and reports whether there was one.
func (p Pool) Yield(ctx context.Context) (bool, error) {
	chosen, err := p.Drainable(false)
	for _, l := range chosen {
		gone, removeErr := p.remove(ctx, p.Engine, l)
		if err = errors.Join(err, removeErr); gone || err != nil {
			return gone, err
		}
	}
	return false, err
}

// Drainable lists what Drain would remove.
func (p Pool) Drainable(stale bool) ([]pair.Lease, error) {
	key, err := p.Key()
	if err != nil {
		return nil, err
	}
	list, err := p.List()
	var chosen []pair.Lease
	for _, l := range list {
		fits := l.Pool.Key == key && time.Now().Before(l.Pool.Expires)
		if l.Pooled() && l.Engine.Same(p.Ref) && !(stale && fits) {
			chosen = append(chosen, l)
		}
	}
	return chosen, err
}
