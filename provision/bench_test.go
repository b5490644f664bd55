package provision_test

import (
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"os"
	"path/filepath"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
)

// latencies are those of sbx as published: a create takes 3.2 s, other calls 0.2 s.
func latencies() map[string]int {
	return map[string]int{"create": 3200, "policy": 200, "secret": 200, "ls": 200, "rm": 200}
}

// BenchmarkPair measures how long a pair takes on sbx's published latencies, as a multiple of one create: made anew, with a
// daemon that works at several calls at once and with one that does them one by one, and taken from the pool.
func BenchmarkPair(b *testing.B) {
	for _, tt := range []struct {
		name         string
		serial, pool bool
	}{{"new", false, false}, {"new, serialised daemon", true, false}, {"from the pool", false, true}, {"from the pool, serialised daemon", true, true}} {
		b.Run(tt.name, func(b *testing.B) {
			var spent time.Duration
			calls, chain := 0, 0
			for b.Loop() {
				b.StopTimer()
				bn := newBench(b, "0.47", nil)
				pool := bn.pool(1)
				if tt.pool {
					bn.fill(pool, 1)
				}
				bn.slow(tt.serial)
				b.StartTimer()
				start := time.Now()
				var p *pair.Pair
				plan := bn.plan
				if tt.pool {
					p, plan = bn.claim(pool)
				} else {
					p = bn.acquire()
				}
				report, err := provision.Apply(b.Context(), bn.engine.Unverified(), p, plan, creds)
				if err != nil {
					b.Fatal(err)
				}
				spent += time.Since(start)
				calls, chain = calls+len(report.Calls), len(plan.Calls())
				b.StopTimer()
				if _, err := p.Release(b.Context(), "done", time.Minute); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(spent.Seconds()/float64(b.N)/3.2, "×create")
			b.ReportMetric(float64(calls)/float64(b.N), "calls")
			if !tt.pool {
				b.ReportMetric(float64(chain), "chain")
			}
		})
	}
}

// slow gives the fake the latencies of sbx.
func (b *bench) slow(serial bool) {
	b.t.Helper()
	preset := "deny-all"
	text, err := yaml.Marshal(fake.Script{Version: "0.47", Policy: &preset, LatencyMS: latencies(), Serial: serial})
	if err == nil {
		err = os.WriteFile(filepath.Join(b.state, "script.yaml"), text, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// Twenty pairs at the same time, from one program: no two have anything in common, and nothing is left.
func TestManyPairsAtOnce(t *testing.T) {
	b := newBench(t, "0.47", nil)
	host := provision.Host{Engine: b.engine.Unverified(), Store: b.store, Credentials: creds}
	const pairs = 20
	names := make(chan string, 2*pairs)
	plans := make([]provision.Plan, pairs)
	for i := range plans {
		in := input()
		in.Run, in.Engine, in.Paths, in.Workspace.Path = pair.NewRunID(time.Now()), b.plan.Engine, true, t.TempDir()
		var err error
		if plans[i], err = provision.New(in); err != nil {
			t.Fatal(err)
		}
	}
	err := pair.Several(plans, func(plan provision.Plan) error {
		p, err := provision.Up(t.Context(), host, plan)
		if err != nil {
			return err
		}
		names <- p.Agent.Name
		names <- p.GitHub.Name
		_, err = p.Release(t.Context(), "done", time.Minute)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	close(names)
	seen := map[string]bool{}
	for name := range names {
		if seen[name] {
			t.Errorf("two sandboxes are called %s", name)
		}
		seen[name] = true
	}
	s, err := fake.ReadState(b.state)
	if err != nil || len(seen) != 2*pairs || len(s.Sandboxes) != 0 || len(s.Secrets) != 0 {
		t.Errorf("%d names; left: %v, %v, %v", len(seen), s.Sandboxes, s.Secrets, err)
	}
}
