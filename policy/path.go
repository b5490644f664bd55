package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// ErrRequestPath matches the errors of [ParsePath].
var ErrRequestPath = errors.New("request path cannot be decided on")

// ErrPattern matches the errors of [ParsePathPattern].
var ErrPattern = errors.New("bad path pattern")

// A Path is a request path made ready for a decision: dot segments resolved, doubled slashes collapsed, escapes
// decoded. An encoded slash can be read in two ways; both are kept.
type Path struct {
	split  []string // %2F read as a separator
	whole  []string // %2F read as a part of its segment
	wire   string   // what to send: dot segments and doubled slashes gone, escapes as they came
	change bool
}

// ParsePath reads the escaped path of a request, without query. The error matches [ErrRequestPath]: a bad escape,
// a control character, a backslash, a path that does not begin with a slash, a segment that some servers read as a dot
// segment and others do not ("..;", "..%2f", double escaping of a dot or slash).
func ParsePath(escaped string) (Path, error) {
	bad := func(why string) (Path, error) { return Path{}, fmt.Errorf("%w: %s", ErrRequestPath, why) }
	if escaped == "*" { // OPTIONS *
		return Path{split: []string{"*"}, whole: []string{"*"}, wire: "*"}, nil
	}
	if !strings.HasPrefix(escaped, "/") {
		return bad("it does not begin with a slash")
	}
	var p Path
	var wire []string
	segments := strings.Split(escaped[1:], "/")
	trailing := false
	for i, raw := range segments {
		text, ok := unescape(raw)
		if !ok {
			return bad("bad percent escape")
		}
		if why := ambiguous(text); why != "" {
			return bad(why)
		}
		last := i == len(segments)-1
		switch text {
		case "":
			trailing = last
		case ".":
			trailing = last
		case "..":
			trailing = last
			p.split, p.whole, wire = dropSegment(p.split, p.whole, wire)
		default:
			trailing = false
			p.whole = append(p.whole, text)
			p.split = append(p.split, strings.FieldsFunc(text, func(r rune) bool { return r == '/' })...)
			wire = append(wire, raw)
		}
	}
	p.wire = "/" + strings.Join(wire, "/")
	if trailing && len(wire) > 0 {
		p.wire += "/"
	}
	p.change = p.wire != escaped
	return p, nil
}

// dropSegment takes the last segment off all three readings; one wire segment can be several in the split reading.
func dropSegment(split, whole, wire []string) (s, w, r []string) {
	if len(whole) == 0 {
		return split, whole, wire
	}
	n := len(strings.FieldsFunc(whole[len(whole)-1], func(r rune) bool { return r == '/' }))
	return split[:len(split)-n], whole[:len(whole)-1], wire[:len(wire)-1]
}

func unescape(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		hi, lo := unhex(s[i+1]), unhex(s[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// ambiguous returns why two servers may read a decoded segment differently in a way that moves the path.
func ambiguous(text string) string {
	for i := range len(text) {
		if text[i] < ' ' || text[i] == 0x7f {
			return "control character"
		}
	}
	if strings.Contains(text, `\`) {
		return "backslash"
	}
	lower := strings.ToLower(text)
	for _, again := range []string{"%2e", "%2f", "%5c", "%25"} {
		if strings.Contains(lower, again) {
			return "doubled percent escape"
		}
	}
	name, _, params := strings.Cut(text, ";")
	if params && (name == "." || name == "..") {
		return "dot segment with parameters"
	}
	if strings.Contains(text, "/") {
		for part := range strings.SplitSeq(text, "/") {
			part, _, _ = strings.Cut(part, ";")
			if part == "." || part == ".." {
				return "encoded slash beside a dot segment"
			}
		}
	}
	return ""
}

// String returns the path as it is decided on, with encoded slashes decoded.
func (p Path) String() string { return "/" + strings.Join(p.split, "/") }

// Wire returns the escaped path to send to the server, so that what was decided is what is asked for.
func (p Path) Wire() string { return p.wire }

// Changed reports whether Wire differs from what was given.
func (p Path) Changed() bool { return p.change }

// A PathPattern covers request paths: * stands for anything within one segment, ** for any number of whole segments,
// none included, so /repos/a/** covers /repos/a as well. It is compared with the decoded path; a query never counts.
type PathPattern struct {
	text string
}

// ParsePathPattern reads a pattern. The error matches [ErrPattern].
func ParsePathPattern(s string) (PathPattern, error) {
	bad := func(why string) (PathPattern, error) {
		return PathPattern{}, fmt.Errorf("%w %q: %s", ErrPattern, clip(s), why)
	}
	if !strings.HasPrefix(s, "/") {
		return bad("it begins with a slash")
	}
	if strings.ContainsAny(s, "?#%\\") {
		return bad("no query, fragment, escape or backslash")
	}
	segments := strings.Split(s[1:], "/")
	for i, seg := range segments {
		switch {
		case seg == "" && i < len(segments)-1:
			return bad("empty segment")
		case seg == "." || seg == "..":
			return bad("dot segment")
		case seg != "**" && strings.Contains(seg, "**"):
			return bad("** stands alone in its segment")
		case seg == "**" && i > 0 && segments[i-1] == "**":
			return bad("doubled **")
		}
		for j := range len(seg) {
			if seg[j] <= ' ' || seg[j] == 0x7f {
				return bad("space or control character")
			}
		}
		if _, err := path.Match(seg, ""); err != nil {
			return bad("unfinished set of characters")
		}
	}
	return PathPattern{s}, nil
}

// String returns the text.
func (p PathPattern) String() string { return p.text }

// MarshalText returns the text.
func (p PathPattern) MarshalText() ([]byte, error) { return []byte(p.text), nil }

// UnmarshalText is [ParsePathPattern].
func (p *PathPattern) UnmarshalText(b []byte) error {
	parsed, err := ParsePathPattern(string(b))
	if err == nil {
		*p = parsed
	}
	return err
}

func (p PathPattern) segments() []string {
	return slices.DeleteFunc(strings.Split(strings.TrimPrefix(p.text, "/"), "/"), func(s string) bool { return s == "" })
}

// CoversAll reports whether the path is covered in both readings of an encoded slash: the test of an allow.
func (p PathPattern) CoversAll(t Path) bool {
	pat := p.segments()
	return matchSegments(pat, t.split, false) && matchSegments(pat, t.whole, false)
}

// CoversAny reports whether the path is covered in one reading, whatever the case of letters: the test of a deny.
func (p PathPattern) CoversAny(t Path) bool {
	pat := p.segments()
	return matchSegments(pat, t.split, true) || matchSegments(pat, t.whole, true)
}

// matchSegments is linear in segments for each **, with one back-up point: no pattern makes it slow.
func matchSegments(pat, seg []string, fold bool) bool {
	p, s, star, mark := 0, 0, -1, 0
	for s < len(seg) {
		switch {
		case p < len(pat) && pat[p] == "**":
			star, mark = p, s
			p++
		case p < len(pat) && matchSegment(pat[p], seg[s], fold):
			p++
			s++
		case star >= 0:
			mark++
			p, s = star+1, mark
		default:
			return false
		}
	}
	for p < len(pat) && pat[p] == "**" {
		p++
	}
	return p == len(pat)
}

func matchSegment(pat, seg string, fold bool) bool {
	if fold {
		pat, seg = strings.ToLower(pat), strings.ToLower(seg)
	}
	if !strings.ContainsAny(pat, "*?[") {
		return pat == seg
	}
	// path.Match gives a slash a meaning of its own, which an encoded one does not have.
	ok, err := path.Match(pat, strings.ReplaceAll(seg, "/", "\x00"))
	return err == nil && ok
}
