package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/secrets"
)

const tokensRemedy = "sbxpair config show; docs/how-to/tokens.md"

// tokens looks at both credentials by themselves, so that one finding does not hide the other.
func (e *examination) tokens(ctx context.Context) {
	agentOK := e.token(ctx, "token.agent", e.Config.Agent.Token, "the agent's token", &e.creds.Agent, func(v secrets.Value, what string) error {
		provider, err := e.Config.Agent.ModelProvider()
		if err != nil {
			return err
		}
		return provider.CheckToken(v, what)
	})
	githubOK := e.token(ctx, "token.github", e.Config.GitHub.Token, "the GitHub token", &e.creds.GitHub, secrets.CheckToken)
	e.fit = agentOK && githubOK
	switch {
	case e.creds.Agent.IsZero() || e.creds.GitHub.IsZero():
		e.add(Check{ID: "token.pair", Verdict: Unknown, Detail: "could not check: one of them is missing"})
	case e.creds.Agent.Equal(e.creds.GitHub):
		e.fit = false
		e.add(Check{ID: "token.pair", Verdict: Bad, Remedy: tokensRemedy, Detail: fmt.Sprintf(
			"%s and %s hold the same token; a pair needs two: one for the model only, one for the repository only", e.Config.Agent.Token, e.Config.GitHub.Token)})
	default:
		e.add(Check{ID: "token.pair", Verdict: OK, Detail: "they differ"})
	}
}

func (e *examination) token(ctx context.Context, id string, source secrets.Source, what string, into *secrets.Value, check func(secrets.Value, string) error) bool {
	usable := false
	e.ask(ctx, id, func(ctx context.Context) (Check, error) {
		value, err := source.Resolve(ctx, e.Lookup)
		if err == nil {
			err = check(value, what+" ("+source.String()+")")
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return Check{}, err
		case err != nil:
			c := Check{Verdict: Bad, Detail: oneLine(err.Error()), Remedy: tokensRemedy}
			if file, open := openToOthers(source); open {
				c.Remedy = "chmod 600 '" + file + "'"
				c.Fix = e.fix(Fix{ID: id, What: "make " + file + " readable by you alone (chmod 600)", do: func(context.Context, Options) error { return os.Chmod(file, 0o600) }})
			}
			return c, nil
		}
		*into, usable = value, true
		kind := secrets.Classify(value)
		c := Check{Verdict: OK, Detail: fmt.Sprintf("from %s; kind: %s", source, kind)}
		if kind == secrets.KindClassic {
			c.Verdict, c.Remedy = Warn, "make a fine-grained token for the one repository: docs/how-to/tokens.md"
			c.Detail += ", which reaches every repository of its owner"
		}
		if _, known := agent.Lookup(e.Config.Agent.Name); !known && id == "token.agent" {
			c.Detail += fmt.Sprintf("; no agent is called %q", e.Config.Agent.Name)
			c.Verdict, usable = Bad, false
		}
		return c, nil
	})
	return usable
}

// openToOthers reports whether the token comes from a file of ours that others can read: the one defect of a token that
// can be mended without knowing a better token.
func openToOthers(source secrets.Source) (string, bool) {
	if source.File == "" || runtime.GOOS == "windows" {
		return "", false
	}
	info, err := os.Stat(source.File)
	if errors.Is(err, os.ErrNotExist) || err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	return source.File, info.Mode().Perm()&0o077 != 0
}
