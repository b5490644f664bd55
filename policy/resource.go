package policy

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Kinds of [ResourceError].
var (
	ErrEmpty       = errors.New("empty resource")
	ErrURL         = errors.New("a URL is not a resource")
	ErrUserinfo    = errors.New("a resource holds no user name")
	ErrPath        = errors.New("a resource holds no path")
	ErrWildcard    = errors.New("wildcard cannot match as written")
	ErrName        = errors.New("not a host name")
	ErrPort        = errors.New("bad port")
	ErrCIDR        = errors.New("bad address range")
	ErrUnreachable = errors.New("address cannot be reached by a rule")
)

// A ResourceError says why a resource is refused and what to write instead. It matches one of the kinds above.
type ResourceError struct {
	Resource string // as given, shortened
	Kind     error
	Hint     string // what to write instead; may be empty
}

func (e *ResourceError) Error() string {
	msg := fmt.Sprintf("resource %q: %v", e.Resource, e.Kind)
	if e.Hint != "" {
		msg += ": " + e.Hint
	}
	return msg
}

func (e *ResourceError) Unwrap() error { return e.Kind }

type kind uint8

const (
	kindNone kind = iota
	kindAny
	kindLocal
	kindExact
	kindPattern
	kindAddr
	kindPrefix
)

// A Resource is what a rule is about: a name, a pattern of names, an address, a range, a port of the host, or
// everything. Two resources are equal (==) if they mean the same by their canonical text. The zero Resource matches nothing.
type Resource struct {
	kind   kind
	name   string // canonical name or pattern
	prefix netip.Prefix
	port   uint16 // 0: every port
}

var (
	_ encoding.TextMarshaler   = Resource{}
	_ encoding.TextUnmarshaler = (*Resource)(nil)
)

// ParseResource reads one resource; the package comment has the language. The error is a [*ResourceError].
// Loopback and link-local addresses parse, because a deny may name them; see [Resource.Openable].
func ParseResource(text string) (Resource, error) {
	s := strings.TrimSpace(text)
	bad := func(kind error, hint string) (Resource, error) {
		return Resource{}, &ResourceError{clip(text), kind, hint}
	}
	switch {
	case s == "":
		return bad(ErrEmpty, "")
	case strings.Contains(s, "://"):
		return bad(ErrURL, "write the host and, if wanted, the port: "+hostOfURL(s))
	case strings.Contains(s, "@"):
		return bad(ErrUserinfo, "write the host only")
	case strings.ContainsAny(s, "?#") && strings.Contains(s, "/"):
		return bad(ErrPath, "write the host only")
	case strings.Contains(s, "/"):
		return parsePrefix(s, bad)
	}
	host, port, err := splitPort(s)
	if err != nil {
		return bad(ErrPort, err.Error())
	}
	switch host {
	case "**":
		return Resource{kind: kindAny, port: port}, nil
	case "*":
		return bad(ErrWildcard, "** is everything; *.example.com is one label")
	}
	switch strings.ToLower(strings.TrimSuffix(host, ".")) {
	case Localhost:
		if port == 0 {
			return bad(ErrUnreachable, "name the port of the host's loopback: localhost:PORT")
		}
		return Resource{kind: kindLocal, name: Localhost, port: port}, nil
	case HostAlias:
		return bad(ErrUnreachable, "rules name the host's loopback as localhost:PORT")
	}
	if strings.ContainsAny(host, "*?") || strings.Contains(host, "[") && !strings.HasPrefix(host, "[") ||
		strings.HasPrefix(host, "[") && !strings.HasSuffix(host, "]") {
		name, hint := canonicalPattern(host)
		if hint != "" {
			return bad(ErrWildcard, hint)
		}
		return Resource{kind: kindPattern, name: name, port: port}, nil
	}
	h, why := parseHost(host)
	if why != "" {
		return bad(ErrName, why)
	}
	if h.addr.IsValid() {
		return Resource{kind: kindAddr, prefix: netip.PrefixFrom(h.addr, h.addr.BitLen()), port: port}, nil
	}
	return Resource{kind: kindExact, name: h.name, port: port}, nil
}

func parsePrefix(s string, bad func(error, string) (Resource, error)) (Resource, error) {
	body, port := s, uint16(0)
	if slash := strings.IndexByte(s, '/'); slash >= 0 {
		if colon := strings.LastIndexByte(s, ':'); colon > slash {
			p, err := parsePort(s[colon+1:])
			if err != nil {
				return bad(ErrPort, err.Error())
			}
			body, port = s[:colon], p
		}
	}
	if strings.HasPrefix(body, "[") && strings.HasSuffix(body, "]") {
		body = body[1 : len(body)-1]
	}
	base, _, _ := strings.Cut(body, "/")
	if _, err := netip.ParseAddr(base); err != nil {
		return bad(ErrPath, "write the host only; a range is written 10.0.0.0/8")
	}
	p, err := netip.ParsePrefix(body)
	if err != nil {
		return bad(ErrCIDR, "a range is an address and a length of at most 32 (IPv4) or 128 (IPv6) bits")
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return bad(ErrCIDR, "write the range in its IPv4 form")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return bad(ErrCIDR, "bits are set behind the length; did you mean "+p.Masked().String()+"?")
	}
	return Resource{kind: kindPrefix, prefix: p, port: port}, nil
}

// canonicalPattern returns the canonical form of a pattern of names, or a hint why it cannot be one.
func canonicalPattern(s string) (name, hint string) {
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	plain := 0
	for i := len(labels) - 1; i >= 0; i-- {
		l := labels[i]
		wild := strings.ContainsAny(l, "*?[]")
		switch {
		case !wild:
			ascii, why := canonicalName(l)
			if why != "" {
				return "", why
			}
			labels[i] = ascii
			plain++
		case l == "**":
			if i != 0 {
				return "", "** stands only in front: **.example.com"
			}
			if plain == 0 {
				return "", "name at least one label behind **."
			}
		case plain == 0:
			return "", "a wildcard needs a name behind it: " + suggest(s)
		case l == "*":
		case plain < 2:
			return "", "a wildcard inside a label would match look-alikes; write " + suggest(s)
		default:
			l = strings.ToLower(l)
			if strings.Contains(l, "**") || !globOK(l) {
				return "", "inside a label only *, ? and [abc] are known"
			}
			labels[i] = l
		}
	}
	// A pattern of addresses, such as 192.168.1.*, looks like one of names and would never match.
	if slices.ContainsFunc(labels, func(l string) bool { return !strings.ContainsAny(l, "*?[]") && endsInNumber(l) }) {
		if plainDigits(labels) {
			return "", "write a range of addresses as 192.168.1.0/24"
		}
	}
	if last := labels[len(labels)-1]; endsInNumber(last) {
		return "", "a name does not end in a number; write a range of addresses as 192.168.1.0/24"
	}
	return strings.Join(labels, "."), ""
}

func plainDigits(labels []string) bool {
	return !slices.ContainsFunc(labels, func(l string) bool { return strings.Trim(l, "0123456789*?[]-") != "" })
}

func suggest(s string) string {
	rest := strings.TrimLeft(s, "*?.")
	if !strings.Contains(rest, ".") {
		return "*.example." + strings.Trim(rest, "[]*?")
	}
	return "*." + rest
}

// globOK admits name bytes, * and ?, and sets of name bytes.
func globOK(l string) bool {
	if _, err := path.Match(l, ""); err != nil {
		return false
	}
	for i := range len(l) {
		if c := l[i]; !isNameByte(c) && !strings.ContainsRune("*?[]^", rune(c)) {
			return false
		}
	}
	return true
}

// hostOfURL gives what the user most likely meant; only for a hint.
func hostOfURL(s string) string {
	_, rest, _ := strings.Cut(s, "://")
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	return clip(rest)
}

// String returns the canonical text; ParseResource of it gives an equal resource.
func (r Resource) String() string {
	var s string
	switch r.kind {
	case kindNone:
		return ""
	case kindAny:
		s = "**"
	case kindAddr:
		s = r.prefix.Addr().String()
		if r.port != 0 && r.prefix.Addr().Is6() {
			s = "[" + s + "]"
		}
	case kindPrefix:
		s = r.prefix.String()
		if r.port != 0 && r.prefix.Addr().Is6() {
			s = "[" + s + "]"
		}
	default:
		s = r.name
	}
	if r.port != 0 {
		s += ":" + strconv.Itoa(int(r.port))
	}
	return s
}

// MarshalText returns the canonical text.
func (r Resource) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is [ParseResource].
func (r *Resource) UnmarshalText(b []byte) error {
	parsed, err := ParseResource(string(b))
	if err == nil {
		*r = parsed
	}
	return err
}

// Port returns the port, or 0 if the resource covers every port.
func (r Resource) Port() uint16 { return r.port }

// Prefix returns the address or range; ok is false for names.
func (r Resource) Prefix() (p netip.Prefix, ok bool) {
	return r.prefix, r.kind == kindAddr || r.kind == kindPrefix
}

// Name returns the name or pattern without the port, "" for addresses, ranges and **.
func (r Resource) Name() string { return r.name }

// IsAny reports whether r is **, with or without a port.
func (r Resource) IsAny() bool { return r.kind == kindAny }

// Openable returns nil if an allow rule for r can take effect. The error is a [*ResourceError] of kind
// [ErrUnreachable]: the proxy never dials loopback, link-local, multicast or unspecified addresses by address.
func (r Resource) Openable() error {
	p, ok := r.Prefix()
	if !ok || p.Bits() == 0 {
		return nil
	}
	why := unreachable(p.Addr())
	if why == "" {
		return nil
	}
	hint := why + " addresses stay closed"
	if why == "loopback" {
		hint = "name a port of the host's loopback as localhost:PORT"
	}
	return &ResourceError{r.String(), ErrUnreachable, hint}
}

// Covers reports whether r is about host and port. An address in host is compared with ranges; a name is not resolved.
func (r Resource) Covers(h Host, port uint16) bool {
	if r.kind == kindNone || h.IsZero() || r.port != 0 && r.port != port {
		return false
	}
	switch r.kind {
	case kindAny:
		return true
	case kindLocal, kindExact:
		return r.name == h.name
	case kindAddr, kindPrefix:
		return h.addr.IsValid() && r.prefix.Contains(h.addr)
	}
	return h.name != "" && coversName(r.name, h.name)
}

// coversName walks both from the right, so that neither a look-alike in front nor a suffix behind can slip in.
func coversName(pattern, name string) bool {
	for {
		pRest, pLabel := cutLast(pattern)
		nRest, nLabel := cutLast(name)
		if pLabel == "**" {
			return name != ""
		}
		if nLabel == "" {
			return false
		}
		if pLabel != "*" && pLabel != nLabel {
			if !strings.ContainsAny(pLabel, "*?[") {
				return false
			}
			if ok, err := path.Match(pLabel, nLabel); err != nil || !ok {
				return false
			}
		}
		if pRest == "" || nRest == "" {
			return pRest == "" && nRest == ""
		}
		pattern, name = pRest, nRest
	}
}

func cutLast(s string) (rest, label string) {
	dot := strings.LastIndexByte(s, '.')
	if dot < 0 {
		return "", s
	}
	return s[:dot], s[dot+1:]
}

// ParseResources reads a comma separated list, as "policy allow network" takes it. Nothing is left out silently: the
// first bad element is the error, and an empty element is bad.
func ParseResources(list string) ([]Resource, error) {
	var out []Resource
	for part := range strings.SplitSeq(list, ",") {
		r, err := ParseResource(part)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out, nil
}
