package pair_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/pair"
)

// held writes the lease of a pair that holds memory.
func held(t *testing.T, store *pair.Store, mib int, owner pair.Owner) *pair.Pair {
	t.Helper()
	l := lease(pair.NewRunID(time.Now()), owner)
	l.MemoryMiB = mib
	p, err := pair.Acquire(&engine{}, store, l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Pairs are admitted while there is memory for them, in the order in which they came; what a dead owner's lease says does
// not count.
func TestAdmissionIsFairAndBounded(t *testing.T) {
	store := pair.NewStore(t.TempDir())
	held(t, store, 5000, dead())
	first := held(t, store, 700, pair.Self())
	var order []string
	var mu sync.Mutex
	waits := make(chan pair.Queue, 16)
	var wg sync.WaitGroup
	queue := func(name string, need int) {
		wg.Go(func() {
			err := store.Admit(t.Context(), pair.Admission{Need: need, Budget: 1000, Waiting: func(q pair.Queue) { waits <- q }}, func() error {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	queue("large", 800)
	if q := <-waits; q.Held != 700 || q.Pairs != 1 || q.Ahead != 0 || q.Budget != 1000 {
		t.Errorf("the first in the queue is told %+v", q)
	}
	queue("small", 100) // there is room for it, but it came later
	if q := <-waits; q.Ahead != 1 {
		t.Errorf("the second in the queue is told %+v", q)
	}
	if _, err := first.Release(t.Context(), "done", time.Minute); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if len(order) != 2 || order[0] != "large" {
		t.Errorf("admitted %v, want the one that waited longer first", order)
	}
}

func TestAdmissionHasADeadlineAndCanBeCancelled(t *testing.T) {
	store := pair.NewStore(t.TempDir())
	held(t, store, 900, pair.Self())
	never := func() error { t.Error("admitted"); return nil }
	err := store.Admit(t.Context(), pair.Admission{Need: 200, Budget: 1000, Wait: 50 * time.Millisecond}, never)
	if !errors.Is(err, pair.ErrNoRoom) {
		t.Errorf("after the deadline: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = store.Admit(ctx, pair.Admission{Need: 200, Budget: 1000, Waiting: func(pair.Queue) { cancel() }}, never)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	taken := false
	take := func() error { taken = true; return nil }
	if err := store.Admit(t.Context(), pair.Admission{Need: 100, Budget: 1000}, take); err != nil || !taken {
		t.Errorf("what has room: %v", err)
	}
	alone := pair.NewStore(t.TempDir())
	taken = false
	if err := alone.Admit(t.Context(), pair.Admission{Need: 5000, Budget: 1000}, take); err != nil || !taken {
		t.Errorf("a pair that is alone on the host: %v", err)
	}
}

// A pair that may be needed goes for one that is needed: once for each that is in the way, and only where that makes room.
func TestAdmissionTakesThePoolsMemory(t *testing.T) {
	store := pair.NewStore(t.TempDir())
	held(t, store, 300, pair.Self())
	var waiting []*pair.Pair
	for range 2 {
		p := held(t, store, 300, pair.Self())
		if err := p.Shelve(); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, p)
	}
	yield := func(ctx context.Context) (bool, error) {
		if len(waiting) == 0 {
			return false, nil
		}
		p := waiting[0]
		waiting = waiting[1:]
		_, err := p.Release(ctx, "drained", time.Minute)
		return true, err
	}
	never := func() error { t.Error("admitted"); return nil }
	err := store.Admit(t.Context(), pair.Admission{Need: 200, Budget: 1000, Wait: pair.NoWait, Yield: yield}, never)
	if !errors.Is(err, pair.ErrNoRoom) || len(waiting) != 2 {
		t.Errorf("who does not wait: %v, and the pool has %d", err, len(waiting))
	}
	err = store.Admit(t.Context(), pair.Admission{Need: 900, Budget: 1000, Wait: 50 * time.Millisecond, Yield: yield}, never)
	if !errors.Is(err, pair.ErrNoRoom) || len(waiting) != 2 {
		t.Errorf("the pool was emptied to no purpose: %v, and it has %d", err, len(waiting))
	}
	taken := false
	take := func() error { taken = true; return nil }
	if err := store.Admit(t.Context(), pair.Admission{Need: 400, Budget: 1000, Yield: yield}, take); err != nil || !taken || len(waiting) != 1 {
		t.Errorf("a pair that is needed: %v, and the pool has %d, want one less", err, len(waiting))
	}
	broken := errors.New("cannot be removed")
	err = store.Admit(t.Context(), pair.Admission{Need: 600, Budget: 1000, Wait: 250 * time.Millisecond, Yield: func(context.Context) (bool, error) { return false, broken }}, never)
	if !errors.Is(err, pair.ErrNoRoom) || !errors.Is(err, broken) {
		t.Errorf("a pooled pair that cannot be removed: %v", err)
	}
}

// A process that dies in the queue loses its place, and its file goes.
func TestAdmissionPassesTheDead(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("flock(1) is not installed")
	}
	dir := t.TempDir()
	store := pair.NewStore(dir)
	queue := filepath.Join(dir, "queue")
	if err := os.Mkdir(queue, 0o700); err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(queue, "00000000000000000001-x.waits")
	other := exec.CommandContext(t.Context(), "flock", "--no-fork", place, "sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	probe := flock.New(place)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // until the other has its place
		if free, err := probe.TryLock(); err == nil && !free {
			break
		}
		probe.Unlock()
		if time.Now().After(deadline) {
			t.Fatal("the other process takes no lock")
		}
	}
	held(t, store, 1, pair.Self())
	err := store.Admit(t.Context(), pair.Admission{Need: 1, Budget: 100, Waiting: func(q pair.Queue) {
		if q.Ahead != 1 {
			t.Errorf("ahead: %d, want the other process", q.Ahead)
		}
		other.Process.Kill()
		other.Wait()
	}}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(queue, "*.waits")); len(left) != 0 {
		t.Errorf("left in the queue: %v", left)
	}
}
