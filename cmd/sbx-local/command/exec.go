package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
)

type execOptions struct {
	interactive bool
	tty         bool
	detach      bool
	privileged  bool
	user        string
	dir         string
	env         []string
	envFiles    []string
}

func newExecCmd(a *app) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Args:  usage(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			argv := args[1:]
			if argv[0] == "--" && len(argv) > 1 {
				argv = argv[1:]
			}
			return runExec(cmd.Context(), a, o, args[0], argv)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // the command's own flags are its own
	f.BoolVarP(&o.interactive, "interactive", "i", false, "keep standard input open")
	f.BoolVarP(&o.tty, "tty", "t", false, "allocate a pseudo terminal")
	f.BoolVarP(&o.detach, "detach", "d", false, "not supported")
	f.BoolVar(&o.privileged, "privileged", false, "accepted; a sandbox has one set of privileges")
	f.StringVarP(&o.user, "user", "u", "", "user name or id, with :group name or id")
	f.StringVarP(&o.dir, "workdir", "w", "", "working directory")
	f.StringArrayVarP(&o.env, "env", "e", nil, "set a variable (NAME=VALUE)")
	f.StringArrayVar(&o.envFiles, "env-file", nil, "read variables from a file")
	return cmd
}

func runExec(ctx context.Context, a *app, o execOptions, name string, argv []string) error {
	if o.detach {
		return errors.New("--detach is not supported for exec")
	}
	for i, arg := range argv {
		if arg == "" {
			return fmt.Errorf("request failed: 400 Bad Request: cmd element %d is empty", i)
		}
	}
	if o.dir != "" && !filepath.IsAbs(o.dir) {
		return fmt.Errorf("OCI runtime exec failed: cwd must be an absolute path: %q", o.dir)
	}
	env, err := readEnv(ctx, a, o.env, o.envFiles)
	if err != nil {
		return err
	}
	e, err := a.engine()
	if err != nil {
		return err
	}
	hold, err := e.Hold(ctx, name)
	if err != nil {
		return worded(err, name)
	}
	defer hold.Close()
	r, err := a.ensure(ctx, e, name)
	if err != nil {
		return err
	}
	spec := engine.ExecSpec{Argv: argv, Env: env, User: o.user, Dir: o.dir, Stdout: a.Stdout, Stderr: a.Stderr}
	if o.interactive || o.tty {
		spec.Stdin = a.Stdin
	}
	code, err := a.exec(ctx, e, r, spec, o.tty)
	if err != nil {
		return worded(err, name)
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// ensure returns the sandbox running, and says on stderr if it had to be started, or if its disk was lost with a process
// that ended without being stopped.
func (a *app) ensure(ctx context.Context, e *engine.Engine, name string) (engine.Record, error) {
	r, started, lost, err := e.Ensure(ctx, name)
	if lost {
		fmt.Fprint(a.Stderr, lostText(name))
	}
	if err != nil {
		return engine.Record{}, worded(err, name)
	}
	if started {
		a.warnBuild(ctx, e)
		fmt.Fprintf(a.Stderr, "Sandbox %s started successfully\n", name)
	}
	return r, nil
}

// lostText says what a sandbox lost that ended without being stopped.
func lostText(name string) string {
	return fmt.Sprintf("warning: sandbox '%s' had ended without being stopped; what it changed outside its workspaces since its last start is lost\n", name)
}

// exec runs the program, with the caller's terminal if tty is set.
func (a *app) exec(ctx context.Context, e *engine.Engine, r engine.Record, spec engine.ExecSpec, tty bool) (int, error) {
	if !tty {
		return e.Exec(ctx, r, spec)
	}
	in, ok := a.Stdin.(*os.File)
	if !ok || !isTerminal(in) {
		return 0, errors.New("the input device is not a TTY")
	}
	return withTerminal(ctx, in, a.Stdout, func(slave *os.File, resized <-chan struct{}) (int, error) {
		spec.Stdin, spec.Stdout, spec.Stderr, spec.TTY, spec.Resized = nil, nil, nil, slave, resized
		if term := a.Getenv("TERM"); term != "" {
			spec.Env = append([]string{"TERM=" + term}, spec.Env...)
		}
		return e.Exec(ctx, r, spec)
	})
}

// stdinFile is the standard input if it is a terminal, else nil: programs that read it must not wait for a person.
func (a *app) stdinFile() io.Reader {
	if f, ok := a.Stdin.(*os.File); ok && isTerminal(f) {
		return nil
	}
	return a.Stdin
}
