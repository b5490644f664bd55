package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/workspace"
)

// ErrNotResumable matches the error for a run that cannot be gone on with: it came to its end, or what it worked on is gone.
var ErrNotResumable = errors.New("the run cannot be gone on with")

// Resume goes on with a run that was cancelled, that a limit ended, or whose process or engine died: from its folder, under the
// configuration that it was started with, on a fresh pair. Of req only Store, Locate, Lookup, Home, Version, Sink, Keep and Limits
// count, and Config for saying what differs today (field report R153).
//
// The phase that was interrupted is done again. What the agent had written into its folder is still there; its CLI's session
// went with the old sandbox. The error matches [ErrNotResumable] or [pair.ErrOwned] if there is nothing to go on with.
func Resume(ctx context.Context, req Request, id pair.RunID) (Result, error) {
	rec, err := Load(req.Store, id)
	if errors.Is(err, fs.ErrNotExist) {
		return Result{}, fmt.Errorf("%w: %s ended before it recorded its task; start it anew", ErrNotResumable, id)
	}
	if err != nil {
		return Result{}, err
	}
	if why := rec.final(); why != "" {
		return Result{}, fmt.Errorf("%w: %s: %s", ErrNotResumable, id, why)
	}
	changes, err := config.Diff(rec.Asked.Config, req.Config)
	if err != nil {
		return Result{}, err
	}
	drift := []events.Change{}
	for _, c := range changes {
		if slices.Contains(rec.Asked.Given, c.Key) {
			continue
		}
		drift = append(drift, asEvents([]config.Change{c})...)
	}
	limits := maps.Clone(rec.State.Limits)
	if limits == nil {
		limits = map[string]string{}
	}
	maps.Copy(limits, req.Limits)
	own, err := rec.Asked.Config.WithLimits(limits)
	if err != nil {
		return Result{}, err
	}
	given, err := config.Diff(rec.Asked.Config, own)
	if err != nil {
		return Result{}, err
	}
	req.Task, req.Dir, req.Config, req.AllowDirty = rec.Asked.Task, rec.Asked.Dir, own, rec.Asked.AllowDirty
	req.Issue, req.Staged = rec.Asked.Issue, rec.Asked.Staged
	r := &run{req: req, id: id, began: time.Now(), started: rec.Asked.Started, state: rec.State, repo: rec.Asked.Repository, drift: drift}
	r.state.Limits, r.given = limits, asEvents(given)
	r.fresh, r.resumed = len(r.state.Sessions), true
	err = r.start(ctx)
	return r.result, err
}

func asEvents(changes []config.Change) (list []events.Change) {
	for _, c := range changes {
		list = append(list, events.Change{Key: c.Key, Own: c.A, Now: c.B})
	}
	return list
}

// final says why there is nothing to go on with, or nothing.
func (rec Record) final() string {
	switch _, err := os.Stat(rec.State.Workspace.Dir); {
	case rec.State.Ended:
		return "it came to its end: " + rec.Lease.Outcome
	case rec.State.begun() && err != nil:
		return "its workspace is gone; what the agent had left may be in its " + workFile
	}
	return ""
}

// begun reports whether the agent worked already.
func (s State) begun() bool { return s.Attempt > 0 || len(s.Sessions) > 0 }

// ends reports whether err, the outcome of a run, is a verdict on it, rather than an interruption that it could go on from: a
// cancellation, a spent budget, a lost machine, an engine or a token in trouble.
func ends(err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, context.Canceled), errors.Is(err, ErrBudget), errors.Is(err, pair.ErrLost):
		return false
	}
	for _, verdict := range []error{ErrNothing, ErrRefused, ErrFailed, ErrNoTask, ErrTask, ErrNoAgent, config.ErrInvalid,
		provision.ErrRefused, provision.ErrNotProven, workspace.ErrHostile, workspace.ErrTooLarge} {
		if errors.Is(err, verdict) {
			return true
		}
	}
	return false
}

// retake makes the run this process's.
func (r *run) retake(ctx context.Context) (err error) {
	r.pair, err = pair.Retake(ctx, r.engine.Unverified(), r.req.Store, r.id, r.engineRef, time.Duration(r.req.Config.Limits.Release))
	if err != nil {
		return err
	}
	// What was granted was granted to the old pair; it is in the record.
	return r.grants().Forget()
}

// reopen goes on with the run's log, and says what is different today.
func (r *run) reopen() (err error) {
	if r.log, err = events.Reopen(r.result.Log, r.redact.Bytes, r.req.Sink); err != nil {
		return err
	}
	r.log.Emit(events.Resumed{Version: r.req.Version, Attempt: r.state.Attempt, Done: r.state.Done, Drift: r.drift, Given: r.given})
	return nil
}

// preflightAgain checks what can be checked before the old pair is removed. The user's checkout is looked at only if there is no
// workspace yet: it may have moved on.
func (r *run) preflightAgain(ctx context.Context) error {
	if err := r.preflightAgent(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(r.state.Workspace.Dir); err != nil { // none, or one that went with a run that had not begun
		r.state.Workspace = workspace.Workspace{}
		if err := RemoveWorkspace(r.req.Store.Dir(r.id)); err != nil { // half a copy
			return err
		}
		var err error
		if r.look, err = r.checkout(ctx); err != nil {
			return err
		}
	}
	var err error
	if r.engine, r.engineRef, err = r.req.Locate(ctx); err != nil {
		return err
	}
	return r.checkWay()
}

// interrupted reports whether an earlier session may have left unfinished work of this attempt.
func (r *run) interrupted() bool {
	return r.resumed && r.state.Attempt > 0 && r.fresh == len(r.state.Sessions)
}
