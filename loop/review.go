package loop

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/events"
)

// Bounds of a review.
const (
	maxReviewDiff = 256 << 10 // bytes of the diff that the prompt shows
	maxFindings   = 50
	maxReviewText = 4 << 10 // bytes of each text in the answer
)

// review lets a fresh session that can only read judge the attempt: it sees the task, the diff, what the verify commands said,
// and a checkout of what would be delivered. An answer that is not the JSON asked for is asked for once more; then the
// review has failed, which is not an approval.
func (r *run) review(ctx context.Context) (string, error) {
	dir := fmt.Sprintf("/tmp/sbxpair-review/%d/%s", r.state.Attempt, filepath.Base(r.state.Workspace.Dir))
	if err := r.state.Workspace.CheckOut(ctx, r.guest(), r.state.End, dir); err != nil {
		return "", err
	}
	data := struct {
		Mark, Task, Diff, Unread string
		DiffCut                  bool
		Verified                 []events.Verified
	}{Mark: "=====" + rand.Text(), Task: r.req.Task, Diff: string(r.state.End.Patch), Verified: r.state.Verified}
	if len(data.Diff) > maxReviewDiff || r.state.End.PatchTruncated {
		data.Diff, data.DiffCut = cut(data.Diff, maxReviewDiff), true
	}
	var verdict events.Reviewed
	for range 2 {
		text, err := prompt("review", data)
		if err != nil {
			return "", err
		}
		res, err := r.session(ctx, brief{
			phase: events.PhaseReview, prompt: text, dir: dir, readOnly: true, wall: time.Duration(r.req.Config.Limits.Review),
		})
		if err != nil && !errors.Is(err, ErrNothing) { // no answer is none that can be read
			return "", err
		}
		if verdict, err = parseReview(res.Summary.Answer); err == nil {
			data.Unread = ""
			break
		}
		data.Unread = err.Error()
	}
	if data.Unread != "" {
		return "", fmt.Errorf("%w: the review gave no verdict that can be read: %s", ErrFailed, data.Unread)
	}
	verdict.Attempt = r.state.Attempt
	r.state.Reviewed = &verdict
	r.log.Emit(verdict)
	if !verdict.Approved {
		return "", &rejection{by: events.PhaseReview, reason: "the review did not approve: " + firstLine(verdict.Summary), report: reviewReport(verdict)}
	}
	return "approved: " + firstLine(verdict.Summary), nil
}

// parseReview reads the answer of a review: the JSON object in it, alone, in a code block or after a sentence. An approval with
// a required finding is none.
func parseReview(answer string) (events.Reviewed, error) {
	from, to := strings.IndexByte(answer, '{'), strings.LastIndexByte(answer, '}')
	if from < 0 || to < from {
		return events.Reviewed{}, errors.New("there is no JSON object in it")
	}
	var v struct {
		Approved *bool            `json:"approved"`
		Summary  string           `json:"summary"`
		Findings []events.Finding `json:"findings"`
	}
	dec := json.NewDecoder(strings.NewReader(answer[from : to+1]))
	if err := dec.Decode(&v); err != nil {
		return events.Reviewed{}, fmt.Errorf("it is not the JSON asked for: %w", err)
	}
	switch {
	case v.Approved == nil:
		return events.Reviewed{}, errors.New(`"approved" is missing`)
	case dec.More():
		return events.Reviewed{}, errors.New("there is more than one JSON object in it")
	}
	out := events.Reviewed{Approved: *v.Approved, Summary: cut(strings.TrimSpace(v.Summary), maxReviewText)}
	for _, f := range v.Findings {
		f.Problem = cut(strings.TrimSpace(f.Problem), maxReviewText)
		f.File, f.Line = cut(f.File, maxReviewText), max(0, f.Line)
		if f.Problem == "" || len(out.Findings) == maxFindings {
			continue
		}
		out.Findings = append(out.Findings, f)
		out.Approved = out.Approved && !f.Required
	}
	if !out.Approved && out.Summary == "" && len(out.Findings) == 0 {
		return events.Reviewed{}, errors.New("it does not approve and gives no reason")
	}
	return out, nil
}

// reviewReport is what the next attempt is told.
func reviewReport(v events.Reviewed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "A review did not approve the change: %s\n", v.Summary)
	for _, f := range v.Findings {
		where, weight := "", "optional"
		if f.File != "" {
			where = f.File + ": "
			if f.Line > 0 {
				where = fmt.Sprintf("%s:%d: ", f.File, f.Line)
			}
		}
		if f.Required {
			weight = "required"
		}
		fmt.Fprintf(&b, "- (%s) %s%s\n", weight, where, f.Problem)
	}
	return b.String()
}
