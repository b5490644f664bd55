package loop

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// preflight checks what can be checked before anything is made.
func (r *run) preflight(ctx context.Context) error {
	if err := r.checkTask(); err != nil && !r.upOnly && r.req.Issue == 0 {
		return err
	}
	if err := r.preflightAgent(ctx); err != nil {
		return err
	}
	var err error
	if r.look, err = r.checkout(ctx); err != nil {
		return err
	}
	if r.engine, r.engineRef, err = r.req.Locate(ctx); err != nil {
		return err
	}
	return r.checkWay()
}

// checkWay refuses the one way that could not work. Docker's sbx replaces the placeholder of a custom secret as plain text, and
// in git's Basic credential it does not stand as plain text; only on github.com does sbx know what git needs (sbx 0.47).
func (r *run) checkWay() error {
	endpoint, err := github.ParseEndpoint(r.req.Config.GitHub.Host)
	if err != nil {
		return fmt.Errorf("%w: github.host: %w", config.ErrInvalid, err)
	}
	if r.engineRef.Kind == pair.EngineSbx && endpoint != github.DotCom() && r.req.Config.GitHub.Way == string(github.ViaGit) && !r.upOnly {
		hint := "set it to api"
		switch { // the run goes on under the configuration that it was started with
		case r.resumed:
			hint = "start it anew with api"
		case r.finishes != "":
			hint = "deliver it with sbx-local (--engine local)"
		}
		return fmt.Errorf("%w: github.way: git cannot push to %s through Docker's sbx, which puts tokens into git's requests on github.com alone; %s", config.ErrInvalid, endpoint.Host(), hint)
	}
	return nil
}

// preflightAgent checks the agent, what it is to go through, and both credentials.
func (r *run) preflightAgent(ctx context.Context) error {
	if err := r.lookup(); err != nil {
		return err
	}
	if err := r.checkPhases(); err != nil && !r.upOnly {
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
	return nil
}

// lookup finds the adapter of the configured agent.
func (r *run) lookup() error {
	name, ok := r.req.Config.Agent.Name, false
	if r.adapter, ok = agent.Lookup(name); !ok {
		return fmt.Errorf("%w: no agent %q; there are: %s", config.ErrInvalid, name, strings.Join(agent.Names(), ", "))
	}
	provider, err := r.req.Config.Agent.ModelProvider()
	if err != nil {
		return fmt.Errorf("%w: agent.provider: %w", config.ErrInvalid, err)
	}
	if r.provider = provider.Name; r.adapter.Name == "copilot" && r.provider != r.adapter.Credential.Provider && r.req.Config.Agent.Model == "" && !r.upOnly {
		return fmt.Errorf("%w: agent.model: Copilot with the models of %s has no default; name one", config.ErrInvalid, r.provider)
	}
	return nil
}

// checkPhases refuses phases and settings that the agent's CLI does not have, and limits that cannot be kept.
func (r *run) checkPhases() error {
	cfg := r.req.Config
	for _, p := range []events.Phase{events.PhasePlan, events.PhaseReview} {
		if r.configured(p) && !r.adapter.ReadOnly {
			return fmt.Errorf("%w: phases: %s needs a session that can only read, and %s cannot be held to that; use --phases execute,verify", config.ErrInvalid, p, r.adapter.Name)
		}
	}
	if cfg.Agent.Effort != "" && !r.adapter.Effort {
		return fmt.Errorf("%w: agent.effort: %s has no such setting; leave it out", config.ErrInvalid, r.adapter.Name)
	}
	var err error
	if r.prices, err = prices.Load(cfg.Prices); err != nil {
		return fmt.Errorf("%w: prices: %w", config.ErrInvalid, err)
	}
	if cfg.Limits.Cost > 0 && cfg.Agent.Model != "" {
		if _, known := r.prices.Cost(cfg.Agent.Model, prices.Tokens{}); !known {
			return fmt.Errorf("%w: limits.cost cannot be held: there is no price for %s in the table %s; add one (prices)", config.ErrInvalid, cfg.Agent.Model, r.prices.Version)
		}
	}
	return nil
}

// checkout looks at the user's checkout without changing anything, and settles which repository the run is about.
func (r *run) checkout(ctx context.Context) (workspace.Checkout, error) {
	cfg := r.req.Config
	source := r.source()
	edits, err := r.edits()
	if err != nil {
		return workspace.Checkout{}, fmt.Errorf("%w: workspace: %w", config.ErrInvalid, err)
	}
	source.Edits = edits
	look, err := workspace.Inspect(ctx, source)
	if err != nil {
		return look, err
	}
	if look.Top != "" && inside(look.Top, r.req.Store.Dir(r.id)) {
		return look, fmt.Errorf("%w: the state folder %s is inside the checkout; move it with XDG_STATE_HOME", config.ErrInvalid, r.req.Store.Dir(r.id))
	}
	if err := r.choose(look.Origin.Slug()); err != nil {
		return look, err
	}
	if cfg.GitHub.Base == "" && look.BaseBranch == "" && !r.upOnly && r.deliverable() {
		return look, fmt.Errorf("%w: the checkout is on no branch; say where the pull request goes with --base BRANCH", config.ErrInvalid)
	}
	if err := workspace.CheckBranch(cfg.GitHub.Base); err != nil && cfg.GitHub.Base != "" {
		return look, fmt.Errorf("%w: github.base: %w", config.ErrInvalid, err)
	}
	return look, nil
}

// choose settles which repository the run is about: the configured one, else the checkout's origin.
func (r *run) choose(origin string) error {
	if r.repo = r.req.Config.GitHub.Repo; r.repo == "" {
		r.repo = origin
	}
	if r.repo == "" {
		return fmt.Errorf("%w: no repository is given, and the checkout's origin is not one on GitHub; use --repo OWNER/NAME", config.ErrInvalid)
	}
	if _, err := github.ParseRepo(r.repo); err != nil {
		return fmt.Errorf("%w: %w", config.ErrInvalid, err)
	}
	return nil
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
