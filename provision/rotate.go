package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// ErrExpired matches the error for a credential that was good when the pair was made and is refused now: it expired, or
// was taken back. Such errors match [ErrCredential] too. What was done before stands.
var ErrExpired = fmt.Errorf("%w: expired or revoked since the pair was made", ErrCredential)

// ErrStale matches the error for a credential that the engine has taken and whose sandbox does not get by with it.
var ErrStale = errors.New("the new credential does not reach its host")

// RotateEngine is what changing credentials needs of an engine's client. Each change is read back.
type RotateEngine interface {
	SecretEngine
	SecretList(ctx context.Context) ([]sbx.Secret, error)
	SecretRemove(ctx context.Context, s sbx.Secret) error
}

// Rebind gives both credentials to a pair in place once more, where an engine has lost them (docker/sbx-releases#268). What
// somebody replaced or removed since the pair was made stays as they want it.
func (g Changes) Rebind(ctx context.Context, engine SecretEngine, p *pair.Pair, plan Plan, creds Credentials) error {
	return g.inTurn(ctx, func() error {
		list, err := g.Events()
		if err != nil {
			return err
		}
		var steps []func(context.Context) error
		for _, s := range plan.Specs() {
			if !slices.ContainsFunc(list, func(e events.Payload) bool { r, is := e.(events.Rotated); return is && r.Role == string(s.Role) }) {
				steps = append(steps, func(ctx context.Context) error { return bind(ctx, engine, p, s, creds.of(s.Role)) })
			}
		}
		return both(ctx, steps...)
	})
}

// Rotate replaces a role's credential in a pair in place and proves from inside that the new one is in use. The record of
// changes gets the outcome. The error matches [ErrStale] if the host refuses what the sandbox sends now: that an engine
// says it has taken a value does not mean that a running sandbox uses it (docker/sbx-releases#477).
func (g Changes) Rotate(ctx context.Context, engine RotateEngine, p *pair.Pair, plan Plan, role pair.Role, value secrets.Value) (done events.Rotated, err error) {
	err = g.inTurn(ctx, func() error { done, err = g.rotate(ctx, engine, p, plan, role, value); return err })
	return done, err
}

func (g Changes) rotate(ctx context.Context, engine RotateEngine, p *pair.Pair, plan Plan, role pair.Role, value secrets.Value) (events.Rotated, error) {
	s, box := plan.side(p, role)
	if err := bind(ctx, engine, p, s, value); err != nil {
		return events.Rotated{}, fmt.Errorf("rotate the %s sandbox's credential: %w", role, err)
	}
	got, err := settled(ctx, box, s, func(word string) bool { return word == string(wantAccepted) })
	done := events.Rotated{Role: string(role), Check: s.Secret.Check, Got: got}
	if err == nil && got != string(wantAccepted) && s.Secret.Check != "" {
		err = fmt.Errorf("%w: the engine has stored it, and %s answers %s to the %s sandbox: the new token is no good, or the running sandbox goes on with the old one; check the token, else make a new pair",
			ErrStale, s.Secret.Check, got, role)
	}
	return done, errors.Join(err, g.note(done))
}

// Withdraw takes a role's credential out of a pair in place and proves from inside that its host refuses the sandbox now.
// A global secret that would show again is kept out by a worthless one. The error matches [ErrNotProven] if the host
// still takes what the sandbox sends.
func (g Changes) Withdraw(ctx context.Context, engine RotateEngine, p *pair.Pair, plan Plan, role pair.Role) (done events.Rotated, err error) {
	err = g.inTurn(ctx, func() error { done, err = g.withdraw(ctx, engine, p, plan, role); return err })
	return done, err
}

func (g Changes) withdraw(ctx context.Context, engine RotateEngine, p *pair.Pair, plan Plan, role pair.Role) (events.Rotated, error) {
	s, box := plan.side(p, role)
	if err := withdraw(ctx, engine, p, s); err != nil {
		return events.Rotated{}, fmt.Errorf("withdraw the %s sandbox's credential: %w", role, err)
	}
	got, err := settled(ctx, box, s, func(word string) bool { return word != string(wantAccepted) })
	done := events.Rotated{Role: string(role), Removed: true, Check: s.Secret.Check, Got: got}
	if err == nil && got == string(wantAccepted) {
		err = fmt.Errorf("%w: %s still takes what the %s sandbox sends; take the pair down", ErrNotProven, s.Secret.Check, role)
	}
	return done, errors.Join(err, g.note(done))
}

func withdraw(ctx context.Context, engine RotateEngine, p *pair.Pair, s Spec) error {
	switch s.Secret.Strategy {
	case PlainEnv:
		// An empty file: what is started from now on has an empty variable.
		return putInside(ctx, p, s, secrets.Value{})
	case Custom:
		if err := engine.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretCustom, Sandbox: s.Name, Env: s.Secret.Env, Placeholder: s.Secret.Placeholder}); err != nil {
			return err
		}
		if err := os.Remove(p.CredentialFile(s.Role)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	listed, err := engine.SecretList(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(listed, func(o sbx.Secret) bool {
		return o.Global() && o.Type == sbx.SecretService && o.Name == s.Secret.Service
	}) {
		return engine.SecretSet(ctx, sbx.ServiceSecret{Service: s.Secret.Service, Sandbox: s.Name, Value: shadow()})
	}
	return engine.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretService, Sandbox: s.Name, Name: s.Secret.Service})
}

// Accepts asks from inside whether the role's own host takes its credential. Where nothing can be asked it says yes.
func Accepts(ctx context.Context, p *pair.Pair, plan Plan, role pair.Role) (bool, error) {
	s, box := plan.side(p, role)
	word, err := settled(ctx, box, s, func(string) bool { return true })
	return word == string(wantAccepted) || s.Secret.Check == "", err
}

// side is one role's half of a pair.
func (p Plan) side(of *pair.Pair, role pair.Role) (Spec, *pair.Sandbox) {
	if role == pair.RoleGitHub {
		return p.GitHub, of.GitHub
	}
	return p.Agent, of.Agent
}

// settled asks the own host until the answer is a wanted one, a few times: an engine's proxy may take a moment.
func settled(ctx context.Context, box *pair.Sandbox, s Spec, want func(string) bool) (word string, err error) {
	if s.Secret.Check == "" {
		return "not asked: nothing can be asked without cost", nil
	}
	ask := question{name: ownCredential, url: s.Secret.Check, want: wantAccepted}
	for try := range settleTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return word, ctx.Err()
			case <-time.After(settlePause):
			}
		}
		t, err := (&inquiry{box: box, spec: s}).run(ctx, []question{ask})
		if err != nil {
			return "", err
		}
		if word = strings.TrimSpace(answerOf(t.answers, ask).word(wantAccepted)); want(word) {
			break
		}
	}
	return word, nil
}

// How often and how far apart a host is asked whether a change has arrived.
const (
	settleTries = 3
	settlePause = time.Second
)
