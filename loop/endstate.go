package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/workspace"
)

// errRequestsOnly ends the attempts of a run whose agent changed nothing and asked for something on GitHub, which is its work then.
var errRequestsOnly = errors.New("nothing changed, but something was asked for")

// quiesce ends every process in the agent sandbox but the engine's own: the agent's may hide from a search by
// environment or descent, and must not change files behind the end state. Only our own engine runs nothing else there.
func (r *run) quiesce(ctx context.Context) {
	if r.engineRef.Kind != pair.EngineLocal {
		return
	}
	// The shell ends with the others, or is spared: its exit code says nothing.
	r.guest().Run(ctx, guest.Command{Argv: []string{"sh", "-c", "kill -KILL -1"}, Dir: "/"})
}

// collect imports what the agent left.
func (r *run) collect(ctx context.Context) (string, error) {
	r.quiesce(ctx)
	var err error
	r.state.End, err = r.state.Workspace.Collect(ctx, r.guest(), workspace.CollectOptions{Message: r.title()})
	if err != nil {
		return "", err
	}
	r.state.Commits = r.state.End.Commits
	commits := len(r.state.Commits)
	for _, note := range r.state.End.Notes {
		r.log.Emit(events.Noted{Text: note})
	}
	if r.state.End.Ignored > 0 {
		r.log.Emit(events.Noted{Text: fmt.Sprintf("%d ignored files and folders are not delivered: %s", r.state.End.Ignored, list(r.state.End.IgnoredPaths, 5))})
	}
	if !r.state.End.Empty {
		// One commit of ours: what the agent committed and took back again, its messages and its identities stay here.
		if r.state.End, err = r.state.Workspace.Squash(ctx, r.state.End, r.title(), r.started); err != nil {
			return "", err
		}
		if err := r.keepWork(ctx); err != nil {
			return "", err
		}
		r.result.Work = filepath.Join(r.result.Dir, workFile)
	}
	summary := events.EndState{Base: r.state.End.Base, Head: r.state.End.Head, Commits: commits, Bytes: len(r.state.End.Patch)}
	for _, p := range r.state.End.Pushed {
		summary.Pushed = append(summary.Pushed, events.Push(p))
	}
	summary.Truncated = r.state.End.PatchTruncated || r.state.End.FilesTruncated
	for _, f := range r.state.End.Files {
		summary.Files = append(summary.Files, f.Path)
	}
	r.result.EndState = &summary
	r.log.Emit(summary)
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
