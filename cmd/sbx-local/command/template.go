package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/rules"
)

func newTemplateCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Manage templates, from which sandboxes are made",
		Args:  unknownVerb,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var asJSON, quiet, force bool
	var output string
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List templates", Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return runTemplateLs(a, asJSON, quiet) },
	}
	ls.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	ls.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	save := &cobra.Command{
		Use: "save SANDBOX TAG", Short: "Keep the disk of a stopped sandbox as a template", Args: usage(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTemplateSave(cmd.Context(), a, args[0], args[1], output)
		},
	}
	save.Flags().StringVarP(&output, "output", "o", "", "write the template to a file as well")
	load := &cobra.Command{
		Use: "load FILE", Short: "Load a saved image (docker save, OCI layout) or template", Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return runTemplateLoad(cmd.Context(), a, args[0]) },
	}
	rm := &cobra.Command{
		Use: "rm TAG|ID...", Short: "Remove templates; sandboxes made from them stay", Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return runTemplateRm(cmd.Context(), a, args, force) },
	}
	rm.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	cmd.AddCommand(ls, save, load, rm)
	return cmd
}

// templateRow is a template in "template ls --json", with sbx 0.47's keys.
type templateRow struct {
	ID         string    `json:"id"`
	Repository string    `json:"repository"`
	Tag        string    `json:"tag"`
	Flavor     string    `json:"flavor"`
	CreatedAt  time.Time `json:"created_at"`
	Size       int64     `json:"size"`
}

func runTemplateLs(a *app, asJSON, quiet bool) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	list, err := e.Templates()
	if err != nil {
		return err
	}
	switch {
	case asJSON:
		rows := make([]templateRow, 0, len(list))
		for _, t := range list {
			rows = append(rows, templateRow{t.Short(), t.Repository, t.Tag, t.Flavor, seconds(t.CreatedAt), t.Size})
		}
		return a.printJSON(struct {
			Images []templateRow `json:"images"`
		}{rows})
	case quiet:
		for _, t := range list {
			fmt.Fprintln(a.Stdout, t.Short())
		}
	case len(list) == 0:
		fmt.Fprintln(a.Stdout, "No template images found")
	default:
		rows := [][]string{{"REPOSITORY", "TAG", "IMAGE ID", "FLAVOR", "CREATED"}}
		for _, t := range list {
			rows = append(rows, []string{t.Repository, t.Tag, t.Short(), t.Flavor, ago(time.Since(t.CreatedAt))})
		}
		fmt.Fprint(a.Stdout, rules.Table(rows))
	}
	return nil
}

// ago is a duration as docker tells it: 5 minutes ago, 2 days ago.
func ago(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		switch n := int(d / u.unit); {
		case n == 1:
			return "1 " + u.name + " ago"
		case n > 1:
			return fmt.Sprintf("%d %ss ago", n, u.name)
		}
	}
	return "just now"
}

func runTemplateSave(ctx context.Context, a *app, name, ref, output string) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	r, err := e.Get(name)
	if err != nil {
		return worded(err, name)
	}
	if r.Status == engine.Running && !r.Lost() {
		if !a.ask(ctx, fmt.Sprintf("Sandbox %s is running and must be stopped before saving. Stop it now? (y/N): ", name)) {
			return hint(fmt.Errorf("%w; stop it first with:", engine.ErrRunning), "sbx stop "+name)
		}
		if _, err := e.Stop(ctx, name); err != nil {
			return worded(err, name)
		}
	}
	if r.Lost() {
		fmt.Fprint(a.Stderr, lostText(name))
	}
	fmt.Fprintln(a.Stdout, "Snapshotting image in sandbox ...")
	t, err := e.SaveTemplate(ctx, name, ref)
	if err != nil {
		return worded(err, name)
	}
	if output != "" {
		if output, err = filepath.Abs(output); err != nil {
			return err
		}
		fmt.Fprintf(a.Stdout, "Exporting image to %s ...\n", output)
		if err := writeFile(output, func(w io.Writer) error { return e.ExportTemplate(ctx, t, w) }); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		fmt.Fprintf(a.Stdout, "Exported to %s\n", output)
	}
	fmt.Fprintf(a.Stdout, "\nSave complete. To use the image as a template:\n    sbx run --pull never -t %s AGENT [WORKSPACE]\n", t.Ref())
	return nil
}

// writeFile writes a file that is there only when it is whole. It may hold what an agent wrote: only the user may read it.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".sbx-export-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	w := bufio.NewWriterSize(f, 256<<10)
	if err := errors.Join(write(w), w.Flush(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func runTemplateLoad(ctx context.Context, a *app, path string) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	list, err := e.LoadTemplates(ctx, path)
	for _, t := range list {
		fmt.Fprintf(a.Stdout, "Loaded: %s\n", t.Ref())
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", path, err)
	}
	return nil
}

func runTemplateRm(ctx context.Context, a *app, refs []string, force bool) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	for _, ref := range refs {
		t, err := e.FindTemplate(ref)
		if err != nil {
			return hint(fmt.Errorf("template %q not found", ref), "sbx template ls")
		}
		if !force && !a.ask(ctx, fmt.Sprintf("Remove template '%s'? This cannot be undone. (y/N): ", t.Ref())) {
			return errCancelled
		}
		if t, err = e.RemoveTemplate(ctx, ref); err != nil {
			return err
		}
		fmt.Fprintf(a.Stdout, "Removed: %s\n", t.Ref())
	}
	return nil
}
