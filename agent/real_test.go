package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/fixtures/model"
	"github.com/sbxpair/sbxpair/secrets"
)

// real is a CLI that the tests drive against the scripted model server.
type real struct {
	adapter agent.Adapter
	program func(modules string) string // its native program below a node_modules folder
	env     func(base string) []string
	files   func(base string) map[string]string // in the home folder
	script  func(check string) []model.Step     // reads, edits a.txt, runs the command check
	traps   map[string]string                   // further files in the repository
	deny    []string                            // arguments that refuse its writing tools
}

func reals() []real {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	usage := func(n int) model.Usage { return model.Usage{Input: 1000 + n, Cached: 100, Written: 200, Output: 10} }
	chat := func(read, edit, shell model.Call) []model.Step {
		return []model.Step{
			{Text: "Let me look.", Calls: []model.Call{read}, Usage: usage(0)},
			{Calls: []model.Call{edit}, Usage: usage(1)},
			{Calls: []model.Call{shell}, Usage: usage(2)},
			{Text: "Done: two is 2.", Usage: usage(3)},
		}
	}
	return []real{
		{
			adapter: agent.Copilot(),
			deny:    []string{"--deny-tool", "write", "--deny-tool", "shell"}, // wins over every permission
			program: func(m string) string { return filepath.Join(m, "@github", "copilot-linux-"+arch, "copilot") },
			env: func(base string) []string {
				return []string{"COPILOT_OFFLINE=true", "COPILOT_PROVIDER_BASE_URL=" + base + "/v1", "COPILOT_MODEL=claude-haiku-4.5"}
			},
			script: func(check string) []model.Step {
				return chat(model.Call{Tool: "view", Args: map[string]any{"path": model.Dir + "/a.txt"}},
					model.Call{Tool: "edit", Args: map[string]any{"path": model.Dir + "/a.txt", "old_str": "two", "new_str": "2"}},
					model.Call{Tool: "bash", Args: map[string]any{"command": check, "description": "check"}})
			},
		},
		{
			adapter: agent.Claude(),
			deny:    []string{"--settings", `{"permissions":{"deny":["Edit(**)","Write(**)","Bash(sed:*)"]}}`},
			program: func(m string) string {
				return filepath.Join(m, "@anthropic-ai", "claude-code-linux-"+arch, "claude")
			},
			env: func(base string) []string {
				return []string{"ANTHROPIC_BASE_URL=" + base, "ANTHROPIC_API_KEY=" + placeholder(agent.Claude())}
			},
			script: func(check string) []model.Step {
				return chat(model.Call{Tool: "Read", Args: map[string]any{"file_path": model.Dir + "/a.txt"}},
					model.Call{Tool: "Edit", Args: map[string]any{"file_path": model.Dir + "/a.txt", "old_string": "two", "new_string": "2"}},
					model.Call{Tool: "Bash", Args: map[string]any{"command": check, "description": "check"}})
			},
		},
		{
			adapter: agent.Codex(),
			program: func(m string) string {
				list, _ := filepath.Glob(filepath.Join(m, "@openai", "codex-linux-"+arch, "vendor", "*", "bin", "codex"))
				if len(list) == 0 {
					list, _ = filepath.Glob(filepath.Join(m, "@openai", "codex-linux-"+arch, "vendor", "*", "codex", "codex"))
				}
				return strings.Join(list, "")
			},
			env: func(base string) []string { return []string{"FAKE_KEY=x"} },
			script: func(check string) []model.Step {
				return chat(model.Call{Tool: "exec_command", Args: map[string]any{"cmd": "cat a.txt"}},
					model.Call{Tool: "exec_command", Args: map[string]any{"cmd": "sed -i s/two/2/ a.txt"}},
					model.Call{Tool: "exec_command", Args: map[string]any{"cmd": check}})
			},
		},
	}
}

// others speak what the scripted server does not, or need files in their home folder.
func others() []real {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	steps := func(read, edit, shell model.Call) []model.Step {
		usage := model.Usage{Input: 1000, Cached: 100, Output: 10}
		return []model.Step{
			{Text: "Let me look.", Calls: []model.Call{read}, Usage: usage},
			{Calls: []model.Call{edit}, Usage: usage},
			{Calls: []model.Call{shell}, Usage: usage},
			{Text: "Done: two is 2.", Usage: usage},
		}
	}
	return []real{
		{
			adapter: agent.OpenCode(),
			program: func(m string) string { return filepath.Join(m, "opencode-linux-"+arch, "bin", "opencode") },
			env: func(base string) []string {
				return []string{`OPENCODE_CONFIG_CONTENT={"share":"disabled","autoupdate":false,"provider":{"local":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"` + base +
					`/v1","apiKey":"k"},"models":{"fake-1":{"name":"fake-1","limit":{"context":128000,"output":8000}}}}}}`}
			},
			script: func(check string) []model.Step {
				return steps(model.Call{Tool: "read", Args: map[string]any{"filePath": model.Dir + "/a.txt"}},
					model.Call{Tool: "edit", Args: map[string]any{"filePath": model.Dir + "/a.txt", "oldString": "two", "newString": "2"}},
					model.Call{Tool: "bash", Args: map[string]any{"command": check, "description": "check"}})
			},
		},
		{
			adapter: agent.Pi(),
			program: func(m string) string { return filepath.Join(m, ".bin", "pi") },
			files: func(base string) map[string]string {
				return map[string]string{".pi/agent/models.json": `{"providers":{"local":{"baseUrl":"` + base + `/v1","api":"openai-completions","apiKey":"FAKE_KEY","models":[{"id":"fake-1","name":"fake-1","reasoning":false,"input":["text"],"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0},"contextWindow":128000,"maxTokens":8000}]}}}`}
			},
			env: func(string) []string { return []string{"FAKE_KEY=k"} },
			script: func(check string) []model.Step {
				return steps(model.Call{Tool: "read", Args: map[string]any{"path": "a.txt"}},
					model.Call{Tool: "edit", Args: map[string]any{"path": "a.txt", "edits": []any{map[string]any{"oldText": "two", "newText": "2"}}}},
					model.Call{Tool: "bash", Args: map[string]any{"command": check}})
			},
		},
		{
			adapter: agent.Gemini(),
			program: func(m string) string { return filepath.Join(m, ".bin", "gemini") },
			env: func(base string) []string {
				return []string{"GOOGLE_GEMINI_BASE_URL=" + base, "GEMINI_API_KEY=" + placeholder(agent.Gemini())}
			},
			script: func(check string) []model.Step {
				return steps(model.Call{Tool: "read_file", Args: map[string]any{"file_path": "a.txt"}},
					model.Call{Tool: "replace", Args: map[string]any{"file_path": "a.txt", "instruction": "x", "old_string": "two", "new_string": "2"}},
					model.Call{Tool: "run_shell_command", Args: map[string]any{"command": check}})
			},
		},
	}
}

// find gives the path of the CLI's program.
func (r real) find(t *testing.T) string {
	t.Helper()
	var tried []string
	for _, dir := range []string{os.Getenv("SBXPAIR_AGENT_CLIS"), filepath.Join("..", ".cache", r.adapter.Name, "node_modules"), filepath.Join("..", ".cache", "agents", "node_modules")} {
		if dir == "" {
			continue
		}
		path := r.program(dir)
		tried = append(tried, path)
		if abs, err := filepath.Abs(path); err == nil && path != "" {
			if _, err := os.Stat(abs); err == nil {
				return abs
			}
		}
	}
	msg := "needs the real " + r.adapter.Name + " CLI; looked at " + strings.Join(tried, ", ") + " (set SBXPAIR_AGENT_CLIS to a node_modules folder)"
	// make test installs the pinned ones, so they are always there in CI; the others are there where the folder was named.
	pinned := slices.ContainsFunc(reals(), func(p real) bool { return p.adapter.Name == r.adapter.Name })
	if os.Getenv("CI") == "true" && (pinned || os.Getenv("SBXPAIR_AGENT_CLIS") != "") {
		t.Fatal(msg)
	}
	t.Skip(msg)
	return ""
}

func (r real) args(base string) []string {
	switch r.adapter.Name {
	case "opencode":
		return []string{"-m", "local/fake-1"}
	case "pi":
		return []string{"--provider", "local", "--model", "fake-1"}
	case "gemini":
		return []string{"-m", "gemini-2.5-flash"}
	case "codex":
		return []string{"-c", "model_provider=local", "-c", `model_providers.local={name="local",base_url="` + base + `/v1",env_key="FAKE_KEY",wire_api="responses"}`, "-m", "gpt-5.4"}
	}
	return nil
}

// speak is the server in the CLI's own format.
func (r real) speak(s *model.Server, steps []model.Step, fault *model.Fault) http.Handler {
	if r.adapter.Name != "gemini" {
		return s
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var body struct {
			Contents []struct {
				Role  string
				Parts []map[string]json.RawMessage
			}
		}
		if err := json.NewDecoder(req.Body).Decode(&body); err != nil || !strings.Contains(req.URL.Path, ":streamGenerateContent") {
			http.NotFound(w, req)
			return
		}
		switch {
		case fault != nil && fault.Hang:
			<-req.Context().Done()
			return
		case fault != nil && fault.Status != 0:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(fault.Status)
			fmt.Fprintf(w, `{"error":{"code":%d,"message":"API key not valid. Please pass a valid API key.","status":"UNAUTHENTICATED"}}`, fault.Status)
			return
		}
		done := 0
		for _, c := range body.Contents {
			for _, p := range c.Parts {
				if p["functionResponse"] != nil {
					done++
				}
			}
		}
		step := model.Step{Text: "Nothing more to do."}
		if done < len(steps) {
			step = steps[done]
		}
		var parts []map[string]any
		if step.Text != "" {
			parts = append(parts, map[string]any{"text": step.Text})
		}
		for _, c := range step.Calls {
			parts = append(parts, map[string]any{"functionCall": map[string]any{"name": c.Tool, "args": c.Args}})
		}
		data, _ := json.Marshal(map[string]any{
			"candidates":    []any{map[string]any{"content": map[string]any{"role": "model", "parts": parts}, "finishReason": "STOP"}},
			"usageMetadata": map[string]any{"promptTokenCount": step.Usage.Input, "candidatesTokenCount": step.Usage.Output, "totalTokenCount": step.Usage.Input + step.Usage.Output, "cachedContentTokenCount": step.Usage.Cached},
			"responseId":    "r",
		})
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\r\n\r\n", data)
	})
}

// bench is one real run.
type bench struct {
	dir    string
	record record
	server *model.Server
	result agent.Result
}

// home is shared by the runs of one CLI: Copilot unpacks 235 MB into a fresh one.
func (r real) run(t *testing.T, home, name string, fault *model.Fault, steps []model.Step, change func(*agent.Task), limits agent.Limits) *bench {
	t.Helper()
	program := r.find(t)
	b := &bench{dir: filepath.Join(t.TempDir(), "my work")}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	init := exec.CommandContext(t.Context(), "sh", "-c", "git init -q && printf 'one\\ntwo\\n' >a.txt")
	init.Dir = b.dir
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for name, text := range r.traps {
		path := filepath.Join(b.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.server = model.New(model.Config{Scripts: []model.Script{{Steps: steps}}})
	b.server.Inject(fault)
	web := httptest.NewServer(r.speak(b.server, steps, fault))
	t.Cleanup(web.Close)
	if r.files != nil {
		for name, data := range r.files(web.URL) {
			path := filepath.Join(home, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	task := agent.Task{Prompt: "Change two to 2 in a.txt.", Dir: b.dir, Command: []string{program}, Env: r.env(web.URL), Args: r.args(web.URL)}
	if change != nil {
		change(&task)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var err error
	b.result, err = agent.Run(ctx, &host{home: home}, r.adapter, task, b.record.options(limits))
	if err != nil {
		t.Fatalf("Run: %v\n%s", err, b.transcript())
	}
	if dir := os.Getenv("SBXPAIR_RECORD"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, r.adapter.Name+"-"+name+".jsonl"), b.record.transcript.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s: code %d, stop %q, %v, %d model calls, usage %+v, stderr %q", name, b.result.Code, b.result.Stop, b.result.Took.Round(time.Millisecond), len(b.server.Calls()), b.result.Usage, b.result.Stderr)
	return b
}

// transcript is the end of what the CLI wrote, for a failure.
func (b *bench) transcript() string {
	s := b.record.transcript.String()
	return s[max(0, len(s)-4000):]
}

func (b *bench) changed(t *testing.T) bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, "a.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data) != "one\ntwo\n"
}

// TestRealCLIs drives the real programs from task to verdict.
func TestRealCLIs(t *testing.T) {
	for _, r := range reals() {
		t.Run(r.adapter.Name, func(t *testing.T) {
			home := t.TempDir()
			row := row{}
			t.Run("success", func(t *testing.T) {
				b := r.run(t, home, "success", nil, r.script("grep -q 2 a.txt; exit 3"), nil, agent.Limits{})
				if v := row.note("success", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.Succeeded {
					t.Fatalf("%+v\n%+v\n%s", v, b.result, b.transcript())
				}
				s, u := b.result.Summary, b.result.Usage
				if s.Tools != 3 || s.Answer != "Done: two is 2." || !s.Finished || b.result.Leftover != 0 {
					t.Errorf("summary %+v", s)
				}
				written := map[string]int64{"claude": 800}[r.adapter.Name] // only its wire tells
				if u.Input != 4006 || u.CachedInput != 400 || u.Output != 40 || u.Written != written {
					t.Errorf("usage %+v", u)
				}
				if len(b.server.Calls()) != 4 {
					t.Errorf("%d model calls", len(b.server.Calls()))
				}
				var tools []string
				for _, e := range b.record.events {
					if e.Kind == agent.KindToolEnd {
						tools = append(tools, e.Tool)
					}
				}
				if len(tools) != 3 || slices.Contains(tools, "") {
					t.Errorf("tools %q", tools)
				}
				if b.result.SessionID == "" {
					t.Error("no session id")
				}
			})
			t.Run("nothing done", func(t *testing.T) {
				b := r.run(t, home, "nothing", nil, []model.Step{{Text: "There is nothing to do."}}, nil, agent.Limits{})
				if v := row.note("nothing done", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.NothingDone {
					t.Errorf("%+v\n%s", v, b.transcript())
				}
			})
			t.Run("credential", func(t *testing.T) {
				b := r.run(t, home, "credential", &model.Fault{Status: 401}, r.script("true"), nil, agent.Limits{})
				if v := row.note("credential", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.BadCredential {
					t.Errorf("%+v\n%+v\n%s", v, b.result, b.transcript())
				}
				if len(b.server.Calls()) > 3 {
					t.Errorf("%d model calls with a credential that is no good", len(b.server.Calls()))
				}
			})
			t.Run("hang", func(t *testing.T) {
				b := r.run(t, home, "hang", &model.Fault{Hang: true}, r.script("true"), nil, agent.Limits{Wall: 4 * time.Second, Grace: 3 * time.Second})
				if v := row.note("cut off", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.CutOff || b.result.Stop != agent.StopWall {
					t.Errorf("%+v\n%+v", v, b.result)
				}
				if left := processes(t, b.dir); len(left) > 0 {
					t.Errorf("still there: %q", left)
				}
			})
			t.Run("turns", func(t *testing.T) {
				if r.adapter.Name == "codex" {
					t.Skip("Codex reports one turn for a whole task")
				}
				b := r.run(t, home, "turns", nil, r.script("true"), nil, agent.Limits{MaxTurns: 2})
				if v := agent.Judge(b.result, b.changed(t)); v.Outcome != agent.CutOff || b.result.Stop != agent.StopTurns {
					t.Errorf("%+v\n%+v", v, b.result)
				}
			})
			t.Run("read only", func(t *testing.T) {
				b := r.run(t, home, "readonly", nil, r.script("sed -i s/two/2/ a.txt"), func(t *agent.Task) { t.ReadOnly = true }, agent.Limits{})
				if b.changed(t) {
					t.Errorf("a read-only session changed the tree\n%s", b.transcript())
				}
				if v := agent.Judge(b.result, false); v.Outcome != agent.Succeeded && v.Outcome != agent.Denied {
					t.Errorf("%+v\n%s", v, b.transcript())
				}
			})
			t.Run("denied", func(t *testing.T) {
				change, want := func(task *agent.Task) { task.Args = append(task.Args, r.deny...) }, agent.Denied
				if r.deny == nil { // Codex knows no refusals without a person to ask; its sandbox makes the commands fail
					change, want = func(task *agent.Task) { task.ReadOnly = true }, agent.NothingDone
				}
				b := r.run(t, home, "denied", nil, r.script("sed -i s/two/2/ a.txt"), change, agent.Limits{})
				b.result.ReadOnly = false // it was to write
				if v := row.note("denied", agent.Judge(b.result, b.changed(t))); v.Outcome != want || b.changed(t) {
					t.Errorf("%+v, want %s\n%s", v, want, b.transcript())
				}
			})
			t.Run("hostile repository", func(t *testing.T) { r.hostile(t, home, row) })
			if !t.Failed() {
				t.Run("page", func(t *testing.T) { onPage(t, r.adapter.Name, row) })
			}
			t.Run("resume", func(t *testing.T) {
				program := r.find(t)
				h := &host{home: home}
				dir := t.TempDir()
				server := model.New(model.Config{Scripts: []model.Script{{Steps: []model.Step{{Text: "First.", Usage: model.Usage{Input: 1000, Output: 10}}, {Text: "Second.", Usage: model.Usage{Input: 2000, Output: 20}}}}}})
				web := httptest.NewServer(server)
				t.Cleanup(web.Close)
				task := agent.Task{Prompt: "One.", Dir: dir, Command: []string{program}, Env: r.env(web.URL), Args: r.args(web.URL), SessionID: "5f0e9c1a-6a0e-4d5e-9d0a-3c1b8a7f2e10"}
				if r.adapter.Name == "codex" {
					task.SessionID = "" // it chooses the id
				}
				first, err := agent.Run(t.Context(), h, r.adapter, task, agent.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if task.SessionID != "" && first.SessionID != task.SessionID {
					t.Errorf("session %q, want %q", first.SessionID, task.SessionID)
				}
				task.Prompt, task.Resume, task.SessionID, task.Used = "Two.", true, first.SessionID, first.Usage
				second, err := agent.Run(t.Context(), h, r.adapter, task, agent.Options{})
				if err != nil {
					t.Fatal(err)
				}
				// However the CLI counts, a session that is gone on with is not paid for twice.
				if first.Usage.Input != 1000 || second.Usage.Input != 2000 || second.Usage.Output != 20 {
					t.Errorf("usage %+v, then %+v", first.Usage, second.Usage)
				}
				if first.Summary.Answer != "First." || second.Summary.Answer != "Second." {
					t.Errorf("answers %q and %q; stderr %q %q", first.Summary.Answer, second.Summary.Answer, first.Stderr, second.Stderr)
				}
			})
		})
	}
}

// TestOtherCLIs drives the CLIs that are there.
func TestOtherCLIs(t *testing.T) {
	for _, r := range others() {
		t.Run(r.adapter.Name, func(t *testing.T) {
			if os.Getenv("SBXPAIR_AGENT_CLIS") == "" {
				t.Skip("needs the real " + r.adapter.Name + " CLI in the node_modules folder SBXPAIR_AGENT_CLIS")
			}
			home := t.TempDir()
			row := row{}
			t.Run("success", func(t *testing.T) {
				b := r.run(t, home, "success", nil, r.script("grep -q 2 a.txt; exit 3"), nil, agent.Limits{})
				if v := row.note("success", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.Succeeded {
					t.Fatalf("%+v\n%+v\n%s", v, b.result, b.transcript())
				}
				s, u := b.result.Summary, b.result.Usage
				if s.Tools != 3 || s.Answer != "Done: two is 2." || !s.Finished || b.result.SessionID == "" || s.Turns == 0 || s.Edits != 1 {
					t.Errorf("summary %+v, session %q", s, b.result.SessionID)
				}
				if u.Input < 4000 || u.CachedInput < 400 || u.Output < 40 {
					t.Errorf("usage %+v", u)
				}
			})
			t.Run("nothing done", func(t *testing.T) {
				b := r.run(t, home, "nothing", nil, []model.Step{{Text: "There is nothing to do."}}, nil, agent.Limits{})
				if v := row.note("nothing done", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.NothingDone {
					t.Errorf("%+v\n%s", v, b.transcript())
				}
			})
			t.Run("credential", func(t *testing.T) {
				b := r.run(t, home, "credential", &model.Fault{Status: 401}, r.script("true"), nil, agent.Limits{})
				if v := row.note("credential", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.BadCredential {
					t.Errorf("%+v\n%+v\n%s", v, b.result, b.transcript())
				}
			})
			t.Run("hang", func(t *testing.T) {
				b := r.run(t, home, "hang", &model.Fault{Hang: true}, r.script("true"), nil, agent.Limits{Wall: 8 * time.Second, Grace: 3 * time.Second})
				if v := row.note("cut off", agent.Judge(b.result, b.changed(t))); v.Outcome != agent.CutOff || b.result.Stop != agent.StopWall {
					t.Errorf("%+v\n%+v", v, b.result)
				}
				if left := processes(t, b.dir); len(left) > 0 {
					t.Errorf("still there: %q", left)
				}
			})
			t.Run("read only", func(t *testing.T) {
				b := r.run(t, home, "readonly", nil, r.script("sed -i s/two/2/ a.txt"), func(t *agent.Task) { t.ReadOnly = true }, agent.Limits{})
				if b.changed(t) {
					t.Errorf("a read-only session changed the tree\n%s", b.transcript())
				}
				row.note("denied", agent.Judge(b.result, false))
			})
			t.Run("hostile repository", func(t *testing.T) { r.hostile(t, home, row) })
			if !t.Failed() {
				t.Run("page", func(t *testing.T) { onPage(t, r.adapter.Name, row) })
			}
		})
	}
}

// placeholder is what the sandbox sees where the adapter's credential is expected.
func placeholder(a agent.Adapter) string {
	p, _ := secrets.LookupProvider(a.Credential.Provider)
	return p.Placeholder
}
