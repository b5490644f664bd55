package pair

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// ErrLeft matches the error of a release or prune after which something of ours may still be there.
var ErrLeft = errors.New("clean-up incomplete")

// ErrLost matches the error for a sandbox that the engine no longer has although it was not removed by us.
var ErrLost = errors.New("sandbox lost")

// Engine is what a pair needs of an engine's client.
type Engine interface {
	Exec(ctx context.Context, sandbox string, spec sbx.ExecSpec) (sbx.ExecResult, error)
	List(ctx context.Context) ([]sbx.Sandbox, error)
	Remove(ctx context.Context, names ...string) error
	SecretList(ctx context.Context) ([]sbx.Secret, error)
	SecretRemove(ctx context.Context, secret sbx.Secret) error
}

// A Sandbox is one machine of a pair.
type Sandbox struct {
	Role   Role
	Name   string
	engine Engine
}

// NewSandbox returns a handle of the run's sandbox of the given role; it makes no call.
func NewSandbox(engine Engine, run RunID, role Role) *Sandbox {
	return &Sandbox{Role: role, Name: run.Name(role), engine: engine}
}

// Exec runs a command in the sandbox and returns when it has ended; its exit code is data. The error matches [ErrLost] if the sandbox is gone.
func (s *Sandbox) Exec(ctx context.Context, spec sbx.ExecSpec) (sbx.ExecResult, error) {
	res, err := s.engine.Exec(ctx, s.Name, spec)
	if errors.Is(err, sbx.ErrNotFound) {
		err = fmt.Errorf("%w: %s: %w", ErrLost, s.Name, err)
	}
	return res, err
}

// A Pair is the two sandboxes of one run.
type Pair struct {
	Run    RunID
	Agent  *Sandbox
	GitHub *Sandbox
	// Undo holds what must be undone at release, beside the sandboxes themselves.
	Undo Stack

	engine Engine
	store  *Store
}

// Lease writes l and returns the pair that it covers, of which nothing exists yet. From here on, Release removes
// whatever has come to exist under the run's names, however far the creation got.
func Acquire(engine Engine, store *Store, l Lease) (*Pair, error) {
	l.State, l.Sandboxes = Open, l.Run.Names()
	if err := store.Create(l); err != nil {
		return nil, err
	}
	return attach(engine, store, l.Run), nil
}

// Attach returns the pair of a lease that some process acquired before.
func Attach(engine Engine, store *Store, l Lease) *Pair { return attach(engine, store, l.Run) }

func attach(engine Engine, store *Store, run RunID) *Pair {
	p := &Pair{Run: run, Agent: NewSandbox(engine, run, RoleAgent), GitHub: NewSandbox(engine, run, RoleGitHub),
		engine: engine, store: store}
	p.Undo.Push("sandboxes "+strings.Join(run.Names(), ", "), func(ctx context.Context) error {
		return removeAll(ctx, engine, run.Names())
	})
	p.Undo.Push("credential file", func(context.Context) error {
		if err := os.Remove(p.CredentialFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	})
	return p
}

// CredentialFile is where the value of a custom secret stands for the engine to read, 0600, while the pair lives.
func (p *Pair) CredentialFile() string { return filepath.Join(p.store.Dir(p.Run), "credential") }

// Released says what a release removed.
type Released struct{ Removed []string }

// Release removes both sandboxes with their secrets and rules, undoes whatever else was registered, and closes the
// lease with the given outcome. It works after ctx is cancelled, takes at most limit, and can be called again. The
// error matches [ErrLeft] if something may be left; the lease then stays open, and prune finds it.
func (p *Pair) Release(ctx context.Context, outcome string, limit time.Duration) (Released, error) {
	if err := p.Undo.Unwind(ctx, limit/2, limit); err != nil {
		return Released{}, fmt.Errorf("%w (run: sbxpair prune): %w", ErrLeft, err)
	}
	return Released{p.Run.Names()}, p.close(outcome)
}

func (p *Pair) close(outcome string) error {
	l, err := p.store.Load(p.Run)
	if err != nil {
		return err
	}
	l.State, l.Closed, l.Outcome = Closed, time.Now().UTC(), outcome
	return p.store.Save(l)
}

// Keep leaves the sandboxes in place after this process: the lease is marked so that prune does not take them.
// environment is what processes that somebody starts in the agent sandbox should have, as NAME=value.
func (p *Pair) Keep(outcome string, environment []string) error {
	l, err := p.store.Load(p.Run)
	if err != nil {
		return err
	}
	l.Kept, l.Outcome, l.Environment = true, outcome, environment
	return p.store.Save(l)
}

// removeAll removes the named sandboxes and the secrets scoped to them, and reads back that they are gone. What is
// gone already is success. Scoped rules go with the sandbox in every version of sbx, scoped secrets since 0.42.
func removeAll(ctx context.Context, engine Engine, names []string) error {
	if err := again(ctx, func() error { return engine.Remove(ctx, names...) }); err != nil {
		return err
	}
	var listed []sbx.Secret
	err := again(ctx, func() (err error) { listed, err = engine.SecretList(ctx); return err })
	if err != nil {
		return fmt.Errorf("check for secrets left: %w", err)
	}
	var errs []error
	for _, s := range listed {
		if slices.Contains(names, s.Sandbox) {
			errs = append(errs, again(ctx, func() error { return engine.SecretRemove(ctx, s) }))
		}
	}
	return errors.Join(errs...)
}

// again repeats a call of the engine that was killed in the middle, a few times. A signal to our process group can hit
// the engine's command between its fork and its own group, and the very signal that starts a clean-up must not end it.
func again(ctx context.Context, call func() error) error {
	var err error
	for range 3 {
		if err = call(); !errors.Is(err, sbx.ErrConnectionLost) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Leftover is a sandbox, or a lease, that outlived its owner.
type Leftover struct {
	Run       RunID    `json:"run"`
	Sandboxes []string `json:"sandboxes"` // those that the engine still lists
	Reason    string   `json:"reason"`
	lease     *Lease
}

// FindLeftovers lists what prune would remove: the pairs of open leases whose owner is dead, and sandboxes with names
// of ours for which there is no lease at all, on the engine that ref names. It changes nothing.
func FindLeftovers(ctx context.Context, engine Engine, store *Store, ref EngineRef) ([]Leftover, error) {
	leases, leaseErr := store.List() // an unreadable lease is reported below, and keeps its sandboxes safe
	boxes, err := engine.List(ctx)
	if err != nil {
		return nil, errors.Join(err, leaseErr)
	}
	there := map[RunID][]string{}
	for _, box := range boxes {
		if run, _, ours := ParseName(box.Name); ours {
			there[run] = append(there[run], box.Name)
		}
	}
	var found []Leftover
	known := map[RunID]bool{}
	for _, l := range leases {
		known[l.Run] = true
		switch {
		case !l.Engine.Same(ref): // another engine's
		case l.Orphaned():
			found = append(found, Leftover{l.Run, there[l.Run], fmt.Sprintf("owner (process %d) is dead", l.Owner.PID), &l})
		case l.State == Closed && len(there[l.Run]) > 0:
			found = append(found, Leftover{l.Run, there[l.Run], "run is closed, its sandboxes are still there", &l})
		}
	}
	if leaseErr == nil {
		for run, names := range there {
			if !known[run] {
				slices.Sort(names)
				found = append(found, Leftover{run, names, "no record of this run", nil})
			}
		}
	}
	slices.SortFunc(found, func(a, b Leftover) int { return strings.Compare(string(a.Run), string(b.Run)) })
	return found, leaseErr
}

// pruneLimit bounds the removal of one leftover.
const pruneLimit = 2 * time.Minute

// Prune removes the given leftovers and closes their leases. It goes on after a failure; the error matches [ErrLeft].
func Prune(ctx context.Context, engine Engine, store *Store, leftovers []Leftover) error {
	var errs []error
	for _, left := range leftovers {
		if err := attach(engine, store, left.Run).Undo.Unwind(ctx, pruneLimit/2, pruneLimit); err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", left.Run, err))
			continue
		}
		if left.lease == nil {
			continue
		}
		l := *left.lease
		l.State, l.Closed = Closed, time.Now().UTC()
		if l.Outcome == "" {
			l.Outcome = "orphaned"
		}
		if err := store.Save(l); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrLeft, errors.Join(errs...))
	}
	return nil
}
