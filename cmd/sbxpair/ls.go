package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// listed is one row of ls.
type listed struct {
	Run        pair.RunID        `json:"run"`
	State      string            `json:"state"`
	Owner      pair.Owner        `json:"owner"`
	OwnerAlive pair.Verdict      `json:"owner_alive"`
	Beat       time.Time         `json:"beat"` // when the owner was last heard of
	Created    time.Time         `json:"created"`
	Engine     pair.EngineRef    `json:"engine"`
	Repository string            `json:"repository"`
	Outcome    string            `json:"outcome,omitempty"`
	Sandboxes  map[string]string `json:"sandboxes"` // name to what the engine says; empty for a closed run
	Cost       cost              `json:"cost"`
	Unfetched  string            `json:"unfetched,omitempty"`
}

// cost is what a run used, as far as its receipt says: a run that goes on has none yet.
type cost struct {
	events.Spent
	Took time.Duration `json:"took_ns"`
}

func newListCmd(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List pairs and what became of their owners", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runList(cmd.Context(), a, all) },
	}
	cmd.Flags().BoolVar(&all, "all", false, "also list runs that are closed")
	return cmd
}

// stateOf is the word for where a run stands.
func stateOf(l pair.Lease) string {
	switch {
	case l.State != pair.Open:
		return string(l.State)
	case l.Kept:
		return "up"
	case l.Pooled():
		return "pool"
	case l.Orphaned():
		return "orphaned"
	case l.OwnerAlive() == pair.Unknown:
		return "unknown"
	case l.Pool.Key != "":
		return "booting"
	}
	return "running"
}

func runList(ctx context.Context, a *app, all bool) error {
	engines := map[pair.EngineRef][]sbx.Sandbox{}
	unreachable := map[pair.EngineRef]error{}
	rows := []listed{}
	leases, listErr := a.store().List() // what cannot be read may be a pair: an empty list would be a false one
	for _, l := range leases {
		if l.State != pair.Open && !all {
			continue
		}
		row := listed{Run: l.Run, State: stateOf(l), Owner: l.Owner, OwnerAlive: l.OwnerAlive(), Beat: l.Beat, Created: l.Created, Engine: l.Engine,
			Repository: l.Repository, Outcome: l.Outcome, Sandboxes: map[string]string{}, Unfetched: loop.Unfetched(a.store().Dir(l.Run))}
		if receipt, err := loop.ReadReceipt(a.store().Dir(l.Run)); err == nil {
			row.Cost = cost{receipt.Spent, receipt.Took}
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
	if len(rows) == 0 && listErr == nil && !a.quiet {
		fmt.Fprintln(a.stderr, "no pairs")
	}
	printErr := a.print(map[string]any{"runs": rows}, func(w io.Writer) { printList(w, rows) })
	return errors.Join(append(slices.Collect(maps.Values(unreachable)), listErr, printErr)...)
}

func printList(w io.Writer, rows []listed) {
	if len(rows) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(tw, "RUN\tSTATE\tAGE\tOWNER\tREPOSITORY\tENGINE\tISOLATION\tCOST\tSANDBOXES")
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
		if r.Unfetched != "" {
			state += ", unfetched work"
		}
		owner := fmt.Sprintf("%d@%s", r.Owner.PID, r.Owner.Host)
		used := "-"
		if c := r.Cost; c.Took > 0 {
			used = fmt.Sprintf("%d turns, %d tokens, $%.2f, %s", c.Turns, c.Input+c.Output, c.CostUSD, c.Took.Round(time.Second))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s %s\t%s\t%s\t%s\n", r.Run, state, time.Since(r.Created).Round(time.Second), owner, r.Repository,
			r.Engine.Kind, r.Engine.Version, r.Engine.Isolation, used, strings.Join(states, ", "))
	}
	tw.Flush()
}
