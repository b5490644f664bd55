package pair

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// ErrLeft matches the error of a release or prune after which something of ours may still be there.
var ErrLeft = errors.New("clean-up incomplete")

// ErrLost matches the error for a sandbox that the engine no longer has although it was not removed by us.
var ErrLost = errors.New("sandbox lost")

// An Execer runs commands in an engine's sandboxes.
type Execer interface {
	Exec(ctx context.Context, sandbox string, spec sbx.ExecSpec) (sbx.ExecResult, error)
}

// Engine is what a pair needs of an engine's client. Release and prune read back what they changed, once for all of it:
// the client need not do so after each call.
type Engine interface {
	Execer
	List(ctx context.Context) ([]sbx.Sandbox, error)
	Remove(ctx context.Context, names ...string) error
	VerifyRemoved(ctx context.Context, names ...string) error
	SecretList(ctx context.Context) ([]sbx.Secret, error)
	SecretRemove(ctx context.Context, secret sbx.Secret) error
	PolicyList(ctx context.Context, sandbox string) ([]sbx.Rule, error)
	PolicyRemove(ctx context.Context, ref sbx.RuleRef) error
}

// A Sandbox is one machine of a pair.
type Sandbox struct {
	Role   Role
	Name   string
	engine Execer
}

// NewSandbox returns a handle of the run's sandbox of the given role; it makes no call.
func NewSandbox(engine Execer, run RunID, role Role) *Sandbox {
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
	// Booted says that the sandboxes were there before the run, in the pool: they have no credential and no rules yet.
	Booted bool
	// Undo holds what must be undone at release, beside the sandboxes themselves.
	Undo Stack
	// Last removes what is outside of the engine, such as the folder that a sandbox mounted: when all else is gone, and before the
	// lease is closed, so that whoever is killed in between is taken up again. Nil is fine.
	Last func() error

	engine Engine
	store  *Store
	still  func() // ends the heartbeat
}

// Acquire writes l and returns the pair that it covers, of which nothing exists yet. From here on, Release removes
// whatever has come to exist under the run's names, however far the creation got. Until Release or Keep, the lease's
// file is touched every [BeatInterval], so that another host or container can see that its owner lives.
func Acquire(engine Engine, store *Store, l Lease) (*Pair, error) {
	l.State, l.Sandboxes = Open, l.Run.Names()
	if err := store.Create(l); err != nil {
		return nil, err
	}
	p := attach(engine, store, l.Run)
	p.still = store.beat(l.Run)
	return p, nil
}

// Claim takes a pair out of the pool for the run that l describes, and whose id becomes l's: the oldest that matches key
// and runs on l's engine. It makes no call of the engine. Without one, the pair is nil.
func Claim(engine Engine, store *Store, key string, l Lease) (*Pair, error) {
	taken, err := store.Take(func(have Lease) bool {
		return have.Pool.Key == key && have.Engine.Same(l.Engine) && have.Engine.Version == l.Engine.Version && time.Now().Before(have.Pool.Expires)
	}, l.Owner)
	if err != nil || taken.Run == "" {
		return nil, err
	}
	l.Run, l.State, l.Sandboxes = taken.Run, Open, taken.Sandboxes
	if err := store.Save(l); err != nil {
		return nil, err
	}
	p := attach(engine, store, l.Run)
	p.Booted, p.still = true, store.beat(l.Run)
	return p, nil
}

// Shelve puts a pair whose sandboxes are booted into the pool, where it belongs to nobody until it is claimed.
func (p *Pair) Shelve() error {
	p.still()
	l, err := p.store.Load(p.Run)
	if err != nil {
		return err
	}
	l.Pool.Ready = true
	return p.store.Save(l)
}

// WorkIn notes where processes start that somebody runs in the agent sandbox.
func (p *Pair) WorkIn(dir string) error {
	l, err := p.store.Load(p.Run)
	if err != nil {
		return err
	}
	l.Dir = dir
	return p.store.Save(l)
}

// Clear removes whatever there is of the pair's sandboxes and keeps the lease, so that they can be made anew.
func (p *Pair) Clear(ctx context.Context) error {
	p.Booted = false
	return errors.Join(removeAll(ctx, p.engine, p.Run.Names()), p.removeCredential())
}

// Attach returns the pair of a lease that some process acquired before.
func Attach(engine Engine, store *Store, l Lease) *Pair { return attach(engine, store, l.Run) }

func attach(engine Engine, store *Store, run RunID) *Pair {
	p := &Pair{Run: run, Agent: NewSandbox(engine, run, RoleAgent), GitHub: NewSandbox(engine, run, RoleGitHub),
		engine: engine, store: store, still: func() {}}
	p.Undo.Push("sandboxes "+strings.Join(run.Names(), ", "), func(ctx context.Context) error {
		return removeAll(ctx, engine, run.Names())
	})
	p.Undo.Push("credential file", func(context.Context) error { return p.removeCredential() })
	return p
}

func (p *Pair) removeCredential() error {
	var errs []error
	for _, path := range p.store.CredentialFiles(p.Run) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// CredentialFile is where the value of a role's custom secret stands for the engine to read, 0600, while the pair lives.
func (p *Pair) CredentialFile(role Role) string {
	return p.store.credentialFile(p.Run, role)
}

func (s *Store) credentialFile(run RunID, role Role) string {
	return filepath.Join(s.Dir(run), "credential-"+string(role))
}

// NewCredential is what a credential file's name ends with while it is written.
const NewCredential = ".new"

// CredentialFiles are all files that may hold a credential of the run, whether they are there or not.
func (s *Store) CredentialFiles(run RunID) []string {
	var list []string
	for _, role := range []Role{RoleAgent, RoleGitHub} {
		path := s.credentialFile(run, role)
		list = append(list, path, path+NewCredential)
	}
	return list
}

// Released says what a release removed.
type Released struct{ Removed []string }

// Abandon closes the lease without asking the engine, for one that is not there any more. What the engine may still
// hold is found by its names alone if it comes back: see [FindLeftovers].
func (p *Pair) Abandon(outcome string) error {
	p.still()
	if err := p.removeCredential(); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return p.close(outcome)
}

// Release removes both sandboxes with their secrets and rules, undoes whatever else was registered, and closes the
// lease with the given outcome. It works after ctx is cancelled, takes at most limit, and can be called again. The
// error matches [ErrLeft] if something may be left; the lease then stays open, and prune finds it.
func (p *Pair) Release(ctx context.Context, outcome string, limit time.Duration) (Released, error) {
	p.still()
	if err := p.Undo.Unwind(ctx, limit*2/3, limit); err != nil {
		return Released{}, fmt.Errorf("%w (run: sbxpair prune): %w", ErrLeft, err)
	}
	return Released{p.Run.Names()}, p.close(outcome)
}

func (p *Pair) last() error {
	if p.Last == nil {
		return nil
	}
	if err := p.Last(); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

func (p *Pair) close(outcome string) error {
	if err := p.last(); err != nil {
		return err
	}
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
	p.still()
	l, err := p.store.Load(p.Run)
	if err != nil {
		return err
	}
	l.Kept, l.Outcome, l.Environment = true, outcome, environment
	return p.store.Save(l)
}
