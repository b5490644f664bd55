package agent_test

import (
	"context"
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
)

// real is a CLI that the tests drive against the scripted model server.
type real struct {
	adapter agent.Adapter
	program func(modules string) string // its native program below a node_modules folder
	env     func(base string) []string
	task    agent.Task
	script  func(fail string) []model.Step // reads, edits a.txt, runs a check; fail is a command
	denied  agent.Task                     // a task whose tool call is refused
}

func reals() []real {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	usage := func(n int) model.Usage { return model.Usage{Input: 1000 + n, Cached: 100, Output: 10} }
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
			program: func(m string) string {
				return filepath.Join(m, "@anthropic-ai", "claude-code-linux-"+arch, "claude")
			},
			env: func(base string) []string {
				return []string{"ANTHROPIC_BASE_URL=" + base, "ANTHROPIC_API_KEY=" + agent.Claude().Credential.Placeholder}
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

// modules finds the node_modules folder of the real CLIs.
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
	if os.Getenv("CI") == "true" {
		t.Fatal(msg)
	}
	t.Skip(msg)
	return ""
}

func (r real) args(base string) []string {
	if r.adapter.Name == "codex" {
		return []string{"-c", "model_provider=local", "-c", `model_providers.local={name="local",base_url="` + base + `/v1",env_key="FAKE_KEY",wire_api="responses"}`, "-m", "gpt-5.4"}
	}
	return nil
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
	b.server = model.New(model.Config{Scripts: []model.Script{{Steps: steps}}})
	b.server.Inject(fault)
	web := httptest.NewServer(b.server)
	t.Cleanup(web.Close)
	task := agent.Task{Prompt: "Change two to 2 in a.txt.", Dir: b.dir, Command: []string{program}, Env: r.env(web.URL), Args: r.args(web.URL)}
	if change != nil {
		change(&task)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var err error
	b.result, err = agent.Run(ctx, &host{home: home}, r.adapter, task, b.record.options(limits))
	if err != nil {
		t.Fatalf("Run: %v\n%s", err, b.record.transcript.String())
	}
	if dir := os.Getenv("SBXPAIR_RECORD"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, r.adapter.Name+"-"+name+".jsonl"), b.record.transcript.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s: code %d, stop %q, %v, %d model calls, usage %+v, stderr %q", name, b.result.Code, b.result.Stop, b.result.Took.Round(time.Millisecond), len(b.server.Calls()), b.result.Usage, b.result.Stderr)
	return b
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
			t.Run("success", func(t *testing.T) {
				b := r.run(t, home, "success", nil, r.script("grep -q 2 a.txt; exit 3"), nil, agent.Limits{})
				if v := agent.Judge(b.result, b.changed(t)); v.Outcome != agent.Succeeded {
					t.Fatalf("%+v\n%+v\n%s", v, b.result, b.record.transcript.String())
				}
				s, u := b.result.Summary, b.result.Usage
				if s.Tools != 3 || s.Answer != "Done: two is 2." || !s.Finished || b.result.Leftover != 0 {
					t.Errorf("summary %+v", s)
				}
				if u.Input != 4006 || u.CachedInput != 400 || u.Output != 40 {
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
				if v := agent.Judge(b.result, b.changed(t)); v.Outcome != agent.NothingDone {
					t.Errorf("%+v\n%s", v, b.record.transcript.String())
				}
			})
			t.Run("credential", func(t *testing.T) {
				b := r.run(t, home, "credential", &model.Fault{Status: 401}, r.script("true"), nil, agent.Limits{})
				if v := agent.Judge(b.result, b.changed(t)); v.Outcome != agent.BadCredential {
					t.Errorf("%+v\n%+v\n%s", v, b.result, b.record.transcript.String())
				}
				if len(b.server.Calls()) > 3 {
					t.Errorf("%d model calls with a credential that is no good", len(b.server.Calls()))
				}
			})
			t.Run("hang", func(t *testing.T) {
				b := r.run(t, home, "hang", &model.Fault{Hang: true}, r.script("true"), nil, agent.Limits{Wall: 4 * time.Second, Grace: 3 * time.Second})
				if v := agent.Judge(b.result, b.changed(t)); v.Outcome != agent.CutOff || b.result.Stop != agent.StopWall {
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
					t.Errorf("a read-only session changed the tree\n%s", b.record.transcript.String())
				}
				if v := agent.Judge(b.result, false); v.Outcome != agent.Succeeded && v.Outcome != agent.Denied {
					t.Errorf("%+v\n%s", v, b.record.transcript.String())
				}
			})
			t.Run("resume", func(t *testing.T) {
				program := r.find(t)
				h := &host{home: home}
				dir := t.TempDir()
				server := model.New(model.Config{Scripts: []model.Script{{Steps: []model.Step{{Text: "First."}, {Text: "Second."}}}}})
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
				task.Prompt, task.Resume, task.SessionID = "Two.", true, first.SessionID
				second, err := agent.Run(t.Context(), h, r.adapter, task, agent.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if first.Summary.Answer != "First." || second.Summary.Answer != "Second." {
					t.Errorf("answers %q and %q; stderr %q %q", first.Summary.Answer, second.Summary.Answer, first.Stderr, second.Stderr)
				}
			})
		})
	}
}
