package doctor

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

var update = flag.Bool("update", false, "write the generated sections of docs/reference")

func TestAllGreen(t *testing.T) {
	b := newBench(t, "policy: deny-all")
	r := b.examine()
	for _, c := range r.Checks {
		if c.Verdict != OK && c.ID != "ssh.agent" { // the fake forwards by default, as sbx does
			t.Errorf("%s is %s: %s", c.ID, c.Verdict, c.Detail)
		}
		if c.Affects == "" {
			t.Errorf("%s is not in the catalogue", c.ID)
		}
	}
	if r.Depth != Shallow || r.Err() != nil || r.Engine.Kind != sbx.EngineSbx {
		t.Errorf("%+v", r)
	}
	for _, call := range b.calls {
		if verb, _, _ := strings.Cut(call, " "); !slices.Contains([]string{"version", "ls", "policy", "secret", "daemon", "settings"}, verb) || strings.Contains(call, " set") && !strings.HasPrefix(call, "settings get") {
			t.Errorf("the shallow checks call %q", call)
		}
	}
}

func TestTokens(t *testing.T) {
	for name, tt := range map[string]struct {
		agent, github string
		bad           []string
		text          string
	}{
		"missing":     {"", pat("b"), []string{"token.agent"}, "COPILOT_GITHUB_TOKEN is empty"},
		"the same":    {pat("a"), pat("a"), []string{"token.pair"}, "the same token"},
		"placeholder": {pat("a"), secrets.GitHubServicePlaceholder, []string{"token.github"}, "placeholder"},
		"classic":     {"ghp_" + strings.Repeat("a", 36), pat("b"), []string{"token.agent"}, "classic"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "policy: deny-all").none()
			b.opts.Lookup = func(name string) (string, bool) {
				return map[string]string{"COPILOT_GITHUB_TOKEN": tt.agent, "GH_TOKEN": tt.github}[name], true
			}
			r := b.examine()
			var bad []string
			text := ""
			for _, c := range r.Checks {
				text += c.Detail
				if c.Verdict == Bad && strings.HasPrefix(c.ID, "token") {
					bad = append(bad, c.ID)
				}
				for _, v := range []string{tt.agent, tt.github} {
					if v != "" && strings.Contains(c.Detail+c.Remedy, v) {
						t.Errorf("%s shows the value", c.ID)
					}
				}
			}
			if !slices.Equal(bad, tt.bad) || !strings.Contains(text, tt.text) {
				t.Errorf("bad: %v; %s", bad, text)
			}
		})
	}
	t.Run("classic GitHub token", func(t *testing.T) {
		b := newBench(t, "policy: deny-all")
		b.opts.Lookup = func(name string) (string, bool) {
			return map[string]string{"COPILOT_GITHUB_TOKEN": pat("a"), "GH_TOKEN": "ghp_" + strings.Repeat("a", 36)}[name], true
		}
		want(t, b.examine(), "token.github", Warn, "every repository")
	})
}

func TestPolicyAndGlobals(t *testing.T) {
	b := newBench(t, "policy: balanced")
	want(t, b.examine(), "policy.preset", Warn, "balanced")
	b = newBench(t, "policy: allow-all")
	r := b.examine()
	want(t, r, "policy.preset", Bad, "allow-all")
	want(t, r, "policy.github", Warn, "every sandbox")
	b = newBench(t, `policy: ""`)
	r = b.examine()
	want(t, r, "engine", Bad)
	want(t, r, "policy.preset", Bad, "sbx policy init deny-all") // an engine that is not taken is looked at all the same

	b = newBench(t, "policy: deny-all")
	if err := b.client().SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Value: secrets.New(pat("c")), NoCheck: true}); err != nil {
		t.Fatal(err)
	}
	want(t, b.examine(), "secrets.global", Warn, "github")
	if err := b.client().SecretSet(t.Context(), sbx.ServiceSecret{Service: "openai", Value: secrets.New("some-value-of-mine"), NoCheck: true}); err != nil {
		t.Fatal(err)
	}
	want(t, b.examine(), "secrets.global", Warn, "openai")
	custom := sbx.CustomSecret{Env: "DEMO_KEY", Placeholder: "demo-placeholder-1", Hosts: []string{"api.example.com"}, Command: "/bin/echo x", NoCheck: true}
	if _, err := b.client().SecretSetCustom(t.Context(), custom); err != nil {
		t.Fatal(err)
	}
	want(t, b.examine(), "secrets.global", Bad, "DEMO_KEY", "split")
}

func TestOtherProgramsCalledSbx(t *testing.T) {
	b := newBench(t, "policy: deny-all")
	for _, dir := range []string{"one", "two"} {
		if err := os.MkdirAll(filepath.Join(b.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.dir, dir, "sbx"), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.opts.Path = strings.Join([]string{filepath.Join(b.dir, "one"), filepath.Join(b.dir, "two"), filepath.Join(b.dir, "none")}, string(os.PathListSeparator))
	want(t, b.examine(), "engine.path", Warn, "several", filepath.Join(b.dir, "two"))

	// The real process: neither prints a version.
	b.opts.Locate.Client = nil
	want(t, b.examine(), "engine.path", Warn, "another tool", filepath.Join(b.dir, "one"))
}

// An engine that hangs costs one wait, not one for each question, and the report says so once and is not green.
func TestEngineThatHangs(t *testing.T) {
	// A wait that is over at once: a limit that is short for an engine would be short for git on a busy machine too.
	hang := func(b *bench, hangs func(args []string) bool) *bench {
		b.before = func(_ context.Context, c sbx.Cmd) (sbx.Result, error, bool) {
			if !hangs(c.Args) {
				return sbx.Result{}, nil, false
			}
			return sbx.Result{Code: -1}, context.DeadlineExceeded, true
		}
		return b
	}
	rows := []string{"engine.version", "engine.daemon", "engine.login", "engine.keyring", "policy.preset", "policy.github", "secrets.global", "ssh.agent", "leftovers.pairs", "leftovers.secrets"}

	b := hang(newBench(t, "policy: deny-all"), func([]string) bool { return true })
	r := b.examine()
	want(t, r, "engine", Unknown, "could not check")
	for _, id := range rows {
		if c := want(t, r, id, Unknown, "see engine"); c.Because != "engine" {
			t.Errorf("%s hangs on %q", id, c.Because)
		}
	}
	if len(b.calls) > 2 {
		t.Errorf("%d calls: %q", len(b.calls), b.calls)
	}
	if err := r.Err(); !errors.Is(err, ErrUnsure) || errors.Is(err, ErrRed) || !strings.HasSuffix(err.Error(), ": engine") {
		t.Errorf("it ends with %v", err)
	}

	// One that tells its version and then hangs is given up after the second question.
	b = newBench(t, "policy: deny-all")
	hang(b, func(args []string) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return args[0] != "version" && len(b.calls) > 4
	})
	r = b.examine()
	want(t, r, "engine", OK)
	asked := 0
	for _, id := range rows {
		if c, _ := r.Check(id); c.Verdict == Unknown && c.Because == "" {
			asked++
		}
	}
	if asked != 2 || r.Err() == nil {
		t.Errorf("%d questions waited; the report ends with %v", asked, r.Err())
	}
}

// Every shallow check has its row, whatever is missing, and one cause is named once.
func TestOneCause(t *testing.T) {
	r := newBench(t, "policy: deny-all").none().examine()
	for _, about := range Catalogue() {
		c, found := r.Check(about.ID)
		switch optional := about.ID == "checkout" || about.ID == "engine.proxy"; {
		case !found && !about.Deep && !optional:
			t.Errorf("%s has no row", about.ID)
		case found && c.Verdict != OK && c.Because == "" && c.ID != "engine" && !strings.HasPrefix(c.ID, "host."):
			t.Errorf("%s is %s: %s", c.ID, c.Verdict, c.Detail)
		}
	}
	if err := r.Err(); !errors.Is(err, ErrRed) || !strings.HasSuffix(err.Error(), ": engine") {
		t.Errorf("it ends with %v", err)
	}
	c := want(t, r, "engine", Bad, "sbx (", "sbx-local (")
	if strings.Contains(c.Detail, "\n") || strings.Count(c.Detail, "program not found") != 2 {
		t.Errorf("detail: %s", c.Detail)
	}
}

// A pair without a record here may be a living run's of another state folder: it is told, and never taken away unasked.
func TestNoRecordIsNotOver(t *testing.T) {
	b := newBench(t, "policy: deny-all")
	run := pair.NewRunID(time.Unix(4, 0))
	name := run.Name(pair.RoleAgent)
	if _, err := b.client().Create(t.Context(), sbx.CreateSpec{Name: name}); err != nil {
		t.Fatal(err)
	}
	if err := b.client().SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Sandbox: name, Value: secrets.New(pat("c")), NoCheck: true}); err != nil {
		t.Fatal(err)
	}
	r := b.examine()
	want(t, r, "leftovers.pairs", Warn, string(run), "another state folder", "sbxpair prune")
	want(t, r, "leftovers.secrets", OK)
	if len(r.Fixes()) != 0 {
		t.Errorf("fixes: %+v", r.Fixes())
	}
}

// What stands in the way of a run's first steps is red before it: a state folder that is none, a git that hangs, a folder that
// was named and is no checkout, a token file that is a pipe.
func TestWhatWouldStopARun(t *testing.T) {
	b := newBench(t, "policy: deny-all")
	b.opts.State = filepath.Join(b.dir, "file")
	if err := os.WriteFile(b.opts.State, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := b.examine()
	want(t, r, "host.state", Bad, "nothing can be kept in", "XDG_STATE_HOME")

	b = newBench(t, "policy: deny-all").none()
	b.opts.Dir, b.opts.Asked = t.TempDir(), true
	want(t, b.examine(), "checkout", Bad)
	b.opts.Asked, b.opts.Home = false, b.opts.Dir
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", b.opts.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want(t, b.examine(), "checkout", Warn, "--dir")

	b = newBench(t, "policy: deny-all").none()
	b.opts.Limit = 300 * time.Millisecond
	if err := os.WriteFile(filepath.Join(b.dir, "git"), []byte("#!/bin/sh\nsleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", b.dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	lookup := b.opts.Lookup
	b.opts.Lookup = func(name string) (string, bool) {
		if name == "PATH" {
			return os.LookupEnv(name)
		}
		return lookup(name)
	}
	began := time.Now()
	want(t, b.examine(), "host.git", Unknown, "could not check")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("a git that hangs took %s", took)
	}
}

// dead is an owner that is not there any more.
func dead() pair.Owner {
	o := pair.Self()
	o.Start = "1"
	return o
}

// What a dead run left is found and, after it was told what will be done, taken away; what is somebody's stays.
func TestLeftoversAndFixes(t *testing.T) {
	b := newBench(t, "policy: deny-all")
	client := b.client()
	ref := pair.EngineRef{Kind: sbx.EngineSbx, Path: "sbx"}
	orphan, over, alive := pair.NewRunID(time.Unix(1, 0)), pair.NewRunID(time.Unix(2, 0)), pair.NewRunID(time.Unix(3, 0))
	for run, owner := range map[pair.RunID]pair.Owner{orphan: dead(), over: dead(), alive: pair.Self()} {
		p, err := pair.Acquire(client, b.opts.Store, pair.Lease{Run: run, Owner: owner, Engine: ref})
		if err != nil {
			t.Fatal(err)
		}
		if run == over {
			if _, err := p.Release(t.Context(), "delivered", time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(p.CredentialFile(pair.RoleAgent), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{orphan.Name(pair.RoleAgent), alive.Name(pair.RoleAgent), "somebody-elses"} {
		if _, err := client.Create(t.Context(), sbx.CreateSpec{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	// A secret for a sandbox that is gone: below 0.42 they stay (here the fake's state is told so).
	for _, name := range []string{over.Name(pair.RoleGitHub), alive.Name(pair.RoleAgent), "somebody-elses"} {
		if _, err := client.Create(t.Context(), sbx.CreateSpec{Name: name}); err != nil && !errors.Is(err, sbx.ErrExists) {
			t.Fatal(err)
		}
		if err := client.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Sandbox: name, Value: secrets.New(pat("c")), NoCheck: true}); err != nil {
			t.Fatal(err)
		}
	}
	token := filepath.Join(b.dir, "token")
	if err := os.WriteFile(token, []byte(pat("b")), 0o644); err != nil {
		t.Fatal(err)
	}
	b.opts.Config.GitHub.Token = secrets.Source{File: token}

	r := b.examine()
	want(t, r, "leftovers.pairs", Warn, string(orphan), string(over))
	want(t, r, "leftovers.secrets", Warn, over.Name(pair.RoleGitHub))
	want(t, r, "leftovers.files", Warn, string(orphan), string(over))
	want(t, r, "token.github", Bad, "chmod 600")
	if c, _ := r.Check("leftovers.files"); strings.Contains(c.Detail, string(alive)) {
		t.Error("a credential file that is in use counts as left over")
	}
	if len(r.Fixes()) != 4 {
		t.Fatalf("fixes: %+v", r.Fixes())
	}
	for _, f := range r.Fixes() {
		if want := "what " + string(orphan) + " did"; (f.ID == "leftovers.pairs") != strings.Contains(f.Lost, want) {
			t.Errorf("%s says that it loses %q", f.ID, f.Lost)
		}
		if strings.Contains(f.What, string(alive)) || strings.Contains(f.What, "somebody-elses") {
			t.Errorf("%s would: %s", f.ID, f.What)
		}
		if err := f.Do(t.Context(), b.opts); err != nil {
			t.Error(err)
		}
	}
	r = b.examine()
	for _, id := range []string{"leftovers.pairs", "leftovers.secrets", "leftovers.files", "token.github"} {
		want(t, r, id, OK)
	}
	list, err := client.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Errorf("left in the engine: %+v, %v", list, err)
	}
	if kept, err := client.SecretList(t.Context()); err != nil || len(kept) != 2 {
		t.Errorf("secrets left: %+v, %v", kept, err)
	}
}

func TestRememberedVerdicts(t *testing.T) {
	b := newBench(t, "")
	now := time.Now()
	full := func(engine string, verdict Verdict) remembered {
		r := remembered{Engine: engine, Kind: "sbx", Settings: "s", At: now.UTC()}
		for _, a := range Catalogue() {
			if a.Deep {
				r.Checks = append(r.Checks, Check{ID: a.ID, Verdict: OK})
			}
		}
		r.Checks[0].Verdict = verdict
		return r
	}
	if err := remember(b.dir, subjectDeep, full("sbx 0.45.0", Bad)); err != nil {
		t.Fatal(err)
	}
	if err := remember(b.dir, subjectDeep, full("sbx 0.47.0", OK)); err != nil {
		t.Fatal(err)
	}
	if err := remember(b.dir, subjectDeep, full("sbx 0.46.0", Unknown)); err != nil {
		t.Fatal(err)
	}
	list := recall(b.dir, subjectDeep, "sbx", "s")
	if len(list) != 3 || len(recall(b.dir, subjectDeep, "sbx", "other")) != 0 || len(recall(b.dir, subjectDeep, "sbx-local", "s")) != 0 {
		t.Fatalf("recalled %d", len(list))
	}
	for _, r := range list {
		i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Verdict == Unknown })
		if i >= 0 {
			t.Errorf("%s: an answer that nobody had is remembered", r.Engine)
		}
		if got, want := r.stands(now), r.Engine == "sbx 0.47.0"; got != want {
			t.Errorf("%s stands: %v", r.Engine, got)
		}
		if r.stands(now.Add(memoryLife + time.Second)) {
			t.Errorf("%s stands for ever", r.Engine)
		}
	}
	got := drift(full("sbx 0.47.0", OK).Checks, "sbx 0.47.0", []remembered{full("sbx 0.47.0", Warn), full("sbx 0.45.0", Bad)})
	if len(got) != 1 || got[0].Before != Bad || got[0].Now != OK || got[0].Engine != "sbx 0.45.0" {
		t.Errorf("drift %+v", got)
	}
	if d := drift([]Check{{ID: "pair", Verdict: Unknown}}, "x", []remembered{full("sbx 0.45.0", Bad)}); d != nil {
		t.Errorf("drift of a check that could not be made: %+v", d)
	}
}

// Settings are told apart by a digest in which no token can be read.
func TestSettingsDigest(t *testing.T) {
	e := &examination{Options: newBench(t, "").opts}
	e.creds = provision.Credentials{Agent: secrets.New(pat("a")), GitHub: secrets.New(pat("b"))}
	first := e.settings("o/r")
	e.creds.GitHub = secrets.New(pat("c"))
	second := e.settings("o/r")
	e.Config.Network.Deny = []string{"example.com"}
	if third := e.settings("o/r"); first == second || second == third || len(first) != 16 {
		t.Errorf("%s %s %s", first, second, third)
	}
}

// Without what a pair needs, a deep examination says why nothing was asked, and is a shallow one.
func TestDeepNeeds(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*bench)
		text   string
	}{
		"an engine":    {func(b *bench) { b.none() }, "no engine"},
		"tokens":       {func(b *bench) { b.opts.Lookup = func(string) (string, bool) { return "", false } }, "tokens"},
		"a repository": {func(*bench) {}, "no repository"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "policy: deny-all")
			b.opts.Deep = true
			tt.change(b)
			r := b.examine()
			want(t, r, "pair", Unknown, tt.text)
			if r.Depth != Shallow {
				t.Error("it calls itself deep")
			}
			if leases, err := b.opts.Store.List(); err != nil || len(leases) != 0 {
				t.Errorf("%d leases, %v", len(leases), err)
			}
		})
	}
}

// A pair that cannot be made is red, and is removed and its lease closed all the same.
func TestDeepCleansUp(t *testing.T) {
	b := newBench(t, `
policy: deny-all
calls: [{match: "^secret set", stderr: "error: request failed: 500 Internal Server Error: backend unavailable\n", code: 1}]`)
	b.opts.Deep, b.opts.Config.GitHub.Repo = true, "octo/slugify"
	r := b.examine()
	want(t, r, "pair", Bad, "backend unavailable")
	leases, err := b.opts.Store.List()
	if err != nil || len(leases) != 1 || leases[0].State != pair.Closed {
		t.Errorf("leases %+v, %v", leases, err)
	}
	if list, err := b.client().List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(b.opts.Store.Dir(leases[0].Run), "workspace")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace is left: %v", err)
	}
	// A pair that cannot be removed either is red, too, and says what to do.
	b = newBench(t, `
policy: deny-all
calls:
  - {match: "^secret set", stderr: "error: request failed: 500 Internal Server Error: backend unavailable\n", code: 1}
  - {match: "^rm ", stderr: "error: request failed: 500 Internal Server Error: backend unavailable\n", code: 1}`)
	b.opts.Deep, b.opts.Config.GitHub.Repo = true, "octo/slugify"
	r = b.examine()
	want(t, r, "pair", Bad, "could not be removed", "sbxpair prune")
	if err := r.Err(); !errors.Is(err, ErrRed) || !errors.Is(err, pair.ErrLeft) {
		t.Errorf("error %v", err)
	}
}

func TestAgentCLI(t *testing.T) {
	for name, tt := range map[string]struct {
		res  sbx.ExecResult
		err  error
		want Verdict
		text string
	}{
		"there":   {sbx.ExecResult{Stdout: []byte("GitHub Copilot CLI 1.0.102.\nRun 'copilot update'\n")}, nil, OK, "1.0.102"},
		"missing": {sbx.ExecResult{Code: 127}, &sbx.LaunchError{Sandbox: "x", Program: "copilot", Code: 127, Text: "not found"}, Bad, "cannot be started"},
		"broken":  {sbx.ExecResult{Code: 1, Stderr: []byte("boom")}, nil, Bad, "boom"},
		"odd":     {sbx.ExecResult{Stdout: []byte("hello")}, nil, Warn, "version"},
	} {
		t.Run(name, func(t *testing.T) {
			s := scratchOf(t, func([]string) (sbx.ExecResult, error) { return tt.res, tt.err })
			s.adapter = agent.Copilot()
			c, err := s.agentCLI(t.Context())
			if err != nil || c.Verdict != tt.want || !strings.Contains(c.Detail, tt.text) {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
}

func TestOverreach(t *testing.T) {
	for name, tt := range map[string]struct {
		stdout string
		code   int
		want   Verdict
	}{
		"sees nothing": {"{\"message\":\"Not Found\"}\n404", 0, OK},
		"reads":        {"{\"permissions\":{\"push\":false,\"pull\":true}}\n200", 0, OK},
		"writes":       {"{\"permissions\":{\"push\":true,\"pull\":true}}\n200", 0, Bad},
		"blocked":      {"Approval required for api.github.com:443.\n\nReview and respond with:\n  sbx policy approval ls\n403", 0, OK},
		"no answer":    {"\n000", 28, Unknown},
		"server fault": {"\n502", 0, Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := scratchOf(t, func([]string) (sbx.ExecResult, error) {
				return sbx.ExecResult{Stdout: []byte(tt.stdout), Code: tt.code}, nil
			})
			if c := s.question(t.Context(), "agent.overreach", s.overreach); c.Verdict != tt.want {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestEgress(t *testing.T) {
	for stdout, verdict := range map[string]Verdict{
		"asked\n":                     OK,
		"name answered: 403\nasked\n": OK, // a transparent proxy's page
		"tcp answered: 200\nasked\n":  Bad,
		"udp answered: 45\nasked\n":   Bad,
		"":                            Unknown,
	} {
		s := scratchOf(t, func([]string) (sbx.ExecResult, error) { return sbx.ExecResult{Stdout: []byte(stdout)}, nil })
		c := s.question(t.Context(), "egress", func(ctx context.Context) (Check, error) { return s.egress(ctx, s.pair.Agent) })
		if c.Verdict != verdict {
			t.Errorf("%q: %+v", stdout, c)
		}
	}
}

func TestIdentity(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for text, verdict := range map[string]Verdict{
		"2026-12-30 12:00:00 UTC":   OK,
		"2026-12-02 12:00:00 -0800": Warn,
		"2026-11-29 12:00:00 UTC":   Bad,
		"":                          Warn,
	} {
		i := &identity{asked: true, header: map[string][]string{"Github-Authentication-Token-Expiration": {text}}}
		if c, err := i.expiry(now); err != nil || c.Verdict != verdict {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
	if _, err := (&identity{asked: true, header: map[string][]string{"Github-Authentication-Token-Expiration": {"soon"}}}).expiry(now); err == nil {
		t.Error("a date that is none was read")
	}
	wide := &identity{asked: true, header: map[string][]string{"X-Oauth-Scopes": {"repo, delete_repo, admin:org"}}}
	if c, err := wide.scopes(secrets.KindClassic); err != nil || c.Verdict != Warn || !strings.Contains(c.Detail, "needs none of: delete_repo, admin:org") {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := (&identity{}).scopes(secrets.KindClassic); err == nil {
		t.Error("scopes of a token that was refused")
	}
}

func TestJudgeLogin(t *testing.T) {
	for got, verdict := range map[string]Verdict{`500 "oops"`: Warn, "blocked": Bad, "no answer (curl exit 28: timeout)": Unknown} {
		if c := judgeLogin(events.Probe{Got: got}, "https://x"); c.Verdict != verdict {
			t.Errorf("%s: %+v", got, c)
		}
	}
}

// An engine of an older version, in whose sandboxes nothing can be asked: what could not be asked is unknown, not green
// and not red, and is asked again the next time; nothing is left.
func TestDeepOnOldEngineThatAnswersNothing(t *testing.T) {
	b := newBench(t, "policy: deny-all\nversion: \"0.39\"")
	b.opts.Limit = 1500 * time.Millisecond // the program that is not there is told within it
	b.opts.Deep, b.opts.Config.GitHub.Repo = true, "octo/slugify"
	r := b.examine()
	want(t, r, "pair", OK, "engine calls")
	for _, id := range []string{"split", "agent.login", "clock.agent", "egress", "github.login"} {
		want(t, r, id, Unknown)
	}
	want(t, r, "agent.cli", Bad, "cannot be started")
	for _, r := range recall(b.dir, subjectDeep, sbx.EngineSbx, (&examination{Options: b.opts, creds: provision.Credentials{Agent: secrets.New(pat("a")), GitHub: secrets.New(pat("b"))}}).settings("octo/slugify")) {
		if r.stands(time.Now()) || slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Verdict == Unknown }) {
			t.Errorf("remembered: %+v", r)
		}
	}
	leases, err := b.opts.Store.List()
	if err != nil || len(leases) != 1 || leases[0].State != pair.Closed {
		t.Fatalf("leases %+v, %v", leases, err)
	}
	entries, err := os.ReadDir(b.opts.Store.Dir(leases[0].Run))
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the run's folder: %v, %v", entries, err)
	}
	if list, err := b.client().List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("sandboxes left: %+v, %v", list, err)
	}
}

// The checkout is judged as a run would; a folder that is none says nothing.
func TestCheckout(t *testing.T) {
	git := func(dir string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	b := newBench(t, "policy: deny-all").none()
	b.opts.Dir = t.TempDir()
	want(t, b.examine(), "checkout", OK, "no checkout")
	git(b.opts.Dir, "init", "--quiet", "--initial-branch=main")
	want(t, b.examine(), "checkout", Bad, "no commit", "git add")
	file := filepath.Join(b.opts.Dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	git(b.opts.Dir, "add", "-A")
	git(b.opts.Dir, "commit", "--quiet", "-m", "start")
	want(t, b.examine(), "checkout", OK, "branch main")
	git(b.opts.Dir, "remote", "add", "origin", "https://github.com/octo/slugify.git")
	if err := os.WriteFile(file, []byte("y"), 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, b.examine(), "checkout", Warn, "uncommitted", "stash")
	if repo := (&examination{Options: b.opts}).repo(t.Context()); repo != "octo/slugify" {
		t.Errorf("repository %q: a changed file does not hide whose it is", repo)
	}
}

// TestVersionIsOneFinding: what is to say of the engine's version is said once, by the finding.
func TestVersionIsOneFinding(t *testing.T) {
	b := newBench(t, `calls: [{match: "^version", stdout: "{\"client\":{\"version\":\"v0.99.0\"},\"server\":{\"state\":\"running\",\"version\":\"v0.98.0\"}}"}]`)
	var log bytes.Buffer
	b.opts.Locate.Client = append(b.opts.Locate.Client, sbx.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	want(t, b.examine(), "engine.version", Warn, "0.99.0", "they differ", "newer than")
	if log.Len() > 0 {
		t.Errorf("logged as well: %s", log.String())
	}
}
