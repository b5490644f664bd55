package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// HostAlias is the name under which a sandbox reaches the loopback of its host; rules say "localhost" instead (sbx 0.47).
const HostAlias = "host.docker.internal"

// Localhost is the name that rules and requests use for the host's loopback.
const Localhost = "localhost"

// ErrHost matches every error of [ParseHost] and [ParseHostPort].
var ErrHost = errors.New("not a host name or address")

// A Host is a name or an address in canonical form. The zero Host is no host.
type Host struct {
	name string     // lower case ASCII without root dot; empty if addr is valid
	addr netip.Addr // unmapped, without zone
}

// ParseHost returns the canonical form of s: a name in any case, with or without a root dot, in Unicode or IDNA
// ASCII; or an address, IPv6 with or without brackets. The error matches [ErrHost]. Numbers that some resolvers read
// as addresses (127.1, 0x7f000001) are refused, because two readers could disagree on them.
func ParseHost(s string) (Host, error) {
	h, why := parseHost(s)
	if why != "" {
		return Host{}, fmt.Errorf("%w: %q: %s", ErrHost, clip(s), why)
	}
	return h, nil
}

func parseHost(s string) (h Host, why string) {
	bad := func(why string) (Host, string) { return Host{}, why }
	if s == "" {
		return bad("empty")
	}
	if strings.HasPrefix(s, "[") != strings.HasSuffix(s, "]") {
		return bad("unbalanced bracket")
	}
	bracketed := strings.HasPrefix(s, "[")
	text := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if addr, err := netip.ParseAddr(text); err == nil {
		if addr.Zone() != "" {
			return bad("an address with a zone means nothing outside its machine")
		}
		if bracketed && addr.Is4() {
			return bad("brackets are for IPv6")
		}
		return Host{addr: addr.Unmap()}, ""
	}
	if bracketed {
		return bad("no IPv6 address in the brackets")
	}
	name, why := canonicalName(text)
	if why != "" {
		return bad(why)
	}
	// A name of digits can become an address by mapping (full-width digits).
	if addr, err := netip.ParseAddr(name); err == nil {
		return Host{addr: addr.Unmap()}, ""
	}
	if endsInNumber(name) {
		return bad("a number that may be read as an address; write the address in full")
	}
	return Host{name: name}, ""
}

// HostOf returns the Host of an address.
func HostOf(a netip.Addr) Host { return Host{addr: a.WithZone("").Unmap()} }

// String returns the canonical form, IPv6 without brackets.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// Addr returns the address, or the zero Addr if h is a name.
func (h Host) Addr() netip.Addr { return h.addr }

// IsZero reports whether h is no host.
func (h Host) IsZero() bool { return h.name == "" && !h.addr.IsValid() }

// Join returns "host:port", IPv6 in brackets.
func (h Host) Join(port uint16) string { return net.JoinHostPort(h.String(), strconv.Itoa(int(port))) }

// ParseHostPort reads "host", "host:port" or "[v6]:port" and gives fallback where there is no port. The error matches [ErrHost].
func ParseHostPort(s string, fallback uint16) (Host, uint16, error) {
	host, port, err := splitPort(s)
	if err != nil {
		return Host{}, 0, fmt.Errorf("%w: %q: %w", ErrHost, clip(s), err)
	}
	h, err := ParseHost(host)
	if err != nil {
		return Host{}, 0, err
	}
	if port == 0 {
		port = fallback
	}
	return h, port, nil
}

// splitPort takes a port off the end of s; 0 is "none given". A bare IPv6 address has no port.
func splitPort(s string) (host string, port uint16, err error) {
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 || strings.HasSuffix(s, "]") {
		return s, 0, nil
	}
	if strings.Count(s, ":") > 1 && !strings.Contains(s, "]:") {
		return s, 0, nil // bare IPv6 address or range
	}
	port, err = parsePort(s[colon+1:])
	return s[:colon], port, err
}

var (
	errPort      = errors.New("a port is a number from 1 to 65535")
	errPortRange = errors.New("ranges of ports are not supported; add one rule for each port")
)

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	switch {
	case err == nil && n > 0 && s[0] != '+':
		return uint16(n), nil
	case strings.Contains(s, "-") && strings.Trim(s, "0123456789-") == "":
		return 0, errPortRange
	}
	return 0, errPort
}

// canonicalName returns the canonical form of a DNS name, or why it is none.
func canonicalName(s string) (name, why string) {
	if !utf8.ValidString(s) {
		return "", "not valid UTF-8"
	}
	s = strings.TrimSuffix(s, ".")
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return "", "control character"
		}
	}
	ascii := strings.ToLower(s)
	if !isASCII(s) || hasACELabel(ascii) {
		// Lookup maps case and width, and checks that an xn-- label is a real and canonical one.
		mapped, err := idna.Lookup.ToASCII(s)
		if err != nil {
			return "", "not a valid international name"
		}
		ascii = strings.TrimSuffix(strings.ToLower(mapped), ".")
		// Some input maps to what is not valid itself; a canonical form is its own.
		if again, err := idna.Lookup.ToASCII(ascii); err != nil || again != ascii {
			return "", "not a valid international name"
		}
	}
	if len(ascii) > 253 {
		return "", "longer than 253 characters"
	}
	for label := range strings.SplitSeq(ascii, ".") {
		if why := checkLabel(label); why != "" {
			return "", why
		}
	}
	return ascii, ""
}

func checkLabel(l string) string {
	switch {
	case l == "":
		return "empty label"
	case len(l) > 63:
		return "label longer than 63 characters"
	case l[0] == '-' || l[len(l)-1] == '-':
		return "label begins or ends with a hyphen"
	}
	for i := range len(l) {
		if !isNameByte(l[i]) {
			return fmt.Sprintf("character %q is not allowed in a name", l[i])
		}
	}
	return ""
}

// isNameByte admits the underscore: names of services and some clouds have it.
func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func hasACELabel(lower string) bool {
	return strings.HasPrefix(lower, "xn--") || strings.Contains(lower, ".xn--")
}

// endsInNumber follows the URL standard: a host whose last label is a decimal or 0x number is an address to some readers.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if strings.Trim(last, "0123456789") == "" {
		return true
	}
	hex, ok := strings.CutPrefix(last, "0x")
	return ok && strings.Trim(hex, "0123456789abcdef") == ""
}

// clip bounds what an error quotes.
func clip(s string) string {
	const limit = 120
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "..."
}
