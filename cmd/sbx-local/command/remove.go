package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sbxpair/sbxpair/engine"
)

// parallel bounds the sandboxes that one command stops or removes at once.
const parallel = 16

func newStopCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "stop SANDBOX...",
		Short: "Stop sandboxes; their disk is kept",
		Args:  usage(cobra.MinimumNArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return runStop(cmd.Context(), a, args) },
	}
}

func runStop(ctx context.Context, a *app, names []string) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	return a.each(names, func(name string, say func(string)) error {
		lost, err := e.Stop(ctx, name)
		if err != nil {
			return worded(err, name)
		}
		if lost {
			fmt.Fprint(a.Stderr, lostText(name))
		}
		say(fmt.Sprintf("Sandbox '%s' stopped; state preserved. Restart with: sbx run --name %s\n", name, name))
		return nil
	})
}

// stopAll stops every sandbox that runs, and the daemon, without a word.
func (a *app) stopAll(ctx context.Context) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	list, err := e.List()
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, r := range list {
		g.Go(func() error {
			if _, err := e.Stop(ctx, r.Name); err != nil && !errors.Is(err, engine.ErrNotFound) {
				return fmt.Errorf("stop %s: %w", r.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := e.DaemonShutdown(ctx); err != nil && !errors.Is(err, engine.ErrDaemon) {
		return err
	}
	return nil
}

// each does one thing for every name, several at once. What they say keeps the order of the names, and every one is
// tried; the errors are reported one by one, and the last is returned.
func (a *app) each(names []string, do func(name string, say func(string)) error) error {
	names = unique(names)
	texts, errs := make([]string, len(names)), make([]error, len(names))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, name := range names {
		g.Go(func() error {
			errs[i] = do(name, func(text string) { texts[i] += text })
			return nil
		})
	}
	g.Wait()
	var last error
	for i := range names {
		fmt.Fprint(a.Stdout, texts[i])
		if errs[i] == nil {
			continue
		}
		if last != nil {
			a.report(last)
		}
		last = errs[i]
	}
	return last
}

func unique(names []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

func newRmCmd(a *app) *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use:   "rm [SANDBOX...]",
		Short: "Remove sandboxes, with their rules and secrets",
		RunE:  func(cmd *cobra.Command, args []string) error { return runRm(cmd.Context(), a, args, all, force) },
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove every sandbox")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask, and remove those in use")
	return cmd
}

func runRm(ctx context.Context, a *app, names []string, all, force bool) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	switch {
	case all && len(names) > 0:
		return hint(errors.New("--all and names exclude each other"), "sbx rm --help")
	case all:
		list, err := e.List()
		if err != nil {
			return err
		}
		for _, r := range list {
			names = append(names, r.Name)
		}
	case len(names) == 0:
		return hint(errors.New("requires a sandbox name or --all"), "sbx rm --help")
	}
	if !force {
		for _, name := range names {
			r, err := e.Get(name)
			if err != nil && !errors.Is(err, engine.ErrRecord) {
				return worded(err, name)
			}
			if r.Clone != nil {
				fmt.Fprintf(a.Stderr, "warning: commits in sandbox '%s' that were not fetched (git fetch %s) are lost\n", name, r.RemoteName())
			}
			if !a.ask(ctx, fmt.Sprintf("Remove sandbox '%s'? This cannot be undone. (y/N): ", name)) {
				return errCancelled
			}
		}
	}
	return a.remove(ctx, e, names)
}

func (a *app) remove(ctx context.Context, e *engine.Engine, names []string) error {
	return a.each(names, func(name string, say func(string)) error {
		if err := e.Remove(ctx, name); err != nil {
			return worded(err, name)
		}
		say(fmt.Sprintf("Deleting sandbox %s...\nSandbox '%s' removed\n", name, name))
		return nil
	})
}

// ask puts a question on stdout and reads one line, as rm and prune do. The end of the input is a no.
func (a *app) ask(ctx context.Context, question string) bool {
	fmt.Fprint(a.Stdout, question)
	if a.Stdin == nil {
		return false
	}
	line, err := await(ctx, func() (string, error) { return readLine(a.Stdin), nil })
	if err != nil {
		return false
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// readLine reads byte by byte, so that nothing of the next line is taken.
func readLine(r io.Reader) string {
	var b strings.Builder
	one := make([]byte, 1)
	for b.Len() < 1024 {
		n, err := r.Read(one)
		if n == 1 {
			if one[0] == '\n' {
				break
			}
			b.WriteByte(one[0])
		}
		if err != nil {
			break
		}
	}
	return b.String()
}

type pruneOptions struct {
	dryRun, force, asJSON bool
	format                string
	filters               []string
}

func newPruneCmd(a *app) *cobra.Command {
	var o pruneOptions
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove stopped sandboxes, and what crashes left",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return runPrune(cmd.Context(), a, o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.dryRun, "dry-run", false, "only list what would be removed")
	f.BoolVarP(&o.force, "force", "f", false, "do not ask")
	f.BoolVar(&o.asJSON, "json", false, "print JSON (with --dry-run)")
	f.StringVar(&o.format, "format", "table", "table or json (with --dry-run)")
	f.StringArrayVar(&o.filters, "filter", nil, "until=TIME: stopped before")
	return cmd
}

type pruneRow struct {
	Name       string    `json:"name"`
	Agent      string    `json:"agent"`
	StoppedAt  time.Time `json:"stopped_at"`
	Workspaces []string  `json:"workspaces"`
}

func runPrune(ctx context.Context, a *app, o pruneOptions) error {
	asJSON := o.asJSON || o.format == "json"
	if o.format != "table" && o.format != "json" {
		return fmt.Errorf("invalid --format %q: give table or json", o.format)
	}
	if asJSON && !o.dryRun {
		return errors.New("--json needs --dry-run")
	}
	before, err := parseUntil(o.filters, time.Now())
	if err != nil {
		return err
	}
	e, err := a.engine()
	if err != nil {
		return err
	}
	if !o.dryRun {
		if err := e.Recover(ctx); err != nil {
			return err
		}
	}
	list, err := e.List()
	if err != nil {
		return err
	}
	rows, unknown := []pruneRow{}, []string{}
	for _, r := range list {
		switch {
		case r.Lost() && before.IsZero(), r.Status == engine.Stopped && (before.IsZero() || r.StoppedAt.Before(before)):
			rows = append(rows, pruneRow{r.Name, r.Agent, seconds(r.StoppedAt), workspaces(r)})
		case r.Lost():
			unknown = append(unknown, r.Name)
		}
	}
	switch {
	case asJSON:
		return a.printJSON(struct {
			WouldRemove        []pruneRow `json:"would_remove"`
			SkippedUnknownStop []string   `json:"skipped_unknown_stop"`
		}{rows, unknown})
	case len(rows) == 0:
		fmt.Fprintln(a.Stdout, "No stopped sandboxes to remove.")
		return nil
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	if o.dryRun {
		fmt.Fprintf(a.Stdout, "Would remove: %s\n", strings.Join(names, ", "))
		return nil
	}
	if !o.force && !a.ask(ctx, fmt.Sprintf("Remove %d stopped sandbox(es)? This cannot be undone. (y/N): ", len(names))) {
		return errCancelled
	}
	return a.remove(ctx, e, names)
}

// parseUntil reads until=T, where T is an RFC 3339 time, seconds since 1970 or a duration before now; zero: no filter.
func parseUntil(filters []string, now time.Time) (time.Time, error) {
	var until time.Time
	for _, f := range filters {
		text, ok := strings.CutPrefix(f, "until=")
		if !ok {
			return until, fmt.Errorf("invalid filter %q: give until=TIME", f)
		}
		if t, err := time.Parse(time.RFC3339, text); err == nil {
			until = t
		} else if d, err := time.ParseDuration(text); err == nil {
			until = now.Add(-d)
		} else if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			until = time.Unix(n, 0)
		} else {
			return until, fmt.Errorf("invalid filter %q: give an RFC 3339 time, unix seconds or a duration", f)
		}
	}
	return until, nil
}
