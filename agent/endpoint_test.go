package agent_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/fixtures/model"
	"github.com/sbxpair/sbxpair/gateway"
	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/secrets"
)

// behind is how a CLI uses a gateway.
type behind struct {
	provider string
	api      gateway.API
	model    string
	keyEnv   string
}

// TestThroughGateway: each real CLI, pointed at a gateway, does its work with the run's key alone; what the scripted model
// counts is what the ledger says. At a cap it ends, without having asked again and again, and shows which cap it was.
func TestThroughGateway(t *testing.T) {
	ways := map[string][]behind{
		"copilot":  {{"openai", gateway.OpenAI, "claude-haiku-4.5", ""}, {"anthropic", gateway.Anthropic, "claude-haiku-4.5", ""}},
		"claude":   {{"anthropic", gateway.Anthropic, "claude-haiku-4-5", ""}},
		"codex":    {{"openai", gateway.OpenAI, "gpt-5.4", ""}},
		"gemini":   {{"google", gateway.Google, "gemini-2.5-flash", ""}},
		"opencode": {{"anthropic", gateway.Anthropic, "anthropic/claude-haiku-4-5", "ANTHROPIC_API_KEY"}},
		"pi":       {{"anthropic", gateway.Anthropic, "anthropic/claude-haiku-4-5", "ANTHROPIC_API_KEY"}},
	}
	for _, r := range slices.Concat(reals(), others()) {
		home := t.TempDir() // for all runs of a CLI: Copilot unpacks 235 MB into a fresh one
		for i, way := range ways[r.adapter.Name] {
			for name, caps := range map[string]gateway.Caps{"": {}, " at a cap": {Tokens: 1}} {
				if i > 0 && caps.Tokens > 0 {
					continue // it is the CLI that shows it
				}
				t.Run(r.adapter.Name+" on "+way.provider+name, func(t *testing.T) {
					if slices.Contains([]string{"gemini", "opencode", "pi"}, r.adapter.Name) && os.Getenv("SBXPAIR_AGENT_CLIS") == "" {
						t.Skip("needs the real " + r.adapter.Name + " CLI in the node_modules folder SBXPAIR_AGENT_CLIS")
					}
					throughGateway(t, r, home, way, caps)
				})
			}
		}
	}
}

func throughGateway(t *testing.T, r real, home string, way behind, caps gateway.Caps) {
	program := r.find(t)
	dir := filepath.Join(t.TempDir(), "work")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	init := exec.CommandContext(t.Context(), "sh", "-c", "git init -q && printf 'one\\ntwo\\n' >a.txt")
	init.Dir = dir
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	steps := r.script("cat a.txt")
	server := model.New(model.Config{Scripts: []model.Script{{Steps: steps}}})
	const key = "sk-canary-of-the-provider-0123456789"
	var wrong []string
	speak := r.speak(server, steps, nil)
	var most, calls atomic.Int64 // tokens that it is known to have used while it works; calls of the model
	metered := r.adapter.Name == "copilot" && caps == (gateway.Caps{})
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if sent := req.Header.Get("X-Api-Key") + req.Header.Get("X-Goog-Api-Key") + strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "); sent != key {
			wrong = append(wrong, req.URL.Path)
		}
		late := time.Now().Add(20 * time.Second) // the second call waits until what the first one used is known
		for again := calls.Add(1) > 1; metered && again && most.Load() == 0 && time.Now().Before(late); {
			time.Sleep(5 * time.Millisecond)
		}
		speak.ServeHTTP(w, req)
	}))
	t.Cleanup(provider.Close)
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	ledger, err := gateway.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.Serve(t.Context(), gateway.Options{Ledger: ledger, Prices: prices.Builtin(),
		Upstreams: map[gateway.API]gateway.Upstream{way.api: {URL: provider.URL, Key: secrets.New(key)}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(t.Context()) })
	access, err := g.Register(gateway.Grant{Run: "r", APIs: []gateway.API{way.api}, Caps: caps}, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	env := r.adapter.KeyEnv(way.provider)
	if env == "" {
		env = way.keyEnv
	}
	task := agent.Task{Prompt: "Change two to 2 in a.txt.", Dir: dir, Command: []string{program}, Model: way.model,
		Endpoint: &agent.Endpoint{Provider: way.provider, URL: access.URLs[way.api]}, Env: []string{env + "=" + access.Key.Reveal()}}
	var rec record
	options := rec.options(agent.Limits{Wall: 2 * time.Minute})
	options.Meter, options.Spent = 10*time.Millisecond, func(_ int, u agent.Usage) bool { most.Store(max(most.Load(), u.Input)); return false }
	res, err := agent.Run(t.Context(), &host{home: home}, r.adapter, task, options)
	if err != nil {
		t.Fatal(err)
	}
	if caps != (gateway.Caps{}) {
		_, why, _ := g.Spent("r")
		book, err := os.ReadFile(path)
		refused := strings.Count(string(book), `"refused":`)
		t.Logf("%v, %d refusals: %s", res.Took.Round(time.Millisecond), refused, why)
		v := agent.Judge(res, false)
		if err != nil || v.Outcome == agent.Succeeded || res.Stop != "" || why == "" || refused == 0 || refused > 20 || !strings.Contains(rec.transcript.String()+v.Reason+res.Stderr, "cap of 1 tokens") {
			t.Errorf("%+v after %d refusals (%q), %v\n%s", v, refused, why, err, rec.transcript.String())
		}
		return
	}
	text, _ := os.ReadFile(filepath.Join(dir, "a.txt"))
	if v := agent.Judge(res, true); v.Outcome != agent.Succeeded || string(text) != "one\n2\n" {
		s := rec.transcript.String()
		t.Fatalf("%+v: %q\n%s", v, text, s[max(0, len(s)-3000):])
	}
	if len(wrong) > 0 {
		t.Errorf("the provider saw another key than its own at %v", wrong)
	}
	spent, _, err := g.Spent("r")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v, %d calls, ledger %+v", res.Took.Round(time.Millisecond), len(server.Calls()), spent)
	want := model.Usage{}
	for _, s := range steps {
		want.Input, want.Cached, want.Output = want.Input+s.Usage.Input, want.Cached+s.Usage.Cached, want.Output+s.Usage.Output
		want.Written += s.Usage.Written
	}
	if used := most.Load(); metered && (used == 0 || used > res.Usage.Input) { // told by its own log while it worked
		t.Errorf("while it worked it had used up to %d tokens, in all %d", used, res.Usage.Input)
	}
	// What went into the cache, by the CLI's own word: Copilot's usage file tells it where the provider's wire does.
	if u := res.Usage; r.adapter.Name == "copilot" && way.api == gateway.Anthropic && (u.Written != int64(want.Written) || u.Models[way.model].Written != u.Written) {
		t.Errorf("usage %+v, want %d tokens written", u, want.Written)
	}
	// Some CLIs make a call of their own beside the work, for a title.
	if spent.Input < int64(want.Input) || spent.Output < int64(want.Output) || spent.Calls < len(steps) || spent.Calls == len(steps) && spent.Input != int64(want.Input) {
		t.Errorf("the ledger says %+v, the model %+v in %d calls", spent, want, len(steps))
	}
}

// A CLI is not pointed at what it cannot speak.
func TestEndpointRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		adapter agent.Adapter
		task    agent.Task
		text    string
	}{
		"provider":          {agent.Claude(), agent.Task{Endpoint: &agent.Endpoint{Provider: "openai", URL: "http://x"}}, "it can for: anthropic"},
		"address":           {agent.Claude(), agent.Task{Endpoint: &agent.Endpoint{Provider: "anthropic", URL: `http://x"`}}, "address"},
		"no model":          {agent.Copilot(), agent.Task{Endpoint: &agent.Endpoint{Provider: "openai", URL: "http://x"}}, "agent.model"},
		"any other program": {agent.Program("p", "p"), agent.Task{Endpoint: &agent.Endpoint{Provider: "openai", URL: "http://x"}}, "cannot be pointed"},
	} {
		tt.task.Prompt = "x"
		if _, err := tt.adapter.Invocation(tt.task); !errors.Is(err, agent.ErrTask) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
