package loop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/workspace"
)

// finish releases the pair and closes the record, whatever happened before.
func (r *run) finish(ctx context.Context, err error) error {
	crash, crashed := errors.AsType[*pair.Crash](err)
	if r.log == nil { // the log could not even be created
		_, releaseErr := r.pair.Release(ctx, Outcome(err), time.Duration(r.req.Config.Limits.Release))
		return errors.Join(err, releaseErr)
	}
	if !crashed { // what it looks at is hostile: the pair goes whatever comes of it
		err = errors.Join(err, pair.Caught(func() error { r.salvage(ctx, err); return nil }))
	}
	r.blocked(ctx)
	if cause := context.Cause(ctx); err == nil && r.upOnly && cause != nil { // after its last step: then nothing is to stay
		err = fmt.Errorf("keep the pair: %w", cause)
	}
	if crashed {
		r.log.Emit(events.Noted{Text: "internal error: " + string(crash.Stack)})
	}
	r.conclude(err)
	r.state.Ended = ends(err) || r.upOnly
	r.result.Resumable = !r.state.Ended && r.state.begun()
	if w := r.state.Workspace; r.untaken && w.Mode != workspace.ModeInPlace {
		r.result.Files = w.Dir
	}
	err = errors.Join(err, r.save())
	r.telling.end(ctx, r.lastWord(err))
	if r.keep(err) && !crashed {
		r.result.Kept = true
		err = errors.Join(err, r.pair.Keep(r.result.Outcome, r.plan.Agent.Environment()))
	} else {
		err = errors.Join(err, r.release(ctx))
	}
	r.tampered()
	r.conclude(err)
	r.log.Emit(events.RunEnded{Outcome: r.result.Outcome, Error: r.result.Reason, Took: r.result.Took})
	err = errors.Join(err, r.receipt(), r.log.Close())
	return err
}

// tampered tells what the agent did to what git runs or obeys in a checkout that it worked in itself. The sandbox is gone, or was kept on purpose.
func (r *run) tampered() {
	paths, err := r.state.Workspace.Tampered()
	if err != nil {
		r.log.Emit(events.Noted{Text: "what the agent did to .git cannot be told: " + err.Error()})
	}
	if r.result.Tampered = paths; len(paths) > 0 {
		r.log.Emit(events.Noted{Text: "changed in what git runs or obeys in the checkout, look at it before you run git there: " + list(paths, 10)})
	}
}

// keep reports whether the pair stays: asked for, or the point of it all. A pair that was never proven does not.
func (r *run) keep(err error) bool {
	failed := err != nil && !errors.Is(err, context.Canceled)
	return r.proven && (r.req.Keep || r.req.KeepFailed && failed || r.upOnly && err == nil)
}

func (r *run) release(ctx context.Context) error {
	r.log.Emit(events.PhaseStarted{Phase: events.PhaseRelease})
	start := time.Now()
	if !r.result.Resumable && r.result.Files == "" {
		r.pair.Last = func() error { return RemoveWorkspace(r.result.Dir) }
	}
	released, releaseErr := r.pair.Release(ctx, r.result.Outcome, time.Duration(r.req.Config.Limits.Release))
	done := events.Released{Removed: released.Removed}
	if releaseErr != nil {
		done.Left = r.id.Names()
	}
	r.log.Emit(done)
	r.ended(events.PhaseRelease, 0, time.Since(start), "", releaseErr)
	return releaseErr
}

// receipt writes the run's summary beside its log, with the hash that closes the log's chain.
func (r *run) receipt() error {
	return writeReceipt(filepath.Join(r.result.Dir, receiptFile), r)
}

// blocked records which hosts the pair was refused. A failure to find out is noted, not fatal.
func (r *run) blocked(ctx context.Context) {
	list, err := r.refused(ctx)
	if err != nil {
		r.log.Emit(events.Noted{Text: "the engine's policy log could not be read: " + err.Error()})
	}
	r.result.Blocked = list
	for _, b := range list {
		r.log.Emit(b)
	}
}

// refused asks the engine which hosts the pair was refused up to now, but for what the proof asked for.
func (r *run) refused(ctx context.Context) ([]events.Blocked, error) {
	if r.pair == nil || r.plan.Run == "" || r.engine == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	seen, err := r.engine.PolicyLog(ctx, "", 0)
	if err != nil {
		return nil, err
	}
	var list []events.Blocked
	for _, e := range seen.Blocked {
		run, role, ours := pair.ParseName(e.Sandbox)
		count := e.Count - r.proofs*r.plan.Probed(role, e.Host)
		if ours && run == r.id && count > 0 {
			list = append(list, events.Blocked{Role: string(role), Host: e.Host, Reason: e.Reason, Count: count})
		}
	}
	return list, nil
}
