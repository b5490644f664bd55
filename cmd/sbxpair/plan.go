package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/provision"
)

func newPlanCmd(a *app) *cobra.Command {
	var flags hostFlags
	cmd := &cobra.Command{
		Use: "plan", Short: "Print the pair that a run would make, and make nothing", Args: usage(noArgs),
		Long: "Prints names, mounts, rules with their reasons, secret bindings and the engine calls to be made. Needs no credential\nand changes nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := flags.settings(cmd, a)
			if err != nil {
				return err
			}
			plan, err := loop.Plan(cmd.Context(), a.request(loaded.Config))
			if err != nil {
				return err
			}
			return a.print(plan, func(w io.Writer) { printPlan(w, plan) })
		},
	}
	flags.add(cmd)
	return cmd
}

// dryRun prints what a run or up would make, and makes nothing.
func (a *app) dryRun(ctx context.Context, req loop.Request) error {
	plan, err := loop.Plan(ctx, req)
	if err != nil {
		return err
	}
	todo := changes{DryRun: true, Steps: []change{{Do: "make", What: "a copy of " + req.Dir}}}
	for _, group := range plan.Calls() {
		for _, op := range group {
			todo.Steps = append(todo.Steps, change{Do: "call", What: plan.Engine.Kind + " " + op})
		}
	}
	return a.print(struct {
		changes
		Plan provision.Plan `json:"plan"`
	}{todo, plan}, func(w io.Writer) { printPlan(w, plan); todo.print(w) })
}

func printPlan(w io.Writer, p provision.Plan) {
	fmt.Fprintf(w, "%s on %s, engine %s %s %s\n", p.Repo, p.Host, p.Engine.Kind, p.Engine.Version, p.Engine.Isolation)
	for _, s := range []provision.Spec{p.Agent, p.GitHub} {
		fmt.Fprintf(w, "\n%s sandbox %s\n", s.Role, s.Name)
		tw := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
		for _, m := range s.Workspaces {
			mode := "read-write"
			if m.ReadOnly {
				mode = "read-only"
			}
			fmt.Fprintf(tw, "  mount\t%s\t%s\n", m.Path, mode)
		}
		if len(s.Workspaces) == 0 {
			fmt.Fprintf(tw, "  mount\tnothing\t\n")
		}
		for _, r := range s.Deny {
			fmt.Fprintf(tw, "  deny\t%s\t%s\n", r.Resource, r.Reason)
		}
		for _, host := range s.KitDenied {
			fmt.Fprintf(tw, "  deny\t%s\tthe engine's kit opens it; denied when the sandbox is made\n", host)
		}
		for _, r := range s.Allow {
			fmt.Fprintf(tw, "  allow\t%s%s\t%s\n", strings.TrimSpace(strings.Join(r.Methods, ",")+" "+r.Resource), r.Path, r.Reason)
		}
		where := "as a placeholder; the value goes to"
		if s.Secret.Strategy == provision.PlainEnv {
			where = "itself, readable by everything in the sandbox; it is for"
		}
		fmt.Fprintf(tw, "  secret\t%s %s\tin $%s %s %s\n", s.Secret.Strategy, s.Secret.Service, s.Secret.Env, where, strings.Join(s.Secret.Hosts, ", "))
		tw.Flush()
	}
	n := 0
	var groups []string
	for _, g := range p.Calls() {
		n += len(g)
		groups = append(groups, strings.Join(g, " ‖ "))
	}
	fmt.Fprintf(w, "\n%d engine calls: %s\n", n, strings.Join(groups, "; then "))
}
