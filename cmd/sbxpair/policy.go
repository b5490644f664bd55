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
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

func newPolicyCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Explain, check and learn network rules", Args: usage(cobra.NoArgs),
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
			"since), for both roles: the rule, the layer that it comes from, and its reason. Asks no engine for traffic.",
		Example: "  sbxpair policy explain api.github.com GET /repos/octo/slugify\n  sbxpair policy explain example.com:8443 --run RUN",
		Args: usage(func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 3 {
				return errors.New("want HOST, or HOST METHOD PATH")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			plan, err := a.planFor(cmd, run, &flags)
			if err != nil {
				return err
			}
			args = append(args, "", "")
			list, err := plan.Explain(args[0], args[1], args[2])
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

// planFor is the plan of a run on record with its grants, or the one that a new run would have.
func (a *app) planFor(cmd *cobra.Command, run string, flags *hostFlags) (provision.Plan, error) {
	if run != "" {
		id, plan, err := a.recorded(run)
		if err != nil {
			return plan, err
		}
		return provision.GrantsIn(a.store().Dir(id), id).Plan(plan)
	}
	loaded, err := flags.settings(cmd, a)
	if err != nil {
		return provision.Plan{}, err
	}
	return loop.Plan(cmd.Context(), a.request(loaded.Config))
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
		Long: "Looks at network.allow and network.deny together with the rules of each role. Ends with 1 if there is a finding.",
		Args: usage(cobra.NoArgs),
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

func newGrantCmd(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "grant RUN [HOST...]", Short: "Open further hosts to the agent sandbox of a pair that is in place", Args: usage(cobra.MinimumNArgs(1)),
		Long: "Without hosts it lists what the agent was refused so far and what is granted already. What network.deny covers, what is\n" +
			"too wide and what belongs to the github sandbox is refused. Grants are in the record of the run and end with it;\n" +
			"take them back with: sbxpair revoke.",
		Example: "  sbxpair grant RUN\n  sbxpair grant RUN docs.example.com:443",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runGrant(cmd.Context(), a, args[0], args[1:], dryRun)
		},
	}
	dryRunFlag(cmd, &dryRun)
	return cmd
}

// inPlace returns the plan and the grants of a pair that is in place, and its engine.
func (a *app) inPlace(run string) (*sbx.Client, provision.Plan, provision.Grants, error) {
	l, err := a.theLease(run)
	if err != nil {
		return nil, provision.Plan{}, provision.Grants{}, err
	}
	plan, err := loop.RecordedPlan(a.store().Dir(l.Run))
	return a.known(l.Engine), plan, provision.GrantsIn(a.store().Dir(l.Run), l.Run), err
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
func wouldGrant(grants provision.Grants, plan provision.Plan, hosts []string) ([]string, error) {
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
func (a *app) listGrants(ctx context.Context, engine *sbx.Client, plan provision.Plan, grants provision.Grants) error {
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
