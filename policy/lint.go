package policy

import (
	"fmt"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Problem is a kind of [Finding].
type Problem string

// The problems.
const (
	TooWide  Problem = "too wide"
	Inert    Problem = "inert"    // can never take effect
	Shadowed Problem = "shadowed" // another rule decides everything it covers
	// LookAlike is a name that reads like one of a role's own hosts and belongs to somebody else.
	LookAlike Problem = "look-alike"
)

// A Finding is something wrong with a rule.
type Finding struct {
	Problem  Problem  `json:"problem"`
	Rule     string   `json:"rule,omitempty"` // Rule.Label, may be empty for a rule that is not stored
	Resource Resource `json:"resource"`
	Detail   string   `json:"detail"`
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s", f.Resource, f.Problem, f.Detail)
}

// Wide returns why an allow of r is too wide for a role of ours, or "". A governed sbx daemon refuses such rules too
// (docker/docs#24611); scoped wildcards pass.
func (r Resource) Wide() string {
	switch r.kind {
	case kindAny:
		return "covers everything"
	case kindPrefix:
		limit := 8
		if r.prefix.Addr().Is6() {
			limit = 32
		}
		if r.prefix.Bits() < limit {
			return fmt.Sprintf("range of more than a /%d", limit)
		}
	case kindPattern:
		base := r.name
		for {
			label, rest, ok := strings.Cut(base, ".")
			if !strings.ContainsAny(label, "*?[") {
				break
			}
			if !ok {
				return "covers everything"
			}
			base = rest
		}
		if suffix, icann := publicsuffix.PublicSuffix(base); suffix == base && (icann || !strings.Contains(base, ".")) {
			return "covers every name below the public suffix " + base
		}
	}
	return ""
}

// Lint returns what is wrong with rules as one set, in their order.
func Lint(rules []Rule) []Finding {
	var found []Finding
	known := knownHosts()
	for i, r := range rules {
		for _, res := range r.Resources {
			add := func(p Problem, detail string) { found = append(found, Finding{p, r.Label(), res, detail}) }
			if r.Effect == Deny {
				continue
			}
			if why := res.Wide(); why != "" {
				add(TooWide, why)
			}
			if err := res.Openable(); err != nil {
				add(Inert, err.Error())
			}
			if other, ok := shadow(rules, i, res); ok {
				add(Shadowed, other)
			}
			if like := res.looksLike(known); like != "" {
				add(LookAlike, "reads like "+like+", and is another domain")
			}
		}
	}
	return found
}

// shadow looks for the rule that decides all of one allowed resource: a plain deny that covers it, or a plain allow that
// makes this one superfluous. Of two that say the same the later one is the superfluous one.
func shadow(rules []Rule, i int, res Resource) (string, bool) {
	allowed := ""
	for j, r := range rules {
		if j == i || r.HTTP() {
			continue
		}
		for _, other := range r.Resources {
			if !other.Includes(res) {
				continue
			}
			if r.Effect == Deny {
				return "denied by " + other.String(), true
			}
			same := other == res && !rules[i].HTTP()
			if allowed == "" && (!same || j < i) {
				allowed = "allowed already by " + other.String()
				if rules[i].HTTP() {
					allowed += ", with every path"
				}
			}
		}
	}
	return allowed, allowed != ""
}

// Includes reports whether everything that o covers is covered by r, as far as their forms tell.
func (r Resource) Includes(o Resource) bool {
	if r.port != 0 && r.port != o.port {
		return false
	}
	switch {
	case r.kind == kindAny, r.bare() == o.bare():
		return true
	case r.kind == kindPrefix && (o.kind == kindPrefix || o.kind == kindAddr):
		return r.prefix.Bits() <= o.prefix.Bits() && r.prefix.Contains(o.prefix.Addr())
	case r.kind == kindPattern && o.kind == kindExact:
		return coversName(r.name, o.name)
	case r.kind == kindPattern && o.kind == kindPattern && strings.HasPrefix(r.name, "**."):
		return strings.HasSuffix("."+o.name, "."+strings.TrimPrefix(r.name, "**."))
	}
	return false
}
