package provision_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// The test binary is also the fake sbx that the client starts.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "sbx" {
		fake.Main()
		return
	}
	os.Exit(m.Run())
}

// bench is a fake sbx with its state, and what a pair on it needs.
type bench struct {
	t      testing.TB
	state  string
	engine *sbx.Client
	store  *pair.Store
	plan   provision.Plan
}

var creds = provision.Credentials{Agent: secrets.New("github_pat_agent_canary_0001"), GitHub: secrets.New("github_pat_github_canary_0002")}

func newBench(t testing.TB, version string, change func(*provision.Input)) *bench {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := &bench{t: t, state: filepath.Join(dir, "fake"), store: pair.NewStore(filepath.Join(dir, "state"))}
	program := filepath.Join(dir, "sbx")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{b.state, filepath.Join(dir, "work"), filepath.Join(dir, "empty")} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b.engine = b.client(program, 20*time.Second)
	b.script(fake.Script{Version: version})
	v, err := b.engine.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in := input()
	in.Run = pair.NewRunID(time.Now())
	in.Engine = pair.EngineRef{Kind: pair.EngineSbx, Path: program, Version: version}
	in.Workspace = sbx.Workspace{Path: filepath.Join(dir, "work")}
	in.Paths, in.DenyAtCreate = v.Has(sbx.FeatureHTTPRules), v.Has(sbx.FeatureDenyNetwork)
	if !v.Has(sbx.FeatureMountless) {
		in.Empty = filepath.Join(dir, "empty")
	}
	if change != nil {
		change(&in)
	}
	if b.plan, err = provision.New(in); err != nil {
		t.Fatal(err)
	}
	return b
}

// client returns a client of the fake whose calls may take so long.
func (b *bench) client(program string, limit time.Duration) *sbx.Client {
	return sbx.New(program, sbx.WithAddedEnv("FAKESBX_STATE="+b.state, "GORACE=atexit_sleep_ms=0"), sbx.WithGrace(100*time.Millisecond),
		sbx.WithTimeouts(sbx.Timeouts{Version: limit, Query: limit, Create: limit, Remove: limit, Change: limit}))
}

// script tells the fake what to do from now on.
func (b *bench) script(s fake.Script) {
	b.t.Helper()
	preset := "deny-all"
	s.Policy = &preset
	text, err := yaml.Marshal(s)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.state, "script.yaml"), text, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// acquire takes a lease whose owner is dead, as prune finds it.
func (b *bench) acquire() *pair.Pair {
	b.t.Helper()
	owner := pair.Self()
	owner.Boot += "-before"
	p, err := pair.Acquire(b.engine, b.store, pair.Lease{Run: b.plan.Run, Created: time.Now().UTC(), Owner: owner, Engine: b.plan.Engine})
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// left lists what the engine still has under the run's names.
func (b *bench) left() []string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.state, "state.json"))
	if err != nil {
		b.t.Fatal(err)
	}
	var found []string
	for _, name := range b.plan.Run.Names() {
		if strings.Contains(string(text), name) {
			found = append(found, name)
		}
	}
	return found
}

func (b *bench) calls() []string {
	b.t.Helper()
	list, err := fake.Calls(b.state)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, c := range list {
		out = append(out, strings.Join(c.Args, " "))
		for _, v := range []secrets.Value{creds.Agent, creds.GitHub} {
			if slices.ContainsFunc(c.Args, func(a string) bool { return strings.Contains(a, v.Reveal()) }) {
				b.t.Errorf("a value is on the command line: %.40s", out[len(out)-1])
			}
		}
	}
	return out
}

// A pair on every version that is supported: made, read back, within the number of calls that the design allows, and removed again.
func TestApplyOnEveryVersion(t *testing.T) {
	for _, version := range []string{"0.35", "0.38", "0.39", "0.42", "0.45", "0.47"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, version, nil)
			before := len(b.calls())
			p := b.acquire()
			report, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, creds)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(b.calls()) - before; n > 12 || n != len(report.Calls) {
				t.Errorf("%d engine calls, %d reported; want at most 12, all reported", n, len(report.Calls))
			}
			var planned, made []string
			for _, group := range b.plan.Calls() {
				planned = append(planned, group...)
			}
			for _, call := range report.Calls {
				made = append(made, call.Op)
			}
			if chain := len(b.plan.Calls()); chain > 5 { // what is in one group goes out at the same time
				t.Errorf("the longest chain has %d calls, want at most 5", chain)
			}
			slices.Sort(planned)
			slices.Sort(made)
			if !slices.Equal(planned, made) {
				t.Errorf("planned the calls %v, made %v", planned, made)
			}
			if got := b.left(); len(got) != 2 {
				t.Errorf("the engine has %v, want both", got)
			}
			if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
				t.Fatal(err)
			}
			if got := b.left(); len(got) != 0 {
				t.Errorf("left in the engine: %v", got)
			}
			b.calls()
		})
	}
}

// A global service secret is kept out of both sandboxes by scoped ones in its place; a custom one is refused by name, and
// so is any where the agent sends a value of its own. The user's own secret stays as it was.
func TestGlobalSecrets(t *testing.T) {
	set := func(service string) func(*bench) error {
		return func(b *bench) error {
			return b.engine.SecretSet(b.t.Context(), sbx.ServiceSecret{Service: service, Value: secrets.New("some-global-value")})
		}
	}
	for _, tt := range []struct {
		name     string
		make     func(*bench) error
		strategy provision.Strategy
		refused  string
		kept     map[string][]string // services of ours, by role
	}{
		{name: "github", make: set("github"), kept: map[string][]string{"agent": {"github"}, "github": {"github"}}},
		{name: "another service", make: set("anthropic"), kept: map[string][]string{"agent": {"anthropic", "github"}, "github": {"anthropic", "github"}}},
		{name: "github, and the agent's is a custom one", make: set("github"), strategy: provision.Custom, kept: map[string][]string{"agent": {"github"}, "github": {"github"}}},
		{name: "the agent holds its value itself", make: set("github"), strategy: provision.PlainEnv, refused: "service github"},
		{name: "custom", refused: "custom DEMO_KEY", make: func(b *bench) error {
			_, err := b.engine.SecretSetCustom(b.t.Context(), sbx.CustomSecret{Env: "DEMO_KEY", Placeholder: "demo-placeholder-1", Hosts: []string{"api.example.com"}, Command: "/bin/echo x"})
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "0.47", func(in *provision.Input) { in.AgentStrategy = tt.strategy })
			b.t = t
			if err := tt.make(b); err != nil {
				t.Fatal(err)
			}
			p := b.acquire()
			_, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, creds)
			if errors.Is(err, provision.ErrRefused) != (tt.refused != "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("Apply beside it: %v, want refused with %q", err, tt.refused)
			}
			list, err := b.engine.SecretList(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			kept := map[string][]string{}
			for _, s := range list {
				if _, role, ours := pair.ParseName(s.Sandbox); ours && s.Type == sbx.SecretService {
					kept[string(role)] = append(kept[string(role)], s.Name)
				}
			}
			for role, want := range tt.kept {
				if got := slices.Sorted(slices.Values(kept[role])); !slices.Equal(got, want) {
					t.Errorf("services of the %s sandbox: %v, want %v", role, got, want)
				}
			}
			if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
				t.Fatal(err)
			}
			if list, err := b.engine.SecretList(t.Context()); err != nil || len(list) != 1 || !list[0].Global() {
				t.Errorf("the user's own secret afterwards: %+v, %v", list, err)
			}
		})
	}
}

// TestFaultAtEveryCall makes and releases a pair while one call of the engine goes wrong, for each call and each way.
// Whatever happens: once the release went through, or prune after it, nothing of the run is left, and what is not ours is.
func TestFaultAtEveryCall(t *testing.T) { t.Run("R064", faultAtEveryCall) }

func faultAtEveryCall(t *testing.T) {
	const version = "0.47"
	clean := newBench(t, version, nil)
	if _, err := clean.engine.Unverified().Create(t.Context(), sbx.CreateSpec{Name: "somebody-elses"}); err != nil {
		t.Fatal(err)
	}
	first := len(clean.calls())
	p := clean.acquire()
	if _, err := provision.Apply(t.Context(), clean.engine.Unverified(), p, clean.plan, creds); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
		t.Fatal(err)
	}
	total := len(clean.calls()) - first
	half := 5
	for name, rule := range map[string]fake.CallRule{
		"error":            {Stderr: "error: request failed: 500 Internal Server Error: backend unavailable\n", Code: 1},
		"done, then error": {Also: true, Code: 1},
		"hang":             {Hang: true, Deaf: true},
		"killed":           {Also: true, Crash: true},
		"partial":          {Also: true, StdoutBytes: &half},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failed, pruned := 0, 0
			for n := 1; n <= total; n++ {
				b := newBench(t, version, nil)
				if _, err := b.engine.Unverified().Create(t.Context(), sbx.CreateSpec{Name: "somebody-elses"}); err != nil {
					t.Fatal(err)
				}
				if rule.Hang {
					b.engine = b.client(b.plan.Engine.Path, 3*time.Second)
				}
				rule := rule
				rule.Match, rule.Call, rule.Times = "", n, 1
				b.script(fake.Script{Version: version, Calls: []fake.CallRule{rule}})
				p := b.acquire()
				if _, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, creds); err != nil {
					failed++
					if len(err.Error()) < 20 {
						t.Errorf("call %d: the error says too little: %v", n, err)
					}
				}
				if _, err := p.Release(t.Context(), "done", 20*time.Second); err != nil {
					if !errors.Is(err, pair.ErrLeft) {
						t.Errorf("call %d: Release: %v", n, err)
					}
					pruned++
					found, err := pair.FindLeftovers(t.Context(), b.engine, b.store, b.plan.Engine)
					if err != nil {
						t.Fatalf("call %d: %v", n, err)
					}
					if err := pair.Prune(t.Context(), b.engine, b.store, found, nil); err != nil {
						t.Errorf("call %d: Prune: %v", n, err)
					}
				}
				if left := b.left(); len(left) > 0 {
					t.Errorf("call %d: left in the engine: %v\n%s", n, left, strings.Join(b.calls(), "\n"))
				}
				if l, err := b.store.Load(b.plan.Run); err != nil || l.State != pair.Closed {
					t.Errorf("call %d: the lease is %s, %v", n, l.State, err)
				}
				if _, err := b.engine.Get(t.Context(), "somebody-elses"); err != nil {
					t.Errorf("call %d: a sandbox that is not ours is gone: %v", n, err)
				}
			}
			t.Logf("%s at each of %d calls: %d made the creation fail, %d needed prune, nothing left", name, total, failed, pruned)
		})
	}
}

// TestApplyOneRole makes the github sandbox alone, with what a fork needs too, and nothing of the agent's.
func TestApplyOneRole(t *testing.T) {
	b := newBench(t, "0.47.0", func(in *provision.Input) { in.Only, in.Fork = pair.RoleGitHub, "friend/slugify" })
	p := b.acquire()
	if _, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, provision.Credentials{GitHub: creds.GitHub}); err != nil {
		t.Fatal(err)
	}
	if left := b.left(); len(left) != 1 || left[0] != b.plan.GitHub.Name {
		t.Errorf("made %v", left)
	}
	var paths []string
	for _, r := range b.plan.GitHub.Allow {
		paths = append(paths, r.Path)
	}
	if !slices.Contains(paths, "/repos/friend/slugify/**") || !slices.Contains(paths, "/repos/octo/slugify/**") {
		t.Errorf("rules for %v", paths)
	}
	for _, group := range b.plan.Calls() {
		for _, call := range group {
			if strings.Contains(call, "agent") {
				t.Errorf("planned call %q", call)
			}
		}
	}
	if _, err := p.Release(t.Context(), "done", time.Minute); err != nil || len(b.left()) != 0 {
		t.Errorf("left %v, %v", b.left(), err)
	}
}
