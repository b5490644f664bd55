package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sbxpair/sbxpair/secrets"
)

// Credentials are the two values of a pair.
type Credentials struct {
	Agent  secrets.Value // for the model only
	GitHub secrets.Value // for the repository only
}

// ResolveCredentials fetches both values and checks by their shape that they can work: the agent's with provider. lookup
// reads the environment.
// The error matches [secrets.ErrMissing] or [secrets.ErrUnfit] and says for each credential what is wrong.
func ResolveCredentials(ctx context.Context, provider secrets.Provider, agent, github secrets.Source, lookup func(string) (string, bool)) (Credentials, error) {
	var c Credentials
	var agentErr, githubErr error
	var wg sync.WaitGroup
	wg.Go(func() { c.Agent, agentErr = agent.Resolve(ctx, lookup) })
	wg.Go(func() { c.GitHub, githubErr = github.Resolve(ctx, lookup) })
	wg.Wait()
	if agentErr == nil {
		agentErr = provider.CheckToken(c.Agent, "the agent's token ("+agent.String()+")")
	}
	if githubErr == nil {
		githubErr = secrets.CheckToken(c.GitHub, "the GitHub token ("+github.String()+")")
	}
	if err := errors.Join(wrap("agent", agentErr), wrap("github", githubErr)); err != nil {
		return Credentials{}, err
	}
	if c.Agent.Equal(c.GitHub) {
		return Credentials{}, Same(agent, github)
	}
	return c, nil
}

// Same is the error for two sources that hold one token. It matches [secrets.ErrUnfit].
func Same(a, b secrets.Source) error {
	return fmt.Errorf("%w: %s and %s hold the same token; a pair needs two: one for the model only, one for the repository only", secrets.ErrUnfit, a, b)
}

func wrap(role string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s credential: %w", role, err)
}
