package github

import (
	"context"
	"errors"
	"fmt"
	"slices"

	gh "github.com/google/go-github/v62/github"
)

// LineComment is a comment on a line of a pull request's diff, or a reply to one.
type LineComment struct {
	Comment
	Path    string `json:"path"`
	Line    int    `json:"line,omitempty"` // 0 if the line is not in the diff any more
	ReplyTo int64  `json:"reply_to,omitempty"`
}

// NewLineComment describes a comment on a line to post.
type NewLineComment struct {
	Path string
	Line int
	// Old means the line as it was before the change; otherwise it is the one after it.
	Old  bool
	Body string
	Op   Op
}

// ListLineComments reads all comments on lines of a pull request, oldest first.
func (c *Client) ListLineComments(ctx context.Context, r Repo, number int) ([]LineComment, error) {
	all := []LineComment{}
	err := pages(maxPages, func(page int) (*gh.Response, bool, error) {
		list, resp, err := c.gh.PullRequests.ListComments(ctx, r.Owner, r.Name, number, &gh.PullRequestListCommentsOptions{ListOptions: gh.ListOptions{Page: page, PerPage: perPage}})
		for _, x := range list {
			all = append(all, lineCommentOf(x))
		}
		return resp, false, err
	})
	if err != nil {
		return nil, fail(fmt.Sprintf("list line comments of %s#%d", r, number), err)
	}
	return all, nil
}

// CommentLine posts a comment on a line of a pull request as it stands now, or returns the one that the same Op posted before.
// A line that is not in the diff is ErrValidation.
func (c *Client) CommentLine(ctx context.Context, r Repo, number int, n NewLineComment) (LineComment, error) {
	return c.lineComment(ctx, r, number, n.Op, func(ctx context.Context) (*gh.PullRequestComment, error) {
		pull, err := c.GetPullRequest(ctx, r, number)
		if err != nil {
			return nil, err
		}
		side := "RIGHT"
		if n.Old {
			side = "LEFT"
		}
		x, _, err := c.gh.PullRequests.CreateComment(ctx, r.Owner, r.Name, number, &gh.PullRequestComment{
			Body: gh.String(n.Op.mark(n.Body)), CommitID: &pull.HeadSHA, Path: &n.Path, Line: &n.Line, Side: &side,
		})
		return x, err
	})
}

// ReplyLine answers a comment on a line, once for the Op.
func (c *Client) ReplyLine(ctx context.Context, r Repo, number int, to int64, n NewComment) (LineComment, error) {
	return c.lineComment(ctx, r, number, n.Op, func(ctx context.Context) (*gh.PullRequestComment, error) {
		x, _, err := c.gh.PullRequests.CreateCommentInReplyTo(ctx, r.Owner, r.Name, number, n.Op.mark(n.Body), to)
		return x, err
	})
}

func (c *Client) lineComment(ctx context.Context, r Repo, number int, op Op, post func(context.Context) (*gh.PullRequestComment, error)) (LineComment, error) {
	find := func(ctx context.Context) (LineComment, bool, error) {
		all, err := c.ListLineComments(ctx, r, number)
		i := slices.IndexFunc(all, func(x LineComment) bool { return op.in(x.Body) })
		if err != nil || i < 0 {
			return LineComment{}, false, err
		}
		return all[i], true, nil
	}
	got, existed, err := create(ctx, c, op, find, func(ctx context.Context) (LineComment, error) {
		x, err := post(ctx)
		if err != nil {
			return LineComment{}, fail(fmt.Sprintf("comment on a line of %s#%d", r, number), err)
		}
		return lineCommentOf(x), nil
	})
	got.Existed = existed
	return got, err
}

func lineCommentOf(x *gh.PullRequestComment) LineComment {
	return LineComment{
		Comment: Comment{ID: x.GetID(), Body: x.GetBody(), URL: x.GetHTMLURL(), Author: x.GetUser().GetLogin(), Created: x.GetCreatedAt().Time},
		Path:    x.GetPath(), Line: x.GetLine(), ReplyTo: x.GetInReplyTo(),
	}
}

// Conclusion is how a check ended.
type Conclusion string

// How a check ended; the empty Conclusion is one that still runs.
const (
	ConclusionSuccess Conclusion = "success"
	ConclusionFailure Conclusion = "failure"
	ConclusionNeutral Conclusion = "neutral"
)

// CheckRun describes a check of one commit.
type CheckRun struct {
	Name       string
	Commit     string // full id
	Conclusion Conclusion
	Title      string // a line
	Summary    string // Markdown; goes out as it is
	URL        string // with more; "" for none
}

// CheckForm says as what a check is shown.
type CheckForm string

// A check is a check run where the credential may make one, which GitHub grants to apps alone, and a commit status otherwise.
const (
	FormCheck  CheckForm = "check"
	FormStatus CheckForm = "status"
)

// SetCheck reports a check: as a check run, or, with a credential that may not make one, as a commit status with the title as its
// description. The last one of a name counts, so repeating is harmless.
func (c *Client) SetCheck(ctx context.Context, r Repo, k CheckRun) (CheckForm, error) {
	if !validSHA(k.Commit) {
		return "", fmt.Errorf("%w: commit id", ErrOutOfBounds)
	}
	opts := gh.CreateCheckRunOptions{Name: k.Name, HeadSHA: k.Commit, Status: gh.String("in_progress"),
		Output: &gh.CheckRunOutput{Title: &k.Title, Summary: gh.String(prefix(k.Summary, MaxBodyRunes))}}
	state := StatusPending
	if k.Conclusion != "" {
		opts.Status, opts.Conclusion = gh.String("completed"), gh.String(string(k.Conclusion))
		state = StatusSuccess
		if k.Conclusion == ConclusionFailure {
			state = StatusFailure
		}
	}
	if k.URL != "" {
		opts.DetailsURL = &k.URL
	}
	_, _, err := c.gh.Checks.CreateCheckRun(ctx, r.Owner, r.Name, opts)
	if err == nil {
		return FormCheck, nil
	}
	if !errors.Is(unwrap(err), ErrForbidden) {
		return "", fail("set check "+oneLine(k.Name, 60), err)
	}
	return FormStatus, c.SetStatus(ctx, r, k.Commit, state, k.Name, k.Title, k.URL)
}
