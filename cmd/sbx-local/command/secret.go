package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/secrets"
)

func newSecretCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "secret", Short: "Manage credentials that the proxy puts into requests", Args: unknownVerb, RunE: help}
	cmd.AddCommand(newSecretSetCmd(a), newSecretSetCustomCmd(a), newSecretLsCmd(a), newSecretRmCmd(a), newSecretImportCmd(a))
	return cmd
}

func (a *app) secretStore() (*vault.Store, error) {
	st, err := a.state()
	if err != nil {
		return nil, err
	}
	return a.vault(st), nil
}

// scopeText is how sbx 0.47 writes a scope in text.
func scopeText(sandbox string) string {
	if sandbox == "" {
		return "(global)"
	}
	return sandbox
}

// maxSecret bounds what is read as a value, in bytes; the store has a limit of its own.
const maxSecret = 1 << 20

// secretInput is what both ways of setting a secret share.
type secretInput struct {
	sandbox, value, command, ref, refresh string
	noVerify, showError                   bool
}

func (in *secretInput) flags(cmd *cobra.Command, value string) {
	f := cmd.Flags()
	f.StringVar(&in.sandbox, "sandbox", "", "this sandbox only; its secrets win over global ones")
	f.StringVarP(&in.value, value, "t", "", "value; everyone on this machine can read it while the command runs")
	f.StringVar(&in.command, "command", "", "program that prints the value: absolute path and arguments")
	f.StringVar(&in.ref, "ref", "", "what a password manager has: op://VAULT/ITEM/FIELD, or the ARN of a secret in AWS Secrets Manager")
	f.StringVar(&in.refresh, "refresh", "", "on-demand, or how long a value that a command gave is kept")
	f.BoolVar(&in.noVerify, "no-verify", false, "do not run the command now")
	f.BoolVar(&in.showError, "show-error", false, "accepted; errors are always shown")
}

// secret returns where the value comes from, without reading standard input.
func (in *secretInput) secret(a *app) (vault.Secret, error) {
	if in.ref != "" && (in.command != "" || in.value != "") {
		return vault.Secret{}, errors.New("--ref, --command and a value exclude each other")
	}
	if in.sandbox != "" {
		if err := engine.CheckName(in.sandbox); err != nil {
			return vault.Secret{}, err
		}
	}
	s := vault.Secret{Value: secrets.New(in.value), Command: in.command}
	if in.refresh != "" && in.refresh != "on-demand" {
		d, err := time.ParseDuration(in.refresh)
		if err != nil || d <= 0 {
			return vault.Secret{}, fmt.Errorf("invalid --refresh %q: want on-demand or a duration such as 10m", in.refresh)
		}
		s.Refresh = d
	}
	if in.ref == "" {
		return s, nil
	}
	program, args, env, err := vault.RefCommand(in.ref)
	if err != nil {
		return vault.Secret{}, err
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return vault.Secret{}, fmt.Errorf("%s reads this reference and is not installed: %w", program, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return vault.Secret{}, err
	}
	s.Ref, s.Command = in.ref, "'"+path+"' "+strings.Join(args, " ")
	for _, name := range env {
		if v := a.Getenv(name); v != "" {
			s.Env = append(s.Env, name+"="+v)
		}
	}
	return s, nil
}

// kept says where a given value is to be kept: in the file, or in the system's keyring by setting.
func (a *app) kept(s vault.Secret) (vault.Secret, error) {
	store, err := a.settings()
	if err != nil {
		return s, err
	}
	s.Keyring, err = store.Keyring()
	return s, err
}

func newSecretSetCmd(a *app) *cobra.Command {
	var in secretInput
	var force, global, oauth bool
	var registry string
	cmd := &cobra.Command{
		Use:   "set SERVICE",
		Short: "Set the credential of a service; the value comes from standard input",
		Args:  usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case registry != "" || cmd.Flags().Changed("registry"):
				return errors.New("--registry is not supported by this engine: it pulls no images")
			case oauth:
				return errors.New("--oauth is not supported by this engine; set a key or token")
			case len(args) == 0:
				return usage(cobra.ExactArgs(1))(cmd, args)
			case global && in.sandbox != "":
				return errors.New("--global and --sandbox exclude each other")
			case global:
				fmt.Fprintln(a.Stderr, "Warning: --global is deprecated; global is the default")
			}
			return runSecretSet(cmd.Context(), a, args[0], in, force)
		},
	}
	in.flags(cmd, "token")
	f := cmd.Flags()
	f.BoolVarP(&force, "force", "f", false, "replace an existing credential")
	f.BoolVarP(&global, "global", "g", false, "deprecated")
	f.BoolVar(&oauth, "oauth", false, "sign in (not in this engine)")
	f.StringVar(&registry, "registry", "", "credential of an image registry (not in this engine)")
	return cmd
}

func runSecretSet(ctx context.Context, a *app, service string, in secretInput, force bool) error {
	sec, err := in.secret(a)
	if err != nil {
		return err
	}
	if sec.Command == "" && sec.Value.IsZero() {
		if sec.Value, err = a.readSecret(ctx); err != nil {
			return err
		}
	}
	if sec, err = a.kept(sec); err != nil {
		return err
	}
	store, err := a.secretStore()
	if err != nil {
		return err
	}
	if _, known := vault.LookupService(service); !known {
		fmt.Fprintf(a.Stderr, "Warning: %q is not a built-in service; no host is bound to it\n", service)
	}
	set := vault.ServiceSecret{Service: service, Sandbox: in.sandbox, Secret: sec, Force: force, NoVerify: in.noVerify}
	err = store.Set(ctx, set)
	if errors.Is(err, vault.ErrExists) {
		// sbx keeps the old value and exits with 0 when nobody answers.
		if !a.confirm(ctx, fmt.Sprintf("Secret for service %q already exists in scope %q. Overwrite?", service, scopeText(in.sandbox))) {
			return context.Cause(ctx)
		}
		set.Force = true
		err = store.Set(ctx, set)
	}
	if err != nil {
		return worded(err, "")
	}
	fmt.Fprintf(a.Stdout, "Saved secret for service %q in scope %q\n", service, scopeText(in.sandbox))
	return a.sayApplied(in.sandbox)
}

// readSecret reads a value from standard input: all of it, or one line without echo from a terminal.
func (a *app) readSecret(ctx context.Context) (secrets.Value, error) {
	read := func() ([]byte, error) { return io.ReadAll(io.LimitReader(a.Stdin, maxSecret)) }
	if f, ok := a.Stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		old, err := term.GetState(int(f.Fd()))
		if err != nil {
			return secrets.Value{}, fmt.Errorf("read secret: %w", err)
		}
		defer term.Restore(int(f.Fd()), old) // echo again, also after Ctrl-C
		fmt.Fprint(a.Stderr, "Enter secret: ")
		defer fmt.Fprintln(a.Stderr)
		read = func() ([]byte, error) { return term.ReadPassword(int(f.Fd())) }
	}
	if a.Stdin == nil {
		return secrets.Value{}, errors.New("no secret given: pipe it to standard input")
	}
	b, err := await(ctx, read)
	if err != nil {
		return secrets.Value{}, fmt.Errorf("read secret: %w", err)
	}
	return secrets.New(string(b)), nil
}

// confirm is ask, and says so when the answer is no.
func (a *app) confirm(ctx context.Context, question string) bool {
	yes := a.ask(ctx, question+" (y/N): ")
	if !yes {
		fmt.Fprintln(a.Stdout, "Cancelled")
	}
	return yes
}

// sayApplied says which running sandboxes use the change; the proxy reads it with the next request.
func (a *app) sayApplied(sandbox string) error {
	if sandbox != "" {
		fmt.Fprintf(a.Stdout, "Applied secret updates for sandbox %q\n", sandbox)
		return nil
	}
	st, err := a.state()
	if err != nil {
		return err
	}
	records, err := (&engine.Engine{State: st}).List()
	if err != nil {
		return err
	}
	running := 0
	for _, r := range records {
		if r.Status == engine.Running {
			running++
		}
	}
	fmt.Fprintf(a.Stdout, "Applied secret updates for %d running sandbox(es)\n", running)
	return nil
}

func newSecretSetCustomCmd(a *app) *cobra.Command {
	var in secretInput
	var c vault.CustomSecret
	cmd := &cobra.Command{
		Use:   "set-custom --host HOST... (--value VALUE | --command COMMAND)",
		Short: "Put a value where a placeholder is, in headers of requests to some hosts",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runSecretSetCustom(cmd.Context(), a, in, c)
		},
	}
	in.flags(cmd, "value")
	f := cmd.Flags()
	f.Var(&list{&c.Hosts}, "host", "host to bind to")
	f.Var(&list{&c.Hosts}, "target", "its name in 0.27")
	f.StringVar(&c.Env, "env", "", "variable to preset with the placeholder")
	f.StringVar(&c.Placeholder, "placeholder", "", "text that stands for the value; {rand} in it is replaced")
	if err := f.MarkHidden("target"); err != nil {
		panic(err) // the flag is two lines above
	}
	return cmd
}

func runSecretSetCustom(ctx context.Context, a *app, in secretInput, c vault.CustomSecret) error {
	sec, err := in.secret(a)
	if err != nil {
		return err
	}
	if len(c.Hosts) == 0 {
		return errors.New("--host is required")
	}
	if sec.Command == "" && sec.Value.IsZero() {
		f, ok := a.Stdin.(*os.File)
		if !ok || !term.IsTerminal(int(f.Fd())) {
			return errors.New("no secret given: use --command, or --value if others on this machine may see it")
		}
		if sec.Value, err = a.readSecret(ctx); err != nil {
			return err
		}
	}
	if sec, err = a.kept(sec); err != nil {
		return err
	}
	store, err := a.secretStore()
	if err != nil {
		return err
	}
	c.Sandbox, c.Secret, c.NoVerify = in.sandbox, sec, in.noVerify
	placeholder, generated, err := store.SetCustom(ctx, c)
	if err != nil {
		return worded(err, "")
	}
	fmt.Fprintf(a.Stdout, "Saved custom secret placeholder %q for target %q env %q in scope %q\n",
		placeholder, strings.Join(c.Hosts, ", "), c.Env, scopeText(in.sandbox))
	if generated {
		fmt.Fprintln(a.Stdout, "Generated placeholder: "+placeholder)
	}
	if c.Env != "" {
		fmt.Fprintf(a.Stdout, "You may need to update environment variable %s inside existing sandboxes to %q (the placeholder value).\n", c.Env, placeholder)
	}
	return a.sayApplied(in.sandbox)
}

type secretLsOptions struct {
	global, quiet, asJSON bool
	sandbox, service      string
}

func newSecretLsCmd(a *app) *cobra.Command {
	var opts secretLsOptions
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List secrets, without their values",
		Args:  usage(cobra.NoArgs),
		RunE:  func(*cobra.Command, []string) error { return runSecretLs(a, opts) },
	}
	f := cmd.Flags()
	f.BoolVarP(&opts.global, "global", "g", false, "global secrets only")
	f.StringVar(&opts.sandbox, "sandbox", "", "secrets of this sandbox only")
	f.StringVar(&opts.service, "service", "", "this service only")
	f.BoolVarP(&opts.quiet, "quiet", "q", false, "names only")
	f.BoolVar(&opts.asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("global", "sandbox")
	return cmd
}

func runSecretLs(a *app, opts secretLsOptions) error {
	store, err := a.secretStore()
	if err != nil {
		return err
	}
	filter := vault.Filter{Service: opts.service}
	if opts.global || opts.sandbox != "" {
		filter.Scope = &opts.sandbox
	}
	list, err := store.List(filter)
	if err != nil {
		return err
	}
	switch {
	case opts.asJSON:
		return a.printJSON(list)
	case opts.quiet:
		for _, s := range list.Secrets {
			fmt.Fprintln(a.Stdout, s.Name)
		}
		for _, c := range list.Custom {
			fmt.Fprintln(a.Stdout, c.Placeholder)
		}
		return nil
	case len(list.Secrets)+len(list.Custom) == 0:
		fmt.Fprintf(a.Stdout, "No secrets found for scope %q.\n", scopeText(opts.sandbox))
		return nil
	}
	fmt.Fprint(a.Stdout, secretTables(list))
	return nil
}

// secretTables is the listing of sbx 0.38 and later: services, then custom secrets under a title of their own.
func secretTables(list vault.Listing) string {
	scope := func(s string) string {
		if s == "global" {
			return "(global)"
		}
		return s
	}
	var parts []string
	if len(list.Secrets) > 0 {
		table := [][]string{{"SCOPE", "TYPE", "NAME", "SECRET"}}
		for _, s := range list.Secrets {
			table = append(table, []string{scope(s.Scope), s.Type, s.Name, s.Secret})
		}
		parts = append(parts, rules.Table(table))
	}
	if len(list.Custom) > 0 {
		table := [][]string{{"SCOPE", "TARGETS", "ENV", "PLACEHOLDER", "SECRET"}}
		for _, c := range list.Custom {
			env := c.Env
			if env == "" {
				env = "-"
			}
			table = append(table, []string{scope(c.Scope), strings.Join(c.Targets, ", "), env, c.Placeholder, c.Secret})
		}
		parts = append(parts, "CUSTOM SECRETS\n"+rules.Table(table))
	}
	return strings.Join(parts, "\n")
}

type secretRmOptions struct {
	sandbox, service, placeholder, host, env string
	all, force                               bool
}

func newSecretRmCmd(a *app) *cobra.Command {
	var opts secretRmOptions
	var registry string
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "rm [SERVICE]",
		Short: "Remove a secret",
		Args:  usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if registry != "" || everywhere {
				return errors.New("--registry and --all-sandboxes are not supported by this engine: it pulls no images")
			}
			opts.service = strings.Join(args, "")
			return runSecretRm(cmd.Context(), a, opts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.sandbox, "sandbox", "", "secret of this sandbox")
	f.StringVar(&opts.placeholder, "placeholder", "", "custom secret with this placeholder")
	f.StringVar(&opts.host, "host", "", "custom secrets bound to this host only")
	f.StringVar(&opts.env, "env", "", "not enough to name a custom secret")
	f.BoolVar(&opts.all, "all", false, "every secret of the scope")
	f.BoolVarP(&opts.force, "force", "f", false, "do not ask")
	f.StringVar(&registry, "registry", "", "credential of an image registry (not in this engine)")
	f.BoolVar(&everywhere, "all-sandboxes", false, "credential of an image registry (not in this engine)")
	for _, name := range []string{"host", "env"} { // as in sbx 0.47
		if err := f.MarkHidden(name); err != nil {
			panic(err) // the flag is a few lines above
		}
	}
	return cmd
}

func runSecretRm(ctx context.Context, a *app, opts secretRmOptions) error {
	store, err := a.secretStore()
	if err != nil {
		return err
	}
	if opts.service == "" && opts.placeholder == "" && opts.host == "" && !opts.all {
		return errors.New("--placeholder or --host is required")
	}
	scope := scopeText(opts.sandbox)
	if opts.service != "" {
		list, err := store.List(vault.Filter{Scope: &opts.sandbox, Service: opts.service})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Secrets, func(s vault.ServiceView) bool { return s.Name == opts.service }) {
			fmt.Fprintf(a.Stdout, "No secret found for service %q in scope %q\n", opts.service, scope)
			return nil
		}
	}
	if !opts.force && !a.confirm(ctx, "Delete selected secret?") {
		return context.Cause(ctx)
	}
	switch {
	case opts.all:
		n, err := store.RemoveAll(ctx, opts.sandbox)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.Stdout, "Deleted %d\n", n)
	case opts.service != "":
		if _, err := store.RemoveService(ctx, opts.sandbox, opts.service); err != nil {
			return err
		}
		fmt.Fprintf(a.Stdout, "Deleted secret for service %q in scope %q\n", opts.service, scope)
	case opts.placeholder != "":
		ok, err := store.RemoveCustom(ctx, opts.sandbox, opts.placeholder)
		if err != nil {
			return err
		}
		if !ok {
			fmt.Fprintf(a.Stdout, "No custom secret found for placeholder %q in scope %q\n", opts.placeholder, scope)
			return nil
		}
		fmt.Fprintf(a.Stdout, "Deleted custom secret with placeholder %q in scope %q\n", opts.placeholder, scope)
	default:
		n, err := store.RemoveCustomHost(ctx, opts.sandbox, opts.host)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.Stdout, "Deleted %d\n", n)
	}
	return nil
}
