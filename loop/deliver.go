package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
)

// gate decides whether what the agent left may be delivered.
func (r *run) gate(context.Context) (string, error) {
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
	gated := events.Gated{Accepted: verdict.Decision == github.Allow}
	for _, reason := range verdict.Reasons {
		gated.Refusals = append(gated.Refusals, reason.String())
	}
	r.log.Emit(gated)
	if !gated.Accepted {
		return "", fmt.Errorf("%w: %s", ErrRefused, strings.Join(gated.Refusals, "; "))
	}
	return "within bounds", nil
}

// deliver hands the checked change to the github sandbox and opens the pull request from there.
func (r *run) deliver(ctx context.Context) (string, error) {
	endpoint, err := github.ParseEndpoint(r.req.Config.GitHub.Host)
	if err != nil {
		return "", err
	}
	repo, err := github.ParseRepo(r.repo)
	if err != nil {
		return "", err
	}
	var bundle bytes.Buffer
	if err := r.work.WriteBundle(ctx, r.end, "refs/heads/"+r.branch(), &bundle); err != nil {
		return "", err
	}
	client := github.NewClient(r.pair.GitHub, endpoint, github.WithVersion(r.req.Version))
	defer client.Close()
	done, err := github.Deliver(ctx, r.pair.GitHub, client, github.Delivery{
		Run: string(r.id), Repo: repo, Base: r.end.Base, BaseBranch: r.baseBranch(), Head: r.end.Head, Branch: r.branch(),
		Bundle: &bundle, Title: r.title(), Body: r.body(), Ready: !r.req.Config.GitHub.Draft, Comment: r.comment(), Bounds: r.bounds,
	})
	if err != nil {
		return "", deliveryError(err)
	}
	r.result.Delivered = events.Delivered{
		Branch: done.Branch, Commit: done.Head, PullRequest: done.PullRequest.URL, Number: done.PullRequest.Number,
		Draft: done.PullRequest.Draft,
	}
	if done.Comment != nil {
		r.result.Delivered.Comment = done.Comment.URL
	}
	r.log.Emit(r.result.Delivered)
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
