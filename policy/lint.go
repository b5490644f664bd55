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
)

// A Finding is something wrong with a rule.
type Finding struct {
	Problem  Problem
	Rule     string // Rule.Label, may be empty for a rule that is not stored
	Resource Resource
	Detail   string
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
				add(Shadowed, "denied by "+other)
			}
		}
	}
	return found
}

// shadow looks for a plain deny that covers all of one allowed resource.
func shadow(rules []Rule, i int, res Resource) (string, bool) {
	for j, r := range rules {
		if j == i || r.Effect != Deny || r.HTTP() {
			continue
		}
		for _, d := range r.Resources {
			if d.includes(res) {
				return d.String(), true
			}
		}
	}
	return "", false
}

// includes reports whether everything that o covers is covered by r.
func (r Resource) includes(o Resource) bool {
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
