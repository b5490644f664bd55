package loop

import (
	"context"
	"time"

	"github.com/sbxpair/sbxpair/events"
)

// execute lets the agent work on the task, or mend what the last attempt was rejected for. A revision goes on with the
// session of the attempt before where the CLI can and the sandbox still has it; otherwise a new session is told everything.
func (r *run) execute(ctx context.Context) (string, error) {
	b := brief{phase: events.PhaseExecute, dir: r.state.Workspace.Dir, wall: time.Duration(r.req.Config.Limits.Execute)}
	name := "execute"
	if r.state.Report != "" && r.adapter.Sessions {
		for i, s := range r.state.Sessions {
			if s.Phase == events.PhaseExecute && s.ID != "" && i >= r.fresh {
				b.resume, name = &r.state.Sessions[i], "revise"
			}
		}
	}
	var err error
	b.prompt, err = prompt(name, struct {
		Task, Plan, Report, Requests string
		Interrupted                  bool
	}{r.req.Task, r.state.Plan, r.state.Report, r.outboxPrompt(), r.interrupted()})
	if err != nil {
		return "", err
	}
	r.agentResult, err = r.session(ctx, b)
	return used(r.agentResult), err
}
