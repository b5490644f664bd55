package conformance_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/sbx"
)

var update = flag.Bool("update", false, "write the generated section of docs/reference/sbx-local.md")

func report(t *testing.T, o conformance.Options) conformance.Report {
	t.Helper()
	o.Dir = filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	o.First, o.Second = "sbxpair-conf-one", "sbxpair-conf-two"
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	r, err := conformance.Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range r.Results {
		if res.Verdict != conformance.Same {
			t.Logf("%-8s %-24s want: %s; got: %s %s", res.Verdict, res.ID, res.Want, res.Got, res.Reason)
		}
	}
	t.Logf("%s: %d same, %d known, %d differ, %d skipped, %d unknown in %s", r.Engine, r.Count(conformance.Same), r.Count(conformance.Known),
		r.Count(conformance.Differs), r.Count(conformance.Skipped), r.Count(conformance.Unknown), r.Took.Round(time.Millisecond))
	return r
}

// TestFake holds the fake to what can be asked without a sandbox: programs are tested with it.
func TestFake(t *testing.T) {
	env := []string{"FAKESBX_STATE=" + t.TempDir(), "FAKESBX_VERSION=0.47"}
	run := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
		var out, errOut bytes.Buffer
		stdin := c.Stdin
		if stdin == nil {
			stdin = strings.NewReader("")
		}
		code := fake.Run(c.Args, stdin, &out, &errOut, env)
		return sbx.Result{Stdout: out.Bytes(), Stderr: errOut.Bytes(), StdoutBytes: int64(out.Len()), Code: code}, nil
	})
	r := report(t, conformance.Options{Runner: run, ShapeOnly: true})
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}
