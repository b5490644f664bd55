//go:build linux

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/loop"
)

// The pool on sbx-local: pairs are booted, a run claims one and opens its pull request from it, the pool fills again
// beside it, and at the end nothing is left of any of them.
func TestPool(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{Env: []string{"SBXPAIR_POOL_SIZE=1"}})
	dry := sbxpair(t, s, "pool", "fill", "--dry-run")
	dry.want(t, 0, "would boot a pair on sbx-local")
	if ls := sbxpair(t, s, "pool", "ls"); ls.stdout != "" {
		t.Errorf("the dry run booted something: %s", ls.stdout)
	}
	fill := sbxpair(t, s, "pool", "fill")
	fill.want(t, 0, "booted ")
	first := strings.TrimPrefix(strings.TrimSpace(fill.stdout), "booted ")
	sbxpair(t, s, "pool", "fill").want(t, 0, "the pool is full")
	sbxpair(t, s, "ls").want(t, 0, first, "pool", "agent running", "github running")
	sbxpair(t, s, "exec", "--run", first, "--", "true").want(t, 125, "is in the pool")
	sbxpair(t, s, "exec", "--", "true").want(t, 125, "there is no pair")
	sbxpair(t, s, "down", first).want(t, exitUsage, "is in the pool")
	sbxpair(t, s, "down", "--all").want(t, 0)
	sbxpair(t, s, "prune", "--force").want(t, 0, "nothing to prune")

	got := sbxpair(t, s, runArgs(s)...)
	got.want(t, 0)
	for _, problem := range s.Result(t.Context()) {
		t.Error(problem)
	}
	var result loop.Result
	if err := json.Unmarshal([]byte(got.stdout), &result); err != nil {
		t.Fatal(err)
	}
	if string(result.Run) != first {
		t.Errorf("the run is %s, the pair that waited %s", result.Run, first)
	}
	for _, p := range result.Phases {
		if p.Phase == events.PhaseProvision {
			t.Logf("provisioning a pair from the pool took %s", p.Took)
		}
	}
	second := sbxpair(t, s, "pool", "ls", "--json")
	second.want(t, 0, `"state": "pool"`)
	if strings.Contains(second.stdout, first) {
		t.Error("a pair that a run had is in the pool again")
	}

	up := sbxpair(t, s, "up", "--repo", stage.FullName, "--dir", s.Work)
	up.want(t, 0)
	if !strings.Contains(second.stdout, strings.TrimSpace(up.stdout)) {
		t.Errorf("up made %s and left the pair that waited", up.stdout)
	}
	sbxpair(t, s, "exec", "--", "cat", "slugify.sh").want(t, 0, "sed") // the repository is below the mount
	sbxpair(t, s, "down").want(t, 0)
	sbxpair(t, s, "pool", "drain", "--dry-run").want(t, 0, "would remove pooled pair")
	sbxpair(t, s, "pool", "drain").want(t, 0, "removed ")
}
