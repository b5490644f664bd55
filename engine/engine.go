package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/sbxpair/sbxpair/engine/ports"
	"github.com/sbxpair/sbxpair/engine/settings"
)

// An Engine makes and runs the sandboxes of one state. It is safe for concurrent use.
type Engine struct {
	State *State
	// Self is the absolute path of a program that answers to "_runsc" (gVisor), "_guest" (inside) and "daemon start".
	Self     string
	Home     string // the user's home folder, never mounted itself
	Rootless bool   // gVisor runs in a user namespace of an ordinary user
	Stores   Stores
	Log      *slog.Logger // nil: discarded
	// DaemonArgs are the arguments that make Self a daemon that ends by itself; empty: never start one. It finds the state
	// by DaemonEnv (NAME=VALUE), which goes over this process's environment.
	DaemonArgs []string
	DaemonEnv  []string
}

// Stores are the policy and secrets that a sandbox lives under.
type Stores interface {
	// Ready returns an error if no sandbox may be made yet, such as without a policy.
	Ready() error
	// CA returns the certificate (PEM) of the proxy, made when it is first asked for.
	CA() ([]byte, error)
	// Env returns the variables with placeholders for the sandbox's secrets.
	Env(sandbox string) ([]string, error)
	// Drop removes the sandbox's own rules and secrets.
	Drop(ctx context.Context, sandbox string) error
}

func (e *Engine) logger() *slog.Logger {
	if e.Log != nil {
		return e.Log
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

// took tells, for who wants to know where the time goes, how long a step of a start was.
func (e *Engine) took(step string, begun time.Time) {
	e.logger().Debug("step", "of", step, "took", time.Since(begun))
}

// CreateSpec says what to make.
type CreateSpec struct {
	Name       string
	Agent      string
	Workspaces []Workspace // Source and File are found out
	CPUs       int         // 0: all
	MemoryMiB  int         // 0: half of the machine's, at most 32 GiB
	Env        []string    // NAME=VALUE
	Resolve    map[string]string
	UpstreamCA string // PEM
	Template   string // "": HostTemplate
	Ports      []ports.Port
	Clone      string // top folder of a repository to work in a clone of, in the place of a first workspace; see FindRepository
	// Prepare runs after the record exists and before anything in the sandbox does: for rules that must hold from the start.
	Prepare func(ctx context.Context, r Record) error
}

// undoTimeout bounds taking back a creation that failed.
const undoTimeout = time.Minute

// Create makes a sandbox and returns it running. On an error nothing of it is left. The error matches ErrExists if the
// name is taken and ErrNoTemplate if there is no such template, and is a *NameError, *WorkspaceError or *IsolationError where that is the reason.
func (e *Engine) Create(ctx context.Context, spec CreateSpec) (Record, error) {
	if err := CheckName(spec.Name); err != nil {
		return Record{}, err
	}
	if err := e.Stores.Ready(); err != nil {
		return Record{}, err
	}
	if err := checkEnv(spec.Env); err != nil {
		return Record{}, err
	}
	workspaces, err := e.checkWorkspaces(spec.Workspaces)
	if err != nil {
		return Record{}, err
	}
	var clone *Workspace
	if spec.Clone != "" {
		if err := checkClone(spec.Name); err != nil {
			return Record{}, err
		}
		list, err := e.checkWorkspaces([]Workspace{{Path: spec.Clone}})
		if err != nil {
			return Record{}, err
		}
		clone = &list[0]
		spec.Ports = append(slices.Clone(spec.Ports), gitPort())
	}
	if err := e.Probe(ctx); err != nil {
		return Record{}, err
	}
	ca, err := e.Stores.CA()
	if err != nil {
		return Record{}, fmt.Errorf("certificate of the proxy: %w", err)
	}
	unlock, err := e.lock(ctx, spec.Name)
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	switch old, err := e.load(spec.Name); {
	case err == nil && old.Status != Creating:
		return Record{}, ErrExists
	case err == nil: // its creator died; we hold its lock
		if err := e.remove(ctx, old); err != nil {
			return Record{}, fmt.Errorf("clean up after an interrupted create: %w", err)
		}
	case !errors.Is(err, ErrNotFound):
		return Record{}, err
	}
	begun := time.Now()
	session, err := e.Session(ctx)
	if err != nil {
		return Record{}, err
	}
	defer session.Close()
	e.took("daemon", begun)

	now := time.Now().UTC()
	r := Record{
		Version: recordVersion, Name: spec.Name, ID: uuid.NewString(), Agent: spec.Agent, Status: Creating, Workspaces: workspaces,
		CreatedAt: now, LastUsedAt: now, CPUs: spec.CPUs, MemoryMiB: spec.MemoryMiB, Isolation: e.Isolation(), Limits: e.Limits(),
		Resolve: spec.Resolve, UpstreamCA: spec.UpstreamCA, Clone: clone,
	}
	if r.MemoryMiB == 0 {
		r.MemoryMiB = min(hostMemoryMiB()/2, 32<<10)
	}
	if r.Ports, err = e.allot(r, spec.Ports); err != nil {
		return Record{}, err
	}
	placeholders, err := e.Stores.Env(r.Name)
	if err != nil {
		return Record{}, fmt.Errorf("secrets: %w", err)
	}
	t, disk, release, err := e.claimTemplate(ctx, spec.Template)
	if err != nil {
		return Record{}, err
	}
	if disk != nil {
		defer disk.Close()
	}
	r.Template, r.Image, r.ImageEnv = spec.Template, t.Image, t.Env
	r.Env = slices.Concat(imageEnv(r.ImageEnv), baseEnv(r, ca), placeholders, spec.Env)
	err = os.MkdirAll(e.State.SandboxDir(r.Name), 0o700)
	if err == nil {
		err = e.save(r)
	}
	release()
	if err == nil {
		err = e.create(ctx, &r, ca, disk, session, spec.Prepare)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return Record{}, errors.Join(err, e.remove(undo, r))
	}
	return r, nil
}

func (e *Engine) create(ctx context.Context, r *Record, ca []byte, disk *os.File, s *Session, prepare func(context.Context, Record) error) error {
	if prepare != nil {
		if err := prepare(ctx, *r); err != nil {
			return err
		}
	}
	var from io.Reader
	if disk != nil {
		from = disk
	}
	written := make(chan error, 1)
	go func(r Record) {
		begun := time.Now()
		err := e.writeDisk(r, ca, from)
		e.took("disk", begun)
		written <- err
	}(*r)
	err := e.layOut(ctx, r, s)
	if diskErr := <-written; diskErr != nil {
		err = errors.Join(err, fmt.Errorf("disk: %w", diskErr))
	}
	if err != nil {
		return err
	}
	if err := e.start(ctx, r); err != nil {
		return err
	}
	if err := e.published(ctx, *r, r.Ports); err != nil || r.Clone == nil {
		return err
	}
	if err := e.addRemote(ctx, *r); err != nil {
		return fmt.Errorf("remote of the repository: %w", err)
	}
	return nil
}

// layOut makes all that a sandbox starts from but its disk.
func (e *Engine) layOut(ctx context.Context, r *Record, s *Session) error {
	begun := time.Now()
	if err := s.Sync(ctx); err != nil { // the proxy's socket is there before the sandbox is
		return err
	}
	e.took("proxy", begun)
	limits := settings.Open(e.State.Dir)
	var err1, err2 error
	r.DiskGiB, err1 = limits.DiskGiB()
	r.Pids, err2 = limits.Pids()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	begun = time.Now()
	if err := e.writeBundle(*r); err != nil {
		return err
	}
	e.took("root", begun)
	return nil
}

// start boots the sandbox from what was laid out and saves it as running.
func (e *Engine) start(ctx context.Context, r *Record) error {
	begun := time.Now()
	if err := e.boot(ctx, r); err != nil {
		return err
	}
	e.took("boot", begun)
	switch {
	case r.Clone == nil:
	case r.Status == Creating:
		if err := e.makeClone(ctx, *r); err != nil {
			return err
		}
		if err := e.serveClone(ctx, *r); err != nil {
			return err
		}
	default: // what is in there must stay within reach, whatever became of git or the clone
		if err := e.serveClone(ctx, *r); err != nil {
			e.logger().Error("the clone is not served", "sandbox", r.Name, "err", err)
		}
	}
	r.Status = Running
	r.StartedAt = time.Now().UTC()
	r.LastUsedAt = r.StartedAt
	return e.save(*r)
}

// Ensure returns the named sandbox running: it starts a stopped one and reports that it did. A sandbox whose process was
// lost is started from its disk as of the last stop, and lost says so.
func (e *Engine) Ensure(ctx context.Context, name string) (r Record, started, lost bool, err error) {
	r, err = e.load(name)
	if err != nil {
		return Record{}, false, false, err
	}
	if r.Status == Running && !r.Lost() {
		return r, false, false, nil
	}
	unlock, err := e.lock(ctx, name)
	if err != nil {
		return Record{}, false, false, err
	}
	defer unlock()
	if r, err = e.load(name); err != nil {
		return Record{}, false, false, err
	}
	switch {
	case r.Status == Running && !r.Lost():
		return r, false, false, nil
	case r.Status == Creating:
		return Record{}, false, false, errors.Join(ErrNotFound, e.remove(ctx, r))
	}
	lost = r.Lost()
	if err := e.restart(ctx, &r); err != nil {
		return Record{}, false, lost, err
	}
	return r, true, lost, nil
}

func (e *Engine) restart(ctx context.Context, r *Record) error {
	session, err := e.Session(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := e.destroy(ctx, *r); err != nil {
		return err
	}
	if _, err := e.checkWorkspaces(r.Workspaces); err != nil {
		return err
	}
	if r.Clone != nil {
		if _, err := e.checkWorkspaces([]Workspace{*r.Clone}); err != nil {
			return err
		}
	}
	r.Status, r.Process, r.ProcessStart = Starting, 0, 0
	if err := e.save(*r); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(e.State.SandboxDir(r.Name), "rootfs")); err != nil {
		return err
	}
	err = e.layOut(ctx, r, session)
	if err == nil {
		err = e.start(ctx, r)
	}
	if err == nil {
		if err := e.published(ctx, *r, r.Ports); err != nil { // the sandbox is of use all the same
			e.logger().Error("a published port cannot be had", "sandbox", r.Name, "err", err)
		}
	} else {
		r.Status, r.Process, r.ProcessStart = Stopped, 0, 0
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return errors.Join(err, e.destroy(undo, *r), e.save(*r), session.Sync(undo))
	}
	return nil
}

// KeepAlive keeps the sandbox from being stopped for want of a session, from now on. The error matches ErrNotFound.
func (e *Engine) KeepAlive(ctx context.Context, name string) error {
	unlock, err := e.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := e.load(name)
	if err != nil || r.KeepAlive {
		return err
	}
	r.KeepAlive = true
	if err := e.save(r); err != nil {
		return err
	}
	e.notify(ctx)
	return nil
}

// Stop ends the sandbox and keeps its disk. One that is stopped already is left so. One whose process was lost keeps its disk
// as of its last start, and lost says so.
func (e *Engine) Stop(ctx context.Context, name string) (lost bool, err error) {
	unlock, err := e.lock(ctx, name)
	if err != nil {
		return false, err
	}
	defer unlock()
	r, err := e.load(name)
	switch {
	case err != nil:
		return false, err
	case r.Status == Creating:
		return false, errors.Join(ErrNotFound, e.remove(ctx, r))
	case r.Status == Stopped:
		return false, nil
	}
	lost = r.Lost()
	if r.cut { // if a daemon sees it, then from where we cannot look
		s, err := e.Session(ctx)
		if err != nil {
			return false, err
		}
		defer s.Close()
	}
	if r.Status == Running && !lost {
		if err := e.saveDisk(ctx, r); err != nil {
			return false, err
		}
		r.Status = Stopping // from here on a crash loses nothing
		if err := e.save(r); err != nil {
			return false, err
		}
	}
	if err := e.end(ctx, &r); err != nil {
		return lost, err
	}
	e.notify(ctx)
	e.State.dropRuntime()
	return lost, nil
}

// end ends whatever of the sandbox runs and records it as stopped; the caller holds its lock.
func (e *Engine) end(ctx context.Context, r *Record) error {
	if err := errors.Join(e.destroy(ctx, *r), os.RemoveAll(e.State.ProxyDir(r.ID))); err != nil {
		return err
	}
	if r.Status != Starting { // else it was stopped all the time
		r.StoppedAt = time.Now().UTC()
	}
	r.Status, r.Process, r.ProcessStart = Stopped, 0, 0
	return e.save(*r)
}

// Remove ends the sandbox, whatever its state, and removes its disk, rules and secrets. The error matches ErrNotFound.
func (e *Engine) Remove(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	unlock, err := e.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := e.load(name)
	if errors.Is(err, ErrRecord) {
		r, err = e.unread(name)
	}
	if err != nil {
		if _, statErr := os.Stat(e.State.SandboxDir(name)); !errors.Is(err, ErrNotFound) || statErr != nil {
			return err
		}
		// A folder without a record: a create that died before its first write.
		return errors.Join(ErrNotFound, os.RemoveAll(e.State.SandboxDir(name)))
	}
	if err := e.remove(ctx, r); err != nil {
		return err
	}
	e.notify(ctx)
	e.State.dropRuntime() // a daemon that was stopped before could not
	if r.Image == "" {
		return nil
	}
	unlockTemplates, err := e.lockTemplates(ctx)
	if err != nil {
		return err
	}
	defer unlockTemplates()
	return e.collectImages()
}

// remove takes everything of r away; the caller holds its lock. The record goes last, so that a crash leaves it findable.
func (e *Engine) remove(ctx context.Context, r Record) error {
	ctx = context.WithoutCancel(ctx)
	if err := e.removeRemote(ctx, r); err != nil { // it is the user's repository: no reason to keep the sandbox
		e.logger().Error("could not remove the sandbox's remote", "repository", r.Clone.Source, "err", err)
	}
	if err := errors.Join(e.destroy(ctx, r), e.Stores.Drop(ctx, r.Name), os.RemoveAll(e.State.ProxyDir(r.ID))); err != nil {
		return err
	}
	dir := e.State.SandboxDir(r.Name)
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == "record.json" {
			continue
		}
		if err := removeAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// Recover finishes what interrupted commands left: a half-made sandbox is removed, a half-started or half-stopped one is
// stopped. It takes each sandbox's lock only if it is free: behind a held one somebody is at work.
func (e *Engine) Recover(ctx context.Context) error {
	list, err := e.all()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range list {
		if r.Status == Creating || r.Status == Starting || r.Status == Stopping {
			errs = append(errs, e.recoverOne(ctx, r.Name))
		}
	}
	return errors.Join(errs...)
}

// recoverPatience bounds the wait for the lock of a sandbox that somebody may be working on.
const recoverPatience = 20 * time.Millisecond

func (e *Engine) recoverOne(ctx context.Context, name string) error {
	try, cancel := context.WithTimeout(ctx, recoverPatience)
	defer cancel()
	unlock, err := e.lock(try, name)
	if err != nil {
		return nil // its creator is at work
	}
	defer unlock()
	r, err := e.load(name)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return err
	case r.Status == Creating:
		return e.remove(ctx, r)
	case r.Status == Starting || r.Status == Stopping:
		return e.end(ctx, &r)
	}
	return nil
}

// touch notes that the sandbox was used. It is a file's time, not the record, so that an exec takes no lock and syncs nothing.
func (e *Engine) touch(name string) {
	path := e.usedPath(name)
	now := time.Now()
	if os.Chtimes(path, now, now) == nil {
		return
	}
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600); err == nil { // a sandbox that is being removed has no folder
		f.Close()
	}
}

func (e *Engine) usedPath(name string) string { return filepath.Join(e.State.SandboxDir(name), "used") }
