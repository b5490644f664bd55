package provision_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/secrets"
)

// said is what a host answers to one question, in the form in which the inquiry brings it back.
type said struct {
	status int
	body   string
	header string
	exit   int
	stderr string
}

const blockPage = "Blocked by network policy: domain example.com:443\n"

// expected is the answer that a question hopes for.
func expected(p events.Probe) said {
	switch p.Want {
	case "blocked":
		return said{status: 403, body: blockPage}
	case "permitted":
		return said{status: 422, body: `{"message":"Validation Failed"}`}
	case "refused":
		return said{status: 403, body: `{"message":"Resource not accessible by personal access token"}`}
	}
	return said{status: 200, body: "{}"}
}

// proving is a pair on the fake whose insides answer as a test says.
type proving struct {
	*bench
	pair   *pair.Pair
	probes []events.Probe // the questions
	cut    int            // bytes that the end of each sandbox's answers lacks
}

func newProving(t *testing.T, change func(*provision.Input)) *proving {
	t.Helper()
	b := newBench(t, "0.47", change)
	v := &proving{bench: b, pair: b.acquire()}
	if b.plan.Agent.Secret.Strategy == provision.PlainEnv {
		b.script(fake.Script{Version: "0.47", Exec: []fake.ExecRule{{Match: "^sh -c"}}})
	}
	if _, err := provision.Apply(t.Context(), b.engine.Unverified(), v.pair, b.plan, creds); err != nil {
		t.Fatal(err)
	}
	b.script(fake.Script{Version: "0.47", Exec: []fake.ExecRule{{Match: "^sh -c", Stdout: "-- ssh\n-- disk\n-- environ\n\n-- end\n"}}})
	proof, err := provision.Prove(t.Context(), v.pair, b.plan, creds, true)
	if err == nil {
		t.Fatal("a proof without any answer passed")
	}
	v.probes = proof.Probes
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if _, err := v.pair.Release(ctx, "done", time.Minute); err != nil {
			t.Error(err)
		}
	})
	return v
}

// prove lets every question be answered as hoped for, except those that begin as the keys of answers do, and puts tail in
// place of what the machine holds ("ssh", "disk", "environ").
func (v *proving) prove(answers map[string]said, tail map[string]string, fresh bool) (events.Proof, error) {
	v.t.Helper()
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	text := map[string]string{}
	for _, p := range v.probes {
		name, _, isQuestion := strings.Cut(p.Name, " (https://")
		if !isQuestion {
			continue
		}
		a := expected(p)
		for key, other := range answers {
			if role, rest, _ := strings.Cut(key, ": "); role == p.Role && strings.HasPrefix(name, rest) {
				a = other
			}
		}
		text[p.Role] += fmt.Sprintf("%s\t%d\t%d\t%s\t%s\t%s\n", name, a.exit, a.status, b64(a.body), b64(a.stderr), b64(a.header))
	}
	if a, asked := answers["github: whose"]; asked { // what is told is no probe
		text["github"] += fmt.Sprintf("whose token it is\t0\t%d\t%s\t\t\n", a.status, b64(a.body))
	}
	var rules []fake.ExecRule
	for role, lines := range text {
		for _, section := range []string{"ssh", "disk", "environ"} {
			lines += "-- " + section + "\n" + tail[role+": "+section]
		}
		lines += "\n-- end\n"
		rules = append(rules, fake.ExecRule{Match: "^sh -c", Sandbox: v.plan.Run.Name(pair.Role(role)), Stdout: lines[:len(lines)-v.cut]})
	}
	v.script(fake.Script{Version: "0.47", Exec: rules})
	return provision.Prove(v.t.Context(), v.pair, v.plan, creds, fresh)
}

func TestProofPassesOnlyWhenEverythingIsAsPlanned(t *testing.T) {
	v := newProving(t, nil)
	proof, err := v.prove(nil, nil, true)
	if err != nil {
		t.Fatalf("all as hoped for: %v", err)
	}
	for _, p := range proof.Probes {
		if !p.Passed {
			t.Errorf("%+v", p)
		}
	}
	bad := `{"message":"Bad credentials"}`
	for _, tt := range []struct {
		name    string
		answers map[string]said
		tail    map[string]string
		kind    error
		text    string
	}{
		{"the model refuses", map[string]said{"agent: own credential": {status: 401, body: bad}}, nil, provision.ErrCredential, "Bad credentials"},
		{"GitHub does not know the repository", map[string]said{"github: own credential": {status: 404, body: "{}"}}, nil, provision.ErrCredential, "does not exist"},
		{"no push", map[string]said{"github: may push": {status: 403, body: "denied"}}, nil, provision.ErrPermission, "Contents: read and write"},
		{"no pull requests", map[string]said{"github: may open": {status: 403, body: `{"message":"Resource not accessible by personal access token"}`}}, nil, provision.ErrPermission, "Pull requests: read and write"},
		{"a pull request was made", map[string]said{"github: may open": {status: 201, body: "{}"}}, nil, provision.ErrNotProven, "expected permitted, got accepted"},
		{"the host is down", map[string]said{"github: own credential": {exit: 28, stderr: "curl: (28) timed out"}}, nil, provision.ErrNotProven, "timed out"},
		{"the agent can push", map[string]said{"agent: push": {status: 200}}, nil, provision.ErrNotProven, "expected blocked, got accepted"},
		{"the agent reaches another host", map[string]said{"agent: another host": {status: 200}}, nil, provision.ErrNotProven, "expected blocked"},
		{"the github sandbox reaches the model", map[string]said{"github: the model": {status: 401}}, nil, provision.ErrNotProven, "expected blocked"},
		{"the other's value in the environment", nil, map[string]string{"agent: environ": "A=" + creds.GitHub.Reveal() + "\n"}, provision.ErrNotProven, "environment or command line"},
		{"the own value in the environment", nil, map[string]string{"github: environ": "GH_TOKEN=" + creds.GitHub.Reveal() + "\n"}, provision.ErrNotProven, "environment or command line"},
		{"a value on the disk", nil, map[string]string{"agent: disk": "/home/agent/x:" + creds.Agent.Reveal() + "\n"}, provision.ErrNotProven, "on the disk"},
		{"a login of the template's", nil, map[string]string{"agent: disk": "/home/agent/.config/gh/hosts.yml:gho_" + strings.Repeat("a", 36) + "\n"}, provision.ErrNotProven, "/home/agent/.config/gh/hosts.yml holds a oauth credential"},
		{"a token of the image's", nil, map[string]string{"agent: environ": "MY_PAT=ghp_" + strings.Repeat("a", 36) + "\n"}, provision.ErrNotProven, "MY_PAT holds a classic credential"},
		{"placeholders of the engine", nil, map[string]string{"agent: environ": "GH_TOKEN=" + secrets.GitHubServicePlaceholder + "\nOPENAI_API_KEY=proxy-managed\n"}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v.t = t
			_, err := v.prove(tt.answers, tt.tail, true)
			if tt.kind == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want %v with %q", err, tt.kind, tt.text)
			}
			for _, c := range []secrets.Value{creds.Agent, creds.GitHub} {
				if strings.Contains(err.Error(), c.Reveal()) {
					t.Error("the error shows a value")
				}
			}
		})
	}
	v.t = t
	for cut := 1; cut < 30; cut += 7 { // an answer that is not whole may have held anything
		v.cut = cut
		if _, err := v.prove(nil, nil, true); !errors.Is(err, provision.ErrNoProof) || errors.Is(err, provision.ErrNotProven) {
			t.Errorf("cut off %d bytes before its end: %v, want ErrNoProof", cut, err)
		}
	}
	v.cut = 0
	// Once the agent was at work its own test data may look like tokens; only real values count then.
	if _, err := v.prove(nil, map[string]string{"agent: environ": "FAKE=ghp_" + strings.Repeat("a", 36) + "\n"}, false); err != nil {
		t.Errorf("before delivery: %v", err)
	}
	proof, err = v.prove(map[string]said{
		"agent: own":  {status: 200, body: `{}`, header: "GitHub-Authentication-Token-Expiration: " + time.Now().Add(24*time.Hour).UTC().Format("2006-01-02 15:04:05 MST") + "\r\n"},
		"github: own": {status: 200, body: `{}`, header: "x-oauth-scopes: repo, delete_repo\r\n"},
	}, nil, true)
	if notes := strings.Join(proof.Notes, "\n"); err != nil || !strings.Contains(notes, "the agent sandbox's token ends on") || !strings.Contains(notes, "delete_repo") {
		t.Errorf("notes %q, %v", notes, err)
	}
}

// Whose tokens they are is told by the hosts, and what is not told is no failure; what the token may not do ends a run that cannot do
// without, and is said to one that can.
func TestProofOfOwnersAndIssues(t *testing.T) {
	v := newProving(t, func(in *provision.Input) { in.Issues = provision.Needed })
	proof, err := v.prove(map[string]said{"agent: own": {status: 200, body: `{"login":"octocat"}`}, "github: whose": {status: 200, body: `{"login":"octo-bot"}`}}, nil, true)
	if err != nil || proof.Owners["agent"] != "octocat" || proof.Owners["github"] != "octo-bot" {
		t.Errorf("owners %v, %v", proof.Owners, err)
	}
	proof, err = v.prove(map[string]said{"github: whose": {status: 403, body: `{"message":"Resource not accessible by integration"}`}}, nil, true)
	if err != nil || len(proof.Owners) != 0 {
		t.Errorf("an app's token: owners %v, %v", proof.Owners, err)
	}
	forbidden := map[string]said{"github: may open issues": {status: 403, body: `{"message":"Resource not accessible by personal access token"}`}}
	if _, err := v.prove(forbidden, nil, true); !errors.Is(err, provision.ErrPermission) || !strings.Contains(err.Error(), provision.MayIssue) {
		t.Errorf("issues are needed and forbidden: %v", err)
	}
	v.plan.Issues = provision.Wanted
	proof, err = v.prove(forbidden, nil, true)
	if notes := strings.Join(proof.Notes, "\n"); err != nil || !strings.Contains(notes, provision.MayIssue) || !strings.Contains(notes, "sbxpair credential link") {
		t.Errorf("issues are wanted and forbidden: notes %q, %v", notes, err)
	}
}

// Without path rules the agent reaches the API's host: then the proof is that its credential does not do there.
func TestProofWithoutPathRules(t *testing.T) {
	v := newProving(t, func(in *provision.Input) { in.Paths = false })
	if _, err := v.prove(nil, nil, true); err != nil {
		t.Fatal(err)
	}
	_, err := v.prove(map[string]said{"agent: the repository's API refuses": {status: 422, body: "{}"}}, nil, true)
	if !errors.Is(err, provision.ErrNotProven) || !strings.Contains(err.Error(), "expected refused") {
		t.Errorf("a credential of the agent that may open pull requests: %v", err)
	}
}

// The account says where its plan's model is; that host has to take the credential as well.
func TestProofAsksThePlansOwnModelHost(t *testing.T) {
	v := newProving(t, nil)
	account := said{status: 200, body: `{"login":"o","endpoints":{"api":"https://api.business.githubcopilot.com"}}`}
	_, err := v.prove(map[string]said{"agent: own": account}, nil, true)
	if !errors.Is(err, provision.ErrNotProven) || !strings.Contains(err.Error(), "api.business.githubcopilot.com") || !strings.Contains(err.Error(), "agent.strategy: custom") {
		t.Errorf("a plan's host that does not answer: %v", err) // the second round has no answer of its own in this script
	}
}

// plain-env is chosen by name only. The value goes in by standard input, and what runs inside finds it.
func TestPlainEnv(t *testing.T) {
	v := newProving(t, func(in *provision.Input) { in.AgentStrategy = provision.PlainEnv })
	s := v.plan.Agent
	if len(s.Environment()) != 0 || len(s.Launch()) == 0 || s.Secret.Placeholder != "" || len(v.plan.GitHub.Launch()) != 0 {
		t.Errorf("environment %v, launch %v", s.Environment(), s.Launch())
	}
	own := map[string]string{"agent: environ": "COPILOT_GITHUB_TOKEN=" + creds.Agent.Reveal() + "\n", "agent: disk": "/home/agent/.sbxpair/credential:" + creds.Agent.Reveal() + "\n"}
	if _, err := v.prove(nil, own, true); err != nil {
		t.Errorf("its own value, as it was told to: %v", err)
	}
	own["agent: environ"] = "X=" + creds.GitHub.Reveal() + "\n"
	if _, err := v.prove(nil, own, true); !errors.Is(err, provision.ErrNotProven) {
		t.Errorf("the other role's value: %v", err)
	}
	list, err := fake.Calls(v.state)
	if err != nil {
		t.Fatal(err)
	}
	wrote := false
	for _, c := range list {
		wrote = wrote || c.StdinBytes == len(creds.Agent.Reveal()) && strings.Contains(strings.Join(c.Args, " "), "umask 077")
	}
	if !wrote {
		t.Error("the value did not go in by standard input")
	}
	v.calls() // fails if a value is on a command line
}
