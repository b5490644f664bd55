package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
)

type runOptions struct {
	createOptions
	detached bool
	remove   bool
}

func newRunCmd(a *app) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] [AGENT|SANDBOX_KIT] [PATH...] [-- AGENT_ARGS...]",
		Short: "Create a sandbox if need be, and run its agent",
		RunE: func(cmd *cobra.Command, args []string) error {
			var agentArgs []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, agentArgs = args[:n], args[n:]
			}
			return runRun(cmd.Context(), a, o, args, agentArgs)
		},
	}
	o.register(cmd)
	cmd.Flags().BoolVarP(&o.detached, "detached", "d", false, "print the sandbox id and leave it running")
	cmd.Flags().BoolVar(&o.remove, "rm", false, "remove the sandbox after the session")
	return cmd
}

func runRun(ctx context.Context, a *app, o runOptions, args, agentArgs []string) (err error) {
	if o.detached && o.remove {
		return errors.New("--rm cannot be used with --detached")
	}
	e, err := a.engine()
	if err != nil {
		return err
	}
	r, err := o.sandbox(ctx, a, e, args)
	if err != nil {
		return err
	}
	if o.remove {
		defer func() { err = errors.Join(err, e.Remove(context.WithoutCancel(ctx), r.Name)) }()
	}
	if o.detached {
		if err := e.KeepAlive(ctx, r.Name); err != nil {
			return worded(err, r.Name)
		}
		fmt.Fprintln(a.Stdout, r.ID)
		return nil
	}
	env, err := readEnv(ctx, a, o.env, o.envFiles)
	if err != nil {
		return err
	}
	hold, err := e.Hold(ctx, r.Name)
	if err != nil {
		return worded(err, r.Name)
	}
	defer hold.Close()
	if r, err = a.ensure(ctx, e, r.Name); err != nil { // it may just have been stopped for want of a session
		return err
	}
	in, ok := a.Stdin.(*os.File)
	tty := ok && isTerminal(in)
	spec := engine.ExecSpec{Argv: append(agentCommand(r.Agent), agentArgs...), Env: env, Stdin: a.stdinFile(), Stdout: a.Stdout, Stderr: a.Stderr}
	code, err := a.exec(ctx, e, r, spec, tty)
	if _, missing := errors.AsType[*engine.LaunchError](err); missing && spec.Argv[0] == "/bin/bash" { // an image may have none
		spec.Argv[0] = "/bin/sh"
		code, err = a.exec(ctx, e, r, spec, tty)
	}
	if err != nil {
		return worded(err, r.Name)
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// agentCommand is the program of an agent; it must be among the host's system programs or in the workspace's PATH.
func agentCommand(agent string) []string {
	switch agent {
	case "shell":
		return []string{"/bin/bash"}
	case "kiro":
		return []string{"kiro-cli"}
	}
	return []string{agent}
}

// sandbox finds the sandbox by its name or makes it. No path means the current folder, unlike in create.
func (o *runOptions) sandbox(ctx context.Context, a *app, e *engine.Engine, args []string) (engine.Record, error) {
	agent := ""
	if len(args) > 0 {
		agent = args[0]
	}
	if o.name != "" {
		r, err := e.Get(o.name)
		switch {
		case err == nil && agent != "" && agent != r.Agent:
			return r, fmt.Errorf("sandbox '%s' has agent %q, not %q", o.name, r.Agent, agent)
		case err == nil:
			return a.ensure(ctx, e, o.name)
		case !errors.Is(err, engine.ErrNotFound):
			return r, err
		case agent == "":
			return r, worded(err, o.name)
		}
	}
	if agent == "" {
		return engine.Record{}, hint(errors.New("an agent or --name is needed"), "sbx run --help")
	}
	paths := args[1:]
	if len(paths) == 0 {
		cwd, err := os.Getwd()
		if err != nil {
			return engine.Record{}, err
		}
		paths = []string{cwd}
	}
	if o.name == "" { // the same folder and agent again means the same sandbox
		spec, err := o.spec(ctx, a, agent, paths)
		if err != nil {
			return engine.Record{}, err
		}
		if _, err := e.Get(spec.Name); err == nil {
			return a.ensure(ctx, e, spec.Name)
		}
	}
	return create(ctx, a, o.createOptions, agent, paths, progress(a, o))
}

// progress is where run tells about a new sandbox: stdout is the agent's, or the id's.
func progress(a *app, o *runOptions) io.Writer {
	if o.quiet || o.noProgress {
		return io.Discard
	}
	return a.Stderr
}
