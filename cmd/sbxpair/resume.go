package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
)

func newResumeCmd(a *app) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use: "resume RUN", Short: "Go on with a run that was interrupted", Args: usage(cobra.ExactArgs(1)),
		Long: "Goes on with a run that was cancelled, or whose process or engine died: from the run's folder, under the configuration that\n" +
			"it was started with, on a fresh pair. The phase that was interrupted is done again. What is configured differently today is\n" +
			"said, and not used. Which runs can be gone on with: sbxpair result RUN.",
		Example: "  sbxpair resume abcdefghijkl",
		RunE:    func(cmd *cobra.Command, args []string) error { return runResume(cmd.Context(), a, args[0], keep) },
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the pair in place afterwards (remove it with: sbxpair down)")
	return cmd
}

func runResume(ctx context.Context, a *app, arg string, keep bool) error {
	id, err := pair.ParseRunID(arg)
	if err != nil {
		return &usageError{err}
	}
	rec, err := loop.Load(a.store(), id)
	if err != nil {
		return err
	}
	a.dir = rec.Asked.Dir // whatever folder it is resumed from
	loaded, err := a.settings(nil)
	if err != nil {
		return err
	}
	progress := &progress{app: a}
	req := a.request(loaded.Config)
	req.Locate, req.Keep, req.Sink = a.locator(rec.Asked.Config.Engine), keep, progress.show
	result, err := loop.Resume(ctx, req, id)
	if result.Run == "" {
		return err // it never started
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
