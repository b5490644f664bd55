package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/config"
)

func newConfigCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the configuration", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(&cobra.Command{
		Use: "show", Short: "Print each value and where it comes from", Args: usage(noArgs),
		RunE: func(*cobra.Command, []string) error {
			loaded, err := a.settings(nil)
			if err != nil {
				return err
			}
			return a.print(loaded.Entries(), func(w io.Writer) { printEntries(w, loaded.Entries()) })
		},
	})
	return cmd
}

func printEntries(w io.Writer, entries []config.Entry) {
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(tw, "KEY\tVALUE\tSOURCE")
	for _, e := range entries {
		value, _ := json.Marshal(e.Value) // what came from YAML marshals
		fmt.Fprintf(tw, "%s\t%s\t%s\n", e.Key, strings.Trim(string(value), `"`), e.Source)
	}
	tw.Flush()
}
