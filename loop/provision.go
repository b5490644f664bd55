package loop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/workspace"
)

func (r *run) provision(ctx context.Context) (string, error) {
	mount := r.state.Workspace.Dir
	if r.pair.Booted {
		mount = provision.Mount(r.req.Store, r.id)
	}
	if err := r.makePlan(ctx, mount); err != nil {
		return "", err
	}
	for _, w := range r.plan.GitHub.Workspaces {
		if err := os.MkdirAll(w.Path, 0o700); err != nil {
			return "", err
		}
	}
	r.log.Emit(events.Planned{Plan: r.plan})
	creds := provision.Credentials{Agent: r.agentToken, GitHub: r.githubToken}
	report, err := provision.Apply(ctx, r.engine.Unverified(), r.pair, r.plan, creds)
	for _, call := range report.Calls {
		r.log.Emit(call)
	}
	for _, note := range report.Notes {
		r.log.Emit(events.Noted{Text: note})
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d engine calls", len(report.Calls)), nil
}

// makePlan computes the pair's plan for a workspace in dir.
func (r *run) makePlan(ctx context.Context, dir string) error {
	in, err := r.input(ctx)
	if err != nil {
		return err
	}
	in.Workspace = sbx.Workspace{Path: dir}
	if r.finishes != "" {
		in.Only = pair.RoleGitHub
	}
	r.plan, err = provision.New(in)
	if err == nil {
		r.result.Strategies = map[pair.Role]provision.Strategy{pair.RoleAgent: r.plan.Agent.Secret.Strategy, pair.RoleGitHub: r.plan.GitHub.Secret.Strategy}
	}
	return err
}

// input is what the plan follows from, but for the workspace.
func (r *run) input(ctx context.Context) (provision.Input, error) {
	version, err := r.engine.Version(ctx)
	if err != nil {
		return provision.Input{}, err
	}
	issues := provision.Use("")
	if r.req.Issue > 0 && r.finishes == "" {
		issues = provision.Needed
	}
	return provision.Input{
		Issues: issues, Hands: r.upOnly, Run: r.id, Engine: r.engineRef, Repo: r.repo, AgentEnv: r.adapter.KeyEnv(r.provider), Gateway: r.way(),
		Empty: filepath.Join(r.req.Store.Dir(r.id), "empty"),
	}.WithConfig(r.req.Config, version), nil
}

// acquire takes the lease: of a pair from the pool, whose id then is the run's, or of one that is still to be made.
func (r *run) acquire(ctx context.Context) error {
	lease := pair.Lease{
		Run: r.id, Created: r.started.UTC(), Owner: pair.Self(), Engine: r.engineRef, Repository: r.repo, Host: r.req.Config.GitHub.Host,
	}
	lease.MemoryMiB = provision.PairMemoryMiB(r.engineRef, r.req.Config.Sandbox.MemoryMiB)
	claimed, err := r.claim(ctx, lease)
	if err != nil || claimed {
		return err
	}
	cfg := r.req.Config
	pool, err := r.pool(ctx)
	if err != nil {
		return err
	}
	admission := pair.Admission{Need: lease.MemoryMiB, Budget: r.memory(), Wait: time.Duration(cfg.Limits.Queue), Yield: pool.Yield, Waiting: func(q pair.Queue) {
		if r.req.Sink != nil { // the run has no record yet
			r.req.Sink(events.Noted{Text: "waiting for memory: " + q.String()})
		}
	}}
	return r.req.Store.Admit(ctx, admission, func() (err error) {
		r.pair, err = pair.Acquire(r.engine.Unverified(), r.req.Store, lease)
		return err
	})
}

// memory is how much of the host's is for all pairs, in MiB.
func (r *run) memory() int {
	if own := r.req.Config.Limits.MemoryMiB; own > 0 {
		return own
	}
	return pair.HostMemoryMiB() * 4 / 5
}

func (r *run) claim(ctx context.Context, lease pair.Lease) (bool, error) {
	if r.req.Config.Pool.Size == 0 || r.finishes != "" { // a delivery needs no agent's sandbox
		return false, nil
	}
	pool, err := r.pool(ctx)
	if err != nil {
		return false, err
	}
	p, err := pool.Claim(lease)
	if err == nil && p == nil {
		r.early = append(r.early, events.Noted{Text: "no pair that fits waits in the pool: one is made"})
	}
	if err != nil || p == nil {
		return false, err
	}
	r.pair, r.id = p, p.Run
	r.named()
	if r.look, err = r.look.OnBranch(r.branch()); err == nil {
		err = p.WorkIn(workspace.Folder(workspaceDir(r.result.Dir), r.look.Top))
	}
	return true, err
}

// pool is the pool of pairs that fit the run's configuration.
func (r *run) pool(ctx context.Context) (provision.Pool, error) {
	in, err := r.input(ctx)
	if r.req.Config.Gateway.Enabled { // also where none is open, as while the pool is filled
		in.Gateway = new(provision.Through)
	}
	return provision.Pool{
		Engine: r.engine.Unverified(), Store: r.req.Store, Ref: r.engineRef, For: in,
		Size: r.req.Config.Pool.Size, MaxAge: time.Duration(r.req.Config.Pool.MaxAge), Budget: r.memory(),
	}, err
}

// Pool returns the pool of pairs that [Run] and [Up] claim from with this configuration. It needs neither a checkout nor a
// credential.
func Pool(ctx context.Context, req Request) (provision.Pool, error) {
	r := &run{req: req, id: pair.NewRunID(time.Now()), upOnly: true}
	if err := r.lookup(); err != nil {
		return provision.Pool{}, err
	}
	var err error
	if r.engine, r.engineRef, err = req.Locate(ctx); err != nil {
		return provision.Pool{}, err
	}
	return r.pool(ctx)
}

// Plan returns the plan of the pair that [Up] or [Run] would make for the checkout. It makes nothing and needs no
// credential; the run id in it is a fresh one.
func Plan(ctx context.Context, req Request) (provision.Plan, error) {
	return planned(ctx, req, func(r *run) (string, error) {
		look, err := r.checkout(ctx)
		return look.Top, err
	})
}

// Rules is [Plan] for who asks about its rules alone: a configuration that names the repository needs no checkout, and where the
// agent's folder would be is of no account.
func Rules(ctx context.Context, req Request) (provision.Plan, error) {
	return planned(ctx, req, func(r *run) (string, error) { return r.repo, r.settle(ctx) })
}

func planned(ctx context.Context, req Request, settle func(*run) (top string, err error)) (provision.Plan, error) {
	r := &run{req: req, id: pair.NewRunID(time.Now()), upOnly: true}
	if err := r.lookup(); err != nil {
		return provision.Plan{}, err
	}
	top, err := settle(r)
	if err != nil {
		return provision.Plan{}, err
	}
	if r.engine, r.engineRef, err = req.Locate(ctx); err != nil {
		return provision.Plan{}, err
	}
	err = r.makePlan(ctx, workspace.Folder(workspaceDir(req.Store.Dir(r.id)), top))
	return r.plan, err
}
