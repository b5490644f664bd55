package loop

import (
	"context"
	"fmt"
	"strings"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
)

// Proposal is all that a delivery would write to GitHub.
type Proposal struct {
	Repository string              `json:"repository"`
	Fork       string              `json:"fork,omitempty"`
	Branch     string              `json:"branch,omitempty"` // empty: no change, only requests
	Base       string              `json:"base,omitempty"`
	Commit     string              `json:"commit,omitempty"`
	Draft      bool                `json:"draft"`
	Title      string              `json:"title,omitempty"`
	Body       string              `json:"body,omitempty"`
	Comment    string              `json:"comment,omitempty"`
	Issue      int                 `json:"issue,omitempty"`
	Labels     []string            `json:"labels,omitempty"`
	Reviewers  []string            `json:"reviewers,omitempty"`
	Check      string              `json:"check,omitempty"`
	Artifacts  []string            `json:"artifacts,omitempty"`
	Files      []github.FileChange `json:"files,omitempty"`
	Patch      string              `json:"patch,omitempty"`
	Requests   []Proposed          `json:"requests,omitempty"`
	// Asks is what the gate wants a person to decide.
	Asks []string `json:"asks,omitempty"`
}

// Proposed is a request of the agent's in a [Proposal].
type Proposed struct {
	events.Requested
	// Write is what would be written, cleaned; nil for what was refused.
	Write *github.Request `json:"write,omitempty"`
}

// approve asks a person where the gate wants one, or where it was asked for. The error matches [ErrRefused].
func (r *run) approve(ctx context.Context, h *Handover) error {
	if r.req.Staged {
		return nil
	}
	asks := h.asks()
	if r.req.Approve == nil {
		if len(asks) == 0 {
			return nil
		}
		return fmt.Errorf("%w: a person has to decide, and nobody can be asked: %s", ErrRefused, strings.Join(asks, "; "))
	}
	yes, err := r.req.Approve(ctx, r.proposal(h))
	if err != nil {
		return err
	}
	r.log.Emit(events.Asked{Reasons: asks, Approved: yes})
	if !yes {
		r.result.Finish = h.approval()
		return fmt.Errorf("%w: it was not approved", ErrRefused)
	}
	h.Approved = h.Verdict.Reasons
	return nil
}

// proposal is the handover as a person is shown it.
func (r *run) proposal(h *Handover) Proposal {
	p := Proposal{Repository: r.repo, Issue: h.Issue, Asks: h.asks()}
	for _, v := range h.Requests {
		asked := Proposed{Requested: requested(v)}
		if v.Verdict.Decision == github.Allow {
			asked.Write = &v.Request
		}
		p.Requests = append(p.Requests, asked)
	}
	if h.Head == "" {
		return p
	}
	c := r.req.Config.GitHub
	p.Fork, p.Branch, p.Base, p.Commit, p.Draft = c.Fork, h.Branch, h.BaseBranch, h.Head, c.Draft
	p.Title, p.Body, p.Comment, p.Labels, p.Reviewers, p.Check, p.Artifacts = h.Title, h.Body, h.Comment, c.Labels, c.Reviewers, c.Check, c.Artifacts
	p.Files, p.Patch = h.Changed, string(h.Patch)
	return p
}
