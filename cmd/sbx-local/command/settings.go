package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/settings"
)

func newSettingsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "Show and change settings",
		Args:  unknownVerb,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var listJSON, getJSON bool
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List settings", Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return runSettingsList(a, listJSON) },
	}
	list.Flags().BoolVar(&listJSON, "json", false, "print JSON")
	get := &cobra.Command{
		Use: "get KEY", Short: "Show one setting", Args: usage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error { return runSettingsGet(a, args[0], getJSON) },
	}
	get.Flags().BoolVar(&getJSON, "json", false, "print JSON")
	set := &cobra.Command{
		Use: "set KEY VALUE", Short: "Change a setting", Args: usage(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSettingsSet(cmd.Context(), a, args[0], args[1])
		},
	}
	unset := &cobra.Command{
		Use: "unset KEY", Short: "Bring a setting's default back", Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return runSettingsUnset(cmd.Context(), a, args[0]) },
	}
	cmd.AddCommand(list, get, set, unset)
	return cmd
}

func (a *app) settings() (*settings.Store, error) {
	st, err := a.state()
	if err != nil {
		return nil, err
	}
	return settings.Open(st.Dir), nil
}

func runSettingsList(a *app, asJSON bool) error {
	store, err := a.settings()
	if err != nil {
		return err
	}
	list, err := store.List()
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(list)
	}
	rows := [][]string{{"KEY", "VALUE", "TYPE", "SOURCE", "DESCRIPTION", "RESTART"}}
	for _, s := range list {
		restart := "no"
		if s.RequiresRestart {
			restart = "yes"
		}
		rows = append(rows, []string{s.Key, fmt.Sprint(s.Value), s.Type, s.Source, s.Description, restart})
	}
	fmt.Fprint(a.Stdout, rules.Table(rows))
	return nil
}

func runSettingsGet(a *app, key string, asJSON bool) error {
	store, err := a.settings()
	if err != nil {
		return err
	}
	s, err := store.Get(key)
	if err != nil {
		return settingError(err)
	}
	if asJSON {
		return a.printJSON(s)
	}
	fmt.Fprintln(a.Stdout, s.Value)
	return nil
}

func runSettingsSet(ctx context.Context, a *app, key, value string) error {
	store, err := a.settings()
	if err != nil {
		return err
	}
	s, err := store.Set(ctx, key, value)
	if err != nil {
		return settingError(err)
	}
	fmt.Fprintf(a.Stdout, "Setting %q set to %v\n", s.Key, s.Value)
	return nil
}

func runSettingsUnset(ctx context.Context, a *app, key string) error {
	store, err := a.settings()
	if err != nil {
		return err
	}
	s, err := store.Unset(ctx, key)
	if err != nil {
		return settingError(err)
	}
	fmt.Fprintf(a.Stdout, "Setting %q unset; it is %v\n", s.Key, s.Value)
	return nil
}

func settingError(err error) error {
	if errors.Is(err, settings.ErrUnknown) {
		return hint(err, "sbx settings list")
	}
	return err
}
