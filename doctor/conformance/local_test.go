//go:build linux

package conformance_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/sbx"
)

// TestLocal compares sbx-local with sbx. What differs has to be explained, and what is explained has to differ still.
func TestLocal(t *testing.T) {
	binary := os.Getenv("SBX_LOCAL_TEST_BINARY") // as the engine's own tests take it
	if binary == "" {
		var err error
		if binary, err = filepath.Abs(filepath.Join("..", "..", "bin", "sbx-local")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(binary); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("%v: make build makes it", err)
	}
	state := filepath.Join(t.TempDir(), "state")
	engine := sbx.Exec{Path: binary, Env: append(sbx.Environ(os.Environ()), "SBX_LOCAL_STATE="+state)}
	t.Cleanup(func() { clean(t, engine, state) })
	r := report(t, conformance.Options{Runner: engine, Alone: true})
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

// clean takes the state down; a process that stays behind fails the test.
func clean(t *testing.T, engine sbx.Exec, state string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	for _, args := range [][]string{{"rm", "--force", "--all"}, {"daemon", "stop"}} {
		if res, err := engine.Run(ctx, sbx.Cmd{Args: args}); err != nil || res.Code != 0 {
			t.Logf("clean up: %v: %v %s", args, err, res.Stderr) // the daemon ends by itself, too
		}
	}
	for len(processes(state)) > 0 {
		select {
		case <-ctx.Done():
			t.Errorf("left running: %q", processes(state))
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// processes lists the command lines that name the folder.
func processes(dir string) (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(dir)) {
			found = append(found, string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
		}
	}
	return found
}
