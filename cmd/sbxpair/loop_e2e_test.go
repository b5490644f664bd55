//go:build linux

package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/events"
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
