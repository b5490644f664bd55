package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
)

func newPoolCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pool", Short: "Keep pairs booted ahead of time, without a credential in them", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPoolFillCmd(a), newPoolListCmd(a), newPoolDrainCmd(a))
	return cmd
}

func newPoolFillCmd(a *app) *cobra.Command {
	var size int
	var dryRun bool
	cmd := &cobra.Command{
		Use: "fill", Short: "Boot pairs until pool.size of them wait", Args: usage(noArgs),
		Long: "Removes pairs that no run will claim any more (too old, for another engine or other settings), and boots what is\n" +
			"missing. A pair in the pool has neither a credential nor rules of its own, and an empty folder where the workspace\n" +
			"goes. run and up take one that fits, give it those, and remove it at the end; while they work, the pool is filled\n" +
			"again.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			set := map[string]any{}
			if cmd.Flags().Changed("size") {
				set["pool.size"] = size
			}
			return runPoolFill(cmd.Context(), a, set, dryRun)
		},
	}
	cmd.Flags().IntVar(&size, "size", 0, "how many pairs wait (default: pool.size)")
	dryRunFlag(cmd, &dryRun)
	return cmd
}

func newPoolListCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the pairs that wait", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runPoolList(a) },
	}
}

func newPoolDrainCmd(a *app) *cobra.Command {
	var stale, dryRun bool
	cmd := &cobra.Command{
		Use: "drain", Short: "Remove the pairs that wait", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runPoolDrain(cmd.Context(), a, stale, dryRun) },
	}
	cmd.Flags().BoolVar(&stale, "stale", false, "only those that no run will claim any more")
	dryRunFlag(cmd, &dryRun)
	return cmd
}

// pool returns the pool for the configuration with what flags set.
func (a *app) pool(ctx context.Context, set map[string]any) (provision.Pool, error) {
	loaded, err := a.settings(set)
	if err != nil {
		return provision.Pool{}, err
	}
	return loop.Pool(ctx, a.request(loaded.Config))
}

func runPoolFill(ctx context.Context, a *app, set map[string]any, dryRun bool) error {
	pool, err := a.pool(ctx, set)
	if err != nil {
		return err
	}
	if pool.Size == 0 {
		return &usageError{errors.New("pool.size is 0: set it in the configuration, or give --size")}
	}
	stale, err := pool.Drainable(true)
	if err != nil {
		return err
	}
	missing, err := pool.Missing()
	if err != nil {
		return err
	}
	todo := changes{DryRun: dryRun, Steps: drainSteps(stale)}
	for range missing {
		todo.Steps = append(todo.Steps, change{Do: "boot", What: "a pair on " + pool.Ref.Kind})
	}
	made, removed := []pair.RunID{}, []pair.RunID{}
	if !dryRun {
		var drainErr error
		removed, drainErr = pool.Drain(ctx, true)
		made, err = pool.Fill(ctx)
		err = errors.Join(drainErr, err)
	}
	printErr := a.print(struct {
		changes
		Made    []pair.RunID `json:"made"`
		Removed []pair.RunID `json:"removed"`
	}{todo, made, removed}, func(w io.Writer) {
		todo.print(w)
		printRuns(w, "removed", removed)
		printRuns(w, "booted", made)
		if !dryRun && len(made)+len(removed) == 0 && err == nil {
			fmt.Fprintln(w, "the pool is full")
		}
	})
	return errors.Join(err, printErr)
}

func printRuns(w io.Writer, did string, runs []pair.RunID) {
	for _, run := range runs {
		fmt.Fprintf(w, "%s %s\n", did, run)
	}
}

func drainSteps(leases []pair.Lease) []change {
	steps := []change{}
	for _, l := range leases {
		steps = append(steps, change{Do: "remove", What: "pooled pair " + string(l.Run), Why: fmt.Sprintf("booted %s ago", time.Since(l.Created).Round(time.Second))})
	}
	return steps
}

func runPoolList(a *app) error {
	list, err := provision.Pool{Store: a.store()}.List()
	type row struct {
		Run     pair.RunID     `json:"run"`
		State   string         `json:"state"`
		Created time.Time      `json:"created"`
		Expires time.Time      `json:"expires"`
		Engine  pair.EngineRef `json:"engine"`
		Key     string         `json:"key"`
	}
	rows := []row{}
	for _, l := range list {
		rows = append(rows, row{l.Run, stateOf(l), l.Created, l.Pool.Expires, l.Engine, l.Pool.Key})
	}
	printErr := a.print(map[string]any{"pairs": rows}, func(w io.Writer) {
		if len(rows) == 0 {
			if err == nil && !a.quiet {
				fmt.Fprintln(a.stderr, "no pair waits")
			}
			return
		}
		tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
		fmt.Fprintln(tw, "RUN\tSTATE\tAGE\tLEFT\tENGINE\tISOLATION\tFOR")
		for _, r := range rows {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s %s\t%s\t%s\n", r.Run, r.State, time.Since(r.Created).Round(time.Second), max(0, time.Until(r.Expires)).Round(time.Second),
				r.Engine.Kind, r.Engine.Version, r.Engine.Isolation, r.Key)
		}
		tw.Flush()
	})
	return errors.Join(err, printErr)
}

func runPoolDrain(ctx context.Context, a *app, stale, dryRun bool) error {
	pool, err := a.pool(ctx, nil)
	if err != nil {
		return err
	}
	chosen, err := pool.Drainable(stale)
	if err != nil {
		return err
	}
	todo := changes{DryRun: dryRun, Steps: drainSteps(chosen)}
	removed := []pair.RunID{}
	if !dryRun {
		removed, err = pool.Drain(ctx, stale)
	}
	printErr := a.print(struct {
		changes
		Removed []pair.RunID `json:"removed"`
	}{todo, removed}, func(w io.Writer) {
		todo.print(w)
		printRuns(w, "removed", removed)
		if !dryRun && len(chosen) == 0 {
			fmt.Fprintln(w, "nothing to drain")
		}
	})
	return errors.Join(err, printErr)
}

// refilling makes the pool be filled again beside a run, once the run's own pair stands. The function that it returns
// waits for that to end.
func (a *app) refilling(ctx context.Context, req *loop.Request) (finish func()) {
	if req.Config.Pool.Size == 0 {
		return func() {}
	}
	var wg sync.WaitGroup
	var once sync.Once
	show, again := req.Sink, *req
	req.Sink = func(e events.Payload) {
		show(e)
		if end, ok := e.(events.PhaseEnded); ok && end.Phase == events.PhaseProof {
			once.Do(func() {
				wg.Go(func() {
					pool, err := loop.Pool(ctx, again)
					if err == nil {
						_, err = pool.Fill(ctx)
					}
					if err != nil && ctx.Err() == nil {
						a.log.Warn("the pool was not filled again", "err", err)
					}
				})
			})
		}
	}
	return wg.Wait
}
