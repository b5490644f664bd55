//go:build linux

package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// here is an engine whose sandboxes are this machine: what the loop runs in one runs here, with a home folder of its own.
// It has what attempts need and nothing else.
type here struct {
	pair.Engine // nil: nothing else is called
	home        string
	dies        string // the engine dies while it runs a command that holds this
}

func (h here) Exec(ctx context.Context, _ string, spec sbx.ExecSpec) (sbx.ExecResult, error) {
	if line := strings.Join(spec.Argv, " "); strings.Contains(line, "KILL -1") || strings.Contains(line, quiesceName) {
		panic("that is for a sandbox")
	}
	cmd := exec.CommandContext(ctx, spec.Argv[0], spec.Argv[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Dir, spec.Stdin, spec.Stdout, spec.Stderr
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.home, "LANG=C"}
	for _, e := range spec.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); exited && ctx.Err() == nil {
		err = nil
	}
	if h.dies != "" && strings.Contains(strings.Join(spec.Argv, " "), h.dies) {
		return sbx.ExecResult{Code: -1}, fmt.Errorf("exec: %w", sbx.ErrConnectionLost)
	}
	return sbx.ExecResult{Code: cmd.ProcessState.ExitCode()}, err
}

// fakeCLI speaks as Claude Code does: session N keeps its prompt and arguments and does what step-N says.
const fakeCLI = `#!/bin/sh
cd_to=$PWD; n=$(ls "%[1]s" | grep -c ^prompt-); n=$((n + 1))
cat >"%[1]s/prompt-$n"; echo "$@" >"%[1]s/args-$n"; echo "$HOME" >"%[1]s/home-$n"; echo "$PWD" >"%[1]s/dir-$n"
. "%[1]s/step-$n"
`

// say is the shell line with which a session gives its answer.
func say(text string) string { return sayWith(text, 100, 10) }

func sayWith(text string, in, out int) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(text)
	line := func(s string) string { return "cat <<'LINE'\n" + s + "\nLINE\n" }
	return line(`{"type":"system","subtype":"init","session_id":"s-1"}`) +
		line(fmt.Sprintf(`{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"%s"}],"usage":{"input_tokens":%d,"output_tokens":%d}}}`, quote, in, out)) +
		line(fmt.Sprintf(`{"type":"result","subtype":"success","is_error":false,"session_id":"s-1","num_turns":1,"result":"%s","usage":{"input_tokens":%d,"output_tokens":%d},"modelUsage":{"claude-haiku-4-5":{"inputTokens":%[2]d,"outputTokens":%[3]d}}}`, quote, in, out))
}

// trial is a run from its first attempt to the last, on this machine.
type trial struct {
	*run
	dir    string // the fake CLI's
	events []events.Payload
}

func newTrial(t *testing.T, steps []string, change func(*config.Config)) *trial {
	t.Helper()
	return newTrialOf(t, nil, steps, change)
}

// newTrialOf is newTrial with further files in the repository.
func newTrialOf(t *testing.T, files map[string]string, steps []string, change func(*config.Config)) *trial {
	t.Helper()
	id := pair.NewRunID(time.Now())
	dir, repo := t.TempDir(), filepath.Join(t.TempDir(), "repo-"+string(id)) // the name shows in folders that a sandbox has to itself
	t.Cleanup(func() {
		for _, made := range []string{"/tmp/sbxpair-verify/*", "/tmp/sbxpair-base/*", "/tmp/sbxpair-review/*/*"} {
			list, _ := filepath.Glob(filepath.Dir(made) + "/" + filepath.Base(repo))
			for _, path := range list {
				os.RemoveAll(path)
			}
		}
	})
	for i, step := range steps {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("step-%d", i+1)), []byte(step), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cli := filepath.Join(t.TempDir(), "cli")
	if err := os.WriteFile(cli, fmt.Appendf(nil, fakeCLI, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(repo, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git := exec.CommandContext(t.Context(), "sh", "-c", `git init -q -b main "$1" && cd "$1" && echo one >a.txt && git add -A && git -c user.name=a -c user.email=a@b commit -qm one`, "sh", repo)
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	cfg := config.Default()
	cfg.Agent.Name, cfg.Agent.Command, cfg.Verify, cfg.Phases = "claude", []string{cli}, []string{"grep -q good a.txt"}, []string{"execute", "verify"}
	if change != nil {
		change(&cfg)
	}
	tr := &trial{dir: dir}
	adapter, _ := agent.Lookup("claude")
	store := pair.NewStore(t.TempDir())
	if err := store.Create(pair.Lease{Run: id, State: pair.Closed, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	runDir := store.Dir(id)
	tr.run = &run{
		req: Request{Task: "Make it good.", Config: cfg, Store: store}, id: id, started: time.Now(), adapter: adapter, redact: secrets.NewRedactor(),
		result: Result{Dir: runDir}, prices: prices.Builtin(), engineRef: pair.EngineRef{Kind: pair.EngineSbx},
		pair: pair.Attach(here{home: t.TempDir()}, store, pair.Lease{Run: id}),
	}
	tr.plan.Agent.Secret.Env, tr.plan.Agent.Secret.Placeholder = "ANTHROPIC_API_KEY", "x"
	var err error
	if tr.log, err = events.Create(filepath.Join(runDir, "events.jsonl"), string(id), tr.redact.Bytes, func(p events.Payload) { tr.events = append(tr.events, p) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.log.Close() })
	tr.state.Workspace, err = workspace.Prepare(t.Context(), workspace.Source{Dir: repo, Branch: tr.branch()}, filepath.Join(runDir, "workspace"))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// work goes through plan and attempts.
func (tr *trial) work(ctx context.Context) error {
	if tr.configured(events.PhasePlan) {
		if err := tr.phase(ctx, events.PhasePlan); err != nil {
			return err
		}
	}
	return tr.attempts(ctx)
}

func (tr *trial) endStates() (list []events.EndState) {
	for _, e := range tr.events {
		if end, is := e.(events.EndState); is {
			list = append(list, end)
		}
	}
	return list
}

func (tr *trial) read(t *testing.T, name string, n int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tr.dir, fmt.Sprintf("%s-%d", name, n)))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (tr *trial) sessions() int {
	list, _ := filepath.Glob(filepath.Join(tr.dir, "prompt-*"))
	return len(list)
}

const (
	good = "echo good >>a.txt\n"
	bad  = "date +%s%N >>a.txt\n"
)

// How attempts end: accepted, or by one of the bounds.
func TestAttempts(t *testing.T) {
	approve, reject := say(`{"approved": true, "summary": "Fine."}`), say(`{"approved": false, "summary": "No.", "findings": [{"problem": "worse", "required": true}]}`)
	phases := func(list ...string) func(*config.Config) { return func(c *config.Config) { c.Phases = list } }
	for name, tt := range map[string]struct {
		steps    []string
		change   func(*config.Config)
		want     error
		text     string
		sessions int
		attempts int
	}{
		"accepted at once":      {[]string{good + say("Done.")}, nil, nil, "", 1, 1},
		"accepted when mended":  {[]string{bad + say("Done."), good + say("Done.")}, nil, nil, "", 2, 2},
		"revisions used up":     {[]string{bad + say("1"), bad + say("2"), bad + say("3"), good + say("4")}, nil, ErrFailed, "grep -q good", 3, 3},
		"no revisions":          {[]string{bad + say("1"), good + say("2")}, func(c *config.Config) { c.Limits.Revisions = 0 }, ErrFailed, "grep -q good", 1, 1},
		"nothing new":           {[]string{bad + say("1"), say("It is fine."), good + say("3")}, nil, ErrFailed, "changed nothing", 2, 2},
		"nothing done":          {[]string{say("It is fine.")}, nil, ErrNothing, "", 1, 1},
		"review approves":       {[]string{bad + say("1"), approve}, phases("execute", "review"), nil, "", 2, 1},
		"review rejects":        {[]string{bad + say("1"), reject, bad + say("2"), approve}, phases("execute", "review"), nil, "", 4, 2},
		"review before verify":  {[]string{bad + say("1"), reject, good + say("2"), approve}, phases("execute", "review", "verify"), nil, "", 4, 2},
		"review is read again":  {[]string{bad + say("1"), say("Looks good!"), approve}, phases("execute", "review"), nil, "", 3, 1},
		"review has no verdict": {[]string{bad + say("1"), say("Looks good!"), say("{}")}, phases("execute", "review"), ErrFailed, `"approved" is missing`, 3, 1},
		"review says nothing":   {[]string{bad + say("1"), say(""), approve}, phases("execute", "review"), nil, "", 3, 1},
		"turns":                 {[]string{bad + say("1"), bad + say("2")}, func(c *config.Config) { c.Limits.Turns = 1 }, ErrBudget, "limits.turns", 1, 2},
		"tokens":                {[]string{bad + say("1"), bad + say("2")}, func(c *config.Config) { c.Limits.Tokens = 110 }, ErrBudget, "limits.tokens", 1, 1},
		"tokens while at work":  {[]string{bad + strings.Replace(sayWith("1", 5000, 10), `{"type":"result"`, "wait\nLINE\nsleep 60\ncat <<'LINE'\n"+`{"type":"result"`, 1)}, func(c *config.Config) { c.Limits.Tokens = 110 }, ErrBudget, "limits.tokens", 1, 1},
		"money":                 {[]string{bad + sayWith("1", 1_000_000, 0), bad + say("2")}, func(c *config.Config) { c.Limits.Cost = 0.99 }, ErrBudget, "limits.cost", 1, 1},
		"money without a price": {[]string{bad + strings.ReplaceAll(say("1"), "claude-haiku-4-5", "mystery-1"), bad + say("2")}, func(c *config.Config) { c.Limits.Cost = 5 }, ErrBudget, "mystery-1", 1, 1},
		"time of a session":     {[]string{bad + "sleep 60"}, func(c *config.Config) { c.Limits.Execute = config.Duration(time.Second) }, ErrBudget, "time limit", 1, 1},
		"silence":               {[]string{bad + "printf 'Allow access? (y/n): '; sleep 60"}, func(c *config.Config) { c.Limits.Idle = config.Duration(time.Second) }, ErrBudget, "Allow access?", 1, 1},
		"verify without an end": {[]string{good + say("1")}, func(c *config.Config) { c.Verify, c.Limits.Verify = []string{"sleep 60"}, config.Duration(time.Second) }, ErrBudget, "limits.verify", 1, 1},
		"credential":            {[]string{`echo '{"type":"result","is_error":true,"subtype":"success","api_error_status":401,"result":"401"}'; exit 1`, good + say("2")}, nil, secrets.ErrUnfit, "", 1, 1},
		"exits 0 having failed": {[]string{good + `echo '{"type":"result","is_error":true,"subtype":"error_during_execution"}'`}, nil, ErrFailed, "", 1, 1},
		"silent exit":           {[]string{`exit 1`, good + say("2")}, nil, ErrFailed, "without a word", 1, 1},
		"too old":               {[]string{`echo "error: unknown option '--output-format'" >&2; exit 1`}, nil, ErrNoAgent, "of another version", 1, 1},
		"not there":             {[]string{`exit 127`}, nil, ErrNoAgent, "", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, tt.steps, tt.change)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := tr.work(ctx)
			if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v; want %v that says %q", err, tt.want, tt.text)
			}
			if n := tr.sessions(); n != tt.sessions || tr.state.Attempt != tt.attempts || len(tr.state.Sessions) != n {
				t.Errorf("%d sessions (%d recorded), %d attempts; want %d and %d", n, len(tr.state.Sessions), tr.state.Attempt, tt.sessions, tt.attempts)
			}
			// Whatever ended it, what the agent did is there afterwards; and it is said whether the agent came to its end.
			tr.salvage(ctx, err)
			left := tr.endStates()
			if changed := slices.ContainsFunc(tt.steps[:tt.sessions], func(s string) bool { return strings.Contains(s, ">>a.txt") }); tr.state.End.Empty == changed || len(left) == 0 {
				t.Errorf("end states %+v, empty: %v", left, tr.state.End.Empty)
			} else if _, err := os.Stat(filepath.Join(tr.result.Dir, workFile)); changed != (err == nil) {
				t.Errorf("the work: %v", err)
			}
			if last := left[len(left)-1]; last.Unfinished != slices.Contains([]string{
				"tokens", "tokens while at work", "money", "money without a price", "time of a session", "silence", "credential", "exits 0 having failed", "silent exit", "not there", "too old",
			}, name) {
				t.Errorf("end state %+v", last)
			}
			for _, v := range tr.state.Verified {
				if text, err := os.ReadFile(v.Transcript); err != nil || !strings.HasPrefix(string(text), "$ "+v.Command+"\n") {
					t.Errorf("transcript of %s: %q, %v", v.Command, text, err)
				}
			}
			for _, s := range tr.state.Sessions {
				if info, err := os.Stat(s.Transcript); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("transcript of %s: %v", s.Phase, err)
				}
			}
		})
	}
}

func TestFieldReports(t *testing.T) {
	// A critic rejects twice: each attempt is told what the last one was rejected for, goes on with its session, and there
	// is an end to it.
	t.Run("R223", func(t *testing.T) {
		t.Parallel()
		tr := newTrial(t, []string{say("Plan: write good."), bad + say("1"), say(`{"approved": false, "summary": "The first is no good."}`), bad + say("2"),
			say(`{"approved": false, "summary": "The second is worse."}`), bad + say("3")},
			func(c *config.Config) { c.Phases, c.Limits.Revisions = []string{"plan", "execute", "review"}, 1 })
		if err := tr.work(t.Context()); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "The second is worse.") {
			t.Errorf("%v; want the last review's reason", err)
		}
		if tr.sessions() != 5 {
			t.Errorf("%d sessions, want plan and two attempts with their reviews", tr.sessions())
		}
		for n, want := range map[int][]string{
			2: {"Make it good.", "Plan: write good."}, 4: {"The first is no good."}, 3: {"Make it good.", "+1", "diff --git"},
		} {
			for _, text := range want {
				if text == "+1" {
					text = "\n+1" // a line of the diff
				}
				if prompt := tr.read(t, "prompt", n); !strings.Contains(prompt, text) {
					t.Errorf("prompt %d does not hold %q:\n%s", n, text, prompt)
				}
			}
		}
		if args := tr.read(t, "args", 4); !strings.Contains(args, "--resume s-1") {
			t.Errorf("the second attempt starts from nothing: %s", args)
		}
		// The review is a session of its own: another home, another folder, and it can only read.
		if args := tr.read(t, "args", 3); strings.Contains(args, "--resume") || !strings.Contains(args, "--tools Read,Grep,Glob") {
			t.Errorf("arguments of the review: %s", args)
		}
		if tr.read(t, "home", 3) == tr.read(t, "home", 2) || tr.read(t, "home", 3) == tr.read(t, "home", 5) || tr.read(t, "dir", 3) == tr.read(t, "dir", 2) {
			t.Errorf("the review shares home %s or folder %s", tr.read(t, "home", 3), tr.read(t, "dir", 3))
		}
	})
	// What an agent leaves running is ended before verify and the next attempt.
	t.Run("R225", func(t *testing.T) {
		t.Parallel()
		tick := filepath.Join(t.TempDir(), "tick")
		writer := `sh -c 'while :; do date +%N >"` + tick + `"; sleep 0.02; done' >/dev/null 2>&1 & while ! [ -s "` + tick + `" ]; do sleep 0.01; done` + "\n"
		// It is good, and accepted, if the writer still writes.
		look := `a=$(cat "` + tick + `"); sleep 0.3; [ "$a" = "$(cat "` + tick + `")" ] || echo good >>a.txt` + "\n"
		tr := newTrial(t, []string{bad + writer + say("1"), look + bad + say("2")}, func(c *config.Config) { c.Limits.Revisions = 1 })
		if err := tr.work(t.Context()); !errors.Is(err, ErrFailed) {
			t.Errorf("%v; want the second attempt to find the writer gone", err)
		}
	})
}

// The end of a run by its caller is neither a failure of the agent nor a spent budget, and the session is on record (R224).
func TestCancelledAttempt(t *testing.T) {
	worked := filepath.Join(t.TempDir(), "worked")
	tr := newTrial(t, []string{bad + "touch " + worked + "\nsleep 60"}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(worked); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}()
	err := tr.work(ctx)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrBudget) {
		t.Errorf("%v, want a cancellation", err)
	}
	if len(tr.state.Sessions) != 1 || tr.state.Sessions[0].Outcome != string(agent.Cancelled) {
		t.Errorf("sessions %+v", tr.state.Sessions)
	}
	tr.salvage(ctx, err) // its context is over
	if left := tr.endStates(); len(left) != 1 || !left[0].Unfinished || !slices.Equal(left[0].Files, []string{"a.txt"}) {
		t.Errorf("end states %+v", left)
	}
}

// The limit of the whole run ends a session like any other limit: it is no cancellation.
func TestRunLimit(t *testing.T) {
	tr := newTrial(t, []string{bad + "sleep 60"}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for tr.sessions() == 0 && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		cancel(fmt.Errorf("%w: the run took longer than limits.run (15s)", ErrBudget))
	}()
	err := tr.work(ctx)
	if Outcome(err) != "budget spent" || err.Error() != "execute: budget spent: the run took longer than limits.run (15s)" {
		t.Errorf("%s: %v", Outcome(err), err)
	}
	if list := tr.state.Sessions; len(list) != 1 || list[0].Outcome != string(agent.CutOff) || list[0].Reason != "the run took longer than limits.run (15s)" {
		t.Errorf("sessions %+v", list)
	}
}

func TestParseReview(t *testing.T) {
	for answer, want := range map[string]string{
		`{"approved": true, "summary": "Fine."}`:                                                         "approved Fine. 0",
		"Here it is:\n```json\n{\"approved\": false, \"summary\": \"No.\"}\n```":                         "rejected No. 0",
		`{"approved": true, "summary": "", "findings": [{"problem": "x"}]}`:                              "approved  1",
		`{"approved": true, "findings": [{"problem": "x", "required": true}]}`:                           "rejected  1", // it contradicts itself
		`{"approved": false, "findings": [{"file": "a", "line": -4, "problem": "x"}, {"problem": " "}]}`: "rejected  1",
		`{"approved": false}`:                     "gives no reason",
		`{"approved": "yes", "summary": "Fine."}`: "not the JSON",
		`{"summary": "Fine."}`:                    `"approved" is missing`,
		`{"approved": true} {"approved": false}`:  "more than one",
		`{"approved": true`:                       "no JSON object",
		`} approved {`:                            "no JSON object",
		`approved`:                                "no JSON object",
		``:                                        "no JSON object",
		`[{"approved": true}]`:                    "approved  0",
		`{"approved": null, "summary": "x"}`:      `"approved" is missing`,
	} {
		v, err := parseReview(answer)
		got := fmt.Sprintf("%s %s %d", map[bool]string{true: "approved", false: "rejected"}[v.Approved], v.Summary, len(v.Findings))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", answer, got, want)
		}
	}
	long := parseLong(t)
	if len(long.Summary) > maxReviewText || len(long.Findings) != maxFindings {
		t.Errorf("an answer of any size is taken: %d bytes, %d findings", len(long.Summary), len(long.Findings))
	}
}

func parseLong(t *testing.T) events.Reviewed {
	t.Helper()
	findings := slices.Repeat([]string{`{"problem":"x"}`}, 1000)
	v, err := parseReview(`{"approved": false, "summary": "` + strings.Repeat("é", 10_000) + `", "findings": [` + strings.Join(findings, ",") + `]}`)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// What a run keeps in its folder is what it knew.
func TestRecord(t *testing.T) {
	tr := newTrial(t, []string{good + say("Done.")}, nil)
	store := tr.req.Store
	if rec, err := Load(store, tr.id); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a run that was never asked anything: %+v, %v", rec, err)
	}
	if err := errors.Join(tr.ask(), tr.work(t.Context()), tr.save()); err != nil {
		t.Fatal(err)
	}
	rec, err := Load(store, tr.id)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Asked.Task != tr.req.Task || !reflect.DeepEqual(rec.Asked.Config, tr.req.Config) || rec.State.Attempt != 1 || rec.State.End.Head != tr.state.End.Head ||
		!bytes.Equal(rec.State.End.Patch, tr.state.End.Patch) || rec.State.Workspace.Dir != tr.state.Workspace.Dir || len(rec.State.Sessions) != 1 || rec.State.Sessions[0].ID != "s-1" {
		t.Errorf("read back %+v", rec)
	}
	if err := os.WriteFile(filepath.Join(store.Dir(tr.id), stateFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(store, tr.id); err == nil {
		t.Error("half a state is taken for one")
	}
	if _, err := Load(store, pair.NewRunID(time.Now())); !errors.Is(err, pair.ErrNoLease) {
		t.Errorf("a run that is not there: %v", err)
	}
}

// What an agent said until its engine died is told afterwards, with an exit code that says that none is known; and the run can
// be gone on with.
func TestTellAfterTheEngineDied(t *testing.T) {
	tr := newTrial(t, []string{bad + "echo 'half a word' >&2; " + strings.Split(say("I was about to"), "cat <<'LINE'\n{\"type\":\"result\"")[0]}, nil)
	tr.pair = pair.Attach(here{home: t.TempDir(), dies: tr.req.Config.Agent.Command[0]}, tr.req.Store, pair.Lease{Run: tr.id})
	if err := tr.ask(); err != nil {
		t.Fatal(err)
	}
	err := tr.work(t.Context())
	if !errors.Is(err, sbx.ErrConnectionLost) || ends(err) {
		t.Errorf("%v; want the engine's trouble, which is no verdict", err)
	}
	if err := tr.save(); err != nil {
		t.Fatal(err)
	}
	told, err := Tell(tr.req.Store, tr.id)
	if err != nil {
		t.Fatal(err)
	}
	if told.Exit != -1 || !strings.Contains(told.Stdout, "I was about to") || told.Stderr != "half a word" || len(told.Transcripts) != 1 || len(told.Sessions) != 1 ||
		told.Outcome != OutcomeInterrupted || !told.Resumable || told.Spent.Input != 100 || told.Task != tr.req.Task {
		t.Errorf("told %+v", told)
	}
	// As it is when nothing but the transcript is left.
	if err := os.Remove(filepath.Join(tr.result.Dir, stateFile)); err != nil {
		t.Fatal(err)
	}
	if told, err = Tell(tr.req.Store, tr.id); err != nil || told.Exit != -1 || !strings.Contains(told.Stdout, "I was about to") {
		t.Errorf("told %+v, %v", told, err)
	}
	// A log that somebody wrote into tells what stands before, and that there is more.
	log, err := os.OpenFile(filepath.Join(tr.result.Dir, eventLog), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(log, "\x00\xffwhat is this")
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := Tell(tr.req.Store, tr.id); err != nil || again.LogEvents != told.LogEvents || again.LogEvents == 0 || again.Spent.Input != 100 || !strings.Contains(again.Reason, "event log broken: line") {
		t.Errorf("told %+v, %v", again, err)
	}
	if _, err := Tell(tr.req.Store, pair.NewRunID(time.Now())); !errors.Is(err, pair.ErrNoLease) {
		t.Errorf("a run that is not there: %v", err)
	}
	// A pipe in the transcript's place is not waited for.
	if err := os.Remove(told.Transcripts[0]); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfifo", told.Transcripts[0]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := Tell(tr.req.Store, tr.id); err == nil || !strings.Contains(err.Error(), told.Transcripts[0]) {
		t.Errorf("a pipe for a transcript: %v", err)
	}
}

// What may be gone on with: interruptions, not verdicts.
func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, true}, {ErrNothing, true}, {ErrRefused, true}, {&rejection{}, true}, {ErrNoAgent, true}, {workspace.ErrHostile, true},
		{context.Canceled, false}, {ErrBudget, false}, {fmt.Errorf("%w: %w", ErrFailed, pair.ErrLost), false}, {sbx.ErrDaemon, false}, {secrets.ErrUnfit, false},
		{errors.New("no space left on device"), false},
	} {
		if got := ends(tt.err); got != tt.want {
			t.Errorf("%v ends a run: %v", tt.err, got)
		}
	}
}
