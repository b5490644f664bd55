package policy_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/policy"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"example.com", "*.example.com:443", "**", "**.a.b", "10.0.0.0/8:443", "[fd00::1]:22", "localhost:80", "bücher.example",
		"api[1-2].example.com", "https://x", "*com", "1.2.3.*", "xn--a.example", "ａ.example", "[::/0]:1", "a/b:c", "１２７.0.0.1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := policy.ParseResource(s)
		if err != nil {
			if _, ok := errors.AsType[*policy.ResourceError](err); !ok || r != (policy.Resource{}) {
				t.Fatalf("%q: %v beside %v", s, err, r)
			}
			return
		}
		text := r.String()
		again, err := policy.ParseResource(text)
		if err != nil || again != r {
			t.Fatalf("%q: canonical text %q parses as %q, %v", s, text, again, err)
		}
		if strings.ToLower(text) != text || strings.ContainsAny(text, " \t\r\n/@") && !strings.Contains(text, "/") {
			t.Fatalf("%q: canonical text %q", s, text)
		}
		for _, c := range text {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q: canonical text %q holds %q", s, text, c)
			}
		}
		// An exact name covers itself and nothing around it.
		if h, err := policy.ParseHost(r.Name()); err == nil && !h.IsZero() && !r.IsAny() && r.Name() != policy.Localhost {
			port := r.Port()
			if port == 0 {
				port = 443
			}
			if !r.Covers(h, port) {
				t.Fatalf("%q does not cover itself", text)
			}
			for _, other := range []string{"evil-" + h.String(), "a." + h.String(), h.String() + ".evil"} {
				if o, err := policy.ParseHost(other); err == nil && r.Covers(o, port) {
					t.Fatalf("%q covers %q", text, o)
				}
			}
		}
	})
}

func FuzzNormalisePath(f *testing.F) {
	for _, s := range []string{"/", "/a/../b", "/%2e%2e/a", "/a%2fb", "//a", "/a;b", "/..;/a", "*", "/%252e", "/a/./", `/a\b`, "/a%2f%2fb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := policy.ParsePath(s)
		if err != nil {
			if !errors.Is(err, policy.ErrRequestPath) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		for part := range strings.SplitSeq(strings.TrimPrefix(p.String(), "/"), "/") {
			if part == "." || part == ".." || part == "" && p.String() != "/" {
				t.Fatalf("%q is decided on as %q", s, p)
			}
		}
		if p.Wire() == "*" {
			return
		}
		// What is sent is what was decided on, and nothing is left to mend.
		again, err := policy.ParsePath(p.Wire())
		if err != nil || again.String() != p.String() || again.Wire() != p.Wire() || again.Changed() {
			t.Fatalf("%q: wire %q reads as %q (%q), %v", s, p.Wire(), again, again.Wire(), err)
		}
	})
}

func FuzzDecide(f *testing.F) {
	f.Add("example.com", "example.com:443", "GET", "/a", "8.8.8.8")
	f.Add("**", "10.0.0.1:80", "", "/", "")
	f.Add("*.example.com:443", "a.example.com", "POST", "/../x", "10.0.0.1")
	f.Add("10.0.0.0/8", "x.test", "GET", "/", "10.0.0.1")
	f.Add("localhost:80", "localhost:80", "", "/", "127.0.0.1")
	f.Fuzz(func(t *testing.T, rule, target, method, path, addr string) {
		res, err := policy.ParseResource(rule)
		if err != nil {
			return
		}
		h, port, err := policy.ParseHostPort(target, 443)
		if err != nil {
			return
		}
		q := policy.Request{Host: h, Port: port, Method: method}
		if q.Path, err = policy.ParsePath(path); err != nil {
			return
		}
		q.Addr, _ = netip.ParseAddr(addr)
		allow := policy.Rule{ID: "a", Effect: policy.Allow, Resources: []policy.Resource{res}}
		deny := policy.Rule{ID: "d", Effect: policy.Deny, Resources: []policy.Resource{res}}
		d := policy.NewSet([]policy.Rule{allow}).Decide(q)
		if d.Reason == "" || d.Allowed && (d.Rule != "a" || !res.Covers(h, port)) {
			t.Fatalf("%s for %+v: %+v", res, q, d)
		}
		if policy.NewSet(nil).Decide(q).Allowed {
			t.Fatalf("no rule allows %+v", q)
		}
		if both := policy.NewSet([]policy.Rule{allow, deny}).Decide(q); both.Allowed {
			t.Fatalf("deny of %s loses for %+v", res, q)
		}
		a := q.Addr
		if !a.IsValid() {
			a = h.Addr()
		}
		if d.Allowed && a.IsValid() && (a.Unmap().IsLoopback() || a.IsLinkLocalUnicast()) && h.String() != policy.Localhost {
			t.Fatalf("%s opens %s", res, a)
		}
	})
}
