package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/guest"
)

// The agent's outbox: a file outside the repository, so that what it asks for is never part of the change.
const (
	outboxPath = "/tmp/sbxpair-outbox.jsonl"
	maxOutbox  = 4 << 20 // bytes that are read of it
)

// outboxScript prints the outbox given as $1, at most $2 bytes, if it is a plain file: another kind could have no end.
const outboxScript = `if [ -f "$1" ] && [ ! -L "$1" ]; then head -c "$2" "$1"; fi`

// requestBounds is what the agent may ask for.
func (r *run) requestBounds() github.RequestBounds {
	c := r.req.Config.Requests
	b := github.RequestBounds{
		Max: map[github.RequestKind]int{
			github.RequestPullRequest: c.PullRequest, github.RequestComment: c.Comment, github.RequestIssue: c.Issue, github.RequestLabels: c.Labels,
			github.RequestAssign: c.Assign, github.RequestReviewers: c.Reviewers, github.RequestReview: c.Review, github.RequestClose: c.Close,
		},
		Numbers: slices.Clone(c.AllowItems), Labels: c.AllowLabels, People: c.AllowPeople, TitlePrefix: r.req.Config.GitHub.TitlePrefix,
	}
	if r.req.Issue > 0 {
		b.Numbers = append(b.Numbers, r.req.Issue)
	}
	return b
}

// outboxPrompt tells the agent how to ask; empty if it may not ask for anything.
func (r *run) outboxPrompt() string {
	if !r.deliverable() { // there is nothing on GitHub that it could be about
		return ""
	}
	b := r.requestBounds()
	for _, n := range b.Max {
		if n > 0 {
			return github.RequestPrompt(b, outboxPath)
		}
	}
	return ""
}

// readOutbox reads what the agent asks for and judges each line. What cannot be read is no request.
func (r *run) readOutbox(ctx context.Context) error {
	if r.outboxPrompt() == "" {
		return nil
	}
	out := &guest.Tail{Limit: maxOutbox + 1}
	code, err := r.guest().Run(ctx, guest.Command{
		Argv: []string{"sh", "-c", outboxScript, "sh", outboxPath, fmt.Sprint(maxOutbox + 1)}, Dir: "/", Stdout: out,
	})
	if err != nil {
		return fmt.Errorf("read the agent's requests: %w", err)
	}
	if code != 0 {
		r.log.Emit(events.Noted{Text: fmt.Sprintf("the agent's requests could not be read (exit %d)", code)})
		return nil
	}
	r.state.Requests = nil
	asked := out.String()
	if asked == "" {
		return nil
	}
	if len(asked) > maxOutbox {
		asked = asked[:strings.LastIndexByte(asked[:maxOutbox], '\n')+1] // a line that was cut is no line
		r.log.Emit(events.Noted{Text: fmt.Sprintf("the agent's requests are more than %d bytes: what comes after them was not read", maxOutbox)})
	}
	bounds, err := r.makeBounds()
	if err != nil {
		return err
	}
	endpoint, err := github.ParseEndpoint(r.req.Config.GitHub.Host)
	if err != nil {
		return err
	}
	r.state.Requests, err = github.ReadRequests(strings.NewReader(asked), bounds, github.DefaultCleaning(endpoint, bounds.Repo))
	return err
}

// asked is the pull request's text if the agent asked for one and may.
func (r *run) asked() (github.Request, bool) {
	for _, v := range r.state.Requests {
		if v.Verdict.Decision == github.Allow && v.Request.Kind == github.RequestPullRequest {
			return v.Request, true
		}
	}
	return github.Request{}, false
}

// writes reports whether the agent asked for anything that stands without a change.
func (r *run) writes() bool {
	return slices.ContainsFunc(r.state.Requests, func(v github.RequestVerdict) bool {
		return v.Verdict.Decision == github.Allow && v.Request.Kind != github.RequestPullRequest
	})
}

// requested is how a request is told of.
func requested(v github.RequestVerdict) events.Requested {
	e := events.Requested{Line: v.Line, What: string(v.Request.Kind), Decision: string(v.Verdict.Decision)}
	for _, reason := range v.Verdict.Reasons {
		e.Reasons = append(e.Reasons, reason.String())
	}
	return e
}
