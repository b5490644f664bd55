package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// Errors of a run, beside those of the packages below.
var (
	ErrNoTask  = errors.New("the task is empty")
	ErrTask    = errors.New("the task cannot be used")
	ErrFailed  = errors.New("the work failed")     // the agent failed, or its last attempt was rejected
	ErrNoAgent = errors.New("no agent")            // its CLI is not in the sandbox, or too old
	ErrNothing = errors.New("nothing to deliver")  // the agent changed nothing
	ErrRefused = errors.New("refused by the gate") // what the agent left may not be delivered
	ErrNoPlan  = errors.New("no plan on record")
	ErrBudget  = errors.New("budget spent") // a limit of time, turns, tokens or money ended the work
)

// Request is what [Run] is asked to do.
type Request struct {
	Task    string
	Dir     string // the user's checkout, or a folder in it
	Config  config.Config
	Version string // of sbxpair

	// Locate finds the engine. It is asked after what can be checked without one.
	Locate func(context.Context) (*sbx.Client, pair.EngineRef, error)
	Store  *pair.Store
	Home   string // the user's home folder, which is never mounted
	Lookup func(string) (string, bool)
	// Proxy is how this host reaches a model's provider, if the gateway is used. Nil is directly.
	Proxy func(*http.Request) (*url.URL, error)
	Keep  bool // leave the pair in place at the end
	// KeepFailed leaves the pair in place if the run failed, for a look at it; not if it was cancelled.
	KeepFailed bool
	// Issue is the number of the issue whose text is the task, in place of Task; 0 for none.
	Issue int
	// Staged does everything but write to GitHub, and shows what would be written.
	Staged bool
	// Approve asks a person about what would be written, and returns the answer. Nil: nobody can be asked.
	Approve func(context.Context, Proposal) (bool, error)
	// Moved is OWNER/NAME of the repository whose name changed since the run, for [Deliver]; empty: it did not.
	Moved string
	// AllowDirty goes on with the committed state of a checkout that has uncommitted changes.
	AllowDirty bool

	// Limits are what a run that is gone on with is given in place of its own, by name: "turns" to "80".
	Limits map[string]string

	Given []string // keys of Config that were given for this run alone: no drift when it is gone on with
	// Sink is told every event as it happens, from one goroutine at a time. Nil is fine.
	Sink func(events.Payload)
}

// PhaseTime is how long one phase took.
type PhaseTime struct {
	Phase   events.Phase  `json:"phase"`
	Attempt int           `json:"attempt,omitempty"`
	Took    time.Duration `json:"took_ns"`
}

// Result is what came of a run.
type Result struct {
	Run       pair.RunID       `json:"run,omitempty"`
	Outcome   string           `json:"outcome"`
	Reason    string           `json:"reason,omitempty"`
	Delivered events.Delivered `json:"delivered,omitzero"`
	// Requests are what the agent asked for, and what came of it.
	Requests []events.Requested `json:"requests,omitempty"`
	// Staged is what would be written to GitHub, of a run that was told not to.
	Staged   *Proposal         `json:"staged,omitempty"`
	Agent    events.AgentEnded `json:"agent,omitzero"` // the last session that worked on the task
	Attempts int               `json:"attempts,omitempty"`
	Sessions []Session         `json:"sessions,omitempty"`
	Spent    events.Spent      `json:"spent,omitzero"`
	Verified []events.Verified `json:"verified,omitempty"` // of the last attempt
	Reviewed *events.Reviewed  `json:"reviewed,omitempty"` // of the last attempt
	EndState *events.EndState  `json:"end_state,omitempty"`
	Blocked  []events.Blocked  `json:"blocked,omitempty"`
	// Strategies says how each role's credential reached its hosts.
	Strategies map[pair.Role]provision.Strategy `json:"strategies,omitempty"`
	Phases     []PhaseTime                      `json:"phases"`
	Took       time.Duration                    `json:"took_ns"`
	// Finishes is the run whose delivery this one finishes.
	Finishes pair.RunID `json:"finishes,omitempty"`
	// Finish is the command that finishes the delivery, where there is something to finish.
	Finish string `json:"finish,omitempty"`
	// Work is a git bundle of what the agent left, if it was not delivered; also of one that a limit, a cancellation or its failure ended.
	Work  string `json:"work,omitempty"`
	Patch string `json:"patch,omitempty"` // file with the same as a patch, of a run that delivers nothing
	// Files is the agent's folder, kept because what it left was refused as a whole. It is as hostile as the agent may be: copy from
	// it what is of use, but run nothing there, nor git.
	Files string `json:"files,omitempty"`
	// Tampered lists what is not as it was in a checkout that was used in place, of what git runs or obeys there: in its .git, and what
	// its configuration or yours names (hooks, filters, included files). Look at it before you run git there.
	Tampered []string `json:"tampered,omitempty"`
	Kept     bool     `json:"kept,omitempty"`
	// Resumable says that the run was interrupted, or that a limit ended it, and that it can be gone on with: its workspace is still there.
	Resumable bool            `json:"resumable,omitempty"`
	Drift     []events.Change `json:"drift,omitempty"` // of the configuration, when it was gone on with
	Dir       string          `json:"dir,omitempty"`   // the run's folder
	Log       string          `json:"log,omitempty"`   // the event log in it
}

// Up makes and proves a pair for the checkout and leaves it in place: the first half of [Run], by itself. If any of it
// fails, nothing is left.
func Up(ctx context.Context, req Request) (Result, error) {
	return start(ctx, req, true)
}

// Run carries out one run. The result is filled as far as the run got also beside an error. The error matches one of
// this package's, or of the package that refused; it matches [pair.ErrLeft] if something may not be cleaned up.
func Run(ctx context.Context, req Request) (Result, error) {
	return start(ctx, req, false)
}

func start(ctx context.Context, req Request, upOnly bool) (Result, error) {
	now := time.Now()
	r := &run{req: req, began: now, started: now, id: pair.NewRunID(now), upOnly: upOnly}
	err := r.start(ctx)
	return r.result, err
}

// start carries the run out and fills in its result.
func (r *run) start(ctx context.Context) error {
	if sink, broken := r.req.Sink, false; sink != nil {
		r.req.Sink = func(e events.Payload) { // one that panicked is told nothing more: the run has to come to its end
			if broken {
				return
			}
			broken = true
			sink(e)
			broken = false
		}
	}
	err := r.masked(r.do(ctx))
	r.conclude(err)
	return err
}

// maskedError is an error whose text holds no credential value: what a host answered, or a program said, may hold one.
type maskedError struct {
	err  error
	mask *secrets.Redactor
}

func (e *maskedError) Error() string { return e.mask.String(e.err.Error()) }
func (e *maskedError) Unwrap() error { return e.err }

func (r *run) masked(err error) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[*maskedError](err); done {
		return err
	}
	return &maskedError{err, r.redact}
}

// conclude fills in how the run ended.
func (r *run) conclude(err error) {
	err = r.masked(err)
	r.result.Attempts, r.result.Sessions, r.result.Verified, r.result.Reviewed = r.state.Attempt, r.state.Sessions, r.state.Verified, r.state.Reviewed
	r.result.Spent = r.spent(0, agent.Usage{})
	for _, s := range r.state.Sessions {
		if s.Phase == events.PhaseExecute {
			r.result.Agent = s.AgentEnded
		}
	}
	r.result.Took, r.result.Outcome, r.result.Reason = time.Since(r.began), Outcome(err), ""
	switch {
	case err != nil:
		r.result.Reason = err.Error()
	case !r.deliverable() && !r.upOnly:
		r.result.Outcome = "finished"
	case r.upOnly:
		r.result.Outcome = "up"
	case r.result.Staged != nil:
		r.result.Outcome = "staged"
	}
}

// Outcome is the one word for how a run ended.
func Outcome(err error) string {
	switch {
	case err == nil:
		return "delivered"
	case errors.Is(err, pair.ErrLeft):
		return "clean-up incomplete"
	case errors.Is(err, ErrBudget): // limits.run cancels, too
		return "budget spent"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, ErrNothing), errors.Is(err, ErrNoHandover):
		return "nothing to do"
	case errors.Is(err, ErrRefused), errors.Is(err, provision.ErrRefused), errors.Is(err, workspace.ErrHostile), errors.Is(err, workspace.ErrTooLarge), errors.Is(err, provision.ErrNotProven):
		return "refused"
	case errors.Is(err, provision.ErrExpired):
		return "credential expired"
	case errors.Is(err, secrets.ErrMissing), errors.Is(err, secrets.ErrUnfit), errors.Is(err, provision.ErrCredential), errors.Is(err, github.ErrUnauthorized):
		return "credential trouble"
	}
	return "failed"
}

type run struct {
	req     Request
	upOnly  bool // stop after the proof and keep the pair
	id      pair.RunID
	started time.Time // the first time
	began   time.Time // this time
	resumed bool
	drift   []events.Change
	given   []events.Change // limits in place of those that it was started with
	log     *events.Log
	result  Result
	state   State

	engine       *sbx.Client
	engineRef    pair.EngineRef
	adapter      agent.Adapter
	provider     string             // whose models the agent uses
	gateway      *provision.Gateway // nil: the agent reaches its model itself
	prices       prices.Table
	agentToken   secrets.Value
	githubToken  secrets.Value
	redact       *secrets.Redactor
	repo         string // OWNER/NAME
	look         workspace.Checkout
	plan         provision.Plan
	pair         *pair.Pair
	proven       bool
	proofs       int          // how often the proof was taken
	blockedHosts int          // when the last session ended
	givenAgain   bool         // the credentials were given to the pair a second time
	granted      int          // how many grants and revocations are in the record
	agentResult  agent.Result // of the last session that worked on the task
	inventory    string       // what ran in the agent sandbox before the agent did
	unfetched    bool         // the agent worked, and there is no end state of that yet
	untaken      bool         // what it left last was refused as a whole
	fresh        int          // index of the first session of this pair: the CLI's state of earlier ones went with their sandbox
	bounds       github.Bounds
	telling      *telling       // keeps the run's issue current; nil without one
	handover     *Handover      // what is delivered, once the gate has looked at it
	finishes     pair.RunID     // the run whose delivery this one finishes, instead of a run of its own
	only         *flock.Flock   // held while that run is finished
	early        []events.Noted // what happened before the run had a record
}

// openLog opens the record of a new run.
func (r *run) openLog() (err error) {
	if r.log, err = events.Create(r.result.Log, string(r.id), r.redact.Bytes, r.req.Sink); err != nil {
		return err
	}
	r.log.Emit(events.RunStarted{
		Version: r.req.Version, Repository: r.repo, Task: r.req.Task, Agent: r.adapter.Name,
		Engine: r.engineRef.Kind, EngineVer: r.engineRef.Version, Isolation: r.engineRef.Isolation,
	})
	for _, note := range r.early {
		r.log.Emit(note)
	}
	return r.ask()
}

// branch is the run's own.
func (r *run) branch() string { return r.req.Config.GitHub.BranchPrefix + string(r.id) }

func (r *run) do(ctx context.Context) (err error) {
	preflight := time.Now()
	check, take, open, through := r.preflight, r.acquire, r.openLog, r.through
	switch {
	case r.resumed:
		check, take, open = r.preflightAgain, r.retake, r.reopen
	case r.finishes != "":
		check, through = r.prepareToFinish, r.finishing
	}
	if err := check(ctx); err != nil {
		return err
	}
	if h := r.handover; h != nil && h.Done != nil { // nothing is left to do
		r.result.Delivered, r.result.Requests = *h.Done, h.Asked
		return nil
	}
	if r.finishes == "" {
		if err := r.openGateway(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.closeGateway(ctx)) }()
	}
	r.named()
	if err := take(ctx); err != nil {
		if r.pair != nil {
			err = r.finish(ctx, err)
		}
		return err
	}
	return r.finish(ctx, pair.Caught(func() error { return r.recorded(ctx, preflight, open, through) }))
}

// recorded is the part of a run that its log tells.
func (r *run) recorded(ctx context.Context, preflight time.Time, open func() error, through func(context.Context) error) error {
	if err := r.admit(); err != nil {
		return err
	}
	if err := open(); err != nil {
		return err
	}
	r.ended(events.PhasePreflight, 0, time.Since(preflight), "credentials are there and have the right shape", nil)
	if limit := time.Duration(r.req.Config.Limits.Run); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: the run took longer than limits.run (%s)", ErrBudget, limit))
		defer cancel()
	}
	return through(ctx)
}

// named fills in what follows from the run's id.
func (r *run) named() {
	r.result.Run, r.result.Dir, r.result.Drift = r.id, r.req.Store.Dir(r.id), r.drift
	r.result.Log = filepath.Join(r.result.Dir, eventLog)
}

// openPrivate creates a file of the run that only its owner may read.
func openPrivate(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}
