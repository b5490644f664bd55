package loop

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/secrets"
)

// openGateway starts the model gateway, if one is configured.
func (r *run) openGateway(ctx context.Context) error {
	cfg := r.req.Config
	if !cfg.Gateway.Enabled {
		return nil
	}
	if r.upOnly || r.req.Keep {
		return fmt.Errorf("%w: gateway.enabled: the gateway ends with this command, and a pair that stays would have no model; leave out --keep, or the gateway", config.ErrInvalid)
	}
	// Not the run's context: the calls of a session that is being ended are counted to their end.
	g, err := provision.OpenGateway(context.WithoutCancel(ctx), cfg, r.agentToken, ledger(r.req.Store.Dir(r.id)), r.req.Proxy)
	if err != nil {
		return err
	}
	r.gateway = g
	return nil
}

// admit makes the run, whose id is settled, known to its gateway. From then on the key that it has there is the agent's credential,
// and the provider's stays here.
func (r *run) admit() error {
	if r.gateway == nil {
		return nil
	}
	if err := r.gateway.Admit(r.id); err != nil {
		return err
	}
	r.redact = secrets.NewRedactor(r.agentToken, r.githubToken, r.gateway.Key)
	r.agentToken = r.gateway.Key
	return nil
}

// ledger is where calls are written down if the configuration names no file: beside the folder of runs.
func ledger(run string) string { return filepath.Join(filepath.Dir(filepath.Dir(run)), "ledger.jsonl") }

func (r *run) closeGateway(ctx context.Context) error {
	if r.gateway == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return r.gateway.Close(ctx)
}

// capped says which cap of the run or its batch the gateway has stopped the agent at, or nothing.
func (r *run) capped() string {
	if r.gateway == nil {
		return ""
	}
	_, why, _ := r.gateway.Spent(string(r.id)) // a ledger that cannot be read stops calls by itself
	return why
}

// counted puts the gateway's count in the place of the CLI's.
func (r *run) counted(sum *events.Spent) {
	if r.gateway == nil {
		return
	}
	if spent, _, err := r.gateway.Spent(string(r.id)); err == nil {
		sum.Input, sum.Cached, sum.Output, sum.CostUSD, sum.Unpriced = spent.Input, spent.Cached, spent.Output, spent.USD, spent.Unpriced
	}
}

// way is how the plan lets the agent reach its model.
func (r *run) way() *provision.Through {
	if r.gateway == nil {
		return nil
	}
	return &r.gateway.Through
}

// endpoint points the agent's CLI at what is not its own provider: the gateway, or, for Copilot, another provider's models.
func (r *run) endpoint() *agent.Endpoint {
	switch {
	case r.gateway != nil:
		return &agent.Endpoint{Provider: r.gateway.Provider, URL: r.gateway.URL}
	case r.adapter.Name == "copilot":
		return agent.ProviderEndpoint(r.provider)
	}
	return nil
}
