package sbx

import (
	"context"
	"fmt"
	"strings"
)

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
	out, err := c.query(ctx, op, append(args, "--json")...)
	if err != nil {
		return nil, err
	}
	rules, err := ParseRules(out)
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
	if r.ID == "" || r.ResourceType == "" || len(r.Resources) == 0 && len(r.HTTPTargets) == 0 {
		return Rule{}, malformed("rule about nothing")
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
func ParseRules(out []byte) ([]Rule, error) { return showing(out, readRules, checkRules) }

func readRules(out []byte) ([]Rule, error) {
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
		return nil, malformed("no rule listing")
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
	if id := strings.TrimPrefix(rule.Name, "local:"); rule.ID == "" && isWord(id) { // below 0.35 the name was the id
		rule.ID = id
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
	out, err := c.query(ctx, op, "policy", "inspect", id, "--json")
	if err != nil {
		return Rule{}, err
	}
	rule, err := ParseRule(out)
	if err != nil {
		return Rule{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return rule, nil
}

// ParseRule reads the JSON of "sbx policy inspect": a rule, or an object with the rule in it.
func ParseRule(out []byte) (Rule, error) {
	return showing(out, readRule, func(r Rule) error { return checkRule(&r) })
}

func readRule(out []byte) (Rule, error) {
	var doc struct {
		ruleJSON
		Rule *ruleJSON `json:"rule"`
	}
	if err := decodeJSON(out, "id|rule", &doc); err != nil {
		return Rule{}, err
	}
	inner := doc.ruleJSON
	if doc.Rule != nil {
		inner = *doc.Rule
	}
	return inner.rule()
}
