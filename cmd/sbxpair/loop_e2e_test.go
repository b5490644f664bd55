//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/demo/repo"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/fixtures/model"
	"github.com/sbxpair/sbxpair/loop"
)

func say(text string) model.Step {
	return model.Step{Text: text, Usage: model.Usage{Input: 100, Output: 10}}
}

func bash(command string) model.Step {
	return model.Step{Usage: model.Usage{Input: 100, Output: 10}, Calls: []model.Call{{Tool: "bash", Args: map[string]any{"command": command, "description": "work"}}}}
}

// reviews scripts what a review says: reject when the diff holds mark, approve otherwise.
func reviews(mark, reject string) []model.Script {
	const when = "Review a change that another agent made"
	return []model.Script{{When: "\n+" + mark, Steps: []model.Step{say(reject)}}, {When: when, Steps: []model.Step{say(`{"approved": true, "summary": "Fine."}`)}}}
}

func resultOf(t *testing.T, o outcome) loop.Result {
	t.Helper()
	var result loop.Result
	if err := json.Unmarshal([]byte(o.stdout), &result); err != nil {
		t.Fatalf("result: %v\n%s\n%s", err, o.stdout, o.stderr)
	}
	return result
}

func phasesOf(r loop.Result) []string {
	var list []string
	for _, p := range r.Phases {
		list = append(list, string(p.Phase))
	}
	return list
}

// An attempt that verify rejects, one that the review rejects, one that both accept: each goes on with the session before
// and is told why (R223), and what is delivered is the last.
func TestRevisions(t *testing.T) {
	t.Parallel()
	const words = "no marks of yours in the file"
	reject := "It is not ready.\n```json\n" + `{"approved": false, "summary": "A mark is left.", "findings": [{"file": "slugify.sh", "line": 2, "problem": "` + words + `", "required": true}]}` + "\n```"
	s := open(t, stage.Options{
		Scripts: append(reviews("# marked", reject), model.Script{When: "Make a plan for the task", Steps: []model.Step{say("Mend the sed line.")}},
			model.Script{Steps: []model.Step{
				bash("echo '# not mended' >> slugify.sh"), say("Done."),
				bash("git checkout -q HEAD -- slugify.sh; " + fixWith("slugify.sh") + "; echo '# marked' >> slugify.sh"), say("Done again."),
				bash("sed -i '/# marked/d' slugify.sh"), say("Now it is done."),
			}}),
	})
	s.Env = append(s.Env, "SBXPAIR_LIMITS_REVISIONS=2")
	got := sbxpair(t, s, append(runArgs(s), "--phases", "plan,execute,verify,review")...)
	got.want(t, 0)
	for _, problem := range s.Result(t.Context()) {
		t.Error(problem)
	}
	result := resultOf(t, got)
	want := []string{"preflight", "workspace", "provision", "proof", "plan", "execute", "end-state", "verify", "execute", "end-state", "verify", "review",
		"execute", "end-state", "verify", "review", "gate", "deliver", "release"}
	if phases := phasesOf(result); !slices.Equal(phases, want) {
		t.Errorf("phases %q", phases)
	}
	if result.Attempts != 3 || result.Reviewed == nil || !result.Reviewed.Approved || len(result.Sessions) != 6 {
		t.Fatalf("result %+v", result)
	}
	var work []loop.Session
	for _, session := range result.Sessions {
		if session.Phase == events.PhaseExecute {
			work = append(work, session)
		}
	}
	for i, needle := range []string{"Mend the sed line.", "sh test.sh", words} {
		text, err := os.ReadFile(work[i].Transcript)
		if err != nil || !strings.Contains(string(text), needle) {
			t.Errorf("session %d was not told %q: %v\n%s", i+1, needle, err, text)
		}
		if work[i].ID != work[0].ID || work[i].ID == "" {
			t.Errorf("session %d is %q, want to go on with %q", i+1, work[i].ID, work[0].ID)
		}
		if work[i].Input != 200 || work[i].Output != 20 { // each for itself, though the CLI counts on
			t.Errorf("session %d used %d in, %d out", i+1, work[i].Input, work[i].Output)
		}
	}
	if result.Spent.Input != 900 || result.Spent.CostUSD == 0 || len(result.Spent.Unpriced) > 0 {
		t.Errorf("spent %+v", result.Spent)
	}
}

// killedIn starts a run and ends it with the signal while the agent works in the phase. It returns the run's id.
func killedIn(t *testing.T, s *stage.Stage, phase events.Phase, sig syscall.Signal) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd, stderr, ended := startRun(ctx, t, s)
	if err := awaitSession(ctx, s.State, phase, ended); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	cmd.Process.Signal(sig)
	<-ended
	list, err := filepath.Glob(filepath.Join(s.State, "sbxpair", "runs", "*"))
	if err != nil || len(list) != 1 {
		t.Fatalf("runs %q, %v", list, err)
	}
	return filepath.Base(list[0])
}

func told(t *testing.T, s *stage.Stage, run string) loop.Told {
	t.Helper()
	got := sbxpair(t, s, "result", run, "--json")
	got.want(t, 0)
	var v loop.Told
	if err := json.Unmarshal([]byte(got.stdout), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// A run whose process was killed while the agent worked is gone on with from its folder alone: under the configuration that
// it was started with, wherever that is done from (R153), on a fresh pair, and delivered once.
func TestResumeAfterCrash(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	run := killedIn(t, s, events.PhaseExecute, syscall.SIGKILL)
	before := told(t, s, run)
	if before.Outcome != loop.OutcomeInterrupted || !before.Resumable || before.Exit != -1 || before.Task != repo.Task || len(before.Transcripts) != 1 {
		t.Errorf("the killed run: %+v", before)
	}
	// What is configured today is not what counts.
	s.Env = append(s.Env, "SBXPAIR_VERIFY=exit 9", "SBXPAIR_LIMITS_EXECUTE=1s")
	elsewhere := t.TempDir()
	resume := s.Command(t.Context(), "--config", s.Config, "resume", "--json", run)
	resume.Dir = elsewhere
	var stdout, stderr bytes.Buffer
	resume.Stdout, resume.Stderr = &stdout, &stderr
	if err := resume.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	t.Run("R153", func(t *testing.T) {
		for _, text := range []string{"limits.execute", "verify", "goes on with attempt 1"} {
			if !strings.Contains(stderr.String(), text) {
				t.Errorf("nothing says %q:\n%s", text, stderr.String())
			}
		}
		if strings.Contains(stderr.String(), "github.repo") {
			t.Errorf("what was given on the command line is no drift:\n%s", stderr.String())
		}
		if after := told(t, s, run); len(after.Drift) < 2 {
			t.Errorf("drift %+v", after.Drift)
		}
	})
	for _, problem := range s.Result(t.Context()) {
		t.Error(problem)
	}
	after := told(t, s, run)
	if after.Outcome != "delivered" || after.Resumable || after.Exit != 0 || !strings.Contains(after.Stdout, "slugify") || len(after.Transcripts) != 3 { // the last is of verify
		t.Errorf("the run at its end: %+v", after.Result)
	}
	log, err := os.Open(after.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, head, err := events.Read(log); err != nil || head != after.LogHead {
		t.Errorf("the log of both processes does not hold: %v", err)
	}
	sbxpair(t, s, "resume", run).want(t, 2, "came to its end: delivered")
}

// A run that was cancelled in its review is gone on with there: the work is not done twice. Until then its workspace is kept,
// and nothing else of it.
func TestResumeAfterCancel(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	s.Env = append(s.Env, "SBXPAIR_PHASES=execute,verify,review")
	run := killedIn(t, s, events.PhaseReview, syscall.SIGINT)
	if v := told(t, s, run); v.Outcome != "cancelled" || !v.Resumable || v.Attempts != 1 {
		t.Errorf("the cancelled run: %+v", v.Result)
	}
	if ls := sbxpair(t, s, "ls"); ls.stdout != "" {
		t.Errorf("the pair of a cancelled run is still there: %s", ls.stdout)
	}
	sbxpair(t, s, "prune", "--force").want(t, 0, "nothing to prune") // what it keeps is no litter
	sbxpair(t, s, "prune", "--records", "0s", "--dry-run").want(t, 0, run, "sbxpair resume")
	got := sbxpair(t, s, "resume", "--json", run)
	got.want(t, 0)
	if phases := phasesOf(resultOf(t, got)); !slices.Equal(phases, []string{"preflight", "workspace", "provision", "proof", "review", "gate", "deliver", "release"}) {
		t.Errorf("phases %q", phases)
	}
	for _, problem := range s.Result(t.Context()) {
		t.Error(problem)
	}
	if _, err := os.Stat(filepath.Join(s.State, "sbxpair", "runs", run, "workspace")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace of a delivered run: %v", err)
	}
}

// program makes the stage's agent a shell script instead of a CLI: fast, and free to do anything.
func program(t *testing.T, script string, change map[string]any) *stage.Stage {
	t.Helper()
	config := map[string]any{
		"agent":  map[string]any{"name": "command", "provider": "github", "token": map[string]any{"env": "COPILOT_GITHUB_TOKEN"}, "command": []string{"sh", "-c", script}},
		"phases": []string{"execute", "verify"}, "verify": []string{"true"}, "limits": map[string]any{"revisions": 0},
	}
	maps.Copy(config, change)
	return open(t, stage.Options{Config: config})
}

// Any program can be the agent; its work is judged and delivered like a CLI's.
func TestProgramAsAgent(t *testing.T) {
	t.Parallel()
	s := program(t, `cat >/tmp/task; grep -q "Fix slugify.sh" /tmp/task && `+fixWith("slugify.sh"), map[string]any{"verify": []string{repo.Verify}})
	got := sbxpair(t, s, runArgs(s)...)
	got.want(t, 0)
	if r := resultOf(t, got); r.Delivered.Number == 0 || r.Agent.Outcome != "succeeded" {
		t.Errorf("result %+v", r)
	}
	sbxpair(t, s, append(runArgs(s), "--phases", "execute,review")...).want(t, 2, "--phases execute,verify")
}

// What the agent gets of the checkout, and what becomes of it, by mode.
func TestWorkspaceModes(t *testing.T) {
	t.Parallel()
	t.Run("tracked", func(t *testing.T) {
		dir := t.TempDir()
		file := func(name, text string) string {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			return path
		}
		patch := file("setup.patch", "diff --git a/EXTRA.md b/EXTRA.md\nnew file mode 100644\n--- /dev/null\n+++ b/EXTRA.md\n@@ -0,0 +1 @@\n+by patch\n")
		s := program(t, `set -e
test ! -e test.sh && ! grep -q '#!' slugify.sh && grep -q 'by file' NOTES.md && grep -q 'by patch' EXTRA.md
test "$(git log --oneline | wc -l)" = 1
echo work >work.txt; git add work.txt; git commit -qm 'What I did'
git push -q origin HEAD:refs/heads/agent`, map[string]any{"workspace": map[string]any{
			"remove": []string{"test.sh", "slugify.sh:1"}, "write": map[string]string{"NOTES.md": file("notes", "by file\n")},
			"patch": patch, "hooks": map[string]string{"pre-push": file("hook", "#!/bin/sh\necho hook >>hook.txt\n")}, "origin": true,
		}})
		sbxpair(t, s, append(runArgs(s), "--mode", "clone")...).want(t, exitUsage, "for the mode tracked, not clone") // what is for tracked alone
		sbxpair(t, s, append(runArgs(s), "--mode", "copy")...).want(t, exitUsage, "workspace.mode", "in-place")
		got := sbxpair(t, s, append(runArgs(s), "--mode", "tracked")...)
		got.want(t, 0)
		r := resultOf(t, got)
		if r.Outcome != "finished" || r.Delivered.Branch != "" || r.EndState == nil || len(r.EndState.Pushed) != 1 || r.EndState.Pushed[0].Ref != "refs/heads/agent" {
			t.Fatalf("result %+v, end state %+v", r, r.EndState)
		}
		v := told(t, s, string(r.Run))
		if v.End == nil || len(v.End.Commits) == 0 || v.End.Commits[0].Subject != "What I did" || !strings.Contains(v.Diff, "+work") || !slices.Contains(r.EndState.Files, "hook.txt") {
			t.Errorf("told %+v\n%s", v.End, v.Diff)
		}
		apply := exec.CommandContext(t.Context(), "git", "-C", s.Work, "apply", "--check", "--include=work.txt", r.Patch)
		if out, err := apply.CombinedOutput(); err != nil {
			t.Errorf("the patch does not fit the checkout: %v %s", err, out)
		}
	})
	t.Run("in-place", func(t *testing.T) {
		s := program(t, fixWith("slugify.sh")+`; git config core.fsmonitor 'touch /tmp/pwned'`, nil)
		got := sbxpair(t, s, append(runArgs(s), "--mode", "in-place")...)
		got.want(t, 0, ".git/config")
		for _, problem := range s.Result(t.Context()) {
			if !strings.Contains(problem, "model") && !strings.Contains(problem, "copilot api") { // this agent asks no model
				t.Error(problem)
			}
		}
		if r := resultOf(t, got); !slices.Contains(r.Tampered, ".git/config") || r.Delivered.Number == 0 {
			t.Errorf("result %+v", r)
		}
		if text, err := os.ReadFile(filepath.Join(s.Work, "slugify.sh")); err != nil || !strings.Contains(string(text), "-e 's/^-//'") {
			t.Errorf("the checkout itself was not worked in: %v\n%s", err, text)
		}
	})
	t.Run("empty", func(t *testing.T) {
		s := program(t, `test "$(ls)" = "" && echo hello >hello.txt`, map[string]any{"workspace": map[string]any{"mode": "tracked"}})
		got := sbxpair(t, s, append(runArgs(s), "--mode", "empty")...) // over what is configured
		got.want(t, 0)
		if r := resultOf(t, got); r.Outcome != "finished" || !slices.Equal(r.EndState.Files, []string{"hello.txt"}) {
			t.Errorf("result %+v", r)
		}
	})
}
