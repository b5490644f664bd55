package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/secrets"
)

func newCredentialCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "credential", Short: "Links to make tokens; replace or remove those of a pair in place", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newLinkCmd(a), newRotateCmd(a), newWithdrawCmd(a))
	return cmd
}

// tokenLink is where a role's token is made.
type tokenLink struct {
	Role pair.Role `json:"role"`
	URL  string    `json:"url"`
	Then string    `json:"then"` // what the page does not have filled in
}

func newLinkCmd(a *app) *cobra.Command {
	var repo string
	cmd := &cobra.Command{
		Use: "link", Short: "Print the addresses where the two tokens of a pair are made, with the right permissions filled in", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			set := map[string]any{}
			if repo != "" {
				set["github.repo"] = repo
			}
			return runLink(cmd.Context(), a, set)
		},
	}
	cmd.Flags().StringVar(&repo, "repo", "", "repository on GitHub, OWNER/NAME (default: the checkout's origin)")
	return cmd
}

func runLink(ctx context.Context, a *app, set map[string]any) error {
	loaded, err := a.settings(set)
	if err != nil {
		return err
	}
	name, err := loop.Repository(ctx, a.request(loaded.Config))
	if err != nil {
		return err
	}
	at, err := policy.ParseGitHub(loaded.Config.GitHub.Host)
	if err != nil {
		return &usageError{err}
	}
	provider, err := loaded.Config.Agent.ModelProvider()
	if err != nil {
		return &usageError{err}
	}
	links := []tokenLink{
		{pair.RoleAgent, provider.Link(), "take the account that pays for the model, and no repository"},
		{pair.RoleGitHub, secrets.RepositoryLink(at.Host, name), "choose \"Only select repositories\" and " + name},
	}
	if provider.Name != "github" {
		links[0].Then = "make a key for this purpose alone"
	}
	return a.print(map[string]any{"links": links}, func(w io.Writer) {
		for _, l := range links {
			fmt.Fprintf(w, "%s: %s\n  %s\n", l.Role, l.URL, l.Then)
		}
	})
}

func newRotateCmd(a *app) *cobra.Command {
	var role string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "rotate RUN", Short: "Replace a credential of a pair in place by the one that the configuration finds now", Args: usage(cobra.ExactArgs(1)),
		Long: "Fetches the token from where the configuration says, gives it to the sandbox's binding, and proves from inside that the\n" +
			"host takes it. If the engine has stored it and the sandbox goes on with the old one, that is an error.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeCredential(cmd.Context(), a, args[0], role, false, dryRun)
		},
	}
	roleFlag(cmd, &role, &dryRun)
	return cmd
}

func newWithdrawCmd(a *app) *cobra.Command {
	var role string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "remove RUN", Short: "Take a credential out of a pair in place", Args: usage(cobra.ExactArgs(1)),
		Long: "Removes the sandbox's secret and proves from inside that its host refuses the sandbox now. The pair stays.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeCredential(cmd.Context(), a, args[0], role, true, dryRun)
		},
	}
	roleFlag(cmd, &role, &dryRun)
	return cmd
}

func roleFlag(cmd *cobra.Command, role *string, dryRun *bool) {
	dryRunFlag(cmd, dryRun)
	cmd.Flags().StringVar(role, "role", "github", "whose credential: agent or github")
	completeFlag(cmd, "role", string(pair.RoleAgent), string(pair.RoleGitHub))
}

func changeCredential(ctx context.Context, a *app, run, which string, remove, dryRun bool) error {
	role := pair.Role(which)
	if role != pair.RoleAgent && role != pair.RoleGitHub {
		return &usageError{fmt.Errorf("role %q is neither agent nor github", which)}
	}
	engine, plan, changes, err := a.inPlace(run)
	if err != nil {
		return err
	}
	l, err := a.theLease(run)
	if err != nil {
		return err
	}
	p := pair.Attach(engine, a.store(), l)
	done := events.Rotated{Role: which, Removed: remove, Got: "nothing was done (--dry-run)"}
	var value secrets.Value
	if !remove {
		if value, err = a.credential(ctx, role, plan); err != nil {
			return err
		}
	}
	switch {
	case dryRun:
	case remove:
		done, err = changes.Withdraw(ctx, engine, p, plan, role)
	default:
		done, err = changes.Rotate(ctx, engine, p, plan, role, value)
	}
	if done.Role == "" {
		return err
	}
	return errors.Join(err, a.print(done, func(w io.Writer) {
		verb := "replace"
		if done.Removed {
			verb = "remove"
		}
		if dryRun {
			fmt.Fprintf(w, "would %s the %s sandbox's credential\n", verb, done.Role)
			return
		}
		fmt.Fprintf(w, "%sd the %s sandbox's credential; asked from inside: %s\n", verb, done.Role, strings.TrimSpace(done.Got+" "+done.Check))
	}))
}

// credential fetches and checks a role's token for a pair in place as a run would.
func (a *app) credential(ctx context.Context, role pair.Role, plan provision.Plan) (secrets.Value, error) {
	loaded, err := a.settings(nil)
	if err != nil {
		return secrets.Value{}, err
	}
	c := loaded.Config
	provider, err := c.Agent.ModelProvider()
	if err != nil {
		return secrets.Value{}, &usageError{err}
	}
	source, check, other := c.Agent.Token, provider.CheckToken, c.GitHub.Token
	if role == pair.RoleGitHub {
		source, check, other = c.GitHub.Token, secrets.CheckToken, c.Agent.Token
	} else if at := plan.Agent.Secret.Check; at != provider.Check { // the value would go to that host
		return secrets.Value{}, &usageError{fmt.Errorf("the pair's agent has its model at %s, and the configuration names %s now: its token is of no use there", strings.Join(plan.Agent.Secret.Hosts, ", "), provider.Name)}
	}
	if at, err := policy.ParseGitHub(c.GitHub.Host); err != nil || role == pair.RoleGitHub && at.Host != plan.Host {
		return secrets.Value{}, &usageError{fmt.Errorf("the pair is for %s, and the configuration names %s now: its token is of no use there", plan.Host, c.GitHub.Host)}
	}
	value, err := source.Resolve(ctx, os.LookupEnv)
	if err == nil {
		err = check(value, fmt.Sprintf("the %s token (%s)", role, source))
	}
	if err != nil {
		return secrets.Value{}, err
	}
	// The other role's need not be at hand to replace this one. If it is, it must be another: this would join what a pair splits.
	if theirs, err := other.Resolve(ctx, os.LookupEnv); err == nil && theirs.Equal(value) {
		return secrets.Value{}, provision.Same(source, other)
	}
	return value, nil
}
