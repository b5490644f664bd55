package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
)

func newDeliverCmd(a *app) *cobra.Command {
	var approve, dryRun bool
	var moved string
	cmd := &cobra.Command{
		Use: "deliver RUN", Short: "Finish the delivery of a run, from its folder", Args: usage(cobra.ExactArgs(1)),
		Long: "For a run that did its work and could not deliver it, was refused by the gate, was staged, or has to be approved: makes a\n" +
			"github sandbox, and no agent's, and brings branch, pull request and comments to GitHub as the run would have. What stands\n" +
			"there already is found, so that it can be done again. The run's own configuration counts; the GitHub token is looked up\n" +
			"anew, and what the gate refused is judged again by the gate settings of today.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if dryRun {
				return wouldDeliver(a, args[0])
			}
			return runDeliver(cmd.Context(), a, args[0], approve, moved)
		},
	}
	cmd.Flags().BoolVar(&approve, "approve", false, "show what would be written, and ask on the terminal before it is")
	cmd.Flags().StringVar(&moved, "repo", "", "where the repository is now, OWNER/NAME, if it was renamed or transferred since")
	dryRunFlag(cmd, &dryRun)
	return cmd
}

// wouldDeliver tells what would be brought to GitHub, from the run's folder alone.
func wouldDeliver(a *app, run string) error {
	id, err := pair.ParseRunID(run)
	if err != nil {
		return &usageError{err}
	}
	rec, err := loop.Load(a.store(), id)
	if err != nil {
		return err
	}
	work := loop.UndeliveredWork(a.store().Dir(id))
	if work == "" {
		return &usageError{fmt.Errorf("run %s has no work that is not delivered", id)}
	}
	todo := changes{DryRun: true, Steps: []change{
		{Do: "make", What: "a github sandbox on " + rec.Lease.Engine.Kind + " for " + rec.Lease.Repository},
		{Do: "deliver", What: fmt.Sprintf("%s as branch %s of %s, with its pull request and comments", work, rec.State.Workspace.Branch, rec.Lease.Repository)},
	}}
	return a.print(todo, todo.print)
}

func runDeliver(ctx context.Context, a *app, run string, approve bool, moved string) error {
	if moved != "" {
		if _, err := github.ParseRepo(moved); err != nil {
			return &usageError{fmt.Errorf("--repo %q is not OWNER/NAME", moved)}
		}
	}
	id, err := pair.ParseRunID(run)
	if err != nil {
		return &usageError{err}
	}
	ask, err := a.approval(approve)
	if err != nil {
		return err
	}
	loaded, err := a.settings(nil)
	if err != nil {
		return err
	}
	progress := &progress{app: a}
	req := a.request(loaded.Config)
	req.Sink, req.Approve, req.Moved = progress.show, ask, moved
	result, err := loop.Deliver(ctx, req, id)
	if result.Run == "" && err != nil {
		return err // it never started
	}
	return firstError(err, a.print(result, func(w io.Writer) { printResult(w, result) }))
}

// approval returns what asks a person before anything is written, nil if that was not wanted. Without a terminal nobody
// can be asked, which is said before any work is done.
func (a *app) approval(wanted bool) (func(context.Context, loop.Proposal) (bool, error), error) {
	switch {
	case !wanted:
		return nil, nil
	case !isTerminal(a.stdin):
		return nil, &usageError{errors.New("--approve asks on the terminal, and standard input is none; leave it out, or stage the run (--staged) and deliver it from a terminal")}
	}
	return func(ctx context.Context, p loop.Proposal) (bool, error) {
		fmt.Fprint(a.stderr, "\n\n") // a line of progress may stand unfinished
		printProposal(a.stderr, p)
		answer := make(chan bool, 1)
		go func() { answer <- confirm(a, "Write this to GitHub?") }() // ends with the answer or with the process
		select {
		case yes := <-answer:
			return yes, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}, nil
}

// printProposal shows all that would be written to GitHub. Most of it is text of an agent.
func printProposal(w io.Writer, p loop.Proposal) {
	head := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-13s %s\n", name, plain(fmt.Sprintf(format, args...)))
	}
	head("repository", "%s", p.Repository)
	if p.Branch != "" {
		if p.Fork != "" {
			head("fork", "%s", p.Fork)
		}
		head("branch", "%s at %.12s", p.Branch, p.Commit)
		kind := "ready for review"
		if p.Draft {
			kind = "draft"
		}
		head("pull request", "into %s, %s: %s", p.Base, kind, p.Title)
		if p.Issue > 0 {
			head("issue", "#%d", p.Issue)
		}
		for _, list := range []struct {
			name  string
			items []string
		}{{"labels", p.Labels}, {"reviewers", p.Reviewers}, {"artifacts", p.Artifacts}} {
			if len(list.items) > 0 {
				head(list.name, "%s", strings.Join(list.items, ", "))
			}
		}
		if p.Check != "" {
			head("check", "%s", p.Check)
		}
		fmt.Fprintln(w)
		indented(w, p.Body)
		if p.Comment != "" {
			fmt.Fprintln(w)
			head("comment", "")
			indented(w, p.Comment)
		}
	}
	for _, r := range p.Requests {
		head("request", "line %d, %s: %s %s", r.Line, r.What, r.Decision, strings.Join(r.Reasons, "; "))
		if r.Write != nil && r.Write.Kind != github.RequestPullRequest { // whose text stands above
			printRequest(w, *r.Write)
		}
	}
	for _, ask := range p.Asks {
		head("to decide", "%s", ask)
	}
	if p.Patch != "" {
		fmt.Fprintln(w)
		block(w, strings.TrimSuffix(p.Patch, "\n"))
	}
	fmt.Fprintln(w)
}

// printRequest shows what a request would write.
func printRequest(w io.Writer, r github.Request) {
	about := "the run's own"
	switch {
	case r.Kind == github.RequestIssue:
		about = ""
	case r.Number > 0:
		about = fmt.Sprintf("#%d", r.Number)
	}
	for _, line := range [][2]string{{"about", about}, {"title", r.Title}, {"labels", strings.Join(r.Labels, ", ")}, {"people", strings.Join(r.People, ", ")}} {
		if line[1] != "" {
			fmt.Fprintf(w, "  %-11s %s\n", line[0], plain(line[1]))
		}
	}
	if r.Body != "" {
		indented(w, r.Body)
	}
}

func indented(w io.Writer, text string) {
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		fmt.Fprintln(w, "  "+plain(line))
	}
}
