package sbx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
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

// PolicyInit chooses the preset, once for each state tree. The error matches [ErrExists] if one was chosen before.
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
	_, err := c.PolicyList(ctx, "")
	return err // ErrPolicyUninitialised if it did not take
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
	if missing != nil {
		return &NotAppliedError{Op: "policy ls", Missing: missing}
	}
	return nil
}

func scopeText(sandbox string) string {
	if sandbox == "" {
		return "global"
	}
	return "sandbox " + sandbox
}

// shows reports whether the listed rule is what want says of resource.
func (r Rule) shows(want PolicyRule, resource string) bool {
	if r.Inactive || r.Sandbox != want.Sandbox || r.Decision != want.Decision {
		return false
	}
	if !want.isHTTP() {
		return r.ResourceType == "network" && len(r.Methods) == 0 && len(r.HTTPTargets) == 0 &&
			(want.Protocol == "" || len(r.Protocols) == 0 || slices.Contains(r.Protocols, want.Protocol)) &&
			slices.ContainsFunc(r.Resources, func(have string) bool { return sameResource(have, resource) })
	}
	if r.ResourceType != "http" && r.ResourceType != "network" {
		return false
	}
	for _, m := range want.Methods {
		if !slices.Contains(r.Methods, m) {
			return false
		}
	}
	if len(want.Methods) == 0 && len(r.Methods) > 0 && !slices.Contains(r.Methods, "*") {
		return false
	}
	if len(r.HTTPTargets) == 0 {
		return false
	}
	return slices.ContainsFunc(r.HTTPTargets, func(t HTTPTarget) bool {
		return sameResource(t.Host, resource) && (want.Path == "" || t.Path == want.Path)
	})
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

// PolicyList lists the engine's rules: all scopes, or with a sandbox's name those that apply to it. A scoped listing
// leaves out the default denial and answers for a sandbox that does not exist with the global rules (sbx 0.39): it is no
// proof of either. The error matches [ErrPolicyUninitialised] if no preset was chosen yet.
func (c *Client) PolicyList(ctx context.Context, sandbox string) ([]Rule, error) {
	const op = "policy ls"
	args := []string{"policy", "ls"}
	if sandbox != "" {
		if err := checkNames(op, []string{sandbox}); err != nil {
			return nil, err
		}
		args = append(args, sandbox)
	}
	res, err := c.call(ctx, op, c.timeouts.Query, Cmd{Args: append(args, "--json"), MaxCapture: maxListing})
	if err != nil {
		return nil, err
	}
	rules, err := ParseRules(res.Stdout)
	if err != nil {
		return nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	return rules, nil
}

// ruleJSON is the engine's form of a rule.
type ruleJSON struct {
	ID           string       `json:"id"`
	Name         string       `json:"name"`
	PolicyID     string       `json:"policy_id"`
	Scope        string       `json:"scope"`
	AppliesTo    string       `json:"applies_to"`
	ResourceType string       `json:"resource_type"`
	Decision     string       `json:"decision"`
	Resources    []string     `json:"resources"`
	Origin       string       `json:"origin"`
	Status       string       `json:"status"`
	Actions      []string     `json:"actions"`
	Methods      []string     `json:"methods"`
	HTTPTargets  []HTTPTarget `json:"http_targets"`
}

func (r ruleJSON) rule() (Rule, error) {
	scope := r.Scope
	if scope == "" {
		scope = r.AppliesTo
	}
	sandbox, err := parseScope(scope)
	if err != nil {
		return Rule{}, err
	}
	decision, err := parseDecision(r.Decision)
	if err != nil {
		return Rule{}, err
	}
	rule := Rule{
		ID: r.ID, Name: r.Name, Policy: r.PolicyID, Sandbox: sandbox, ResourceType: r.ResourceType, Decision: decision,
		Resources: r.Resources, Source: r.Origin, Inactive: r.Status != "" && !strings.EqualFold(r.Status, "active"),
		Methods: r.Methods, HTTPTargets: r.HTTPTargets,
	}
	for _, action := range r.Actions {
		if p := action[strings.LastIndexByte(action, ':')+1:]; p == "tcp" || p == "udp" {
			rule.Protocols = append(rule.Protocols, p)
		}
	}
	return rule, nil
}

// parseScope gives the sandbox of a scope, "" for the global one.
func parseScope(scope string) (string, error) {
	switch scope {
	case "", "global", "(global)", "all", "local", "_", "-":
		return "", nil
	}
	name, ok := strings.CutPrefix(scope, "sandbox:")
	if !ok || checkOldName(name) != nil {
		return "", malformed("rule with scope %q", tailText(scope, 80))
	}
	return name, nil
}

func parseDecision(s string) (Decision, error) {
	switch d := Decision(strings.ToLower(s)); d {
	case Allow, Deny:
		return d, nil
	}
	return "", malformed("rule with decision %q", tailText(s, 40))
}

// ParseRules reads the output of "sbx policy ls", JSON or any of the text layouts that list rules (0.23 to 0.34, and
// --wide). The layout of 0.35 and later without --wide has only counts; it matches [ErrMalformed].
func ParseRules(out []byte) ([]Rule, error) {
	rules := []Rule{}
	if looksJSON(out) {
		var doc struct {
			Rules []ruleJSON `json:"rules"`
		}
		if err := decodeJSON(out, "rules", &doc); err != nil {
			return nil, err
		}
		for _, r := range doc.Rules {
			rule, err := r.rule()
			if err != nil {
				return nil, err
			}
			rules = append(rules, rule)
		}
		return rules, nil
	}
	spec := tableSpec{
		columns: []column{
			{id: "source", names: []string{"SOURCE", "PROVENANCE"}, word: true},
			{id: "scope", names: []string{"APPLIES TO", "APPLIES_TO", "ORIGIN"}},
			{id: "rule", names: []string{"RULE", "POLICY/RULE", "NAME"}},
			{id: "policy", names: []string{"POLICY"}}, {id: "policy_id", names: []string{"POLICY_ID"}, word: true},
			{id: "id", names: []string{"RULE_ID"}, word: true},
			{id: "type", names: []string{"TYPE"}, word: true}, {id: "decision", names: []string{"DECISION"}, word: true},
			{id: "status", names: []string{"STATUS"}, word: true},
			{id: "method", names: []string{"METHOD", "METHODS"}}, {id: "path", names: []string{"PATH"}},
			{id: "resources", names: []string{"RESOURCES"}},
		},
		must: []string{"type", "decision", "resources"},
		row:  []string{"type", "decision"},
		more: "resources",
	}
	tables, notes, err := parseTables(clean(out), spec)
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 && !anyLine(notes, func(l string) bool {
		return strings.HasPrefix(l, "No policies match") || strings.HasPrefix(l, "No policies found")
	}) {
		return nil, malformed("no rule listing in %d bytes", len(out))
	}
	for _, t := range tables {
		for _, row := range t.rows {
			rule, err := textRule(row)
			if err != nil {
				return nil, err
			}
			rules = append(rules, rule)
		}
	}
	return rules, nil
}

func textRule(row tableRow) (Rule, error) {
	sandbox, err := parseScope(row.text("scope"))
	if err != nil {
		return Rule{}, err
	}
	decision, err := parseDecision(row.text("decision"))
	if err != nil {
		return Rule{}, err
	}
	rule := Rule{
		ID: row.text("id"), Name: row.text("rule"), Policy: row.text("policy"), Sandbox: sandbox, ResourceType: row.text("type"),
		Decision: decision, Resources: row.listMore("resources"), Source: row.text("source"),
		Inactive: row.text("status") != "" && !strings.EqualFold(row.text("status"), "active"),
		Methods:  row.list("method"),
	}
	if rule.ID == "" {
		rule.ID = strings.TrimPrefix(rule.Name, "local:")
	}
	if path := row.text("path"); path != "" {
		for _, host := range rule.Resources {
			rule.HTTPTargets = append(rule.HTTPTargets, HTTPTarget{host, path})
		}
	}
	return rule, nil
}

// PolicyInspect describes one rule by its id (sbx 0.42). The error matches [ErrConflict] if the id names more than one
// thing.
func (c *Client) PolicyInspect(ctx context.Context, id string) (Rule, error) {
	const op = "policy inspect"
	if id == "" || strings.HasPrefix(id, "-") {
		return Rule{}, invalid(op, "rule id %q", id)
	}
	if err := c.require(ctx, op, FeaturePolicyInspect); err != nil {
		return Rule{}, err
	}
	res, err := c.call(ctx, op, c.timeouts.Query, Cmd{Args: []string{"policy", "inspect", id, "--json"}})
	if err != nil {
		return Rule{}, err
	}
	rule, err := ParseRule(res.Stdout)
	if err != nil {
		return Rule{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return rule, nil
}

// ParseRule reads the JSON of "sbx policy inspect": a rule, or an object with the rule in it.
func ParseRule(out []byte) (Rule, error) {
	var doc struct {
		ruleJSON
		Rule *ruleJSON `json:"rule"`
	}
	if err := decodeJSON(out, "", &doc); err != nil {
		return Rule{}, err
	}
	inner := doc.ruleJSON
	if doc.Rule != nil {
		inner = *doc.Rule
	}
	if inner.ID == "" {
		return Rule{}, malformed("rule without id")
	}
	return inner.rule()
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
	listed, listErr := c.PolicyList(ctx, "")
	if listErr != nil {
		return listErr
	}
	for _, r := range listed {
		if r.Sandbox != ref.Sandbox || r.ResourceType != "network" && r.ResourceType != "http" {
			continue
		}
		if ref.ID != "" && r.ID == ref.ID || slices.ContainsFunc(ref.Resources, func(want string) bool {
			return slices.ContainsFunc(r.Resources, func(have string) bool { return sameResource(have, want) }) && r.Source != "kit" && r.Source != "org"
		}) {
			return &NotAppliedError{Op: op, Missing: []string{fmt.Sprintf("rule %s is still there", r.ID)}}
		}
	}
	return nil
}

// PolicyReset deletes the whole policy. It stops the daemon and every sandbox of this state tree, other tools' included,
// and the preset has to be chosen again.
func (c *Client) PolicyReset(ctx context.Context) error {
	_, err := c.changeForced(ctx, "policy reset", "--force", "policy", "reset")
	return err
}

// PolicyVerdict is what the engine says it would do with a connection.
type PolicyVerdict struct {
	Allowed  bool   `json:"allowed"`
	Target   string `json:"target"`
	Explicit bool   `json:"explicit,omitempty"` // denied by a rule, not for want of one
	Rule     string `json:"rule,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// PolicyCheck asks whether target (HOST[:PORT], port 443 by default) may be connected to: from a sandbox, or with "" by
// the global rules. It knows nothing of HTTP methods and paths, and says "denied" for host.docker.internal although a rule
// for localhost:PORT lets it pass (sbx-releases#546). "Could not check" is an error, never a verdict.
func (c *Client) PolicyCheck(ctx context.Context, sandbox, target string) (PolicyVerdict, error) {
	const op = "policy check"
	if err := checkResource(op, target); err != nil {
		return PolicyVerdict{}, err
	}
	args := []string{"policy", "check", "network", "--json"}
	if sandbox != "" {
		if err := checkNames(op, []string{sandbox}); err != nil {
			return PolicyVerdict{}, err
		}
		args = append(args, "--sandbox", sandbox)
	}
	res, err := c.start(ctx, op, c.timeouts.Query, Cmd{Args: append(args, target)})
	if err != nil {
		return PolicyVerdict{}, err
	}
	if res.Code != 0 && res.Code != 1 {
		return PolicyVerdict{}, c.failure(op, res)
	}
	verdict, err := ParseVerdict(res.Stdout)
	switch {
	case err != nil && res.Code != 0:
		return PolicyVerdict{}, c.failure(op, res)
	case err != nil:
		return PolicyVerdict{}, fmt.Errorf("sbx %s: %w", op, err)
	case verdict.Allowed != (res.Code == 0):
		return PolicyVerdict{}, fmt.Errorf("sbx %s: %w", op, malformed("exit %d with a verdict of allowed=%t", res.Code, verdict.Allowed))
	}
	return verdict, nil
}

// ParseVerdict reads the output of "sbx policy check network", JSON or text.
func ParseVerdict(out []byte) (PolicyVerdict, error) {
	if looksJSON(out) {
		var doc struct {
			Allowed  bool   `json:"allowed"`
			Target   string `json:"target"`
			DenyKind string `json:"deny_kind"`
			Rule     string `json:"rule"`
			Reason   string `json:"reason"`
		}
		if err := decodeJSON(out, "allowed", &doc); err != nil {
			return PolicyVerdict{}, err
		}
		return PolicyVerdict{doc.Allowed, doc.Target, doc.DenyKind == "explicit", doc.Rule, doc.Reason}, nil
	}
	for line := range strings.Lines(clean(out)) {
		word, target, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch word {
		case "Allowed", "Denied":
			return PolicyVerdict{Allowed: word == "Allowed", Target: target}, nil
		}
	}
	return PolicyVerdict{}, malformed("no verdict in %d bytes", len(out))
}

// PolicyLog is what the engine's proxy saw, summed up for each host and rule since the daemon started.
type PolicyLog struct {
	Blocked []LogEntry `json:"blocked"`
	Allowed []LogEntry `json:"allowed"`
}

// LogEntry is one host that a sandbox talked to or tried to.
type LogEntry struct {
	Sandbox  string    `json:"sandbox"`
	Host     string    `json:"host"`  // with port where the version tells it
	Proxy    string    `json:"proxy"` // "forward" (opened), "forward-bypass" (tunnelled), "transparent", "network" (DNS), "browser-open"
	Rule     string    `json:"rule,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	LastSeen time.Time `json:"last_seen,omitzero"` // UTC; zero from text, which has no year
	Since    time.Time `json:"since,omitzero"`
	Count    int       `json:"count"`
}

// PolicyLog reads the policy log of one sandbox, or of all with "". It is kept by name: a sandbox that reuses a name
// inherits the rows of the one before.
func (c *Client) PolicyLog(ctx context.Context, sandbox string, limit int) (PolicyLog, error) {
	const op = "policy log"
	args := []string{"policy", "log"}
	if sandbox != "" {
		if err := checkNames(op, []string{sandbox}); err != nil {
			return PolicyLog{}, err
		}
		args = append(args, sandbox)
	}
	if limit > 0 {
		args = append(args, "--limit", strconv.Itoa(limit))
	}
	out, err := c.read(ctx, op, args...)
	if err != nil {
		return PolicyLog{}, err
	}
	log, err := ParsePolicyLog(out)
	if err != nil {
		return PolicyLog{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return log, nil
}

// ParsePolicyLog reads the output of "sbx policy log", JSON or text.
func ParsePolicyLog(out []byte) (PolicyLog, error) {
	log := PolicyLog{Blocked: []LogEntry{}, Allowed: []LogEntry{}}
	if looksJSON(out) {
		type item struct {
			Host     string    `json:"host"`
			VMName   string    `json:"vm_name"`
			Proxy    string    `json:"proxy_type"`
			Rule     string    `json:"rule"`
			Reason   string    `json:"reason"`
			LastSeen looseTime `json:"last_seen"`
			Since    looseTime `json:"since"`
			Count    int       `json:"count_since"`
		}
		var doc struct {
			Blocked []item `json:"blocked_hosts"`
			Allowed []item `json:"allowed_hosts"`
		}
		var keys map[string]json.RawMessage
		if err := decodeJSON(out, "", &keys); err != nil {
			return PolicyLog{}, err
		}
		if keys["blocked_hosts"] == nil && keys["allowed_hosts"] == nil {
			return PolicyLog{}, malformed("JSON document is no policy log")
		}
		if err := decodeJSON(out, "", &doc); err != nil {
			return PolicyLog{}, err
		}
		entries := func(items []item, into *[]LogEntry) {
			for _, i := range items {
				*into = append(*into, LogEntry{i.VMName, i.Host, i.Proxy, i.Rule, i.Reason, i.LastSeen.Time, i.Since.Time, i.Count})
			}
		}
		entries(doc.Blocked, &log.Blocked)
		entries(doc.Allowed, &log.Allowed)
		return log, nil
	}
	return parsePolicyLogText(out, log)
}

func parsePolicyLogText(out []byte, log PolicyLog) (PolicyLog, error) {
	spec := tableSpec{
		columns: []column{
			{id: "sandbox", names: []string{"SANDBOX"}, word: true}, {id: "type", names: []string{"TYPE"}, word: true},
			{id: "host", names: []string{"HOST"}, word: true}, {id: "proxy", names: []string{"PROXY"}, word: true},
			{id: "rule", names: []string{"RULE"}}, {id: "reason", names: []string{"REASON"}},
			{id: "seen", names: []string{"LAST SEEN"}}, {id: "count", names: []string{"COUNT"}, word: true},
		},
		must: []string{"sandbox", "host", "count"},
		row:  []string{"host", "count"},
	}
	// Two tables, each under a line that says which: cut there, so that each is read with its own header.
	text := clean(out)
	section := ""
	parts := map[string]*strings.Builder{"Blocked requests:": {}, "Allowed requests:": {}, "": {}}
	for line := range strings.Lines(text) {
		if name := strings.TrimSpace(line); parts[name] != nil && name != "" {
			section = name
			continue
		}
		parts[section].WriteString(line)
	}
	seen := false
	for name, into := range map[string]*[]LogEntry{"Blocked requests:": &log.Blocked, "Allowed requests:": &log.Allowed} {
		tables, _, err := parseTables(parts[name].String(), spec)
		if err != nil {
			return PolicyLog{}, err
		}
		for _, t := range tables {
			seen = true
			for _, row := range t.rows {
				count, err := strconv.Atoi(row.text("count"))
				if err != nil || count < 0 {
					return PolicyLog{}, malformed("a row of the policy log")
				}
				*into = append(*into, LogEntry{
					Sandbox: row.text("sandbox"), Host: row.text("host"), Proxy: row.text("proxy"),
					Rule: row.text("rule"), Reason: row.text("reason"), Count: count,
				})
			}
		}
	}
	if !seen && !strings.Contains(parts[""].String(), "No policy log entries found") {
		return PolicyLog{}, malformed("no policy log in %d bytes", len(out))
	}
	return log, nil
}
