//go:build linux

package main

import (
	"encoding/json"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/demo/repo"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/fixtures/model"
	"github.com/sbxpair/sbxpair/gateway"
	"github.com/sbxpair/sbxpair/secrets"
)

// behindGateway is a stage whose agent uses a provider's models by way of the gateway; the provider is scripted.
func behindGateway(t *testing.T, env ...string) (s *stage.Stage, key string) {
	t.Helper()
	key = "sk-proj-" + strings.Repeat("canary", 8)
	provider := httptest.NewServer(model.New(model.Config{Token: secrets.New(key), Scripts: repo.Scripts()}))
	t.Cleanup(provider.Close)
	s = open(t, stage.Options{Config: map[string]any{"gateway": map[string]any{"enabled": true, "upstream": provider.URL}}})
	s.Env = append(s.Env, "SBXPAIR_AGENT_PROVIDER=openai", "SBXPAIR_AGENT_MODEL=claude-haiku-4.5", "SBXPAIR_PHASES=execute,verify", "OPENAI_API_KEY="+key)
	s.Env = append(s.Env, env...)
	return s, key
}

// A run whose model is behind the gateway: the provider's key stays on the host, the engine holds the run's own, and the
// budget is what the ledger says.
func TestRunThroughGateway(t *testing.T) {
	t.Parallel()
	s, key := behindGateway(t, "SBXPAIR_POOL_SIZE=1")
	fill := sbxpair(t, s, "pool", "fill")
	fill.want(t, 0, "booted ")
	// Prices of the user's own, in place of the table that comes along.
	own := filepath.Join(s.Dir, "prices.json")
	if err := os.WriteFile(own, []byte(`{"version":"ours","models":{"claude-haiku-4.5":{"input":1000,"cached":10,"output":100}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Env = append(s.Env, "SBXPAIR_PRICES="+own)
	got := sbxpair(t, s, runArgs(s)...)
	got.want(t, 0)
	sbxpair(t, s, "pool", "drain").want(t, 0)
	result := resultOf(t, got)
	if waited := strings.TrimSpace(strings.TrimPrefix(fill.stdout, "booted ")); string(result.Run) != waited {
		t.Errorf("the run is %s, the pair that waited %s", result.Run, waited)
	}
	if result.Spent.Input != 9300 || result.Spent.Output != 245 || result.Spent.Cached != 5000 || math.Abs(result.Spent.CostUSD-(4300*1000+5000*10+245*100)/1e6) > 1e-9 {
		t.Errorf("spent %+v", result.Spent)
	}
	ledger, err := os.ReadFile(filepath.Join(s.State, "sbxpair", "ledger.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for line := range strings.Lines(string(ledger)) {
		var e gateway.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Run != string(result.Run) {
			t.Errorf("%s: %v", line, err)
		}
		if e.Output > 0 {
			calls++
		}
	}
	if calls != 4 {
		t.Errorf("%d calls on the ledger:\n%s", calls, ledger)
	}
	err = filepath.WalkDir(s.State, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), key) {
			t.Errorf("the provider's key is in %s", path)
		}
		return err
	})
	if err != nil || strings.Contains(got.stdout+got.stderr, key) {
		t.Errorf("the key is printed, or %v", err)
	}
}

// A cap ends the run with its own code and says which; a pair that would stay without a model is refused; a model without a
// price is refused while there is a cap on money.
func TestGatewayCaps(t *testing.T) {
	t.Parallel()
	s, _ := behindGateway(t, "SBXPAIR_GATEWAY_BATCH=night", "SBXPAIR_GATEWAY_BATCHTOKENS=4000")
	sbxpair(t, s, runArgs(s)...).want(t, 7, "the batch's cap of 4000 tokens is reached: 4")
	sbxpair(t, s, append(runArgs(s), "--keep")...).want(t, 2, "leave out --keep")
	s.Env = append(s.Env, "SBXPAIR_AGENT_MODEL=some-model", "SBXPAIR_LIMITS_COST=1")
	sbxpair(t, s, runArgs(s)...).want(t, 2, "no price for some-model")
}

// A green deep report holds for a run behind the gateway, too.
func TestDoctorDeepThroughGateway(t *testing.T) {
	t.Parallel()
	s, _ := behindGateway(t)
	r := examine(t, s, 0, "--deep", "--repo", stage.FullName)
	if c, _ := r.Check("agent.login"); !strings.Contains(c.Detail, "host.docker.internal") {
		t.Errorf("%+v", c)
	}
}
