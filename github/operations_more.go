package github

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	gh "github.com/google/go-github/v62/github"
)

// IssueUpdate holds what to change; nil leaves as it is.
type IssueUpdate struct {
	Title  *string
	Body   *string
	State  *string // open or closed
	Reason *string // completed, not_planned or reopened
}

// UpdateIssue changes an issue; closing one is State "closed".
func (c *Client) UpdateIssue(ctx context.Context, r Repo, number int, u IssueUpdate) (Issue, error) {
	i, _, err := c.gh.Issues.Edit(ctx, r.Owner, r.Name, number, &gh.IssueRequest{Title: u.Title, Body: u.Body, State: u.State, StateReason: u.Reason})
	if err != nil {
		return Issue{}, fail(fmt.Sprintf("update issue %s#%d", r, number), err)
	}
	return issueOf(i), nil
}

// CloseIssue closes an issue as completed, or as not planned.
func (c *Client) CloseIssue(ctx context.Context, r Repo, number int, completed bool) (Issue, error) {
	reason := "not_planned"
	if completed {
		reason = "completed"
	}
	return c.UpdateIssue(ctx, r, number, IssueUpdate{State: gh.String("closed"), Reason: &reason})
}

// IssueFilter narrows ListIssues. Zero fields do not.
type IssueFilter struct {
	State  string // open (default), closed or all
	Labels []string
	Author string
	// Assignee is a login, "none" for issues without one, or "*" for those with any.
	Assignee string
	// Limit is how many to return at most; 0 is 100.
	Limit int
}

// ListIssues lists issues, newest first, without pull requests.
func (c *Client) ListIssues(ctx context.Context, r Repo, f IssueFilter) ([]Issue, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = perPage
	}
	all := []Issue{}
	err := pages(maxPages, func(page int) (*gh.Response, bool, error) {
		list, resp, err := c.gh.Issues.ListByRepo(ctx, r.Owner, r.Name, &gh.IssueListByRepoOptions{
			State: f.State, Labels: f.Labels, Creator: f.Author, Assignee: f.Assignee, Sort: "created", Direction: "desc", ListOptions: gh.ListOptions{Page: page, PerPage: perPage},
		})
		for _, i := range list {
			if !i.IsPullRequest() && len(all) < limit {
				all = append(all, issueOf(i))
			}
		}
		return resp, len(all) >= limit, err
	})
	if err != nil {
		return nil, fail("list issues of "+r.String(), err)
	}
	return all, nil
}

// SearchIssues finds issues and pull requests of one repository by words. GitHub's index lags behind and gives 30 searches a minute: it
// is for people, never to decide if something exists.
func (c *Client) SearchIssues(ctx context.Context, r Repo, words string, limit int) ([]Issue, error) {
	// The words may not widen the search to other repositories.
	var kept []string
	for w := range strings.FieldsSeq(words) {
		if name, _, ok := strings.Cut(strings.TrimLeft(strings.ToLower(w), "-("), ":"); ok && slices.Contains([]string{"repo", "org", "user"}, name) {
			return nil, fmt.Errorf("%w: a search stays in %s", ErrOutOfBounds, r)
		}
		kept = append(kept, w)
	}
	limit = min(max(limit, 1), perPage)
	res, _, err := c.gh.Search.Issues(ctx, strings.Join(kept, " ")+" repo:"+r.String(), &gh.SearchOptions{ListOptions: gh.ListOptions{PerPage: limit}})
	if errors.Is(unwrap(err), ErrBlockedByPolicy) {
		return nil, fmt.Errorf("search %s: the github sandbox has no rule that allows GET %ssearch/issues; a list needs none: %w", r, c.endpoint.API(), unwrap(err))
	}
	if err != nil {
		return nil, fail("search "+r.String(), err)
	}
	all := []Issue{}
	for _, i := range res.Issues {
		if !strings.HasSuffix(strings.ToLower(i.GetRepositoryURL()), strings.ToLower("/repos/"+r.String())) {
			continue // whatever the words did to the query
		}
		all = append(all, issueOf(i))
	}
	return all, nil
}

// AddLabels adds labels to an issue or pull request and returns all it has then. Labels that are there already are no error.
func (c *Client) AddLabels(ctx context.Context, r Repo, number int, labels []string) ([]string, error) {
	list, _, err := c.gh.Issues.AddLabelsToIssue(ctx, r.Owner, r.Name, number, labels)
	if err != nil {
		return nil, fail(fmt.Sprintf("label %s#%d", r, number), err)
	}
	got := []string{}
	for _, l := range list {
		got = append(got, l.GetName())
	}
	return got, nil
}

// RemoveLabel takes a label off; one that is not there is no error.
func (c *Client) RemoveLabel(ctx context.Context, r Repo, number int, label string) error {
	_, err := c.gh.Issues.RemoveLabelForIssue(ctx, r.Owner, r.Name, number, url.PathEscape(label)) // go-github does not escape it
	if err != nil && !errors.Is(unwrap(err), ErrNotFound) {
		return fail(fmt.Sprintf("take a label off %s#%d", r, number), err)
	}
	return nil
}

// EnsureLabel creates a label if it does not exist. Color is six hex digits.
func (c *Client) EnsureLabel(ctx context.Context, r Repo, name, color, description string) error {
	_, _, err := c.gh.Issues.CreateLabel(ctx, r.Owner, r.Name, &gh.Label{Name: &name, Color: &color, Description: &description})
	if err != nil && !errors.Is(unwrap(err), ErrExists) {
		return fail("create label in "+r.String(), err)
	}
	return nil
}

// Assign adds assignees. dropped are those that GitHub left out without a word.
func (c *Client) Assign(ctx context.Context, r Repo, number int, logins []string) (dropped []string, err error) {
	i, _, err := c.gh.Issues.AddAssignees(ctx, r.Owner, r.Name, number, logins)
	if err != nil {
		return nil, fail(fmt.Sprintf("assign %s#%d", r, number), err)
	}
	return missing(logins, issueOf(i).Assignees), nil
}

// PullFilter narrows ListPullRequests.
type PullFilter struct {
	State string // open (default), closed or all
	Base  string
	Limit int // 0 is 100
}

// ListPullRequests lists pull requests, newest first.
func (c *Client) ListPullRequests(ctx context.Context, r Repo, f PullFilter) ([]PullRequest, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = perPage
	}
	all := []PullRequest{}
	err := pages(maxPages, func(page int) (*gh.Response, bool, error) {
		list, resp, err := c.gh.PullRequests.List(ctx, r.Owner, r.Name, &gh.PullRequestListOptions{
			State: f.State, Base: f.Base, ListOptions: gh.ListOptions{Page: page, PerPage: perPage},
		})
		for _, p := range list {
			if len(all) < limit {
				all = append(all, pullOf(p))
			}
		}
		return resp, len(all) >= limit, err
	})
	if err != nil {
		return nil, fail("list pull requests of "+r.String(), err)
	}
	return all, nil
}

// ClosePullRequest closes a pull request without merging it.
func (c *Client) ClosePullRequest(ctx context.Context, r Repo, number int) (PullRequest, error) {
	return c.UpdatePullRequest(ctx, r, number, PullRequestUpdate{State: gh.String("closed")})
}

// RequestReviewers asks people and teams for a review.
func (c *Client) RequestReviewers(ctx context.Context, r Repo, number int, people, teams []string) (PullRequest, error) {
	p, _, err := c.gh.PullRequests.RequestReviewers(ctx, r.Owner, r.Name, number, gh.ReviewersRequest{Reviewers: people, TeamReviewers: teams})
	if err != nil {
		return PullRequest{}, fail(fmt.Sprintf("ask for a review of %s#%d", r, number), err)
	}
	return pullOf(p), nil
}

// ReviewEvent is what a review says.
type ReviewEvent string

// What a review says.
const (
	ReviewComment        ReviewEvent = "COMMENT"
	ReviewApprove        ReviewEvent = "APPROVE"
	ReviewRequestChanges ReviewEvent = "REQUEST_CHANGES"
)

// Review posts a review without line comments, once for the Op.
func (c *Client) Review(ctx context.Context, r Repo, number int, event ReviewEvent, body string, op Op) error {
	find := func(ctx context.Context) (struct{}, bool, error) {
		found := false
		err := pages(maxPages, func(page int) (*gh.Response, bool, error) {
			list, resp, err := c.gh.PullRequests.ListReviews(ctx, r.Owner, r.Name, number, &gh.ListOptions{Page: page, PerPage: perPage})
			found = slices.ContainsFunc(list, func(x *gh.PullRequestReview) bool { return op.in(x.GetBody()) })
			return resp, found, err
		})
		if err != nil {
			err = fail(fmt.Sprintf("list reviews of %s#%d", r, number), err)
		}
		return struct{}{}, found, err
	}
	_, _, err := create(ctx, c, op, find, func(ctx context.Context) (struct{}, error) {
		_, _, err := c.gh.PullRequests.CreateReview(ctx, r.Owner, r.Name, number, &gh.PullRequestReviewRequest{Body: gh.String(op.mark(body)), Event: gh.String(string(event))})
		if err != nil {
			err = fail(fmt.Sprintf("review %s#%d", r, number), err)
		}
		return struct{}{}, err
	})
	return err
}

// StatusState is the state of a commit status.
type StatusState string

// The states of a commit status.
const (
	StatusPending StatusState = "pending"
	StatusSuccess StatusState = "success"
	StatusFailure StatusState = "failure"
	StatusError   StatusState = "error"
)

// SetStatus sets a commit status; the last one of a context counts, so repeating is harmless. Description is cut at 140 characters,
// GitHub's limit.
func (c *Client) SetStatus(ctx context.Context, r Repo, sha string, state StatusState, name, description, target string) error {
	if !validSHA(sha) {
		return fmt.Errorf("%w: commit id", ErrOutOfBounds)
	}
	st := &gh.RepoStatus{State: gh.String(string(state)), Context: &name, Description: gh.String(prefix(oneLine(description, 1000), 140))}
	if target != "" {
		st.TargetURL = &target
	}
	if _, _, err := c.gh.Repositories.CreateStatus(ctx, r.Owner, r.Name, sha, st); err != nil {
		return fail("set the status of "+sha[:12], err)
	}
	return nil
}

// HasCommit reports whether GitHub has a commit: work that starts from one it does not have cannot be delivered.
func (c *Client) HasCommit(ctx context.Context, r Repo, sha string) (bool, error) {
	if !validSHA(sha) {
		return false, fmt.Errorf("%w: commit id", ErrOutOfBounds)
	}
	_, _, err := c.gh.Git.GetCommit(ctx, r.Owner, r.Name, sha)
	switch e := unwrap(err); {
	case err == nil:
		return true, nil
	case errors.Is(e, ErrNotFound), errors.Is(e, ErrValidation):
		return false, nil
	}
	return false, fail("look for commit "+sha[:12], err)
}
