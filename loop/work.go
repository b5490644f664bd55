package loop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// Bounds of what one event carries.
const (
	maxMessage = 4 << 10
	maxOutput  = 16 << 10
)

// guest runs the commands of agent and workspace in one sandbox: both packages state what they need of a machine, and
// this is that machine.
type guest struct {
	box    *pair.Sandbox
	redact []secrets.Value
}

func (g guest) Run(ctx context.Context, c workspace.Command) (int, error) {
	spec := sbx.ExecSpec{Argv: c.Argv, User: c.User, Dir: c.Dir, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Redact: g.redact, KillTree: true}
	for _, entry := range c.Env {
		name, value, _ := strings.Cut(entry, "=")
		spec.Env = append(spec.Env, sbx.EnvVar{Name: name, Value: value})
	}
	res, err := g.box.Exec(ctx, spec)
	return res.Code, err
}

// agentGuest is guest for package agent, whose Command has the same form.
type agentGuest struct{ guest }

func (g agentGuest) Run(ctx context.Context, c agent.Command) (int, error) {
	return g.guest.Run(ctx, workspace.Command(c))
}

func (r *run) guest() guest {
	return guest{r.pair.Agent, []secrets.Value{r.agentToken, r.githubToken}}
}

// exitNotFound is what a shell reports for a program that is not there.
const exitNotFound = 127

// execute lets the agent work on the task once.
func (r *run) execute(ctx context.Context) (string, error) {
	transcript, err := openPrivate(filepath.Join(r.result.Dir, "transcript.jsonl"))
	if err != nil {
		return "", fmt.Errorf("create transcript: %w", err)
	}
	defer transcript.Close()
	masked := r.redact.Writer(transcript)
	defer masked.Close()

	cfg := r.req.Config
	r.agentResult, err = agent.Run(ctx, agentGuest{r.guest()}, r.adapter, agent.Task{
		Prompt: r.req.Task, Model: cfg.Agent.Model, Dir: r.work.Dir,
		Command: cfg.Agent.Command, Args: cfg.Agent.Args,
		Env: append(workspace.GuestEnv(), r.plan.Agent.Environment()...),
	}, agent.Options{
		Sink: r.agentActed, Transcript: masked, Redact: r.redact,
		Limits: agent.Limits{Wall: time.Duration(cfg.Limits.Execute), Idle: time.Duration(cfg.Limits.Idle)},
	})
	if err != nil {
		return "", err
	}
	// What changed is known only at the end state; until then assume a change, so that only the agent's own word counts.
	verdict := agent.Judge(r.agentResult, true)
	res := r.agentResult
	r.result.Agent = events.AgentEnded{
		Outcome: string(verdict.Outcome), Reason: verdict.Reason, Exit: res.Code, Turns: res.Summary.Turns, Took: res.Took,
		Input: res.Usage.Input, Output: res.Usage.Output, Cached: res.Usage.CachedInput,
	}
	r.log.Emit(r.result.Agent)
	if res.Code == exitNotFound {
		return "", fmt.Errorf("%w: the agent's CLI is not in the sandbox: %s", ErrNoAgent, lastLine(res.Stderr))
	}
	detail := fmt.Sprintf("%d turns, %d tokens in, %d out", res.Summary.Turns, res.Usage.Input, res.Usage.Output)
	if verdict.Outcome == agent.CutOff && !overBudget(res.Stop) {
		// Nothing of ours stopped it: something in the sandbox did, or the sandbox is gone.
		return "", errors.Join(fmt.Errorf("%w: the agent's session was cut off: %s", ErrFailed, verdict.Reason), r.lost(ctx))
	}
	return detail, judged(verdict)
}

// overBudget reports whether a limit of the run ended the agent.
func overBudget(stop agent.Stop) bool {
	return stop == agent.StopWall || stop == agent.StopIdle || stop == agent.StopTurns
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

// quiesce ends every process in the agent sandbox but the engine's own: the agent's may hide from a search by
// environment or descent, and must not change files behind the end state. Only our own engine runs nothing else there.
func (r *run) quiesce(ctx context.Context) {
	if r.engineRef.Kind != pair.EngineLocal {
		return
	}
	// The shell ends with the others, or is spared: its exit code says nothing.
	r.guest().Run(ctx, workspace.Command{Argv: []string{"sh", "-c", "kill -KILL -1"}, Dir: "/"})
}

// judged turns the verdict on the agent's session into the run's error.
func judged(v agent.Verdict) error {
	switch v.Outcome {
	case agent.Succeeded:
		return nil
	case agent.NothingDone:
		return fmt.Errorf("%w: %s", ErrNothing, v.Reason)
	case agent.BadCredential:
		return fmt.Errorf("%w: the agent's model access: %s", secrets.ErrUnfit, v.Reason)
	case agent.CutOff:
		return fmt.Errorf("%w: %s", ErrBudget, v.Reason)
	case agent.Cancelled:
		return fmt.Errorf("%w: %s", context.Canceled, v.Reason)
	}
	return fmt.Errorf("%w: the agent's session: %s: %s", ErrFailed, v.Outcome, v.Reason)
}

// agentActed passes on the events that a person or a later reader wants; pieces of streaming are left to the transcript.
func (r *run) agentActed(e agent.Event) {
	acted := events.AgentActed{Type: string(e.Kind), Turn: e.Turn, Tool: e.Tool, Text: cut(strings.ReplaceAll(e.Text, r.work.Dir+"/", ""), maxMessage)}
	switch e.Kind {
	case agent.KindToolEnd:
		ok := e.OK && !e.Denied
		acted.Success = &ok
	case agent.KindTurnStart, agent.KindMessage, agent.KindToolStart, agent.KindEdit, agent.KindWarning, agent.KindError:
	default:
		return
	}
	if e.Kind == agent.KindEdit {
		acted.Text = strings.TrimPrefix(e.Path, r.work.Dir+"/")
	}
	r.log.Emit(acted)
}

// verify runs the configured commands in the agent sandbox, which is where code that the agent wrote may run. They run
// on a fresh checkout of what would be delivered: files that only the agent's folder has must not make them pass.
func (r *run) verify(ctx context.Context) (string, error) {
	commands := r.req.Config.Verify
	if len(commands) == 0 {
		return "no verify command is configured", nil
	}
	dir := r.work.Dir
	if r.req.Config.VerifyIn == "delivered" {
		dir = "/tmp/sbxpair-verify/" + filepath.Base(r.work.Dir)
		if err := r.work.CheckOut(ctx, r.guest(), r.end, dir); err != nil {
			return "", err
		}
	}
	for _, command := range commands {
		done, err := r.verifyOne(ctx, dir, command)
		if err != nil {
			return "", err
		}
		r.result.Verified = append(r.result.Verified, done)
		r.log.Emit(done)
		if done.Exit != 0 {
			return "", fmt.Errorf("%w: verify command %q: exit %d: %s", ErrFailed, command, done.Exit, lastLine(done.Output))
		}
	}
	return fmt.Sprintf("%d of %[1]d passed", len(commands)), nil
}

func (r *run) verifyOne(ctx context.Context, dir, command string) (events.Verified, error) {
	if limit := time.Duration(r.req.Config.Limits.Verify); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: verify command %q took longer than limits.verify (%s)", ErrBudget, command, limit))
		defer cancel()
	}
	start := time.Now()
	var output tailWriter
	code, err := r.guest().Run(ctx, workspace.Command{
		Argv: []string{"bash", "-c", command}, Dir: dir, Env: workspace.GuestEnv(), Stdout: &output, Stderr: &output,
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return events.Verified{}, err
	}
	return events.Verified{Command: command, Exit: code, Output: output.String(), Took: time.Since(start)}, nil
}

// collect imports what the agent left.
func (r *run) collect(ctx context.Context) (string, error) {
	r.quiesce(ctx)
	var err error
	r.end, err = r.work.Collect(ctx, r.guest(), workspace.CollectOptions{Message: r.title()})
	if err != nil {
		return "", err
	}
	commits := len(r.end.Commits)
	for _, note := range r.end.Notes {
		r.log.Emit(events.Noted{Text: note})
	}
	if r.end.Ignored > 0 {
		r.log.Emit(events.Noted{Text: fmt.Sprintf("%d ignored files and folders are not delivered: %s", r.end.Ignored, list(r.end.IgnoredPaths, 5))})
	}
	if !r.end.Empty {
		// One commit of ours: what the agent committed and took back again, its messages and its identities stay here.
		if r.end, err = r.work.Squash(ctx, r.end, r.title(), r.started); err != nil {
			return "", err
		}
		if err := r.keepWork(ctx); err != nil {
			return "", err
		}
		r.result.Work = filepath.Join(r.result.Dir, workFile)
	}
	summary := events.EndState{Base: r.end.Base, Head: r.end.Head, Commits: commits, Bytes: len(r.end.Patch)}
	for _, f := range r.end.Files {
		summary.Files = append(summary.Files, f.Path)
	}
	r.log.Emit(summary)
	if r.end.Empty {
		if err := judged(agent.Judge(r.agentResult, false)); err != nil {
			return "", err
		}
		return "", fmt.Errorf("%w: the agent changed nothing", ErrNothing)
	}
	return fmt.Sprintf("changed files: %d", len(r.end.Files)), nil
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

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return cut(lines[len(lines)-1], 200)
}

// tailWriter keeps the last maxOutput bytes written to it.
type tailWriter struct{ buf []byte }

func (t *tailWriter) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*maxOutput {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-maxOutput:]...)
	}
	return len(p), nil
}

func (t *tailWriter) String() string {
	if len(t.buf) > maxOutput {
		return strings.ToValidUTF8(string(t.buf[len(t.buf)-maxOutput:]), "")
	}
	return strings.ToValidUTF8(string(t.buf), "\uFFFD")
}
