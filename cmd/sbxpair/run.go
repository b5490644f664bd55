package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
)

type runOptions struct {
	task     string
	taskFile string
	repo     string
	base     string
	model    string
	verify   []string
	phases   []string
	mode     string
	allow    []string
	deny     []string
	keep     bool
	keepFail bool
	dirty    bool
	dryRun   bool
	issue    int
	staged   bool
	approve  bool
}

func newRunCmd(a *app) *cobra.Command {
	var opts runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] TASK",
		Short: "Give a task to the agent and open a pull request with what it did",
		Long: "Makes a pair of sandboxes for a copy of the checkout's committed state, lets the agent work on TASK in one of them,\n" +
			"runs the verify commands there, and opens a draft pull request from the other one. Nothing is left afterwards.",
		Example: "  sbxpair run --repo octo/slugify \"Make the failing test pass\"\n  sbxpair run --task-file task.md --verify 'go test ./...'\n" +
			"  sbxpair run --issue 12 --approve",
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				opts.task = args[0]
			}
			return runRun(cmd, a, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.repo, "repo", "", "repository on GitHub, OWNER/NAME (default: the checkout's origin)")
	flags.StringVar(&opts.base, "base", "", "branch that the pull request goes to (default: the checkout's)")
	flags.StringVar(&opts.taskFile, "task-file", "", "read the task from a file (- for standard input)")
	flags.IntVar(&opts.issue, "issue", 0, "take the text of this issue as the task, tell on it how far the run is, and link the pull request")
	flags.BoolVar(&opts.staged, "staged", false, "do everything but write to GitHub, and show what would be written (then: sbxpair deliver)")
	flags.BoolVar(&opts.approve, "approve", false, "show what would be written, and ask on the terminal before it is")
	flags.StringVar(&opts.model, "model", "", "model that the agent uses")
	flags.StringArrayVar(&opts.verify, "verify", nil, "command that must pass inside the sandbox (repeatable)")
	flags.StringVar(&opts.mode, "mode", "", "what of the checkout the agent gets: clone, tracked, in-place or empty")
	flags.StringSliceVar(&opts.phases, "phases", nil, "what to go through, of plan, execute, verify and review (default: all of them)")
	flags.StringSliceVar(&opts.allow, "allow", nil, "further hosts that the agent may reach")
	flags.StringSliceVar(&opts.deny, "deny", nil, "hosts that neither sandbox may reach")
	flags.BoolVar(&opts.dirty, "allow-dirty", false, "go on although the checkout has uncommitted changes, which stay behind")
	flags.BoolVar(&opts.keepFail, "keep-on-failure", false, "leave the pair in place if the run fails")
	flags.BoolVar(&opts.keep, "keep", false, "leave the pair in place afterwards (remove it with: sbxpair down)")
	dryRunFlag(cmd, &opts.dryRun)
	return cmd
}

func runRun(cmd *cobra.Command, a *app, opts runOptions) error {
	task, err := a.textOf("task", opts.task, opts.taskFile)
	if err != nil {
		return err
	}
	switch {
	case opts.issue < 0 || cmd.Flags().Changed("issue") && opts.issue == 0:
		return &usageError{fmt.Errorf("--issue %d is no number of an issue", opts.issue)}
	case opts.issue > 0 && task != "":
		return &usageError{errors.New("the task was given twice: as a text and as an issue")}
	case opts.staged && opts.approve:
		return &usageError{errors.New("--staged writes nothing, so there is nothing to approve; take one of the two")}
	}
	approve, err := a.approval(opts.approve)
	if err != nil {
		return err
	}
	set := map[string]any{}
	for key, value := range map[string]any{
		"github.repo": opts.repo, "github.base": opts.base, "agent.model": opts.model,
		"verify": anyList(opts.verify), "phases": anyList(opts.phases), "workspace.mode": opts.mode, "network.allow": anyList(opts.allow), "network.deny": anyList(opts.deny),
	} {
		if name := flagOf(key); cmd.Flags().Changed(name) {
			set[key] = value
		}
	}
	loaded, err := a.settings(set)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	progress := &progress{app: a}
	req := a.request(loaded.Config)
	req.Task, req.Keep, req.KeepFailed, req.AllowDirty, req.Given, req.Sink = task, opts.keep, opts.keepFail, opts.dirty, loaded.From("flag"), progress.show
	req.Issue, req.Staged, req.Approve = opts.issue, opts.staged, approve
	if opts.dryRun {
		return a.dryRun(ctx, req)
	}
	refilled := a.refilling(ctx, &req)
	result, err := loop.Run(ctx, req)
	refilled()
	if result.Run == "" {
		return err // it never started
	}
	return firstError(err, a.print(result, func(w io.Writer) { printResult(w, result) }))
}

// flagOf names the flag that sets a key.
func flagOf(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

func anyList(list []string) []any {
	var out []any
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
