package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sbxpair/sbxpair/events"
)

// A phase does its part and returns one line about it for the record.
type phase func(context.Context) (string, error)

// phases maps each phase that the loop goes through to what does it. Preflight and release frame a run and are not among
// them.
func (r *run) phases() map[events.Phase]phase {
	return map[events.Phase]phase{
		events.PhaseWorkspace: r.prepare, events.PhaseProvision: r.provision, events.PhaseProof: r.prove, events.PhaseTask: r.readTask,
		events.PhasePlan: r.makePlanOfWork, events.PhaseExecute: r.execute, events.PhaseEndState: r.collect,
		events.PhaseVerify: r.verify, events.PhaseReview: r.review,
		events.PhaseGate: r.gate, events.PhaseDeliver: r.deliver,
	}
}

// through takes the run from its workspace to its delivery. What comes before and after the attempts is fixed: no
// configuration leaves out the proof or the gate.
func (r *run) through(ctx context.Context) error {
	for _, name := range []events.Phase{events.PhaseWorkspace, events.PhaseProvision, events.PhaseProof} {
		if err := r.phase(ctx, name); err != nil {
			return err
		}
	}
	if r.upOnly {
		return nil
	}
	switch {
	case r.req.Issue > 0 && r.req.Task == "":
		if err := r.phase(ctx, events.PhaseTask); err != nil {
			return err
		}
	case r.req.Issue > 0: // read before the run was interrupted
		r.tell()
	}
	if r.configured(events.PhasePlan) && r.state.Plan == "" {
		if err := r.phase(ctx, events.PhasePlan); err != nil {
			return err
		}
	}
	if err := r.attempts(ctx); err != nil && !errors.Is(err, errRequestsOnly) {
		return err
	}
	if !r.deliverable() {
		return r.keepPatch()
	}
	for _, name := range []events.Phase{events.PhaseGate, events.PhaseDeliver} {
		if err := r.phase(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) configured(name events.Phase) bool {
	return slices.Contains(r.req.Config.Phases, string(name))
}

// ofAttempt lists the phases of one attempt. The end state is taken right after the work: "nothing done" is told apart from
// "verify failed", and what the verify commands leave lying about is not delivered.
func (r *run) ofAttempt() []events.Phase {
	var list []events.Phase
	for _, name := range r.req.Config.Phases {
		switch p := events.Phase(name); p {
		case events.PhasePlan:
		case events.PhaseExecute:
			list = append(list, p, events.PhaseEndState)
		default:
			list = append(list, p)
		}
	}
	return list
}

// rejection is the error of a phase that judges an attempt and does not accept it. Report is for whoever makes the next.
type rejection struct {
	by     events.Phase
	reason string // one line
	report string
}

func (e *rejection) Error() string { return ErrFailed.Error() + ": " + e.reason }
func (e *rejection) Unwrap() error { return ErrFailed }

// attempts repeats execute and what judges it until an attempt is accepted or the revisions are used up. It goes on where
// the state says that the run stands.
func (r *run) attempts(ctx context.Context) error {
	if r.state.Attempt == 0 {
		r.state.Attempt = 1
	}
	for {
		rejected, err := r.attempt(ctx)
		if err != nil {
			return err
		}
		if rejected == nil {
			return nil
		}
		if r.state.Attempt > r.req.Config.Limits.Revisions {
			return fmt.Errorf("%s: %w", rejected.by, rejected)
		}
		r.state.Attempt, r.state.Done, r.state.Report, r.state.Rejected = r.state.Attempt+1, nil, rejected.report, r.state.End.Head
		if err := r.save(); err != nil {
			return err
		}
	}
}

// attempt goes through the phases of the attempt that are not done yet.
func (r *run) attempt(ctx context.Context) (*rejection, error) {
	for _, name := range r.ofAttempt() {
		if slices.Contains(r.state.Done, name) {
			continue
		}
		err := r.phase(ctx, name)
		if rejected, ok := errors.AsType[*rejection](err); ok {
			return rejected, nil
		}
		if err != nil {
			return nil, err
		}
		r.state.Done = append(r.state.Done, name)
		if err := r.save(); err != nil {
			return nil, err
		}
		if name == events.PhaseEndState && r.state.Report != "" && r.state.End.Head == r.state.Rejected {
			return nil, fmt.Errorf("%w: attempt %d changed nothing on what was rejected: %s", ErrFailed, r.state.Attempt, firstLine(r.state.Report))
		}
	}
	return nil, nil
}

// phase runs one phase between its two events.
func (r *run) phase(ctx context.Context, name events.Phase) error {
	if err := r.log.Err(); err != nil {
		return fmt.Errorf("%s: no record can be kept: %w", name, err)
	}
	attempt := 0
	if slices.Contains(r.ofAttempt(), name) {
		attempt = r.state.Attempt
	}
	r.log.Emit(events.PhaseStarted{Phase: name, Attempt: attempt})
	r.telling.say(func() string { return r.standing(string(name)) })
	start := time.Now()
	detail, err := r.phases()[name](ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err) // which signal, which limit
	}
	if noteErr := r.noteGrants(); noteErr != nil {
		err = errors.Join(err, noteErr)
	}
	if errors.Is(err, errRequestsOnly) {
		r.ended(name, attempt, time.Since(start), detail, nil)
		return err
	}
	r.ended(name, attempt, time.Since(start), detail, err)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (r *run) ended(name events.Phase, attempt int, took time.Duration, detail string, err error) {
	r.result.Phases = append(r.result.Phases, PhaseTime{name, attempt, took})
	end := events.PhaseEnded{Phase: name, Attempt: attempt, Took: took, Detail: detail}
	if err != nil {
		end.Error = err.Error()
	}
	r.log.Emit(end)
}
