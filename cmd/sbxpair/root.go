package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/adrg/xdg"
	charm "github.com/charmbracelet/log"
	"github.com/muesli/termenv"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/secrets"
)

// app is what the verbs share: streams, global flags, and where things are.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	log            *slog.Logger
	version        string

	configPath string
	dir        string
	engineKind string
	enginePath string
	json       bool
	quiet      bool
	verbose    bool

	warned bool // of records that cannot be read
}

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, version: version()}
	a.log = a.newLogger(charm.InfoLevel)
	ctx, stop := onSignal(context.Background(), a)
	defer stop()
	root := newRootCmd(a)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := pair.Caught(func() error { return root.ExecuteContext(ctx) })
	a.report(err)
	return exitCode(err)
}

// again is how long after the word about the first signal a second one counts as a person's, who has read it. timeout(1) and a
// closing terminal send theirs to the process and to its group at the same moment, which on a busy machine lasts.
const again = 500 * time.Millisecond

// onSignal returns a context that the first SIGINT, SIGTERM or SIGHUP cancels with a [*signalError] as its cause. A second SIGINT or
// SIGTERM leaves at once with [exitLeft]; what is left then is on record, and prune finds it. A closed pipe on standard
// output or error ends nothing: it must not keep a run from cleaning up.
func onSignal(parent context.Context, a *app) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	caught, pipe := make(chan os.Signal, 4), make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signal.Notify(pipe, syscall.SIGPIPE) // not Ignore, which programs that we start would inherit
	done := make(chan struct{})
	go func() {
		var told time.Time
		for {
			select {
			case <-done:
				return
			case got := <-caught:
				switch {
				case told.IsZero():
					cancel(&signalError{got})
					fmt.Fprintf(a.stderr, "sbxpair: %s signal received; cleaning up (again to leave at once; then run: sbxpair prune)\n", got)
					told = time.Now()
				case got != syscall.SIGHUP && time.Since(told) >= again:
					fmt.Fprintln(a.stderr, "sbxpair: left at once; what may be left is on record: sbxpair ls, sbxpair prune")
					os.Exit(exitLeft)
				}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(caught)
		signal.Stop(pipe)
		close(done)
		cancel(nil)
	}
}

func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "sbxpair",
		Short:         "Run coding agents in pairs of microVM sandboxes",
		Long:          "sbxpair runs a coding agent in one sandbox that can reach a model and nothing else, and delivers its\nwork from a second one that can act on one GitHub repository and never runs a line that the agent wrote.",
		Args:          usage(noArgs),
		Version:       a.version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			switch {
			case a.quiet && a.verbose:
				return &usageError{errors.New("--quiet and --verbose contradict each other")}
			case a.quiet:
				a.log = a.newLogger(charm.WarnLevel)
			case a.verbose:
				a.log = a.newLogger(charm.DebugLevel)
			}
			return nil
		},
	}
	root.SetVersionTemplate("sbxpair {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&a.configPath, "config", "", "configuration file in place of the user's own")
	flags.StringVarP(&a.dir, "dir", "C", ".", "the checkout to work on")
	flags.StringVar(&a.engineKind, "engine", "", "engine: auto, sbx or local")
	flags.StringVar(&a.enginePath, "engine-path", "", "path of the engine's program")
	flags.BoolVar(&a.json, "json", false, "print the result as JSON")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print nothing but results and errors")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "also print what is going on inside")
	completeFlag(root, "engine", "auto", "sbx", "local")
	root.AddCommand(
		newRunCmd(a), newDeliverCmd(a), newResumeCmd(a), newResultCmd(a), newPlanCmd(a), newPolicyCmd(a), newGrantCmd(a), newRevokeCmd(a), newCredentialCmd(a), newUpCmd(a), newDownCmd(a), newListCmd(a), newExecCmd(a), newShellCmd(a), newCopyCmd(a),
		newGitHubCmd(a), newDoctorCmd(a), newPruneCmd(a), newPoolCmd(a), newConfigCmd(a), newVersionCmd(a),
	)
	return root
}

// completeFlag makes the shell offer values for a flag of cmd.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // a flag that is not there: a mistake in this package
	}
}

// usage marks errors of an argument check, which cobra does not type.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{fmt.Errorf("%w (see: %s --help)", err, cmd.CommandPath())}
		}
		return nil
	}
}

// noArgs is for verbs that take no argument, and for those whose argument can only be a verb below them.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || cmd.HasSubCommands() {
		return cobra.NoArgs(cmd, args)
	}
	return fmt.Errorf("%s takes no argument, and got %q", cmd.CommandPath(), args[0])
}

func (a *app) newLogger(level charm.Level) *slog.Logger {
	// The wrapper hides that standard error may be a terminal: asked for its colours, one that does not answer costs
	// seconds (termenv's OSC 10 and 11). Whether to colour is decided here instead.
	handler := charm.NewWithOptions(struct{ io.Writer }{a.stderr}, charm.Options{Level: level})
	handler.SetColorProfile(termenv.Ascii)
	if a.terminal() && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		handler.SetColorProfile(termenv.ANSI)
	}
	return slog.New(handler)
}

// terminal reports whether progress goes to a person's terminal.
func (a *app) terminal() bool {
	file, ok := a.stderr.(*os.File)
	return ok && isTerminal(file)
}

func isTerminal(file *os.File) bool { return file != nil && term.IsTerminal(int(file.Fd())) }

// Bounds of what an error shows without --verbose: some hold a program's own words.
const (
	maxErrorLine  = 400
	maxErrorLines = 12
)

// report prints an error once: what failed and why on the first line, what to do below.
func (a *app) report(err error) {
	if _, silent := errors.AsType[codeError](err); err == nil || silent {
		return
	}
	// The run masks its own values; what else has a token's shape, in a host's answer say, is masked here.
	text := secrets.NewScanner().Mask(err.Error())
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines[:min(len(lines), maxErrorLines)] {
		prefix := "  "
		if i == 0 {
			prefix = "sbxpair: "
		}
		line = plain(line) // it may hold what a stranger's file or program said
		if r := []rune(line); len(r) > maxErrorLine && !a.verbose {
			line = string(r[:maxErrorLine]) + "…"
		}
		fmt.Fprintln(a.stderr, prefix+line)
	}
	if crash, crashed := errors.AsType[*pair.Crash](err); crashed && a.verbose {
		fmt.Fprintf(a.stderr, "%s\n", secrets.NewScanner().Mask(string(crash.Stack)))
	}
	if h := hint(err); h != "" {
		fmt.Fprintf(a.stderr, "  try: %s\n", plain(h))
	}
}

// keeper keeps the first error of a writer: a result that was not written was not given.
type keeper struct {
	w   io.Writer
	err error
}

func (k *keeper) Write(p []byte) (int, error) {
	n, err := k.w.Write(p)
	if k.err == nil {
		k.err = err
	}
	return n, err
}

// print writes a result: as JSON if that was asked for, else by text.
func (a *app) print(v any, text func(io.Writer)) error {
	if !a.json {
		w := &keeper{w: a.stdout}
		text(w)
		return w.err
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// settings merges the configuration's layers; flags are the values that the verb's own flags set, by key.
func (a *app) settings(flags map[string]any) (config.Loaded, error) {
	path, required := a.configPath, true
	if path == "" {
		path, required = filepath.Join(xdg.ConfigHome, "sbxpair", "config.yaml"), false
	}
	user, err := config.File(path, required)
	if err != nil {
		return config.Loaded{}, err
	}
	under, err := config.Merge(user)
	if err != nil {
		return config.Loaded{}, err
	}
	layers := []config.Layer{user}
	repository, err := config.Repository(a.dir, under.Config)
	if err != nil {
		return config.Loaded{}, err
	}
	layers = append(layers, repository)
	environment, err := config.Environment(os.Environ(), "SBXPAIR_RECORD")
	if err != nil {
		return config.Loaded{}, err
	}
	own := config.Layer{Name: "flag", Values: map[string]any{}}
	for key, value := range flags {
		own.Values[key] = value
	}
	if a.engineKind != "" {
		own.Values["engine.kind"] = a.engineKind
	}
	if a.enginePath != "" {
		own.Values["engine.path"] = a.enginePath
	}
	return config.Load(append(layers, environment, own)...)
}

// store returns the record of runs.
func (a *app) store() *pair.Store { return pair.NewStore(filepath.Join(xdg.StateHome, "sbxpair")) }
