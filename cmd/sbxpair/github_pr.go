package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxpair/sbxpair/github"
)

func newPullCreateCmd(a *app) *cobra.Command {
	var n github.NewPullRequest
	return verb[github.PullRequest]{
		use: "create --title TITLE --head BRANCH --base BRANCH", short: "Open a draft pull request for a branch that is there", text: true,
		required: []string{"title", "head", "base"},
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&n.Title, "title", "", "title")
			f.StringVar(&n.Head, "head", "", "branch with the change; OWNER:BRANCH from a fork")
			f.StringVar(&n.Base, "base", "", "branch that it goes to")
			f.BoolVar(&n.Ready, "ready", false, "not a draft")
		},
		do: func(ctx context.Context, x act) (github.PullRequest, error) {
			n.Body = x.body
			made, err := x.CreatePullRequest(ctx, x.repo, n)
			if err == nil && made.Existed {
				x.app.log.Warn("the branch has an open pull request already: it was left as it is", "number", made.Number)
			}
			for _, note := range made.Notes {
				x.app.log.Warn(note)
			}
			return made, err
		},
		show: showPullURL,
	}.command(a)
}

func newPullListCmd(a *app) *cobra.Command {
	state := choose("open", "closed", "all")
	filter := github.PullFilter{}
	return verb[[]github.PullRequest]{
		reads: true, use: "list", short: "List pull requests, newest first",
		flags: func(f *pflag.FlagSet) {
			f.Var(state, "state", "state: open, closed or all")
			f.StringVar(&filter.Base, "base", "", "only those into this branch")
			f.IntVar(&filter.Limit, "limit", 30, "how many at most")
		},
		do: func(ctx context.Context, x act) ([]github.PullRequest, error) {
			filter.State = state.value
			return x.ListPullRequests(ctx, x.repo, filter)
		},
		show: func(w io.Writer, list []github.PullRequest) {
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			for _, p := range list {
				fmt.Fprintf(table, "#%d\t%s\t%s\t%s\n", p.Number, pullState(p), short(p.Title), short(p.Head))
			}
			table.Flush()
		},
	}.command(a)
}

func newPullViewCmd(a *app) *cobra.Command {
	return verb[github.PullRequest]{
		reads: true, use: "view N", short: "Show a pull request", numbered: true,
		do: func(ctx context.Context, x act) (github.PullRequest, error) {
			return x.GetPullRequest(ctx, x.repo, x.number)
		},
		show: func(w io.Writer, p github.PullRequest) {
			heading(w, p.Number, p.Title, pullState(p)+", "+p.Head+" into "+p.Base, p.Author, p.Labels, p.URL)
			block(w, p.Body)
		},
	}.command(a)
}

func newPullUpdateCmd(a *app) *cobra.Command {
	return verb[github.PullRequest]{
		use: "update N", short: "Change the title, the text, the base or the state of a pull request", numbered: true, text: true,
		long: "Whether it is a draft cannot be changed here: GitHub's REST API has no way to do it.",
		flags: func(f *pflag.FlagSet) {
			f.String("title", "", "new title")
			f.String("base", "", "branch that it goes to")
			f.Var(chooseOrNot("open", "closed"), "state", "open to open it again, closed to close it")
		},
		do: func(ctx context.Context, x act) (github.PullRequest, error) {
			u := github.PullRequestUpdate{Title: x.given("title"), Body: x.givenBody(), Base: x.given("base"), State: x.given("state")}
			if u == (github.PullRequestUpdate{}) {
				return github.PullRequest{}, errNoChange
			}
			return x.UpdatePullRequest(ctx, x.repo, x.number, u)
		},
		show: showPullURL,
	}.command(a)
}

func newPullCloseCmd(a *app) *cobra.Command {
	return verb[github.PullRequest]{
		use: "close N", short: "Close a pull request without merging it", numbered: true,
		do: func(ctx context.Context, x act) (github.PullRequest, error) {
			return x.ClosePullRequest(ctx, x.repo, x.number)
		},
		show: showPullURL,
	}.command(a)
}

func newPullReviewersCmd(a *app) *cobra.Command {
	var teams []string
	return verb[github.PullRequest]{
		use: "reviewers N [LOGIN...]", short: "Ask people and teams to review a pull request", numbered: true, args: cobra.ArbitraryArgs,
		flags: func(f *pflag.FlagSet) { f.StringSliceVar(&teams, "team", nil, "teams, by their short name") },
		do: func(ctx context.Context, x act) (github.PullRequest, error) {
			if len(x.args)+len(teams) == 0 {
				return github.PullRequest{}, &usageError{errors.New("name at least one person or --team")}
			}
			return x.RequestReviewers(ctx, x.repo, x.number, x.args, teams)
		},
		show: showPullURL,
	}.command(a)
}

// review is the result of the review verb.
type review struct {
	Number int                `json:"number"`
	Event  github.ReviewEvent `json:"event"`
}

func newPullReviewCmd(a *app) *cobra.Command {
	event := choose("comment", "approve", "request-changes")
	events := map[string]github.ReviewEvent{"comment": github.ReviewComment, "approve": github.ReviewApprove, "request-changes": github.ReviewRequestChanges}
	return verb[review]{
		use: "review N --body TEXT", short: "Review a pull request", numbered: true, text: true, needed: func() bool { return event.value != "approve" },
		flags: func(f *pflag.FlagSet) {
			f.Var(event, "event", "what the review says: comment, approve or request-changes")
		},
		do: func(ctx context.Context, x act) (review, error) {
			done := review{x.number, events[event.value]}
			return done, x.Review(ctx, x.repo, x.number, done.Event, x.body, github.Op{})
		},
		show: func(w io.Writer, done review) { fmt.Fprintf(w, "reviewed #%d: %s\n", done.Number, event.value) },
	}.command(a)
}

func newLineCommentsCmd(a *app) *cobra.Command {
	return verb[[]github.LineComment]{
		reads: true, use: "line-comments N", short: "List the comments on lines of a pull request", numbered: true,
		do: func(ctx context.Context, x act) ([]github.LineComment, error) {
			return x.ListLineComments(ctx, x.repo, x.number)
		},
		show: func(w io.Writer, list []github.LineComment) {
			for _, c := range list {
				fmt.Fprintf(w, "-- %d %s:%d %s\n\n", c.ID, plain(c.Path), c.Line, plain(c.Author))
				block(w, c.Body)
			}
		},
	}.command(a)
}

func newLineCommentCmd(a *app) *cobra.Command {
	var n github.NewLineComment
	return verb[github.LineComment]{
		use: "line-comment N --path FILE --line LINE --body TEXT", short: "Comment on a line of a pull request's change", numbered: true, text: true, needed: always,
		required: []string{"path", "line"},
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&n.Path, "path", "", "file")
			f.IntVar(&n.Line, "line", 0, "line, from 1")
			f.BoolVar(&n.Old, "old", false, "the line as it was before the change")
		},
		do: func(ctx context.Context, x act) (github.LineComment, error) {
			n.Body = x.body
			return x.CommentLine(ctx, x.repo, x.number, n)
		},
		show: showLineComment,
	}.command(a)
}

func newLineReplyCmd(a *app) *cobra.Command {
	var to int64
	return verb[github.LineComment]{
		use: "reply N --to ID --body TEXT", short: "Answer a comment on a line", numbered: true, noun: "such a comment on pull request", text: true, needed: always, required: []string{"to"},
		flags: func(f *pflag.FlagSet) {
			f.Int64Var(&to, "to", 0, "id of the comment, as line-comments shows it")
		},
		do: func(ctx context.Context, x act) (github.LineComment, error) {
			return x.ReplyLine(ctx, x.repo, x.number, to, github.NewComment{Body: x.body})
		},
		show: showLineComment,
	}.command(a)
}

func showLineComment(w io.Writer, c github.LineComment) {
	fmt.Fprintf(w, "%d %s\n", c.ID, plain(c.URL))
}

func showPullURL(w io.Writer, p github.PullRequest) { fmt.Fprintln(w, plain(p.URL)) }

// pullState is the state of a pull request in one word.
func pullState(p github.PullRequest) string {
	switch {
	case p.Merged:
		return "merged"
	case p.Draft && p.State == "open":
		return "draft"
	}
	return plain(p.State)
}
