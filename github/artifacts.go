package github

import (
	"context"
	"fmt"
)

// Artifacts are files of a run that are kept on GitHub without being part of the change: logs, reports, pictures. Everything in
// it is judged by Bounds as a change is; MaxPatch bounds the sum of all files.
type Artifacts struct {
	Run    string
	Repo   Repo
	Files  []TreeFile // no deletions
	Bounds Bounds
}

// KeptArtifacts says where artifacts are.
type KeptArtifacts struct {
	Branch string    `json:"branch"`
	Commit string    `json:"commit"`
	URL    string    `json:"url"`
	Push   PushState `json:"push"`
}

// ArtifactsBranch is the branch for a run's artifacts. It stands beside the run's own branch, not below it: git has no branch
// x/y where there is a branch x.
func ArtifactsBranch(prefix, run string) string { return prefix + run + "-artifacts" }

// KeepArtifacts makes the run's artifacts branch one commit without parents that holds exactly these files. It is idempotent by
// run id: a second call replaces what the first one left, and nobody else's branch ([*BranchMovedError]).
func (c *Client) KeepArtifacts(ctx context.Context, a Artifacts) (KeptArtifacts, error) {
	d := Delivery{
		Run: a.Run, Repo: a.Repo, Branch: ArtifactsBranch(a.Bounds.BranchPrefix, a.Run), Way: ViaAPI, Files: a.Files, Bounds: a.Bounds,
		Title: a.Bounds.TitlePrefix + "Artifacts of run " + a.Run,
	}
	done := KeptArtifacts{Branch: d.Branch}
	if !runForm.MatchString(a.Run) || !a.Repo.valid() {
		return done, fmt.Errorf("%w: run id or repository name", ErrOutOfBounds)
	}
	if len(a.Files) == 0 {
		return done, ErrNoChanges
	}
	api := &apiDelivery{client: c, repo: a.Repo, d: d}
	if err := checkArtifacts(a, api.change()); err != nil {
		return done, err
	}
	if err := api.fits(); err != nil {
		return done, err
	}
	tree, err := api.tree(ctx, "")
	if err != nil {
		return done, err
	}
	api.d.Tree = tree
	var at string
	done.Commit, at, err = api.standing(ctx)
	if err != nil {
		return done, err
	}
	done.Push = PushUpToDate
	if done.Commit == "" {
		if done.Commit, err = api.makeCommit(ctx); err != nil {
			return done, err
		}
		if done.Commit, done.Push, err = api.point(ctx, done.Commit, at); err != nil {
			return done, err
		}
	}
	done.URL = c.endpoint.WebURL(a.Repo) + "/tree/" + d.Branch
	return done, nil
}

// checkArtifacts is the gate for files that have no patch: the whole of each is what is added.
func checkArtifacts(a Artifacts, c Change) error {
	v := Check(a.Bounds, c)
	more := &verdict{reasons: v.Reasons}
	seen := map[string]bool{}
	var size int64
	for _, f := range a.Files {
		size += int64(len(f.Content))
		shown := oneLine(f.Path, 200)
		if seen[f.Path] || f.Mode == modeNone {
			more.refuse(ReasonPath, shown, "is named twice, or deleted")
		}
		seen[f.Path] = true
		if hit := findSecret(a.Bounds.Secrets, f.Content); hit != "" {
			more.refuse(ReasonSecret, shown, "holds "+hit)
		}
	}
	if size > a.Bounds.MaxPatch {
		more.refuse(ReasonPatchSize, "", fmt.Sprintf("%d bytes, allowed are %d", size, a.Bounds.MaxPatch))
	}
	return more.done().Err()
}
