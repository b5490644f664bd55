package pair_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// engine is an engine of the mind: it lists, removes, and fails where it is told to.
type engine struct {
	boxes     []string
	secrets   []sbx.Secret
	rules     []sbx.Rule
	listErr   error
	removeErr error
	mu        sync.Mutex
	killed    int // how often Remove is killed in the middle
	hang      bool
}

func (e *engine) Exec(context.Context, string, sbx.ExecSpec) (sbx.ExecResult, error) {
	return sbx.ExecResult{}, sbx.ErrNotFound
}

func (e *engine) List(context.Context) ([]sbx.Sandbox, error) {
	if e.listErr != nil {
		return nil, e.listErr
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []sbx.Sandbox
	for _, name := range e.boxes {
		list = append(list, sbx.Sandbox{Name: name, Status: sbx.StatusRunning})
	}
	return list, nil
}

func (e *engine) Remove(ctx context.Context, names ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if e.removeErr != nil {
		return e.removeErr
	}
	if e.killed > 0 {
		e.killed--
		return fmt.Errorf("rm: %w", sbx.ErrConnectionLost)
	}
	e.boxes = slices.DeleteFunc(e.boxes, func(b string) bool { return slices.Contains(names, b) })
	return nil
}

func (e *engine) VerifyRemoved(_ context.Context, names ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.ContainsFunc(e.boxes, func(b string) bool { return slices.Contains(names, b) }) {
		return sbx.ErrNotApplied
	}
	return nil
}

func (e *engine) PolicyList(context.Context, string) ([]sbx.Rule, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.rules), nil
}

func (e *engine) PolicyRemove(_ context.Context, ref sbx.RuleRef) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rules = slices.DeleteFunc(e.rules, func(r sbx.Rule) bool { return r.ID == ref.ID && r.Sandbox == ref.Sandbox })
	return nil
}

func (e *engine) SecretList(context.Context) ([]sbx.Secret, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.secrets), nil
}

func (e *engine) SecretRemove(_ context.Context, gone sbx.Secret) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.secrets = slices.DeleteFunc(e.secrets, func(s sbx.Secret) bool { return s.Sandbox == gone.Sandbox && s.Name == gone.Name })
	return nil
}

func lease(run pair.RunID, owner pair.Owner) pair.Lease {
	return pair.Lease{Run: run, Created: time.Now().UTC(), Owner: owner, Engine: pair.EngineRef{Kind: "sbx"}}
}

func dead() pair.Owner {
	o := pair.Self()
	o.Start = "1" // the id was given to another process since
	return o
}

func TestRunIDs(t *testing.T) {
	older, newer := pair.NewRunID(time.Unix(1_700_000_000, 0)), pair.NewRunID(time.Unix(1_700_000_001, 0))
	if older >= newer {
		t.Errorf("%s does not sort before %s", older, newer)
	}
	for _, name := range older.Names() {
		if err := sbx.CheckName(name); err != nil {
			t.Error(err)
		}
		if run, _, ok := pair.ParseName(name); !ok || run != older {
			t.Errorf("ParseName(%q) = %q, %v", name, run, ok)
		}
	}
	for _, name := range []string{"sbxpair-x-agent", "other-" + string(older) + "-agent", "sbxpair-" + string(older), "--all", ""} {
		if _, _, ok := pair.ParseName(name); ok {
			t.Errorf("%q was taken for one of ours", name)
		}
	}
	for _, arg := range []string{"", "../../../etc", "a/b", "--all", strings.Repeat("a", 13), "UPPERCASEABC"} {
		if _, err := pair.ParseRunID(arg); err == nil {
			t.Errorf("%q was taken for a run id", arg)
		}
	}
}

func TestReleaseRemovesAndClosesAfterCancellation(t *testing.T) {
	store := pair.NewStore(t.TempDir())
	run := pair.NewRunID(time.Now())
	e := &engine{boxes: append(run.Names(), "somebody-elses"),
		secrets: []sbx.Secret{{Sandbox: run.Name(pair.RoleAgent), Name: "github"}, {Sandbox: "somebody-elses", Name: "github"}},
		rules:   []sbx.Rule{{ID: "1", Sandbox: run.Name(pair.RoleGitHub)}, {ID: "2", Sandbox: "somebody-elses"}, {ID: "3"}}}
	p, err := pair.Acquire(e, store, lease(run, pair.Self()))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := store.Load(run); err != nil || l.State != pair.Open || len(l.Sandboxes) != 2 {
		t.Fatalf("before anything exists the lease is %+v, %v", l, err)
	}
	if err := os.WriteFile(p.CredentialFile(pair.RoleAgent), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Release(ctx, "cancelled", time.Minute); err != nil {
		t.Fatal(err)
	}
	l, _ := store.Load(run)
	if l.State != pair.Closed || l.Outcome != "cancelled" {
		t.Errorf("lease after release: %+v", l)
	}
	if !slices.Equal(e.boxes, []string{"somebody-elses"}) || len(e.secrets) != 1 || len(e.rules) != 2 {
		t.Errorf("left in the engine: %v, %v, %v", e.boxes, e.secrets, e.rules)
	}
	if _, err := os.Stat(p.CredentialFile(pair.RoleAgent)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the credential file is still there: %v", err)
	}
}

// The signal that starts a clean-up can hit the engine's command before it is in a group of its own.
func TestReleaseGoesOnAfterAKilledCall(t *testing.T) {
	for killed, left := range map[int]bool{1: false, 3: false, 9: true} { // two sandboxes, three tries for each
		store := pair.NewStore(t.TempDir())
		run := pair.NewRunID(time.Now())
		e := &engine{boxes: run.Names(), killed: killed}
		p, err := pair.Acquire(e, store, lease(run, pair.Self()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Release(t.Context(), "cancelled", time.Minute); errors.Is(err, pair.ErrLeft) != left {
			t.Errorf("killed %d times: %v, sandboxes %v", killed, err, e.boxes)
		}
	}
}

func TestReleaseIsBoundedAndSaysWhatMayBeLeft(t *testing.T) { t.Run("R082", releaseIsBounded) }

func releaseIsBounded(t *testing.T) {
	store := pair.NewStore(t.TempDir())
	run := pair.NewRunID(time.Now())
	p, err := pair.Acquire(&engine{hang: true}, store, lease(run, pair.Self()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Release(t.Context(), "failed", 200*time.Millisecond)
	if !errors.Is(err, pair.ErrLeft) || !strings.Contains(err.Error(), run.Name(pair.RoleGitHub)) {
		t.Errorf("Release with a hanging engine: %v; want ErrLeft with the names", err)
	}
	if l, _ := store.Load(run); l.State != pair.Open {
		t.Errorf("the lease is %s: prune would not find it", l.State)
	}
}

// TestFieldReports holds the rows of the category cleanup that leases and prune answer.
func TestFieldReports(t *testing.T) {
	t.Run("R084", func(t *testing.T) { // running leftovers of a dead owner go, those of a live one stay
		store := pair.NewStore(t.TempDir())
		orphan, alive, kept, lost := pair.RunID("222222222222"), pair.RunID("333333333333"), pair.RunID("444444444444"), pair.RunID("555555555555")
		e := &engine{boxes: slices.Concat(orphan.Names(), alive.Names(), kept.Names(), lost.Names(), []string{"not-ours"})}
		for run, owner := range map[pair.RunID]pair.Owner{orphan: dead(), alive: pair.Self(), kept: dead()} {
			p, err := pair.Acquire(e, store, lease(run, owner))
			if err != nil {
				t.Fatal(err)
			}
			if run == kept {
				if err := p.Keep("up", nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		found, err := pair.FindLeftovers(t.Context(), e, store, pair.EngineRef{Kind: "sbx"})
		if err != nil || len(found) != 2 || found[0].Run != orphan || found[1].Run != lost {
			t.Fatalf("leftovers %+v, %v; want the orphan and the one without a record", found, err)
		}
		if other, _ := pair.FindLeftovers(t.Context(), &engine{}, store, pair.EngineRef{Kind: "sbx-local"}); len(other) != 0 {
			t.Errorf("another engine's leases were taken up: %+v", other)
		}
		credential := pair.Attach(e, store, lease(orphan, dead())).CredentialFile(pair.RoleAgent)
		if err := os.WriteFile(credential, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := pair.Prune(t.Context(), e, store, found, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(credential); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the orphan's credential file is still there: %v", err)
		}
		if want := slices.Concat(alive.Names(), kept.Names(), []string{"not-ours"}); !slices.Equal(e.boxes, want) {
			t.Errorf("left %v, want %v", e.boxes, want)
		}
		if l, _ := store.Load(orphan); l.State != pair.Closed || l.Outcome != "orphaned" { // R088
			t.Errorf("the orphan's lease: %+v", l)
		}
	})
	t.Run("R085", func(t *testing.T) { // names follow from the run, never from a folder: two projects called "api" differ
		now := time.Now()
		if a, b := pair.NewRunID(now), pair.NewRunID(now); a == b || a.Name(pair.RoleAgent) == b.Name(pair.RoleAgent) {
			t.Errorf("two runs at the same moment are both %s", a)
		}
	})
	t.Run("R092", func(t *testing.T) { // a zombie counts as dead
		if _, err := os.Stat("/proc/self/stat"); err != nil {
			t.Skip("no /proc on this system: zombies cannot be told from processes")
		}
		child := exec.CommandContext(t.Context(), "true")
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		defer child.Wait() // not before the check: until then it is a zombie
		owner := pair.Self()
		owner.PID, owner.Start = child.Process.Pid, ""
		deadline := time.After(10 * time.Second)
		for owner.Check() != pair.Dead {
			select {
			case <-deadline:
				t.Fatal("a zombie still counts as alive")
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	t.Run("R080", func(t *testing.T) { // what was left at once is on record for prune, with its names
		store := pair.NewStore(t.TempDir())
		run := pair.NewRunID(time.Now())
		if _, err := pair.Acquire(&engine{}, store, lease(run, dead())); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(store.Dir(run), "lease.json"))
		if err != nil || !strings.Contains(string(text), run.Name(pair.RoleAgent)) || !strings.Contains(string(text), run.Name(pair.RoleGitHub)) {
			t.Errorf("lease %s, %v; want both names", text, err)
		}
	})
	t.Run("R087", func(t *testing.T) { // a sandbox that vanished is lost, not "not found"
		box := pair.NewSandbox(&engine{}, pair.NewRunID(time.Now()), pair.RoleAgent)
		if _, err := box.Exec(t.Context(), sbx.ExecSpec{Argv: []string{"true"}}); !errors.Is(err, pair.ErrLost) {
			t.Errorf("Exec in a vanished sandbox: %v, want ErrLost", err)
		}
	})
}

func TestOwners(t *testing.T) {
	self := pair.Self()
	if got := self.Check(); got != pair.Alive {
		t.Errorf("this process is %s", got)
	}
	renamed := self
	renamed.Host += ".wlan"
	if got := renamed.Check(); self.Boot != "" && got != pair.Alive {
		t.Errorf("this process is %s once the machine is called something else", got)
	}
	other := self
	other.Host, other.Boot = self.Host+".elsewhere", "another's"
	if got := other.Check(); got != pair.Unknown {
		t.Errorf("another host's process is %s, want unknown: it must not be pruned from here", got)
	}
	container := self
	container.Space = "pid:[1]"
	if got := container.Check(); got != pair.Unknown {
		t.Errorf("a process of another container is %s, want unknown: its id means nothing here", got)
	}
	now, long := time.Now(), time.Now().Add(-time.Hour)
	for _, tt := range []struct {
		lease pair.Lease
		want  pair.Verdict
	}{
		{pair.Lease{Owner: other, Beat: now}, pair.Alive}, {pair.Lease{Owner: other, Beat: long}, pair.Unknown},
		{pair.Lease{Owner: dead(), Beat: now}, pair.Dead}, {pair.Lease{Owner: self, Beat: long}, pair.Alive},
	} {
		if got := tt.lease.OwnerAlive(); got != tt.want {
			t.Errorf("owner %+v, last heard of %s ago: %s, want %s", tt.lease.Owner, time.Since(tt.lease.Beat).Round(time.Second), got, tt.want)
		}
	}
	if self.Boot != "" {
		rebooted := self
		rebooted.Boot = "another"
		if got := rebooted.Check(); got != pair.Dead {
			t.Errorf("a process of an earlier boot is %s", got)
		}
		namesake := rebooted
		namesake.Machine = "another"
		if got := namesake.Check(); self.Machine != "" && got != pair.Unknown {
			t.Errorf("a process of another machine of our name is %s, want unknown: it must not be pruned from here", got)
		}
	}
}

func TestUnwindGoesOnAndStaysInTime(t *testing.T) {
	var s pair.Stack
	var order []string
	s.Push("first", func(context.Context) error { order = append(order, "first"); return nil })
	stuck, broken := true, true
	s.Push("stuck", func(ctx context.Context) error {
		if !stuck {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	s.Push("broken", func(context.Context) error {
		order = append(order, "broken")
		if broken {
			return errors.New("no")
		}
		return nil
	})
	err := s.Unwind(t.Context(), 50*time.Millisecond, time.Minute)
	stuck, broken = false, false
	if err == nil || !strings.Contains(err.Error(), "undo broken") || !strings.Contains(err.Error(), "undo stuck") {
		t.Errorf("Unwind: %v; want both failures by name", err)
	}
	if !slices.Equal(order, []string{"broken", "first"}) {
		t.Errorf("order %v, want newest first and all of them", order)
	}
	if err := s.Unwind(t.Context(), time.Second, time.Second); err != nil {
		t.Errorf("second Unwind: %v", err)
	}
	if !slices.Equal(order, []string{"broken", "first", "broken"}) {
		t.Errorf("order %v, want a second try of what failed and of nothing else", order)
	}
}

// Every record is lost, the engine is gone, a closed run has something left: prune works from what there is.
func TestLeftoversOfEveryKind(t *testing.T) {
	store := pair.NewStore(t.TempDir())
	noRecord, closed, orphan := pair.RunID("222222222222"), pair.RunID("333333333333"), pair.RunID("444444444444")
	e := &engine{boxes: []string{"not-ours", noRecord.Name(pair.RoleAgent)}, secrets: []sbx.Secret{
		{Sandbox: noRecord.Name(pair.RoleGitHub), Name: "github"}, {Sandbox: closed.Name(pair.RoleAgent), Name: "github"},
		{Name: "github"}, {Sandbox: "not-ours", Name: "github"},
	}, rules: []sbx.Rule{{ID: "1"}, {ID: "2", Sandbox: closed.Name(pair.RoleAgent)}, {ID: "3", Sandbox: "not-ours"}}}
	for _, run := range []pair.RunID{closed, orphan} {
		l := lease(run, dead())
		p, err := pair.Acquire(&engine{}, store, l)
		if err != nil {
			t.Fatal(err)
		}
		if run == closed {
			if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	ref := pair.EngineRef{Kind: "sbx", Path: "/opt/sbx"}
	found, err := pair.FindLeftovers(t.Context(), e, store, ref)
	if err != nil || len(found) != 3 || found[0].Secrets != 1 || len(found[0].Sandboxes) != 1 || found[1].Secrets != 1 || found[1].Rules != 1 {
		t.Fatalf("leftovers %+v, %v", found, err)
	}
	gone := &engine{listErr: sbx.ErrNotInstalled}
	orphans, err := pair.FindLeftovers(t.Context(), gone, store, ref)
	if err != nil || len(orphans) != 1 || orphans[0].Run != orphan || !orphans[0].RecordOnly || !strings.Contains(orphans[0].Reason, "/opt/sbx") {
		t.Fatalf("with the engine gone: %+v, %v", orphans, err)
	}
	if err := pair.Prune(t.Context(), gone, store, orphans, nil); err != nil {
		t.Fatal(err)
	}
	if l, _ := store.Load(orphan); l.State != pair.Closed || l.Outcome != "orphaned, engine gone" {
		t.Errorf("the orphan's lease: %+v", l)
	}
	if err := pair.Prune(t.Context(), e, store, found, nil); err != nil {
		t.Fatal(err)
	}
	if len(e.boxes) != 1 || len(e.secrets) != 2 || len(e.rules) != 2 {
		t.Errorf("left %v, %v, %v; want what is not ours, all of it", e.boxes, e.secrets, e.rules)
	}
	if found, err := pair.FindLeftovers(t.Context(), e, store, ref); err != nil || len(found) != 0 {
		t.Errorf("after prune: %+v, %v", found, err)
	}
}

// A record that a later version wrote, or that is torn, keeps its pair safe: it is neither closed nor lost.
func TestLeaseThatCannotBeRead(t *testing.T) {
	store := pair.NewStore(t.TempDir())
	l := lease(pair.NewRunID(time.Now()), dead())
	l.State = "paused"
	if err := store.Create(l); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"{", "{}", strings.Repeat(" ", 2<<20), `{"run":"` + string(l.Run) + `","state":"paused"}`, ""} {
		if err := os.WriteFile(filepath.Join(store.Dir(l.Run), "lease.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := store.Load(l.Run); err == nil || errors.Is(err, pair.ErrNoLease) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if text == "" { // nobody writes into it: it is not waited for
			path := filepath.Join(store.Dir(l.Run), "lease.json")
			if err := errors.Join(os.Remove(path), os.Symlink("/dev/zero", path)); err != nil {
				t.Fatal(err)
			}
		}
		unrecorded := pair.NewRunID(time.Now())
		e := &engine{boxes: append(l.Run.Names(), unrecorded.Name(pair.RoleGitHub))}
		if found, err := pair.FindLeftovers(t.Context(), e, store, l.Engine); !errors.Is(err, pair.ErrUnreadable) || len(found) != 1 || found[0].Run != unrecorded {
			t.Errorf("%q: prune would remove %+v, %v; want that of %s alone", text, found, err, unrecorded)
		}
	}
}

// asked is an engine in which something happens when its sandboxes are listed.
type asked struct {
	*engine
	meanwhile func()
}

func (a asked) List(ctx context.Context) ([]sbx.Sandbox, error) {
	a.meanwhile()
	return a.engine.List(ctx)
}

// What a prune or a down has seen may be another's by the time that it acts: a person thinks before a yes.
func TestTakingDownLooksAgain(t *testing.T) {
	ref := pair.EngineRef{Kind: pair.EngineSbx}
	set := func(t *testing.T, owner pair.Owner) (*engine, *pair.Store, pair.Lease) {
		store := pair.NewStore(t.TempDir())
		l := lease(pair.NewRunID(time.Now()), owner)
		l.State, l.Sandboxes = pair.Open, l.Run.Names()
		if err := store.Create(l); err != nil {
			t.Fatal(err)
		}
		return &engine{boxes: l.Run.Names()}, store, l
	}
	t.Run("resumed before the yes", func(t *testing.T) {
		e, store, l := set(t, dead())
		found, err := pair.FindLeftovers(t.Context(), e, store, ref)
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		p, err := pair.Retake(t.Context(), e, store, l.Run, ref, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release(t.Context(), "", time.Minute)
		e.boxes = l.Run.Names()
		if err := pair.Prune(t.Context(), e, store, found, nil); err != nil {
			t.Error(err)
		}
		if err := pair.TakeDown(t.Context(), e, store, l, time.Minute, false, nil); !errors.Is(err, pair.ErrOwned) {
			t.Errorf("down: %v", err)
		}
		if now, err := store.Load(l.Run); err != nil || now.State != pair.Open || len(e.boxes) != 2 {
			t.Errorf("the resumed run has %q, its lease is %s, %v", e.boxes, now.State, err)
		}
	})
	t.Run("begun while the engine was asked", func(t *testing.T) {
		e, store, _ := set(t, pair.Self())
		e.boxes = nil
		begins := asked{e, func() {
			l := lease(pair.NewRunID(time.Now()), pair.Self())
			l.State, l.Sandboxes = pair.Open, l.Run.Names()
			if err := store.Create(l); err != nil {
				t.Fatal(err)
			}
			e.boxes = l.Run.Names()
		}}
		if found, err := pair.FindLeftovers(t.Context(), begins, store, ref); err != nil || len(found) != 0 {
			t.Errorf("a living run is taken for a leftover: %+v, %v", found, err)
		}
	})
	t.Run("two at once", func(t *testing.T) {
		e, store, l := set(t, dead())
		found, err := pair.FindLeftovers(t.Context(), e, store, ref)
		if err != nil {
			t.Fatal(err)
		}
		err = pair.Several([]bool{true, false, true, false}, func(down bool) error {
			if down {
				return pair.TakeDown(t.Context(), e, store, l, time.Minute, false, nil)
			}
			return pair.Prune(t.Context(), e, store, found, nil)
		})
		if now, _ := store.Load(l.Run); err != nil || now.State != pair.Closed || len(e.boxes) != 0 {
			t.Errorf("%v; left %q, the lease is %s", err, e.boxes, now.State)
		}
	})
}

// A run whose process is gone is taken over under its own names; one that is somebody's is not.
func TestRetake(t *testing.T) {
	now := pair.EngineRef{Kind: pair.EngineLocal, Version: "0.47"}
	gone := pair.Self()
	gone.PID, gone.Start = 1<<22+1, "never"
	for name, tt := range map[string]struct {
		lease pair.Lease
		want  error
	}{
		"dead":            {pair.Lease{State: pair.Open, Owner: gone, Engine: now}, nil},
		"closed":          {pair.Lease{State: pair.Closed, Owner: pair.Self(), Engine: now, Outcome: "cancelled"}, nil},
		"alive":           {pair.Lease{State: pair.Open, Owner: pair.Self(), Engine: now}, pair.ErrOwned},
		"kept":            {pair.Lease{State: pair.Open, Owner: gone, Engine: now, Kept: true}, pair.ErrOwned},
		"another engine":  {pair.Lease{State: pair.Open, Owner: gone, Engine: pair.EngineRef{Kind: pair.EngineSbx}}, pair.ErrOwned},
		"cannot be freed": {pair.Lease{State: pair.Open, Owner: gone, Engine: now}, pair.ErrLeft},
	} {
		t.Run(name, func(t *testing.T) {
			store := pair.NewStore(t.TempDir())
			run := pair.NewRunID(time.Now())
			tt.lease.Run, tt.lease.Created = run, time.Now().UTC()
			if err := store.Create(tt.lease); err != nil {
				t.Fatal(err)
			}
			e := &engine{boxes: append([]string{"other"}, run.Names()...)}
			if name == "cannot be freed" {
				e.removeErr = sbx.ErrDaemon
			}
			p, err := pair.Retake(t.Context(), e, store, run, now, 5*time.Second)
			if !errors.Is(err, tt.want) {
				t.Fatalf("%v, want %v", err, tt.want)
			}
			l, loadErr := store.Load(run)
			if loadErr != nil {
				t.Fatal(loadErr)
			}
			if err != nil {
				if l.State != tt.lease.State || l.Owner != tt.lease.Owner {
					t.Errorf("the lease is not as it was: %+v", l)
				}
				return
			}
			if l.State != pair.Open || l.Owner != pair.Self() || l.Outcome != "" || !slices.Equal(e.boxes, []string{"other"}) {
				t.Errorf("lease %+v, boxes %q", l, e.boxes)
			}
			if _, err := pair.Retake(t.Context(), e, store, run, now, time.Second); !errors.Is(err, pair.ErrOwned) {
				t.Errorf("taken twice: %v", err)
			}
			if _, err := p.Release(t.Context(), "delivered", 5*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is outside of the engine goes before the lease is closed: whoever is killed in between is taken up again.
func TestLastGoesBeforeTheLeaseIsClosed(t *testing.T) {
	for name, end := range map[string]func(e *engine, store *pair.Store, l pair.Lease, last func() error) error{
		"release": func(e *engine, store *pair.Store, l pair.Lease, last func() error) error {
			p := pair.Attach(e, store, l)
			p.Last = last
			_, err := p.Release(t.Context(), "done", time.Minute)
			return err
		},
		"down": func(e *engine, store *pair.Store, l pair.Lease, last func() error) error {
			return pair.TakeDown(t.Context(), e, store, l, time.Minute, false, last)
		},
		"prune": func(e *engine, store *pair.Store, l pair.Lease, last func() error) error {
			found, err := pair.FindLeftovers(t.Context(), e, store, l.Engine)
			if err != nil || len(found) != 1 {
				t.Fatalf("%+v, %v", found, err)
			}
			return pair.Prune(t.Context(), e, store, found, func(pair.RunID) error { return last() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := pair.NewStore(t.TempDir())
			l := lease(pair.NewRunID(time.Now()), dead())
			l.State, l.Sandboxes = pair.Open, l.Run.Names()
			if err := store.Create(l); err != nil {
				t.Fatal(err)
			}
			e := &engine{boxes: l.Run.Names()}
			fails := errors.New("the folder stays")
			if err := end(e, store, l, func() error { return fails }); !errors.Is(err, pair.ErrLeft) || !errors.Is(err, fails) {
				t.Errorf("with a folder that stays: %v", err)
			}
			if now, err := store.Load(l.Run); err != nil || now.State != pair.Open || len(e.boxes) != 0 {
				t.Errorf("lease %+v, %v; sandboxes %v", now, err, e.boxes)
			}
			called := 0
			if err := end(e, store, l, func() error { called++; return nil }); err != nil || called != 1 {
				t.Errorf("once more: %v, called %d times", err, called)
			}
			if now, err := store.Load(l.Run); err != nil || now.State != pair.Closed {
				t.Errorf("lease %+v, %v", now, err)
			}
		})
	}
}
