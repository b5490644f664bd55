package policy

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Request is what a decision is asked for.
type Request struct {
	Host Host
	Port uint16
	// Addr is the address that would be dialled, once it is known. The zero Addr leaves the check of addresses out.
	Addr netip.Addr
	// Method and Path belong to one HTTP request. An empty Method asks about the connection.
	Method string
	Path   Path
}

// Kind says how a decision came about.
type Kind string

// The kinds of decisions.
const (
	Explicit Kind = "explicit" // a rule covers the request
	Implicit Kind = "implicit" // no rule does
	Guarded  Kind = "guarded"  // the address is a special one that no rule names
)

// A Decision says whether a request may go, which rule decided and why.
type Decision struct {
	Allowed bool
	Kind    Kind
	Rule    string // Rule.Label of the deciding rule; "" if there is none
	Layer   string
	Reason  string // one sentence for people
	Hint    string // what would change a denial; may be empty
	// Inspect: rules about methods or paths exist for this host and port, so single requests must be looked at.
	Inspect bool
}

// A Set is the rules that hold for one sandbox, ready for decisions. It does not change and is safe for concurrent
// use. The zero Set and a nil *Set deny everything.
type Set struct {
	allow, deny []Rule
	addrs       *AddrTable
}

// NewSet returns the Set of rules; scopes are not looked at. It keeps the rules: do not change them afterwards.
func NewSet(rules []Rule) *Set {
	s := &Set{addrs: NewAddrTable()}
	for _, r := range rules {
		switch {
		case !r.hasTCP():
		case r.Effect == Deny:
			s.deny = append(s.deny, r)
		case r.Effect == Allow:
			s.allow = append(s.allow, r)
		}
	}
	return s
}

// Decide decides q. With an empty Method it decides whether a connection may be opened at all: one that is open only
// for some requests is allowed, with Inspect set.
func (s *Set) Decide(q Request) Decision {
	if s == nil || q.Host.IsZero() {
		return s.implicit(q, false)
	}
	inspect := false
	for _, r := range s.deny {
		if !r.Covers(q.Host, q.Port) && !coversAddr(r, q) {
			continue
		}
		inspect = inspect || r.HTTP()
		if r.HTTP() && (q.Method == "" || !r.coversMethod(q.Method) || !r.coversPath(q.Path)) {
			continue
		}
		return Decision{Kind: Explicit, Rule: r.Label(), Layer: r.Layer, Reason: reason("Denied", r), Inspect: inspect}
	}
	var by *Rule
	for i, r := range s.allow {
		if !r.Covers(q.Host, q.Port) || q.Host.name == Localhost && !names(r) {
			continue
		}
		inspect = inspect || r.HTTP()
		if r.HTTP() && q.Method != "" && (!r.coversMethod(q.Method) || !r.coversPath(q.Path)) {
			continue
		}
		if by == nil {
			by = &s.allow[i]
		}
	}
	if by == nil {
		return s.implicit(q, inspect)
	}
	if d, ok := s.guard(q); !ok {
		d.Inspect = inspect
		return d
	}
	return Decision{Allowed: true, Kind: Explicit, Rule: by.Label(), Layer: by.Layer, Reason: reason("Allowed", *by), Inspect: inspect}
}

// coversAddr lets a denied range bite on the address that a name resolved to.
func coversAddr(r Rule, q Request) bool {
	return q.Addr.IsValid() && r.Covers(HostOf(q.Addr), q.Port)
}

// names reports whether a rule spells out the host's loopback; ** does not open it.
func names(r Rule) bool {
	for _, res := range r.Resources {
		if res.kind == kindLocal {
			return true
		}
	}
	return false
}

// guard refuses special addresses that no allow rule names.
func (s *Set) guard(q Request) (Decision, bool) {
	addr := q.Addr
	if !addr.IsValid() {
		addr = q.Host.addr
	}
	if !addr.IsValid() || q.Host.name == Localhost {
		return Decision{}, true
	}
	addr = addr.WithZone("").Unmap()
	class := s.addrs.Class(addr)
	if class == "" {
		return Decision{}, true
	}
	d := Decision{Kind: Guarded, Reason: fmt.Sprintf("Address %s is %s and no rule names it", addr, class)}
	if unreachable(addr) != "" {
		d.Reason = fmt.Sprintf("Address %s is %s, which no rule can open", addr, class)
		return d, false
	}
	for _, r := range s.allow {
		if r.HTTP() && !q.Host.addr.IsValid() {
			continue // it opens some requests to that address, and not all that an allowed name which leads there may ask for
		}
		for _, res := range r.Resources {
			// A range of everything names nothing.
			if p, ok := res.Prefix(); ok && p.Bits() > 0 && res.Covers(HostOf(addr), q.Port) {
				return Decision{}, true
			}
		}
	}
	d.Hint = "allow " + HostOf(addr).Join(q.Port) + " by address if this is meant"
	return d, false
}

func (s *Set) implicit(q Request, inspect bool) Decision {
	d := Decision{Kind: Implicit, Reason: "No matching allow rule (default deny)", Inspect: inspect}
	switch {
	case s == nil || q.Host.IsZero():
	case inspect && q.Method != "":
		d.Reason = fmt.Sprintf("No allow rule covers %s %s on this host (default deny)", clip(q.Method), clip(q.Path.String()))
	default:
		d.Hint = s.hint(q)
	}
	return d
}

func reason(verb string, r Rule) string {
	layer := r.Layer
	if layer == "" {
		layer = "local"
	}
	if layer == "default" {
		return verb + " by preset rule " + r.ID
	}
	return verb + " by " + layer + " rule"
}

// hint looks for the allow rule that was probably meant to cover q (docker/sbx-releases#516: only the apex allowed).
func (s *Set) hint(q Request) string {
	host := q.Host.String()
	for _, r := range s.allow {
		for _, res := range r.Resources {
			switch {
			case res.kind == kindLocal && q.Host.name == Localhost:
				return fmt.Sprintf("rule %s allows %s, another port", r.Label(), res)
			case res.Covers(q.Host, res.port):
				if res.port != q.Port && res.port != 0 {
					return fmt.Sprintf("rule %s allows %s on port %d only", r.Label(), res.bare(), res.port)
				}
			case res.kind == kindExact && strings.HasSuffix(host, "."+res.name):
				return fmt.Sprintf("rule %s allows %s itself only; **.%s would cover this name", r.Label(), res.name, res.name)
			case res.kind == kindPattern:
				base := strings.TrimPrefix(strings.TrimPrefix(res.name, "**."), "*.")
				switch {
				case host == base:
					return fmt.Sprintf("rule %s allows names below %s; %s itself needs a rule of its own", r.Label(), base, base)
				case strings.HasPrefix(res.name, "*.") && strings.HasSuffix(host, "."+base):
					return fmt.Sprintf("rule %s allows one label; **.%s would cover this name", r.Label(), base)
				}
			case res.kind == kindExact && sibling(host, res.name):
				return fmt.Sprintf("rule %s allows %s, a sibling; this name needs a rule of its own", r.Label(), res.name)
			}
		}
	}
	return ""
}

// bare is the resource without its port.
func (r Resource) bare() Resource {
	r.port = 0
	return r
}

// sibling reports whether both names differ only in their first label, with at least two labels behind it.
func sibling(a, b string) bool {
	_, aRest, ok := strings.Cut(a, ".")
	_, bRest, _ := strings.Cut(b, ".")
	return ok && aRest == bRest && strings.Contains(aRest, ".")
}
