package engine_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine"
)

// Of several creates with one name one wins; what a dead create left is cleared by the next.
func TestCreateRaces(t *testing.T) {
	e, workspace := newEngine(t)
	const n = 4
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}})
			errs <- err
		}()
	}
	won := 0
	for range n {
		switch err := <-errs; {
		case err == nil:
			won++
		case !errors.Is(err, engine.ErrExists):
			t.Errorf("create: %v, want ErrExists", err)
		}
	}
	if won != 1 {
		t.Errorf("%d creates won, want 1", won)
	}
	if left := sandboxProcesses(e.State); len(left) == 0 {
		t.Error("the sandbox does not run")
	}
}

// A create that fails or is killed leaves nothing, or something that the next command clears.
func TestCreateInterrupted(t *testing.T) {
	e, workspace := newEngine(t)
	spec := engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}}
	empty := func() bool {
		left, _ := filepath.Glob(filepath.Join(e.State.Dir, "sandboxes", "*"))
		return len(left) == 0 && len(sandboxProcesses(e.State)) == 0
	}
	t.Run("error in the middle", func(t *testing.T) {
		failed := spec
		failed.Prepare = func(context.Context, engine.Record) error { return errors.New("no rule") }
		if _, err := e.Create(t.Context(), failed); err == nil || !empty() {
			t.Errorf("error %v, nothing left: %v", err, empty())
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		for _, after := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			_, err := e.Create(ctx, spec)
			cancel()
			if err == nil {
				err = e.Remove(t.Context(), "demo")
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v: %v, want context.DeadlineExceeded", after, err)
			}
			if !empty() {
				t.Fatalf("after %v something is left (%v)", after, err)
			}
		}
	})
	t.Run("killed", func(t *testing.T) {
		for _, after := range []time.Duration{30 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond} {
			if out, err := cli(t.Context(), e, "policy", "init", "deny-all").CombinedOutput(); err != nil && !strings.Contains(string(out), "already") {
				t.Fatalf("%v: %s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), after) // ends in SIGKILL
			cli(ctx, e, "create", "shell", "--name", "demo", workspace).Run()
			cancel()
			r, err := e.Create(t.Context(), spec)
			if errors.Is(err, engine.ErrExists) { // it had finished
				r, err = e.Get("demo")
			}
			if err != nil {
				t.Fatalf("create after a kill at %v: %v", after, err)
			}
			sh(t, e, r, "true")
			if err := e.Remove(t.Context(), "demo"); err != nil {
				t.Fatal(err)
			}
			if !empty() {
				t.Fatalf("killed after %v: something is left", after)
			}
		}
	})
}
