package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// removeAll removes the named sandboxes, each by a call of its own at the same time, so that one that hangs does not
// keep the others. Then one read of each kind finds what is left of them, and that is removed as well: scoped rules go
// with their sandbox in every version of sbx, scoped secrets since 0.42. What is gone already is success.
func removeAll(ctx context.Context, engine Engine, names []string) error {
	err := Several(names, func(name string) error {
		return again(ctx, func(ctx context.Context) error { return engine.Remove(ctx, name) })
	})
	if err != nil {
		return err
	}
	for range 2 { // the second time finds nothing
		var gone error
		var left remains
		var wg sync.WaitGroup
		wg.Go(func() {
			gone = again(ctx, func(ctx context.Context) error { return engine.VerifyRemoved(ctx, names...) })
		})
		left, err = scoped(ctx, engine, func(box string) bool { return slices.Contains(names, box) })
		wg.Wait()
		if err := errors.Join(gone, err); err != nil {
			return err
		}
		if left.empty() {
			return nil
		}
		if err := left.remove(ctx, engine); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: secrets or rules of %v come back", sbx.ErrNotApplied, names)
}

// remains are secrets and rules that are scoped to sandboxes.
type remains struct {
	secrets []sbx.Secret
	rules   []sbx.Rule
}

func (r remains) empty() bool { return len(r.secrets) == 0 && len(r.rules) == 0 }

// scoped lists secrets and rules whose sandbox is one of ours.
func scoped(ctx context.Context, engine Engine, ours func(sandbox string) bool) (remains, error) {
	var found remains
	var secretErr, ruleErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		secretErr = again(ctx, func(ctx context.Context) (err error) { found.secrets, err = engine.SecretList(ctx); return err })
	})
	wg.Go(func() {
		ruleErr = again(ctx, func(ctx context.Context) (err error) { found.rules, err = engine.PolicyList(ctx, ""); return err })
	})
	wg.Wait()
	if errors.Is(ruleErr, sbx.ErrPolicyUninitialised) { // then nobody could add one
		found.rules, ruleErr = nil, nil
	}
	found.secrets = slices.DeleteFunc(slices.Clone(found.secrets), func(s sbx.Secret) bool { return !ours(s.Sandbox) })
	found.rules = slices.DeleteFunc(slices.Clone(found.rules), func(r sbx.Rule) bool {
		return !ours(r.Sandbox) || r.ID == "" || r.Source == "kit" || r.Source == "org" // those are not ours to remove
	})
	if secretErr != nil {
		secretErr = fmt.Errorf("check for secrets left: %w", secretErr)
	}
	if ruleErr != nil {
		ruleErr = fmt.Errorf("check for rules left: %w", ruleErr)
	}
	return found, errors.Join(secretErr, ruleErr)
}

func (r remains) remove(ctx context.Context, engine Engine) error {
	var errs []error
	for _, s := range r.secrets {
		errs = append(errs, again(ctx, func(ctx context.Context) error { return engine.SecretRemove(ctx, s) }))
	}
	for _, rule := range r.rules {
		errs = append(errs, again(ctx, func(ctx context.Context) error {
			err := engine.PolicyRemove(ctx, sbx.RuleRef{Sandbox: rule.Sandbox, ID: rule.ID})
			if errors.Is(err, sbx.ErrNotFound) {
				return nil
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// tries is how often a call of the clean-up is made.
const tries = 3

// again makes a call of the engine, and makes it again where a second one may succeed: the call was killed in the middle
// (a signal to our process group can hit the engine's command between its fork and its own group, and the very signal
// that starts a clean-up must not end it), it hung, or the daemon went away and the next call starts it. Each
// try gets its share of the time that ctx has left.
func again(ctx context.Context, call func(context.Context) error) error {
	var err error
	for left := tries; left > 0; left-- {
		tryCtx, cancel := ctx, context.CancelFunc(func() {})
		if deadline, ok := ctx.Deadline(); ok {
			tryCtx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		}
		err = call(tryCtx)
		cancel()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(tries-left) * pause):
		}
	}
	return err
}

// pause lies between two tries, times the number of tries before.
const pause = 200 * time.Millisecond

// passing reports whether the next call may not meet err. What a clean-up does can be done twice, so only errors that
// say why it will not help are final.
func passing(err error) bool {
	for _, final := range []error{sbx.ErrInvalid, sbx.ErrUnsupported, sbx.ErrNotInstalled, sbx.ErrNotSignedIn,
		sbx.ErrPolicyUninitialised, sbx.ErrNotApplied, context.Canceled} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}
