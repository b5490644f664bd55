package provision_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

// pool is a pool of size pairs on the bench's engine, for its plan.
func (b *bench) pool(size int) provision.Pool {
	in := input()
	in.Engine, in.Paths = b.plan.Engine, true
	return provision.Pool{Engine: b.engine.Unverified(), Store: b.store, Ref: b.plan.Engine, For: in, Size: size, MaxAge: time.Hour}
}

func (b *bench) fill(p provision.Pool, want int) []pair.RunID {
	b.t.Helper()
	made, err := p.Fill(b.t.Context())
	if err != nil || len(made) != want {
		b.t.Fatalf("Fill: %v, %v; want %d pairs", made, err, want)
	}
	return made
}

// claim takes a pair as a run does, and makes the plan for it.
func (b *bench) claim(p provision.Pool) (*pair.Pair, provision.Plan) {
	b.t.Helper()
	owner := pair.Self()
	got, err := p.Claim(pair.Lease{Created: time.Now().UTC(), Owner: owner, Engine: p.Ref, Repository: "octo/slugify"})
	if err != nil {
		b.t.Fatal(err)
	}
	if got == nil {
		return nil, provision.Plan{}
	}
	in := p.For
	in.Run, in.Workspace = got.Run, sbx.Workspace{Path: provision.Mount(b.store, got.Run)}
	plan, err := provision.New(in)
	if err != nil {
		b.t.Fatal(err)
	}
	return got, plan
}

func (b *bench) holds(run pair.RunID) (boxes, others int) {
	b.t.Helper()
	s, err := fake.ReadState(b.state)
	if err != nil {
		b.t.Fatal(err)
	}
	ours := func(name string) bool { return strings.Contains(name, string(run)) }
	for _, box := range s.Sandboxes {
		if ours(box.Name) {
			boxes++
		}
	}
	for _, r := range s.Rules {
		if ours(r.Sandbox) && r.Via == "added" { // not what the kit brings
			others++
		}
	}
	for _, e := range s.Secrets {
		if ours(e.Scope) {
			others++
		}
	}
	return boxes, others
}

// A pooled pair has sandboxes and nothing else; the run that claims it gives it the rest in one round of calls and one of
// reads, and nobody gets it a second time.
func TestPoolFromBootToRelease(t *testing.T) {
	b := newBench(t, "0.47", nil)
	pool := b.pool(2)
	made := b.fill(pool, 2)
	for _, run := range made {
		if boxes, others := b.holds(run); boxes != 2 || others != 0 {
			t.Errorf("pooled pair %s: %d sandboxes, %d rules and secrets; want 2 and none", run, boxes, others)
		}
	}
	b.fill(pool, 0) // it is full
	before := len(b.calls())
	p, plan := b.claim(pool)
	if p == nil || !p.Booted {
		t.Fatalf("claimed %+v", p)
	}
	if n := len(b.calls()) - before; n != 0 {
		t.Errorf("the claim itself cost %d calls", n)
	}
	report, err := provision.Apply(t.Context(), b.engine.Unverified(), p, plan, creds)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range report.Calls {
		if strings.HasPrefix(call.Op, "create") {
			t.Errorf("a claimed pair was made: %s", call.Op)
		}
	}
	if boxes, others := b.holds(p.Run); boxes != 2 || others == 0 {
		t.Errorf("claimed pair: %d sandboxes, %d rules and secrets", boxes, others)
	}
	if l, err := b.store.Load(p.Run); err != nil || l.Pooled() || l.Owner != pair.Self() || l.Repository == "" {
		t.Errorf("lease after the claim: %+v, %v", l, err)
	}
	if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
		t.Fatal(err)
	}
	if boxes, others := b.holds(p.Run); boxes+others != 0 {
		t.Errorf("after release: %d, %d", boxes, others)
	}
	second, _ := b.claim(pool)
	if second == nil || second.Run == p.Run {
		t.Fatalf("second claim: %+v", second)
	}
	if third, _ := b.claim(pool); third != nil {
		t.Errorf("a third pair came out of a pool of two: %s", third.Run)
	}
	if _, err := second.Release(t.Context(), "done", time.Minute); err != nil {
		t.Fatal(err)
	}
	b.fill(pool, 2) // fresh ones
}

// meeting is an engine whose calls wait for each other: the changes, and the reads after them, go out together or not at all.
type meeting struct {
	*sbx.Client
	mu      sync.Mutex
	rounds  []int // calls that are still to come, of each round
	arrived chan struct{}
}

// join returns when all calls of the round have arrived, or fails.
func (m *meeting) join(ctx context.Context) error {
	m.mu.Lock()
	if len(m.rounds) == 0 {
		m.mu.Unlock()
		return errors.New("a call too many")
	}
	arrived := m.arrived
	if m.rounds[0]--; m.rounds[0] == 0 {
		m.rounds, m.arrived = m.rounds[1:], make(chan struct{})
		close(arrived)
	}
	m.mu.Unlock()
	select {
	case <-arrived:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(20 * time.Second):
		return errors.New("the other calls of the round do not come")
	}
}

func (m *meeting) SecretList(ctx context.Context) ([]sbx.Secret, error) {
	if err := m.join(ctx); err != nil {
		return nil, err
	}
	return m.Client.SecretList(ctx)
}

func (m *meeting) PolicyAllow(ctx context.Context, r sbx.PolicyRule) ([]string, error) {
	if err := m.join(ctx); err != nil {
		return nil, err
	}
	return m.Client.PolicyAllow(ctx, r)
}

func (m *meeting) PolicyDeny(ctx context.Context, r sbx.PolicyRule) ([]string, error) {
	if err := m.join(ctx); err != nil {
		return nil, err
	}
	return m.Client.PolicyDeny(ctx, r)
}

func (m *meeting) SecretSet(ctx context.Context, s sbx.ServiceSecret) error {
	if err := m.join(ctx); err != nil {
		return err
	}
	return m.Client.SecretSet(ctx, s)
}

func (m *meeting) VerifyCreated(ctx context.Context, specs ...sbx.CreateSpec) ([]sbx.Sandbox, error) {
	if err := m.join(ctx); err != nil {
		return nil, err
	}
	return m.Client.VerifyCreated(ctx, specs...)
}

func (m *meeting) PolicyList(ctx context.Context, sandbox string) ([]sbx.Rule, error) {
	if err := m.join(ctx); err != nil {
		return nil, err
	}
	return m.Client.PolicyList(ctx, sandbox)
}

// What a claim costs, counted: one round of changes that go out together, then one round of reads, and no call beside them.
func TestClaimIsOneRoundTrip(t *testing.T) {
	b := newBench(t, "0.47", nil)
	pool := b.pool(1)
	b.fill(pool, 1)
	p, plan := b.claim(pool)
	groups := plan.Calls()
	changes, reads := len(groups[1]), len(groups[2])
	m := &meeting{Client: b.engine.Unverified(), rounds: []int{changes, reads}, arrived: make(chan struct{})}
	before := len(b.calls())
	report, err := provision.Apply(t.Context(), m, p, plan, creds)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.calls()) - before; n != changes+reads || n != len(report.Calls) || n > 12 {
		t.Errorf("%d calls, %d reported, want %d and %d", n, len(report.Calls), changes, reads)
	}
	if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
		t.Fatal(err)
	}
}

// The pool takes the host's memory as runs do: no more than there is, and not before those that wait for it.
func TestPoolAsksForMemory(t *testing.T) {
	b := newBench(t, "0.47", nil)
	pool := b.pool(3)
	pool.Budget = 2 * provision.PairMemoryMiB(pool.Ref, 0)
	made, err := pool.Fill(t.Context())
	if !errors.Is(err, pair.ErrNoRoom) || len(made) != 2 {
		t.Errorf("Fill: %v, %v; want the two pairs that there is memory for", made, err)
	}
	if yielded, err := pool.Yield(t.Context()); err != nil || !yielded {
		t.Errorf("Yield: %v, %v", yielded, err)
	}
	left := 0
	for _, run := range made {
		boxes, _ := b.holds(run)
		left += boxes
	}
	if left != 2 {
		t.Errorf("%d sandboxes are left of two pairs, want those of one", left)
	}
	if removed, err := pool.Drain(t.Context(), false); err != nil || len(removed) != 1 {
		t.Errorf("drained %v, %v; want the other", removed, err)
	}
	if yielded, err := pool.Yield(t.Context()); err != nil || yielded {
		t.Errorf("Yield of an empty pool: %v, %v", yielded, err)
	}
}

// A pair whose sandboxes are gone, which a restart does, is made anew under the same lease.
func TestPoolPairThatIsGone(t *testing.T) {
	for name, lost := range map[string][]pair.Role{"both": {pair.RoleAgent, pair.RoleGitHub}, "one": {pair.RoleGitHub}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "0.47", nil)
			pool := b.pool(1)
			run := b.fill(pool, 1)[0]
			for _, role := range lost {
				if err := b.engine.Remove(t.Context(), run.Name(role)); err != nil {
					t.Fatal(err)
				}
			}
			p, plan := b.claim(pool)
			report, err := provision.Apply(t.Context(), b.engine.Unverified(), p, plan, creds)
			if err != nil || len(report.Notes) == 0 {
				t.Fatalf("Apply: %v, notes %v", err, report.Notes)
			}
			if boxes, _ := b.holds(run); boxes != 2 {
				t.Errorf("%d sandboxes, want both", boxes)
			}
			if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Two processes that fill and claim at the same time neither make too many nor share one.
func TestPoolIsShared(t *testing.T) {
	b := newBench(t, "0.47", nil)
	pool := b.pool(3)
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 2 {
		wg.Go(func() {
			made, err := pool.Fill(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if total += len(made); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if total != 3 {
		t.Errorf("two fills made %d pairs, want 3", total)
	}
	claimed := map[pair.RunID]int{}
	for range 6 {
		wg.Go(func() {
			p, err := pool.Claim(pair.Lease{Created: time.Now(), Owner: pair.Self(), Engine: pool.Ref})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case p != nil:
				claimed[p.Run]++
				defer p.Release(t.Context(), "done", time.Minute)
			}
		})
	}
	wg.Wait()
	if len(claimed) != 3 {
		t.Errorf("six claims got %v, want three different ones", claimed)
	}
	for run, n := range claimed {
		if n != 1 {
			t.Errorf("%s was claimed %d times", run, n)
		}
	}
}

// What is too old, for another engine version or for other settings is not claimed, and goes.
func TestPoolStaysFresh(t *testing.T) {
	b := newBench(t, "0.47", nil)
	pool := b.pool(1)
	old := pool
	old.MaxAge = -time.Minute
	expired := b.fill(old, 1)[0]
	big := pool
	big.For.CPUs = 7
	other := b.fill(big, 1)[0]
	upgraded := pool
	upgraded.Ref.Version = "0.48"
	if p, _ := b.claim(pool); p != nil {
		t.Errorf("claimed %s, which is too old or of another size", p.Run)
	}
	if p, _ := b.claim(upgraded); p != nil {
		t.Errorf("claimed %s, which another engine version booted", p.Run)
	}
	found, err := pair.FindLeftovers(t.Context(), b.engine, b.store, pool.Ref)
	if err != nil || len(found) != 1 || found[0].Run != expired {
		t.Fatalf("leftovers %+v, %v; want the pair that is too old", found, err)
	}
	fresh := b.fill(pool, 1)[0]
	removed, err := pool.Drain(t.Context(), true)
	if err != nil || len(removed) != 2 {
		t.Errorf("drained %v, %v; want %s and %s", removed, err, expired, other)
	}
	if err := pair.Prune(t.Context(), b.engine, b.store, found, nil); err != nil { // it is gone by now
		t.Error(err)
	}
	if boxes, _ := b.holds(fresh); boxes != 2 {
		t.Error("the fresh pair is gone")
	}
	if removed, err := pool.Drain(t.Context(), false); err != nil || len(removed) != 1 {
		t.Errorf("drained %v, %v; want the last", removed, err)
	}
	if _, err := os.Stat(filepath.Dir(provision.Mount(b.store, fresh))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mount is still there: %v", err)
	}
}

// A boot that fails leaves nothing, and says why; one that is killed is an orphan like any.
func TestPoolBootFails(t *testing.T) {
	b := newBench(t, "0.47", nil)
	b.script(fake.Script{Version: "0.47", Calls: []fake.CallRule{{Match: "^create .*github", Stderr: "ERROR: no space left on device\n", Code: 1}}})
	pool := b.pool(1)
	made, err := pool.Fill(t.Context())
	if !errors.Is(err, sbx.ErrDiskFull) || len(made) != 0 {
		t.Errorf("Fill: %v, %v", made, err)
	}
	if s, err := fake.ReadState(b.state); err != nil || len(s.Sandboxes) != 0 {
		t.Errorf("left: %+v, %v", s.Sandboxes, err)
	}
	if list, err := pool.List(); err != nil || len(list) != 0 {
		t.Errorf("in the pool: %+v, %v", list, err)
	}
}
