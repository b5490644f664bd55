package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/policy"
)

func newPolicyCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Manage network policy", Args: unknownVerb, RunE: help}
	cmd.AddCommand(newPolicyInitCmd(a), newPolicyRuleCmd(a, policy.Allow), newPolicyRuleCmd(a, policy.Deny), newPolicyCheckCmd(a),
		newPolicyLsCmd(a), newPolicyInspectCmd(a), newPolicyRmCmd(a), newPolicyLogCmd(a), newPolicyResetCmd(a))
	return cmd
}

// help is the RunE of a command that only groups others.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// onNetwork puts cmd under a parent of the given name: the only kind of rule is "network".
func onNetwork(use, short string, cmd *cobra.Command) *cobra.Command {
	parent := &cobra.Command{Use: use, Short: short, Args: unknownVerb, RunE: help}
	parent.AddCommand(cmd)
	return parent
}

func (a *app) ruleStore() (*rules.Store, error) {
	st, err := a.state()
	if err != nil {
		return nil, err
	}
	return rules.Open(st.PolicyDir()), nil
}

// knownSandbox checks that a scope names a sandbox; sbx 0.35 and later word it with double quotes here.
func (a *app) knownSandbox(name string) error {
	if name == "" {
		return nil
	}
	st, err := a.state()
	if err != nil {
		return err
	}
	_, err = (&engine.Engine{State: st}).Get(name)
	if errors.Is(err, engine.ErrNotFound) {
		return hint(fmt.Errorf("sandbox %q not found", name), "sbx ls")
	}
	return err
}

func newPolicyInitCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "init allow-all|balanced|deny-all",
		Aliases: []string{"set-default"}, // its name before 0.34
		Short:   "Set the global network policy, once",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			preset, err := policy.ParsePreset(args[0])
			if err != nil {
				return err
			}
			store, err := a.ruleStore()
			if err != nil {
				return err
			}
			if err := store.Init(cmd.Context(), preset); err != nil {
				return err
			}
			fmt.Fprintf(a.Stdout, "Global network policy initialized to %q.\n", preset)
			return nil
		},
	}
}

type policyRuleOptions struct {
	effect    policy.Effect
	sandbox   string
	protocols []string
	methods   []string
	paths     []string
	resources string
}

func newPolicyRuleCmd(a *app, effect policy.Effect) *cobra.Command {
	opts := policyRuleOptions{effect: effect}
	cmd := &cobra.Command{
		Use:   "network [--sandbox SANDBOX] RESOURCES",
		Short: "Resources are one argument, separated by commas",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 2 {
				return fmt.Errorf("unexpected second argument %q: the sandbox name is no longer positional.\n"+
					"To scope this rule to a sandbox, use:\n  sbx policy %s network --sandbox %s %s", args[1], effect, args[0], args[1])
			}
			if len(args) != 1 {
				return fmt.Errorf("accepts 1 arg(s), received %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.resources = args[0]
			return runPolicyRule(cmd.Context(), a, opts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.sandbox, "sandbox", "", "this sandbox only")
	f.Var(&list{&opts.protocols}, "protocol", "tcp or udp (default: tcp for allow, both for deny)")
	f.Var(&list{&opts.methods}, "method", "HTTP method; requests only")
	f.StringArrayVar(&opts.paths, "path", nil, "HTTP path pattern; requests only")
	return onNetwork(string(effect), strings.ToUpper(string(effect)[:1])+string(effect)[1:]+" access to hosts", cmd)
}

func runPolicyRule(ctx context.Context, a *app, opts policyRuleOptions) error {
	resources, err := policy.ParseResources(opts.resources)
	if err != nil {
		return err
	}
	n := rules.New{Resources: resources, Via: rules.ViaAdded}
	for _, p := range opts.protocols {
		n.Protocols = append(n.Protocols, policy.Protocol(strings.ToLower(p)))
	}
	for _, m := range opts.methods {
		n.Methods = append(n.Methods, strings.ToUpper(m))
	}
	for _, p := range opts.paths {
		pattern, err := policy.ParsePathPattern(p)
		if err != nil {
			return err
		}
		n.Paths = append(n.Paths, pattern)
	}
	if err := a.knownSandbox(opts.sandbox); err != nil {
		return err
	}
	store, err := a.ruleStore()
	if err != nil {
		return err
	}
	added, err := store.Add(ctx, opts.sandbox, opts.effect, n)
	if err != nil {
		return worded(err, "")
	}
	for _, r := range added {
		fmt.Fprintln(a.Stdout, r.AddedLine())
	}
	return nil
}

func newPolicyCheckCmd(a *app) *cobra.Command {
	var sandbox string
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "network [--sandbox SANDBOX] TARGET",
		Short: "Say whether a host may be reached; exit code 1 if not",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := a.ruleStore()
			if err != nil {
				return err
			}
			if err := a.knownSandbox(sandbox); err != nil {
				return err
			}
			check, err := store.Check(sandbox, args[0])
			if err != nil {
				return worded(err, "")
			}
			return printCheck(a, check, args[0], asJSON, verbose)
		},
	}
	f := cmd.Flags()
	f.StringVar(&sandbox, "sandbox", "", "rules of this sandbox too")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&verbose, "verbose", false, "say why")
	return onNetwork("check", "Check a target against the policy", cmd)
}

func printCheck(a *app, check rules.Check, target string, asJSON, verbose bool) error {
	word := "Denied"
	if check.Allowed {
		word = "Allowed"
	}
	if asJSON {
		if err := a.printJSON(check); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.Stdout, "%s: %s\n", word, target)
		if verbose && !check.Allowed {
			for _, line := range [][2]string{{"reason", check.Reason}, {"rule", check.Rule}, {"hint", check.Hint}} {
				if line[1] != "" {
					fmt.Fprintf(a.Stdout, "  %s: %s\n", line[0], line[1])
				}
			}
		}
	}
	if !check.Allowed {
		return exitError(1)
	}
	return nil
}

// printJSON prints one indented document.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

type policyLsOptions struct {
	sandbox                              string
	wide, asJSON                         bool
	kind, source, decision, via, network string
}

func newPolicyLsCmd(a *app) *cobra.Command {
	var opts policyLsOptions
	var inactive bool
	cmd := &cobra.Command{
		Use:   "ls [SANDBOX]",
		Short: "List rules",
		Args:  usage(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				opts.sandbox = args[0]
			}
			return runPolicyLs(a, opts)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&opts.wide, "wide", false, "one row for each rule")
	f.BoolVar(&opts.asJSON, "json", false, "print JSON")
	f.StringVar(&opts.kind, "type", "all", "all, network or filesystem")
	f.StringVar(&opts.source, "source", "", "local, org or kit")
	f.StringVar(&opts.decision, "decision", "", "allow or deny")
	f.StringVar(&opts.via, "created-via", "", "default, added or provisioned")
	f.StringVar(&opts.network, "protocol", "", "tcp or udp")
	f.BoolVar(&inactive, "include-inactive", false, "there are none: no organisation governs this engine")
	return cmd
}

func runPolicyLs(a *app, opts policyLsOptions) error {
	if !slices.Contains([]string{"all", "network", "filesystem"}, opts.kind) {
		return fmt.Errorf("invalid --type %q: want all, network or filesystem", opts.kind)
	}
	store, err := a.ruleStore()
	if err != nil {
		return err
	}
	stored, err := store.List(rules.Filter{Sandbox: opts.sandbox})
	if err != nil {
		return worded(err, "")
	}
	preset, err := store.Preset()
	if err != nil {
		return worded(err, "")
	}
	views := []rules.View{}
	for _, r := range stored {
		views = append(views, r.View())
	}
	views = append(views, rules.FilesystemViews()...)
	if opts.sandbox == "" && preset != policy.AllowAll {
		views = append(views, rules.DefaultDenyView())
	}
	views = slices.DeleteFunc(views, func(v rules.View) bool { return !opts.shows(v) })
	switch {
	case opts.asJSON:
		return a.printJSON(rules.Listing{Rules: views})
	case len(views) == 0:
		fmt.Fprintln(a.Stdout, "No policies match the selected filters.")
	case opts.wide:
		fmt.Fprint(a.Stdout, wideTable(views))
	default:
		fmt.Fprint(a.Stdout, policyTable(views))
	}
	return nil
}

func (o policyLsOptions) shows(v rules.View) bool {
	filesystem := strings.HasPrefix(v.ResourceType, "filesystem")
	switch {
	case o.kind == "network" && filesystem, o.kind == "filesystem" && !filesystem,
		o.source != "" && o.source != v.Layer,
		o.decision != "" && o.decision != v.Decision,
		o.via != "" && o.via != v.Provenance.CreatedVia,
		o.network != "" && !slices.Contains(v.Actions, "net:connect:"+o.network):
		return false
	}
	return true
}

// policyTable is the listing of sbx 0.35 and later: one row for each policy, with counts.
func policyTable(views []rules.View) string {
	type policyRow struct{ name, source, applies string }
	counts := map[policyRow]map[string]int{}
	var order []policyRow
	for _, v := range views {
		row := policyRow{policyName(v), v.Layer, v.AppliesTo}
		if counts[row] == nil {
			counts[row] = map[string]int{}
			order = append(order, row)
		}
		counts[row][v.ResourceType+" "+v.Decision]++
	}
	table := [][]string{{"POLICY", "SOURCE", "APPLIES TO", "SUMMARY"}}
	for _, row := range order {
		var parts []string
		for _, kind := range []string{"network", "http", "filesystem:read", "filesystem:write"} {
			var of []string
			for _, decision := range []string{"allow", "deny"} {
				if n := counts[row][kind+" "+decision]; n > 0 {
					of = append(of, strconv.Itoa(n)+" "+decision)
				}
			}
			if of != nil {
				parts = append(parts, strings.Replace(kind, ":", " ", 1)+": "+strings.Join(of, ", "))
			}
		}
		table = append(table, []string{row.name, row.source, row.applies, strings.Join(parts, "; ")})
	}
	return rules.Table(table)
}

// policyName is "local-policy" for a preset's rules and "local" for the others, as "policy allow" says when it adds one.
func policyName(v rules.View) string {
	if v.PolicyID == "local-policy" {
		return v.PolicyID
	}
	return "local"
}

// wideTable is the listing of sbx 0.45 and later: one row for each rule, an empty line between them.
func wideTable(views []rules.View) string {
	table := [][]string{{"SOURCE", "APPLIES TO", "POLICY", "POLICY_ID", "RULE", "RULE_ID", "TYPE", "DECISION", "METHOD", "PATH", "RESOURCES"}}
	dash := func(list []string) string {
		if len(list) == 0 {
			return "-"
		}
		return strings.Join(list, ",")
	}
	for _, v := range views {
		name, paths := "-", []string{}
		if v.PolicyID == "local-policy" {
			name = v.Name
		}
		for _, t := range v.HTTPTargets {
			if !slices.Contains(paths, t.Path) {
				paths = append(paths, t.Path)
			}
		}
		table = append(table, []string{v.Layer, v.AppliesTo, policyName(v), policyName(v), name, v.ID, v.ResourceType, v.Decision,
			dash(v.Methods), dash(paths), strings.Join(v.Resources, ", ")})
	}
	header, body, _ := strings.Cut(rules.Table(table), "\n")
	return header + "\n" + strings.ReplaceAll(strings.TrimSuffix(body, "\n"), "\n", "\n\n") + "\n"
}

func newPolicyInspectCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect ID|NAME",
		Short: "Show one rule",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := a.ruleStore()
			if err != nil {
				return err
			}
			stored, err := store.List(rules.Filter{})
			if err != nil {
				return worded(err, "")
			}
			i := slices.IndexFunc(stored, func(r rules.Rule) bool { return r.ID == strings.TrimPrefix(args[0], "local:") })
			if i < 0 {
				return hint(fmt.Errorf("policy or rule %q not found", args[0]), "sbx policy ls --wide")
			}
			if asJSON {
				return a.printJSON(stored[i].View())
			}
			printRule(a, stored[i])
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printRule(a *app, r rules.Rule) {
	v := r.View()
	rows := [][]string{{"Rule:", v.ID}, {"Scope:", v.Scope}, {"Type:", v.ResourceType}, {"Decision:", v.Decision},
		{"Resources:", strings.Join(v.Resources, ", ")}}
	for _, t := range v.HTTPTargets {
		rows = append(rows, []string{"Target:", t.Host + t.Path})
	}
	if len(v.Methods) > 0 {
		rows = append(rows, []string{"Methods:", strings.Join(v.Methods, ", ")})
	}
	if r.Reason != "" {
		rows = append(rows, []string{"Reason:", r.Reason})
	}
	scope := ""
	if r.Scope != "" {
		scope = " --sandbox " + r.Scope
	}
	rows = append(rows, []string{"Created:", r.Created.Format(time.RFC3339)}, []string{"Remove with:", "sbx policy rm network" + scope + " --id " + v.ID})
	fmt.Fprint(a.Stdout, rules.Table(rows))
}

func newPolicyRmCmd(a *app) *cobra.Command {
	var sandbox, id, resources string
	var force bool
	cmd := &cobra.Command{
		Use:   "network [--sandbox SANDBOX] (--id UUID | --resource LIST)",
		Short: "Remove rules by id, or by resource",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPolicyRm(cmd.Context(), a, sandbox, id, resources)
		},
	}
	f := cmd.Flags()
	f.StringVar(&sandbox, "sandbox", "", "rules of this sandbox")
	f.StringVar(&id, "id", "", "id of one rule")
	f.StringVar(&resources, "resource", "", "resources, separated by commas")
	f.BoolVarP(&force, "force", "f", false, "nothing is asked anyway")
	cmd.MarkFlagsOneRequired("id", "resource")
	cmd.MarkFlagsMutuallyExclusive("id", "resource")
	return onNetwork("rm", "Remove rules", cmd)
}

func runPolicyRm(ctx context.Context, a *app, sandbox, id, list string) error {
	store, err := a.ruleStore()
	if err != nil {
		return err
	}
	var removed []rules.Rule
	if id != "" {
		var r rules.Rule
		r, err = store.RemoveID(ctx, sandbox, id)
		removed = []rules.Rule{r}
	} else {
		var resources []policy.Resource
		if resources, err = policy.ParseResources(list); err != nil {
			return err
		}
		removed, err = store.RemoveResources(ctx, sandbox, resources)
	}
	if err != nil {
		return worded(err, "")
	}
	var gone []string
	for _, r := range removed {
		for _, res := range r.Resources {
			gone = append(gone, res.String())
		}
	}
	fmt.Fprintln(a.Stdout, "Policy removed: resources="+strings.Join(gone, ","))
	return nil
}

func newPolicyLogCmd(a *app) *cobra.Command {
	var asJSON, quiet, follow bool
	var limit int
	var kind string
	cmd := &cobra.Command{
		Use:   "log [SANDBOX]",
		Short: "Show what was let through and what was blocked",
		Args:  usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := a.state()
			if err != nil {
				return err
			}
			if kind == "filesystem" {
				return errors.New("filesystem logs are not supported yet") // as in sbx 0.47
			}
			if follow {
				return followLog(cmd.Context(), a, rules.OpenLog(st.PolicyDir()), strings.Join(args, ""), asJSON)
			}
			view, err := rules.OpenLog(st.PolicyDir()).View(strings.Join(args, ""), limit)
			if err != nil {
				return err
			}
			switch {
			case asJSON:
				return a.printJSON(view)
			case quiet:
				for _, row := range slices.Concat(view.Blocked, view.Allowed) {
					fmt.Fprintln(a.Stdout, row.Host)
				}
				return nil
			}
			return view.Write(a.Stdout, time.Local)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVarP(&quiet, "quiet", "q", false, "hosts only")
	f.IntVar(&limit, "limit", 0, "at most so many blocked and so many allowed rows")
	f.StringVar(&kind, "type", "all", "all, network or filesystem")
	f.BoolVarP(&follow, "follow", "f", false, "print each decision as it is made, one a line, until interrupted")
	cmd.MarkFlagsMutuallyExclusive("follow", "quiet")
	cmd.MarkFlagsMutuallyExclusive("follow", "limit")
	return cmd
}

// followLog prints decisions of one sandbox, or of all, until ctx is done.
func followLog(ctx context.Context, a *app, log *rules.Log, sandbox string, asJSON bool) error {
	lines := json.NewEncoder(a.Stdout)
	lines.SetEscapeHTML(false)
	return log.Follow(ctx, func(e rules.Entry) error {
		if sandbox != "" && e.Sandbox != sandbox {
			return nil
		}
		if asJSON {
			return lines.Encode(e)
		}
		_, err := fmt.Fprintln(a.Stdout, e.Line(time.Local))
		return err
	})
}

func newPolicyResetCmd(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Forget the network policy, and stop every sandbox",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !force && !a.confirm(cmd.Context(), "Reset the network policy and stop all sandboxes?") {
				return context.Cause(cmd.Context()) // a signal is no answer
			}
			// First the policy: what runs while the sandboxes are being stopped may reach nothing.
			store, err := a.ruleStore()
			if err != nil {
				return err
			}
			if err := store.Reset(cmd.Context()); err != nil {
				return err
			}
			if err := a.stopAll(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout, "Network policy reset.")
			return nil
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}
