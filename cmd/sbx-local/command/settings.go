package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine/rules"
)

// A setting is one row of "settings list": those of sbx 0.47 that mean something here, with the only value they can have.
type setting struct {
	Key             string `json:"key"`
	Value           bool   `json:"value"`
	Type            string `json:"type"`
	Source          string `json:"source"`
	Default         bool   `json:"default"`
	EnvVar          string `json:"env_var"`
	Description     string `json:"description"`
	RequiresRestart bool   `json:"requires_restart"`
	FeatureFlag     bool   `json:"feature_flag"`
}

func settings() []setting {
	return []setting{
		{"feature.udp-egress", false, "bool", "default", false, "", "Allow UDP egress by policy", true, true},
		{"ssh.agentForwardingEnabled", false, "bool", "default", false, "", "Forward the host SSH agent into sandboxes", true, false},
	}
}

func newSettingsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "Show settings",
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
	cmd.AddCommand(list, get)
	return cmd
}

func runSettingsList(a *app, asJSON bool) error {
	if asJSON {
		return a.printJSON(settings())
	}
	rows := [][]string{{"KEY", "VALUE", "TYPE", "SOURCE", "DESCRIPTION", "RESTART"}}
	for _, s := range settings() {
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
	for _, s := range settings() {
		switch {
		case s.Key != key:
		case asJSON:
			return a.printJSON(s)
		default:
			fmt.Fprintln(a.Stdout, s.Value)
			return nil
		}
	}
	return hint(fmt.Errorf("unknown setting %q", key), "sbx settings list")
}
