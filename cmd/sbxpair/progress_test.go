package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
)

// What a person reads while a run goes on: phases with their attempts and times, and after each session what was used.
func TestProgress(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &progress{app: &app{stderr: &out}}
	for _, e := range []events.Payload{
		events.RunStarted{Repository: "o/r", Agent: "copilot", Engine: "sbx", EngineVer: "0.47"},
		events.PhaseStarted{Phase: events.PhaseExecute, Attempt: 2},
		events.AgentActed{Type: "tool-start", Turn: 1, Tool: "bash", Text: "ls \x1b]0;pwned\a"},
		events.Spent{Turns: 1, Input: 10},
		events.AgentEnded{Phase: events.PhaseExecute},
		events.Spent{Turns: 3, Input: 4200, Output: 120, CostUSD: 0.0149, BlockedHosts: 2, Unpriced: []string{"m"}},
		events.PhaseEnded{Phase: events.PhaseExecute, Attempt: 2, Took: 1500 * time.Millisecond, Detail: "3 turns"},
		events.Reviewed{Approved: false, Summary: "No.", Findings: []events.Finding{{File: "a.go", Problem: "worse", Required: true}, {Problem: "taste"}}},
		events.PhaseEnded{Phase: events.PhaseReview, Attempt: 1, Took: time.Second, Error: "x"},
		events.Blocked{Role: "agent", Host: "evil.test", Count: 2},
		events.Resumed{Attempt: 2, Drift: []events.Change{{Key: "limits.run", Own: `"1h"`, Now: `"2h"`}}},
	} {
		p.show(e)
	}
	want := []string{
		"o/r: copilot on sbx 0.47",
		"    turn 1: bash ls ]0;pwned",
		"    so far: 0s, 3 turns, 4200 tokens in, 120 out, $0.01 and what m costs, 2 blocked hosts",
		"  execute 2     1.5s  ok     3 turns",
		"    review: rejected: No.",
		"    review: a.go: worse",
		"  review        1.0s  failed",
		"    blocked: agent sandbox → evil.test (2×)",
		"goes on with attempt 2",
		`    configured differently today, and not used: limits.run is "2h", and "1h" in this run`,
	}
	if got := strings.TrimRight(out.String(), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}
