package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/secrets"
)

// fake runs a shell script in the Copilot adapter's place.
func fake(t *testing.T, ctx context.Context, h *host, body string, change func(*agent.Task), o agent.Options) agent.Result {
	t.Helper()
	task := agent.Task{Prompt: "do it", Dir: t.TempDir(), Command: script(body)}
	if change != nil {
		change(&task)
	}
	res, err := agent.Run(ctx, h, agent.Copilot(), task, o)
	if err != nil {
		t.Fatalf("Run: %v (%+v)", err, res)
	}
	return res
}

// done are the last lines of an agent that is content with itself.
const done = `echo '{"type":"assistant.message","data":{"content":"All done."}}'; echo '{"type":"assistant.idle","data":{}}'; echo '{"type":"result","sessionId":"s","exitCode":0}'`

// TestFieldReports takes each row of the category that concerns this package.
func TestFieldReports(t *testing.T) {
	t.Run("R217 asks a question", func(t *testing.T) {
		var rec record
		res := fake(t, t.Context(), newHost(t), `cat >/dev/null; printf 'Allow access? (y/n):'; read answer || exec sleep 300`, nil,
			rec.options(agent.Limits{Idle: 2 * time.Second, Grace: time.Second}))
		v := agent.Judge(res, false)
		if v.Outcome != agent.CutOff || res.Stop != agent.StopIdle || !strings.Contains(v.Reason, "Allow access? (y/n):") {
			t.Errorf("%+v %+v", v, res)
		}
		if rec.kinds() != "text" {
			t.Errorf("events %s", rec.kinds())
		}
	})
	t.Run("R218 exit 0 without a word", func(t *testing.T) {
		res := fake(t, t.Context(), newHost(t), `exit 0`, nil, agent.Options{})
		if v := agent.Judge(res, false); v.Outcome != agent.NothingDone {
			t.Errorf("%+v", v)
		}
	})
	t.Run("R219 ignores SIGTERM", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var rec record
		o := rec.options(agent.Limits{Grace: 500 * time.Millisecond})
		o.Sink = func(agent.Event) { cancel() }
		const mark = "R219-needle"
		started := time.Now()
		res := fake(t, ctx, newHost(t), `trap '' TERM INT HUP; echo up; sleep 61 R219-needle; while :; do sleep 1; done`, nil, o)
		if v := agent.Judge(res, true); v.Outcome != agent.Cancelled || time.Since(started) > 20*time.Second {
			t.Errorf("%+v after %v", v, time.Since(started))
		}
		if left := processes(t, mark); len(left) > 0 {
			t.Errorf("still there: %q", left)
		}
	})
	t.Run("R220 terminal bytes between JSON lines", func(t *testing.T) {
		var rec record
		fake(t, t.Context(), newHost(t), `printf '{"type":"assistant.turn_start"}\n\033[2K working\n\033[32m{"type":"assistant.turn_end"}\033[0m\r\n'`, nil, rec.options(agent.Limits{}))
		if rec.kinds() != "turn-start text turn-end" || rec.events[1].Text != "working" {
			t.Errorf("%s %+v", rec.kinds(), rec.events)
		}
	})
	t.Run("R221 several documents", func(t *testing.T) {
		var rec record
		res := fake(t, t.Context(), newHost(t), `printf '{"type":"hook.started","data":[1]}\n{"type":"assistant.message","data":{"content":"hi"}}{"type":"assistant.turn_end"}\n{"type":"result","sessionId":"s1","exitCode":0}\n'`, nil, rec.options(agent.Limits{}))
		if !res.Summary.Finished || res.SessionID != "s1" || res.Summary.Answer != "hi" || !strings.HasSuffix(rec.kinds(), "message turn-end result") {
			t.Errorf("%s %+v", rec.kinds(), res)
		}
	})
	t.Run("R224 signal in the middle", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := agent.Options{Limits: agent.Limits{Grace: time.Second}, Sink: func(agent.Event) { cancel() }}
		res := fake(t, ctx, newHost(t), `echo up; sleep 62 R224-needle; echo late`, nil, o)
		if res.Stop != agent.StopCancelled || agent.Judge(res, true).Outcome != agent.Cancelled {
			t.Errorf("%+v", res)
		}
		if left := processes(t, "R224-needle"); len(left) > 0 {
			t.Errorf("still there: %q", left)
		}
	})
	t.Run("R225 R116 processes of one step go on in the next", func(t *testing.T) {
		h := newHost(t)
		touched := filepath.Join(t.TempDir(), "touched")
		res := fake(t, t.Context(), h, `(setsid sh -c 'while :; do date +%N >>"'`+touched+`'"; sleep 0.05; done' R225-needle >/dev/null 2>&1 &) ; while [ ! -s `+touched+` ]; do sleep 0.05; done; `+done, nil, agent.Options{})
		if res.Leftover == 0 {
			t.Errorf("nothing was said about what it left: %+v", res)
		}
		if left := processes(t, "R225-needle"); len(left) > 0 {
			t.Errorf("still there: %q", left)
		}
		if agent.Judge(res, true).Outcome != agent.Succeeded {
			t.Errorf("%+v", agent.Judge(res, true))
		}
	})
	t.Run("R226 token without the permission", func(t *testing.T) {
		for name, body := range map[string]string{
			"in words":       `echo 'Error: 401 the token does not have Copilot Requests permission'; exit 1`,
			"on stderr":      `echo 'Error: 401 the token does not have Copilot Requests permission' >&2; exit 1`,
			"and exit 0":     `echo 'Error: 401 the token does not have Copilot Requests permission'; exit 0`,
			"no token":       `echo 'Error: No authentication information found.' >&2; exit 1`,
			"as an event":    `echo '{"type":"session.error","data":{"errorType":"authentication","message":"no","statusCode":401}}'; sleep 63`,
			"tries for ever": `while :; do echo '{"type":"model.call_failure","data":{"statusCode":401}}'; sleep 0.1; done`,
		} {
			started := time.Now()
			res := fake(t, t.Context(), newHost(t), body, nil, agent.Options{Limits: agent.Limits{Grace: time.Second}})
			if v := agent.Judge(res, false); v.Outcome != agent.BadCredential || v.Class != agent.ClassCredential || time.Since(started) > 10*time.Second {
				t.Errorf("%s: %+v %+v", name, v, res)
			}
		}
	})
	t.Run("R228 exit 1 without a word", func(t *testing.T) {
		h := newHost(t)
		res := fake(t, t.Context(), h, `exit 1`, nil, agent.Options{})
		if v := agent.Judge(res, false); v.Outcome != agent.Failed || !strings.HasPrefix(v.Reason, "exit 1 after ") || !strings.HasSuffix(v.Reason, "without a word") {
			t.Errorf("%+v", v)
		}
		if len(h.commands) != 2 {
			t.Errorf("%d commands: it was tried again", len(h.commands))
		}
	})
	t.Run("R235 output waits in a buffer", func(t *testing.T) {
		// Silent but computing: not ended. Then silent and asleep: ended, and what came without a line end is kept.
		var rec record
		started := time.Now()
		res := fake(t, t.Context(), newHost(t), `printf 'partial'; i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; exec sleep 64`, nil,
			rec.options(agent.Limits{Idle: time.Second, Grace: time.Second}))
		if res.Stop != agent.StopIdle || res.LastOutput != "partial" || rec.kinds() != "text" || time.Since(started) > 30*time.Second {
			t.Errorf("%+v %s", res, rec.kinds())
		}
	})
	t.Run("R235 busy and silent", func(t *testing.T) {
		res := fake(t, t.Context(), newHost(t), `sleep 6 & p=$!; while kill -0 $p 2>/dev/null; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; done; `+done, nil,
			agent.Options{Limits: agent.Limits{Idle: 2 * time.Second, Grace: time.Second}})
		if res.Stop != "" || agent.Judge(res, true).Outcome != agent.Succeeded {
			t.Errorf("%+v", res)
		}
	})
	t.Run("R108 busy children", func(t *testing.T) {
		res := fake(t, t.Context(), newHost(t), `for i in 1 2 3; do sh -c 'while :; do :; done' R108-needle & done; echo up; wait`, nil,
			agent.Options{Limits: agent.Limits{Wall: time.Second, Grace: 500 * time.Millisecond}})
		if res.Stop != agent.StopWall {
			t.Errorf("%+v", res)
		}
		if left := processes(t, "R108-needle"); len(left) > 0 {
			t.Errorf("still there: %q", left)
		}
	})
	t.Run("R113 large prompt", func(t *testing.T) {
		h := newHost(t)
		prompt := strings.Repeat("x", 1<<20)
		var rec record
		fake(t, t.Context(), h, `wc -c`, func(task *agent.Task) { task.Prompt = prompt }, rec.options(agent.Limits{}))
		if got := strings.TrimSpace(rec.transcript.String()); got != "1048576" {
			t.Errorf("%q bytes arrived", got)
		}
		for _, c := range h.commands {
			for _, a := range c.Argv {
				if len(a) > 16<<10 {
					t.Errorf("an argument of %d bytes", len(a))
				}
			}
		}
	})
	t.Run("R114 chatty stderr", func(t *testing.T) {
		res := fake(t, t.Context(), newHost(t), `head -c 10000000 /dev/zero | tr '\0' x >&2; echo end >&2; `+done, nil, agent.Options{})
		if len(res.Stderr) > 8<<10 || !strings.HasSuffix(res.Stderr, "end") || res.Code != 0 {
			t.Errorf("%d bytes, code %d", len(res.Stderr), res.Code)
		}
	})
	t.Run("R126 limits", func(t *testing.T) {
		for _, l := range []agent.Limits{{Wall: -1}, {Idle: -1}, {Grace: -1}, {MaxTurns: -1}} {
			_, err := agent.Run(t.Context(), newHost(t), agent.Copilot(), agent.Task{Prompt: "x", Command: script("true")}, agent.Options{Limits: l})
			if !errors.Is(err, agent.ErrTask) {
				t.Errorf("%+v: %v", l, err)
			}
		}
		res := fake(t, t.Context(), newHost(t), done, nil, agent.Options{})
		if res.Limits.Wall != time.Hour || res.Limits.Idle != 10*time.Minute {
			t.Errorf("zero limits became %+v", res.Limits)
		}
	})
	t.Run("R058 R052 variables of others", func(t *testing.T) {
		var rec record
		fake(t, t.Context(), newHost(t), `env; `+done, func(task *agent.Task) { task.Env = []string{"EXTRA=1"} }, rec.options(agent.Limits{}))
		got := rec.transcript.String()
		if strings.Contains(got, "leak") || strings.Contains(got, "GITHUB_TOKEN") || !strings.Contains(got, "EXTRA=1\n") {
			t.Errorf("environment %s", got)
		}
	})
}

// TestFlood: one endless line, then many lines; memory and transcript stay bounded and the end is still seen.
func TestFlood(t *testing.T) {
	var rec record
	o := rec.options(agent.Limits{})
	o.MaxTranscript = 100 << 10
	o.Sink = func(e agent.Event) {
		if e.Kind != agent.KindText {
			rec.events = append(rec.events, e)
		}
	}
	res := fake(t, t.Context(), newHost(t), `head -c 30000000 /dev/zero | tr '\0' x; echo; yes '{"type":"assistant.turn_start"}' | head -n 20000; printf '{"type":"assistant.message","data":{"content":"'; head -c 500000 /dev/zero | tr '\0' y; echo '"}}'; `+done, nil, o)
	if res.DroppedLines != 1 || res.DroppedBytes < 500_000 || rec.transcript.Len() > 100<<10 || res.Summary.Turns != 20000 || !res.Summary.Finished || res.Summary.Answer != "All done." {
		t.Errorf("%d lines and %d bytes dropped, transcript %d, %+v", res.DroppedLines, res.DroppedBytes, rec.transcript.Len(), res.Summary.Turns)
	}
	for _, e := range rec.events {
		if len(e.Text) > 256<<10 {
			t.Errorf("an event of %d bytes", len(e.Text))
		}
	}
}

// TestCleanedEnvironment: a process whose environment was cleaned is found through its parent.
// What Copilot writes down of its model calls, while it says nothing of tokens, ends a session that has used what it may: of one
// that is gone on with, what it used before does not count again.
func TestMeter(t *testing.T) {
	const call = `{"type":"session.usage_record","data":{"usage":{"model":"m","inputTokens":400,"outputTokens":10,"cacheReadTokens":40,"cacheWriteTokens":4}}}`
	for name, task := range map[string]agent.Task{
		"new":     {},
		"resumed": {SessionID: "0f0e5c5e-4f2e-4c7b-9a54-0d8b9b6f0001", Resume: true, Used: agent.Usage{Input: 400, CachedInput: 40, Written: 4, Output: 10, ModelCalls: 1, Models: map[string]agent.ModelUsage{"m": {Input: 400, CachedInput: 40, Written: 4, Output: 10, Calls: 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			task.Prompt = "x"
			task.Command = script(`while [ "$1" != --session-id ]; do shift; done
log=$HOME/.copilot/session-state/$2; mkdir -p "$log"
[ ` + name + ` = new ] || echo '` + call + `' >>"$log/events.jsonl"
for i in 1 2 3; do echo '{"type":"tool","text":"` + strings.ReplaceAll(call, `"`, `\"`) + `"}' >>"$log/events.jsonl"
echo '` + call + `' >>"$log/events.jsonl"; echo '{"type":"model.call_finished","data":{}}'; sleep 0.2; done
printf '%s' '{"type":"session.usage_record","data":{"us' >>"$log/events.jsonl"; sleep 60`)
			var last agent.Usage
			o := agent.Options{Meter: 10 * time.Millisecond, Spent: func(_ int, u agent.Usage) bool { last = u; return u.Input >= 1200 }}
			res, err := agent.Run(t.Context(), newHost(t), agent.Copilot(), task, o)
			if err != nil || res.Stop != agent.StopSpent || agent.Judge(res, true).Outcome != agent.CutOff {
				t.Fatalf("%+v, %v", res, err)
			}
			if m := res.Usage.Models["m"]; m != (agent.ModelUsage{Input: 1200, CachedInput: 120, Written: 12, Output: 30, Calls: 3}) || last.Input != 1200 || res.Usage.Input != 1200 {
				t.Errorf("usage %+v, the last told %+v", res.Usage, last)
			}
		})
	}
}

func TestCleanedEnvironment(t *testing.T) {
	res := fake(t, t.Context(), newHost(t), `env -i /bin/sh -c 'env -i /bin/sleep 65 & wait' clean-needle & echo up; wait`, nil,
		agent.Options{Limits: agent.Limits{Wall: 500 * time.Millisecond, Grace: 500 * time.Millisecond}})
	if res.Stop != agent.StopWall {
		t.Errorf("%+v", res)
	}
	if left := processes(t, "clean-needle"); len(left) > 0 {
		t.Errorf("still there: %q", left)
	}
}

// TestSecretsAreMasked: in the transcript, events and the result, also where a line is cut.
func TestSecretsAreMasked(t *testing.T) {
	canary := secrets.New("canary-0123456789-canary")
	var rec record
	o := rec.options(agent.Limits{})
	o.Redact = secrets.NewRedactor(canary)
	res := fake(t, t.Context(), newHost(t), `s=canary-0123456789-canary; echo "{\"type\":\"assistant.message\",\"data\":{\"content\":\"$s\"}}"; printf %s canary-0123456 >&2; sleep 0.1; echo 789-canary >&2; head -c 8180 /dev/zero | tr '\0' x >&2; echo "plain $s"; printf "$s"`, nil, o)
	all := fmt.Sprintf("%+v %s %s", rec.events, rec.transcript.String(), res.Stderr+res.LastOutput+res.Summary.Answer+res.Summary.LastError)
	if strings.Contains(all, "0123456789") || strings.Contains(all, "789-canary") || !strings.Contains(all, secrets.Mask) {
		t.Errorf("not masked: %s", all)
	}
}

// TestJudge feeds lines and exit codes.
func TestJudge(t *testing.T) {
	const message = `{"type":"assistant.message","data":{"content":"ok"}}`
	const result = `{"type":"result","exitCode":0}`
	const denied = `{"type":"tool.execution_complete","data":{"toolCallId":"1","success":false,"error":{"message":"no","code":"denied"}}}`
	const fine = `{"type":"tool.execution_complete","data":{"toolCallId":"2","success":true}}`
	for _, tt := range []struct {
		name     string
		lines    []string
		end      string // of the script
		changed  bool
		readOnly bool
		want     agent.Outcome
		reason   string
	}{
		{"success", []string{fine, message, result}, "exit 0", true, false, agent.Succeeded, ""},
		{"no change", []string{fine, message, result}, "exit 0", false, false, agent.NothingDone, "changed nothing"},
		{"read only", []string{message, result}, "exit 0", false, true, agent.Succeeded, ""},
		{"read only without an answer", []string{fine, result}, "exit 0", false, true, agent.NothingDone, "no answer"},
		{"denied", []string{denied, message, result}, "exit 0", false, false, agent.Denied, "1 tool calls"},
		{"denied at the end of real work", []string{fine, denied, message, result}, "exit 0", true, false, agent.Denied, ""},
		{"denied, then another way", []string{denied, fine, message, result}, "exit 0", true, false, agent.Succeeded, ""},
		{"aborted", []string{fine, `{"type":"assistant.idle","data":{"aborted":true}}`, result}, "exit 0", true, false, agent.CutOff, "stopped"},
		{"stream breaks off", []string{fine, message}, "exit 0", true, false, agent.CutOff, "in the middle"},
		{"killed from elsewhere", []string{fine}, "kill -KILL $$", true, false, agent.CutOff, "signal 9"},
		{"error and exit 0", []string{`{"type":"session.error","data":{"message":"boom","statusCode":500}}`, result}, "exit 0", false, false, agent.Failed, "HTTP 500 boom"},
		{"error, then it went on", []string{`{"type":"session.error","data":{"message":"boom","statusCode":500}}`, message, result}, "exit 0", true, false, agent.Succeeded, ""},
		{"result says no", []string{`{"type":"result","exitCode":1}`}, "exit 0", false, false, agent.Failed, "reports an error"},
		{"exit 1 with a reason", []string{`{"type":"session.error","data":{"message":"no model","statusCode":400}}`}, "exit 1", false, false, agent.Failed, "no model"},
		{"stderr has the reason", nil, "echo bad flag >&2; exit 2", false, false, agent.Failed, "bad flag"},
		{"too old", nil, `echo "error: unknown option '--output-format'" >&2; echo "(add --help)" >&2; exit 1`, false, false, agent.Failed, "another version than this tool drives, or agent.args is wrong (exit 1): error: unknown option '--output-format'"},
		{"too old, on standard output", nil, `echo "error: unexpected argument '--json' found"; exit 2`, false, false, agent.Failed, "another version"},
		{"a tool's words about options", []string{`{"type":"assistant.turn_start"}`, fine}, `echo "grep: unknown option -- j" >&2; exit 1`, true, false, agent.Failed, "exit 1 after"},
		{"quota", []string{`{"type":"session.error","data":{"message":"insufficient_quota","statusCode":429}}`}, "exit 1", false, false, agent.Failed, "insufficient_quota"},
		{"retried and well", []string{`{"type":"model.call_failure","data":{"statusCode":401}}`, fine, message, result}, "exit 0", true, false, agent.Succeeded, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var body strings.Builder
			for _, l := range tt.lines {
				fmt.Fprintf(&body, "echo '%s'\n", l)
			}
			res := fake(t, t.Context(), newHost(t), body.String()+tt.end, func(task *agent.Task) { task.ReadOnly = tt.readOnly }, agent.Options{})
			if v := agent.Judge(res, tt.changed); v.Outcome != tt.want || !strings.Contains(v.Reason, tt.reason) {
				t.Errorf("got %+v, want %s with %q\n%+v", v, tt.want, tt.reason, res)
			}
		})
	}
	t.Run("program missing", func(t *testing.T) {
		res, err := agent.Run(t.Context(), newHost(t), agent.Copilot(), agent.Task{Prompt: "x", Command: []string{"/no/such/copilot"}}, agent.Options{})
		if v := agent.Judge(res, false); err != nil || v.Outcome != agent.Failed || !strings.Contains(v.Reason, "cannot be run in the sandbox (exit 127)") {
			t.Errorf("%v %+v", err, v)
		}
	})
}

// TestEngineTrouble: the sandbox, not the agent, is at fault; what had arrived is kept.
func TestEngineTrouble(t *testing.T) {
	broken := errors.New("connection lost")
	calls := 0
	r := runner(func(ctx context.Context, c guest.Command) (int, error) {
		calls++
		if calls == 1 {
			io.WriteString(c.Stdout, `{"type":"assistant.message","data":{"content":"half"}}`+"\n")
		}
		return 0, broken
	})
	res, err := agent.Run(t.Context(), r, agent.Copilot(), agent.Task{Prompt: "x"}, agent.Options{})
	if !errors.Is(err, broken) || res.Code != -1 || res.Summary.Answer != "half" {
		t.Errorf("%v %+v", err, res)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err = agent.Run(ctx, newHost(t), agent.Copilot(), agent.Task{Prompt: "x", Command: script("true")}, agent.Options{})
	if err != nil || res.Stop != agent.StopCancelled {
		t.Errorf("cancelled before: %v %+v", err, res)
	}
}

type runner func(ctx context.Context, c guest.Command) (int, error)

func (f runner) Run(ctx context.Context, c guest.Command) (int, error) { return f(ctx, c) }

func TestInvocations(t *testing.T) {
	for _, name := range agent.Names() {
		a, ok := agent.Lookup(name)
		if !ok {
			t.Fatalf("no adapter %q", name)
		}
		for _, task := range []agent.Task{
			{Prompt: "p"},
			{Prompt: "--help", Model: "m/x", Effort: "high", SessionID: "5f0e9c1a-6a0e-4d5e-9d0a-3c1b8a7f2e10", Dir: "/w", Args: []string{"--extra"}, Env: []string{"A=b"}, Command: []string{"/opt/x", "y"}},
			{Prompt: "p", Resume: true, SessionID: "ses_1", ReadOnly: true},
		} {
			whole := task.Command != nil
			if name == "command" { // any program: it has to be named, and has neither sessions nor a read-only mode
				task.Command, task.Resume, task.ReadOnly = []string{"/opt/x", "y"}, false, false
			}
			effort := task.Effort
			if !a.Effort {
				if _, err := a.Invocation(task); effort != "" && !errors.Is(err, agent.ErrTask) {
					t.Errorf("%s: an effort that nothing heeds: %v", name, err)
				}
				task.Effort = ""
			}
			inv, err := a.Invocation(task)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if slices.Contains(inv.Argv, "") || slices.Contains(inv.Argv, task.Prompt) || !strings.Contains(inv.Stdin+fmt.Sprint(inv.Files), task.Prompt) {
				t.Errorf("%s: argv %q, stdin %q", name, inv.Argv, inv.Stdin)
			}
			if a.Effort && effort != "" && !strings.Contains(strings.Join(inv.Argv, " "), effort) {
				t.Errorf("%s: no effort in %q", name, inv.Argv)
			}
			if !slices.Contains(inv.Unset, "GH_TOKEN") || !slices.Contains(inv.Unset, "GITHUB_TOKEN") || slices.Contains(inv.Unset, a.Credential.Env) {
				t.Errorf("%s: unset %q", name, inv.Unset)
			}
			if whole && (inv.Argv[0] != "/opt/x" || inv.Argv[1] != "y" || !slices.Contains(inv.Argv, "--extra") || inv.Dir != "/w" || !slices.Contains(inv.Env, "A=b")) {
				t.Errorf("%s: %+v", name, inv)
			}
		}
		for what, task := range map[string]agent.Task{
			"empty prompt":   {Prompt: " \n"},
			"no session":     {Prompt: "p", Resume: true},
			"session a flag": {Prompt: "p", SessionID: "--x"},
			"session a path": {Prompt: "p", SessionID: "../x"},
			"model a flag":   {Prompt: "p", Model: "--yolo"},
			"zero byte":      {Prompt: "p", Args: []string{"a\x00b"}},
			"empty argument": {Prompt: "p", Args: []string{""}},
		} {
			if _, err := a.Invocation(task); !errors.Is(err, agent.ErrTask) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if p, known := secrets.LookupProvider(a.Credential.Provider); a.Credential.Env != "" && (!known || !secrets.IsPlaceholder(p.Placeholder)) {
			t.Errorf("%s: provider %q with placeholder %q", name, a.Credential.Provider, p.Placeholder)
		}
	}
	if _, ok := agent.Lookup("nobody"); ok {
		t.Error("an adapter for nobody")
	}
}

// FuzzParser: whatever arrives, the parser neither fails nor hands on what could harm a terminal.
func FuzzParser(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.jsonl")
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			f.Add([]byte(line))
		}
	}
	f.Add([]byte("\x1b]0;title\x07{\"type\":\"result\"}"))
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, name := range agent.Names() {
			a, _ := agent.Lookup(name)
			p := a.NewParser()
			for range 2 {
				for _, e := range p.Line(line) {
					for _, s := range []string{e.Text, e.Path, e.Tool, e.Call, e.Session} {
						if strings.ContainsAny(s, "\x1b\r\x00\x7f\u009b") || strings.ToValidUTF8(s, "") != s {
							t.Errorf("%s: %q from %q", name, s, line)
						}
					}
					if e.Kind == "" {
						t.Errorf("%s: an event without a kind from %q", name, line)
					}
				}
			}
		}
	})
}
