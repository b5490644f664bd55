package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Effect is what a rule does with what it covers.
type Effect string

// The effects.
const (
	Allow Effect = "allow"
	Deny  Effect = "deny"
)

// Protocol is a transport of a rule.
type Protocol string

// The protocols. A sandbox of the local engine has no UDP at all; rules may still name it, as sbx's do.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// ErrRule matches the errors of [Rule.Check].
var ErrRule = errors.New("bad rule")

// A Rule allows or denies what its resources cover. Without methods and paths it is about connections; with them it is
// about single HTTP requests to its resources.
type Rule struct {
	ID        string // unique in its store; "" before it is stored
	Name      string // for people; a preset's group
	Effect    Effect
	Resources []Resource
	Protocols []Protocol    // empty: tcp
	Methods   []string      // empty: every method; GET covers HEAD
	Paths     []PathPattern // empty: every path
	Scope     string        // sandbox name; "" is global
	Layer     string        // who made it: "local", "default", "kit", "profile"
	Reason    string        // why it is there
}

// HTTP reports whether the rule is about single requests.
func (r Rule) HTTP() bool { return len(r.Methods) > 0 || len(r.Paths) > 0 }

// Check returns why the rule cannot work. The error matches [ErrRule] or is a [*ResourceError].
func (r Rule) Check() error {
	if r.Effect != Allow && r.Effect != Deny {
		return fmt.Errorf("%w: decision %q is neither allow nor deny", ErrRule, clip(string(r.Effect)))
	}
	if len(r.Resources) == 0 {
		return fmt.Errorf("%w: no resource", ErrRule)
	}
	for _, res := range r.Resources {
		if res == (Resource{}) {
			return &ResourceError{Kind: ErrEmpty}
		}
		if r.Effect == Allow {
			if err := res.Openable(); err != nil {
				return err
			}
		}
	}
	for _, p := range r.Protocols {
		if p != TCP && p != UDP {
			return fmt.Errorf("%w: protocol %q is neither tcp nor udp", ErrRule, clip(string(p)))
		}
	}
	if r.HTTP() && slices.Contains(r.Protocols, UDP) {
		return fmt.Errorf("%w: methods and paths are for tcp only", ErrRule)
	}
	for _, res := range r.Resources {
		if p, ok := res.Prefix(); ok && r.HTTP() && !p.IsSingleIP() {
			return fmt.Errorf("%w: methods and paths are for one host or address, and %s is a range: a name that leads there would pass by them", ErrRule, res)
		}
	}
	for _, m := range r.Methods {
		if m == "" || len(m) > 32 || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || m == "CONNECT" {
			return fmt.Errorf("%w: method %q", ErrRule, clip(m))
		}
	}
	return nil
}

// Covers reports whether the rule is about connections to, or requests on, host and port.
func (r Rule) Covers(h Host, port uint16) bool {
	return slices.ContainsFunc(r.Resources, func(res Resource) bool { return res.Covers(h, port) })
}

// hasTCP reports whether the rule counts for tcp, the only protocol the proxy carries.
func (r Rule) hasTCP() bool { return len(r.Protocols) == 0 || slices.Contains(r.Protocols, TCP) }

// coversMethod: a rule for GET is one for HEAD too, in both effects (package managers probe with HEAD).
func (r Rule) coversMethod(method string) bool {
	return len(r.Methods) == 0 || slices.Contains(r.Methods, method) ||
		method == "HEAD" && slices.Contains(r.Methods, "GET")
}

func (r Rule) coversPath(p Path) bool {
	if len(r.Paths) == 0 {
		return true
	}
	return slices.ContainsFunc(r.Paths, func(pat PathPattern) bool {
		if r.Effect == Deny {
			return pat.CoversAny(p)
		}
		return pat.CoversAll(p)
	})
}

// Label is how messages and logs name the rule: "local:UUID" for a stored one, its name for a preset's.
func (r Rule) Label() string {
	if r.Layer == "default" || r.Layer == "" {
		return r.ID
	}
	return r.Layer + ":" + r.ID
}
