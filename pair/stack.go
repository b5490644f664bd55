package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A Stack is a LIFO of undo steps, each with the name that a user would give it. The zero value is ready. It is safe
// for concurrent use.
type Stack struct {
	mu    sync.Mutex
	steps []step
}

type step struct {
	name string
	undo func(context.Context) error
}

// Push registers undo. Call it before the work that it undoes: a cancelled create may still have created.
// Undoing what is already gone must succeed.
func (s *Stack) Push(name string, undo func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step{name, undo})
}

// Unwind runs every step, newest first, whatever fails and even if ctx is cancelled. Each step gets at most each of its
// own, and all together at most whole; steps that get no time any more are reported as failed by name. What failed
// stays, for another Unwind.
func (s *Stack) Unwind(ctx context.Context, each, whole time.Duration) error {
	s.mu.Lock()
	steps := s.steps
	s.steps = nil
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), whole)
	defer cancel()
	var errs []error
	var failed []step
	for _, st := range slices.Backward(steps) {
		if err := ctx.Err(); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", st.name, err))
			failed = append(failed, st)
			continue
		}
		stepCtx, cancelStep := context.WithTimeout(ctx, each)
		if err := st.undo(stepCtx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", st.name, err))
			failed = append(failed, st)
		}
		cancelStep()
	}
	slices.Reverse(failed)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(failed, s.steps...)
	return errors.Join(errs...)
}
