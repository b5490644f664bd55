package provision

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/sbx"
)

// kitOpens are the hosts that an engine opens to every sandbox of the kind that we make, whatever its policy says: the
// shell kit of sbx 0.38 and 0.39 opens this one under deny-all too.
func kitOpens(engine string) []string {
	if engine == pair.EngineSbx {
		return []string{"openrouter.ai"}
	}
	return nil
}

// extra is what the engine's own rules (global ones, a kit's, an organisation's) add to a role's.
type extra struct {
	deny  []string // resources to be denied to the sandbox: nothing of ours needs them
	notes []string // what stays open beside our own
}

// foreign looks through the engine's rules for those that open more than the spec does, or that close what it needs. What
// cannot be neutralised is refused by name, with an error that matches [ErrRefused].
func (p Plan) foreign(s Spec, listed []sbx.Rule) (extra, error) {
	var out extra
	var errs []error
	for _, r := range listed {
		if !concerns(r, s) {
			continue
		}
		resources := r.Resources
		for _, t := range r.HTTPTargets {
			resources = append(slices.Clone(resources), t.Host)
		}
		for _, text := range resources {
			res, err := readResource(text)
			if err != nil {
				if r.Decision == sbx.Allow { // a deny takes nothing from the split, and whom it hurts is told by the proof
					errs = append(errs, fmt.Errorf("%w: the engine's rule %s opens what cannot be read, so nobody can say what the %s sandbox would reach: %v; remove that rule", ErrRefused, ruleName(r), s.Role, err))
				}
				continue
			}
			plain := len(r.Methods) == 0 && len(r.HTTPTargets) == 0
			switch {
			case r.Decision == sbx.Deny:
				err = s.closed(r, res, plain)
			case r.Decision == sbx.Allow && !s.own(r, res):
				err = p.opened(s, r, res, listed, &out)
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	slices.Sort(out.deny)
	out.deny = slices.Compact(out.deny)
	return out, errors.Join(errs...)
}

// readResource reads what an engine lists as a rule's resource. sbx 0.35 stores a URL and never matches it; it is taken for its
// host, in case that another version does.
func readResource(text string) (policy.Resource, error) {
	res, err := policy.ParseResource(text)
	if errors.Is(err, policy.ErrURL) {
		if u, urlErr := url.Parse(strings.TrimSpace(text)); urlErr == nil && u.Host != "" {
			return policy.ParseResource(u.Host)
		}
	}
	return res, err
}

// concerns reports whether a rule that the engine lists decides about the sandbox's network.
func concerns(r sbx.Rule, s Spec) bool {
	return !r.Inactive && (r.Sandbox == "" || r.Sandbox == s.Name) && (r.ResourceType == "network" || r.ResourceType == "http")
}

// isFallback reports whether r is what the engine does with what no rule covers, which it lists as a rule.
func isFallback(r sbx.Rule) bool { return strings.HasPrefix(r.Name+r.ID, "default-deny-all") }

// own reports whether the rule's resource is one that the spec allows itself, or lies within one.
func (s Spec) own(r sbx.Rule, res policy.Resource) bool {
	return slices.ContainsFunc(s.Allow, func(o Rule) bool {
		mine, err := policy.ParseResource(o.Resource)
		return err == nil && mine.Includes(res) && (o.Path == "" || r.Sandbox == s.Name && slices.ContainsFunc(r.HTTPTargets, func(t sbx.HTTPTarget) bool { return t.Path == o.Path }))
	})
}

// closed refuses a deny of the engine that takes what the spec needs. Its fallback, which is listed as one, does not.
func (s Spec) closed(r sbx.Rule, res policy.Resource, plain bool) error {
	if !plain || isFallback(r) {
		return nil
	}
	for _, o := range s.Allow {
		if mine, err := policy.ParseResource(o.Resource); err == nil && o.Layer == LayerProfile && res.Includes(mine) {
			return fmt.Errorf("%w: the engine's rule %s denies %s, which the %s sandbox cannot do without (%s)", ErrRefused, ruleName(r), o.Resource, s.Role, o.Reason)
		}
	}
	return nil
}

// opened decides about one resource that the engine opens and the spec does not.
func (p Plan) opened(s Spec, r sbx.Rule, res policy.Resource, listed []sbx.Rule, out *extra) error {
	if slices.ContainsFunc(listed, func(d sbx.Rule) bool {
		return d.Decision == sbx.Deny && d.Sandbox == s.Name && len(d.HTTPTargets) == 0 && slices.ContainsFunc(d.Resources, func(text string) bool {
			denied, err := policy.ParseResource(text)
			return err == nil && denied.Includes(res)
		})
	}) {
		return nil
	}
	needs := slices.IndexFunc(s.Allow, func(o Rule) bool {
		mine, err := policy.ParseResource(o.Resource)
		return err == nil && (res.Includes(mine) || mine.Includes(res))
	})
	if needs < 0 {
		out.deny = append(out.deny, res.String())
		return nil
	}
	// A deny would take what the role needs, and an allow of the engine's cannot be narrowed.
	whose := fmt.Sprintf("the engine's rule %s opens %s to the %s sandbox", ruleName(r), res, s.Role)
	at := p.gitHub()
	switch {
	case res.Wide() != "":
		return fmt.Errorf("%w: %s, which %s; a pair needs the preset deny-all, or rules without that one", ErrRefused, whose, res.Wide())
	case s.Allow[needs].Path != "":
		return fmt.Errorf("%w: %s with every path, where %s is meant; remove that rule, or do without path rules (network.rules: hosts)", ErrRefused, whose, s.Allow[needs])
	case s.Role == pair.RoleAgent:
		if wide, own := crosses([]Rule{{Resource: res.String()}}, at, p.Agent.Secret.Hosts); wide != "" {
			return fmt.Errorf("%w: %s, and with it %s, which belongs to the github sandbox; remove that rule", ErrRefused, whose, own)
		}
	case s.Role == pair.RoleGitHub:
		for _, host := range p.Agent.Secret.Hosts {
			if covering([]Rule{{Resource: res.String()}}, host) != "" && !slices.Contains(at.Hosts(), host) {
				return fmt.Errorf("%w: %s, and with it %s, which belongs to the agent sandbox; remove that rule", ErrRefused, whose, host)
			}
		}
	}
	out.notes = append(out.notes, whose+", beside the sandbox's own "+s.Allow[needs].Resource)
	return nil
}

// ruleName names a rule of the engine for people.
func ruleName(r sbx.Rule) string {
	name := r.Name
	if name == "" {
		name = r.ID
	}
	if r.Source != "" && r.Source != "local" {
		name += " (" + r.Source + ")"
	}
	return name
}

// checkRules reads the engine's rules back: all of ours are there, and what others open beside them is denied, or refused.
func (a *apply) checkRules(ctx context.Context, want []sbx.PolicyRule) error {
	var listed []sbx.Rule
	err := a.call("policy ls", func() (err error) { listed, err = a.engine.PolicyList(ctx, ""); return err })
	if err == nil {
		err = sbx.CheckRules(listed, want...)
	}
	if err != nil {
		return err
	}
	var deny []sbx.PolicyRule
	for _, s := range a.plan.Specs() {
		more, err := a.plan.foreign(s, listed)
		if err != nil {
			return err
		}
		a.note(more.notes...)
		if len(more.deny) > 0 {
			deny = append(deny, sbx.PolicyRule{Sandbox: s.Name, Decision: sbx.Deny, Resources: more.deny})
			a.note(fmt.Sprintf("denied to the %s sandbox, since the engine's own rules open it: %s", s.Role, strings.Join(more.deny, ", ")))
		}
	}
	if len(deny) == 0 {
		return nil
	}
	var steps []func(context.Context) error
	for _, rule := range deny {
		_, role, _ := pair.ParseName(rule.Sandbox)
		steps = append(steps, func(ctx context.Context) error {
			return a.call("policy deny "+string(role), func() error { _, err := a.engine.PolicyDeny(ctx, rule); return err })
		})
	}
	if err := both(ctx, steps...); err != nil {
		return fmt.Errorf("deny what the engine's own rules open: %w", err)
	}
	return a.call("policy ls", func() error { return a.engine.VerifyRules(ctx, deny...) })
}
