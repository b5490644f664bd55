package vault

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/sbxpair/sbxpair/engine/statefile"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// Errors of the store.
var (
	// ErrExists: a service secret is there and force was not asked for.
	ErrExists = errors.New("secret already exists")
	// ErrInvalid matches every refusal of what was given.
	ErrInvalid = errors.New("invalid secret")
)

// A CustomExistsError says that the variable is taken in the scope by another placeholder; the text is sbx 0.47's.
type CustomExistsError struct {
	Env, Scope, Placeholder string
}

func (e *CustomExistsError) Error() string {
	scope := e.Scope
	if scope == "" {
		scope = "_"
	}
	return fmt.Sprintf("custom secret env %q already exists in scope %q with placeholder %q", e.Env, scope, e.Placeholder)
}

// Secret is where a value comes from: exactly one of Value and Command is given.
type Secret struct {
	Value   secrets.Value
	Keyring bool          // keep Value in the store's keyring, not in its file
	Command string        // absolute path and arguments; see Set
	Ref     string        // what Command reads, for listings; see RefCommand
	Env     []string      // NAME=VALUE over the environment that Command runs in
	Refresh time.Duration // how long a fetched value is kept; 0: DefaultRefresh
}

// DefaultRefresh is how long the value of a command is kept in memory.
const DefaultRefresh = time.Minute

// failureHold is how long a failed command is not run again: an agent must not be able to hammer on it.
const failureHold = 5 * time.Second

// ServiceSecret is the credential of a service.
type ServiceSecret struct {
	Service string
	Sandbox string // "" is global
	Secret
	Force    bool // replace an existing one
	NoVerify bool // do not run the command now
}

// CustomSecret is a credential that a placeholder stands for.
type CustomSecret struct {
	Sandbox     string   // "" is global
	Env         string   // variable to preset with the placeholder; may be empty
	Placeholder string   // "{rand}" in it is replaced; "" is sbx-cs-{rand}
	Hosts       []string // resources as in package policy: names and patterns, with or without port
	Secret
	NoVerify bool
}

type document struct {
	Version  int             `json:"version"`
	Services []storedService `json:"services"`
	Custom   []storedCustom  `json:"custom"`
}

type storedValue struct {
	Value   []byte        `json:"value,omitempty"` // base64 in the file: values are bytes, JSON strings are not
	Item    string        `json:"item,omitempty"`  // of the keyring, in place of a value
	Command string        `json:"command,omitempty"`
	Ref     string        `json:"ref,omitempty"`
	Env     []string      `json:"env,omitempty"`
	Refresh time.Duration `json:"refresh_ns,omitempty"`
	Created time.Time     `json:"created"`
}

type storedService struct {
	Service string `json:"service"`
	Scope   string `json:"scope,omitempty"`
	storedValue
}

type storedCustom struct {
	Scope       string            `json:"scope,omitempty"`
	Env         string            `json:"env,omitempty"`
	Placeholder string            `json:"placeholder"`
	Hosts       []policy.Resource `json:"hosts"`
	storedValue
}

// A Store is the secrets of one state folder. It is safe for concurrent use, also by several processes.
type Store struct {
	file    *statefile.File[document]
	keyring Keyring

	runs    singleflight.Group
	mu      sync.Mutex
	fetched map[string]fetched
	from    *document // what these two were made of
	bound   map[string][]Binding
	texts   []string // placeholders of all
}

type fetched struct {
	value secrets.Value
	err   error
	until time.Time
}

// Open returns the Store in dir, a folder of its own: it is made with mode 0700. Nothing is read or made yet.
func Open(dir string) *Store {
	return &Store{
		file:    statefile.New[document](filepath.Join(dir, "secrets.json"), 0o600),
		fetched: map[string]fetched{},
	}
}

// WithKeyring makes the store keep values in k where a [Secret] asks for it, and read from k what is there.
func (s *Store) WithKeyring(k Keyring) *Store {
	s.keyring = k
	return s
}

// Set stores the credential of a service. The error matches [ErrExists] if one is there and s.Force is not set,
// [ErrInvalid] for what cannot be used, [ErrCommand] for a command that does not work, [ErrKeyring] for a keyring.
func (s *Store) Set(ctx context.Context, sec ServiceSecret) error {
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`).MatchString(sec.Service) {
		return fmt.Errorf("%w: service name %q", ErrInvalid, clip(sec.Service))
	}
	value, err := sec.stored(ctx, sec.NoVerify)
	if err != nil {
		return err
	}
	return s.store(ctx, sec.Secret, value, func(d *document, value storedValue, replaced *storedValue) error {
		row := storedService{sec.Service, sec.Sandbox, value}
		i := slices.IndexFunc(d.Services, func(h storedService) bool { return h.Service == sec.Service && h.Scope == sec.Sandbox })
		switch {
		case i < 0:
			d.Services = append(d.Services, row)
		case !sec.Force:
			return fmt.Errorf("%w: service %q", ErrExists, sec.Service)
		default:
			*replaced, d.Services[i] = d.Services[i].storedValue, row
		}
		return nil
	})
}

// store keeps a value where it belongs and writes a row for it; what the row replaces is forgotten.
func (s *Store) store(ctx context.Context, sec Secret, value storedValue, put func(d *document, value storedValue, replaced *storedValue) error) error {
	if err := s.keep(ctx, sec, &value); err != nil {
		return err
	}
	var replaced storedValue
	if err := s.update(ctx, func(d *document) error { return put(d, value, &replaced) }); err != nil {
		return errors.Join(err, s.forget(context.WithoutCancel(ctx), value))
	}
	return s.forget(ctx, replaced)
}

// SetCustom stores a custom secret and returns its placeholder, and whether it was made here. The same placeholder in
// the same scope is an update, which replaces hosts, variable and value. The error is a [*CustomExistsError], or as for Set.
func (s *Store) SetCustom(ctx context.Context, c CustomSecret) (placeholder string, generated bool, err error) {
	if c.Env != "" && !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,254}$`).MatchString(c.Env) {
		return "", false, fmt.Errorf("%w: variable name %q", ErrInvalid, clip(c.Env))
	}
	if len(c.Hosts) == 0 {
		return "", false, fmt.Errorf("%w: no host", ErrInvalid)
	}
	var hosts []policy.Resource
	for _, text := range c.Hosts {
		r, err := bindable(text)
		if err != nil {
			return "", false, err
		}
		hosts = append(hosts, r)
	}
	given := c.Placeholder
	if given == "" {
		given = "sbx-cs-{rand}"
	}
	placeholder = given
	for strings.Contains(placeholder, "{rand}") {
		placeholder = strings.Replace(placeholder, "{rand}", rand.Text()[:16], 1)
		generated = true
	}
	if err := checkPlaceholder(placeholder); err != nil {
		return "", false, err
	}
	value, err := c.stored(ctx, c.NoVerify)
	if err != nil {
		return "", false, err
	}
	if !c.Value.IsZero() && strings.Contains(c.Value.Reveal(), placeholder) {
		return "", false, fmt.Errorf("%w: the value holds its own placeholder", ErrInvalid)
	}
	err = s.store(ctx, c.Secret, value, func(d *document, value storedValue, replaced *storedValue) error {
		row := storedCustom{c.Sandbox, c.Env, placeholder, hosts, value}
		for _, h := range d.Custom {
			if h.Scope == c.Sandbox && c.Env != "" && h.Env == c.Env && h.Placeholder != placeholder {
				return &CustomExistsError{c.Env, c.Sandbox, h.Placeholder}
			}
		}
		i := slices.IndexFunc(d.Custom, func(h storedCustom) bool { return h.Scope == c.Sandbox && h.Placeholder == placeholder })
		if i < 0 {
			d.Custom = append(d.Custom, row)
		} else {
			*replaced, d.Custom[i] = d.Custom[i].storedValue, row
		}
		return nil
	})
	if err != nil {
		return "", false, err
	}
	return placeholder, generated, nil
}

// bindable reads a host to bind a secret to. A port of the host's loopback may be written with either of its names.
func bindable(text string) (policy.Resource, error) {
	if rest, ok := strings.CutPrefix(strings.ToLower(text), policy.HostAlias+":"); ok {
		text = policy.Localhost + ":" + rest
	}
	r, err := policy.ParseResource(text)
	if err != nil {
		return policy.Resource{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if why := r.Wide(); why != "" {
		return policy.Resource{}, fmt.Errorf("%w: host %s %s; a secret is bound to hosts that are named", ErrInvalid, r, why)
	}
	return r, nil
}

// minPlaceholder is the shortest placeholder: a shorter text could be in a header by accident.
const minPlaceholder = 12

func checkPlaceholder(p string) error {
	if len(p) < minPlaceholder || len(p) > 512 {
		return fmt.Errorf("%w: a placeholder has %d to 512 characters", ErrInvalid, minPlaceholder)
	}
	for i := range len(p) {
		if c := p[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"',;:\`, c) >= 0 {
			return fmt.Errorf("%w: a placeholder is printable ASCII without spaces, quotes, commas, colons and backslashes", ErrInvalid)
		}
	}
	return nil
}

func (s Secret) stored(ctx context.Context, noVerify bool) (storedValue, error) {
	v := storedValue{Refresh: s.Refresh, Created: time.Now().UTC()}
	switch {
	case s.Command != "" && !s.Value.IsZero():
		return v, fmt.Errorf("%w: both a value and a command", ErrInvalid)
	case s.Command != "":
		argv, err := splitCommand(s.Command)
		if err != nil {
			return v, err
		}
		if !noVerify {
			if _, err := runCommand(ctx, argv, s.Env); err != nil {
				return v, err
			}
		}
		v.Command, v.Ref, v.Env = s.Command, s.Ref, s.Env
	case s.Value.IsZero():
		return v, fmt.Errorf("%w: the value is empty", ErrInvalid)
	case len(s.Value.Reveal()) > maxValue:
		return v, fmt.Errorf("%w: the value is longer than %d bytes", ErrInvalid, maxValue)
	case secrets.IsPlaceholder(s.Value.Reveal()):
		return v, fmt.Errorf("%w: the value is a placeholder, not a credential", ErrInvalid)
	default:
		v.Value = []byte(s.Value.Reveal())
	}
	return v, nil
}

// RemoveService removes the credential of a service in a scope and reports whether there was one.
func (s *Store) RemoveService(ctx context.Context, sandbox, service string) (bool, error) {
	n, err := s.remove(ctx, func(h storedService) bool { return h.Service == service && h.Scope == sandbox }, nil)
	return n > 0, err
}

// RemoveCustom removes the custom secret with that placeholder in a scope and reports whether there was one.
func (s *Store) RemoveCustom(ctx context.Context, sandbox, placeholder string) (bool, error) {
	n, err := s.remove(ctx, nil, func(h storedCustom) bool { return h.Placeholder == placeholder && h.Scope == sandbox })
	return n > 0, err
}

// RemoveCustomHost removes the custom secrets of a scope that are bound to this host and no other, as sbx 0.38 does,
// and returns how many.
func (s *Store) RemoveCustomHost(ctx context.Context, sandbox, host string) (int, error) {
	r, err := bindable(host)
	if err != nil {
		return 0, err
	}
	return s.remove(ctx, nil, func(h storedCustom) bool { return h.Scope == sandbox && len(h.Hosts) == 1 && h.Hosts[0] == r })
}

// DropScope removes every secret of a sandbox; that there is none is success.
func (s *Store) DropScope(ctx context.Context, sandbox string) error {
	if sandbox == "" {
		return nil // "" is the global scope, which no sandbox takes along
	}
	_, err := s.RemoveAll(ctx, sandbox)
	return err
}

// RemoveAll removes every secret of a scope ("" is the global one) and returns how many.
func (s *Store) RemoveAll(ctx context.Context, sandbox string) (int, error) {
	return s.remove(ctx, func(h storedService) bool { return h.Scope == sandbox }, func(h storedCustom) bool { return h.Scope == sandbox })
}

// Reset removes everything.
func (s *Store) Reset(ctx context.Context) error {
	_, err := s.remove(ctx, func(storedService) bool { return true }, func(storedCustom) bool { return true })
	if err != nil && !errors.Is(err, statefile.ErrCorrupt) {
		return err
	}
	return s.file.Remove(ctx)
}

func (s *Store) remove(ctx context.Context, service func(storedService) bool, custom func(storedCustom) bool) (int, error) {
	// Nothing to remove must leave no file behind.
	d, err := s.read()
	if err != nil {
		return 0, err
	}
	if (service == nil || !slices.ContainsFunc(d.Services, service)) && (custom == nil || !slices.ContainsFunc(d.Custom, custom)) {
		return 0, nil
	}
	var gone []storedValue
	err = s.update(ctx, func(d *document) error {
		gone = nil
		if service != nil {
			d.Services = slices.DeleteFunc(d.Services, func(h storedService) bool {
				hit := service(h)
				if hit {
					gone = append(gone, h.storedValue)
				}
				return hit
			})
		}
		if custom != nil {
			d.Custom = slices.DeleteFunc(d.Custom, func(h storedCustom) bool {
				hit := custom(h)
				if hit {
					gone = append(gone, h.storedValue)
				}
				return hit
			})
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(gone), s.forget(ctx, gone...)
}

const documentVersion = 1

func (s *Store) update(ctx context.Context, change func(*document) error) error {
	return s.file.Update(ctx, func(d *document) error {
		if err := d.check(); err != nil {
			return err
		}
		d.Version = documentVersion
		return change(d)
	})
}

func (s *Store) read() (*document, error) {
	d, err := s.file.Read()
	if err == nil {
		err = d.check()
	}
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	return d, nil
}

func (d *document) check() error {
	if d.Version != documentVersion && d.Version != 0 {
		return fmt.Errorf("written by another version (format %d)", d.Version)
	}
	return nil
}

// newItem returns a name for the keyring that nothing else has.
func newItem() string { return "secret-" + rand.Text() }

func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}
