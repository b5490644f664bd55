package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// checkSecrets reads the engine's secrets back: all of ours are there, and global ones are kept out of both sandboxes, or refused.
func (a *apply) checkSecrets(ctx context.Context, want []sbx.Secret) error {
	var listed []sbx.Secret
	err := a.call("secret ls", func() (err error) { listed, err = a.engine.SecretList(ctx); return err })
	if err == nil {
		err = sbx.CheckSecrets(listed, want...)
	}
	if err == nil {
		err = a.globals(listed)
	}
	if err != nil || len(a.shadowed) == 0 {
		return err
	}
	var steps []func(context.Context) error
	for _, spec := range a.plan.Specs() {
		want = append(want, spec.listedSecrets(a.shadowed)...)
		steps = append(steps, func(ctx context.Context) error { return a.shadows(ctx, spec) })
	}
	if err := both(ctx, steps...); err != nil {
		return err
	}
	return a.call("secret ls", func() error { return a.engine.VerifySecrets(ctx, want...) })
}

// globals looks for global secrets, which the engine puts into every sandbox. A service is neutralised: the spec's own
// scoped secret stands in its place, or a worthless one that is made for that. What cannot be is refused by name.
func (a *apply) globals(listed []sbx.Secret) error {
	for _, s := range listed {
		switch {
		case !s.Global(), s.Type == sbx.SecretRegistry: // a registry's is for pulling images, on the host
		case s.Type != sbx.SecretService:
			return fmt.Errorf("%w: the engine has a global secret (custom %s), which it would offer to both sandboxes; remove it, or scope it to the sandboxes that need it", ErrRefused, s.Env)
		case a.plan.Agent.Secret.Strategy == PlainEnv:
			// Whatever stood in its place, the engine would write it over the value that the agent itself sends.
			return fmt.Errorf("%w: the engine has a global secret (service %s), which goes over what the agent sends under agent.strategy plain-env; remove it, or use another strategy", ErrRefused, s.Name)
		case !slices.Contains(a.shadowed, s.Name):
			a.shadowed = append(a.shadowed, s.Name)
		}
	}
	for _, name := range a.shadowed {
		for _, spec := range a.plan.Specs() {
			if spec.Secret.Service != name {
				a.note(fmt.Sprintf("the global secret for %s is kept from the %s sandbox by a worthless one in its place", name, spec.Role))
			}
		}
	}
	return nil
}

// shadow is what stands in the place of a global secret: no host takes it.
func shadow() secrets.Value { return secrets.New("sbxpair-keeps-the-global-one-out") }

// listedSecrets are the secrets of a spec as the engine lists them.
func (s Spec) listedSecrets(shadowed []string) []sbx.Secret {
	var want []sbx.Secret
	switch s.Secret.Strategy {
	case Service:
		want = append(want, sbx.Secret{Type: sbx.SecretService, Sandbox: s.Name, Name: s.Secret.Service})
	case Custom:
		want = append(want, sbx.Secret{Type: sbx.SecretCustom, Sandbox: s.Name, Env: s.Secret.Env, Placeholder: s.Secret.Placeholder, Hosts: s.Secret.Hosts})
	}
	for _, name := range shadowed {
		if name != s.Secret.Service {
			want = append(want, sbx.Secret{Type: sbx.SecretService, Sandbox: s.Name, Name: name})
		}
	}
	return want
}

// credential gives one sandbox its own.
func (a *apply) credential(ctx context.Context, s Spec, value secrets.Value) error {
	op := "secret set " + string(s.Role)
	if s.Secret.Strategy == PlainEnv {
		op = "exec " + string(s.Role)
	}
	if err := a.call(op, func() error { return bind(ctx, a.engine, a.pair, s, value) }); err != nil {
		return fmt.Errorf("secret of the %s sandbox: %w", s.Role, err)
	}
	return nil
}

// shadows keeps global secrets out of one sandbox.
func (a *apply) shadows(ctx context.Context, s Spec) error {
	var steps []func(context.Context) error
	for _, name := range a.shadowed {
		if name != s.Secret.Service {
			steps = append(steps, func(ctx context.Context) error {
				return a.call("secret set "+string(s.Role), func() error {
					return a.engine.SecretSet(ctx, sbx.ServiceSecret{Service: name, Sandbox: s.Name, Value: shadow()})
				})
			})
		}
	}
	if err := both(ctx, steps...); err != nil {
		return fmt.Errorf("secret of the %s sandbox: %w", s.Role, err)
	}
	return nil
}

// SecretEngine is what binding a credential needs of an engine's client.
type SecretEngine interface {
	SecretSet(ctx context.Context, s sbx.ServiceSecret) error
	SecretSetCustom(ctx context.Context, s sbx.CustomSecret) (string, error)
}

// bind gives the value to one sandbox by the spec's strategy, or replaces the one that it has.
func bind(ctx context.Context, engine SecretEngine, p *pair.Pair, s Spec, value secrets.Value) error {
	switch s.Secret.Strategy {
	case Service:
		return engine.SecretSet(ctx, sbx.ServiceSecret{Service: s.Secret.Service, Sandbox: s.Name, Value: value})
	case PlainEnv:
		return putInside(ctx, p, s, value)
	}
	path := p.CredentialFile(s.Role)
	if strings.ContainsAny(path, "'\\\n") {
		return fmt.Errorf("%w: the state folder's path holds a quote, a backslash or a line end, which a command line of the engine cannot carry: %s", ErrRefused, path)
	}
	if err := writePrivate(path, value); err != nil {
		return err
	}
	_, err := engine.SecretSetCustom(ctx, sbx.CustomSecret{
		Sandbox: s.Name, Env: s.Secret.Env, Placeholder: s.Secret.Placeholder, Hosts: s.Secret.Hosts,
		Command: "/bin/cat '" + path + "'",
	})
	return err
}

// putInside writes the value into a file of the sandbox that only its user may read.
func putInside(ctx context.Context, p *pair.Pair, s Spec, value secrets.Value) error {
	box := p.Agent
	if s.Role == pair.RoleGitHub {
		box = p.GitHub
	}
	res, err := box.Exec(ctx, sbx.ExecSpec{
		Argv:  []string{"sh", "-c", `umask 077; mkdir -p "$(dirname "$1")" && cat >"$1.new" && mv -f "$1.new" "$1"`, "sh", plainFile},
		Stdin: value.Reader(), Redact: []secrets.Value{value},
	})
	if err == nil && res.Code != 0 {
		err = fmt.Errorf("%w: the credential could not be written into %s (exit %d): %s", ErrNotProven, box.Name, res.Code, strings.TrimSpace(string(res.Stderr)))
	}
	return err
}

// writePrivate puts a credential into a file that only its owner may read: whole or not at all, over an earlier one. What
// is half written has a name that the release knows.
func writePrivate(path string, value secrets.Value) error {
	half := path + pair.NewCredential
	if err := os.Remove(half); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write credential file: %w", err)
	}
	file, err := os.OpenFile(half, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write credential file: %w", err)
	}
	_, err = file.WriteString(value.Reveal())
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(half, path)
	}
	if err != nil {
		return fmt.Errorf("write credential file: %w", err)
	}
	return nil
}
