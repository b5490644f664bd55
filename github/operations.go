package github

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"
)

// Identity is whose credential it is.
type Identity struct {
	Login   string    `json:"login"`
	ID      int64     `json:"id"`
	Type    string    `json:"type"` // User or Bot
	Expires time.Time `json:"expires,omitzero"`
}

// RepoInfo is what a run needs to know of a repository.
type RepoInfo struct {
	Repo          Repo   `json:"repository"` // as GitHub names it now: after a rename it differs from what was asked for
	ID            int64  `json:"id"`
	DefaultBranch string `json:"default_branch"`
	URL           string `json:"url"`
	Private       bool   `json:"private"`
	Archived      bool   `json:"archived"`
	Fork          bool   `json:"fork"`
	CanPull       bool   `json:"can_pull"`
	CanPush       bool   `json:"can_push"`
	CanAdmin      bool   `json:"can_admin"`
}

// Issue is an issue, or a pull request seen as one.
type Issue struct {
	Number      int       `json:"number"`
	Title       string    `json:"title"`
	Body        string    `json:"body"`
	State       string    `json:"state"` // open or closed
	Reason      string    `json:"state_reason,omitempty"`
	URL         string    `json:"url"`
	Author      string    `json:"author"`
	Labels      []string  `json:"labels"`
	Assignees   []string  `json:"assignees"`
	PullRequest bool      `json:"pull_request"`
	Created     time.Time `json:"created_at,omitzero"`
	Updated     time.Time `json:"updated_at,omitzero"`
	// Existed: the call found it, it did not make it.
	Existed bool `json:"existed,omitempty"`
	// Dropped are labels and assignees that GitHub left out without a word, as it does without push access.
	Dropped []string `json:"dropped,omitempty"`
}

// Comment is a comment on an issue or a pull request.
type Comment struct {
	ID      int64     `json:"id"`
	Body    string    `json:"body"`
	URL     string    `json:"url"`
	Author  string    `json:"author"`
	Created time.Time `json:"created_at,omitzero"`
	Existed bool      `json:"existed,omitempty"`
}

// PullRequest is a pull request.
type PullRequest struct {
	Number   int      `json:"number"`
	Title    string   `json:"title"`
	Body     string   `json:"body"`
	State    string   `json:"state"`
	Draft    bool     `json:"draft"`
	Merged   bool     `json:"merged"`
	URL      string   `json:"url"`
	Author   string   `json:"author"`
	Head     string   `json:"head"`      // branch
	HeadRepo Repo     `json:"head_repo"` // zero if it was deleted
	HeadSHA  string   `json:"head_sha"`
	Base     string   `json:"base"`
	Labels   []string `json:"labels"`
	Existed  bool     `json:"existed,omitempty"`
	// Notes say where GitHub did otherwise than asked, such as "draft not available".
	Notes []string `json:"notes,omitempty"`
}

// NewIssue describes an issue to create. Title and Body go out as they are: clean them first.
type NewIssue struct {
	Title     string
	Body      string
	Labels    []string
	Assignees []string
	Op        Op
}

// NewComment describes a comment to post.
type NewComment struct {
	Body string
	Op   Op
}

// NewPullRequest describes a pull request to open.
type NewPullRequest struct {
	Title string
	Body  string
	Head  string // BRANCH, or OWNER:BRANCH from a fork
	Base  string
	// Ready opens it for review at once; otherwise it is a draft.
	Ready bool
	// DraftOptional opens it ready where the repository's plan has no drafts; otherwise that is ErrValidation.
	DraftOptional bool
	Op            Op
}

// PullRequestUpdate holds what to change; nil leaves as it is.
type PullRequestUpdate struct {
	Title *string
	Body  *string
	State *string // open or closed
	Base  *string
}

const (
	perPage  = 100
	maxPages = 50 // 5,000 items

	markerPages = 3 // that are looked through for an issue of a run's own
)

// WhoAmI asks GitHub whose credential it is: the cheapest proof that it is alive.
func (c *Client) WhoAmI(ctx context.Context) (Identity, error) {
	u, _, err := c.gh.Users.Get(ctx, "")
	if err != nil {
		return Identity{}, fail("ask whose credential it is", err)
	}
	return Identity{u.GetLogin(), u.GetID(), u.GetType(), c.Expires()}, nil
}

// Repository reads a repository. A renamed one is followed; use the answer's Repo from there on.
func (c *Client) Repository(ctx context.Context, r Repo) (RepoInfo, error) {
	if !r.valid() {
		return RepoInfo{}, fmt.Errorf("%w: repository name", ErrOutOfBounds)
	}
	g, _, err := c.gh.Repositories.Get(ctx, r.Owner, r.Name)
	if blocked := (*BlockedError)(nil); errors.As(err, &blocked) && blocked.Redirected {
		return RepoInfo{}, fmt.Errorf("read repository %s: it has another name now, which the sandbox's rules do not know: name it by that (--repo OWNER/NAME): %w", r, unwrap(err))
	}
	if err != nil {
		return RepoInfo{}, fail("read repository "+r.String(), err)
	}
	now, err := ParseRepo(g.GetFullName())
	if err != nil {
		return RepoInfo{}, fmt.Errorf("%w: the repository's name: %w", ErrMalformed, err)
	}
	p := g.GetPermissions()
	return RepoInfo{
		Repo: now, ID: g.GetID(), DefaultBranch: g.GetDefaultBranch(), URL: g.GetHTMLURL(), Private: g.GetPrivate(),
		Archived: g.GetArchived(), Fork: g.GetFork(), CanPull: p["pull"], CanPush: p["push"], CanAdmin: p["admin"],
	}, nil
}

// Branch reads the commit a branch stands at. ok is false if there is no such branch; ErrEmptyRepository if there is none at
// all (GitHub answers 409 there, not 404).
func (c *Client) Branch(ctx context.Context, r Repo, branch string) (sha string, ok bool, err error) {
	if !ValidBranch(branch) {
		return "", false, fmt.Errorf("%w: branch name", ErrOutOfBounds)
	}
	ref, _, err := c.gh.Git.GetRef(ctx, r.Owner, r.Name, "heads/"+branch)
	switch {
	case err == nil && ref.GetRef() == "refs/heads/"+branch && validSHA(ref.GetObject().GetSHA()):
		return ref.GetObject().GetSHA(), true, nil
	case err == nil:
		return "", false, fmt.Errorf("read branch %s: %w: it is about %s", branch, ErrMalformed, oneLine(ref.GetRef(), 100))
	case errors.Is(unwrap(err), ErrNotFound):
		return "", false, nil
	}
	return "", false, fail("read branch "+branch, err)
}

// GetIssue reads an issue.
func (c *Client) GetIssue(ctx context.Context, r Repo, number int) (Issue, error) {
	i, _, err := c.gh.Issues.Get(ctx, r.Owner, r.Name, number)
	if err != nil {
		return Issue{}, fail(fmt.Sprintf("read issue %s#%d", r, number), err)
	}
	return issueOf(i), nil
}

// ListComments reads all comments of an issue or pull request, oldest first.
func (c *Client) ListComments(ctx context.Context, r Repo, number int) ([]Comment, error) {
	var all []Comment
	err := pages(maxPages, func(page int) (*gh.Response, bool, error) {
		list, resp, err := c.gh.Issues.ListComments(ctx, r.Owner, r.Name, number, &gh.IssueListCommentsOptions{ListOptions: gh.ListOptions{Page: page, PerPage: perPage}})
		for _, x := range list {
			all = append(all, commentOf(x))
		}
		return resp, false, err
	})
	if err != nil {
		return nil, fail(fmt.Sprintf("list comments of %s#%d", r, number), err)
	}
	return all, nil
}

// CreateIssue opens an issue, or returns the one that the same Op opened before.
func (c *Client) CreateIssue(ctx context.Context, r Repo, n NewIssue) (Issue, error) {
	find := func(ctx context.Context) (Issue, bool, error) { return c.findIssue(ctx, r, n.Op) }
	got, existed, err := create(ctx, c, n.Op, find, func(ctx context.Context) (Issue, error) {
		req := &gh.IssueRequest{Title: &n.Title, Body: gh.String(n.Op.mark(n.Body))}
		if len(n.Labels) > 0 {
			req.Labels = &n.Labels
		}
		if len(n.Assignees) > 0 {
			req.Assignees = &n.Assignees
		}
		i, _, err := c.gh.Issues.Create(ctx, r.Owner, r.Name, req)
		if err != nil {
			return Issue{}, fail("create issue in "+r.String(), err)
		}
		return issueOf(i), nil
	})
	if err != nil {
		return Issue{}, err
	}
	got.Existed = existed
	got.Dropped = append(missing(n.Labels, got.Labels), missing(n.Assignees, got.Assignees)...)
	return got, nil
}

// findIssue looks for an issue by its marker: newest first, by time of change, never by search, whose index lags.
func (c *Client) findIssue(ctx context.Context, r Repo, op Op) (found Issue, ok bool, err error) {
	err = pages(markerPages, func(page int) (*gh.Response, bool, error) {
		list, resp, err := c.gh.Issues.ListByRepo(ctx, r.Owner, r.Name, &gh.IssueListByRepoOptions{
			State: "all", Sort: "created", Direction: "desc", ListOptions: gh.ListOptions{Page: page, PerPage: perPage},
		})
		for _, i := range list {
			if !i.IsPullRequest() && op.in(i.GetBody()) {
				found, ok = issueOf(i), true
				return resp, true, nil
			}
		}
		return resp, page >= markerPages, err // a run's own issue is among the newest
	})
	if err != nil {
		return Issue{}, false, fail("look for the issue in "+r.String(), err)
	}
	return found, ok, nil
}

// Comment posts a comment on an issue or pull request, or returns the one that the same Op posted before.
func (c *Client) Comment(ctx context.Context, r Repo, number int, n NewComment) (Comment, error) {
	find := func(ctx context.Context) (Comment, bool, error) {
		all, err := c.ListComments(ctx, r, number)
		i := slices.IndexFunc(all, func(x Comment) bool { return n.Op.in(x.Body) })
		if err != nil || i < 0 {
			return Comment{}, false, err
		}
		return all[i], true, nil
	}
	got, existed, err := create(ctx, c, n.Op, find, func(ctx context.Context) (Comment, error) {
		x, _, err := c.gh.Issues.CreateComment(ctx, r.Owner, r.Name, number, &gh.IssueComment{Body: gh.String(n.Op.mark(n.Body))})
		if err != nil {
			return Comment{}, fail(fmt.Sprintf("comment on %s#%d", r, number), err)
		}
		return commentOf(x), nil
	})
	got.Existed = existed
	return got, err
}

// UpdateComment replaces a comment's text. The Op's marker is put under it again.
func (c *Client) UpdateComment(ctx context.Context, r Repo, id int64, n NewComment) (Comment, error) {
	x, _, err := c.gh.Issues.EditComment(ctx, r.Owner, r.Name, id, &gh.IssueComment{Body: gh.String(n.Op.mark(n.Body))})
	if err != nil {
		return Comment{}, fail("update comment in "+r.String(), err)
	}
	return commentOf(x), nil
}

// KeepComment makes the Op's comment say body: it posts it the first time and updates it after that.
func (c *Client) KeepComment(ctx context.Context, r Repo, number int, n NewComment) (Comment, error) {
	got, err := c.Comment(ctx, r, number, n)
	if err != nil || !got.Existed || got.Body == n.Op.mark(n.Body) {
		return got, err
	}
	got, err = c.UpdateComment(ctx, r, got.ID, n)
	got.Existed = true
	return got, err
}

// headParts splits BRANCH or OWNER:BRANCH; the default owner is the repository's.
func headParts(r Repo, head string) (owner, branch string) {
	if owner, branch, ok := strings.Cut(head, ":"); ok {
		return owner, branch
	}
	return r.Owner, head
}

// FindPullRequest returns the open pull request from head (BRANCH, or OWNER:BRANCH) into base, or any base if that is empty.
//
// GitHub ignores a head filter without owner and may return another branch at the same commit (gitops-promoter#1417,
// octokit.js#2056), so every answer's head is compared.
func (c *Client) FindPullRequest(ctx context.Context, r Repo, head, base string) (found PullRequest, ok bool, err error) {
	return c.findPull(ctx, r, head, base, Op{})
}

// findPull is FindPullRequest that also takes one which this Op opened and which is closed by now, if there is no open one.
func (c *Client) findPull(ctx context.Context, r Repo, head, base string, op Op) (found PullRequest, ok bool, err error) {
	owner, branch := headParts(r, head)
	state := "open"
	if op.Marker() != "" {
		state = "all"
	}
	err = pages(maxPages, func(page int) (*gh.Response, bool, error) {
		list, resp, err := c.gh.PullRequests.List(ctx, r.Owner, r.Name, &gh.PullRequestListOptions{
			State: state, Head: owner + ":" + branch, Base: base, ListOptions: gh.ListOptions{Page: page, PerPage: perPage},
		})
		for _, p := range list {
			if p.GetHead().GetRef() != branch || !strings.EqualFold(p.GetHead().GetRepo().GetOwner().GetLogin(), owner) || base != "" && p.GetBase().GetRef() != base {
				continue
			}
			if open := p.GetState() == "open"; open || !ok && op.in(p.GetBody()) {
				found, ok = pullOf(p), true
				if open {
					return resp, true, nil
				}
			}
		}
		return resp, false, err
	})
	if err != nil {
		return PullRequest{}, false, fail(fmt.Sprintf("look for the pull request of %s:%s", owner, branch), err)
	}
	return found, ok, nil
}

// GetPullRequest reads a pull request.
func (c *Client) GetPullRequest(ctx context.Context, r Repo, number int) (PullRequest, error) {
	p, _, err := c.gh.PullRequests.Get(ctx, r.Owner, r.Name, number)
	if err != nil {
		return PullRequest{}, fail(fmt.Sprintf("read pull request %s#%d", r, number), err)
	}
	return pullOf(p), nil
}

// CreatePullRequest opens a pull request, or returns the open one of the same head and base, with Existed set and as it is; or
// the one that the same Op opened and somebody closed. It is a draft unless n.Ready.
func (c *Client) CreatePullRequest(ctx context.Context, r Repo, n NewPullRequest) (PullRequest, error) {
	owner, branch := headParts(r, n.Head)
	if !ownerForm.MatchString(owner) || !ValidBranch(branch) || !ValidBranch(n.Base) {
		return PullRequest{}, fmt.Errorf("%w: head %q, base %q", ErrOutOfBounds, oneLine(n.Head, 100), oneLine(n.Base, 100))
	}
	head := branch
	if owner != r.Owner {
		head = owner + ":" + branch
	}
	find := func(ctx context.Context) (PullRequest, bool, error) { return c.findPull(ctx, r, n.Head, n.Base, n.Op) }
	if p, ok, err := find(ctx); err != nil || ok {
		p.Existed = ok
		return p, err
	}
	var notes []string
	draft := !n.Ready
	for try := 1; ; try++ {
		p, _, err := c.gh.PullRequests.Create(ctx, r.Owner, r.Name, &gh.NewPullRequest{
			Title: &n.Title, Body: gh.String(n.Op.mark(n.Body)), Head: &head, Base: &n.Base, Draft: &draft,
		})
		if err == nil {
			got := pullOf(p)
			got.Notes = notes
			return got, nil
		}
		err = fail(fmt.Sprintf("open the pull request of %s:%s into %s of %s", owner, branch, n.Base, r), err)
		switch {
		case lost(err) || errors.Is(err, ErrExists):
			if p, ok, ferr := find(ctx); ferr != nil || ok {
				p.Existed, p.Notes = ok, notes
				return p, ferr
			}
			if errors.Is(err, ErrExists) {
				return PullRequest{}, err
			}
		case draft && draftRefused(err) && n.DraftOptional:
			draft, notes = false, append(notes, "the repository has no draft pull requests: opened ready for review")
			try--
			n.DraftOptional = false
			continue
		case !lagging(err):
			return PullRequest{}, err
		}
		if try >= c.wire.limits.Attempts {
			if lagging(err) {
				return PullRequest{}, fmt.Errorf("open the pull request: %w: branch %s of %s or base branch %s of %s: push it first", ErrNotFound, branch, owner, n.Base, r)
			}
			return PullRequest{}, err
		}
		if serr := c.clock.Sleep(ctx, c.wire.jitter(c.wire.limits.Backoff<<(try-1))); serr != nil {
			return PullRequest{}, errors.Join(serr, err)
		}
	}
}

// lagging: right after a push the branch may not be visible yet, and GitHub says that head or base is invalid.
func lagging(err error) bool {
	var e *APIError
	return errors.As(err, &e) && e.Status == 422 && slices.ContainsFunc(e.Fields, func(f FieldError) bool {
		return f.Code == "invalid" && (f.Field == "head" || f.Field == "base")
	})
}

func draftRefused(err error) bool {
	var e *APIError
	return errors.As(err, &e) && e.Status == 422 && (containsFold(e.Message, "draft") || slices.ContainsFunc(e.Fields, func(f FieldError) bool {
		return f.Field == "draft" || containsFold(f.Message, "draft pull requests are not supported")
	}))
}

// UpdatePullRequest changes a pull request.
func (c *Client) UpdatePullRequest(ctx context.Context, r Repo, number int, u PullRequestUpdate) (PullRequest, error) {
	edit := &gh.PullRequest{Title: u.Title, Body: u.Body, State: u.State}
	if u.Base != nil {
		edit.Base = &gh.PullRequestBranch{Ref: u.Base}
	}
	p, _, err := c.gh.PullRequests.Edit(ctx, r.Owner, r.Name, number, edit)
	if err != nil {
		return PullRequest{}, fail(fmt.Sprintf("update pull request %s#%d", r, number), err)
	}
	return pullOf(p), nil
}

var branchForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+@=-]{0,199}$`)

// ValidBranch reports whether name is a branch name that git takes (git-check-ref-format) and that is plain ASCII, so that it is
// safe in a refspec, a URL and an environment variable.
func ValidBranch(name string) bool {
	if !branchForm.MatchString(name) || strings.Contains(name, "..") || strings.Contains(name, "//") || strings.Contains(name, "@{") ||
		strings.HasSuffix(name, "/") || strings.HasSuffix(name, ".") || name == "HEAD" || strings.HasPrefix(name, "refs/") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

func issueOf(i *gh.Issue) Issue {
	out := Issue{
		Number: i.GetNumber(), Title: i.GetTitle(), Body: i.GetBody(), State: i.GetState(), Reason: i.GetStateReason(), URL: i.GetHTMLURL(),
		Author: i.GetUser().GetLogin(), PullRequest: i.IsPullRequest(), Created: i.GetCreatedAt().Time, Updated: i.GetUpdatedAt().Time,
		Labels: []string{}, Assignees: []string{},
	}
	for _, l := range i.Labels {
		out.Labels = append(out.Labels, l.GetName())
	}
	for _, a := range i.Assignees {
		out.Assignees = append(out.Assignees, a.GetLogin())
	}
	return out
}

func commentOf(x *gh.IssueComment) Comment {
	return Comment{ID: x.GetID(), Body: x.GetBody(), URL: x.GetHTMLURL(), Author: x.GetUser().GetLogin(), Created: x.GetCreatedAt().Time}
}

func pullOf(p *gh.PullRequest) PullRequest {
	out := PullRequest{
		Number: p.GetNumber(), Title: p.GetTitle(), Body: p.GetBody(), State: p.GetState(), Draft: p.GetDraft(), URL: p.GetHTMLURL(),
		Merged: p.GetMerged() || !p.GetMergedAt().IsZero(), Author: p.GetUser().GetLogin(),
		Head: p.GetHead().GetRef(), HeadSHA: p.GetHead().GetSHA(), Base: p.GetBase().GetRef(), Labels: []string{},
		HeadRepo: Repo{p.GetHead().GetRepo().GetOwner().GetLogin(), p.GetHead().GetRepo().GetName()},
	}
	for _, l := range p.Labels {
		out.Labels = append(out.Labels, l.GetName())
	}
	return out
}

// missing lists what was asked for and is not there, compared without case as GitHub does.
func missing(asked, got []string) []string {
	var out []string
	for _, a := range asked {
		if !slices.ContainsFunc(got, func(g string) bool { return strings.EqualFold(a, g) }) {
			out = append(out, a)
		}
	}
	return out
}
