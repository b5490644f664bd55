package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/doctor"
)

func newDoctorCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check whether a run would start", Args: usage(cobra.NoArgs),
		Long: "Checks tokens, engine, policy, global secrets and leftovers from outside; makes no sandbox. Ends with 1 if a check is red.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd.Context(), a) },
	}
}

func runDoctor(ctx context.Context, a *app) error {
	loaded, err := a.settings(nil)
	if err != nil {
		return err
	}
	report := doctor.Examine(ctx, doctor.Options{
		Config: loaded.Config, Locate: a.locateOptions(wanted(loaded.Config.Engine)),
		Store: a.store(), Lookup: os.LookupEnv,
	})
	return firstError(a.print(report, func(w io.Writer) { printReport(w, report) }), report.Err())
}

func printReport(w io.Writer, r doctor.Report) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, c := range r.Checks {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", c.Verdict, c.ID, plain(c.Detail))
		if c.Remedy != "" && c.Verdict != doctor.OK {
			fmt.Fprintf(tw, "\t\ttry: %s\n", c.Remedy)
		}
	}
	tw.Flush()
	fmt.Fprintf(w, "these checks are %s: nothing was asked from inside a sandbox\n", r.Depth)
}
