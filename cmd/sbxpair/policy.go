package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

func newPolicyCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Explain, check and learn network rules", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newExplainCmd(a), newLearnCmd(a), newLintCmd(a))
	return cmd
}

// request is what every verb asks of a run for the checkout; those that make one say whether it may be dirty.
func (a *app) request(c config.Config) loop.Request {
	return loop.Request{Dir: a.dir, Config: c, Version: a.version, Locate: a.locator(c.Engine),
		Store: a.store(), Home: xdg.Home, Lookup: os.LookupEnv, Proxy: http.ProxyFromEnvironment, AllowDirty: true}
}

// hostFlags are those of verbs that look at rules before a run.
type hostFlags struct {
	repo        string
	allow, deny []string
}

func (f *hostFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.repo, "repo", "", "repository on GitHub, OWNER/NAME (default: the checkout's origin)")
	cmd.Flags().StringSliceVar(&f.allow, "allow", nil, "further hosts that the agent may reach")
	cmd.Flags().StringSliceVar(&f.deny, "deny", nil, "hosts that neither sandbox may reach")
}

// settings are the configuration with the flags that were given.
func (f *hostFlags) settings(cmd *cobra.Command, a *app) (config.Loaded, error) {
	set := map[string]any{}
	for key, value := range map[string]any{"github.repo": f.repo, "network.allow": anyList(f.allow), "network.deny": anyList(f.deny)} {
		if cmd.Flags().Changed(flagOf(key)) {
			set[key] = value
		}
	}
	return a.settings(set)
}

func newExplainCmd(a *app) *cobra.Command {
	var flags hostFlags
	var run string
	cmd := &cobra.Command{
		Use: "explain HOST[:PORT] [METHOD PATH]", Short: "Say for each role whether it may reach a host, by which rule and why",
		Long: "Decides a request by the rules that a run for the checkout would have, or that a run has (--run, with what was granted\n" +
			"since), and by the engine's own, for both roles: the rule, the layer that it comes from, and its reason. No traffic is made.",
		Example: "  sbxpair policy explain api.github.com GET /repos/octo/slugify\n  sbxpair policy explain example.com:8443 --run RUN",
		Args: usage(func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 3 {
				return errors.New("want HOST, or HOST METHOD PATH")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			plan, err := a.rulesFor(cmd, run, &flags)
			if err != nil {
				return err
			}
			args = append(args, "", "")
			list, err := plan.Explain(a.listed(cmd.Context(), plan, run), args[0], args[1], args[2])
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) { printExplanations(w, list) })
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&run, "run", "", "explain by the rules of this run instead")
	return cmd
}

// listed are the rules of the plan's engine as it lists them now. Those of a run that is over decide nothing any more.
func (a *app) listed(ctx context.Context, plan provision.Plan, run string) []sbx.Rule {
	if l, err := a.store().Load(plan.Run); run != "" && (err != nil || l.State != pair.Open) {
		return nil
	}
	list, err := a.known(plan.Engine).PolicyList(ctx, "")
	if err != nil && !errors.Is(err, sbx.ErrPolicyUninitialised) {
		a.log.Warn("the engine's own rules are not looked at", "err", err)
	}
	return list
}

// rulesFor is the plan of a run on record with its grants, or the one that a new run would have, for its rules.
func (a *app) rulesFor(cmd *cobra.Command, run string, flags *hostFlags) (provision.Plan, error) {
	if run != "" {
		id, plan, err := a.recorded(run)
		if err != nil {
			return plan, err
		}
		return provision.ChangesIn(a.store().Dir(id), id).Plan(plan)
	}
	loaded, err := flags.settings(cmd, a)
	if err != nil {
		return provision.Plan{}, err
	}
	return loop.Rules(cmd.Context(), a.request(loaded.Config))
}

// recorded returns the plan in the record of a run, open or closed.
func (a *app) recorded(run string) (pair.RunID, provision.Plan, error) {
	id, err := pair.ParseRunID(run)
	if err != nil {
		return "", provision.Plan{}, &usageError{err}
	}
	if _, err := a.store().Load(id); err != nil {
		return "", provision.Plan{}, err
	}
	plan, err := loop.RecordedPlan(a.store().Dir(id))
	return id, plan, err
}

func printExplanations(w io.Writer, list []provision.Explanation) {
	for _, e := range list {
		verdict := "denied"
		switch {
		case e.Partly:
			verdict = "allowed in part"
		case e.Allowed:
			verdict = "allowed"
		}
		fmt.Fprintf(w, "%s: %s\n", e.Role, verdict)
		if e.Rule != "" {
			fmt.Fprintf(w, "  rule    %s\n  layer   %s\n", e.Rule, e.Layer)
		}
		fmt.Fprintf(w, "  reason  %s\n", e.Reason)
		if e.Partly {
			fmt.Fprintln(w, "  hint    only some requests are allowed; add METHOD PATH to ask about one")
		}
		if e.Hint != "" {
			fmt.Fprintf(w, "  hint    %s\n", e.Hint)
		}
	}
}

func newLearnCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "learn RUN", Short: "Propose the smallest addition to the rules from what a run was refused", Args: usage(cobra.ExactArgs(1)),
		Long: "Reads from the record of RUN, or from the engine while the pair is in place, which hosts were blocked, proposes one rule for each that the bounds allow, with the evidence,\n" +
			"and plays the record against the rules with the addition. Changes nothing.",
		RunE: func(cmd *cobra.Command, args []string) error { return runLearn(cmd.Context(), a, args[0]) },
	}
}

func runLearn(ctx context.Context, a *app, run string) error {
	id, plan, err := a.recorded(run)
	if err != nil {
		return err
	}
	l, err := a.store().Load(id)
	if err != nil {
		return err
	}
	blocked, err := loop.RecordedBlocked(a.store().Dir(id))
	if err == nil && l.State == pair.Open {
		blocked, err = blockedNow(ctx, a.known(l.Engine), plan)
	}
	if err != nil {
		return err
	}
	lesson, err := plan.Learn(blocked)
	if err != nil {
		return err
	}
	return a.print(lesson, func(w io.Writer) { printLesson(w, lesson) })
}

func printLesson(w io.Writer, l provision.Lesson) {
	if len(l.Learnt) == 0 {
		fmt.Fprintln(w, "nothing was blocked")
		return
	}
	for _, b := range l.Learnt {
		mark := "-"
		if b.Proposed != "" {
			mark = "+"
		}
		fmt.Fprintf(w, "%s %s (%s, %s)\n    %s\n", mark, plain(b.Host), b.Role, count(b.Count, "time"), plain(b.Because))
	}
	open := 0
	for _, r := range l.Replay {
		if r.Allowed {
			open++
		}
	}
	fmt.Fprintf(w, "with the addition %d of %d blocked hosts are allowed\n", open, len(l.Replay))
	if len(l.Allow) > 0 {
		fmt.Fprintf(w, "\nnetwork:\n  allow: [%s]\n", strings.Join(quoted(l.Allow), ", "))
	}
}

func quoted(list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%q", s))
	}
	return out
}

func newLintCmd(a *app) *cobra.Command {
	var flags hostFlags
	cmd := &cobra.Command{
		Use: "lint", Short: "Find rules that are too wide, can never act, are decided by another rule, or name a look-alike",
		Long: "Looks at network.allow and network.deny together with the rules of each role. Ends with 1 if there is a finding. What\n" +
			"is no resource, or one that no rule can open, every verb refuses as a mistake in the configuration, with 2.",
		Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runLint(cmd, a, &flags) },
	}
	flags.add(cmd)
	return cmd
}

func runLint(cmd *cobra.Command, a *app, flags *hostFlags) error {
	loaded, err := flags.settings(cmd, a)
	if err != nil {
		return err
	}
	c := loaded.Config
	repo, err := loop.Repository(cmd.Context(), a.request(c))
	if err != nil {
		return err
	}
	found, err := provision.Lint(provision.Input{Repo: repo, Host: c.GitHub.Host, Agent: c.Agent.Name, Provider: c.Agent.Provider,
		Allow: c.Network.Allow, Deny: c.Network.Deny, Paths: c.Network.Rules != "hosts"})
	if err != nil {
		return err
	}
	if found == nil {
		found = []provision.RoleFinding{}
	}
	err = a.print(map[string]any{"findings": found}, func(w io.Writer) {
		tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
		for _, f := range found {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", f.Role, f.Layer, f.Resource, f.Problem, f.Detail)
		}
		tw.Flush()
		if len(found) == 0 {
			fmt.Fprintln(w, "nothing found")
		}
	})
	if err == nil && len(found) > 0 {
		return codeError(exitFailed)
	}
	return err
}
