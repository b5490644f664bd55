//go:build linux

package conformance_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/engine/enginetest"
	"github.com/sbxpair/sbxpair/sbx"
)

// TestLocal compares sbx-local with sbx. What differs has to be explained, and what is explained has to differ still.
func TestLocal(t *testing.T) {
	binary, err := filepath.Abs(filepath.Join("..", "..", "bin", "sbx-local"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("%v: make build makes it", err)
	}
	state := enginetest.State(t, binary)
	env := append(sbx.Environ(os.Environ()), enginetest.Env(state))
	r := report(t, conformance.Options{Runner: sbx.Exec{Path: binary, Env: env}, Alone: true})
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	for _, d := range conformance.Differences(sbx.EngineLocal) {
		i := slices.IndexFunc(r.Results, func(res conformance.Result) bool { return res.ID == d.ID })
		if i < 0 || r.Results[i].Verdict == conformance.Same && !d.Sometimes {
			t.Errorf("%s is listed as different and is not", d.ID)
		}
	}
	for _, res := range r.Results {
		if res.Verdict == conformance.Unknown || res.Verdict == conformance.Skipped {
			t.Errorf("%s is %s: %s", res.ID, res.Verdict, res.Reason)
		}
	}
}
