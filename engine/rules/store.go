package rules

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/sbxpair/sbxpair/engine/statefile"
	"github.com/sbxpair/sbxpair/policy"
)

// Errors of the store; the texts are sbx 0.47's.
var (
	ErrUninitialised = errors.New("global network policy has not been initialized")
	ErrInitialised   = errors.New(`global network policy is already initialized; use "sbx policy reset" first to change it`)
	ErrNotFound      = errors.New("remove-resource: rule not found")
)

// A ConflictError is a rule that says the opposite of an existing one about the same thing in the same scope.
type ConflictError struct {
	Effect   policy.Effect
	Resource policy.Resource
	Existing string // id
}

func (e *ConflictError) Error() string {
	other := policy.Allow
	if e.Effect == policy.Allow {
		other = policy.Deny
	}
	return fmt.Sprintf("%s: %q conflicts with existing %s rule %q", e.Effect, e.Resource.String(), other, e.Existing)
}

// Via says how a rule came to be (sbx: created_via).
type Via string

// The ways.
const (
	ViaDefault     Via = "default"     // a preset
	ViaAdded       Via = "added"       // policy allow, policy deny
	ViaProvisioned Via = "provisioned" // create --deny-network, a kit
)

// A Rule is a stored rule.
type Rule struct {
	ID        string               `json:"id"`
	Name      string               `json:"name,omitempty"`
	Scope     string               `json:"scope,omitempty"` // sandbox name; "" is global
	Effect    policy.Effect        `json:"decision"`
	Resources []policy.Resource    `json:"resources"`
	Protocols []policy.Protocol    `json:"protocols,omitempty"`
	Methods   []string             `json:"methods,omitempty"`
	Paths     []policy.PathPattern `json:"paths,omitempty"`
	Via       Via                  `json:"created_via"`
	Reason    string               `json:"reason,omitempty"`
	Created   time.Time            `json:"created"` // UTC
}

// Policy returns the rule as the policy package decides with it.
func (r Rule) Policy() policy.Rule {
	layer := "local"
	switch r.Via {
	case ViaDefault:
		layer = "default"
	case ViaProvisioned, ViaAdded:
	}
	return policy.Rule{
		ID: r.ID, Name: r.Name, Effect: r.Effect, Resources: r.Resources, Protocols: r.Protocols, Methods: r.Methods,
		Paths: r.Paths, Scope: r.Scope, Layer: layer, Reason: r.Reason,
	}
}

// New describes rules to add: one for each resource, alike in everything else.
type New struct {
	Resources []policy.Resource
	Protocols []policy.Protocol // empty: tcp for allow, tcp and udp for deny
	Methods   []string
	Paths     []policy.PathPattern
	Via       Via // "": ViaAdded
	Reason    string
}

// Filter chooses rules of a listing. The zero Filter chooses all.
type Filter struct {
	Sandbox string        // rules that hold for this sandbox: global ones and its own
	Effect  policy.Effect // ""
	Via     Via
	HTTP    *bool // only (true) or no (false) rules with methods or paths
}

// A Store is the rules of one state folder. It is safe for concurrent use, also by several processes.
type Store struct {
	file *statefile.File[document]

	mu   sync.Mutex
	from *document
	sets map[string]*policy.Set
}

type document struct {
	Version int           `json:"version"`
	Preset  policy.Preset `json:"preset,omitempty"`
	List    string        `json:"preset_version,omitempty"`
	Rules   []Rule        `json:"rules"`
}

const documentVersion = 1

// Open returns the Store in dir. Nothing is read or made yet.
func Open(dir string) *Store {
	return &Store{file: statefile.New[document](filepath.Join(dir, "policy.json"), 0o600)}
}

// Init sets the global starting point, once. The error matches [ErrInitialised] the second time.
func (s *Store) Init(ctx context.Context, preset policy.Preset) error {
	base, err := preset.Rules()
	if err != nil {
		return err
	}
	list, err := preset.Version()
	if err != nil {
		return err
	}
	return s.update(ctx, func(d *document) error {
		if d.Preset != "" {
			return ErrInitialised
		}
		*d = document{Version: documentVersion, Preset: preset, List: list, Rules: []Rule{}}
		now := time.Now().UTC().Truncate(time.Second)
		for _, r := range base {
			// A copy of the preset is kept: an upgrade of ours must not open or close hosts by itself.
			d.Rules = append(d.Rules, Rule{
				ID: r.ID, Name: r.Name, Effect: r.Effect, Resources: r.Resources, Protocols: []policy.Protocol{policy.TCP},
				Via: ViaDefault, Reason: r.Reason, Created: now,
			})
		}
		return nil
	})
}

// Preset returns the starting point. The error matches [ErrUninitialised] before Init.
func (s *Store) Preset() (policy.Preset, error) {
	d, err := s.read()
	if err != nil {
		return "", err
	}
	return d.Preset, nil
}

// Initialised reports whether Init was done. An unreadable store is an error.
func (s *Store) Initialised() (bool, error) {
	_, err := s.read()
	if errors.Is(err, ErrUninitialised) {
		return false, nil
	}
	return err == nil, err
}

// Reset forgets everything, the preset included.
func (s *Store) Reset(ctx context.Context) error { return s.file.Remove(ctx) }

// Add stores one rule for each resource of n, all or none, and returns them in order. Adding what is there already
// returns the existing rule. The error is a [*ConflictError], matches [ErrUninitialised], or says why a rule cannot work.
func (s *Store) Add(ctx context.Context, scope string, effect policy.Effect, n New) ([]Rule, error) {
	via := n.Via
	if via == "" {
		via = ViaAdded
	}
	protocols := n.Protocols
	if len(protocols) == 0 {
		protocols = []policy.Protocol{policy.TCP}
		if effect == policy.Deny && len(n.Methods) == 0 && len(n.Paths) == 0 {
			protocols = append(protocols, policy.UDP)
		}
	}
	if len(n.Resources) == 0 {
		return nil, policy.Rule{Effect: effect}.Check()
	}
	var added []Rule
	err := s.update(ctx, func(d *document) error {
		if d.Preset == "" {
			return ErrUninitialised
		}
		now := time.Now().UTC().Truncate(time.Second)
		for _, res := range n.Resources {
			r := Rule{
				ID: uuid.NewString(), Scope: scope, Effect: effect, Resources: []policy.Resource{res}, Protocols: protocols,
				Methods: n.Methods, Paths: n.Paths, Via: via, Reason: n.Reason, Created: now,
			}
			if err := r.Policy().Check(); err != nil {
				return err
			}
			same, err := existing(d.Rules, r)
			if err != nil {
				return err
			}
			if same != nil {
				added = append(added, *same)
				continue
			}
			d.Rules = append(d.Rules, r)
			added = append(added, r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return added, nil
}

// existing finds a rule of the same meaning in the same scope, or the conflict with one of the opposite meaning.
func existing(have []Rule, r Rule) (*Rule, error) {
	for i, h := range have {
		if h.Scope != r.Scope || h.Via == ViaDefault || !slices.Equal(h.Resources, r.Resources) ||
			!slices.Equal(h.Methods, r.Methods) || !slices.Equal(h.Paths, r.Paths) {
			continue
		}
		if h.Effect != r.Effect {
			return nil, &ConflictError{r.Effect, r.Resources[0], h.ID}
		}
		if slices.Equal(h.Protocols, r.Protocols) {
			return &have[i], nil
		}
	}
	return nil, nil
}

// RemoveID removes one rule of a scope by its id and returns it. The error matches [ErrNotFound].
func (s *Store) RemoveID(ctx context.Context, scope, id string) (Rule, error) {
	id = strings.TrimPrefix(id, "local:")
	removed, err := s.remove(ctx, func(r Rule) bool { return r.ID == id && (scope == "" || r.Scope == scope) })
	if err != nil {
		return Rule{}, err
	}
	return removed[0], nil
}

// RemoveResources removes every rule of a scope about exactly one of the resources, allow and deny, and returns them.
// Either each resource has a rule, or nothing is removed and the error matches [ErrNotFound].
func (s *Store) RemoveResources(ctx context.Context, scope string, list []policy.Resource) ([]Rule, error) {
	var removed []Rule
	err := s.update(ctx, func(d *document) error {
		for _, res := range list {
			hit := func(r Rule) bool {
				return r.Scope == scope && r.Via != ViaDefault && len(r.Resources) == 1 && r.Resources[0] == res
			}
			if !slices.ContainsFunc(d.Rules, hit) {
				return fmt.Errorf("%w: %s", ErrNotFound, res)
			}
			for _, r := range d.Rules {
				if hit(r) {
					removed = append(removed, r)
				}
			}
			d.Rules = slices.DeleteFunc(d.Rules, hit)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}

// DropScope removes every rule of a sandbox. That there is none, or no store, is success.
func (s *Store) DropScope(ctx context.Context, sandbox string) error {
	if sandbox == "" {
		return nil // "" is the global scope, which no sandbox takes along
	}
	_, err := s.remove(ctx, func(r Rule) bool { return r.Scope == sandbox })
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrUninitialised) {
		return nil
	}
	return err
}

func (s *Store) remove(ctx context.Context, hit func(Rule) bool) ([]Rule, error) {
	var removed []Rule
	err := s.update(ctx, func(d *document) error {
		if d.Preset == "" {
			return ErrUninitialised
		}
		for _, r := range d.Rules {
			if hit(r) {
				removed = append(removed, r)
			}
		}
		if len(removed) == 0 {
			return ErrNotFound
		}
		d.Rules = slices.DeleteFunc(d.Rules, hit)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}

// List returns the network rules that f chooses, presets first, then in the order they were added. The error matches
// [ErrUninitialised] before Init.
func (s *Store) List(f Filter) ([]Rule, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	var out []Rule
	for _, r := range d.Rules {
		switch {
		case f.Sandbox != "" && r.Scope != "" && r.Scope != f.Sandbox,
			f.Effect != "" && r.Effect != f.Effect,
			f.Via != "" && r.Via != f.Via,
			f.HTTP != nil && r.Policy().HTTP() != *f.HTTP:
			continue
		}
		out = append(out, r)
	}
	return out, nil
}

// Set returns what holds for a sandbox: the global rules and its own. With "" only the global ones. The pointer stays
// the same until a rule changes. The error matches [ErrUninitialised] before Init.
func (s *Store) Set(sandbox string) (*policy.Set, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from != d {
		s.from, s.sets = d, map[string]*policy.Set{}
	}
	if set := s.sets[sandbox]; set != nil {
		return set, nil
	}
	var list []policy.Rule
	for _, r := range d.Rules {
		if r.Scope == "" || r.Scope == sandbox {
			list = append(list, r.Policy())
		}
	}
	set := policy.NewSet(list)
	s.sets[sandbox] = set
	return set, nil
}

func (s *Store) read() (*document, error) {
	d, err := s.file.Read()
	if err == nil {
		err = d.check()
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("network policy: %w", err)
	case d.Preset == "":
		return nil, ErrUninitialised
	}
	return d, nil
}

// check refuses a document of another shape: what we do not know of it would be lost with the next write.
func (d *document) check() error {
	if d.Version != documentVersion && (d.Version != 0 || d.Preset != "") {
		return fmt.Errorf("written by another version (format %d)", d.Version)
	}
	return nil
}

// update changes the document; see [statefile.File.Update].
func (s *Store) update(ctx context.Context, change func(*document) error) error {
	return s.file.Update(ctx, func(d *document) error {
		if err := d.check(); err != nil {
			return fmt.Errorf("network policy: %w", err)
		}
		return change(d)
	})
}
