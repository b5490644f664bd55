//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/demo/repo"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/pair"
)

// A run whose process is killed in any phase is gone on with there: what was done is not done again, what was begun is, the pair
// that was left is taken away, and the work is delivered once. (On the fake engine; TestResumeAfterCrash is on a real one.)
func TestResumeInEachPhase(t *testing.T) {
	s := setScene(t, false)
	dir := s.shim.dir
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		if err := os.WriteFile(file(name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Who comes to the phase that "block" names waits there for as long as the file is there, and leaves "in".
	wait := `wait_in() { [ "$(cat '` + file("block") + `' 2>/dev/null)" = "$1" ] && { touch '` + file("in") + `'; while [ -e '` + file("block") + `' ]; do sleep 0.02; done; }; true; }
`
	write("agent", "#!/bin/sh\n"+wait+`task=$(cat)
say() { echo '{"type":"assistant.turn_start"}'; printf '{"type":"assistant.message","data":{"content":"%s"}}\n' "$1"; echo '{"type":"result","exitCode":0}'; }
case $task in
"Make a plan"*) wait_in plan; say 'Mend the sed line.' ;;
"Review a change"*) wait_in review; say '{\"approved\": true, \"summary\": \"Fine.\"}' ;;
*) case $task in *"Mend the sed line."*) ;; *) exit 9 ;; esac
	wait_in execute; `+fixWith("slugify.sh")+`; say Done. ;;
esac
`)
	write("verify", wait+"wait_in verify; "+repo.Verify)
	s.Env = append(s.Env, "SBXPAIR_PHASES=plan,execute,verify,review", "SBXPAIR_VERIFY=sh "+file("verify"))
	for i, phase := range []events.Phase{events.PhasePlan, events.PhaseExecute, events.PhaseVerify, events.PhaseReview, events.PhaseDeliver} {
		if phase == events.PhaseDeliver {
			s.Hub.Inject(hub.Fault{Kind: hub.Hang, Op: "pulls/create", Times: 1})
		} else {
			write("block", string(phase))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd, stderr, ended := startRun(ctx, t, s.Stage)
		err := await(ctx, string(phase), ended, func() bool {
			if phase != events.PhaseDeliver {
				_, err := os.Stat(file("in"))
				return err == nil
			}
			return s.Hub.Fired() > 0
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
		cmd.Process.Kill()
		<-ended
		os.Remove(file("block"))
		os.Remove(file("in"))
		leases, err := pair.NewStore(filepath.Join(s.State, "sbxpair")).List()
		if err != nil {
			t.Fatal(err)
		}
		open := slices.IndexFunc(leases, func(l pair.Lease) bool { return l.State == pair.Open })
		if open < 0 {
			t.Fatalf("killed in %s: no lease is open", phase)
		}
		run := string(leases[open].Run)
		if v := told(t, s.Stage, run); v.Outcome != "interrupted" || !v.Resumable {
			t.Errorf("killed in %s: %+v", phase, v.Result)
		}
		sbxpair(t, s.Stage, "resume", run).want(t, 0)
		v := told(t, s.Stage, run)
		if v.Outcome != "delivered" || v.Resumable || v.Delivered.Number == 0 {
			t.Errorf("killed in %s, and gone on with: %+v", phase, v.Result)
		}
		for name, want := range map[events.Phase]int{events.PhasePlan: 1, events.PhaseExecute: 1, events.PhaseReview: 1} {
			if name == phase {
				want++
			}
			if n := strings.Count(strings.Join(v.Transcripts, "\n"), fmt.Sprintf("-%s.jsonl", name)); n != want {
				t.Errorf("killed in %s: %d sessions of %s, want %d", phase, n, name, want)
			}
		}
		if pulls, err := s.Hub.Pulls(t.Context(), stage.FullName); err != nil || len(pulls) != i+1 {
			t.Errorf("killed in %s: %d pull requests, %v; want %d", phase, len(pulls), err, i+1)
		}
	}
	if after := s.held(); after != s.before {
		t.Errorf("the engine holds\n%s\nbefore\n%s", after, s.before)
	}
}
