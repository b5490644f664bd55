package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
)

func newResumeCmd(a *app) *cobra.Command {
	var keep, dryRun bool
	var limits []string
	cmd := &cobra.Command{
		Use: "resume RUN", Short: "Go on with a run that was interrupted", Args: usage(cobra.ExactArgs(1)),
		Long: "Goes on with a run that was cancelled, that a limit ended, or whose process or engine died: from the run's folder, under the\n" +
			"configuration that it was started with, on a fresh pair. The phase that was interrupted is done again. What is configured\n" +
			"differently today is said, and not used; a limit that is spent is raised with --limit. Which runs can be gone on with:\n" +
			"sbxpair result RUN.",
		Example: "  sbxpair resume abcdefghijkl\n  sbxpair resume abcdefghijkl --limit turns=80 --limit run=2h",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runResume(cmd.Context(), a, args[0], limits, keep, dryRun)
		},
	}
	cmd.Flags().StringArrayVar(&limits, "limit", nil, "NAME=VALUE: a limit that the run has from here on in place of its own, such as turns, tokens, cost, run or execute (repeatable)")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the pair in place afterwards (remove it with: sbxpair down)")
	dryRunFlag(cmd, &dryRun)
	return cmd
}

func runResume(ctx context.Context, a *app, arg string, given []string, keep, dryRun bool) error {
	id, err := pair.ParseRunID(arg)
	if err != nil {
		return &usageError{err}
	}
	limits := map[string]string{}
	for _, l := range given {
		name, value, ok := strings.Cut(l, "=")
		if !ok {
			return &usageError{fmt.Errorf("--limit %q is not NAME=VALUE", l)}
		}
		limits[name] = value
	}
	rec, err := loop.Load(a.store(), id)
	if err != nil {
		return err
	}
	if dryRun {
		told, err := loop.Tell(a.store(), id)
		if err == nil && !told.Resumable {
			err = fmt.Errorf("%w: %s (%s)", loop.ErrNotResumable, id, told.Outcome)
		}
		if err != nil {
			return err
		}
		todo := changes{DryRun: true, Steps: []change{
			{Do: "remove", What: "what is left of the pair of " + arg},
			{Do: "make", What: "a fresh pair on " + rec.Lease.Engine.Kind + " for " + rec.Lease.Repository},
			{Do: "go on", What: "with the work of " + arg},
		}}
		return a.print(todo, todo.print)
	}
	a.dir = rec.Asked.Dir // whatever folder it is resumed from
	loaded, err := a.settings(nil)
	if err != nil {
		return err
	}
	progress := &progress{app: a}
	req := a.request(loaded.Config)
	req.Locate, req.Keep, req.Sink = a.locator(rec.Asked.Config.Engine), keep, progress.show
	req.Limits = limits
	result, err := loop.Resume(ctx, req, id)
	if result.Run == "" || errors.Is(err, pair.ErrOwned) {
		return err // it never started, or somebody else is at work on it
	}
	return firstError(err, a.print(result, func(w io.Writer) { printResult(w, result) }))
}

func newResultCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "result RUN", Short: "Print what came of a run", Args: usage(cobra.ExactArgs(1)),
		Long: "Prints what the run's folder tells of it: outcome, exit code and output of the agent, transcripts, end state, what it used and\n" +
			"cost, blocked hosts, times. No engine is asked: it works for runs that are under way, that died, or whose engine is gone.\n" +
			"The shape of the JSON: docs/reference/result.md.",
		Example: "  sbxpair result abcdefghijkl --json",
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := pair.ParseRunID(args[0])
			if err != nil {
				return &usageError{err}
			}
			told, err := loop.Tell(a.store(), id)
			if err != nil {
				return err
			}
			return a.print(told, func(w io.Writer) { printTold(w, told) })
		},
	}
}

func printTold(w io.Writer, t loop.Told) {
	printResult(w, t.Result)
	for _, path := range t.Transcripts {
		fmt.Fprintf(w, "transcript: %s\n", path)
	}
	if text := strings.TrimSpace(t.Stderr); text != "" {
		for line := range strings.Lines(text) {
			fmt.Fprintf(w, "stderr: %s\n", strings.TrimRight(plain(line), " "))
		}
	}
}
