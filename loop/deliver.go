package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/provision"
)

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

// deliver hands the checked change to the github sandbox, and what was asked for with it; or shows it, where nothing is to be
// written.
func (r *run) deliver(ctx context.Context) (string, error) {
	if r.req.Staged {
		p := r.proposal(r.handover)
		r.result.Staged = &p
		return "staged: nothing was written", nil
	}
	// Again: the agent had the machine for a while, and the operator may have changed rules and secrets.
	if _, err := r.takeProof(ctx); err != nil {
		return "", err
	}
	if err := r.hand(ctx, r.handover); err != nil {
		return "", err
	}
	if err := r.delivered(r.handover); err != nil {
		return "", err
	}
	if r.handover.Head == "" {
		return fmt.Sprintf("requests: %d", len(r.handover.Asked)), nil
	}
	return r.result.Delivered.PullRequest, nil
}

// writeBundle writes what crosses into the github sandbox: the change alone, or all history for a repository that may be empty.
func (r *run) writeBundle(ctx context.Context, out io.Writer) error {
	write := r.state.Workspace.WriteBundle
	if r.req.Config.GitHub.InitEmpty {
		write = r.state.Workspace.WriteHistory
	}
	return write(ctx, r.state.End, "refs/heads/"+r.branch(), out)
}

// deliveryError adds what the run calls the outcome.
func deliveryError(err error) error {
	switch {
	case errors.Is(err, github.ErrNoChanges):
		return fmt.Errorf("%w: %w", ErrNothing, err)
	case errors.Is(err, github.ErrUnauthorized): // the proof before the delivery had it accepted
		return fmt.Errorf("%w: %w", provision.ErrExpired, err)
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
	return r.state.Workspace.BaseBranch
}

// title is the pull request's and its commit's: the task's first line, cleaned like any text.
func (r *run) title() string { return github.CleanTitle(commitMessage(r.req.Task), github.Cleaning{}) }

// pullTitle is what the agent asked for, or the task's first line.
func (r *run) pullTitle() string {
	if asked, ok := r.asked(); ok {
		return asked.Title
	}
	title, prefix := r.title(), r.req.Config.GitHub.TitlePrefix
	if strings.HasPrefix(title, prefix) {
		return title
	}
	return prefix + title
}

// body describes the run for whoever reviews it. The agent's own words are quoted as what they are.
func (r *run) body() string {
	var b strings.Builder
	if asked, ok := r.asked(); ok {
		fmt.Fprintf(&b, "%s\n\n---\n\n", asked.Body)
	}
	if r.req.Issue == 0 { // an issue is linked, and says it itself
		fmt.Fprintf(&b, "Task:\n\n> %s\n\n", strings.ReplaceAll(strings.TrimSpace(r.req.Task), "\n", "\n> "))
	}
	if answer := strings.TrimSpace(r.agentResult.Summary.Answer); answer != "" {
		fmt.Fprintf(&b, "The agent's last words:\n\n> %s\n\n", strings.ReplaceAll(cut(answer, maxMessage), "\n", "\n> "))
	}
	fmt.Fprintf(&b, "%d files changed on %.12s.\n", len(r.state.End.Files), r.state.End.Base)
	return b.String()
}

// comment reports the run: what verified it, and what it used.
func (r *run) comment() string {
	var b strings.Builder
	spent := r.spent(0, agent.Usage{})
	fmt.Fprintf(&b, "sbxpair run %s: %s, attempts: %d, %d turns, %d tokens in, %d out.\n", r.id, r.adapter.Name, r.state.Attempt, spent.Turns, spent.Input, spent.Output)
	for _, v := range r.state.Verified {
		fmt.Fprintf(&b, "\n`%s`: exit %d in %.1f s\n", v.Command, v.Exit, v.Took.Seconds())
	}
	if len(r.state.Verified) > 0 && r.req.Config.VerifyIn != "delivered" {
		fmt.Fprintf(&b, "\nThe commands ran in the agent's own folder, which had %d ignored files and folders that are not part of this change.\n", r.state.End.Ignored)
	}
	if v := r.state.Reviewed; v != nil {
		fmt.Fprintf(&b, "\nA review by a session of its own approved it:\n\n> %s\n", strings.ReplaceAll(v.Summary, "\n", "\n> "))
	}
	if len(r.state.Verified) == 0 {
		b.WriteString("\nNo verify command was configured: nothing was run to check this change.\n")
	}
	return b.String()
}
