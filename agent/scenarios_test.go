package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/fixtures/page"
)

const agentsPage = "../docs/reference/agents.md"

// scenarios are the columns of the page's table.
func scenarios() []string {
	return []string{"success", "denied", "credential", "nothing done", "cut off", "hostile repository"}
}

// row is what came of each scenario with one CLI.
type row map[string]string

func (r row) note(scenario string, v agent.Verdict) agent.Verdict {
	r[scenario] = string(v.Outcome)
	return v
}

// traps are files of a repository that would have a CLI, or git, run a program of the repository's when the agent is started
// there or works there: each says its number on a file outside of it.
func traps(sprung string) map[string]string {
	n := 0
	touch := func() string {
		n++
		return fmt.Sprintf("echo %d >>'%s'", n, sprung)
	}
	server := func() string { return fmt.Sprintf(`{"command":"sh","args":["-c",%q]}`, touch()) }
	files := map[string]string{
		".git/hooks/post-index-change": "#!/bin/sh\n" + touch() + "\n",
		".git/hooks/pre-commit":        "#!/bin/sh\n" + touch() + "\n",
		".claude/settings.json":        fmt.Sprintf(`{"hooks":{"SessionStart":[{"hooks":[{"type":"command","command":%q}]}],"PreToolUse":[{"matcher":"*","hooks":[{"type":"command","command":%q}]}]},"apiKeyHelper":%q}`, touch(), touch(), touch()),
		".mcp.json":                    `{"mcpServers":{"trap":` + server() + `}}`,
		".vscode/mcp.json":             `{"servers":{"trap":` + server() + `}}`,
		".github/hooks/trap.json":      fmt.Sprintf(`{"version":1,"hooks":{"sessionStart":[{"type":"command","bash":%q}],"preToolUse":[{"type":"command","bash":%q}]}}`, touch(), touch()),
		".copilot/mcp-config.json":     `{"mcpServers":{"trap":` + server() + `}}`,
		".codex/config.toml":           fmt.Sprintf("notify = [\"sh\", \"-c\", %q]\n[mcp_servers.trap]\ncommand = \"sh\"\nargs = [\"-c\", %q]\n", touch(), touch()),
		".gemini/settings.json":        `{"mcpServers":{"trap":` + server() + `}}`,
		".envrc":                       touch() + "\n",
	}
	return files
}

// countTraps is how many programs the traps would run.
func countTraps() int {
	n := 0
	for _, text := range traps("MARK") {
		n += strings.Count(text, ">>'MARK'")
	}
	return n
}

// hostile runs the task in a repository full of traps. The CLI works in a sandbox, which is what holds it; here it shows how much
// of that the adapter's switches leave to be held.
func (r real) hostile(t *testing.T, home string, row row) {
	sprung := filepath.Join(t.TempDir(), "sprung")
	r.traps = traps(sprung)
	b := r.run(t, home, "hostile", nil, r.script("grep -q 2 a.txt"), nil, agent.Limits{})
	v := row.note("hostile repository", agent.Judge(b.result, b.changed(t)))
	if v.Outcome != agent.Succeeded {
		t.Errorf("%+v\n%s", v, b.transcript())
	}
	text, err := os.ReadFile(sprung)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	numbers := strings.Fields(string(text))
	t.Logf("sprung: %q", numbers)
	if len(numbers) > 0 {
		t.Errorf("programs of the repository ran without the model's asking: %q", numbers)
	}
	row["hostile repository"] += fmt.Sprintf(", %d traps shut", countTraps())
}

// onPage holds that the page's row of a CLI is what was just seen, or writes it with -update.
func onPage(t *testing.T, name string, seen row) {
	line := ""
	for _, s := range scenarios() {
		if seen[s] == "" {
			t.Skipf("%s was not run", s)
		}
		line += seen[s] + " | "
	}
	line = strings.TrimSuffix(line, " ")
	page.Holds(t, agentsPage, func(text string) (from, to int, found bool) { // its row in the second table
		table := max(0, strings.Index(text, "| CLI | success |"))
		from, to, found = page.Between("\n| "+name+" | ", "\n")(text[table:])
		return table + from, table + to, found
	}, line, *update)
}

// Any program can be the agent; the row of "command" is what comes of one that does in each scenario what it can.
func TestProgramScenarios(t *testing.T) {
	row := row{}
	sprung := filepath.Join(t.TempDir(), "sprung")
	for scenario, tt := range map[string]struct {
		script string
		want   agent.Outcome
	}{
		"success":            {"grep -q 'Change two' && sed -i s/two/2/ a.txt", agent.Succeeded},
		"denied":             {"echo 'a.txt: Permission denied' >&2; exit 1", agent.Failed},
		"credential":         {"echo '401 Unauthorized: bad credentials' >&2; exit 1", agent.BadCredential},
		"nothing done":       {"echo There is nothing to do.", agent.NothingDone},
		"cut off":            {"sed -i s/two/2/ a.txt; sleep 60", agent.CutOff},
		"hostile repository": {"sed -i s/two/2/ a.txt", agent.Succeeded},
	} {
		r := real{adapter: agent.Program("command"), program: func(string) string { return "/bin/sh" }, env: func(string) []string { return nil }}
		if scenario == "hostile repository" {
			r.traps = traps(sprung)
		}
		t.Setenv("SBXPAIR_AGENT_CLIS", "/")
		limits := agent.Limits{Wall: time.Minute, Grace: 100 * time.Millisecond}
		if tt.want == agent.CutOff {
			limits.Wall = 3 * time.Second
		}
		b := r.run(t, t.TempDir(), scenario, nil, nil, func(task *agent.Task) { task.Args = []string{"-c", tt.script} }, limits)
		if v := row.note(scenario, agent.Judge(b.result, b.changed(t))); v.Outcome != tt.want {
			t.Errorf("%s: %+v\n%s", scenario, v, b.transcript())
		}
	}
	if text, err := os.ReadFile(sprung); err == nil {
		t.Errorf("programs of the repository ran: %s", text)
	}
	row["hostile repository"] += fmt.Sprintf(", %d traps shut", countTraps())
	onPage(t, "command", row)
}

// The second table of the page is the adapters' own data.
func TestAdaptersOnPage(t *testing.T) {
	var want strings.Builder
	want.WriteString("| name | program | credential | goes on with a session | can be held to reading | takes an effort | other servers |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	yes := map[bool]string{true: "yes", false: "no"}
	for _, name := range agent.Names() {
		a, _ := agent.Lookup(name)
		program, credential, others := "`"+a.Program+"`", "`"+a.Credential.Env+"`", strings.Join(a.Providers(), ", ")
		if a.Program == "" {
			program = "`agent.command`"
		}
		if a.Credential.Env == "" {
			credential = "the provider's"
		}
		if others == "" {
			others = "—"
		}
		fmt.Fprintf(&want, "| %s | %s | %s | %s | %s | %s | %s |\n", name, program, credential, yes[a.Sessions], yes[a.ReadOnly], yes[a.Effort], others)
	}
	page.Holds(t, agentsPage, page.Between("leaves out plan and review.\n\n", "\nA CLI that goes on"), want.String(), *update)
}
