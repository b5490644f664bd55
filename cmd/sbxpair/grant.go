package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

func newGrantCmd(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "grant RUN [HOST...]", Short: "Open further hosts to the agent sandbox of a pair that is in place", Args: usage(cobra.MinimumNArgs(1)),
		Long: "Without hosts it lists what the agent was refused so far and what is granted already. What network.deny covers, what is\n" +
			"too wide and what belongs to the github sandbox is refused. Changes are in the record of the run and end with it;\n" +
			"take them back with: sbxpair revoke.",
		Example: "  sbxpair grant RUN\n  sbxpair grant RUN docs.example.com:443",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runGrant(cmd.Context(), a, args[0], args[1:], dryRun)
		},
	}
	dryRunFlag(cmd, &dryRun)
	return cmd
}

// inPlace returns the plan and the record of changes of a pair that is in place, and its engine.
func (a *app) inPlace(run string) (*sbx.Client, provision.Plan, provision.Changes, error) {
	l, err := a.theLease(run)
	if err != nil {
		return nil, provision.Plan{}, provision.Changes{}, err
	}
	plan, err := loop.RecordedPlan(a.store().Dir(l.Run))
	return a.known(l.Engine), plan, provision.ChangesIn(a.store().Dir(l.Run), l.Run), err
}

func runGrant(ctx context.Context, a *app, run string, hosts []string, dryRun bool) error {
	engine, plan, grants, err := a.inPlace(run)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return a.listGrants(ctx, engine, plan, grants)
	}
	var given []string
	if dryRun {
		given, err = wouldGrant(grants, plan, hosts)
	} else {
		given, err = grants.Give(ctx, engine, plan, hosts)
	}
	if err != nil && len(given) == 0 {
		return err
	}
	return errors.Join(err, a.print(map[string]any{"granted": given, "dry_run": dryRun}, func(w io.Writer) {
		for _, host := range given {
			fmt.Fprintf(w, "%s %s\n", word(dryRun, "granted"), host)
		}
		if len(given) == 0 {
			fmt.Fprintln(w, "allowed already")
		}
	}))
}

// wouldGrant says which hosts a grant would open.
func wouldGrant(grants provision.Changes, plan provision.Plan, hosts []string) ([]string, error) {
	plan, err := grants.Plan(plan)
	if err != nil {
		return nil, err
	}
	_, fresh, err := plan.Grant(hosts)
	would := []string{}
	for _, r := range fresh {
		would = append(would, r.Resource)
	}
	return would, err
}

// listGrants shows what could be granted, from what the engine refused so far, and what is.
func (a *app) listGrants(ctx context.Context, engine *sbx.Client, plan provision.Plan, grants provision.Changes) error {
	now, err := grants.Current()
	if err != nil {
		return err
	}
	blocked, err := blockedNow(ctx, engine, plan)
	if err != nil {
		return err
	}
	with, err := grants.Plan(plan)
	if err != nil {
		return err
	}
	lesson, err := with.Learn(blocked)
	if err != nil {
		return err
	}
	return a.print(map[string]any{"granted": append([]string{}, now...), "asked": lesson.Learnt}, func(w io.Writer) {
		for _, host := range now {
			fmt.Fprintf(w, "granted %s\n", host)
		}
		for _, b := range lesson.Learnt {
			if b.Proposed != "" {
				fmt.Fprintf(w, "refused %s, %s; to open it: sbxpair grant %s %s\n", plain(b.Host), count(b.Count, "time"), plan.Run, b.Proposed)
			}
		}
	})
}

// blockedNow asks the engine what a pair in place was refused so far, beside what the proof itself asked for.
func blockedNow(ctx context.Context, engine *sbx.Client, plan provision.Plan) ([]events.Blocked, error) {
	seen, err := engine.PolicyLog(ctx, "", 0)
	if err != nil {
		return nil, err
	}
	var blocked []events.Blocked
	for _, e := range seen.Blocked {
		run, role, ours := pair.ParseName(e.Sandbox)
		if n := e.Count - plan.Probed(role, e.Host); ours && run == plan.Run && n > 0 {
			blocked = append(blocked, events.Blocked{Role: string(role), Host: e.Host, Reason: e.Reason, Count: n})
		}
	}
	return blocked, nil
}

// word is a verb for what was done, or for what would be.
func word(dryRun bool, done string) string {
	if dryRun {
		return "would be " + done
	}
	return done
}

func newRevokeCmd(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "revoke RUN [HOST...]", Short: "Close hosts again that were granted (without a name: all of them)", Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runRevoke(cmd.Context(), a, args[0], args[1:], dryRun)
		},
	}
	dryRunFlag(cmd, &dryRun)
	return cmd
}

func runRevoke(ctx context.Context, a *app, run string, hosts []string, dryRun bool) error {
	engine, plan, grants, err := a.inPlace(run)
	if err != nil {
		return err
	}
	var taken []string
	if dryRun {
		taken, err = grants.Named(hosts)
	} else {
		taken, err = grants.Take(ctx, engine, plan, hosts)
	}
	if err != nil && len(taken) == 0 {
		return err
	}
	return errors.Join(err, a.print(map[string]any{"revoked": taken, "dry_run": dryRun}, func(w io.Writer) {
		for _, host := range taken {
			fmt.Fprintf(w, "%s %s\n", word(dryRun, "revoked"), host)
		}
		if len(taken) == 0 {
			fmt.Fprintln(w, "nothing was granted")
		}
	}))
}
