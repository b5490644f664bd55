package loop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/workspace"
)

// verify runs the configured commands in the agent sandbox, which is where code that the agent wrote may run. They run
// on a fresh checkout of what would be delivered: files that only the agent's folder has must not make them pass.
func (r *run) verify(ctx context.Context) (string, error) {
	commands := r.req.Config.Verify
	if len(commands) == 0 {
		return "no verify command is configured", nil
	}
	defer r.quiesce(context.WithoutCancel(ctx)) // what they left running does not run into the next step
	r.state.Verified = nil
	dir := r.state.Workspace.Dir
	if r.req.Config.VerifyIn == "delivered" {
		dir = "/tmp/sbxpair-verify/" + filepath.Base(r.state.Workspace.Dir)
		if err := r.state.Workspace.CheckOut(ctx, r.guest(), r.state.End, dir); err != nil {
			return "", err
		}
	}
	for _, command := range commands {
		done, err := r.verifyOne(ctx, dir, command)
		if err != nil {
			return "", err
		}
		done.Attempt = r.state.Attempt
		r.state.Verified = append(r.state.Verified, done)
		r.log.Emit(done)
		if done.Exit != 0 {
			return "", &rejection{
				by:     events.PhaseVerify,
				reason: fmt.Sprintf("verify command %q: exit %d: %s", command, done.Exit, lastLine(done.Output)),
				report: fmt.Sprintf("The verify command %q ended with exit code %d. The end of what it printed:\n\n%s\n", command, done.Exit, done.Output),
			}
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
	output := &guest.Tail{Limit: maxOutput}
	code, err := r.guest().Run(ctx, guest.Command{
		Argv: []string{"bash", "-c", command}, Dir: dir, Env: workspace.GuestEnv(), Stdout: output, Stderr: output,
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return events.Verified{}, err
	}
	return events.Verified{Command: command, Exit: code, Output: output.String(), Took: time.Since(start)}, nil
}
