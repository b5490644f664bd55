package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// exitNotFound is what a shell reports for a program that is not there.
const exitNotFound = 127

// brief is what one session of the agent is given.
type brief struct {
	phase    events.Phase
	prompt   string
	dir      string
	readOnly bool
	resume   *Session // to go on with
	wall     time.Duration
}

// session lets the agent work on b once, within what the run may still spend. Whatever it comes to is recorded before the
// error says that it came to nothing: [ErrBudget], a credential, a lost sandbox, and so on. An agent that left no change is no
// error here.
func (r *run) session(ctx context.Context, b brief) (agent.Result, error) {
	before := r.spent(0, agent.Usage{})
	if why := r.over(before); why != "" {
		return agent.Result{}, fmt.Errorf("%w: %s", ErrBudget, why)
	}
	transcript, err := r.newTranscript(string(b.phase) + ".jsonl")
	if err != nil {
		return agent.Result{}, err
	}
	defer transcript.Close()
	masked := r.redact.Writer(transcript)
	defer masked.Close()

	cfg := r.req.Config
	task := agent.Task{
		Prompt: b.prompt, Model: cfg.Agent.Model, Effort: cfg.Agent.Effort, Dir: b.dir, ReadOnly: b.readOnly, Fresh: b.readOnly,
		Command: cfg.Agent.Command, Args: cfg.Agent.Args,
		Env: append(workspace.GuestEnv(), r.plan.Agent.Environment()...), Endpoint: r.endpoint(),
	}
	if b.resume != nil {
		task.Resume, task.SessionID = true, b.resume.ID
		for _, s := range r.state.Sessions {
			if s.ID == b.resume.ID {
				task.Used = task.Used.Plus(s.Usage)
			}
		}
	}
	limits := agent.Limits{Wall: b.wall, Idle: time.Duration(cfg.Limits.Idle)}
	if cfg.Limits.Turns > 0 {
		limits.MaxTurns = cfg.Limits.Turns - before.Turns
	}
	r.unfetched = r.unfetched || b.phase == events.PhaseExecute
	res, err := agent.Run(ctx, r.guest(), r.adapter, task, agent.Options{
		Sink: r.agentActed, Transcript: masked, Redact: r.redact, Limits: limits,
		Spent: func(turns int, u agent.Usage) bool {
			now := r.spent(turns, u)
			r.log.Emit(now)
			now.Turns = 0 // those have a limit of their own
			return r.over(now) != ""
		},
	})
	if errors.Is(err, agent.ErrLeftover) && r.quiesce(context.WithoutCancel(ctx)) { // the sandbox's other processes went with them
		r.log.Emit(events.Noted{Text: "the agent left more running than could be ended one by one; every process in its sandbox was ended"})
		if res.Code != -1 {
			err = nil
		}
	}
	// What changed is known only at the end state; until then assume a change, so that only the agent's own word counts.
	verdict := agent.Judge(res, true)
	if err != nil {
		verdict = agent.Verdict{Outcome: agent.Failed, Reason: err.Error()} // what had arrived is in the result
	}
	limit := context.Cause(ctx) // if it is a limit of the run's that stopped it
	if res.Stop != agent.StopCancelled || !errors.Is(limit, ErrBudget) {
		limit = nil
	} else if err == nil {
		verdict = agent.Verdict{Outcome: agent.CutOff, Reason: strings.TrimPrefix(limit.Error(), ErrBudget.Error()+": ")}
	}
	if list, err := r.refused(ctx); err == nil { // for the progress; at the end of the run it is asked for the record
		r.blockedHosts = len(list)
	}
	r.closeSession(b, res, verdict, transcript.Name())
	if err := errors.Join(limit, err); err != nil {
		return res, err
	}
	if res.Code == exitNotFound {
		return res, fmt.Errorf("%w: the agent's CLI is not in the sandbox: %s", ErrNoAgent, lastLine(res.Stderr))
	}
	if verdict.Class == agent.ClassOptions {
		return res, fmt.Errorf("%w that can be used: %s", ErrNoAgent, verdict.Reason)
	}
	if why := r.capped(); why != "" {
		return res, fmt.Errorf("%w: %s", ErrBudget, why)
	}
	if verdict.Outcome == agent.CutOff && !overBudget(res.Stop) {
		// Nothing of ours stopped it: something in the sandbox did, or the sandbox is gone.
		return res, errors.Join(fmt.Errorf("%w: the agent's session was cut off: %s", ErrFailed, verdict.Reason), r.lost(ctx))
	}
	if res.Stop == agent.StopSpent {
		verdict.Reason = r.over(r.spent(0, agent.Usage{}))
	}
	if verdict.Outcome == agent.BadCredential && r.proven {
		if r.giveAgain(ctx) {
			return r.session(ctx, b)
		}
		if accepted, err := provision.Accepts(ctx, r.pair, r.plan, pair.RoleAgent); err != nil || !accepted {
			return res, fmt.Errorf("%w: the agent's model access: %s", provision.ErrExpired, verdict.Reason)
		}
	}
	return res, judged(verdict)
}

// newTranscript creates the next of the run's transcripts; one that nobody closed, of a process that died, counts too.
func (r *run) newTranscript(name string) (*os.File, error) {
	dir := filepath.Join(r.result.Dir, transcriptDir)
	err := os.MkdirAll(dir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("create transcript: %w", err)
	}
	earlier, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("create transcript: %w", err)
	}
	file, err := openPrivate(filepath.Join(dir, fmt.Sprintf("%02d-%s", len(earlier)+1, name)))
	if err != nil {
		return nil, fmt.Errorf("create transcript: %w", err)
	}
	return file, nil
}

// closeSession records a session that has ended.
func (r *run) closeSession(b brief, res agent.Result, v agent.Verdict, transcript string) {
	attempt := r.state.Attempt
	ended := events.AgentEnded{
		Phase: b.phase, Attempt: attempt, Outcome: string(v.Outcome), Reason: r.redact.String(v.Reason), Exit: res.Code, Turns: res.Summary.Turns, Took: res.Took,
		Input: res.Usage.Input, Output: res.Usage.Output, Cached: res.Usage.CachedInput,
	}
	cost, unpriced := r.price(res.Usage)
	r.state.Sessions = append(r.state.Sessions, Session{
		AgentEnded: ended, ID: res.SessionID, Transcript: transcript, Stderr: res.Stderr, Usage: res.Usage, CostUSD: cost, Unpriced: unpriced,
	})
	r.log.Emit(ended)
	r.log.Emit(r.spent(0, agent.Usage{}))
}

// overBudget reports whether a limit of the run ended the agent.
func overBudget(stop agent.Stop) bool {
	return stop == agent.StopWall || stop == agent.StopIdle || stop == agent.StopTurns || stop == agent.StopSpent
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
	dir := r.state.Workspace.Dir + "/"
	acted := events.AgentActed{Type: string(e.Kind), Turn: e.Turn, Tool: e.Tool, Text: cut(strings.ReplaceAll(e.Text, dir, ""), maxMessage)}
	switch e.Kind {
	case agent.KindToolEnd:
		ok := e.OK && !e.Denied
		acted.Success = &ok
	case agent.KindTurnStart, agent.KindMessage, agent.KindToolStart, agent.KindEdit, agent.KindWarning, agent.KindError:
	default:
		return
	}
	if e.Kind == agent.KindEdit {
		acted.Text = strings.TrimPrefix(e.Path, dir)
	}
	r.log.Emit(acted)
}

// used is the line about a session for the record.
func used(res agent.Result) string {
	return fmt.Sprintf("%d turns, %d tokens in, %d out", res.Summary.Turns, res.Usage.Input, res.Usage.Output)
}
