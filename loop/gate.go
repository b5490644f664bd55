package loop

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// gate decides whether what the agent left may be delivered, asks a person where one has to decide, and writes down what will be
// delivered, so that any later process can do it.
func (r *run) gate(ctx context.Context) (string, error) {
	var err error
	if r.finishes != "" { // the gate has seen it
		r.result.Finish = r.handover.command()
		if r.handover.works() {
			r.result.Work = filepath.Join(r.req.Store.Dir(r.finishes), workFile)
		}
		return "as the run left it", r.approve(ctx, r.handover)
	}
	if r.bounds, err = r.makeBounds(); err != nil {
		return "", err
	}
	verdict := github.Verdict{Decision: github.Allow, Reasons: []github.Reason{}}
	if !r.state.End.Empty {
		if verdict, err = r.judge(ctx); err != nil {
			return "", err
		}
	}
	gated := events.Gated{Accepted: verdict.Decision != github.Refuse}
	for _, reason := range verdict.Reasons {
		if reason.Decision == github.Ask && gated.Accepted {
			gated.Warnings = append(gated.Warnings, reason.String())
		} else {
			gated.Refusals = append(gated.Refusals, reason.String())
		}
	}
	r.log.Emit(gated)
	if r.handover, err = r.prepareHandover(ctx, verdict); err != nil {
		return "", err
	}
	if err := r.record(r.handover); err != nil {
		return "", err
	}
	r.result.Finish = r.handover.command()
	if !gated.Accepted {
		return "", r.handover.refusal(strings.Join(gated.Refusals, "; "))
	}
	if err := r.approve(ctx, r.handover); err != nil {
		return "", err
	}
	if len(verdict.Reasons) > 0 {
		return "approved", nil
	}
	return "within bounds", nil
}

// judge is the gate's verdict about the change, with what it cannot see of it as text.
func (r *run) judge(ctx context.Context) (github.Verdict, error) {
	verdict := github.Check(r.bounds, github.Change{
		Repo: r.bounds.Repo, Fork: r.bounds.Fork, Branch: r.branch(), BaseBranch: r.baseBranch(), Title: r.pullTitle(), Patch: r.state.End.Patch,
		PatchTruncated: r.state.End.PatchTruncated, Files: changed(r.state.End),
	})
	hidden, err := r.hiddenSecrets(ctx)
	if err != nil {
		return verdict, err
	}
	if len(hidden) > 0 {
		verdict.Decision, verdict.Reasons = github.Refuse, append(hidden, verdict.Reasons...)
	}
	return verdict, nil
}

// makeBounds is what the run may write, as it was configured.
func (r *run) makeBounds() (github.Bounds, error) {
	repo, err := github.ParseRepo(r.repo)
	if err != nil {
		return github.Bounds{}, err
	}
	cfg := r.req.Config
	base := r.baseBranch()
	if r.handover != nil {
		base = r.handover.BaseBranch
	}
	b, err := Bounds(cfg, repo, base)
	if err != nil {
		return b, err
	}
	for _, v := range []secrets.Value{r.agentToken, r.githubToken} {
		if !v.IsZero() {
			b.Secrets = append(b.Secrets, v)
		}
	}
	b.Requests = r.requestBounds()
	return b, nil
}

// Bounds are what a configuration lets a change to repo touch that goes to the branch base.
func Bounds(cfg config.Config, repo github.Repo, base string) (github.Bounds, error) {
	b := github.DefaultBounds(repo, base)
	var err error
	if b.Fork, err = forkOf(cfg.GitHub); err != nil {
		return b, fmt.Errorf("%w: github.fork: %w", config.ErrInvalid, err)
	}
	b.MaxFiles, b.MaxPatch = cfg.Gate.MaxFiles, int64(cfg.Gate.MaxPatchKiB)<<10
	b.BranchPrefix, b.TitlePrefix = cfg.GitHub.BranchPrefix, cfg.GitHub.TitlePrefix
	b.Executables, b.Links, b.Submodules = github.Policy(cfg.Gate.Executables), github.Policy(cfg.Gate.Links), github.Policy(cfg.Gate.Submodules)
	switch github.Policy(cfg.Gate.ProtectMode) {
	case github.PolicyAllow:
		b.Protected = nil
		if b.Executables == github.PolicyAsk {
			b.Executables = github.PolicyAllow
		}
	case github.PolicyAsk:
		for i := range b.Protected {
			b.Protected[i].Policy = github.PolicyAsk
		}
	}
	if len(cfg.Gate.Protected) > 0 {
		// First: one's own paths are one's own to name, whatever the built-in ones are set to.
		b.Protected = append([]github.Protection{{Name: "configured", Patterns: cfg.Gate.Protected, Policy: github.PolicyBlock}}, b.Protected...)
	}
	if len(cfg.Gate.Only) > 0 {
		b.AllowedPaths = cfg.Gate.Only
	}
	return b, nil
}

// changed is the end state's list of files as the gate takes it.
func changed(e workspace.EndState) []github.FileChange {
	var list []github.FileChange
	for _, f := range e.Files {
		list = append(list, github.FileChange{Path: f.Path, OldPath: f.OldPath, Mode: f.Mode, OldMode: f.OldMode, Status: string(f.Status)})
	}
	return list
}

// maxScan bounds how much of one file is searched.
const maxScan = 32 << 20

// hiddenSecrets looks for credentials where the patch does not show them as text: the values of this run in any new
// content, and anything of a credential's shape in binary files.
func (r *run) hiddenSecrets(ctx context.Context) ([]github.Reason, error) {
	binary := map[string]bool{}
	for _, f := range r.state.End.Files {
		binary[f.Path] = f.Binary
	}
	scanner := secrets.NewScanner()
	var refusals []github.Reason
	refuse := func(path, detail string) {
		refusals = append(refusals, github.Reason{Code: github.ReasonSecret, Decision: github.Refuse, Path: fmt.Sprintf("%q", path), Detail: detail})
	}
	err := r.state.Workspace.Blobs(ctx, r.state.End, maxScan, func(path string, data []byte) error {
		found := scanner.Scan(data)
		switch {
		case r.redact.Contains(data):
			refuse(path, "holds a credential of this run")
		case binary[path] && len(found) > 0:
			refuse(path, fmt.Sprintf("holds what has the shape of a credential (%s)", found[0].Kind))
		}
		return nil
	})
	return refusals, err
}
