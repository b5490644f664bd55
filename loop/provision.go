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
	if err := r.makePlan(ctx, r.state.Workspace.Dir); err != nil {
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
	version, err := r.engine.Version(ctx)
	if err != nil {
		return err
	}
	in := provision.Input{
		Run: r.id, Engine: r.engineRef, Repo: r.repo, AgentEnv: r.adapter.KeyEnv(r.provider), Gateway: r.way(),
		Workspace: sbx.Workspace{Path: dir}, Empty: filepath.Join(r.req.Store.Dir(r.id), "empty"),
	}.WithConfig(r.req.Config, version)
	r.plan, err = provision.New(in)
	if err == nil {
		r.result.Strategies = map[pair.Role]provision.Strategy{pair.RoleAgent: r.plan.Agent.Secret.Strategy, pair.RoleGitHub: r.plan.GitHub.Secret.Strategy}
	}
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
