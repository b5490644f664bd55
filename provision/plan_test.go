package provision_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

func input() provision.Input {
	return provision.Input{
		Run: "3abcdefghijk", Engine: pair.EngineRef{Kind: pair.EngineLocal}, Repo: "octo/slugify", Host: "github.com",
		Agent: "copilot", AgentEnv: "COPILOT_GITHUB_TOKEN",
		Workspace: sbx.Workspace{Path: "/w"},
	}
}

func allowed(s provision.Spec) []string {
	var out []string
	for _, r := range s.Allow {
		out = append(out, r.Resource)
	}
	return out
}

func TestPlanSplitsThePair(t *testing.T) {
	plan, err := provision.New(input())
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := provision.New(input()); !reflect.DeepEqual(plan, again) {
		t.Error("equal inputs gave different plans")
	}
	if slices.Contains(allowed(plan.Agent), "github.com:443") || !slices.Contains(allowed(plan.Agent), "api.githubcopilot.com:443") {
		t.Errorf("the agent may reach %v", allowed(plan.Agent))
	}
	if slices.Contains(allowed(plan.GitHub), "api.githubcopilot.com:443") || !slices.Contains(allowed(plan.GitHub), "github.com:443") {
		t.Errorf("the github sandbox may reach %v", allowed(plan.GitHub))
	}
	if len(plan.GitHub.Workspaces) != 0 {
		t.Errorf("the github sandbox mounts %v; it mounts nothing of the agent's", plan.GitHub.Workspaces)
	}
	for _, r := range slices.Concat(plan.Agent.Allow, plan.GitHub.Allow) {
		if r.Reason == "" || !strings.HasSuffix(r.Resource, ":443") {
			t.Errorf("rule %+v: each has a reason and one port", r)
		}
	}
	if plan.Agent.Secret.Env != "COPILOT_GITHUB_TOKEN" || plan.GitHub.Secret.Env != "GH_TOKEN" ||
		secrets.Classify(secrets.New(plan.Agent.Secret.Placeholder)) != secrets.KindPlaceholder ||
		!strings.HasPrefix(plan.Agent.Secret.Placeholder, "github_pat_") {
		t.Errorf("bindings %+v and %+v", plan.Agent.Secret, plan.GitHub.Secret)
	}
}

func TestCustomPlaceholderIsTheRunsOwnAndTokenShaped(t *testing.T) {
	in := input()
	in.AgentStrategy = provision.Custom
	plan, err := provision.New(in)
	if err != nil {
		t.Fatal(err)
	}
	in.Run = "4abcdefghijz"
	other, err := provision.New(in)
	if err != nil {
		t.Fatal(err)
	}
	p := plan.Agent.Secret.Placeholder
	if p == other.Agent.Secret.Placeholder || len(p) != len(secrets.GitHubPATPlaceholder) || !secrets.IsPlaceholder(p) {
		t.Errorf("placeholders %q and %q", p, other.Agent.Secret.Placeholder)
	}
}

// Each agent's credential goes to its own model's hosts, in the header that its CLI sends, by a service of the engine.
func TestBindingOfEachAgent(t *testing.T) {
	for _, tt := range []struct{ agent, provider, service, env, header, host string }{
		{"copilot", "", "github", "COPILOT_GITHUB_TOKEN", "Authorization: Bearer github_pat_", "api.githubcopilot.com"},
		{"claude", "", "anthropic", "ANTHROPIC_API_KEY", "x-api-key: sk-ant-", "api.anthropic.com"},
		{"codex", "", "openai", "CODEX_API_KEY", "Authorization: Bearer sk-proj-", "api.openai.com"},
		{"gemini", "", "google", "GEMINI_API_KEY", "x-goog-api-key: AIza", "generativelanguage.googleapis.com"},
		{"opencode", "anthropic", "anthropic", "ANTHROPIC_API_KEY", "x-api-key: sk-ant-", "api.anthropic.com"},
		{"pi", "openai", "openai", "OPENAI_API_KEY", "Authorization: Bearer sk-proj-", "api.openai.com"},
	} {
		for _, strategy := range []provision.Strategy{provision.Service, provision.Custom} {
			in := input()
			in.Agent, in.Provider, in.AgentStrategy, in.Paths = tt.agent, tt.provider, strategy, true
			if in.AgentEnv = ""; tt.agent == "codex" {
				in.AgentEnv = "CODEX_API_KEY" // the CLI reads another variable than people keep the key in
			}
			plan, err := provision.New(in)
			if err != nil {
				t.Errorf("%s: %v", tt.agent, err)
				continue
			}
			b := plan.Agent.Secret
			if b.Strategy != strategy || (b.Service == tt.service) != (strategy == provision.Service) || b.Env != tt.env ||
				!strings.HasPrefix(b.RequestHeader(), tt.header) || !slices.Contains(b.Hosts, tt.host) || !secrets.IsPlaceholder(b.Placeholder) {
				t.Errorf("%s, %s: %+v", tt.agent, strategy, b)
			}
			if strategy == provision.Custom && !strings.Contains(b.Placeholder, string(in.Run)[5:]) {
				t.Errorf("%s: placeholder %q is not the run's own", tt.agent, b.Placeholder)
			}
			for _, host := range []string{"github.com:443", "api.github.com:443"} {
				if slices.Contains(allowed(plan.Agent), host) && tt.service != "github" {
					t.Errorf("%s reaches %s", tt.agent, host)
				}
			}
			for _, host := range b.Hosts {
				if host != "api.github.com" && slices.Contains(allowed(plan.GitHub), host+":443") {
					t.Errorf("%s: the github sandbox reaches %s", tt.agent, host)
				}
			}
		}
	}
}

// TestFieldReports holds the rows of the category policy that the plan answers.
func TestFieldReports(t *testing.T) {
	t.Run("R036", func(t *testing.T) { // deny wins over the baseline, which is filtered before it is applied
		in := input()
		in.Deny = []string{"api.business.githubcopilot.com", "**.individual.githubcopilot.com"}
		plan, err := provision.New(in)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(allowed(plan.Agent), "api.business.githubcopilot.com:443") || len(plan.Agent.Deny) != 2 || len(plan.GitHub.Deny) != 2 {
			t.Errorf("allowed %v, denied %v", allowed(plan.Agent), plan.Agent.Deny)
		}
	})
	t.Run("R037", func(t *testing.T) { // what opens everything is refused by name, before any engine is asked
		for _, wide := range []string{"*", "**", "0.0.0.0/0", "*.com"} {
			in := input()
			in.Allow = []string{wide}
			if _, err := provision.New(in); !errors.Is(err, provision.ErrRefused) || !strings.Contains(err.Error(), wide) {
				t.Errorf("%s: %v; want it refused by name", wide, err)
			}
		}
	})
	prove := func(t *testing.T, answer fake.ExecRule) error {
		t.Helper()
		b := newBench(t, "0.47", nil)
		p := b.acquire()
		if _, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, creds); err != nil {
			t.Fatal(err)
		}
		answer.Match = "^sh -c"
		b.script(fake.Script{Version: "0.47", Exec: []fake.ExecRule{answer}})
		_, err := provision.Prove(t.Context(), p, b.plan, creds, true)
		if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
			t.Error(err)
		}
		for _, call := range b.calls() {
			if strings.Contains(call, "--env") && strings.Contains(call, "TOKEN=github_pat_agent") {
				t.Errorf("a value went into the sandbox: %s", call)
			}
		}
		return err
	}
	t.Run("R035", func(t *testing.T) { // a rule that was written and is not in the listing stops the run
		b := newBench(t, "0.47", nil)
		b.script(fake.Script{Version: "0.47", Calls: []fake.CallRule{{Match: "^policy allow", Stdout: "Rule added to policy local (scope: sandbox:x): 1 (x [tcp])\n"}}})
		p := b.acquire()
		if _, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, creds); !errors.Is(err, sbx.ErrNotApplied) {
			t.Errorf("with rules that never arrive: %v, want ErrNotApplied", err)
		}
		if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
			t.Error(err)
		}
	})
	t.Run("R062", func(t *testing.T) { // a probe that could not run is an error: neither yes nor no, and no other strategy
		if err := prove(t, fake.ExecRule{Code: 125, Stderr: "cannot run"}); !errors.Is(err, provision.ErrNoProof) {
			t.Errorf("a failing probe: %v, want ErrNoProof", err)
		}
		if err := prove(t, fake.ExecRule{Stdout: "nonsense\n"}); !errors.Is(err, provision.ErrNoProof) {
			t.Errorf("a probe without an answer: %v, want ErrNoProof", err)
		}
	})
	t.Run("R056", func(t *testing.T) { // an SSH identity at hand fails the run
		err := prove(t, fake.ExecRule{Stdout: "-- ssh\n256 SHA256:abc user@host (ED25519)\n-- disk\n-- environ\nHOME=/home/agent\n\n-- end\n"})
		if !errors.Is(err, provision.ErrNotProven) || !strings.Contains(err.Error(), "ssh.agentForwardingEnabled") {
			t.Errorf("with a key offered: %v; want ErrNotProven with the remedy", err)
		}
	})
	t.Run("R057", func(t *testing.T) { // a value in a process's environment is found
		err := prove(t, fake.ExecRule{Stdout: "-- ssh\n-- disk\n-- environ\nX=" + creds.GitHub.Reveal() + "\n\n-- end\n"})
		if !errors.Is(err, provision.ErrNotProven) || strings.Contains(err.Error(), creds.GitHub.Reveal()) || !strings.Contains(err.Error(), "environment") {
			t.Errorf("with a value visible: %v; want ErrNotProven without the value", err)
		}
	})
	t.Run("R030", func(t *testing.T) { // an empty list is not "everything"
		in := input()
		in.Allow = []string{}
		plan, err := provision.New(in)
		if err != nil {
			t.Fatal(err)
		}
		bare := input()
		none, err := provision.New(bare)
		if err != nil || !slices.Equal(allowed(plan.Agent), allowed(none.Agent)) {
			t.Errorf("an empty list allowed %v, no list %v, %v", allowed(plan.Agent), allowed(none.Agent), err)
		}
	})
}

func TestPlanRefusesWhatWouldBreakTheSplit(t *testing.T) {
	for name, change := range map[string]func(*provision.Input){
		"the agent may push": func(in *provision.Input) { in.Allow = []string{"github.com"} },
		"by a wildcard": func(in *provision.Input) {
			in.Host = "git.corp.test"
			in.Allow = []string{"*.corp.test"}
		},
		"the model is denied":        func(in *provision.Input) { in.Deny = []string{"api.github.com", "**.githubcopilot.com"} },
		"GitHub itself is denied":    func(in *provision.Input) { in.Deny = []string{"github.com"} },
		"no repository":              func(in *provision.Input) { in.Repo = "octo" },
		"an agent nobody knows":      func(in *provision.Input) { in.Agent = "hal" },
		"a resource that never acts": func(in *provision.Input) { in.Allow = []string{"https://x.test/y"} },
	} {
		in := input()
		change(&in)
		if plan, err := provision.New(in); !errors.Is(err, provision.ErrRefused) {
			t.Errorf("%s: accepted (%v): %v", name, err, allowed(plan.Agent))
		}
	}
}
