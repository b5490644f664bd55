package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
)

func newUpCmd(a *app) *cobra.Command {
	var flags hostFlags
	var dirty, dryRun bool
	cmd := &cobra.Command{
		Use: "up", Short: "Make and prove a pair for the checkout, and leave it in place", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runUp(cmd, a, &flags, dirty, dryRun) },
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&dirty, "allow-dirty", false, "go on although the checkout has uncommitted changes, which stay behind")
	dryRunFlag(cmd, &dryRun)
	return cmd
}

func runUp(cmd *cobra.Command, a *app, flags *hostFlags, dirty, dryRun bool) error {
	loaded, err := flags.settings(cmd, a)
	if err != nil {
		return err
	}
	ctx, progress := cmd.Context(), &progress{app: a}
	req := a.request(loaded.Config)
	req.AllowDirty, req.Sink = dirty, progress.show
	if dryRun {
		return a.dryRun(ctx, req)
	}
	refilled := a.refilling(ctx, &req)
	result, err := loop.Up(ctx, req)
	refilled()
	if cause := context.Cause(ctx); err == nil && cause != nil { // a signal after its last look at that, which was told that it cleans up
		l, err := a.store().Load(result.Run)
		if err == nil {
			err = a.takeDown(context.WithoutCancel(ctx), a.known(l.Engine).Unverified(), l, false)
		}
		return errors.Join(fmt.Errorf("keep the pair: %w", cause), err)
	}
	if err != nil {
		return err
	}
	if !a.quiet {
		fmt.Fprintf(a.stderr, "next: sbxpair exec -- COMMAND, sbxpair shell, sbxpair github …; at the end: sbxpair down %s\n", result.Run)
	}
	return a.print(result, func(w io.Writer) { fmt.Fprintln(w, result.Run) })
}

// leases returns the leases that can be read; a warning names the others. If none can even be looked for, that is an error: nothing
// found would be a false answer.
func (a *app) leases() ([]pair.Lease, error) {
	list, err := a.store().List()
	if err != nil && !errors.Is(err, pair.ErrUnreadable) {
		return nil, err
	}
	if err != nil && !a.warned {
		a.warned = true
		a.log.Warn("a record of a run cannot be read", "err", err)
	}
	return list, nil
}

// openLeases returns the open leases of the runs named, or all but those of the pool.
func (a *app) openLeases(args []string) ([]pair.Lease, error) {
	if len(args) == 0 {
		list, err := a.leases()
		list = slices.DeleteFunc(list, func(l pair.Lease) bool { return l.State != pair.Open || l.Pool.Key != "" })
		return list, err
	}
	var list []pair.Lease
	for _, arg := range args {
		run, err := pair.ParseRunID(arg)
		if err != nil {
			return nil, &usageError{err}
		}
		l, err := a.store().Load(run)
		if err != nil {
			return nil, err
		}
		if l.State != pair.Open {
			return nil, &usageError{fmt.Errorf("run %s is closed: nothing of it is left", run)}
		}
		if l.Pooled() {
			return nil, &usageError{fmt.Errorf("%s is in the pool and belongs to no run yet (see: sbxpair pool drain)", run)}
		}
		list = append(list, l)
	}
	return list, nil
}

// theLease returns the open lease of the run named, or the only one that there is.
func (a *app) theLease(arg string) (pair.Lease, error) {
	var args []string
	if arg != "" {
		args = []string{arg}
	}
	list, err := a.openLeases(args)
	switch {
	case err != nil:
		return pair.Lease{}, err
	case len(list) == 0:
		return pair.Lease{}, &usageError{errors.New("there is no pair; make one with: sbxpair up")}
	case len(list) > 1:
		return pair.Lease{}, &usageError{fmt.Errorf("there are %d pairs; name one with --run (see: sbxpair ls)", len(list))}
	}
	return list[0], nil
}

// count writes a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none left"
	}
	return strings.Join(names, ", ")
}

// confirm asks on a terminal; without one, and at the end of input, the answer is no.
func confirm(a *app, question string) bool {
	if !isTerminal(a.stdin) {
		return false
	}
	fmt.Fprintf(a.stderr, "%s (y/N): ", question)
	var answer string
	fmt.Fscanln(a.stdin, &answer)
	return strings.EqualFold(answer, "y") || strings.EqualFold(answer, "yes")
}
