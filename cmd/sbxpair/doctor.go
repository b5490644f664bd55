package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/doctor"
	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

type doctorOptions struct {
	repo        string
	deep, fresh bool
	fix, force  bool
	dryRun      bool
	conformance bool
	from, out   string
	asked       bool // for a folder: -C
}

func newDoctorCmd(a *app) *cobra.Command {
	var opts doctorOptions
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check whether a run would start", Args: usage(noArgs),
		Long: "Checks tokens, machine, engine, policy, secrets and leftovers from outside, without a sandbox. With --deep it also makes a\n" +
			"pair as a run does, takes a run's own proof, asks what only its insides can answer, and removes the pair: after a green\n" +
			"deep report a run will start. Ends with 1 if a check is red. The checks: docs/reference/doctor.md.",
		Example: "  sbxpair doctor\n  sbxpair doctor --deep --repo octo/slugify\n  sbxpair doctor --fix\n  sbxpair doctor --conformance\n  SBXPAIR_RECORD=/tmp/calls sbxpair doctor --conformance && sbxpair doctor --import /tmp/calls --out fixtures",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.asked = cmd.Flags().Changed("dir")
			if err := opts.check(cmd.Flags().Changed); err != nil {
				return &usageError{err}
			}
			switch {
			case opts.from != "":
				return runDoctorImport(a, opts)
			case opts.conformance:
				return runConformance(cmd.Context(), a)
			}
			return runDoctor(cmd.Context(), a, opts)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&opts.deep, "deep", false, "also ask from inside a scratch pair, which is removed afterwards")
	flags.BoolVar(&opts.fresh, "fresh", false, "with --deep: ask again what an earlier run found with this engine and these settings")
	flags.StringVar(&opts.repo, "repo", "", "with --deep: repository on GitHub, OWNER/NAME (default: the checkout's origin)")
	flags.BoolVar(&opts.fix, "fix", false, "carry out what is safe, after printing it and a yes")
	flags.BoolVar(&opts.conformance, "conformance", false, "compare the engine with sbx 0.47, question by question, instead")
	flags.StringVar(&opts.from, "import", "", "turn engine calls recorded with SBXPAIR_RECORD=DIR into fixtures, instead")
	flags.StringVar(&opts.out, "out", "", "with --import: new folder for the fixtures")
	flags.BoolVarP(&opts.force, "force", "f", false, "with --fix: do not ask")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "with --fix: print what would be done, and do nothing")
	return cmd
}

// check refuses what does not go together: a flag without effect would pass for one that had it.
func (o doctorOptions) check(given func(flag string) bool) error {
	for _, needs := range [][2]string{{"import", "out"}, {"out", "import"}, {"force", "fix"}, {"dry-run", "fix"}, {"fresh", "deep"}, {"repo", "deep"}} {
		if given(needs[0]) && !given(needs[1]) {
			return fmt.Errorf("--%s goes with --%s", needs[0], needs[1])
		}
	}
	for _, instead := range []string{"import", "conformance"} {
		for _, other := range []string{"import", "conformance", "deep", "fix"} {
			if instead != other && given(instead) && given(other) {
				return fmt.Errorf("--%s is instead of an examination, and does not go with --%s", instead, other)
			}
		}
	}
	if given("import") && (o.from == "" || o.out == "") {
		return errors.New("--import and --out each want a folder")
	}
	return nil
}

func runDoctor(ctx context.Context, a *app, opts doctorOptions) error {
	set := map[string]any{}
	if opts.repo != "" {
		set["github.repo"] = opts.repo
	}
	loaded, err := a.settings(set)
	if err != nil {
		return err
	}
	o := a.doctorOptions(loaded.Config)
	o.Deep, o.Fresh, o.Asked = opts.deep, opts.fresh, opts.asked
	report := doctor.Examine(ctx, o)
	var fixed []doctor.Fix
	var fixErr error
	if opts.dryRun {
		todo := changes{DryRun: true, Steps: []change{}}
		for _, f := range report.Fixes() {
			todo.Steps = append(todo.Steps, fixStep(f))
		}
		return a.print(struct {
			changes
			doctor.Report
		}{todo, report}, func(w io.Writer) { todo.print(w) })
	}
	if opts.fix {
		if fixed, fixErr = a.fix(ctx, o, report, opts.force); len(fixed) > 0 {
			again := o
			again.Fresh = false // what was fixed lies outside the pair
			report = doctor.Examine(ctx, again)
		}
	}
	printErr := a.print(examined{report, fixed}, func(w io.Writer) { printReport(w, report, fixed) })
	if cause := context.Cause(ctx); cause != nil {
		return errors.Join(cause, report.Err())
	}
	return firstError(fixErr, printErr, report.Err())
}

func (a *app) doctorOptions(c config.Config) doctor.Options {
	return doctor.Options{
		Config: c, Locate: a.locateOptions(wanted(c.Engine)), Store: a.store(), State: filepath.Join(xdg.StateHome, "sbxpair"), Home: xdg.Home,
		Dir: a.dir, Path: os.Getenv("PATH"), Lookup: os.LookupEnv, Reach: a.known, Version: a.version, Proxy: http.ProxyFromEnvironment, Progress: a.say,
		Prune: func(ctx context.Context, ref pair.EngineRef, found []pair.Leftover) error {
			_, err := a.prune(ctx, pruning{a.known(ref), ref, found})
			return err
		},
		Lost: func(run pair.RunID) string { return loop.Unfetched(a.store().Dir(run)) },
	}
}

// runConformance compares the engine that a run would take with sbx.
func runConformance(ctx context.Context, a *app) error {
	loaded, err := a.settings(nil)
	if err != nil {
		return err
	}
	o := a.doctorOptions(loaded.Config)
	if !a.verbose {
		o.Progress = nil // a hundred questions
	}
	table, err := doctor.Conform(ctx, o, func(path string) sbx.Runner {
		var run sbx.Runner = sbx.Exec{Path: path, Env: sbx.Environ(os.Environ())}
		if dir := os.Getenv("SBXPAIR_RECORD"); dir != "" {
			run = &sbx.Recorder{Dir: dir, Next: run}
		}
		return run
	})
	if cause := context.Cause(ctx); cause != nil {
		return errors.Join(cause, err)
	}
	if len(table.Results) == 0 {
		return err
	}
	return firstError(a.print(table, func(w io.Writer) { printConformance(w, table) }), err)
}

func printConformance(w io.Writer, c doctor.Conformance) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "QUESTION\tVERDICT\tWANT\tGOT")
	for _, r := range c.Results {
		got := r.Got
		if r.Reason != "" {
			got = strings.TrimPrefix(got+" ("+r.Reason+")", " ")
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", r.ID, r.Verdict, plain(r.Want), plain(got))
	}
	tw.Flush()
	for _, d := range c.Drift {
		fmt.Fprintf(w, "drift: %s is %s, and was %s with %s\n", d.ID, d.Now, d.Before, d.Engine)
	}
	fmt.Fprintf(w, "%s: %d same, %d known to differ, %d differ, %d not asked, %d without an answer, in %.0f s\n", c.Engine, c.Count(conformance.Same),
		c.Count(conformance.Known), c.Count(conformance.Differs), c.Count(conformance.Skipped), c.Count(conformance.Unknown), c.Took.Seconds())
}

func runDoctorImport(a *app, opts doctorOptions) error {
	host, _ := os.Hostname() // one that has no name cannot give it away
	done, err := doctor.Import(opts.from, opts.out, doctor.Mine{Home: xdg.Home, Host: host})
	if err != nil {
		return err
	}
	return a.print(done, func(w io.Writer) {
		for _, file := range done.Files {
			fmt.Fprintln(w, filepath.Join(opts.out, file))
		}
		fmt.Fprintf(w, "%d files of sbx %s in %s; index: %s; %d calls left out. Read them before you hand them on.\n", len(done.Files), done.Version, opts.out, done.Index, done.Skipped)
	})
}

// examined is the result of the verb: the report, after what was done about an earlier one.
type examined struct {
	doctor.Report
	Fixed []doctor.Fix `json:"fixed,omitempty"`
}

// say tells what is being done, to a person who waits.
func (a *app) say(text string) {
	if !a.quiet {
		fmt.Fprintf(a.stderr, "  %s …\n", text)
	}
}

// fix prints what it will do, asks, and does it. It goes on after one that fails.
func (a *app) fix(ctx context.Context, o doctor.Options, report doctor.Report, force bool) ([]doctor.Fix, error) {
	fixes := report.Fixes()
	if len(fixes) == 0 {
		return nil, nil
	}
	var steps []change
	for _, f := range fixes {
		steps = append(steps, fixStep(f))
	}
	if force {
		a.tell(steps)
	} else if !a.sure(steps) {
		return nil, &usageError{errors.New("nothing was changed; give --force to go on without a question")}
	}
	var done []doctor.Fix
	var errs []error
	for _, f := range fixes {
		if err := f.Do(ctx, o); err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, f)
	}
	return done, errors.Join(errs...)
}

func fixStep(f doctor.Fix) change { return change{Do: "fix", What: f.ID, Why: f.What, Lost: f.Lost} }

func printReport(w io.Writer, r doctor.Report, fixed []doctor.Fix) {
	for _, f := range fixed {
		fmt.Fprintf(w, "fixed %s: %s\n", f.ID, plain(f.What))
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	count := map[doctor.Verdict]int{}
	cached, notAsked := 0, 0
	var causes []string
	waiting := map[string][]string{} // by the check that says why
	for _, c := range r.Checks {
		if c.Because != "" {
			if waiting[c.Because] == nil {
				causes = append(causes, c.Because)
			}
			waiting[c.Because] = append(waiting[c.Because], c.ID)
			notAsked++
			continue
		}
		count[c.Verdict]++
		mark := ""
		if c.Cached {
			cached++
			mark = "*"
		}
		fmt.Fprintf(tw, "%s\t%s%s\t%s\n", c.Verdict, c.ID, mark, plain(c.Detail))
		if c.Verdict == doctor.OK {
			continue
		}
		fmt.Fprintf(tw, "\t\tmatters for: %s\n", c.Affects)
		if c.Remedy != "" {
			fmt.Fprintf(tw, "\t\ttry: %s\n", plain(c.Remedy))
		}
		if c.Fix != "" {
			fmt.Fprintf(tw, "\t\tsbxpair doctor --fix will: %s\n", plain(c.Fix))
		}
	}
	tw.Flush()
	for _, cause := range causes {
		fmt.Fprintf(w, "not asked because of %s: %s\n", cause, strings.Join(waiting[cause], ", "))
	}
	for _, d := range r.Drift {
		fmt.Fprintf(w, "drift: %s is %s, and was %s with %s: %s\n", d.ID, d.Now, d.Before, d.Engine, plain(d.Detail))
	}
	fmt.Fprintf(w, "%d ok, %d warn, %d bad, %d unknown", count[doctor.OK], count[doctor.Warn], count[doctor.Bad], count[doctor.Unknown])
	if notAsked > 0 {
		fmt.Fprintf(w, ", %d not asked", notAsked)
	}
	switch {
	case r.Depth == doctor.Deep && cached > 0:
		fmt.Fprint(w, "; deep (* from an earlier one; --fresh asks again)\n")
	case r.Depth == doctor.Deep:
		fmt.Fprint(w, "; deep: asked from inside a pair\n")
	default:
		fmt.Fprint(w, "; shallow: nothing was asked from inside a sandbox (--deep does)\n")
	}
}
