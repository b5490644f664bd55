package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// ErrNoHandover matches the error for a run that did not get as far as a delivery, so that none can be finished.
var ErrNoHandover = errors.New("the run has nothing to deliver")

// handoverFile is what the delivery of a run needs, in the run's folder, beside the work.
const handoverFile = "delivery.json"

// maxRefused bounds, in bytes, the files that are kept of a change that the gate refused for its size, among other things.
const maxRefused = 64 << 20

// Handover is a run's delivery as data: with it and the work's bundle, any later process can carry it out. It is on disk before
// anything is written to GitHub.
type Handover struct {
	Run        pair.RunID              `json:"run"` // whose markers and branch name it carries
	Base       string                  `json:"base"`
	Head       string                  `json:"head,omitempty"` // empty: no change, only requests
	Branch     string                  `json:"branch,omitempty"`
	BaseBranch string                  `json:"base_branch,omitempty"`
	Title      string                  `json:"title,omitempty"`
	Body       string                  `json:"body,omitempty"`
	Comment    string                  `json:"comment,omitempty"`
	Issue      int                     `json:"issue,omitempty"`
	Verified   bool                    `json:"verified,omitempty"` // commands ran and passed
	Changed    []github.FileChange     `json:"changed,omitempty"`
	Patch      []byte                  `json:"patch,omitempty"`
	PatchCut   bool                    `json:"patch_cut,omitempty"` // Patch is not all of it
	Tree       string                  `json:"tree,omitempty"`      // of Files
	Files      []github.TreeFile       `json:"files,omitempty"`     // for a delivery that does not use git
	Requests   []github.RequestVerdict `json:"requests,omitempty"`
	Verdict    github.Verdict          `json:"verdict"`
	Approved   []github.Reason         `json:"approved,omitempty"` // by a person
	// Final says why the gate's refusal cannot be lifted; empty where other settings of the gate may let the change through.
	Final string `json:"final,omitempty"`
	// Done is what stands on GitHub once all of it does.
	Done *events.Delivered `json:"done,omitempty"`
	// Asked holds what came of the requests.
	Asked []events.Requested `json:"asked,omitempty"`
}

// works reports whether there is a change that does not stand on GitHub yet, and so the bundle with it.
func (h *Handover) works() bool { return h.Head != "" && h.Done == nil }

// asks are the gate's questions that nobody has answered.
func (h *Handover) asks() []string {
	if len(h.Approved) > 0 || h.Verdict.Decision != github.Ask {
		return nil
	}
	var list []string
	for _, reason := range h.Verdict.Reasons {
		list = append(list, reason.String())
	}
	return list
}

// command is what finishes the delivery; empty if nothing does.
func (h *Handover) command() string {
	if h.Final != "" {
		return ""
	}
	if len(h.asks()) > 0 {
		return h.approval()
	}
	return "sbxpair deliver " + string(h.Run)
}

// approval is what finishes the delivery where a person has to say yes.
func (h *Handover) approval() string { return "sbxpair deliver " + string(h.Run) + " --approve" }

// refusal is the error for a change that the gate refused; it says what can be done about that.
func (h *Handover) refusal(why string) error {
	if h.Final != "" {
		return fmt.Errorf("%w: %s; %s", ErrRefused, why, h.Final)
	}
	return fmt.Errorf("%w: %s; the work is kept: once your own gate settings allow it, %s delivers it", ErrRefused, why, h.command())
}

// prepareHandover puts together what is delivered, once the gate has looked at it.
func (r *run) prepareHandover(ctx context.Context, v github.Verdict) (*Handover, error) {
	h := &Handover{Run: r.id, Issue: r.req.Issue, Verdict: v, Requests: r.state.Requests, Base: r.state.End.Base}
	if r.state.End.Empty {
		return h, nil
	}
	h.Head, h.Branch, h.BaseBranch = r.state.End.Head, r.branch(), r.baseBranch()
	h.Title, h.Body, h.Comment, h.Verified = r.pullTitle(), r.body(), r.comment(), len(r.state.Verified) > 0
	h.Changed = changed(r.state.End)
	limit := r.bounds.MaxPatch
	if v.Decision == github.Refuse {
		limit = maxRefused
	}
	if slices.ContainsFunc(v.Reasons, func(x github.Reason) bool { return x.Code == github.ReasonSecret }) {
		h.Final = "it holds a credential; the agent has to take it out" // and there is no further copy of it
		return h, nil
	}
	h.Patch, h.PatchCut = r.state.End.Patch, r.state.End.PatchTruncated
	if h.PatchCut {
		h.Final = "it is too large to be judged"
		return h, nil
	}
	if r.req.Config.GitHub.Way == string(github.ViaAPI) {
		tree, versions, err := r.state.Workspace.Versions(ctx, r.state.End, limit)
		if errors.Is(err, workspace.ErrTooLarge) && v.Decision == github.Refuse {
			h.Final = "it is too large for github.way: api"
			return h, nil
		}
		if err != nil {
			return nil, err
		}
		h.Tree = tree
		for _, f := range versions {
			h.Files = append(h.Files, github.TreeFile{Path: f.Path, Mode: f.Mode, OldMode: f.OldMode, Content: f.Data})
		}
	}
	return h, nil
}

// hand carries out a handover from the run's github sandbox: branch, pull request and comment, then what else the configuration and the
// agent asked for. Each step finds what an earlier try did. What stands on GitHub is in the result also beside an error.
func (r *run) hand(ctx context.Context, h *Handover) error {
	client, repo, err := r.github()
	if err != nil {
		return err
	}
	defer client.Close()
	c := r.req.Config.GitHub
	own := github.Own{Issue: h.Issue}
	if h.Head != "" {
		fork, err := forkOf(c)
		if err != nil {
			return err
		}
		bounds := r.bounds
		bounds.Approved = h.Approved
		bundle, err := os.Open(filepath.Join(r.req.Store.Dir(h.Run), workFile))
		if err != nil {
			return fmt.Errorf("read the work: %w", err)
		}
		defer bundle.Close()
		done, err := github.Deliver(ctx, r.pair.GitHub, client, github.Delivery{
			Run: string(h.Run), Repo: repo, Fork: fork, Base: h.Base, BaseBranch: h.BaseBranch, Head: h.Head, Branch: h.Branch, Known: []string{h.Head},
			Bundle: bundle, Way: github.Way(c.Way), Files: h.Files, Tree: h.Tree, InitEmpty: c.InitEmpty,
			Title: h.Title, Body: h.Body, Comment: h.Comment, Issue: h.Issue, Closes: c.Closes,
			Ready: !c.Draft, DraftOptional: c.DraftOptional, Bounds: bounds,
		})
		if done.Push != "" {
			r.result.Delivered = events.Delivered{
				Branch: done.Branch, Commit: done.Head, PullRequest: done.PullRequest.URL, Number: done.PullRequest.Number,
				Draft: done.PullRequest.Draft, Issue: h.Issue,
			}
			if done.Fork != (github.Repo{}) {
				r.result.Delivered.Fork = done.Fork.String()
			}
			if done.Comment != nil {
				r.result.Delivered.Comment = done.Comment.URL
			}
			r.log.Emit(r.result.Delivered)
		}
		for _, note := range done.PullRequest.Notes {
			r.log.Emit(events.Noted{Text: note})
		}
		if err != nil {
			return deliveryError(err)
		}
		own.Pull = done.PullRequest.Number
		if err := r.dress(ctx, client, repo, h); err != nil {
			return err
		}
	}
	return r.perform(ctx, client, repo, own, h)
}

// dress gives the pull request what the configuration says it has: labels, reviewers, a check, the run's record.
func (r *run) dress(ctx context.Context, client *github.Client, repo github.Repo, h *Handover) error {
	c, number := r.req.Config.GitHub, r.result.Delivered.Number
	if len(c.Labels) > 0 {
		got, err := client.AddLabels(ctx, repo, number, c.Labels)
		if err != nil {
			return err
		}
		r.noteMissing("label", c.Labels, got)
	}
	if len(c.Reviewers) > 0 {
		if _, err := client.RequestReviewers(ctx, repo, number, c.Reviewers, nil); err != nil {
			return err
		}
	}
	if c.Check != "" {
		target := repo
		if fork, err := forkOf(c); err == nil && fork != (github.Repo{}) {
			target = fork
		}
		k := github.CheckRun{Name: c.Check, Commit: r.result.Delivered.Commit, Conclusion: github.ConclusionNeutral, Title: "no verify command was configured", Summary: h.Comment}
		if h.Verified {
			k.Conclusion, k.Title = github.ConclusionSuccess, "the verify commands passed"
		}
		form, err := client.SetCheck(ctx, target, k)
		if err != nil {
			return err
		}
		r.result.Delivered.Check = string(form)
	}
	if len(c.Artifacts) > 0 {
		files, err := recordOf(r.req.Store.Dir(h.Run), c.Artifacts)
		if err != nil {
			return err
		}
		kept, err := client.KeepArtifacts(ctx, github.Artifacts{Run: string(h.Run), Repo: repo, Files: files, Bounds: r.bounds})
		switch {
		case errors.Is(err, github.ErrRefused), errors.Is(err, github.ErrTooLarge): // the change stands without it
			r.log.Emit(events.Noted{Text: "the run's record is not kept on GitHub: " + err.Error()})
		case err != nil:
			return err
		default:
			r.result.Delivered.Artifacts = kept.URL
		}
	}
	return nil
}

func (r *run) noteMissing(what string, asked, got []string) {
	for _, a := range asked {
		if !containsFold(got, a) {
			r.log.Emit(events.Noted{Text: fmt.Sprintf("GitHub left out the %s %q: the token's owner may not set it", what, a)})
		}
	}
}

// recordOf reads the parts of a run's record that are kept on GitHub. All of it is masked text.
func recordOf(dir string, parts []string) ([]github.TreeFile, error) {
	var files []github.TreeFile
	for _, part := range parts {
		pattern := map[string]string{"events": eventLog, "transcripts": "transcripts/*.jsonl"}[part]
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("read the run's record: %w", err)
			}
			files = append(files, github.TreeFile{Path: filepath.Base(path), Mode: "100644", Content: text})
		}
	}
	return files, nil
}

// perform carries out the requests that the gate let through, each once for the run, and tells of all of them.
func (r *run) perform(ctx context.Context, client *github.Client, repo github.Repo, own github.Own, h *Handover) error {
	h.Asked = nil
	var errs []error
	for i, v := range h.Requests {
		e := requested(v)
		switch {
		case v.Verdict.Decision != github.Allow:
		case v.Request.Kind == github.RequestPullRequest:
			e.Done, e.Number, e.URL = own.Pull > 0, own.Pull, r.result.Delivered.PullRequest
		default:
			done, err := github.Perform(ctx, client, repo, string(h.Run), i, own, v)
			if errors.Is(err, github.ErrOutOfBounds) || errors.Is(err, github.ErrValidation) || errors.Is(err, github.ErrNotFound) {
				e.Reasons, err = append(e.Reasons, err.Error()), nil // GitHub's own no to this one; the others stand
			} else {
				e.Done, e.Number, e.URL, e.Dropped = err == nil, done.Number, done.URL, done.Dropped
			}
			if err != nil {
				e.Reasons = append(e.Reasons, err.Error())
				errs = append(errs, fmt.Errorf("request %d, %s: %w", v.Line, v.Request.Kind, err))
			}
		}
		h.Asked = append(h.Asked, e)
		r.log.Emit(e)
	}
	r.result.Requests = h.Asked
	return errors.Join(errs...)
}

// Deliver finishes the delivery of a run from its folder, with a github sandbox of its own: what a run kept that could not deliver, was
// staged, or has to be approved. It is a run by itself in the record, with an id of its own; on GitHub everything is keyed by the
// run that it finishes, so that doing it again changes nothing. The error matches [ErrNoHandover] if there is nothing to
// finish, [pair.ErrOwned] if a process is at it, else like that of [Run].
func Deliver(ctx context.Context, req Request, of pair.RunID) (Result, error) {
	now := time.Now()
	r := &run{req: req, began: now, started: now, id: pair.NewRunID(now), finishes: of}
	r.result.Finishes = of
	defer func() {
		if r.only != nil {
			r.only.Unlock() // the file stays: who waits for it has it open
		}
	}()
	err := r.start(ctx)
	return r.result, err
}

// loadHandover reads the delivery of the run that this one finishes.
func (r *run) loadHandover() (*Handover, error) {
	rec, err := Load(r.req.Store, r.finishes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: run %s ended before it was under way", ErrNoHandover, r.finishes)
	}
	if err != nil {
		return nil, err
	}
	if rec.Lease.State == pair.Open && !rec.Lease.Kept && rec.Lease.OwnerAlive() == pair.Alive {
		return nil, fmt.Errorf("%w: %s is still under way", pair.ErrOwned, r.finishes)
	}
	dir := r.req.Store.Dir(r.finishes)
	// Two at a time would each look for a comment, find none, and post one.
	r.only = flock.New(filepath.Join(dir, "delivery.lock"))
	if ok, err := r.only.TryLock(); err != nil {
		return nil, fmt.Errorf("lock the delivery of run %s: %w", r.finishes, err)
	} else if !ok {
		r.only = nil
		return nil, fmt.Errorf("%w: %s is being delivered by another process", pair.ErrOwned, r.finishes)
	}
	h := new(Handover)
	if err := readJSON(filepath.Join(dir, handoverFile), h); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: run %s did not come to its delivery (%s)", ErrNoHandover, r.finishes, rec.Lease.Outcome)
	} else if err != nil {
		return nil, fmt.Errorf("run %s: %w", r.finishes, err)
	}
	if h.Run != r.finishes {
		return nil, fmt.Errorf("run %s: its %s is of run %.20q", r.finishes, handoverFile, h.Run)
	}
	gate := r.req.Config.Gate
	r.req.Config, r.req.Task, r.req.Issue, r.repo = rec.Asked.Config, rec.Asked.Task, h.Issue, rec.Asked.Repository
	if h.Verdict.Decision == github.Refuse { // it is for whoever is here today to lift that
		r.req.Config.Gate = gate
	}
	if r.req.Moved != "" {
		r.repo = r.req.Moved
	}
	if h.works() {
		if _, err := os.Stat(filepath.Join(dir, workFile)); err != nil {
			return nil, fmt.Errorf("run %s: the work is not there any more: %w", r.finishes, err)
		}
	}
	return h, nil
}

// prepareToFinish takes the place of preflight for a run that finishes another's delivery.
func (r *run) prepareToFinish(ctx context.Context) error {
	var err error
	if r.handover, err = r.loadHandover(); err != nil {
		return err
	}
	token := r.req.Config.GitHub.Token
	if r.githubToken, err = token.Resolve(ctx, r.req.Lookup); err == nil {
		err = secrets.CheckToken(r.githubToken, "the GitHub token ("+token.String()+")")
	}
	if err != nil {
		return err
	}
	r.redact = secrets.NewRedactor(r.githubToken)
	if r.bounds, err = r.makeBounds(); err != nil {
		return err
	}
	if err := r.lookup(); err != nil {
		return err
	}
	if r.handover.Done != nil {
		return nil
	}
	if err := r.judgeAgain(r.handover); err != nil {
		return err
	}
	if r.engine, r.engineRef, err = r.req.Locate(ctx); err != nil || r.handover.Head == "" {
		return err
	}
	return r.checkWay()
}

// judgeAgain lets the gate look once more at what it refused, with the bounds of today.
func (r *run) judgeAgain(h *Handover) error {
	if h.Verdict.Decision != github.Refuse {
		return nil
	}
	if h.Final == "" {
		h.Verdict = github.Check(r.bounds, github.Change{
			Repo: r.bounds.Repo, Fork: r.bounds.Fork, Branch: h.Branch, BaseBranch: h.BaseBranch, Title: h.Title, Body: h.Body, Patch: h.Patch, Files: h.Changed,
		})
	}
	if h.Verdict.Decision != github.Refuse {
		return nil
	}
	var why []string
	for _, reason := range h.Verdict.Reasons {
		why = append(why, reason.String())
	}
	return h.refusal(strings.Join(why, "; "))
}

// finishing are the phases of a run that finishes another's delivery.
func (r *run) finishing(ctx context.Context) error {
	for _, name := range []events.Phase{events.PhaseGate, events.PhaseProvision, events.PhaseProof, events.PhaseDeliver} {
		if err := r.phase(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// record writes the handover into the folder of the run whose it is.
func (r *run) record(h *Handover) error {
	return r.writeTo(r.req.Store.Dir(h.Run), handoverFile, h)
}

// delivered closes the record of a delivery: what stands on GitHub is written down, and the work is not kept twice.
func (r *run) delivered(h *Handover) error {
	h.Done = &r.result.Delivered
	h.Patch, h.Files = nil, nil
	if err := r.record(h); err != nil {
		return err
	}
	r.result.Work, r.result.Finish = "", ""
	if r.finishes != "" {
		if err := r.endOther(); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(r.req.Store.Dir(h.Run), workFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.log.Emit(events.Noted{Text: err.Error()})
	}
	return nil
}

// endOther closes the run whose delivery this one finished: there is nothing to go on with any more.
func (r *run) endOther() error {
	dir := r.req.Store.Dir(r.finishes)
	var state State
	if err := readJSON(filepath.Join(dir, stateFile), &state); err != nil {
		return err
	}
	state.Ended = true
	return errors.Join(r.writeTo(dir, stateFile, state), RemoveWorkspace(dir))
}

func forkOf(c config.GitHub) (github.Repo, error) {
	if c.Fork == "" {
		return github.Repo{}, nil
	}
	return github.ParseRepo(c.Fork)
}

func containsFold(list []string, s string) bool {
	return slices.ContainsFunc(list, func(x string) bool { return strings.EqualFold(x, s) })
}
