package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/secrets"
)

type secretImportOptions struct {
	service            string
	all, force, dryRun bool
}

func newSecretImportCmd(a *app) *cobra.Command {
	var opts secretImportOptions
	cmd := &cobra.Command{
		Use:   "import [SERVICE]",
		Short: "Take credentials of services from this shell's variables, for all sandboxes",
		Args:  usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if opts.all {
					return errors.New("a service and --all exclude each other")
				}
				opts.service = args[0]
			}
			return runSecretImport(cmd.Context(), a, opts)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&opts.all, "all", false, "every one that is found and not stored yet, without asking")
	f.BoolVarP(&opts.force, "force", "f", false, "replace those that are stored")
	f.BoolVar(&opts.dryRun, "dry-run", false, "only say what would be done")
	return cmd
}

// A detected credential is one that a variable of the shell holds.
type detected struct {
	service, variable string
	value             secrets.Value
	stored            bool // one is in the global scope
}

func runSecretImport(ctx context.Context, a *app, opts secretImportOptions) error {
	if opts.service != "" {
		if _, known := vault.LookupService(opts.service); !known {
			return hint(fmt.Errorf("%q is not a built-in service: no variable is known for it", opts.service), "sbx secret set "+opts.service)
		}
	}
	store, err := a.secretStore()
	if err != nil {
		return err
	}
	found, err := a.detect(store, opts.service)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		fmt.Fprintln(a.Stdout, "No credential env vars detected on the host. Set e.g. OPENAI_API_KEY in your shell and re-run, or use `sbx secret set` to enter a value directly.")
		return nil
	}
	n := 0
	for _, d := range found {
		switch {
		case secrets.IsPlaceholder(d.value.Reveal()):
			fmt.Fprintf(a.Stdout, "Skipped %s: %s holds a placeholder\n", d.service, d.variable)
			continue
		case d.stored && !opts.force && opts.all:
			fmt.Fprintf(a.Stdout, "Skipped %s: already stored\n", d.service)
			continue
		case opts.dryRun:
			fmt.Fprintf(a.Stdout, "Would import %s from %s\n", d.service, d.variable)
			continue
		case d.stored && !opts.force:
			if !a.confirm(ctx, fmt.Sprintf("Secret for service %q already exists in scope %q. Overwrite?", d.service, scopeText(""))) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				continue
			}
		case !opts.all && opts.service == "":
			if !a.confirm(ctx, fmt.Sprintf("Import %s from %s?", d.service, d.variable)) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				continue
			}
		}
		sec, err := a.kept(vault.Secret{Value: d.value})
		if err != nil {
			return err
		}
		if err := store.Set(ctx, vault.ServiceSecret{Service: d.service, Secret: sec, Force: true}); err != nil {
			return err
		}
		fmt.Fprintf(a.Stdout, "Imported %s from %s\n", d.service, d.variable)
		n++
	}
	if n == 0 {
		return nil
	}
	return a.sayApplied("")
}

// detect looks for the variables of one service, or of all with "".
func (a *app) detect(store *vault.Store, service string) ([]detected, error) {
	global := ""
	list, err := store.List(vault.Filter{Scope: &global})
	if err != nil {
		return nil, err
	}
	stored := map[string]bool{}
	for _, s := range list.Secrets {
		stored[s.Name] = true
	}
	var found []detected
	for _, s := range vault.Services() {
		if service != "" && s.Name != service {
			continue
		}
		for _, variable := range s.Env {
			if v := secrets.New(a.Getenv(variable)); !v.IsZero() {
				found = append(found, detected{s.Name, variable, v, stored[s.Name]})
				break
			}
		}
	}
	return found, nil
}
