package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/workspace"
)

// errRequestsOnly ends the attempts of a run whose agent changed nothing and asked for something on GitHub, which is its work then.
var errRequestsOnly = errors.New("nothing changed, but something was asked for")

// collect imports what the agent left.
func (r *run) collect(ctx context.Context) (string, error) {
	if err := r.fetch(ctx, false); err != nil {
		return "", err
	}
	if err := r.readOutbox(ctx); err != nil {
		return "", err
	}
	if r.state.End.Empty {
		if r.writes() {
			return fmt.Sprintf("nothing changed; requests: %d", len(r.state.Requests)), errRequestsOnly
		}
		if err := judged(agent.Judge(r.agentResult, false)); err != nil {
			return "", err
		}
		return "", fmt.Errorf("%w: the agent changed nothing", ErrNothing)
	}
	return fmt.Sprintf("changed files: %d", len(r.state.End.Files)), nil
}

// fetch takes the end state and keeps it in the run's folder. An unfinished one is of an agent that did not get to its end:
// nothing judges or delivers it.
func (r *run) fetch(ctx context.Context, unfinished bool) error {
	r.quiesce(ctx)
	end, err := r.state.Workspace.Collect(ctx, r.guest(), workspace.CollectOptions{Message: r.title()})
	r.unfetched = ctx.Err() != nil // otherwise it is there now, or cannot be had
	r.untaken = errors.Is(err, workspace.ErrHostile) || errors.Is(err, workspace.ErrTooLarge)
	if err != nil {
		return err
	}
	r.state.End, r.state.Commits = end, end.Commits
	commits := len(r.state.Commits)
	for _, note := range end.Notes {
		r.log.Emit(events.Noted{Text: note})
	}
	if end.Ignored > 0 {
		r.log.Emit(events.Noted{Text: fmt.Sprintf("%d ignored files and folders are not delivered: %s", end.Ignored, list(end.IgnoredPaths, 5))})
	}
	if !end.Empty {
		// One commit of ours: what the agent committed and took back again, its messages and its identities stay here.
		if r.state.End, err = r.state.Workspace.Squash(ctx, end, r.title(), r.started); err != nil {
			return err
		}
		if err := r.keepWork(ctx); err != nil {
			return err
		}
		r.result.Work = filepath.Join(r.result.Dir, workFile)
	}
	summary := events.EndState{Base: r.state.End.Base, Head: r.state.End.Head, Commits: commits, Bytes: len(r.state.End.Patch), Unfinished: unfinished}
	for _, p := range r.state.End.Pushed {
		summary.Pushed = append(summary.Pushed, events.Push(p))
	}
	summary.Truncated = r.state.End.PatchTruncated || r.state.End.FilesTruncated
	for _, f := range r.state.End.Files {
		summary.Files = append(summary.Files, f.Path)
	}
	r.result.EndState = &summary
	r.log.Emit(summary)
	return nil
}

// salvageLimit bounds the end state of a run that is over: whoever cancelled it waits.
const salvageLimit = time.Minute

// salvage takes the end state of an agent that a limit, a cancellation or its own failure ended, while its sandbox is there:
// what it did was paid for.
func (r *run) salvage(ctx context.Context, err error) {
	if !r.unfetched || errors.Is(err, pair.ErrLost) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), salvageLimit)
	defer cancel()
	attempt, start := r.state.Attempt, time.Now()
	r.log.Emit(events.PhaseStarted{Phase: events.PhaseEndState, Attempt: attempt})
	failure := r.fetch(ctx, true)
	if failure == nil && !r.state.End.Empty && !r.deliverable() {
		failure = r.keepPatch()
	}
	detail := fmt.Sprintf("unfinished; changed files: %d", len(r.state.End.Files))
	if failure != nil {
		r.log.Emit(events.Noted{Text: "what the agent had done by then could not be fetched: " + failure.Error()})
	}
	r.ended(events.PhaseEndState, attempt, time.Since(start), detail, failure)
}

// keepWork writes what the agent left into the run's folder, so that it outlives a run that fails from here on.
func (r *run) keepWork(ctx context.Context) error {
	file, err := openPrivate(filepath.Join(r.result.Dir, workFile))
	if err != nil {
		return fmt.Errorf("keep the work: %w", err)
	}
	return errors.Join(r.writeBundle(ctx, file), file.Close())
}

// keepPatch puts what the agent changed into the run's folder as a patch: the end of a run that delivers nothing.
func (r *run) keepPatch() error {
	path := filepath.Join(r.result.Dir, patchFile)
	if err := os.WriteFile(path, r.redact.Bytes(r.state.End.Patch), 0o600); err != nil {
		return fmt.Errorf("keep the patch: %w", err)
	}
	r.result.Patch = path
	return nil
}
