package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/workspace"
)

// verify runs the configured commands in the agent sandbox, which is where code that the agent wrote may run; without any,
// those that the repository itself suggests. They run on a fresh checkout of what would be delivered: files that only the
// agent's folder has must not make them pass.
//
// A command that was detected judges the agent's work only if it could: where its program is not in the sandbox, or it fails on
// the base as well, that is noted, and rejects nothing.
func (r *run) verify(ctx context.Context) (string, error) {
	var commands []detected
	for _, c := range r.req.Config.Verify {
		commands = append(commands, detected{command: c})
	}
	if len(commands) == 0 && r.req.Config.Detect {
		files, err := r.state.Workspace.BaseFiles(ctx, buildFile)
		if err != nil {
			return "", err
		}
		commands = detect(files)
	}
	r.state.Verified = nil
	if len(commands) == 0 {
		return "no verify command is configured, and none was found", nil
	}
	defer r.quiesce(context.WithoutCancel(ctx)) // what they left running does not run into the next step
	dir, err := r.verifyDir(ctx, "/tmp/sbxpair-verify/", r.state.End)
	if err != nil {
		return "", err
	}
	passed := 0
	for _, c := range commands {
		if missing, err := r.missing(ctx, c.needs); err != nil {
			return "", err
		} else if missing {
			r.log.Emit(events.Noted{Text: fmt.Sprintf("%q was not run to verify the change: there is no %s in the sandbox", c.command, c.needs)})
			continue
		}
		done, err := r.verifyOne(ctx, dir, c.command)
		if err != nil {
			return "", err
		}
		done.Attempt, done.Detected = r.state.Attempt, c.needs != ""
		if done.Exit != 0 && done.Detected {
			if done.BaseFails, err = r.failsOnBase(ctx, c.command); err != nil {
				return "", err
			}
		}
		r.state.Verified = append(r.state.Verified, done)
		r.log.Emit(done)
		switch {
		case done.Exit == 0:
			passed++
		case done.BaseFails:
			r.log.Emit(events.Noted{Text: fmt.Sprintf("%q, which nobody configured, fails, and fails without the change too: it says nothing about it", c.command)})
		default:
			return "", &rejection{
				by:     events.PhaseVerify,
				reason: strings.TrimSuffix(fmt.Sprintf("verify command %q: exit %d: %s", c.command, done.Exit, lastLine(done.Output)), ": "),
				report: fmt.Sprintf("The verify command %q ended with exit code %d. The end of what it printed:\n\n%s\n", c.command, done.Exit, done.Output),
			}
		}
	}
	return fmt.Sprintf("%d of %d passed", passed, len(commands)), nil
}

// verifyDir is where the verify commands run on e: the agent's own folder, if so configured, or a checkout below dir.
func (r *run) verifyDir(ctx context.Context, dir string, e workspace.EndState) (string, error) {
	if r.req.Config.VerifyIn != "delivered" {
		return r.state.Workspace.Dir, nil
	}
	dir += filepath.Base(r.state.Workspace.Dir)
	return dir, r.state.Workspace.CheckOut(ctx, r.guest(), e, dir)
}

// missing reports whether a program is not in the sandbox.
func (r *run) missing(ctx context.Context, program string) (bool, error) {
	if program == "" {
		return false, nil
	}
	code, err := r.guest().Run(ctx, guest.Command{Argv: []string{"sh", "-c", `command -v "$1" >/dev/null`, "sh", program}, Dir: "/"})
	return code != 0, err
}

// failsOnBase reports whether a command fails on what the agent started from, too.
func (r *run) failsOnBase(ctx context.Context, command string) (bool, error) {
	w := r.state.Workspace
	dir := "/tmp/sbxpair-base/" + filepath.Base(w.Dir)
	if err := w.CheckOut(ctx, r.guest(), workspace.EndState{Head: w.Base}, dir); err != nil {
		return false, err
	}
	done, err := r.verifyOne(ctx, dir, command)
	return done.Exit != 0, err
}

func (r *run) verifyOne(ctx context.Context, dir, command string) (events.Verified, error) {
	if limit := time.Duration(r.req.Config.Limits.Verify); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: verify command %q took longer than limits.verify (%s)", ErrBudget, command, limit))
		defer cancel()
	}
	transcript, err := r.newTranscript("verify.log")
	if err != nil {
		return events.Verified{}, err
	}
	defer transcript.Close()
	masked := r.redact.Writer(transcript)
	defer masked.Close()
	start := time.Now()
	output := &verifyOutput{tail: guest.Tail{Limit: maxOutput}, transcript: masked, left: maxTranscript}
	output.keep(fmt.Appendf(nil, "$ %s\n", command))
	code, err := r.guest().Run(ctx, guest.Command{
		Argv: []string{"bash", "-c", command}, Dir: dir, Env: workspace.GuestEnv(), Stdout: output, Stderr: output,
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return events.Verified{}, err
	}
	return events.Verified{Command: command, Exit: code, Output: output.tail.String(), Transcript: transcript.Name(), Took: time.Since(start)}, nil
}

// maxTranscript bounds what is kept of a verify command's output, in bytes.
const maxTranscript = 64 << 20

// verifyOutput takes both streams of a verify command: the end is for the record and whoever reads it, the beginning, up to
// maxTranscript, for the transcript. It is safe for concurrent use.
type verifyOutput struct {
	mu         sync.Mutex
	tail       guest.Tail
	transcript io.Writer
	left       int
}

// Write never fails: a transcript that cannot be written does not end the run.
func (o *verifyOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep(p)
	return o.tail.Write(p)
}

func (o *verifyOutput) keep(p []byte) {
	n := min(len(p), o.left)
	o.left -= n
	o.transcript.Write(p[:n])
}
