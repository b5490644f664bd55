package sbx

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Preset is what an engine's global network policy starts from.
type Preset string

// The presets. Whatever the preset, kits add allow rules of their own.
const (
	PresetAllowAll Preset = "allow-all"
	PresetBalanced Preset = "balanced"
	PresetDenyAll  Preset = "deny-all"
)

// Decision is what a rule says.
type Decision string

// The decisions. Deny beats allow, whatever the scope.
const (
	Allow Decision = "allow"
	Deny  Decision = "deny"
)

// PolicyRule is a network rule to be added.
type PolicyRule struct {
	Sandbox   string   // "" is global
	Decision  Decision // set by PolicyAllow and PolicyDeny; for VerifyRules "" is Allow
	Resources []string // HOST[:PORT], *.HOST, **.HOST, CIDR, [IPv6]:PORT; no URL: sbx stores one and never matches it
	Protocol  string   // "", "tcp" or "udp" (sbx 0.45)
	Methods   []string // HTTP methods: makes it an HTTP rule (sbx 0.45)
	Path      string   // HTTP path pattern: makes it an HTTP rule (sbx 0.45)
}

func (r PolicyRule) isHTTP() bool { return len(r.Methods) > 0 || r.Path != "" }

// Rule is a rule as the engine lists it.
type Rule struct {
	ID           string       `json:"id"`
	Name         string       `json:"name,omitempty"`
	Policy       string       `json:"policy,omitempty"`
	Sandbox      string       `json:"sandbox,omitempty"` // "" is global
	ResourceType string       `json:"resource_type"`     // "network", "http", "filesystem:read", "filesystem:write"
	Decision     Decision     `json:"decision"`
	Resources    []string     `json:"resources,omitempty"`
	Source       string       `json:"source,omitempty"` // who made it: "local", "scoped", "kit", "org"
	Inactive     bool         `json:"inactive,omitempty"`
	Protocols    []string     `json:"protocols,omitempty"` // "tcp", "udp"; empty if not told
	Methods      []string     `json:"methods,omitempty"`
	HTTPTargets  []HTTPTarget `json:"http_targets,omitempty"`
}

// HTTPTarget is what an HTTP rule is about.
type HTTPTarget struct {
	Host string `json:"host"`
	Path string `json:"path"`
}

// PolicyInit chooses the preset, once for each state tree, and reads back that it is this one. The error matches [ErrExists]
// if one was chosen before.
func (c *Client) PolicyInit(ctx context.Context, preset Preset) error {
	const op = "policy init"
	if !slices.Contains([]Preset{PresetAllowAll, PresetBalanced, PresetDenyAll}, preset) {
		return invalid(op, "preset %q: want allow-all, balanced or deny-all", preset)
	}
	if _, err := c.change(ctx, op, "policy", "init", string(preset)); err != nil {
		return err
	}
	if !c.readBack {
		return nil
	}
	rules, err := c.PolicyList(ctx, "")
	if err != nil {
		return err // ErrPolicyUninitialised if it did not take
	}
	switch have, known := PresetOf(rules); {
	case !known:
		return notApplied(op, fmt.Sprintf("the listing has no rule of preset %s", preset))
	case have != preset:
		return notApplied(op, fmt.Sprintf("the preset is %s, not %s", have, preset))
	}
	return nil
}

// PresetOf tells the preset from the rules that the engine lists for all scopes, by the names that presets give to theirs
// (sbx 0.23 to 0.47); false if none of them is there, as under an organisation's policy.
func PresetOf(rules []Rule) (Preset, bool) {
	preset, known := PresetDenyAll, false
	for _, r := range rules {
		name, isDefault := strings.CutPrefix(r.Name, "default-")
		if !isDefault || r.Sandbox != "" || r.ResourceType != "network" {
			continue
		}
		known = true
		switch {
		case name == "allow-all":
			return PresetAllowAll, true
		case r.Decision == Allow: // the fall-back, default-deny-all, stands in both of the others
			preset = PresetBalanced
		}
	}
	return preset, known
}

// PolicyAllow adds an allow rule and returns the ids that the engine gave. The error matches [ErrNotApplied] if the
// listing does not show it afterwards.
func (c *Client) PolicyAllow(ctx context.Context, rule PolicyRule) (ids []string, err error) {
	rule.Decision = Allow
	return c.addRule(ctx, "policy allow", rule)
}

// PolicyDeny adds a deny rule and returns the ids that the engine gave. The error matches [ErrConflict] if the same
// resource is allowed in the same scope: remove that rule first.
func (c *Client) PolicyDeny(ctx context.Context, rule PolicyRule) (ids []string, err error) {
	rule.Decision = Deny
	return c.addRule(ctx, "policy deny", rule)
}

var ruleAdded = regexp.MustCompile(`(?m)^(?:Rule|Policy) added(?: to policy .*?\(scope: [^)]*\))?: (\S+) \(`)

func (c *Client) addRule(ctx context.Context, op string, rule PolicyRule) ([]string, error) {
	args, err := c.ruleArgs(ctx, op, rule)
	if err != nil {
		return nil, err
	}
	res, err := c.change(ctx, op, args...)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, m := range ruleAdded.FindAllStringSubmatch(clean(res.Stdout), -1) {
		ids = append(ids, m[1])
	}
	if c.readBack {
		if err := c.VerifyRules(ctx, rule); err != nil {
			return ids, err
		}
	}
	return ids, nil
}

func (c *Client) ruleArgs(ctx context.Context, op string, rule PolicyRule) ([]string, error) {
	args := []string{"policy", string(rule.Decision), "network"}
	if rule.Sandbox != "" {
		if err := checkNames(op, []string{rule.Sandbox}); err != nil {
			return nil, err
		}
		args = append(args, "--sandbox", rule.Sandbox)
	}
	if len(rule.Resources) == 0 {
		return nil, invalid(op, "no resource")
	}
	for _, r := range rule.Resources {
		if err := checkResource(op, r); err != nil {
			return nil, err
		}
	}
	if !slices.Contains([]string{"", "tcp", "udp"}, rule.Protocol) {
		return nil, invalid(op, "protocol %q: want tcp or udp", rule.Protocol)
	}
	if rule.Protocol != "" {
		if err := c.require(ctx, op, FeatureProtocolRules); err != nil {
			return nil, err
		}
		args = append(args, "--protocol", rule.Protocol)
	}
	if rule.isHTTP() {
		if err := c.require(ctx, op, FeatureHTTPRules); err != nil {
			return nil, err
		}
	}
	for _, m := range rule.Methods {
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			return nil, invalid(op, "HTTP method %q", m)
		}
		args = append(args, "--method", m)
	}
	if rule.Path != "" {
		if !strings.HasPrefix(rule.Path, "/") || strings.ContainsAny(rule.Path, " \t\n,") {
			return nil, invalid(op, "HTTP path %q: want a pattern that starts with a slash", rule.Path)
		}
		args = append(args, "--path", rule.Path)
	}
	// One argument: a second positional is an error since 0.31.
	return append(args, strings.Join(rule.Resources, ",")), nil
}

// checkResource refuses what would be read as something else than one resource, or never match.
func checkResource(op, r string) error {
	switch {
	case r == "" || strings.ContainsAny(r, " \t\r\n,\x00") || strings.HasPrefix(r, "-"):
		return invalid(op, "resource %q", r)
	case strings.Contains(r, "://"):
		return invalid(op, "resource %q: a URL is stored and never matches; name the host", r)
	case r == "*":
		return invalid(op, "resource %q: every host is written **", r)
	}
	return nil
}

// VerifyRules reads the listing once and checks that every resource of every rule is there, active, in its scope and with
// its decision, whether the engine keeps one rule for all of a rule's resources or one for each. The error matches
// [ErrNotApplied].
func (c *Client) VerifyRules(ctx context.Context, rules ...PolicyRule) error {
	listed, err := c.PolicyList(ctx, "")
	if err != nil {
		return err
	}
	return CheckRules(listed, rules...)
}

// CheckRules looks for each rule in a listing. The error matches [ErrNotApplied].
func CheckRules(listed []Rule, rules ...PolicyRule) error {
	var missing []string
	for _, want := range rules {
		if want.Decision == "" {
			want.Decision = Allow
		}
		for _, resource := range want.Resources {
			if !slices.ContainsFunc(listed, func(r Rule) bool { return r.shows(want, resource) }) {
				missing = append(missing, fmt.Sprintf("%s %s (%s) is not in the listing", want.Decision, resource, scopeText(want.Sandbox)))
			}
		}
	}
	return notApplied("policy ls", missing...)
}

func scopeText(sandbox string) string {
	if sandbox == "" {
		return "global"
	}
	return "sandbox " + sandbox
}

// shows reports whether the listed rule is what want says of resource: an allow rule that lets through more than was asked for is
// not, and neither is a deny rule that stops less.
func (r Rule) shows(want PolicyRule, resource string) bool {
	if r.Inactive || r.Sandbox != want.Sandbox || r.Decision != want.Decision {
		return false
	}
	if !want.isHTTP() {
		return r.ResourceType == "network" && len(r.Methods) == 0 && len(r.HTTPTargets) == 0 &&
			(want.Protocol == "" || len(r.Protocols) == 0 || covers(r.Protocols, []string{want.Protocol}, want.Decision)) &&
			slices.ContainsFunc(r.Resources, func(have string) bool { return sameResource(have, resource) })
	}
	if r.ResourceType != "http" && r.ResourceType != "network" {
		return false
	}
	if every := len(r.Methods) == 0 || slices.Contains(r.Methods, "*"); every {
		if len(want.Methods) > 0 && want.Decision == Allow {
			return false
		}
	} else if len(want.Methods) == 0 || !covers(r.Methods, want.Methods, want.Decision) {
		return false
	}
	return slices.ContainsFunc(r.HTTPTargets, func(t HTTPTarget) bool {
		// Every path is written in more than one way.
		return sameResource(t.Host, resource) && (t.Path == want.Path || want.Path == "" && slices.Contains([]string{"/**", "**", "*"}, t.Path))
	})
}

// covers reports whether have has all of want, and for an allow rule nothing else.
func covers(have, want []string, d Decision) bool {
	in := func(list []string) func(string) bool {
		return func(s string) bool { return slices.Contains(list, s) }
	}
	outside := func(list []string, inside func(string) bool) bool {
		return slices.ContainsFunc(list, func(s string) bool { return !inside(s) })
	}
	return !outside(want, in(have)) && (d == Deny || !outside(have, in(want)))
}

func sameResource(a, b string) bool { return normalResource(a) == normalResource(b) }

// normalResource removes what does not tell two resources apart: case and the root dot.
func normalResource(s string) string {
	s = strings.ToLower(s)
	host, port, found := strings.Cut(s, ":")
	if !found || strings.HasPrefix(s, "[") {
		return strings.TrimSuffix(s, ".")
	}
	return strings.TrimSuffix(host, ".") + ":" + port
}

// RuleRef names a rule to remove: by the id that it was added with, or by its resources.
type RuleRef struct {
	Sandbox   string
	ID        string
	Resources []string
}

// PolicyRemove removes rules and reads back that they are gone. That they were gone before is success.
func (c *Client) PolicyRemove(ctx context.Context, ref RuleRef) error {
	const op = "policy rm"
	args := []string{"policy", "rm", "network"}
	if ref.Sandbox != "" {
		if err := checkNames(op, []string{ref.Sandbox}); err != nil {
			return err
		}
		args = append(args, "--sandbox", ref.Sandbox)
	}
	switch {
	case ref.ID != "" && len(ref.Resources) == 0:
		if strings.HasPrefix(ref.ID, "-") {
			return invalid(op, "rule id %q", ref.ID)
		}
		args = append(args, "--id", ref.ID)
	case ref.ID == "" && len(ref.Resources) > 0:
		for _, r := range ref.Resources {
			if err := checkResource(op, r); err != nil {
				return err
			}
		}
		args = append(args, "--resource", strings.Join(ref.Resources, ","))
	default:
		return invalid(op, "want either a rule id or resources")
	}
	_, err := c.changeForced(ctx, op, "--force", args...)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if !c.readBack {
		return nil
	}
	listed, err := c.PolicyList(ctx, "")
	if err != nil {
		return err
	}
	var left []string
	for _, r := range listed {
		if ref.names(r) {
			left = append(left, fmt.Sprintf("rule %s (%s) is still there", r.ID, scopeText(r.Sandbox)))
		}
	}
	return notApplied(op, left...)
}

// names reports whether the listed rule is one that ref is to remove. An id is one rule's, whatever scope it was looked for
// in. Kits' and an organisation's rules are not ours to remove, and stay when a rule of the same resource goes.
func (ref RuleRef) names(r Rule) bool {
	if ref.ID != "" {
		return r.ID == ref.ID || strings.TrimPrefix(r.Name, "local:") == ref.ID
	}
	if r.Sandbox != ref.Sandbox || r.Source == "kit" || r.Source == "org" || r.ResourceType != "network" && r.ResourceType != "http" {
		return false
	}
	return slices.ContainsFunc(ref.Resources, func(want string) bool {
		return slices.ContainsFunc(r.Resources, func(have string) bool { return sameResource(have, want) }) ||
			slices.ContainsFunc(r.HTTPTargets, func(t HTTPTarget) bool { return sameResource(t.Host, want) })
	})
}

// PolicyReset deletes the whole policy. It stops the daemon and every sandbox of this state tree, other tools' included,
// and the preset has to be chosen again. Reading back that there is no policy any more starts the daemon again.
func (c *Client) PolicyReset(ctx context.Context) error {
	const op = "policy reset"
	if _, err := c.changeForced(ctx, op, "--force", "policy", "reset"); err != nil || !c.readBack {
		return err
	}
	switch rules, err := c.PolicyList(ctx, ""); {
	case errors.Is(err, ErrPolicyUninitialised):
		return nil
	case err != nil:
		return err
	default:
		return notApplied(op, fmt.Sprintf("there is a policy, of %d rules", len(rules)))
	}
}
