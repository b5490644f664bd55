package provision_test

import (
	"errors"
	"os"
	"strings"
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
			if err != nil || len(recorded) != 4 {
				t.Fatalf("on record: %v, %v", recorded, err)
			}
			if last, ok := recorded[3].(events.Rotated); !ok || !last.Removed {
				t.Errorf("the last change on record: %+v", recorded[3])
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
			if want := map[provision.Strategy]int{provision.Service: 2, provision.PlainEnv: 2}[strategy]; given != want {
				t.Errorf("the new value went in by standard input %d times, want %d", given, want)
			}
		})
	}
}
