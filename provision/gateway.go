package provision

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/gateway"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/secrets"
)

// Through says that an agent reaches its model by way of a gateway on the host.
type Through struct {
	Port int    // on the host's loopback
	URL  string // base address of the provider's API, as the sandbox sees it
}

// A Gateway is the model gateway of one run.
type Gateway struct {
	*gateway.Gateway
	Through
	Provider string
	Key      secrets.Value // the run's own, which takes the place of the provider's, once it is admitted

	grant gateway.Grant // of any run, but for its id
}

// OpenGateway starts the gateway that the configuration asks for, on this host. It serves nobody yet: see [Gateway.Admit]. key
// is the provider's, which goes no further. ledger is used where the configuration names none; proxy may be nil. Close it when
// the run is over. The error matches [config.ErrInvalid], or [gateway.ErrLedger].
func OpenGateway(ctx context.Context, c config.Config, key secrets.Value, ledger string, proxy func(*http.Request) (*url.URL, error)) (*Gateway, error) {
	provider, err := c.Agent.ModelProvider()
	if err != nil {
		return nil, fmt.Errorf("%w: agent.provider: %w", config.ErrInvalid, err)
	}
	if c.Gateway.Ledger != "" {
		ledger = c.Gateway.Ledger
	}
	book, err := gateway.OpenLedger(ledger)
	if err != nil {
		return nil, err
	}
	table, err := prices.Load(c.Prices)
	if err != nil {
		return nil, fmt.Errorf("%w: prices: %w", config.ErrInvalid, err)
	}
	api := gateway.API(provider.Name)
	g, err := gateway.Serve(ctx, gateway.Options{
		Upstreams: map[gateway.API]gateway.Upstream{api: {URL: c.Gateway.Upstream, Key: key}},
		Prices:    table, Ledger: book, Batch: c.Gateway.Batch, Proxy: proxy,
		BatchCaps: gateway.Caps{Tokens: int64(c.Gateway.BatchTokens), USD: c.Gateway.BatchCost},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: gateway: %w", config.ErrInvalid, err)
	}
	return &Gateway{Gateway: g, Through: Through{Port: g.Port()}, Provider: provider.Name, grant: gateway.Grant{
		APIs: []gateway.API{api}, Models: c.Gateway.Models, Caps: gateway.Caps{Tokens: int64(c.Limits.Tokens), USD: c.Limits.Cost},
	}}, nil
}

// Admit makes the run known to the gateway: from then on it has a key of its own, and an address.
func (g *Gateway) Admit(run pair.RunID) error {
	grant := g.grant
	grant.Run = string(run)
	access, err := g.Register(grant, policy.HostAlias)
	if err != nil {
		return err
	}
	g.Key, g.URL = access.Key, access.URLs[grant.APIs[0]]
	return nil
}
