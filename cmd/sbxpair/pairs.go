package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// releaseLimit bounds down and prune for each pair.
const releaseLimit = 2 * time.Minute

func newUpCmd(a *app) *cobra.Command {
	var repo string
	var dirty bool
	cmd := &cobra.Command{
		Use: "up", Short: "Make and prove a pair for the checkout, and leave it in place", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runUp(cmd.Context(), a, repo, dirty) },
	}
	cmd.Flags().StringVar(&repo, "repo", "", "repository on GitHub, OWNER/NAME (default: the checkout's origin)")
	cmd.Flags().BoolVar(&dirty, "allow-dirty", false, "go on although the checkout has uncommitted changes, which stay behind")
	return cmd
}

func runUp(ctx context.Context, a *app, repo string, dirty bool) error {
	set := map[string]any{}
	if repo != "" {
		set["github.repo"] = repo
	}
	loaded, err := a.settings(set)
	if err != nil {
		return err
	}
	progress := &progress{app: a}
	result, err := loop.Up(ctx, loop.Request{
		Dir: a.dir, Config: loaded.Config, Version: a.version, Locate: a.locator(loaded.Config.Engine),
		Store: a.store(), Home: xdg.Home, Lookup: os.LookupEnv, AllowDirty: dirty, Sink: progress.show,
	})
	if err != nil {
		return err
	}
	if !a.quiet {
		fmt.Fprintf(a.stderr, "next: sbxpair exec -- COMMAND, sbxpair shell, sbxpair github …; at the end: sbxpair down %s\n", result.Run)
	}
	return a.print(result, func(w io.Writer) { fmt.Fprintln(w, result.Run) })
}

func newDownCmd(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "down [RUN...]", Short: "Remove pairs that were left in place (without a name: the only one there is)", Args: usage(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error { return runDown(cmd.Context(), a, args, all) },
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove every pair that was left in place on purpose")
	return cmd
}

func runDown(ctx context.Context, a *app, args []string, all bool) error {
	if all && len(args) > 0 {
		return &usageError{errors.New("name the runs to take down, or give --all, not both")}
	}
	leases, err := a.openLeases(args)
	if err != nil {
		return err
	}
	if !all && len(args) == 0 {
		only, err := a.theLease("")
		if err != nil {
			return err
		}
		leases = []pair.Lease{only}
	}
	var errs []error
	var removed []pair.RunID
	for _, l := range leases {
		if all && !l.Kept {
			continue
		}
		if !l.Kept && l.Owner.Check() != pair.Dead {
			errs = append(errs, &usageError{fmt.Errorf("run %s belongs to process %d, which is at work; interrupt that instead", l.Run, l.Owner.PID)})
			continue
		}
		if _, err := pair.Attach(a.known(l.Engine).Unverified(), a.store(), l).Release(ctx, l.Outcome, releaseLimit); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, loop.RemoveWorkspace(a.store().Dir(l.Run)))
		removed = append(removed, l.Run)
	}
	printErr := a.print(map[string]any{"removed": removed}, func(w io.Writer) {
		for _, run := range removed {
			fmt.Fprintf(w, "removed %s\n", run)
		}
	})
	return errors.Join(append(errs, printErr)...)
}

// leases returns the leases that can be read; a warning names the others.
func (a *app) leases() []pair.Lease {
	list, err := a.store().List()
	if err != nil {
		a.log.Warn("a record of a run cannot be read", "err", err)
	}
	return list
}

// openLeases returns the open leases of the runs named, or all.
func (a *app) openLeases(args []string) ([]pair.Lease, error) {
	if len(args) == 0 {
		list := slices.DeleteFunc(a.leases(), func(l pair.Lease) bool { return l.State != pair.Open })
		return list, nil
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

// listed is one row of ls.
type listed struct {
	Run        pair.RunID        `json:"run"`
	State      string            `json:"state"`
	Owner      pair.Owner        `json:"owner"`
	Created    time.Time         `json:"created"`
	Engine     pair.EngineRef    `json:"engine"`
	Repository string            `json:"repository"`
	Outcome    string            `json:"outcome,omitempty"`
	Sandboxes  map[string]string `json:"sandboxes"` // name to what the engine says; empty for a closed run
}

func newListCmd(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List pairs and what became of their owners", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runList(cmd.Context(), a, all) },
	}
	cmd.Flags().BoolVar(&all, "all", false, "also list runs that are closed")
	return cmd
}

func runList(ctx context.Context, a *app, all bool) error {
	engines := map[pair.EngineRef][]sbx.Sandbox{}
	unreachable := map[pair.EngineRef]error{}
	rows := []listed{}
	for _, l := range a.leases() {
		if l.State != pair.Open && !all {
			continue
		}
		row := listed{Run: l.Run, State: string(l.State), Owner: l.Owner, Created: l.Created, Engine: l.Engine,
			Repository: l.Repository, Outcome: l.Outcome, Sandboxes: map[string]string{}}
		switch {
		case l.State != pair.Open:
		case l.Kept:
			row.State = "up"
		case l.Orphaned():
			row.State = "orphaned"
		default:
			row.State = "running"
		}
		if l.State == pair.Open {
			boxes, known := engines[l.Engine]
			if !known {
				boxes, unreachable[l.Engine] = a.known(l.Engine).List(ctx)
				engines[l.Engine] = boxes
			}
			for _, name := range l.Sandboxes {
				if unreachable[l.Engine] != nil {
					row.Sandboxes[name] = "unknown"
					continue
				}
				row.Sandboxes[name] = "gone"
				if i := slices.IndexFunc(boxes, func(b sbx.Sandbox) bool { return b.Name == name }); i >= 0 {
					row.Sandboxes[name] = string(boxes[i].Status)
				}
			}
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 && !a.quiet {
		fmt.Fprintln(a.stderr, "no pairs")
	}
	printErr := a.print(map[string]any{"runs": rows}, func(w io.Writer) { printList(w, rows) })
	return errors.Join(append(slices.Collect(maps.Values(unreachable)), printErr)...)
}

func printList(w io.Writer, rows []listed) {
	if len(rows) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(tw, "RUN\tSTATE\tAGE\tREPOSITORY\tENGINE\tISOLATION\tSANDBOXES")
	for _, r := range rows {
		var states []string
		for _, name := range slices.Sorted(maps.Keys(r.Sandboxes)) {
			_, role, _ := pair.ParseName(name)
			states = append(states, fmt.Sprintf("%s %s", role, r.Sandboxes[name]))
		}
		state := r.State
		if r.State == string(pair.Closed) {
			state += ": " + r.Outcome
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s %s\t%s\t%s\n", r.Run, state, time.Since(r.Created).Round(time.Second), r.Repository,
			r.Engine.Kind, r.Engine.Version, r.Engine.Isolation, strings.Join(states, ", "))
	}
	tw.Flush()
}

func newPruneCmd(a *app) *cobra.Command {
	var dryRun, force bool
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove what runs left behind whose process is dead", Args: usage(cobra.NoArgs),
		Long: "Lists the pairs whose owner is dead, and sandboxes with names of ours of which there is no record, and removes them\nafter a yes. Pairs that somebody owns or left in place on purpose are never touched.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runPrune(cmd.Context(), a, dryRun, force) },
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only list")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

func runPrune(ctx context.Context, a *app, dryRun, force bool) error {
	refs, err := a.engines(ctx)
	if err != nil {
		return err
	}
	plan, removed := []pair.Leftover{}, []pair.RunID{}
	var errs []error
	for _, ref := range refs {
		engine := a.known(ref)
		found, err := pair.FindLeftovers(ctx, engine, a.store(), ref)
		errs = append(errs, err)
		if len(found) == 0 {
			continue
		}
		plan = append(plan, found...)
		for _, left := range found {
			fmt.Fprintf(a.stderr, "run %s: %s; sandboxes: %s\n", left.Run, left.Reason, orNone(left.Sandboxes))
		}
		if dryRun {
			continue
		}
		if !force && !confirm(a, fmt.Sprintf("Remove what is left of %s on %s?", count(len(found), "run"), ref.Kind)) {
			errs = append(errs, &usageError{errors.New("nothing removed; give --force to remove without a question")})
			continue
		}
		if err := pair.Prune(ctx, engine, a.store(), found); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, left := range found {
			errs = append(errs, loop.RemoveWorkspace(a.store().Dir(left.Run)))
			removed = append(removed, left.Run)
		}
	}
	printErr := a.print(map[string]any{"dry_run": dryRun, "found": plan, "removed": removed}, func(w io.Writer) {
		if len(plan) == 0 && errors.Join(errs...) == nil {
			fmt.Fprintln(w, "nothing to prune")
		}
		for _, run := range removed {
			fmt.Fprintf(w, "removed %s\n", run)
		}
	})
	return errors.Join(append(errs, printErr)...)
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
