//go:build linux

package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
)

// Pairs that are made at once on one machine get in nobody's way: each has its own sandboxes, secrets and rules, works, and
// goes without the others. SBXPAIR_PAIRS says how many; 20 take a minute on two cores.
func TestPairsAtOnce(t *testing.T) {
	t.Parallel()
	pairs := 3
	if text := os.Getenv("SBXPAIR_PAIRS"); text != "" {
		var err error
		if pairs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, stage.Options{})
	s.Env = append(s.Env, "SBXPAIR_LIMITS_MEMORYMIB=1000000") // what waits for memory has tests of its own
	runs := make([]string, pairs)
	atOnce := func(do func(i int)) {
		var wg sync.WaitGroup
		for i := range pairs {
			wg.Go(func() { do(i) })
		}
		wg.Wait()
	}
	atOnce(func(i int) {
		up := sbxpair(t, s, "up", "--repo", stage.FullName, "--dir", s.Work)
		up.want(t, 0)
		runs[i] = strings.TrimSpace(up.stdout)
	})
	if slices.Sort(runs); len(slices.Compact(slices.Clone(runs))) != pairs || runs[0] == "" {
		t.Fatalf("runs %q", runs)
	}
	sbxpair(t, s, "down", runs[0]).want(t, 0)
	atOnce(func(i int) {
		if i > 0 {
			sbxpair(t, s, "exec", "--run", runs[i], "--", "cat", "slugify.sh").want(t, 0, "sed")
		}
	})
	sbxpair(t, s, "down", "--all").want(t, 0)
}
