package provision_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

func planOf(t *testing.T, change func(*provision.Input)) provision.Plan {
	t.Helper()
	in := input()
	if change != nil {
		change(&in)
	}
	plan, err := provision.New(in)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestExplainSaysWhoAndWhy(t *testing.T) {
	plan := planOf(t, func(in *provision.Input) {
		in.Paths, in.Allow, in.Deny = true, []string{"docs.example.com:443"}, []string{"**.example.org"}
	})
	for _, tt := range []struct {
		target, method, path string
		agent, github        string // layers that decide; "" is denied because nothing allows it
	}{
		{"docs.example.com", "", "", provision.LayerAllow, ""},
		{"docs.example.com:80", "", "", "", ""},
		{"a.example.org", "", "", provision.LayerDeny, provision.LayerDeny},
		{"api.github.com", "GET", "/copilot_internal/user", provision.LayerProfile, ""},
		{"api.github.com", "POST", "/repos/octo/slugify/pulls", "", provision.LayerProfile},
		{"api.github.com", "POST", "/repos/octo/other/pulls", "", ""},
		{"github.com", "GET", "/octo/slugify.git/info/refs", "", provision.LayerProfile},
		{"github.com", "GET", "/octo/../evil/x.git/info/refs", "", ""},
	} {
		list, err := plan.Explain(nil, tt.target, tt.method, tt.path)
		if err != nil || len(list) != 2 {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		for i, want := range []string{tt.agent, tt.github} {
			if e := list[i]; e.Layer != want || e.Allowed != (want != "" && want != provision.LayerDeny) || e.Reason == "" {
				t.Errorf("%+v: %+v, want layer %q", tt, e, want)
			}
		}
	}
	if _, err := plan.Explain(nil, "https://x.test/", "", ""); !errors.Is(err, provision.ErrRefused) {
		t.Errorf("a URL: %v", err)
	}
}

// What the engine brings decides beside the plan, and is named: its fallback, what a run shuts, an organisation's deny, what keeps a
// run from being made.
func TestExplainNamesTheEnginesRules(t *testing.T) {
	plan := planOf(t, func(in *provision.Input) { in.Paths, in.Allow = true, []string{"docs.example.com:443"} })
	network := func(name, source, sandbox string, d sbx.Decision, resources ...string) sbx.Rule {
		return sbx.Rule{ID: name, Name: name, Source: source, Sandbox: sandbox, Decision: d, ResourceType: "network", Resources: resources}
	}
	listed := []sbx.Rule{
		network("default-deny-all", "local", "", sbx.Deny, "**"),
		network("pypi", "local", "", sbx.Allow, "pypi.org:443"),
		network("no-docs", "org", "", sbx.Deny, "docs.example.com"),
		network("theirs", "local", "somebody-elses", sbx.Allow, "example.net"),
		network("beside", "kit", plan.GitHub.Name, sbx.Deny, "kit.example.com"),
		network("mine", "scoped", plan.Agent.Name, sbx.Deny, "shut.example.com"),
	}
	for _, tt := range []struct {
		target, agent, github string // layer and rule
	}{
		{"docs.example.com", "engine no-docs (org)", "engine no-docs (org)"},
		{"pypi.org", "shut pypi.org:443", "shut pypi.org:443"},
		{"example.net", "engine default-deny-all", "engine default-deny-all"},
		{"kit.example.com", "engine default-deny-all", "engine beside (kit)"},
		{"shut.example.com", "shut mine (scoped)", "engine default-deny-all"},
	} {
		list, err := plan.Explain(listed, tt.target, "", "")
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{tt.agent, tt.github} {
			if got := list[i].Layer + " " + list[i].Rule; got != want || list[i].Allowed || list[i].Reason == "" {
				t.Errorf("%s, %s: %+v, want %s", tt.target, list[i].Role, list[i], want)
			}
		}
	}
	list, err := plan.Explain([]sbx.Rule{network("wide", "local", "", sbx.Allow, "**")}, "api.github.com", "", "")
	if err != nil || !strings.Contains(list[0].Hint, "no run can be made") || !strings.Contains(list[0].Hint, "wide") {
		t.Errorf("beside an engine that opens everything: %+v, %v", list, err)
	}
}

func TestGrantKeepsTheBounds(t *testing.T) {
	plan := planOf(t, func(in *provision.Input) { in.Deny = []string{"**.example.org"} })
	with, fresh, err := plan.Grant([]string{"docs.example.com:443", "docs.example.com:443", "api.githubcopilot.com:443"})
	if err != nil || len(fresh) != 1 || fresh[0].Layer != provision.LayerGrant || len(with.Agent.Allow) != len(plan.Agent.Allow)+1 {
		t.Errorf("granted %v, %v", fresh, err)
	}
	for host, why := range map[string]string{
		"a.example.org": "network.deny", "github.com": "github sandbox", "**.github.com": "github sandbox", "api.github.com": "github sandbox",
		"**": "too wide", "*.com": "too wide", "127.0.0.1": "", "https://x.test": "",
	} {
		if _, _, err := plan.Grant([]string{host}); !errors.Is(err, provision.ErrRefused) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want it refused (%s)", host, err, why)
		}
	}
}

func TestLearnProposesTheLeastAndReplays(t *testing.T) {
	plan := planOf(t, func(in *provision.Input) { in.Paths, in.Deny = true, []string{"tracker.example.org"} })
	lesson, err := plan.Learn([]events.Blocked{
		{Role: "agent", Host: "a.example.com:443", Reason: "default deny", Count: 3},
		{Role: "agent", Host: "b.example.com:8443", Reason: "default deny", Count: 1},
		{Role: "agent", Host: "a.example.com", Reason: "name refused", Count: 1},
		{Role: "agent", Host: "github.com:443", Reason: "default deny", Count: 1},
		{Role: "agent", Host: "tracker.example.org:443", Reason: "denied", Count: 9},
		{Role: "agent", Host: "archive.ubuntu.com:80", Reason: "default deny", Count: 2},
		{Role: "agent", Host: "api.github.com:443", Reason: "no rule for GET /graphql", Count: 1},
		{Role: "github", Host: "example.com:443", Reason: "default deny", Count: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.example.com:443", "b.example.com:8443"}; !slices.Equal(lesson.Allow, want) {
		t.Errorf("proposes %v, want %v and no wildcard", lesson.Allow, want)
	}
	var open []string
	for _, r := range lesson.Replay {
		if r.Allowed {
			open = append(open, r.Host)
		}
	}
	if want := []string{"a.example.com:443", "b.example.com:8443", "a.example.com", "api.github.com:443"}; !slices.Equal(open, want) {
		t.Errorf("played again, %v are allowed, want %v", open, want)
	}
	for i, word := range []string{"3 times", "asked for once", "proposed already", "belongs to the github sandbox", "network.deny", "starts", "GET /graphql", "whatever the configuration"} {
		if !strings.Contains(lesson.Learnt[i].Because, word) {
			t.Errorf("%s: because %q, want %q in it", lesson.Learnt[i].Host, lesson.Learnt[i].Because, word)
		}
	}
	if _, err := provision.New(func() provision.Input { in := input(); in.Allow = lesson.Allow; return in }()); err != nil {
		t.Errorf("the proposal is not one that a plan takes: %v", err)
	}
}

// The names in a run's log come from the agent: none of them ends the lesson, opens anything or shows a credential.
func TestLearnFromAHostileLog(t *testing.T) {
	plan := planOf(t, nil)
	token := "ghp_" + strings.Repeat("a1", 18)
	blocked := []events.Blocked{{Role: "agent", Host: token + ".evil.example:443", Count: 1 << 62}, {Role: "nobody", Host: "x.example:443"}}
	for _, host := range []string{"", ":", "evil\x1b[2J.example", "a\nb:443", "[::1", "127.1:80", "0x7f000001", "**", "*.com:443", "https://x.test/", strings.Repeat("a.", 400), "169.254.169.254:80", "localhost:1", "\xff\xfe:443", "gіthub.com:443", "github.com.:443"} {
		blocked = append(blocked, events.Blocked{Role: "agent", Host: host, Count: -1})
	}
	bad := len(blocked)
	for i := range 5000 {
		blocked = append(blocked, events.Blocked{Role: "agent", Host: fmt.Sprintf("h%d.example.com:443", i), Count: 1})
	}
	lesson, err := plan.Learn(blocked)
	if err != nil || len(lesson.Learnt) != len(blocked) {
		t.Fatalf("%d of %d learnt, %v", len(lesson.Learnt), len(blocked), err)
	}
	for _, l := range lesson.Learnt[:bad] {
		if l.Proposed != "" && l.Host != "localhost:1" && l.Host != "gіthub.com:443" {
			t.Errorf("proposes %q", l.Proposed)
		}
	}
	if n := len(lesson.Allow); n > 110 {
		t.Errorf("proposes %d hosts, which nobody looks through", n)
	}
	for _, r := range lesson.Replay {
		if strings.Contains(r.Host, token) {
			t.Errorf("shows %s", r.Host)
		}
	}
}

// A grant is on record, acts on the engine, is bounded, and can be taken back: on an engine whose rules are read back.
func TestGrantsOnAPairInPlace(t *testing.T) {
	b := newBench(t, "0.47", nil)
	p := b.acquire()
	if _, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, creds); err != nil {
		t.Fatal(err)
	}
	grants := provision.ChangesIn(b.store.Dir(b.plan.Run), b.plan.Run)
	given, err := grants.Give(t.Context(), b.engine, b.plan, []string{"docs.example.com:443", "b.example.com"})
	if err != nil || len(given) != 2 {
		t.Fatalf("granted %v, %v", given, err)
	}
	if again, err := grants.Give(t.Context(), b.engine, b.plan, given); err != nil || len(again) != 0 {
		t.Errorf("granted again: %v, %v", again, err)
	}
	opened := func() (hosts []string) {
		rules, err := b.engine.PolicyList(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if r.Sandbox == b.plan.Agent.Name && r.Decision == sbx.Allow {
				hosts = append(hosts, r.Resources...)
			}
		}
		return hosts
	}
	if hosts := opened(); !slices.Contains(hosts, "docs.example.com:443") || !slices.Contains(hosts, "b.example.com") {
		t.Errorf("the engine allows %v", hosts)
	}
	with, err := grants.Plan(b.plan)
	if err != nil || !slices.Contains(allowed(with.Agent), "b.example.com") {
		t.Errorf("the plan with its grants allows %v, %v", allowed(with.Agent), err)
	}
	if _, err := grants.Take(t.Context(), b.engine, b.plan, []string{"api.githubcopilot.com:443"}); !errors.Is(err, provision.ErrRefused) {
		t.Errorf("took what no grant gave: %v", err)
	}
	if taken, err := grants.Take(t.Context(), b.engine, b.plan, []string{"b.example.com"}); err != nil || len(taken) != 1 {
		t.Errorf("took %v, %v", taken, err)
	}
	if hosts := opened(); slices.Contains(hosts, "b.example.com") || !slices.Contains(hosts, "docs.example.com:443") || !slices.Contains(hosts, "api.githubcopilot.com:443") {
		t.Errorf("after one was revoked the engine allows %v", hosts)
	}
	if _, err := grants.Take(t.Context(), b.engine, b.plan, nil); err != nil {
		t.Error(err)
	}
	list, err := grants.Events()
	if err != nil || len(list) != 3 {
		t.Errorf("on record: %v, %v; want one grant and two revocations", list, err)
	}
	t.Run("two at once", func(t *testing.T) { // the record says what the engine does, and together they keep the bound
		var asked [][]string
		for i := range 6 {
			var hosts []string
			for j := range 8 {
				hosts = append(hosts, fmt.Sprintf("h%d-%d.example.com", i, j))
			}
			asked = append(asked, hosts)
		}
		err := pair.Several(asked, func(hosts []string) error {
			if hosts[0] == "h0-0.example.com" {
				_, err := grants.Take(t.Context(), b.engine, b.plan, nil)
				return err
			}
			_, err := grants.Give(t.Context(), b.engine, b.plan, hosts)
			return err
		})
		now, readErr := grants.Current()
		if !errors.Is(err, provision.ErrRefused) && len(now) > 32 || readErr != nil {
			t.Errorf("%d are granted: %v, %v", len(now), err, readErr)
		}
		hosts := opened()
		for _, list := range asked {
			for _, host := range list {
				if slices.Contains(hosts, host) != slices.Contains(now, host) {
					t.Errorf("%s: open is %v, on record as granted is %v", host, slices.Contains(hosts, host), slices.Contains(now, host))
				}
			}
		}
		if _, err := grants.Take(t.Context(), b.engine, b.plan, nil); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(b.store.Dir(b.plan.Run), "changes.jsonl")); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("half taken", func(t *testing.T) { // stored, and then the call fails: closed again, and so on record
		broken := halfDone{b.engine}
		if given, err := grants.Give(t.Context(), broken, b.plan, []string{"half.example.com"}); err == nil || len(given) != 0 {
			t.Errorf("granted %v", given)
		}
		if now, err := grants.Current(); err != nil || len(now) != 0 || slices.Contains(opened(), "half.example.com") {
			t.Errorf("on record as granted: %v, %v; the engine allows %v", now, err, opened())
		}
	})
	t.Run("changed by hand", func(t *testing.T) {
		if _, err := grants.Give(t.Context(), b.engine, b.plan, []string{"byhand.example.com"}); err != nil {
			t.Fatal(err)
		}
		if err := b.engine.PolicyRemove(t.Context(), sbx.RuleRef{Sandbox: b.plan.Agent.Name, Resources: []string{"byhand.example.com"}}); err != nil {
			t.Fatal(err)
		}
		if taken, err := grants.Take(t.Context(), b.engine, b.plan, nil); err != nil || len(taken) != 1 {
			t.Errorf("a rule that is gone already: %v, %v", taken, err)
		}
		if _, err := b.engine.PolicyDeny(t.Context(), sbx.PolicyRule{Sandbox: b.plan.Agent.Name, Decision: sbx.Deny, Resources: []string{"kept-out.example.com"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := grants.Give(t.Context(), b.engine, b.plan, []string{"kept-out.example.com:443"}); !errors.Is(err, provision.ErrRefused) || !strings.Contains(err.Error(), "wins over a grant") {
			t.Errorf("what the engine denies: %v", err)
		}
		if err := os.Remove(filepath.Join(b.store.Dir(b.plan.Run), "changes.jsonl")); err != nil {
			t.Fatal(err)
		}
	})
	var many []string
	for i := range 40 {
		many = append(many, "h"+strings.Repeat("x", i)+".example.com")
	}
	if _, err := grants.Give(t.Context(), b.engine, b.plan, many); !errors.Is(err, provision.ErrRefused) {
		t.Errorf("40 grants: %v", err)
	}
	if _, err := grants.Give(t.Context(), b.engine, b.plan, []string{"last.example.com"}); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(b.store.Dir(b.plan.Run), "changes.jsonl")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record: %v, %v", info, err)
	}
	if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
		t.Error(err)
	}
}

// halfDone is an engine that does what it is told and then fails.
type halfDone struct{ *sbx.Client }

func (h halfDone) PolicyAllow(ctx context.Context, rule sbx.PolicyRule) ([]string, error) {
	if _, err := h.Client.PolicyAllow(ctx, rule); err != nil {
		return nil, err
	}
	return nil, sbx.ErrConnectionLost
}
