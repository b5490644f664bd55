package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/policy"
)

// View is a rule as "policy ls --json" and "policy inspect --json" show it.
type View struct {
	ID           string       `json:"id"`
	Name         string       `json:"name"`
	PolicyID     string       `json:"policy_id"`
	Scope        string       `json:"scope"`
	AppliesTo    string       `json:"applies_to"`
	ResourceType string       `json:"resource_type"`
	Decision     string       `json:"decision"`
	Resources    []string     `json:"resources"`
	Origin       string       `json:"origin"`
	Layer        string       `json:"layer"`
	Status       string       `json:"status"`
	Editable     bool         `json:"editable"`
	SandboxID    string       `json:"sandbox_id,omitempty"`
	Provenance   Provenance   `json:"provenance"`
	Actions      []string     `json:"actions,omitempty"`
	Methods      []string     `json:"methods,omitempty"`
	HTTPTargets  []HTTPTarget `json:"http_targets,omitempty"`
}

// Provenance is the view of how a rule came to be.
type Provenance struct {
	CreatedVia string `json:"created_via"`
}

// HTTPTarget is the view of one host and path of a rule about requests.
type HTTPTarget struct {
	Host string `json:"host"`
	Path string `json:"path"`
}

// Listing is the document of "policy ls --json".
type Listing struct {
	Rules []View `json:"rules"`
}

// ScopeText returns "global" or "sandbox:NAME".
func ScopeText(scope string) string {
	if scope == "" {
		return "global"
	}
	return "sandbox:" + scope
}

// View returns the rule in sbx's shape.
func (r Rule) View() View {
	v := View{
		ID: r.ID, Name: r.ID, PolicyID: r.ID, Scope: ScopeText(r.Scope), AppliesTo: "all", ResourceType: "network",
		Decision: string(r.Effect), Origin: "local", Layer: "local", Status: "active", Editable: true,
		SandboxID: r.Scope, Provenance: Provenance{string(r.Via)},
	}
	for _, res := range r.Resources {
		v.Resources = append(v.Resources, res.String())
	}
	if r.Via == ViaDefault {
		v.PolicyID = "local-policy"
	}
	if r.Scope != "" {
		v.AppliesTo, v.Origin = v.Scope, "scoped"
	}
	if r.Policy().HTTP() {
		v.ResourceType, v.Methods = "http", r.Methods
		paths := []string{"/**"}
		if len(r.Paths) > 0 {
			paths = nil
			for _, p := range r.Paths {
				paths = append(paths, p.String())
			}
		}
		for _, host := range v.Resources {
			for _, p := range paths {
				v.HTTPTargets = append(v.HTTPTargets, HTTPTarget{host, p})
			}
		}
		return v
	}
	for _, p := range r.Protocols {
		v.Actions = append(v.Actions, "net:connect:"+string(p))
	}
	return v
}

// FilesystemViews returns the rules about files that every preset lists (sbx 0.47). The local engine shows them for
// what they are: mounts are not limited by policy.
func FilesystemViews() []View {
	view := func(what string) View {
		name := "default-fs-" + what + "-allow-all"
		return View{
			ID: name, Name: name, PolicyID: "local-policy", Scope: "global", AppliesTo: "all", ResourceType: "filesystem:" + what,
			Decision: "allow", Resources: []string{"**"}, Origin: "local", Layer: "local", Status: "active",
			Provenance: Provenance{string(ViaDefault)},
		}
	}
	return []View{view("read"), view("write")}
}

// DefaultDenyView returns the fall-back that a listing of presets other than allow-all shows. It is no rule: as one it
// would beat every allow.
func DefaultDenyView() View {
	return View{
		ID: "default-deny-all", Name: "default-deny-all", PolicyID: "local-policy", Scope: "global", AppliesTo: "all",
		ResourceType: "network", Decision: string(policy.Deny), Resources: []string{"**"}, Origin: "local", Layer: "local",
		Status: "active", Provenance: Provenance{string(ViaDefault)}, Actions: []string{"net:connect:tcp", "net:connect:udp"},
	}
}

// Check is the answer to "policy check network --json".
type Check struct {
	Action        string     `json:"action"`
	Allowed       bool       `json:"allowed"`
	Context       string     `json:"context"`
	DenyKind      string     `json:"deny_kind,omitempty"`
	Governance    Governance `json:"governance"`
	Hint          string     `json:"hint,omitempty"` // ours: what would change a denial
	Origin        string     `json:"origin,omitempty"`
	Reason        string     `json:"reason,omitempty"`
	ResourceType  string     `json:"resource_type"`
	ResourceValue string     `json:"resource_value"`
	Rule          string     `json:"rule,omitempty"`
	Target        string     `json:"target"`
	Type          string     `json:"type"`
}

// Governance says that no organisation manages the policy; the local engine knows none.
type Governance struct {
	Active bool `json:"active"`
}

// DefaultPort is the port that a target without one means.
const DefaultPort = 443

// Check decides target (a host with or without a port, or a URL) for a sandbox, or for the global scope with "".
// Methods and paths of rules are not looked at, as in sbx 0.47. The error matches [policy.ErrHost] or [ErrUninitialised].
func (s *Store) Check(sandbox, target string) (Check, error) {
	set, err := s.Set(sandbox)
	if err != nil {
		return Check{}, err
	}
	host, port, err := parseTarget(target)
	if err != nil {
		return Check{}, err
	}
	d := set.Decide(policy.Request{Host: host, Port: port})
	c := Check{
		Action: "net:connect:tcp", Allowed: d.Allowed, Context: ScopeText(sandbox), ResourceType: ResourceType(host),
		ResourceValue: host.Join(port), Target: host.Join(port), Type: "network",
	}
	if d.Allowed {
		return c, nil
	}
	c.DenyKind, c.Reason, c.Rule, c.Hint = string(d.Kind), d.Reason, d.Rule, d.Hint
	if d.Kind == policy.Guarded {
		c.DenyKind = string(policy.Implicit)
	}
	if d.Kind == policy.Explicit {
		c.Origin = "local"
	}
	return c, nil
}

func parseTarget(target string) (policy.Host, uint16, error) {
	port := uint16(DefaultPort)
	rest := target
	if scheme, after, ok := strings.Cut(target, "://"); ok {
		if strings.EqualFold(scheme, "http") {
			port = 80
		}
		if i := strings.IndexAny(after, "/?#"); i >= 0 {
			after = after[:i]
		}
		rest = after[strings.LastIndexByte(after, '@')+1:]
	}
	return policy.ParseHostPort(rest, port)
}

// ResourceType returns the type sbx gives a host in decisions.
func ResourceType(h policy.Host) string {
	if h.Addr().IsValid() {
		return "net:ip"
	}
	return "net:domain"
}

// AddedLine is what "policy allow" and "policy deny" print for one rule (sbx 0.47).
func (r Rule) AddedLine() string {
	var protocols []string
	for _, p := range r.Protocols {
		protocols = append(protocols, string(p))
	}
	var resources []string
	for _, res := range r.Resources {
		resources = append(resources, res.String())
	}
	return fmt.Sprintf("Rule added to policy local (scope: %s): %s (%s [%s])",
		ScopeText(r.Scope), r.ID, strings.Join(resources, ","), strings.Join(slices.Sorted(slices.Values(protocols)), ","))
}
