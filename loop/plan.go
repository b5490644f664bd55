package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/events"
)

// maxPlan bounds what the session that works is given of a plan, in bytes.
const maxPlan = 32 << 10

// makePlanOfWork lets a session that can only read make a plan of the work.
func (r *run) makePlanOfWork(ctx context.Context) (string, error) {
	text, err := prompt("plan", struct{ Task string }{r.req.Task})
	if err != nil {
		return "", err
	}
	res, err := r.session(ctx, brief{
		phase: events.PhasePlan, prompt: text, dir: r.state.Workspace.Dir, readOnly: true, wall: time.Duration(r.req.Config.Limits.Plan),
	})
	if errors.Is(err, ErrNothing) { // which is about changes, and none were asked for
		err = fmt.Errorf("%w: the session that plans gave no answer", ErrFailed)
	}
	if err != nil {
		return "", err
	}
	r.state.Plan = cut(strings.TrimSpace(res.Summary.Answer), maxPlan)
	return used(res), r.save()
}
