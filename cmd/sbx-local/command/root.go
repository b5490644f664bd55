package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxpair/sbxpair/engine"
)

// Version is the version of sbx whose command line this is.
const Version = "v0.47.0"

// Run carries one command out and returns the exit code: 0, 1 for an error (printed on Stderr), 127 for a program that a
// sandbox could not start, the guest's own code for exec and run, and 128+n after signal n.
func Run(ctx context.Context, env Environment) int {
	a := &app{Environment: env, files: map[string][]byte{}}
	out := &heedful{w: env.Stdout}
	if env.Stdout != nil {
		a.Stdout = out
	}
	root := newRootCmd(a)
	root.SetArgs(env.Args)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("what this command says could not be written: %w", out.err)
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	if launch, ok := errors.AsType[*engine.LaunchError](err); ok {
		fmt.Fprintln(a.Stdout, launch.Text) // on stdout, as sbx does
		return 127
	}
	if stop, ok := errors.AsType[*SignalError](context.Cause(ctx)); ok && err != nil {
		return 128 + stop.Signal
	}
	if err != nil {
		a.report(err)
		return 1
	}
	return 0
}

// A SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal int }

func (e *SignalError) Error() string { return fmt.Sprintf("ended by signal %d", e.Signal) }

func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "sbx",
		Short:         "Run sandboxes on this machine: sbx 0.47's command line over gVisor",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownVerb,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Use: "help [command]", Hidden: true, RunE: func(cmd *cobra.Command, args []string) error {
		found, _, err := cmd.Root().Find(args)
		if err != nil {
			return err
		}
		return found.Help()
	}})
	root.PersistentFlags().BoolVarP(&a.debug, "debug", "D", false, "log what happens to standard error")
	root.PersistentFlags().StringVar(&a.appName, "app-name", "", "use the state of another application")
	root.PersistentFlags().MarkHidden("app-name")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return hint(err, cmd.CommandPath()+" --help") })
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		return errors.Join(checkAppName(a.appName), checkFlags(cmd))
	}
	root.AddCommand(newKeyringCmd(a),
		newCreateCmd(a), newRunCmd(a), newExecCmd(a), newCpCmd(a), newLsCmd(a), newStopCmd(a), newRmCmd(a), newPruneCmd(a),
		newInspectCmd(a), newVersionCmd(a), newDiagnoseCmd(a), newDaemonCmd(a), newSettingsCmd(a), newTemplateCmd(a), newPortsCmd(a), newPolicyCmd(a), newSecretCmd(a),
	)
	return root
}

func unknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return hint(fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath()), cmd.CommandPath()+" --help")
}

// checkFlags refuses flags that were given without a value, as an unset variable of a script leaves them: without its sandbox
// a rule or a secret would be everybody's, without its method it would be for all of them.
func checkFlags(cmd *cobra.Command) error {
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			items := list.GetSlice()
			empty = len(items) == 0 || slices.Contains(items, "")
		}
		if empty && err == nil {
			err = hint(fmt.Errorf("--%s has an empty value; leave the flag out if none is meant", f.Name), cmd.CommandPath()+" --help")
		}
	})
	return err
}

// checkAppName keeps an application's name a single folder name.
func checkAppName(name string) error {
	if strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") || len(name) > 64 {
		return fmt.Errorf("invalid app name %q", name)
	}
	return nil
}
