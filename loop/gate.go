package loop

import (
	"context"
	"fmt"
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
		Repo: repo, Branch: r.branch(), BaseBranch: r.baseBranch(), Title: r.title(), Patch: r.state.End.Patch, PatchTruncated: r.state.End.PatchTruncated,
	}
	for _, f := range r.state.End.Files {
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
	for _, f := range r.state.End.Files {
		binary[f.Path] = f.Binary
	}
	scanner := secrets.NewScanner()
	var refusals []string
	err := r.state.Workspace.Blobs(ctx, r.state.End, maxScan, func(path string, data []byte) error {
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
