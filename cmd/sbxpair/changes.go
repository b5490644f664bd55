package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// change is one thing that a verb does, or with --dry-run would do.
type change struct {
	Do   string `json:"do"` // remove, make, set, forget, …
	What string `json:"what"`
	Why  string `json:"why,omitempty"`
	Lost string `json:"lost,omitempty"` // what nobody has elsewhere and that goes with it
}

// changes is the part that the results of all verbs with --dry-run have in common.
type changes struct {
	DryRun bool     `json:"dry_run"`
	Steps  []change `json:"steps"`
}

// dryRunFlag gives a verb that changes something its --dry-run.
func dryRunFlag(cmd *cobra.Command, target *bool) {
	cmd.Flags().BoolVar(target, "dry-run", false, "print what would be done, and do nothing")
}

// print writes the steps of a dry run; what is done for real is told by what came of it.
func (c changes) print(w io.Writer) {
	if !c.DryRun {
		return
	}
	for _, s := range c.Steps {
		fmt.Fprintln(w, "would "+s.line())
	}
	if len(c.Steps) == 0 {
		fmt.Fprintln(w, "nothing to do")
	}
}

// line is the change in one line for a person.
func (s change) line() string {
	text := s.Do + " " + s.What
	if s.Why != "" {
		text += ": " + s.Why
	}
	if s.Lost != "" {
		text += "; LOST with it: " + s.Lost
	}
	return plain(strings.TrimSpace(text))
}
