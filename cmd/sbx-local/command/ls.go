package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/ports"
	"github.com/sbxpair/sbxpair/engine/rules"
)

// lsRow is a sandbox in "ls --json": sbx 0.47's keys, and isolation.
type lsRow struct {
	Name       string       `json:"name"`
	ID         string       `json:"id"`
	Agent      string       `json:"agent"`
	Status     string       `json:"status"`
	CreatedAt  time.Time    `json:"created_at"`
	LastUsedAt time.Time    `json:"last_used_at"`
	Workspaces []string     `json:"workspaces"`
	Ports      []ports.Port `json:"ports,omitempty"`
	Isolation  string       `json:"isolation"`
}

func newLsCmd(a *app) *cobra.Command {
	var asJSON, quiet, wide bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sandboxes",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return runLs(cmd.Context(), a, asJSON, quiet, wide) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	cmd.Flags().BoolVar(&wide, "wide", false, "also show what isolates each sandbox, and its limits")
	return cmd
}

func runLs(ctx context.Context, a *app, asJSON, quiet, wide bool) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	if err := e.Recover(ctx); err != nil {
		return err
	}
	list, err := e.List()
	if err != nil {
		return err // half a list would read as a whole one
	}
	switch {
	case asJSON:
		rows := make([]lsRow, 0, len(list))
		for _, r := range list {
			rows = append(rows, lsRow{r.Name, r.ID, r.Agent, status(r), seconds(r.CreatedAt), seconds(r.LastUsedAt), workspaces(r), publishedPorts(r), r.Isolation})
		}
		return a.printJSON(struct {
			Sandboxes []lsRow `json:"sandboxes"`
		}{rows})
	case quiet:
		for _, r := range list {
			fmt.Fprintln(a.Stdout, r.Name)
		}
	case len(list) == 0:
		fmt.Fprintln(a.Stdout, "No sandboxes found.")
	default:
		rows := [][]string{{"SANDBOX", "AGENT", "STATUS", "PORTS", "WORKSPACE"}}
		for _, r := range list {
			rows = append(rows, []string{r.Name, r.Agent, status(r), portsText(r), workspaceText(r)})
		}
		if wide { // not in sbx's own table, whose columns others count
			rows[0] = append(rows[0], "ISOLATION", "LIMITS")
			for i, r := range list {
				rows[i+1] = append(rows[i+1], r.Isolation, limitsText(r))
			}
		}
		fmt.Fprint(a.Stdout, rules.Table(rows))
	}
	return nil
}

// status is the state as sbx words it: a sandbox whose process is gone is a stopped one.
func status(r engine.Record) string {
	if r.Lost() {
		return string(engine.Stopped)
	}
	return string(r.Status)
}

func seconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

func workspaces(r engine.Record) []string {
	list := make([]string, 0, len(r.Workspaces)+1)
	if r.Clone != nil {
		list = append(list, r.Clone.Path)
	}
	for _, w := range r.Workspaces {
		list = append(list, w.Path)
	}
	return list
}

func workspaceText(r engine.Record) string {
	var texts []string
	if r.Clone != nil {
		texts = append(texts, r.Clone.Path)
	}
	for _, w := range r.Workspaces {
		text := w.Path
		if w.ReadOnly {
			text += ":ro"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
