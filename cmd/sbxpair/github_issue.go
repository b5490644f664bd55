package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxpair/sbxpair/github"
)

func newIssueCreateCmd(a *app) *cobra.Command {
	var title string
	var labels, assignees []string
	return verb[github.Issue]{
		use: "create --title TITLE", short: "Create an issue", text: true, required: []string{"title"},
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&title, "title", "", "title")
			f.StringSliceVar(&labels, "label", nil, "labels")
			f.StringSliceVar(&assignees, "assignee", nil, "who it is assigned to")
		},
		do: func(ctx context.Context, x act) (github.Issue, error) {
			made, err := x.CreateIssue(ctx, x.repo, github.NewIssue{Title: title, Body: x.body, Labels: labels, Assignees: assignees})
			x.dropped(made.Dropped)
			return made, err
		},
		show: showIssueURL,
	}.command(a)
}

// dropped tells of labels and assignees that GitHub left out without a word.
func (x act) dropped(names []string) {
	if len(names) > 0 {
		x.app.log.Warn("GitHub left these out without a word, as it does without push access", "names", strings.Join(names, ", "))
	}
}

func newIssueListCmd(a *app) *cobra.Command {
	state := choose("open", "closed", "all")
	filter := github.IssueFilter{}
	return verb[[]github.Issue]{
		reads: true, use: "list", short: "List issues, newest first, without pull requests",
		flags: func(f *pflag.FlagSet) {
			f.Var(state, "state", "state: open, closed or all")
			f.StringSliceVar(&filter.Labels, "label", nil, "only those with all of these labels")
			f.StringVar(&filter.Author, "author", "", "only those of this person")
			f.StringVar(&filter.Assignee, "assignee", "", "only those assigned to this person; none: to nobody")
			f.IntVar(&filter.Limit, "limit", 30, "how many at most")
		},
		do: func(ctx context.Context, x act) ([]github.Issue, error) {
			filter.State = state.value
			return x.ListIssues(ctx, x.repo, filter)
		},
		show: showIssues,
	}.command(a)
}

func newIssueSearchCmd(a *app) *cobra.Command {
	var limit int
	return verb[[]github.Issue]{
		reads: true, use: "search WORD...", short: "Search the repository's issues and pull requests", args: cobra.MinimumNArgs(1),
		long:  "GitHub's index lags behind what is there, and it answers 30 searches a minute; list has neither limit.",
		flags: func(f *pflag.FlagSet) { f.IntVar(&limit, "limit", 30, "how many at most, up to 100") },
		do: func(ctx context.Context, x act) ([]github.Issue, error) {
			return x.SearchIssues(ctx, x.repo, strings.Join(x.args, " "), limit)
		},
		show: showIssues,
	}.command(a)
}

// thread is an issue with its comments.
type thread struct {
	github.Issue
	Comments []github.Comment `json:"comments,omitempty"`
}

func newIssueViewCmd(a *app) *cobra.Command {
	var comments bool
	return verb[thread]{
		reads: true, use: "view N", short: "Show an issue", numbered: true,
		flags: func(f *pflag.FlagSet) { f.BoolVar(&comments, "comments", false, "with its comments") },
		do: func(ctx context.Context, x act) (t thread, err error) {
			if t.Issue, err = x.GetIssue(ctx, x.repo, x.number); err == nil && comments {
				t.Comments, err = x.ListComments(ctx, x.repo, x.number)
			}
			return t, err
		},
		show: func(w io.Writer, t thread) {
			heading(w, t.Number, t.Title, t.State, t.Author, t.Labels, t.URL)
			block(w, t.Body)
			for _, c := range t.Comments {
				fmt.Fprintf(w, "\n-- %s %s\n\n", plain(c.Author), plain(c.URL))
				block(w, c.Body)
			}
		},
	}.command(a)
}

func newIssueUpdateCmd(a *app) *cobra.Command {
	return verb[github.Issue]{
		use: "update N", short: "Change the title, the text or the state of an issue", numbered: true, text: true,
		flags: func(f *pflag.FlagSet) {
			f.String("title", "", "new title")
			f.Var(chooseOrNot("open", "closed"), "state", "open to open it again, closed to close it")
		},
		do: func(ctx context.Context, x act) (github.Issue, error) {
			u := github.IssueUpdate{Title: x.given("title"), Body: x.givenBody(), State: x.given("state")}
			if u == (github.IssueUpdate{}) {
				return github.Issue{}, errNoChange
			}
			return x.UpdateIssue(ctx, x.repo, x.number, u)
		},
		show: showIssueURL,
	}.command(a)
}

// errNoChange is an update that changes nothing.
var errNoChange error = &usageError{errors.New("nothing to change: give at least one flag")}

func newIssueCloseCmd(a *app) *cobra.Command {
	var dropped bool
	return verb[github.Issue]{
		use: "close N", short: "Close an issue", numbered: true,
		flags: func(f *pflag.FlagSet) { f.BoolVar(&dropped, "not-planned", false, "as not planned, not as completed") },
		do: func(ctx context.Context, x act) (github.Issue, error) {
			return x.CloseIssue(ctx, x.repo, x.number, !dropped)
		},
		show: showIssueURL,
	}.command(a)
}

// assigned is the result of the assign verb.
type assigned struct {
	Number  int      `json:"number"`
	Asked   []string `json:"asked"`
	Dropped []string `json:"dropped"`
}

func newIssueAssignCmd(a *app) *cobra.Command {
	return verb[assigned]{
		use: "assign N LOGIN...", short: "Assign people to an issue or a pull request", numbered: true, args: cobra.MinimumNArgs(1),
		do: func(ctx context.Context, x act) (assigned, error) {
			dropped, err := x.Assign(ctx, x.repo, x.number, x.args)
			x.dropped(dropped)
			return assigned{x.number, x.args, append([]string{}, dropped...)}, err
		},
		show: func(w io.Writer, done assigned) {
			fmt.Fprintf(w, "assigned %d of %d\n", len(done.Asked)-len(done.Dropped), len(done.Asked))
		},
	}.command(a)
}

func showIssueURL(w io.Writer, i github.Issue) { fmt.Fprintln(w, plain(i.URL)) }

func showIssues(w io.Writer, list []github.Issue) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, i := range list {
		fmt.Fprintf(table, "#%d\t%s\t%s\t%s\n", i.Number, i.State, short(i.Title), short(strings.Join(i.Labels, ", ")))
	}
	table.Flush()
}

// heading is what stands over the text of an issue or a pull request.
func heading(w io.Writer, number int, title, state, author string, labels []string, url string) {
	fmt.Fprintf(w, "#%d %s\n%s, by %s\n", number, plain(title), plain(state), plain(author))
	if len(labels) > 0 {
		fmt.Fprintf(w, "labels: %s\n", plain(strings.Join(labels, ", ")))
	}
	fmt.Fprintf(w, "%s\n\n", plain(url))
}
