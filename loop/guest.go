package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// Bounds of what one event carries.
const (
	maxMessage = 4 << 10
	maxOutput  = 16 << 10
)

// machine runs the commands of agent and workspace in one sandbox: both packages state what they need of a machine, and
// this is that machine.
type machine struct {
	box    *pair.Sandbox
	launch []string // before every command line
	redact []secrets.Value
}

func (m machine) Run(ctx context.Context, c guest.Command) (int, error) {
	spec := sbx.ExecSpec{Argv: append(slices.Clone(m.launch), c.Argv...), User: c.User, Dir: c.Dir, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Redact: m.redact, KillTree: true}
	for _, entry := range c.Env {
		name, value, _ := strings.Cut(entry, "=")
		spec.Env = append(spec.Env, sbx.EnvVar{Name: name, Value: value})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, w := range []*io.Writer{&spec.Stdout, &spec.Stderr} {
		if *w != nil {
			*w = guarded{*w, cancel}
		}
	}
	var res sbx.ExecResult
	err := pair.Caught(func() (err error) { res, err = m.box.Exec(ctx, spec); return err })
	if crash, crashed := errors.AsType[*pair.Crash](context.Cause(ctx)); crashed {
		return res.Code, crash
	}
	return res.Code, err
}

// guarded is where a command's output goes. It is read in a goroutine of nobody's, and it is a stranger's: a panic there is the end of
// the command, and the run's error, not the end of the program with the pair in place.
type guarded struct {
	w   io.Writer
	end context.CancelCauseFunc
}

func (g guarded) Write(p []byte) (n int, err error) {
	err = pair.Caught(func() (err error) { n, err = g.w.Write(p); return err })
	if crash, crashed := errors.AsType[*pair.Crash](err); crashed {
		g.end(crash)
	}
	return n, err
}

// guest is the agent sandbox.
func (r *run) guest() guest.Runner {
	return machine{r.pair.Agent, r.plan.Agent.Launch(), []secrets.Value{r.agentToken, r.githubToken}}
}

// lost returns an error that matches [pair.ErrLost] if the engine no longer runs the agent sandbox.
func (r *run) lost(ctx context.Context) error {
	box, err := r.engine.Get(ctx, r.pair.Agent.Name)
	switch {
	case errors.Is(err, sbx.ErrNotFound):
		return fmt.Errorf("%w: %s", pair.ErrLost, r.pair.Agent.Name)
	case err != nil:
		return err
	case box.Status != sbx.StatusRunning:
		return fmt.Errorf("%w: %s is %s", pair.ErrLost, r.pair.Agent.Name, box.Status)
	}
	return nil
}

// list joins at most n of names.
func list(names []string, n int) string {
	if len(names) > n {
		return strings.Join(names[:n], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// commitMessage makes the subject of the commit that holds what the agent did not commit itself.
func commitMessage(task string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(task), "\n")
	return cut(line, 72)
}

// cut shortens s to at most n bytes at a letter's end.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return cut(line, 200)
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return cut(lines[len(lines)-1], 200)
}
