package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// releaseLimit bounds down for each pair.
const releaseLimit = 2 * time.Minute

type downOptions struct{ all, force, dryRun bool }

func newDownCmd(a *app) *cobra.Command {
	var o downOptions
	cmd := &cobra.Command{
		Use: "down [RUN...]", Short: "Remove pairs that were left in place (without a name: the only one there is)", Args: usage(cobra.ArbitraryArgs),
		Long: "Removes both sandboxes of each pair, several pairs at the same time, with their secrets, rules and workspace. The\n" +
			"record of the run stays until prune removes it.",
		RunE: func(cmd *cobra.Command, args []string) error { return runDown(cmd.Context(), a, args, o) },
	}
	cmd.Flags().BoolVar(&o.all, "all", false, "remove every pair that was left in place on purpose")
	cmd.Flags().BoolVarP(&o.force, "force", "f", false, "also a pair whose owner cannot be asked, or whose engine is not there any more (then only its record is closed)")
	dryRunFlag(cmd, &o.dryRun)
	return cmd
}

func runDown(ctx context.Context, a *app, args []string, o downOptions) error {
	if o.all && len(args) > 0 {
		return &usageError{errors.New("name the runs to take down, or give --all, not both")}
	}
	leases, err := a.openLeases(args)
	if err != nil {
		return err
	}
	if !o.all && len(args) == 0 {
		only, err := a.theLease("")
		if err != nil {
			return err
		}
		leases = []pair.Lease{only}
	}
	var errs []error
	var chosen []pair.Lease
	todo := changes{DryRun: o.dryRun, Steps: []change{}}
	for _, l := range leases {
		switch {
		case o.all && !l.Kept:
			continue
		case l.Kept || l.OwnerAlive() == pair.Dead:
		case l.OwnerAlive() == pair.Unknown && o.force:
		case l.OwnerAlive() == pair.Unknown:
			errs = append(errs, &usageError{fmt.Errorf("run %s belongs to process %d on %s, which cannot be looked at from here and was last heard of %s ago; if it is dead, give --force",
				l.Run, l.Owner.PID, l.Owner.Host, time.Since(l.Beat).Round(time.Second))})
			continue
		default:
			errs = append(errs, &usageError{fmt.Errorf("run %s belongs to process %d, which is at work; interrupt that instead", l.Run, l.Owner.PID)})
			continue
		}
		chosen = append(chosen, l)
		todo.Steps = append(todo.Steps, change{Do: "remove", What: "pair " + string(l.Run), Lost: loop.Unfetched(a.store().Dir(l.Run))})
	}
	removed := []pair.RunID{}
	if !o.dryRun {
		for _, step := range todo.Steps {
			if step.Lost != "" {
				a.log.Warn("what nobody fetched goes with the workspace", "what", step.What, "lost", step.Lost)
			}
		}
		engines := map[pair.EngineRef]pair.Engine{}
		for _, l := range chosen {
			if engines[l.Engine] == nil {
				engines[l.Engine] = pair.Together(a.known(l.Engine).Unverified())
			}
		}
		var mu sync.Mutex
		errs = append(errs, pair.Several(chosen, func(l pair.Lease) error {
			err := a.takeDown(ctx, engines[l.Engine], l, o.force)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				removed = append(removed, l.Run)
			}
			return err
		}))
	}
	printErr := a.print(struct {
		changes
		Removed []pair.RunID `json:"removed"`
	}{todo, removed}, func(w io.Writer) {
		todo.print(w)
		for _, run := range removed {
			fmt.Fprintf(w, "removed %s\n", run)
		}
	})
	return errors.Join(append(errs, printErr)...)
}

// takeDown removes one pair and its workspace.
func (a *app) takeDown(ctx context.Context, engine pair.Engine, l pair.Lease, force bool) error {
	err := pair.TakeDown(ctx, engine, a.store(), l, releaseLimit, force, func() error { return loop.RemoveWorkspace(a.store().Dir(l.Run)) })
	if errors.Is(err, sbx.ErrNotInstalled) {
		return fmt.Errorf("run %s: its engine is not there any more (sbxpair down --force %s closes the record): %w", l.Run, l.Run, err)
	}
	return err
}
