package provision_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/secrets"
)

// TestCredentialsOfAPairInPlace replaces and removes credentials of a pair on the fake, whose insides answer as told.
func TestCredentialsOfAPairInPlace(t *testing.T) {
	fresh := secrets.New("github_pat_fresh_canary_of_another_length")
	for _, strategy := range []provision.Strategy{provision.Service, provision.Custom, provision.PlainEnv} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			v := newProving(t, func(in *provision.Input) { in.AgentStrategy = strategy })
			changes := provision.ChangesIn(v.store.Dir(v.plan.Run), v.plan.Run)
			say := func(own said) {
				if _, err := v.prove(map[string]said{"agent: own": own}, map[string]string{"agent: environ": "\n"}, false); own.status == 200 && err != nil {
					t.Fatal(err)
				}
			}
			say(said{status: 200, body: "{}"})
			done, err := changes.Rotate(t.Context(), v.engine, v.pair, v.plan, pair.RoleAgent, fresh)
			if err != nil || done.Got != "accepted" {
				t.Errorf("rotated: %+v, %v", done, err)
			}
			errs := make([]error, 3)
			var wg sync.WaitGroup
			for i := range errs { // as several processes would: one after the other
				wg.Go(func() { _, errs[i] = changes.Rotate(t.Context(), v.engine, v.pair, v.plan, pair.RoleAgent, fresh) })
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Errorf("rotated three times at once: %v", err)
			}
			t.Run("R053", func(t *testing.T) { // stored, reported as done, and the running sandbox goes on with the old one
				say(said{status: 401, body: `{"message":"Bad credentials"}`})
				_, err := changes.Rotate(t.Context(), v.engine, v.pair, v.plan, pair.RoleAgent, fresh)
				if !errors.Is(err, provision.ErrStale) || !strings.Contains(err.Error(), "make a new pair") || strings.Contains(err.Error(), fresh.Reveal()) {
					t.Errorf("a token that is refused after the change: %v", err)
				}
			})
			say(said{status: 200, body: "{}"})
			if _, err := changes.Withdraw(t.Context(), v.engine, v.pair, v.plan, pair.RoleAgent); !errors.Is(err, provision.ErrNotProven) {
				t.Errorf("a host that still takes it: %v", err)
			}
			say(said{status: 401, body: "{}"})
			if done, err := changes.Withdraw(t.Context(), v.engine, v.pair, v.plan, pair.RoleAgent); err != nil || !done.Removed {
				t.Errorf("removed: %+v, %v", done, err)
			}
			if err := changes.Rebind(t.Context(), v.engine, v.pair, v.plan, creds); err != nil { // what was taken out stays out
				t.Error(err)
			}
			list, err := v.engine.SecretList(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range list {
				if s.Sandbox == v.plan.Agent.Name {
					t.Errorf("still there: %+v", s)
				}
			}
			if _, err := os.Stat(v.pair.CredentialFile(pair.RoleAgent)); err == nil {
				t.Error("the file with the value is still there")
			}
			recorded, err := changes.Events()
			if err != nil || len(recorded) != 7 {
				t.Fatalf("on record: %v, %v", recorded, err)
			}
			if last, ok := recorded[6].(events.Rotated); !ok || !last.Removed {
				t.Errorf("the last change on record: %+v", recorded[6])
			}
			v.calls() // fails if a value is on a command line
			calls, err := fake.Calls(v.state)
			if err != nil {
				t.Fatal(err)
			}
			given := 0
			for _, c := range calls {
				if c.StdinBytes == len(fresh.Reveal()) {
					given++
				}
			}
			if want := map[provision.Strategy]int{provision.Service: 5, provision.PlainEnv: 5}[strategy]; given != want {
				t.Errorf("the new value went in by standard input %d times, want %d", given, want)
			}
		})
	}
}
