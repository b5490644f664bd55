package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// target names a sandbox of a pair by flags.
type target struct {
	run  string
	role string
}

func (t *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.run, "run", "", "the run (default: the only pair there is)")
	cmd.Flags().StringVar(&t.role, "role", "agent", "which sandbox: agent or github")
	completeFlag(cmd, "role", string(pair.RoleAgent), string(pair.RoleGitHub))
}

// opened is a sandbox of a pair in place.
type opened struct {
	engine *sbx.Client
	name   string
	dir    string       // where its processes start; empty: where the engine starts them
	env    []sbx.EnvVar // what its processes should have
	launch []string     // what stands before their command lines
}

// open finds the sandbox that t names.
func (t *target) open(a *app) (opened, error) {
	role := pair.Role(t.role)
	if role != pair.RoleAgent && role != pair.RoleGitHub {
		return opened{}, &usageError{fmt.Errorf("role %q is neither agent nor github", t.role)}
	}
	l, err := a.theLease(t.run)
	if err != nil {
		return opened{}, err
	}
	box := opened{engine: a.known(l.Engine), name: l.Run.Name(role)}
	if role != pair.RoleAgent {
		return box, nil
	}
	box.dir = l.Dir
	for _, entry := range l.Environment {
		name, value, _ := strings.Cut(entry, "=")
		box.env = append(box.env, sbx.EnvVar{Name: name, Value: value})
	}
	if plan, err := loop.RecordedPlan(a.store().Dir(l.Run)); err == nil { // a pair without a plan on record has no such thing
		box.launch = plan.Agent.Launch()
	}
	return box, nil
}

func newExecCmd(a *app) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "exec [flags] -- COMMAND [ARG...]", Short: "Run a command in a sandbox of a pair", Args: usage(cobra.MinimumNArgs(1)),
		Long:    "Runs COMMAND in the agent sandbox (or, with --role github, in the other one) and ends with its exit code.\nA failure of sbxpair or the engine itself is 125.",
		Example: "  sbxpair exec -- git log --oneline\n  sbxpair exec --role github -- env",
		RunE: func(cmd *cobra.Command, args []string) error {
			return own(runExec(cmd.Context(), a, t, args))
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the command belongs to the command
	t.flags(cmd)
	return cmd
}

func runExec(ctx context.Context, a *app, t target, argv []string) error {
	box, err := t.open(a)
	if err != nil {
		return err
	}
	spec := sbx.ExecSpec{Argv: append(box.launch, argv...), Env: box.env, Dir: box.dir, Stdout: a.stdout, Stderr: a.stderr}
	if !isTerminal(a.stdin) {
		spec.Stdin = a.stdin
	}
	res, err := box.engine.Exec(ctx, box.name, spec)
	return guestCode(res.Code, err)
}

func newShellCmd(a *app) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "shell", Short: "Open a shell in a sandbox of a pair", Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return own(runShell(cmd.Context(), a, t)) },
	}
	t.flags(cmd)
	return cmd
}

func runShell(ctx context.Context, a *app, t target) error {
	if !isTerminal(a.stdin) {
		return &usageError{errors.New("standard input is not a terminal; use: sbxpair exec -- COMMAND")}
	}
	box, err := t.open(a)
	if err != nil {
		return err
	}
	code, err := box.engine.Attach(ctx, box.name, sbx.ExecSpec{
		Env: box.env, Dir: box.dir, Argv: append(box.launch, "bash", "-l"), Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
	})
	return guestCode(code, err)
}

// guestCode makes a guest's exit code the command's own.
func guestCode(code int, err error) error {
	if err != nil || code == 0 {
		return err
	}
	return codeError(code)
}

// own marks what is not the guest's code as our own failure: it is reported and ends with 125, or as the signal says. A
// program that cannot be started ends with 126 or 127, as a shell has it.
func own(err error) error {
	if err == nil {
		return nil
	}
	if launch, ok := errors.AsType[*sbx.LaunchError](err); ok {
		return &ownError{err, launch.Code}
	}
	if _, guest := errors.AsType[codeError](err); guest {
		return err
	}
	return &ownError{err, exitOwn}
}

// An ownError is a failure of exec or shell that is not the guest's.
type ownError struct {
	err  error
	code int
}

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

func newCopyCmd(a *app) *cobra.Command {
	var run string
	cmd := &cobra.Command{
		Use: "cp SRC DST", Short: "Copy files into or out of a sandbox of a pair", Args: usage(cobra.ExactArgs(2)),
		Long:    "One of SRC and DST names a place in a sandbox as agent:/PATH or github:/PATH.",
		Example: "  sbxpair cp notes.md agent:/tmp/notes.md\n  sbxpair cp agent:/tmp/report.txt .",
		RunE:    func(cmd *cobra.Command, args []string) error { return runCopy(cmd.Context(), a, run, args[0], args[1]) },
	}
	cmd.Flags().StringVar(&run, "run", "", "the run (default: the only pair there is)")
	return cmd
}

func runCopy(ctx context.Context, a *app, run, src, dst string) error {
	srcRole, srcPath, srcInside := inside(src)
	dstRole, dstPath, dstInside := inside(dst)
	if srcInside == dstInside {
		return &usageError{errors.New("exactly one of SRC and DST must be in a sandbox, as agent:/PATH or github:/PATH")}
	}
	role := srcRole
	if dstInside {
		role = dstRole
	}
	box, err := (&target{run: run, role: role}).open(a)
	if err != nil {
		return err
	}
	if dstInside {
		host, err := filepath.Abs(srcPath)
		if err != nil {
			return &usageError{err}
		}
		return box.engine.CopyIn(ctx, box.name, host, dstPath)
	}
	host, err := filepath.Abs(dstPath)
	if err != nil {
		return &usageError{err}
	}
	return box.engine.CopyOut(ctx, box.name, srcPath, host)
}

// inside splits "agent:/path"; anything else is a path on the host.
func inside(arg string) (role, path string, ok bool) {
	role, path, ok = strings.Cut(arg, ":")
	if !ok || role != string(pair.RoleAgent) && role != string(pair.RoleGitHub) {
		return "", arg, false
	}
	return role, path, true
}
