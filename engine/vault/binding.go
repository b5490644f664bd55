package vault

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// A Binding ties a credential to hosts for one sandbox. The zero Binding is tied to none.
type Binding struct {
	Name        string // for logs: "service github", "custom DEMO_API_KEY"
	Service     string // service name; "" for a custom secret
	Placeholder string // text that stands for a custom secret; "" for a service
	Env         string // variable that is preset with the placeholder; may be empty
	Hosts       []policy.Resource

	service Service
	fetch   func(context.Context) (secrets.Value, error)
}

// Covers reports whether the credential may go to host and port.
func (b Binding) Covers(h policy.Host, port uint16) bool {
	return slices.ContainsFunc(b.Hosts, func(r policy.Resource) bool { return r.Covers(h, port) })
}

// Style returns how a service's credential is written on host. It means nothing for a custom secret.
func (b Binding) Style(h policy.Host) Style { return b.service.Style(h) }

// Value returns the credential. For one that a command or the keyring has it may wait, at most ten seconds; the error
// then matches [ErrCommand] or [ErrKeyring].
func (b Binding) Value(ctx context.Context) (secrets.Value, error) {
	if b.fetch == nil {
		return secrets.Value{}, fmt.Errorf("%w: %s has no value", ErrInvalid, b.Name)
	}
	return b.fetch(ctx)
}

// Bindings returns what holds for a sandbox: its own secrets, and the global ones that none of its own shadows. A
// service of its own shadows the global one of that name; a custom one shadows by variable or placeholder. With ""
// only the global ones. Do not change what is returned: it is shared until a secret changes.
func (s *Store) Bindings(sandbox string) ([]Binding, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.renew(d)
	bindings, ok := s.bound[sandbox]
	s.mu.Unlock()
	if ok {
		return bindings, nil
	}
	if bindings, err = s.bindings(d, sandbox); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == d {
		s.bound[sandbox] = bindings
	}
	return bindings, nil
}

// renew forgets what was made of another document; the caller holds the mutex.
func (s *Store) renew(d *document) {
	if s.from == d {
		return
	}
	s.from, s.bound, s.texts = d, map[string][]Binding{}, nil
	for _, row := range d.Custom {
		s.texts = append(s.texts, row.Placeholder)
	}
}

// Placeholders returns the texts that stand for custom secrets, whoever they belong to. Do not change what is returned.
func (s *Store) Placeholders() ([]string, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renew(d)
	return s.texts, nil
}

func (s *Store) bindings(d *document, sandbox string) ([]Binding, error) {
	var out []Binding
	for _, row := range d.Services {
		own := row.Scope == sandbox
		shadowed := slices.ContainsFunc(d.Services, func(o storedService) bool {
			return sandbox != "" && o.Scope == sandbox && o.Service == row.Service
		})
		if !own && (row.Scope != "" || shadowed) {
			continue
		}
		b := Binding{Name: "service " + row.Service, Service: row.Service, fetch: s.fetcher(row.storedValue)}
		if svc, ok := LookupService(row.Service); ok {
			b.service, b.Env = svc, svc.Env[0]
			for _, host := range svc.Hosts {
				r, err := policy.ParseResource(host)
				if err != nil {
					return nil, fmt.Errorf("service %s: %w", svc.Name, err)
				}
				b.Hosts = append(b.Hosts, r)
			}
		}
		out = append(out, b)
	}
	for _, row := range d.Custom {
		own := row.Scope == sandbox
		shadowed := slices.ContainsFunc(d.Custom, func(o storedCustom) bool {
			return sandbox != "" && o.Scope == sandbox && (o.Placeholder == row.Placeholder || o.Env != "" && o.Env == row.Env)
		})
		if !own && (row.Scope != "" || shadowed) {
			continue
		}
		name := row.Env
		if name == "" {
			name = row.Placeholder
		}
		out = append(out, Binding{
			Name: "custom " + name, Placeholder: row.Placeholder, Env: row.Env, Hosts: row.Hosts, fetch: s.fetcher(row.storedValue),
		})
	}
	return out, nil
}

// Env returns the variables to preset in a sandbox, sorted: placeholders, never values. A custom secret's variable
// wins over a service's.
func (s *Store) Env(sandbox string) ([]string, error) {
	bindings, err := s.Bindings(sandbox)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for _, b := range bindings {
		if b.Service != "" && b.Env != "" {
			env[b.Env] = b.service.Placeholder
			env["SBX_CRED_"+strings.ToUpper(b.Service)+"_MODE"] = "apikey"
		}
	}
	for _, b := range bindings {
		if b.Service == "" && b.Env != "" {
			env[b.Env] = b.Placeholder
		}
	}
	var out []string
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out, nil
}

func (s *Store) fetcher(v storedValue) func(context.Context) (secrets.Value, error) {
	if v.Command == "" && v.Item == "" {
		value := secrets.New(string(v.Value) + "\n") // New takes one line end off
		return func(context.Context) (secrets.Value, error) { return value, nil }
	}
	return func(ctx context.Context) (secrets.Value, error) { return s.fetch(ctx, v) }
}

// obtain runs the command, or asks the keyring, behind a secret. Both end by themselves.
func (s *Store) obtain(ctx context.Context, v storedValue) (secrets.Value, error) {
	if v.Item != "" {
		if s.keyring == nil {
			return secrets.Value{}, fmt.Errorf("%w: not set up", ErrKeyring)
		}
		return s.keyring.Get(ctx, v.Item)
	}
	argv, err := splitCommand(v.Command)
	if err != nil {
		return secrets.Value{}, err
	}
	return runCommand(ctx, argv, v.Env)
}

// fetch obtains a value once for all who wait for it. A change of the stored secret has another key.
func (s *Store) fetch(ctx context.Context, v storedValue) (secrets.Value, error) {
	key := v.Created.String() + "\x00" + v.Item + "\x00" + v.Command
	if f, ok := s.remembered(key); ok {
		return f.value, f.err
	}
	done := s.runs.DoChan(key, func() (any, error) {
		if f, ok := s.remembered(key); ok {
			return f.value, f.err
		}
		// Not ctx: the first to wait must not end it for the others.
		value, err := s.obtain(context.WithoutCancel(ctx), v)
		hold := failureHold
		if err == nil {
			if hold = v.Refresh; hold <= 0 {
				hold = DefaultRefresh
			}
		}
		s.remember(key, fetched{value, err, time.Now().Add(hold)})
		return value, err
	})
	select {
	case <-ctx.Done():
		return secrets.Value{}, ctx.Err()
	case r := <-done:
		value, _ := r.Val.(secrets.Value)
		return value, r.Err
	}
}

func (s *Store) remembered(key string) (fetched, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.fetched[key]
	return f, ok && time.Now().Before(f.until)
}

func (s *Store) remember(key string, f fetched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for k, old := range s.fetched {
		if now.After(old.until) {
			delete(s.fetched, k)
		}
	}
	s.fetched[key] = f
}
