package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/secrets"
)

// gate decides whether what the agent left may be delivered.
func (r *run) gate(ctx context.Context) (string, error) {
	repo, err := github.ParseRepo(r.repo)
	if err != nil {
		return "", err
	}
	cfg := r.req.Config
	bounds := github.DefaultBounds(repo, r.baseBranch())
	bounds.MaxFiles, bounds.MaxPatch = cfg.Gate.MaxFiles, int64(cfg.Gate.MaxPatchKiB)<<10
	bounds.BranchPrefix = cfg.GitHub.BranchPrefix
	bounds.Protected = append(bounds.Protected, github.Protection{Name: "configured", Patterns: cfg.Gate.Protected, Policy: github.PolicyBlock})
	if cfg.Gate.ProtectMode == "allow" {
		bounds.Protected, bounds.Executables = nil, github.PolicyAllow
	}
	bounds.Secrets = append(bounds.Secrets, r.agentToken, r.githubToken)
	change := github.Change{
		Repo: repo, Branch: r.branch(), BaseBranch: r.baseBranch(), Title: r.title(), Patch: r.end.Patch, PatchTruncated: r.end.PatchTruncated,
	}
	for _, f := range r.end.Files {
		change.Files = append(change.Files, github.FileChange{
			Path: f.Path, OldPath: f.OldPath, Mode: f.Mode, OldMode: f.OldMode, Status: string(f.Status),
		})
	}
	r.bounds = bounds
	verdict := github.Check(bounds, change)
	gated := events.Gated{}
	for _, reason := range verdict.Reasons {
		gated.Refusals = append(gated.Refusals, reason.String())
	}
	hidden, err := r.hiddenSecrets(ctx)
	if err != nil {
		return "", err
	}
	gated.Refusals = append(gated.Refusals, hidden...)
	gated.Accepted = verdict.Decision == github.Allow && len(hidden) == 0
	r.log.Emit(gated)
	if !gated.Accepted {
		return "", fmt.Errorf("%w: %s", ErrRefused, strings.Join(gated.Refusals, "; "))
	}
	return "within bounds", nil
}

// maxScan bounds how much of one file is searched.
const maxScan = 32 << 20

// hiddenSecrets looks for credentials where the patch does not show them as text: the values of this run in any new
// content, and anything of a credential's shape in binary files. It returns refusals.
func (r *run) hiddenSecrets(ctx context.Context) ([]string, error) {
	binary := map[string]bool{}
	for _, f := range r.end.Files {
		binary[f.Path] = f.Binary
	}
	scanner := secrets.NewScanner()
	var refusals []string
	err := r.work.Blobs(ctx, r.end, maxScan, func(path string, data []byte) error {
		found := scanner.Scan(data)
		switch {
		case r.redact.Contains(data):
			refusals = append(refusals, fmt.Sprintf("%s: %q: holds a credential of this run", github.ReasonSecret, path))
		case binary[path] && len(found) > 0:
			refusals = append(refusals, fmt.Sprintf("%s: %q: holds what has the shape of a credential (%s)", github.ReasonSecret, path, found[0].Kind))
		}
		return nil
	})
	return refusals, err
}

// github returns a client whose every request leaves from inside the github sandbox.
func (r *run) github() (*github.Client, github.Repo, error) {
	endpoint, err := github.ParseEndpoint(r.req.Config.GitHub.Host)
	if err != nil {
		return nil, github.Repo{}, err
	}
	repo, err := github.ParseRepo(r.repo)
	if err != nil {
		return nil, github.Repo{}, err
	}
	return github.NewClient(r.pair.GitHub, endpoint, github.WithVersion(r.req.Version)), repo, nil
}

// keepWork writes what the agent left into the run's folder, so that it outlives a run that fails from here on.
func (r *run) keepWork(ctx context.Context) error {
	file, err := openPrivate(filepath.Join(r.result.Dir, workFile))
	if err != nil {
		return fmt.Errorf("keep the work: %w", err)
	}
	return errors.Join(r.work.WriteBundle(ctx, r.end, "refs/heads/"+r.branch(), file), file.Close())
}

// workFile is the bundle of what the agent left, in the run's folder.
const workFile = "work.bundle"

// deliver hands the checked change to the github sandbox and opens the pull request from there.
func (r *run) deliver(ctx context.Context) (string, error) {
	// Again: the agent had the machine for a while, and the operator may have changed rules and secrets.
	if _, err := r.takeProof(ctx); err != nil {
		return "", err
	}
	var bundle bytes.Buffer
	if err := r.work.WriteBundle(ctx, r.end, "refs/heads/"+r.branch(), &bundle); err != nil {
		return "", err
	}
	client, repo, err := r.github()
	if err != nil {
		return "", err
	}
	defer client.Close()
	done, err := github.Deliver(ctx, r.pair.GitHub, client, github.Delivery{
		Run: string(r.id), Repo: repo, Base: r.end.Base, BaseBranch: r.baseBranch(), Head: r.end.Head, Branch: r.branch(),
		Bundle: &bundle, Title: r.title(), Body: r.body(), Ready: !r.req.Config.GitHub.Draft, Comment: r.comment(), Bounds: r.bounds,
	})
	if done.Push != "" { // also beside an error: what stands on GitHub is said
		r.result.Delivered = events.Delivered{
			Branch: done.Branch, Commit: done.Head, PullRequest: done.PullRequest.URL, Number: done.PullRequest.Number,
			Draft: done.PullRequest.Draft,
		}
		if done.Comment != nil {
			r.result.Delivered.Comment = done.Comment.URL
		}
		r.log.Emit(r.result.Delivered)
	}
	if err != nil {
		return "", deliveryError(err)
	}
	r.result.Work = ""
	if err := os.Remove(filepath.Join(r.result.Dir, workFile)); err != nil { // it is on GitHub now
		r.log.Emit(events.Noted{Text: err.Error()})
	}
	return r.result.Delivered.PullRequest, nil
}

// deliveryError adds what the run calls the outcome.
func deliveryError(err error) error {
	switch {
	case errors.Is(err, github.ErrNoChanges):
		return fmt.Errorf("%w: %w", ErrNothing, err)
	case errors.Is(err, github.ErrRefused):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// baseBranch is the branch that the pull request goes to.
func (r *run) baseBranch() string {
	if base := r.req.Config.GitHub.Base; base != "" {
		return base
	}
	return r.work.BaseBranch
}

// title is the pull request's and its commit's: the task's first line, cleaned like any text.
func (r *run) title() string { return github.CleanTitle(commitMessage(r.req.Task), github.Cleaning{}) }

// body describes the run for whoever reviews it. The agent's own words are quoted as what they are.
func (r *run) body() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Task:\n\n> %s\n\n", strings.ReplaceAll(strings.TrimSpace(r.req.Task), "\n", "\n> "))
	if answer := strings.TrimSpace(r.agentResult.Summary.Answer); answer != "" {
		fmt.Fprintf(&b, "The agent's last words:\n\n> %s\n\n", strings.ReplaceAll(cut(answer, maxMessage), "\n", "\n> "))
	}
	fmt.Fprintf(&b, "%d files changed on %.12s.\n", len(r.end.Files), r.end.Base)
	return b.String()
}

// comment reports the run: what verified it, and what it used.
func (r *run) comment() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sbxpair run %s: %s, %d turns, %d tokens in, %d out.\n", r.id, r.adapter.Name,
		r.agentResult.Summary.Turns, r.agentResult.Usage.Input, r.agentResult.Usage.Output)
	for _, v := range r.result.Verified {
		fmt.Fprintf(&b, "\n`%s`: exit %d in %.1f s\n", v.Command, v.Exit, v.Took.Seconds())
	}
	if len(r.result.Verified) > 0 && r.req.Config.VerifyIn != "delivered" {
		fmt.Fprintf(&b, "\nThe commands ran in the agent's own folder, which had %d ignored files and folders that are not part of this change.\n", r.end.Ignored)
	}
	if len(r.result.Verified) == 0 {
		b.WriteString("\nNo verify command was configured: nothing was run to check this change.\n")
	}
	return b.String()
}
