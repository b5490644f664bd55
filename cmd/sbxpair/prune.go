package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

type pruneOptions struct {
	dryRun, force bool
	records       time.Duration
}

func newPruneCmd(a *app) *cobra.Command {
	var o pruneOptions
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove what runs left behind whose process is dead", Args: usage(noArgs),
		Long: "Lists the pairs whose owner is dead, sandboxes, secrets and rules with names of ours of which there is no record, and\n" +
			"records of runs that are over for longer than limits.records. What nobody fetched is named. Removes it all after a yes;\n" +
			"without a terminal, and at the end of input, the answer is no. Pairs that somebody owns or left in place on purpose are\n" +
			"never touched, nor is anything that sbxpair did not make. It works from names alone when every record is lost.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("records") {
				o.records = -1
			}
			return runPrune(cmd.Context(), a, o)
		},
	}
	dryRunFlag(cmd, &o.dryRun)
	cmd.Flags().BoolVarP(&o.force, "force", "f", false, "do not ask")
	cmd.Flags().DurationVar(&o.records, "records", 0, "also remove the records of runs that are over for this long (default: limits.records; 0s: all)")
	return cmd
}

// pruning is what a prune found, by engine.
type pruning struct {
	engine *sbx.Client
	ref    pair.EngineRef
	found  []pair.Leftover
}

func runPrune(ctx context.Context, a *app, o pruneOptions) error {
	plan, steps, err := a.planPrune(ctx)
	errs := []error{err}
	records, recordErr := a.oldRecords(o.records)
	errs = append(errs, recordErr)
	strays, strayErr := a.store().Strays()
	errs = append(errs, strayErr)
	for _, run := range strays {
		dir := a.store().Dir(run)
		steps = append(steps, change{Do: "remove", What: "the folder " + dir, Why: "it holds no record of a run", Lost: cmp.Or(loop.Unfetched(dir), loop.UndeliveredWork(dir))})
	}
	for _, l := range records {
		steps = append(steps, change{Do: "forget", What: "the record of run " + string(l.Run), Why: "over since " + l.Closed.Format(time.DateOnly), Lost: lostWith(a.store().Dir(l.Run))})
	}
	result := struct {
		changes
		Found   []pair.Leftover `json:"found"`
		Removed []pair.RunID    `json:"removed"`
		Records []pair.RunID    `json:"records_removed"`
	}{changes{o.dryRun, append([]change{}, steps...)}, []pair.Leftover{}, []pair.RunID{}, []pair.RunID{}}
	for _, part := range plan {
		result.Found = append(result.Found, part.found...)
	}
	switch {
	case o.dryRun, len(steps) == 0:
	case !o.force && !a.sure(steps):
		errs = append(errs, &usageError{errors.New("nothing removed; give --force to remove without a question")})
	default:
		for _, part := range plan {
			removed, err := a.prune(ctx, part)
			result.Removed = append(result.Removed, removed...)
			errs = append(errs, err)
		}
		for _, run := range strays {
			err := loop.RemoveWorkspace(a.store().Dir(run))
			if err == nil {
				err = a.store().Sweep(run)
			}
			if errs = append(errs, err); err == nil {
				result.Records = append(result.Records, run)
			}
		}
		for _, l := range records {
			err := loop.RemoveWorkspace(a.store().Dir(l.Run)) // the agent may have made folders that nobody may enter
			if err == nil {
				err = a.store().Forget(l.Run)
			}
			if errs = append(errs, err); err == nil {
				result.Records = append(result.Records, l.Run)
			}
		}
	}
	printErr := a.print(result, func(w io.Writer) {
		if len(steps) > 0 || errors.Join(errs...) == nil { // else nobody knows that there is nothing to do
			result.changes.print(w)
		}
		if !o.dryRun && len(steps) == 0 && errors.Join(errs...) == nil {
			fmt.Fprintln(w, "nothing to prune")
		}
		for _, run := range result.Removed {
			fmt.Fprintf(w, "removed %s\n", run)
		}
		for _, run := range result.Records {
			fmt.Fprintf(w, "removed the record of %s\n", run)
		}
	})
	return errors.Join(append(errs, printErr)...)
}

// planPrune asks every engine that a lease names, and the one that would be taken, for what is left. One that does not
// answer does not keep the others from being asked.
func (a *app) planPrune(ctx context.Context) ([]pruning, []change, error) {
	refs, err := a.engines(ctx)
	if err != nil {
		return nil, nil, err
	}
	var plan []pruning
	var steps []change
	var errs []error
	for _, ref := range refs {
		engine := a.known(ref)
		found, err := pair.FindLeftovers(ctx, engine, a.store(), ref)
		if err != nil {
			errs = append(errs, fmt.Errorf("look for leftovers on %s: %w", ref.Kind, err))
		}
		if len(found) > 0 {
			plan = append(plan, pruning{engine, ref, found})
		}
		for _, left := range found {
			steps = append(steps, change{Do: "remove", What: fmt.Sprintf("run %s on %s (sandboxes: %s; %s, %s)", left.Run, ref.Kind, orNone(left.Sandboxes), count(left.Secrets, "secret"), count(left.Rules, "rule")),
				Why: left.Reason, Lost: loop.Unfetched(a.store().Dir(left.Run))})
		}
	}
	return plan, steps, errors.Join(errs...)
}

// tell shows what will be done.
func (a *app) tell(steps []change) {
	for _, s := range steps {
		fmt.Fprintln(a.stderr, s.line())
	}
}

// sure shows the plan, with what would be lost in it, and only then asks.
func (a *app) sure(steps []change) bool {
	a.tell(steps)
	lost := 0
	for _, s := range steps {
		if s.Lost != "" {
			lost++
		}
	}
	question := fmt.Sprintf("Do these %s?", count(len(steps), "step"))
	if lost > 0 {
		question = fmt.Sprintf("Do these %s, and lose work that nobody fetched in %d of them?", count(len(steps), "step"), lost)
	}
	return confirm(a, question)
}

// prune removes what was found on one engine and says which runs are gone altogether.
func (a *app) prune(ctx context.Context, part pruning) (removed []pair.RunID, err error) {
	var errs []error
	for _, left := range part.found {
		a.log.Info("removing", "run", left.Run, "reason", left.Reason)
	}
	if err := pair.Prune(ctx, part.engine.Unverified(), a.store(), part.found, func(run pair.RunID) error { return loop.RemoveWorkspace(a.store().Dir(run)) }); err != nil {
		errs = append(errs, err)
	}
	for _, left := range part.found {
		l, err := a.store().Load(left.Run)
		if err == nil && l.State == pair.Open {
			continue // it could not be removed, which is said above
		}
		removed = append(removed, left.Run)
	}
	return removed, errors.Join(errs...)
}

// oldRecords lists the closed runs that ended longer ago than age; negative is what the configuration says.
func (a *app) oldRecords(age time.Duration) ([]pair.Lease, error) {
	if age < 0 {
		loaded, err := a.settings(nil)
		if err != nil {
			return nil, err
		}
		if age = time.Duration(loaded.Config.Limits.Records); age == 0 {
			return nil, nil
		}
	}
	var old []pair.Lease
	leases, err := a.leases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		if l.State == pair.Closed && time.Since(l.Closed) >= age {
			old = append(old, l)
		}
	}
	return old, nil
}

// lostWith names the undelivered work that a run's folder holds.
func lostWith(dir string) string {
	if receipt, err := loop.ReadReceipt(dir); err == nil && receipt.Files != "" {
		return "what the agent left, which was refused as a whole, in " + receipt.Files
	}
	if loop.Resumable(dir) {
		return "what an interrupted run had done; it can be gone on with: sbxpair resume " + filepath.Base(dir)
	}
	if work := loop.UndeliveredWork(dir); work != "" {
		return "work that was not delivered, " + work
	}
	return ""
}
