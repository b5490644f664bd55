package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// Errors of a run, beside those of the packages below.
var (
	ErrNoTask  = errors.New("the task is empty")
	ErrTask    = errors.New("the task cannot be used")
	ErrFailed  = errors.New("the work failed")     // the agent failed, or a verify command did
	ErrNoAgent = errors.New("no agent")            // its CLI is not in the sandbox
	ErrNothing = errors.New("nothing to deliver")  // the agent changed nothing
	ErrRefused = errors.New("refused by the gate") // what the agent left may not be delivered
	ErrBudget  = errors.New("budget spent")        // a limit of time or turns ended the work
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
	Keep   bool // leave the pair in place at the end
	// AllowDirty goes on with the committed state of a checkout that has uncommitted changes.
	AllowDirty bool

	// Sink is told every event as it happens, from one goroutine at a time. Nil is fine.
	Sink func(events.Payload)
}

// PhaseTime is how long one phase took.
type PhaseTime struct {
	Phase events.Phase  `json:"phase"`
	Took  time.Duration `json:"took_ns"`
}

// Result is what came of a run.
type Result struct {
	Run       pair.RunID        `json:"run,omitempty"`
	Outcome   string            `json:"outcome"`
	Reason    string            `json:"reason,omitempty"`
	Delivered events.Delivered  `json:"delivered,omitzero"`
	Agent     events.AgentEnded `json:"agent,omitzero"`
	Verified  []events.Verified `json:"verified,omitempty"`
	Blocked   []events.Blocked  `json:"blocked,omitempty"`
	Phases    []PhaseTime       `json:"phases"`
	Took      time.Duration     `json:"took_ns"`
	// Work is a git bundle of what the agent left, if it was not delivered.
	Work string `json:"work,omitempty"`
	Kept bool   `json:"kept,omitempty"`
	Dir  string `json:"dir,omitempty"` // the run's folder
	Log  string `json:"log,omitempty"` // the event log in it
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
	r := &run{req: req, started: time.Now(), id: pair.NewRunID(time.Now()), upOnly: upOnly}
	err := r.masked(r.do(ctx))
	r.conclude(err)
	return r.result, err
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
	r.result.Took, r.result.Outcome, r.result.Reason = time.Since(r.started), Outcome(err), ""
	switch {
	case err != nil:
		r.result.Reason = err.Error()
	case r.upOnly:
		r.result.Outcome = "up"
	}
}

// Outcome is the one word for how a run ended.
func Outcome(err error) string {
	switch {
	case err == nil:
		return "delivered"
	case errors.Is(err, pair.ErrLeft):
		return "clean-up incomplete"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, ErrNothing):
		return "nothing to do"
	case errors.Is(err, ErrBudget), errors.Is(err, context.DeadlineExceeded):
		return "budget spent"
	case errors.Is(err, ErrRefused), errors.Is(err, provision.ErrRefused), errors.Is(err, workspace.ErrHostile), errors.Is(err, workspace.ErrTooLarge), errors.Is(err, provision.ErrNotProven):
		return "refused"
	case errors.Is(err, secrets.ErrMissing), errors.Is(err, secrets.ErrUnfit), errors.Is(err, provision.ErrCredential):
		return "credential trouble"
	}
	return "failed"
}

type step struct {
	phase events.Phase
	do    func(context.Context) (string, error)
}

type run struct {
	req     Request
	upOnly  bool // stop after the proof and keep the pair
	id      pair.RunID
	started time.Time
	log     *events.Log
	result  Result

	engine      *sbx.Client
	engineRef   pair.EngineRef
	adapter     agent.Adapter
	agentToken  secrets.Value
	githubToken secrets.Value
	redact      *secrets.Redactor
	repo        string // OWNER/NAME
	work        workspace.Workspace
	plan        provision.Plan
	pair        *pair.Pair
	proven      bool
	proofs      int // how often the proof was taken
	agentResult agent.Result
	end         workspace.EndState
	bounds      github.Bounds
}

func (r *run) do(ctx context.Context) (err error) {
	preflight := time.Now()
	if err := r.preflight(ctx); err != nil {
		return err
	}
	r.pair, err = pair.Acquire(r.engine.Unverified(), r.req.Store, pair.Lease{
		Run: r.id, Created: r.started.UTC(), Owner: pair.Self(), Engine: r.engineRef, Repository: r.repo, Host: r.req.Config.GitHub.Host,
	})
	if err != nil {
		return err
	}
	r.result.Run, r.result.Dir = r.id, r.req.Store.Dir(r.id)
	r.result.Log = filepath.Join(r.result.Dir, "events.jsonl")
	defer func() { err = r.finish(ctx, err, recover()) }()
	if r.log, err = events.Create(r.result.Log, string(r.id), r.redact.Bytes, r.req.Sink); err != nil {
		return err
	}
	r.log.Emit(events.RunStarted{
		Version: r.req.Version, Repository: r.repo, Task: r.req.Task, Agent: r.adapter.Name,
		Engine: r.engineRef.Kind, EngineVer: r.engineRef.Version, Isolation: r.engineRef.Isolation,
	})
	r.ended(events.PhasePreflight, time.Since(preflight), "credentials are there and have the right shape", nil)

	if limit := time.Duration(r.req.Config.Limits.Run); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: the run took longer than limits.run (%s)", ErrBudget, limit))
		defer cancel()
	}
	steps := []step{{events.PhaseWorkspace, r.prepare}, {events.PhaseProvision, r.provision}, {events.PhaseProof, r.prove}}
	if !r.upOnly {
		// The end state is taken before verify: "nothing done" is told apart from "verify failed", and what the verify
		// commands leave lying about is not delivered.
		steps = append(steps, step{events.PhaseExecute, r.execute}, step{events.PhaseEndState, r.collect},
			step{events.PhaseVerify, r.verify}, step{events.PhaseGate, r.gate}, step{events.PhaseDeliver, r.deliver})
	}
	for _, step := range steps {
		if err := r.phase(ctx, step.phase, step.do); err != nil {
			return err
		}
	}
	return nil
}

// phase runs one step between its two events.
func (r *run) phase(ctx context.Context, name events.Phase, do func(context.Context) (string, error)) error {
	if err := r.log.Err(); err != nil {
		return fmt.Errorf("%s: no record can be kept: %w", name, err)
	}
	r.log.Emit(events.PhaseStarted{Phase: name})
	start := time.Now()
	detail, err := do(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err) // which signal, which limit
	}
	r.ended(name, time.Since(start), detail, err)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (r *run) ended(name events.Phase, took time.Duration, detail string, err error) {
	r.result.Phases = append(r.result.Phases, PhaseTime{name, took})
	end := events.PhaseEnded{Phase: name, Took: took, Detail: detail}
	if err != nil {
		end.Error = err.Error()
	}
	r.log.Emit(end)
}

// finish releases the pair and closes the record, whatever happened before.
func (r *run) finish(ctx context.Context, err error, panicked any) error {
	if panicked != nil {
		err = fmt.Errorf("%w: internal error: %v", ErrFailed, panicked)
	}
	if r.log == nil { // the log could not even be created
		_, releaseErr := r.pair.Release(ctx, Outcome(err), time.Duration(r.req.Config.Limits.Release))
		return errors.Join(err, releaseErr)
	}
	r.blocked(ctx)
	r.conclude(err)
	if r.keep(err) && panicked == nil {
		r.result.Kept = true
		err = errors.Join(err, r.pair.Keep(r.result.Outcome, r.plan.Agent.Environment()))
	} else {
		err = errors.Join(err, r.release(ctx))
	}
	r.conclude(err)
	r.log.Emit(events.RunEnded{Outcome: r.result.Outcome, Error: r.result.Reason, Took: r.result.Took})
	err = errors.Join(err, r.receipt(), r.log.Close())
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// keep reports whether the pair stays: asked for, or the point of it all. A pair that was never proven does not.
func (r *run) keep(err error) bool { return r.proven && (r.req.Keep || r.upOnly && err == nil) }

func (r *run) release(ctx context.Context) error {
	r.log.Emit(events.PhaseStarted{Phase: events.PhaseRelease})
	start := time.Now()
	released, releaseErr := r.pair.Release(ctx, r.result.Outcome, time.Duration(r.req.Config.Limits.Release))
	releaseErr = errors.Join(releaseErr, RemoveWorkspace(r.result.Dir))
	done := events.Released{Removed: released.Removed}
	if releaseErr != nil {
		done.Left = r.id.Names()
	}
	r.log.Emit(done)
	r.ended(events.PhaseRelease, time.Since(start), "", releaseErr)
	return releaseErr
}

// preflight checks what can be checked before anything is made.
func (r *run) preflight(ctx context.Context) error {
	if err := r.checkTask(); err != nil && !r.upOnly {
		return err
	}
	if err := r.lookup(); err != nil {
		return err
	}
	cfg := r.req.Config
	provider, err := cfg.Agent.ModelProvider()
	if err != nil {
		return fmt.Errorf("%w: agent.provider: %w", config.ErrInvalid, err)
	}
	creds, err := provision.ResolveCredentials(ctx, provider, cfg.Agent.Token, cfg.GitHub.Token, r.req.Lookup)
	if err != nil {
		return err
	}
	r.agentToken, r.githubToken = creds.Agent, creds.GitHub
	r.redact = secrets.NewRedactor(r.agentToken, r.githubToken)
	if _, err := r.checkout(ctx); err != nil {
		return err
	}
	r.engine, r.engineRef, err = r.req.Locate(ctx)
	return err
}

// inside reports whether path lies in folder top. Both are resolved as far as they exist.
func inside(top, path string) bool {
	for ; path != filepath.Dir(path); path = filepath.Dir(path) {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			rel, err := filepath.Rel(top, resolved)
			return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
		}
	}
	return false
}

func workspaceDir(run string) string { return filepath.Join(run, "workspace") }

// RemoveWorkspace removes the workspace from a run's folder; the record of the run stays. The error matches [pair.ErrLeft].
func RemoveWorkspace(run string) error {
	if err := (workspace.Workspace{Root: workspaceDir(run)}).Remove(); err != nil {
		return fmt.Errorf("%w: remove workspace: %w", pair.ErrLeft, err)
	}
	return nil
}

func (r *run) branch() string { return r.req.Config.GitHub.BranchPrefix + string(r.id) }

// lookup finds the adapter of the configured agent.
func (r *run) lookup() error {
	name, ok := r.req.Config.Agent.Name, false
	if r.adapter, ok = agent.Lookup(name); !ok {
		return fmt.Errorf("%w: no agent %q; there are: %s", config.ErrInvalid, name, strings.Join(agent.Names(), ", "))
	}
	return nil
}

// checkout looks at the user's checkout without changing anything, and settles which repository the run is about.
func (r *run) checkout(ctx context.Context) (workspace.Workspace, error) {
	cfg := r.req.Config
	look, err := workspace.Inspect(ctx, r.source())
	if err != nil {
		return look, err
	}
	if inside(look.Top, r.req.Store.Dir(r.id)) {
		return look, fmt.Errorf("%w: the state folder %s is inside the checkout; move it with XDG_STATE_HOME", config.ErrInvalid, r.req.Store.Dir(r.id))
	}
	if r.repo = cfg.GitHub.Repo; r.repo == "" {
		r.repo = look.Origin.Slug()
	}
	if r.repo == "" {
		return look, fmt.Errorf("%w: no repository is given, and the checkout's origin is not one on GitHub; use --repo OWNER/NAME", config.ErrInvalid)
	}
	if _, err := github.ParseRepo(r.repo); err != nil {
		return look, fmt.Errorf("%w: %w", config.ErrInvalid, err)
	}
	if cfg.GitHub.Base == "" && look.BaseBranch == "" && !r.upOnly {
		return look, fmt.Errorf("%w: the checkout is on no branch; say where the pull request goes with --base BRANCH", config.ErrInvalid)
	}
	if err := workspace.CheckBranch(cfg.GitHub.Base); err != nil && cfg.GitHub.Base != "" {
		return look, fmt.Errorf("%w: github.base: %w", config.ErrInvalid, err)
	}
	return look, nil
}

// checkTask refuses a task that could only fail after the work was paid for.
func (r *run) checkTask() error {
	task := r.req.Task
	switch {
	case strings.TrimSpace(task) == "":
		return ErrNoTask
	case !utf8.ValidString(task) || strings.ContainsRune(task, 0):
		return fmt.Errorf("%w: it is not plain UTF-8 text", ErrTask)
	case r.title() == "":
		return fmt.Errorf("%w: its first line has nothing to make a title of", ErrTask)
	}
	if found := secrets.NewScanner().Scan([]byte(task)); len(found) > 0 {
		return fmt.Errorf("%w: it holds what has the shape of a credential (%s), which would go to the model and into the record", ErrTask, found[0].Kind)
	}
	return nil
}

func (r *run) source() workspace.Source {
	return workspace.Source{Dir: r.req.Dir, Mode: workspace.ModeClone, Branch: r.branch(), Home: r.req.Home, AllowDirty: r.req.AllowDirty}
}

func (r *run) prepare(ctx context.Context) (string, error) {
	var err error
	r.work, err = workspace.Prepare(ctx, r.source(), workspaceDir(r.result.Dir))
	if err != nil {
		return "", err
	}
	for _, note := range r.work.Notes {
		r.log.Emit(events.Noted{Text: note})
	}
	return fmt.Sprintf("copy of %s at %.12s", r.work.Top, r.work.Base), nil
}

func (r *run) provision(ctx context.Context) (string, error) {
	if err := r.makePlan(ctx, r.work.Dir); err != nil {
		return "", err
	}
	for _, w := range r.plan.GitHub.Workspaces {
		if err := os.Mkdir(w.Path, 0o700); err != nil {
			return "", err
		}
	}
	r.log.Emit(events.Planned{Plan: r.plan})
	creds := provision.Credentials{Agent: r.agentToken, GitHub: r.githubToken}
	report, err := provision.Apply(ctx, r.engine.Unverified(), r.pair, r.plan, creds)
	for _, call := range report.Calls {
		r.log.Emit(call)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d engine calls", len(report.Calls)), nil
}

// makePlan computes the pair's plan for a workspace in dir.
func (r *run) makePlan(ctx context.Context, dir string) error {
	version, err := r.engine.Version(ctx)
	if err != nil {
		return err
	}
	in := provision.Input{
		Run: r.id, Engine: r.engineRef, Repo: r.repo, AgentEnv: r.adapter.Credential.Env,
		Workspace: sbx.Workspace{Path: dir}, Empty: filepath.Join(r.req.Store.Dir(r.id), "empty"),
	}.WithConfig(r.req.Config, version)
	r.plan, err = provision.New(in)
	return err
}

// Plan returns the plan of the pair that [Up] or [Run] would make for the checkout. It makes nothing and needs no
// credential; the run id in it is a fresh one.
func Plan(ctx context.Context, req Request) (provision.Plan, error) {
	r := &run{req: req, id: pair.NewRunID(time.Now()), upOnly: true}
	if err := r.lookup(); err != nil {
		return provision.Plan{}, err
	}
	look, err := r.checkout(ctx)
	if err != nil {
		return provision.Plan{}, err
	}
	if r.engine, r.engineRef, err = req.Locate(ctx); err != nil {
		return provision.Plan{}, err
	}
	err = r.makePlan(ctx, workspace.Folder(workspaceDir(req.Store.Dir(r.id)), look.Top))
	return r.plan, err
}

func (r *run) prove(ctx context.Context) (string, error) {
	proof, err := r.takeProof(ctx)
	r.proven = err == nil
	if err == nil && !r.upOnly {
		err = r.checkBase(ctx)
	}
	return fmt.Sprintf("%d answers as expected", len(proof.Probes)), err
}

// takeProof asks from inside both sandboxes whether the pair is as planned, and records the answers.
func (r *run) takeProof(ctx context.Context) (events.Proof, error) {
	proof, err := provision.Prove(ctx, r.pair, r.plan, r.agentToken, r.githubToken)
	r.log.Emit(proof)
	r.proofs++
	return proof, err
}

// checkBase makes sure, from the github sandbox and before any work is paid for, that the result could be delivered.
func (r *run) checkBase(ctx context.Context) error {
	client, repo, err := r.github()
	if err != nil {
		return err
	}
	defer client.Close()
	_, found, err := client.Branch(ctx, repo, r.baseBranch())
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w: %s has no branch %q to merge into; name one with --base", config.ErrInvalid, repo, r.baseBranch())
	}
	pushed, err := client.HasCommit(ctx, repo, r.work.Base)
	if err != nil {
		return err
	}
	if !pushed {
		return fmt.Errorf("%w: the checkout's commit %.12s is not on %s yet; push it first", config.ErrInvalid, r.work.Base, repo)
	}
	return nil
}

// receipt writes the run's summary beside its log, with the hash that closes the log's chain.
func (r *run) receipt() error {
	return writeReceipt(filepath.Join(r.result.Dir, "receipt.json"), r)
}

// blocked asks the engine which hosts the pair was refused, for the record. A failure to find out is noted, not fatal.
func (r *run) blocked(ctx context.Context) {
	if r.pair == nil || r.plan.Run == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	seen, err := r.engine.PolicyLog(ctx, "", 0)
	if err != nil {
		r.log.Emit(events.Noted{Text: "the engine's policy log could not be read: " + err.Error()})
		return
	}
	for _, e := range seen.Blocked {
		run, role, ours := pair.ParseName(e.Sandbox)
		count := e.Count - r.proofs*r.plan.Probed(role, e.Host)
		if !ours || run != r.id || count <= 0 {
			continue
		}
		b := events.Blocked{Role: string(role), Host: e.Host, Reason: e.Reason, Count: count}
		r.result.Blocked = append(r.result.Blocked, b)
		r.log.Emit(b)
	}
}

// openPrivate creates a file of the run that only its owner may read.
func openPrivate(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}
