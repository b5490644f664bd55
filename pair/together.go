package pair

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sbxpair/sbxpair/sbx"
)

// Together returns engine for several pairs that are taken down at the same time: what each wants to read is the same, so
// those that ask while a read is under way get their answer from the next one. Never from one that began before they
// asked, which may not know of their change.
func Together(engine Engine) Engine { return &together{Engine: engine} }

type together struct {
	Engine
	boxes   shared[[]sbx.Sandbox]
	secrets shared[[]sbx.Secret]
	rules   shared[[]sbx.Rule]
}

func (t *together) List(ctx context.Context) ([]sbx.Sandbox, error) {
	return t.boxes.ask(ctx, t.Engine.List)
}

func (t *together) SecretList(ctx context.Context) ([]sbx.Secret, error) {
	return t.secrets.ask(ctx, t.Engine.SecretList)
}

func (t *together) PolicyList(ctx context.Context, sandbox string) ([]sbx.Rule, error) {
	if sandbox != "" {
		return t.Engine.PolicyList(ctx, sandbox)
	}
	return t.rules.ask(ctx, func(ctx context.Context) ([]sbx.Rule, error) { return t.Engine.PolicyList(ctx, "") })
}

func (t *together) VerifyRemoved(ctx context.Context, names ...string) error {
	list, err := t.List(ctx)
	if err != nil {
		return err
	}
	if len(list) > 0 && !slices.ContainsFunc(list, func(box sbx.Sandbox) bool { return slices.Contains(names, box.Name) }) {
		return nil
	}
	return t.Engine.VerifyRemoved(ctx, names...) // which has the words for one that is there, and doubts an empty listing
}

// shared is one question that many ask.
type shared[T any] struct {
	mu        sync.Mutex
	now, next *answer[T] // under way; what those who ask meanwhile wait for
}

type answer[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// errUnanswered is the answer of a read that panicked: nothing read must not look like nothing there.
var errUnanswered = errors.New("the read did not end")

// ask returns the answer of a read that begins after the call. The first of those who wait makes it, with its own deadline;
// callers must not change the value.
func (s *shared[T]) ask(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	a, before := s.next, s.now
	first := a == nil
	if first {
		a = &answer[T]{done: make(chan struct{}), err: errUnanswered}
		s.next = a
	}
	s.mu.Unlock()
	if !first {
		select {
		case <-a.done:
			return a.value, a.err
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
	defer close(a.done)
	if before != nil {
		select {
		case <-before.done:
		case <-ctx.Done(): // the read fails for the same reason
		}
	}
	s.mu.Lock()
	s.now, s.next = a, nil
	s.mu.Unlock()
	a.value, a.err = read(ctx)
	return a.value, a.err
}
