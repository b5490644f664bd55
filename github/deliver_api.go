package github

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	gh "github.com/google/go-github/v62/github"
)

// Way is how a delivery brings its commit to GitHub.
type Way string

// The ways.
const (
	// ViaGit pushes the bundle's own commits: one request whatever the size. It is the default.
	ViaGit Way = "git"
	// ViaAPI builds one commit by the Git Data API: no git in the sandbox, and a commit that GitHub signs where the credential is an
	// app's. Small text files ride along in tree requests; each binary or large file costs a request.
	ViaAPI Way = "api"
)

// TreeFile is one path of a change as it should be, for a delivery by the API. A rename is a deletion and a new file.
type TreeFile struct {
	Path    string
	Mode    string // 100644, 100755 or 120000, whose content is the link's target; 000000 deletes
	OldMode string // before the change; 000000 for a new path
	Content []byte
}

// inline reports whether the file rides in a tree request; else it costs a request of its own.
func (f TreeFile) inline() bool {
	return f.Mode == modeNone || len(f.Content) <= inlineFile && utf8.Valid(f.Content) && !slices.Contains(f.Content, 0)
}

const (
	inlineFile    = 100 << 10 // bytes of a text file that rides in a tree request
	treeEntries   = 200       // of one tree request; more than 250 or 2.5 MB were seen to fail (codesandbox-client#8614)
	treeBytes     = 3 << 19
	maxBlob       = 20 << 20 // decoded; base64 and JSON stay below the transport's limit
	maxBlobs      = 100      // of one delivery: each is a request, and GitHub allows 80 writes a minute
	apiCommitNote = "sbxpair-run: "
)

// apiDelivery is the part of a delivery that the Git Data API does.
type apiDelivery struct {
	client *Client
	repo   Repo
	d      Delivery
}

// run makes the branch stand at one commit on Base whose tree is Tree, and returns that commit. The order of the steps is GitHub's:
// blobs, trees, commit, ref; all but the last leave nothing that anybody sees, so repeating them is harmless.
func (a *apiDelivery) run(ctx context.Context) (sha string, state PushState, err error) {
	d := a.d
	if err := Check(d.Bounds, a.change()).Err(); err != nil {
		return "", "", err
	}
	if err := a.fits(); err != nil {
		return "", "", err
	}
	d.progress("import")
	base, err := a.commit(ctx, d.Base)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrValidation) {
		return "", "", fmt.Errorf("%w: %w", ErrBaseMissing, err)
	} else if err != nil {
		return "", "", err
	}
	if base.tree == d.Tree {
		return "", "", ErrNoChanges
	}
	sha, at, err := a.standing(ctx)
	if err != nil || sha != "" {
		return sha, PushUpToDate, err
	}
	tree, err := a.tree(ctx, base.tree)
	if err != nil {
		return "", "", err
	}
	if tree != d.Tree {
		return "", "", fmt.Errorf("%w: the tree on GitHub is %s, the one that was checked is %s", ErrMalformed, tree, d.Tree)
	}
	d.progress("push")
	if sha, err = a.makeCommit(ctx); err != nil {
		return "", "", err
	}
	return a.point(ctx, sha, at)
}

// fits refuses what the API is no way for, before anything is sent.
func (a *apiDelivery) fits() error {
	blobs := 0
	for _, f := range a.d.Files {
		switch inline := f.inline(); {
		case !inline && len(f.Content) > maxBlob:
			return fmt.Errorf("%s: %w of %d bytes for a file by the API: deliver by git", oneLine(f.Path, 100), ErrTooLarge, maxBlob)
		case !inline:
			blobs++
		}
	}
	if blobs > maxBlobs {
		return fmt.Errorf("%d binary or large files: %w of %d by the API: deliver by git", blobs, ErrTooLarge, maxBlobs)
	}
	return nil
}

// parents of the commit: Base, or none.
func (a *apiDelivery) parents() []string {
	if a.d.Base == "" {
		return nil
	}
	return []string{a.d.Base}
}

// makeCommit makes the commit of Tree, which nobody sees yet.
func (a *apiDelivery) makeCommit(ctx context.Context) (string, error) {
	message := a.d.Title + "\n\n" + apiCommitNote + a.d.Run + "\n"
	commit := &gh.Commit{Message: &message, Tree: &gh.Tree{SHA: &a.d.Tree}}
	for _, sha := range a.parents() {
		commit.Parents = append(commit.Parents, &gh.Commit{SHA: &sha})
	}
	made, err := harmless(ctx, a.client, func() (*gh.Commit, error) {
		x, _, err := a.client.gh.Git.CreateCommit(ctx, a.repo.Owner, a.repo.Name, commit, nil)
		return x, err
	})
	if err != nil {
		return "", fail("make the commit in "+a.repo.String(), err)
	}
	return made.GetSHA(), nil
}

// change is what the gate judges.
func (a *apiDelivery) change() Change {
	c := Change{Repo: a.d.Repo, Fork: a.d.Fork, Branch: a.d.Branch, BaseBranch: a.d.BaseBranch, Title: a.d.Title}
	for _, f := range a.d.Files {
		status := "M"
		switch {
		case f.Mode == modeNone:
			status = "D"
		case f.OldMode == modeNone || f.OldMode == "":
			status = "A"
		}
		c.Files = append(c.Files, FileChange{Path: f.Path, Status: status, OldMode: f.OldMode, Mode: f.Mode})
	}
	return c
}

type commitInfo struct {
	tree    string
	parents []string
	message string
}

func (a *apiDelivery) commit(ctx context.Context, sha string) (commitInfo, error) {
	x, _, err := a.client.gh.Git.GetCommit(ctx, a.repo.Owner, a.repo.Name, sha)
	if err != nil {
		return commitInfo{}, fail("read commit "+sha, err)
	}
	out := commitInfo{tree: x.GetTree().GetSHA(), message: x.GetMessage()}
	for _, p := range x.Parents {
		out.parents = append(out.parents, p.GetSHA())
	}
	return out, nil
}

// standing looks at what the branch holds: sha is set if it is this delivery's commit already, at if it is there and may be moved.
func (a *apiDelivery) standing(ctx context.Context) (sha, at string, err error) {
	at, ok, err := a.client.Branch(ctx, a.repo, a.d.Branch)
	if err != nil || !ok {
		return "", "", err
	}
	info, err := a.commit(ctx, at)
	if err != nil {
		return "", "", err
	}
	switch {
	case info.tree == a.d.Tree && slices.Equal(info.parents, a.parents()):
		return at, at, nil
	case at == a.d.Base, slices.Contains(a.d.Known, at), strings.Contains(info.message, "\n"+apiCommitNote+a.d.Run):
		return "", at, nil
	}
	return "", "", &BranchMovedError{Branch: a.d.Branch, Remote: at}
}

// point makes the branch stand at sha. at is where it stood, "" if it was not there.
func (a *apiDelivery) point(ctx context.Context, sha, at string) (string, PushState, error) {
	ref := &gh.Reference{Ref: gh.String("refs/heads/" + a.d.Branch), Object: &gh.GitObject{SHA: &sha}}
	var err error
	for attempt := 1; ; attempt++ {
		state := PushCreated
		if at == "" {
			_, _, err = a.client.gh.Git.CreateRef(ctx, a.repo.Owner, a.repo.Name, ref)
		} else {
			state = PushFastForward
			force := at != a.d.Base
			if force {
				state = PushForced
			}
			_, _, err = a.client.gh.Git.UpdateRef(ctx, a.repo.Owner, a.repo.Name, ref, force)
		}
		if err == nil {
			return sha, state, nil
		}
		err = fail("set branch "+a.d.Branch, err)
		if !errors.Is(err, ErrExists) && !lost(err) {
			break
		}
		// It may stand there after all, or somebody else was faster.
		now, where, serr := a.standing(ctx)
		if serr != nil {
			return "", "", errors.Join(serr, err)
		}
		if now != "" {
			return now, state, nil
		}
		if at = where; attempt >= a.client.wire.limits.Attempts {
			break
		}
		if serr := a.client.clock.Sleep(ctx, a.client.wire.jitter(a.client.wire.limits.Backoff<<(attempt-1))); serr != nil {
			return "", "", errors.Join(serr, err)
		}
	}
	var api *APIError
	if errors.As(err, &api) && (errors.Is(err, ErrValidation) || errors.Is(err, ErrForbidden)) {
		return "", "", &PushError{Ref: a.d.Branch, Reason: api.Message, Needed: api.Needed, kind: api.kind}
	}
	return "", "", err
}

// tree builds the tree in pieces, each on top of the one before, deletions first so that a folder can take a file's name.
func (a *apiDelivery) tree(ctx context.Context, base string) (string, error) {
	c := a.client
	files := slices.Clone(a.d.Files)
	slices.SortStableFunc(files, func(x, y TreeFile) int {
		rank := func(f TreeFile) int {
			if f.Mode == modeNone {
				return 0
			}
			return 1
		}
		return rank(x) - rank(y)
	})
	var piece []*gh.TreeEntry
	size := 0
	flush := func() error {
		if len(piece) == 0 {
			return nil
		}
		t, err := harmless(ctx, c, func() (*gh.Tree, error) {
			t, _, err := c.gh.Git.CreateTree(ctx, a.repo.Owner, a.repo.Name, base, piece)
			return t, err
		})
		if err != nil {
			return fail(fmt.Sprintf("make the tree in %s (from %s on)", a.repo, oneLine(piece[0].GetPath(), 100)), err)
		}
		base, piece, size = t.GetSHA(), nil, 0
		return nil
	}
	for _, f := range files {
		e := &gh.TreeEntry{Path: gh.String(f.Path), Mode: gh.String(f.Mode), Type: gh.String("blob")}
		switch {
		case f.Mode == modeNone: // neither id nor content: go-github writes the null that deletes
			e.Mode = gh.String(f.OldMode)
		case f.inline():
			e.Content = gh.String(string(f.Content))
			size += len(f.Content)
		default:
			blob, err := harmless(ctx, c, func() (*gh.Blob, error) {
				b, _, err := c.gh.Git.CreateBlob(ctx, a.repo.Owner, a.repo.Name, &gh.Blob{
					Content: gh.String(base64.StdEncoding.EncodeToString(f.Content)), Encoding: gh.String("base64"),
				})
				return b, err
			})
			if err != nil {
				return "", fail("send "+oneLine(f.Path, 100), err)
			}
			e.SHA = blob.SHA
		}
		piece = append(piece, e)
		if len(piece) == treeEntries || size >= treeBytes {
			if err := flush(); err != nil {
				return "", err
			}
		}
	}
	err := flush()
	return base, err
}

// harmless repeats a write that is addressed by its content, where its answer was lost.
func harmless[T any](ctx context.Context, c *Client, do func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		got, err := do()
		if err == nil || !lost(unwrap(err)) || attempt >= c.wire.limits.Attempts || ctx.Err() != nil {
			return got, err
		}
		if serr := c.clock.Sleep(ctx, c.wire.jitter(c.wire.limits.Backoff<<(attempt-1))); serr != nil {
			return got, errors.Join(serr, err)
		}
	}
}
