package policy_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/policy"
)

func TestParseResource(t *testing.T) {
	for _, tt := range []struct {
		in, want string
		err      error
	}{
		{"example.com", "example.com", nil},
		{" Example.COM. ", "example.com", nil},
		{"example.com:443", "example.com:443", nil},
		{"bücher.example", "xn--bcher-kva.example", nil},
		{"XN--BCHER-KVA.example:80", "xn--bcher-kva.example:80", nil},
		{"*.example.com", "*.example.com", nil},
		{"**.Example.com:443", "**.example.com:443", nil},
		{"*.bücher.example", "*.xn--bcher-kva.example", nil},
		{"api?.example.com", "api?.example.com", nil},
		{"api[12].example.com", "api[12].example.com", nil},
		{"api-*.example.com:443", "api-*.example.com:443", nil},
		{"*.com", "*.com", nil}, // parses; Wide says what is wrong with it
		{"**", "**", nil},
		{"**:443", "**:443", nil},
		{"192.0.2.10:1234", "192.0.2.10:1234", nil},
		{"::ffff:192.0.2.10", "192.0.2.10", nil},
		{"[fd00:0:0::1]:22", "[fd00::1]:22", nil},
		{"fd00::1", "fd00::1", nil},
		{"[fd00::1]", "fd00::1", nil},
		{"10.0.0.0/8", "10.0.0.0/8", nil},
		{"10.0.0.0/8:443", "10.0.0.0/8:443", nil},
		{"[fd00::/8]:443", "[fd00::/8]:443", nil},
		{"fd00::/8", "fd00::/8", nil},
		{"localhost:8080", "localhost:8080", nil},
		{"LOCALHOST.:8080", "localhost:8080", nil},
		{"_srv.example.com", "_srv.example.com", nil},

		{"", "", policy.ErrEmpty},
		{"https://example.com/x", "", policy.ErrURL},
		{"user@example.com", "", policy.ErrUserinfo},
		{"example.com/path", "", policy.ErrPath},
		{"example.com/24", "", policy.ErrPath},
		{"*", "", policy.ErrWildcard},
		{"*:443", "", policy.ErrWildcard},
		{"*com", "", policy.ErrWildcard},
		{"*example.com", "", policy.ErrWildcard},
		{"?xample.com", "", policy.ErrWildcard},
		{"a.**.example.com", "", policy.ErrWildcard},
		{"**example.com", "", policy.ErrWildcard},
		{"**.", "", policy.ErrWildcard},
		{"example.*", "", policy.ErrWildcard},
		{"192.168.1.*", "", policy.ErrWildcard},
		{"[ab.example.com", "", policy.ErrWildcard},
		{"localhost", "", policy.ErrUnreachable},
		{"host.docker.internal:80", "", policy.ErrUnreachable},
		{"10.0.0.0/33", "", policy.ErrCIDR},
		{"10.0.0.1/8", "", policy.ErrCIDR},
		{"10.0.0.0/", "", policy.ErrCIDR},
		{"example.com:0", "", policy.ErrPort},
		{"example.com:65536", "", policy.ErrPort},
		{"example.com:80-90", "", policy.ErrPort},
		{"example.com:http", "", policy.ErrPort},
		{"example.com:", "", policy.ErrPort},
		{"example..com", "", policy.ErrName},
		{"-a.example", "", policy.ErrName},
		{"exa mple.com", "", policy.ErrName},
		{"127.1", "", policy.ErrName},
		{"0x7f000001", "", policy.ErrName},
		{"2130706433", "", policy.ErrName},
		{"fe80::1%eth0", "", policy.ErrName},
		{strings.Repeat("a", 64) + ".com", "", policy.ErrName},
		{"xn--a.example", "", policy.ErrName},
		{"a\x00.example", "", policy.ErrName},
	} {
		t.Run(tt.in, func(t *testing.T) {
			r, err := policy.ParseResource(tt.in)
			if !errors.Is(err, tt.err) || err != nil && tt.err == nil {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if got := r.String(); got != tt.want {
				t.Errorf("= %q, want %q", got, tt.want)
			}
			if err != nil {
				if _, ok := errors.AsType[*policy.ResourceError](err); !ok || strings.Contains(err.Error(), "\x00") {
					t.Errorf("error %q", err)
				}
				return
			}
			again, err := policy.ParseResource(r.String())
			if err != nil || again != r {
				t.Errorf("canonical text %q parses as %q, %v", r, again, err)
			}
		})
	}
}

// set builds a Set from lines such as "allow example.com" and "deny POST /x/** example.com".
func set(t testing.TB, lines ...string) *policy.Set {
	t.Helper()
	var rules []policy.Rule
	for _, line := range lines {
		words := strings.Fields(line)
		r := policy.Rule{ID: line, Effect: policy.Effect(words[0]), Layer: "local"}
		for _, w := range words[1 : len(words)-1] {
			if strings.HasPrefix(w, "/") {
				p, err := policy.ParsePathPattern(w)
				if err != nil {
					t.Fatal(err)
				}
				r.Paths = append(r.Paths, p)
			} else {
				r.Methods = append(r.Methods, w)
			}
		}
		res, err := policy.ParseResource(words[len(words)-1])
		if err != nil {
			t.Fatal(err)
		}
		r.Resources = []policy.Resource{res}
		if err := r.Check(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		rules = append(rules, r)
	}
	return policy.NewSet(rules)
}

func ask(t testing.TB, s *policy.Set, target string, more ...string) policy.Decision {
	t.Helper()
	h, port, err := policy.ParseHostPort(target, 443)
	if err != nil {
		t.Fatal(err)
	}
	q := policy.Request{Host: h, Port: port}
	if len(more) > 0 {
		q.Method = more[0]
		if q.Path, err = policy.ParsePath(more[1]); err != nil {
			t.Fatal(err)
		}
	}
	return s.Decide(q)
}

func TestDecide(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rules  []string
		target string
		want   bool
	}{
		{"exact", []string{"allow github.com"}, "github.com", true},
		{"subdomain of exact", []string{"allow github.com"}, "api.github.com", false},
		{"any port", []string{"allow github.com"}, "github.com:22", true},
		{"deny beats allow", []string{"allow github.com", "deny github.com"}, "github.com", false},
		{"wide deny beats narrow allow", []string{"deny **", "allow github.com"}, "github.com", false},
		{"deny of another port", []string{"allow github.com", "deny github.com:22"}, "github.com:443", true},
		{"everything", []string{"allow **"}, "anything.test", true},
		{"everything is not private", []string{"allow **"}, "10.1.2.3", false},
		{"everything is not loopback", []string{"allow **"}, "localhost:80", false},
		{"everything is public addresses", []string{"allow **"}, "8.8.8.8", true},
		{"range of everything names nothing", []string{"allow 0.0.0.0/0"}, "10.1.2.3", false},
		{"named private range", []string{"allow 10.0.0.0/8"}, "10.1.2.3", true},
		{"range does not cover names", []string{"allow 10.0.0.0/8"}, "internal.test", false},
		{"loopback of the host", []string{"allow localhost:8080"}, "localhost:8080", true},
		{"its other ports", []string{"allow localhost:8080"}, "localhost:8081", false},
		{"deny all closes it", []string{"allow localhost:8080", "deny **"}, "localhost:8080", false},
		{"mapped address", []string{"deny 192.0.2.1", "allow **"}, "[::ffff:192.0.2.1]", false},
		{"glob in a label", []string{"allow api?.example.com"}, "api1.example.com", true},
		{"glob does not cross labels", []string{"allow api*.example.com"}, "api.x.example.com", false},
		{"http rule opens its host", []string{"allow GET /a/** api.test"}, "api.test", true},
		{"http deny leaves the host open", []string{"allow api.test", "deny POST /a api.test"}, "api.test", true},
		{"http deny alone opens nothing", []string{"deny POST /a api.test"}, "api.test", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := ask(t, set(t, tt.rules...), tt.target)
			if d.Allowed != tt.want || d.Reason == "" {
				t.Errorf("%v %s = %+v, want %t", tt.rules, tt.target, d, tt.want)
			}
			if d.Kind == policy.Explicit && d.Rule == "" {
				t.Errorf("explicit decision names no rule: %+v", d)
			}
		})
	}
}

func TestDecideRequests(t *testing.T) {
	s := set(t, "allow GET /repos/a/** api.test", "allow github.test", "deny POST /**/git-receive-pack github.test", "deny GET /secret github.test")
	for _, tt := range []struct {
		target, method, path string
		want                 bool
	}{
		{"api.test", "GET", "/repos/a", true},
		{"api.test", "HEAD", "/repos/a/b/c", true},
		{"api.test", "POST", "/repos/a/b", false},
		{"api.test", "GET", "/repos/ab", false},
		{"api.test", "GET", "/repos/A/b", false},      // an allow is exact
		{"api.test", "GET", "/repos/a%2fb/x", false},  // not an allow in both readings
		{"api.test", "GET", "/repos/a/b%2fc/x", true}, // an allow in both
		{"github.test", "GET", "/o/r.git/info/refs", true},
		{"github.test", "POST", "/o/r.git/git-receive-pack", false},
		{"github.test", "POST", "/o/r.git/GIT-receive-PACK", false}, // a deny does not look at case
		{"github.test", "POST", "/o/x%2fgit-receive-pack", false},   // a deny in either reading
		{"github.test", "POST", "/o/r.git/git-upload-pack", true},
		{"github.test", "HEAD", "/secret", false},
		{"github.test", "POST", "/secret", true},
	} {
		d := ask(t, s, tt.target, tt.method, tt.path)
		if d.Allowed != tt.want || !d.Inspect {
			t.Errorf("%s %s%s = %+v, want %t", tt.method, tt.target, tt.path, d, tt.want)
		}
	}
}

// An address that a name resolved to is decided on as well.
func TestDecideAddress(t *testing.T) {
	for _, tt := range []struct {
		rules []string
		addr  string
		want  bool
		kind  policy.Kind
	}{
		{[]string{"allow good.test"}, "8.8.8.8", true, policy.Explicit},
		{[]string{"allow good.test"}, "10.0.0.1", false, policy.Guarded},
		{[]string{"allow good.test"}, "169.254.169.254", false, policy.Guarded},
		{[]string{"allow good.test"}, "127.0.0.1", false, policy.Guarded},
		{[]string{"allow good.test"}, "::ffff:127.0.0.1", false, policy.Guarded},
		{[]string{"allow good.test"}, "100.64.1.1", false, policy.Guarded},
		{[]string{"allow good.test"}, "fd00:ec2::254", false, policy.Guarded},
		{[]string{"allow good.test"}, "64:ff9b::7f00:1", false, policy.Guarded},
		{[]string{"allow good.test"}, "2002:7f00:1::", false, policy.Guarded},
		{[]string{"allow good.test"}, "0.0.0.0", false, policy.Guarded},
		{[]string{"allow good.test", "allow 10.0.0.0/8:443"}, "10.0.0.1", true, policy.Explicit},
		{[]string{"allow good.test", "allow 10.0.0.0/8:80"}, "10.0.0.1", false, policy.Guarded},
		{[]string{"allow good.test", "allow GET /x 10.0.0.1"}, "10.0.0.1", false, policy.Guarded}, // a name that leads there may ask for more
		{[]string{"allow good.test", "allow **"}, "10.0.0.1", false, policy.Guarded},
		{[]string{"allow good.test", "deny 8.8.8.0/24"}, "8.8.8.8", false, policy.Explicit},
	} {
		h, err := policy.ParseHost("good.test")
		if err != nil {
			t.Fatal(err)
		}
		d := set(t, tt.rules...).Decide(policy.Request{Host: h, Port: 443, Addr: netip.MustParseAddr(tt.addr)})
		if d.Allowed != tt.want || d.Kind != tt.kind {
			t.Errorf("%v at %s = %+v, want %t %s", tt.rules, tt.addr, d, tt.want, tt.kind)
		}
	}
}

func TestParsePath(t *testing.T) {
	for _, tt := range []struct {
		in, decided, wire string
		bad               bool
	}{
		{"/", "/", "/", false},
		{"/a/b", "/a/b", "/a/b", false},
		{"/a/b/", "/a/b", "/a/b/", false},
		{"/a/./b", "/a/b", "/a/b", false},
		{"/a/../b", "/b", "/b", false},
		{"/a/%2e%2E/b", "/b", "/b", false},
		{"/../../b", "/b", "/b", false},
		{"//a///b", "/a/b", "/a/b", false},
		{"/a/b/..", "/a", "/a/", false},
		{"/a%2Fb", "/a/b", "/a%2Fb", false},
		{"/a%2Fb/../c", "/c", "/c", false},
		{"/%61", "/a", "/%61", false},
		{"/caf%C3%A9", "/café", "/caf%C3%A9", false},
		{"*", "/*", "*", false},
		{"a", "", "", true},
		{"", "", "", true},
		{"/%", "", "", true},
		{"/%zz", "", "", true},
		{"/%00", "", "", true},
		{"/a%0d%0ab", "", "", true},
		{`/a\..\b`, "", "", true},
		{"/a%5cb", "", "", true},
		{"/a/..;x/b", "", "", true},
		{"/a%2f..%2fb", "", "", true},
		{"/a/..%2fb", "", "", true},
		{"/%252e%252e/b", "", "", true},
	} {
		p, err := policy.ParsePath(tt.in)
		if tt.bad != errors.Is(err, policy.ErrRequestPath) || tt.bad != (err != nil) {
			t.Errorf("%q: error %v, want bad %t", tt.in, err, tt.bad)
			continue
		}
		if tt.bad {
			continue
		}
		if p.String() != tt.decided || p.Wire() != tt.wire || p.Changed() != (tt.wire != tt.in) {
			t.Errorf("%q = %q, wire %q, changed %t; want %q, %q", tt.in, p, p.Wire(), p.Changed(), tt.decided, tt.wire)
		}
	}
}

func TestPathPatterns(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"/repos/a/**", "/repos/a", true},
		{"/repos/a/**", "/repos/a/b/c", true},
		{"/repos/a/**", "/repos/ab", false},
		{"/repos/*/issues", "/repos/x/issues", true},
		{"/repos/*/issues", "/repos/x/y/issues", false},
		{"/**/git-receive-pack", "/git-receive-pack", true},
		{"/**/git-receive-pack", "/a/b/git-receive-pack", true},
		{"/**/a/**/b", "/x/a/y/a/z/b", true},
		{"/**/a/**/b", "/x/a/y/c", false},
		{"/", "/", true},
		{"/", "/a", false},
		{"/**", "/", true},
		{"/v*/x", "/v12/x", true},
	} {
		pat, err := policy.ParsePathPattern(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.ParsePath(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		if got := pat.CoversAll(p); got != tt.want {
			t.Errorf("%s covers %s = %t, want %t", tt.pattern, tt.path, got, tt.want)
		}
	}
	for _, bad := range []string{"", "a", "/a?b", "/a#b", "/%41", "/a//b", "/../a", "/a**", "/**/**", "/a b", "/[", "/a\\b"} {
		if _, err := policy.ParsePathPattern(bad); !errors.Is(err, policy.ErrPattern) {
			t.Errorf("pattern %q: error %v", bad, err)
		}
	}
}

func TestPresets(t *testing.T) {
	for _, name := range []string{"allow-all", "balanced", "deny-all"} {
		preset, err := policy.ParsePreset(name)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := preset.Rules()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if err := r.Check(); err != nil || r.Reason == "" || r.ID == "" {
				t.Errorf("%s: rule %+v: %v", name, r, err)
			}
		}
		if found := policy.Lint(rules); name != "allow-all" && len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
		s := policy.NewSet(rules)
		for target, want := range map[string][3]bool{ // allow-all, balanced, deny-all
			"github.com": {true, true, false}, "api.anthropic.com": {true, true, false}, "example.org": {true, false, false},
			"169.254.169.254": {false, false, false}, "github.com:22": {true, false, false},
		} {
			i := map[string]int{"allow-all": 0, "balanced": 1, "deny-all": 2}[name]
			if got := ask(t, s, target).Allowed; got != want[i] {
				t.Errorf("%s: %s allowed = %t", name, target, got)
			}
		}
	}
	if v, err := policy.Balanced.Version(); err != nil || v == "" {
		t.Errorf("balanced version = %q, %v", v, err)
	}
	if _, err := policy.ParsePreset("open"); !errors.Is(err, policy.ErrPreset) {
		t.Errorf("unknown preset: %v", err)
	}
}

func TestProfiles(t *testing.T) {
	agent, err := policy.ForAgent("copilot", "")
	if err != nil {
		t.Fatal(err)
	}
	gh, err := policy.ForGitHub("octo/demo", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []policy.Profile{agent, gh} {
		hosts, err := p.Hosts()
		if err != nil {
			t.Fatal(err)
		}
		requests, err := p.Requests()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range append(hosts, requests...) {
			if err := r.Check(); err != nil || r.Reason == "" {
				t.Errorf("%s: %+v: %v", p.Role, r, err)
			}
		}
		for _, rules := range [][]policy.Rule{hosts, requests} {
			if found := policy.Lint(rules); len(found) > 0 {
				t.Errorf("%s: %v", p.Role, found)
			}
		}
	}
	requests, _ := gh.Requests()
	s := policy.NewSet(requests)
	for _, tt := range []struct {
		target, method, path string
		want                 bool
	}{
		{"api.github.com", "POST", "/repos/octo/demo/pulls", true},
		{"api.github.com", "GET", "/repos/octo/demo", true},
		{"api.github.com", "POST", "/repos/octo/other/pulls", false},
		{"api.github.com", "GET", "/user", true},
		{"api.github.com", "POST", "/user/repos", false},
		{"github.com", "POST", "/octo/demo.git/git-receive-pack", true},
		{"github.com", "POST", "/octo/other.git/git-receive-pack", false},
		{"gist.github.com", "POST", "/x", false},
	} {
		if got := ask(t, s, tt.target, tt.method, tt.path).Allowed; got != tt.want {
			t.Errorf("%s %s%s = %t", tt.method, tt.target, tt.path, got)
		}
	}
	for _, host := range []string{"ghe.example.com", "octo.ghe.com"} {
		p, err := policy.ForGitHub("octo/demo", host)
		if err != nil || len(p.Needs) == 0 {
			t.Errorf("%s: %v", host, err)
		}
	}
	for _, bad := range []string{"", "demo", "a/b/c", "a/..", "-a/b", "a/b?", "octo/de mo"} {
		if _, err := policy.ForGitHub(bad, ""); !errors.Is(err, policy.ErrRole) {
			t.Errorf("repository %q: %v", bad, err)
		}
	}
}

func TestEachAgentReachesItsOwnModelOnly(t *testing.T) {
	for _, tt := range []struct{ agent, provider, service, host string }{
		{"copilot", "", "github", "api.githubcopilot.com"},
		{"claude", "", "anthropic", "api.anthropic.com"},
		{"codex", "openai", "openai", "api.openai.com"},
		{"gemini", "", "google", "generativelanguage.googleapis.com"},
		{"opencode", "anthropic", "anthropic", "api.anthropic.com"},
		{"pi", "google", "google", "generativelanguage.googleapis.com"},
	} {
		p, err := policy.ForAgent(tt.agent, tt.provider)
		if err != nil || p.Service != tt.service || !slices.Contains(p.Bound(), tt.host) {
			t.Errorf("%+v: %+v, %v", tt, p, err)
		}
		if tt.agent != "copilot" && len(p.Bound()) != 1 {
			t.Errorf("%s: its credential goes to %v", tt.agent, p.Bound())
		}
	}
	for _, bad := range [][2]string{{"nobody", ""}, {"opencode", ""}, {"pi", ""}, {"claude", "openai"}, {"pi", "github"}, {"copilot", "x"}} {
		if _, err := policy.ForAgent(bad[0], bad[1]); !errors.Is(err, policy.ErrRole) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestWhereGitHubIs(t *testing.T) {
	for _, tt := range []struct{ host, web, api, path string }{
		{"", "github.com", "api.github.com", ""},
		{"WWW.GitHub.com.", "github.com", "api.github.com", ""},
		{"octo.ghe.com", "octo.ghe.com", "api.octo.ghe.com", ""},
		{"api.octo.ghe.com", "octo.ghe.com", "api.octo.ghe.com", ""},
		{"git.corp.test", "git.corp.test", "git.corp.test", "/api/v3"},
		{"git.corp.test:8443", "git.corp.test:8443", "git.corp.test:8443", "/api/v3"},
	} {
		at, err := policy.ParseGitHub(tt.host)
		if err != nil || at.Host != tt.web || at.APIHost() != tt.api || at.APIPath() != tt.path {
			t.Errorf("%q: %+v, %v", tt.host, at, err)
		}
	}
	for _, bad := range []string{"a.b.ghe.com", "https://github.com", "x y", "git@host"} {
		if at, err := policy.ParseGitHub(bad); !errors.Is(err, policy.ErrRole) {
			t.Errorf("%q: %+v, %v", bad, at, err)
		}
	}
}

func TestLint(t *testing.T) {
	for text, want := range map[string]policy.Problem{
		"**": policy.TooWide, "**:443": policy.TooWide, "*.com": policy.TooWide, "**.co.uk": policy.TooWide, "0.0.0.0/0": policy.TooWide,
		"::/0": policy.TooWide, "*.*.com": policy.TooWide, "0.0.0.0/1": policy.TooWide,
		"127.0.0.1": policy.Inert, "[::1]:80": policy.Inert, "169.254.169.254": policy.Inert,
		"*.githubcopilot.com": "", "*.githubusercontent.com": "", "10.0.0.0/8": "", "a.bad.test": policy.Shadowed,
	} {
		res, err := policy.ParseResource(text)
		if err != nil {
			t.Fatal(err)
		}
		bad, err := policy.ParseResource("**.bad.test")
		if err != nil {
			t.Fatal(err)
		}
		found := policy.Lint([]policy.Rule{
			{ID: "x", Effect: policy.Allow, Resources: []policy.Resource{res}},
			{ID: "y", Effect: policy.Deny, Resources: []policy.Resource{bad}},
		})
		switch {
		case want == "" && len(found) > 0, want != "" && (len(found) == 0 || found[0].Problem != want || found[0].Detail == ""):
			t.Errorf("%s: %v, want %q", text, found, want)
		}
	}
}

func TestRuleCheck(t *testing.T) {
	host, err := policy.ParseResource("example.com")
	if err != nil {
		t.Fatal(err)
	}
	ok := policy.Rule{Effect: policy.Allow, Resources: []policy.Resource{host}}
	if err := ok.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*policy.Rule){
		"effect":   func(r *policy.Rule) { r.Effect = "maybe" },
		"nothing":  func(r *policy.Rule) { r.Resources = nil },
		"protocol": func(r *policy.Rule) { r.Protocols = []policy.Protocol{"icmp"} },
		"method":   func(r *policy.Rule) { r.Methods = []string{"get"} },
		"connect":  func(r *policy.Rule) { r.Methods = []string{"CONNECT"} },
		"range": func(r *policy.Rule) {
			net, err := policy.ParseResource("10.0.0.0/8")
			if err != nil {
				t.Fatal(err)
			}
			r.Resources, r.Methods = []policy.Resource{net}, []string{"GET"}
		},
		"udp method": func(r *policy.Rule) { r.Methods, r.Protocols = []string{"GET"}, []policy.Protocol{policy.UDP} },
	} {
		r := ok
		change(&r)
		if err := r.Check(); !errors.Is(err, policy.ErrRule) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFieldReports has one subtest for each public report of the category policy that a rule set can provoke.
func TestFieldReports(t *testing.T) {
	t.Run("R025", func(t *testing.T) {
		s := set(t, "allow github.com")
		for _, host := range []string{"evil-github.com", "notgithub.com", "github.com.attacker.test"} {
			if ask(t, s, host).Allowed {
				t.Errorf("%s allowed", host)
			}
		}
		if !ask(t, s, "github.com").Allowed {
			t.Error("apex denied")
		}
	})
	t.Run("R026", func(t *testing.T) {
		d := ask(t, set(t, "allow nodesource.com:443"), "deb.nodesource.com:443")
		if d.Allowed || !strings.Contains(d.Hint, "nodesource.com itself only") || !strings.Contains(d.Hint, "**.nodesource.com") {
			t.Errorf("%+v", d)
		}
		for rules, host := range map[string]string{
			"allow *.example.com": "example.com", "allow www.example.com": "api.example.com", "allow example.com:443": "example.com:80",
			"allow *.a.example.com": "x.y.a.example.com",
		} {
			if d := ask(t, set(t, rules), host); d.Allowed || d.Hint == "" {
				t.Errorf("%s, asked for %s: %+v", rules, host, d)
			}
		}
		if d := ask(t, set(t, "allow example.com"), "other.test"); d.Hint != "" {
			t.Errorf("hint about an unrelated rule: %q", d.Hint)
		}
	})
	t.Run("R027", func(t *testing.T) {
		if !ask(t, set(t, "allow *.cloud.example.test"), "a.cloud.example.test").Allowed {
			t.Error("wildcard is inert")
		}
	})
	t.Run("R028", func(t *testing.T) {
		if !ask(t, set(t, "allow [fd00::1]:22"), "[fd00:0:0:0:0:0:0:1]:22").Allowed {
			t.Error("denied")
		}
	})
	t.Run("R029", func(t *testing.T) {
		s := set(t, "allow 192.0.2.10:1234")
		if d := ask(t, s, "192.0.2.10:1234"); !d.Allowed || d.Rule == "" {
			t.Errorf("%+v", d)
		}
		if ask(t, s, "192.0.2.10:1235").Allowed {
			t.Error("another port is open")
		}
	})
	t.Run("R030", func(t *testing.T) {
		for _, s := range []*policy.Set{nil, {}, policy.NewSet(nil), policy.NewSet([]policy.Rule{{Effect: policy.Allow}})} {
			if ask(t, s, "example.com").Allowed {
				t.Error("no rule opens something")
			}
		}
	})
	t.Run("R031", func(t *testing.T) {
		if ask(t, set(t, "allow example.com:443"), "example.com:9999").Allowed {
			t.Error("allowed")
		}
	})
	t.Run("R032", func(t *testing.T) {
		s := set(t, "deny bad.test", "allow good.test.", "allow **")
		if ask(t, s, "bad.test.").Allowed || !ask(t, s, "good.test").Allowed {
			t.Error("root dot makes a difference")
		}
	})
	t.Run("R033", func(t *testing.T) {
		if !ask(t, set(t, "allow bücher.example"), "xn--bcher-kva.example").Allowed {
			t.Error("denied")
		}
	})
	t.Run("R034", func(t *testing.T) {
		for _, text := range []string{"169.254.169.254", "127.0.0.1", "::1", "127.0.0.0/8", "[::1]:80", "fe80::1", "0.0.0.0"} {
			res, err := policy.ParseResource(text)
			if err != nil {
				t.Fatal(err)
			}
			err = policy.Rule{Effect: policy.Allow, Resources: []policy.Resource{res}}.Check()
			if !errors.Is(err, policy.ErrUnreachable) {
				t.Errorf("%s: %v", text, err)
			}
		}
	})
	t.Run("R036", func(t *testing.T) {
		if ask(t, set(t, "allow baseline.test", "allow *.test", "deny baseline.test"), "baseline.test").Allowed {
			t.Error("a deny does not bite on the baseline")
		}
	})
	t.Run("R037", func(t *testing.T) {
		for _, text := range []string{"*", "**", "0.0.0.0/0", "*.com"} {
			res, err := policy.ParseResource(text)
			if err == nil && res.Wide() == "" {
				t.Errorf("%s passes", text)
			}
		}
		if res, err := policy.ParseResource("*.example.com"); err != nil || res.Wide() != "" {
			t.Errorf("scoped wildcard refused: %v %s", err, res.Wide())
		}
	})
	t.Run("R039", func(t *testing.T) {
		for _, tt := range []struct {
			rule, host string
			want       bool
		}{
			{"*.example.com", "a.b.example.com", false}, {"**.example.com", "a.b.example.com", true},
			{"*.example.com", "a.example.com", true}, {"**.example.com", "a.example.com", true},
			{"*.example.com", "example.com", false}, {"**.example.com", "example.com", false},
		} {
			if got := ask(t, set(t, "allow "+tt.rule), tt.host).Allowed; got != tt.want {
				t.Errorf("%s and %s: %t", tt.rule, tt.host, got)
			}
		}
		if _, err := policy.ParseResource("*com"); !errors.Is(err, policy.ErrWildcard) {
			t.Errorf("*com: %v", err)
		}
	})
	t.Run("R044", func(t *testing.T) {
		list, err := policy.ParseResources("10.0.0.0/8:443,10.1.0.0/16")
		if err != nil || len(list) != 2 {
			t.Errorf("%v, %v", list, err)
		}
		for _, bad := range []string{"10.0.0.0/8:443,192.168.1.*", "10.0.0.0/33", "10.0.0.0/8,", ",", ""} {
			if list, err := policy.ParseResources(bad); err == nil || list != nil {
				t.Errorf("%q: %v, %v", bad, list, err)
			}
		}
	})
	t.Run("R173", func(t *testing.T) {
		s := set(t, "allow GET /** a.test", "allow b.test", "deny GET /** b.test")
		if !ask(t, s, "a.test", "HEAD", "/x").Allowed || ask(t, s, "b.test", "HEAD", "/x").Allowed {
			t.Error("HEAD is not covered by GET")
		}
	})
	t.Run("R186", func(t *testing.T) {
		s := set(t, "allow GET /repos/a/** a.test")
		for _, path := range []string{"/repos/a/../b", "/repos/a/%2e%2e/b", "/repos/a/.%2E/b", "/repos//b"} {
			if ask(t, s, "a.test", "GET", path).Allowed {
				t.Errorf("%s allowed", path)
			}
		}
	})
}

func TestResourceJSON(t *testing.T) {
	in, err := policy.ParseResources("example.com:443,[fd00::/8]:22")
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(in)
	if err != nil || string(data) != `["example.com:443","[fd00::/8]:22"]` {
		t.Fatalf("%s, %v", data, err)
	}
	var out []policy.Resource
	if err := json.Unmarshal(data, &out); err != nil || out[0] != in[0] || out[1] != in[1] {
		t.Errorf("%v, %v", out, err)
	}
	if err := json.Unmarshal([]byte(`["*com"]`), &out); err == nil {
		t.Error("a bad resource is read from a file")
	}
}

func TestLintNamesLookAlikesAndWhatIsSuperfluous(t *testing.T) {
	rule := func(effect policy.Effect, text, path string) policy.Rule {
		res, err := policy.ParseResource(text)
		if err != nil {
			t.Fatal(err)
		}
		r := policy.Rule{ID: text, Effect: effect, Resources: []policy.Resource{res}}
		if path != "" {
			pat, err := policy.ParsePathPattern(path)
			if err != nil {
				t.Fatal(err)
			}
			r.Paths = []policy.PathPattern{pat}
		}
		return r
	}
	for text, like := range map[string]string{
		"github.com.elsewhere.test": "github.com", "evil-github.com": "github.com", "notgithub.com": "github.com", "githib.com": "github.com",
		"gihtub.com": "github.com", "github.co": "github.com", "g1thub.com": "github.com", "gıthub.com": "github.com", "api.githubcopi1ot.com": "api.githubcopilot.com",
		"*.openal.com": "api.openai.com", "anthroplc.com:443": "api.anthropic.com", "аnthropic.com": "api.anthropic.com",
		"docs.github.com": "", "gitlab.com": "", "example.com": "", "uploads.github.com": "", "10.0.0.0/8": "", "githubusercontent.com": "", "opencode.ai": "",
	} {
		found := policy.Lint([]policy.Rule{rule(policy.Allow, text, "")})
		switch {
		case like == "" && len(found) > 0, like != "" && (len(found) != 1 || found[0].Problem != policy.LookAlike || !strings.Contains(found[0].Detail, like+",")):
			t.Errorf("%s: %v, want like %q", text, found, like)
		}
	}
	for _, tt := range []struct {
		rules []policy.Rule
		want  string
	}{
		{[]policy.Rule{rule(policy.Allow, "**.example.com", ""), rule(policy.Allow, "a.example.com:443", "")}, "allowed already by **.example.com"},
		{[]policy.Rule{rule(policy.Allow, "a.example.com", ""), rule(policy.Allow, "a.example.com", "")}, "allowed already by a.example.com"},
		{[]policy.Rule{rule(policy.Allow, "a.example.com", "/x/**"), rule(policy.Allow, "a.example.com", "")}, "with every path"},
		{[]policy.Rule{rule(policy.Allow, "a.example.com", ""), rule(policy.Deny, "a.example.com", "/x/**")}, ""},
		{[]policy.Rule{rule(policy.Allow, "a.example.com:443", ""), rule(policy.Allow, "a.example.com:80", "")}, ""},
	} {
		found := policy.Lint(tt.rules)
		if (len(found) == 1 && strings.Contains(found[0].Detail, tt.want)) != (tt.want != "") || len(found) > 1 {
			t.Errorf("%v: found %v, want %q", tt.rules, found, tt.want)
		}
	}
}
