//go:build linux

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/doctor"
	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
)

func examine(t *testing.T, s *stage.Stage, code int, args ...string) doctor.Report {
	t.Helper()
	got := sbxpair(t, s, append([]string{"doctor", "--json", "-C", s.Work}, args...)...)
	got.want(t, code)
	for _, token := range s.Tokens {
		if strings.Contains(got.stdout+got.stderr, token.Reveal()) {
			t.Error("a token is printed")
		}
	}
	var r doctor.Report
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("%v\n%s", err, got.stdout)
	}
	return r
}

func deepChecks(r doctor.Report) (list []doctor.Check) {
	for _, about := range doctor.Catalogue() {
		if c, found := r.Check(about.ID); found && about.Deep {
			list = append(list, c)
		}
	}
	return list
}

// A deep examination on the real engine: every question gets its answer, the answers are remembered, and nothing is left
// (the stage looks).
func TestDoctorDeep(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	first := examine(t, s, 0, "--deep", "--repo", stage.FullName)
	asked := 0
	for _, about := range doctor.Catalogue() {
		c, found := first.Check(about.ID)
		switch {
		case !found && about.Deep:
			t.Errorf("%s was not asked", about.ID)
		case found && (c.Verdict == doctor.Unknown || c.Verdict == doctor.Bad):
			t.Errorf("%s is %s: %s", c.ID, c.Verdict, c.Detail)
		case found && c.Verdict == doctor.Warn && c.ID != "trust.node" && !strings.HasPrefix(c.ID, "host."):
			t.Errorf("%s is %s: %s", c.ID, c.Verdict, c.Detail)
		}
		if found && about.Deep {
			asked++
		}
	}
	if c, _ := first.Check("github.pulls"); !strings.Contains(c.Detail, "read and opened") {
		t.Errorf("github.pulls: %s", c.Detail)
	}
	if first.Depth != doctor.Deep || first.Engine.Kind != "sbx-local" {
		t.Errorf("a %s report about %+v", first.Depth, first.Engine)
	}
	arrived := len(s.Standin.Report().Tallies)
	second := examine(t, s, 0, "--deep", "--repo", stage.FullName)
	for _, c := range deepChecks(second) {
		if !c.Cached {
			t.Errorf("%s was asked again", c.ID)
		}
	}
	if n := len(deepChecks(second)); n != asked || second.Depth != doctor.Deep || len(s.Standin.Report().Tallies) != arrived {
		t.Errorf("%d checks remembered of %d", n, asked)
	}
	leases, err := filepath.Glob(filepath.Join(s.State, "sbxpair", "runs", "*"))
	if err != nil || len(leases) != 1 {
		t.Errorf("%d runs on record, %v; want the first examination's", len(leases), err)
	}
	if others := s.Standin.Report().Violations; len(others) > 0 {
		t.Errorf("requests that GitHub does not know: %q", others)
	}
}

// A token that the model's host refuses, and one that may not do what a run needs: red, in their own words.
func TestDoctorDeepFindsBadTokens(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{Config: map[string]any{"network": map[string]any{"rules": "hosts"}}}) // rules for paths close what the agent's token could do
	unknown := "github_pat_" + strings.Repeat("A", 22) + "_" + strings.Repeat("A", 59)
	s.Env = append(s.Env, "COPILOT_GITHUB_TOKEN="+s.Tokens[1].Reveal(), "GH_TOKEN="+unknown) // the repository's token on the agent's side
	r := examine(t, s, 1, "--deep", "--fresh", "--repo", stage.FullName)
	for id, text := range map[string]string{
		"agent.login": "is up and refuses the token", "agent.overreach": "may write to octo/slugify",
		"github.login": "refuses the token", "github.push": "would refuse a push",
	} {
		if c, _ := r.Check(id); c.Verdict != doctor.Bad || !strings.Contains(c.Detail, text) || c.Remedy == "" {
			t.Errorf("%s is %s: %s; try: %s", id, c.Verdict, c.Detail, c.Remedy)
		}
	}
	for _, id := range []string{"pair", "split", "egress", "trust.curl"} { // one fault does not hide the rest
		if c, _ := r.Check(id); c.Verdict != doctor.OK {
			t.Errorf("%s is %s: %s", id, c.Verdict, c.Detail)
		}
	}
}

// SIGINT in the middle: the scratch pair goes, and the exit code says so. After SIGKILL prune finds it.
func TestDoctorInterrupted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args   []string
		signal syscall.Signal
	}{
		"deep":        {[]string{"doctor", "--deep", "--repo", stage.FullName}, syscall.SIGINT},
		"conformance": {[]string{"doctor", "--conformance"}, syscall.SIGTERM},
		"killed":      {[]string{"doctor", "--deep", "--repo", stage.FullName}, syscall.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, stage.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd, stderr, ended := start(ctx, t, s, append([]string{"-C", s.Work}, tt.args...)...)
			if err := awaitSandbox(ctx, s.State, ended); err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			cmd.Process.Signal(tt.signal)
			<-ended
			if tt.signal == syscall.SIGKILL {
				sbxpair(t, s, "doctor", "-C", s.Work).want(t, 0, "warn", "leftovers.pairs", "sbxpair prune")
				sbxpair(t, s, "doctor", "-C", s.Work, "--fix", "--force").want(t, 0, "fixed leftovers.pairs")
				return
			}
			if want, code := 128+int(tt.signal), cmd.ProcessState.ExitCode(); code != want {
				t.Errorf("exit code %d, want %d\n%s", code, want, stderr.String())
			}
		})
	}
}

// awaitSandbox returns when an engine's state has a sandbox of ours.
func awaitSandbox(ctx context.Context, state string, ended <-chan error) error {
	return await(ctx, "a sandbox", ended, func() bool {
		found, _ := filepath.Glob(filepath.Join(state, "sbx-local*", "sandboxes", "sbxpair-*")) // the pattern is well formed
		return len(found) > 0
	})
}

// The suite through the verb: in a state of its own, under a lease, recorded, and what was recorded becomes fixtures.
func TestDoctorConformance(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	calls, out := filepath.Join(s.Dir, "calls"), filepath.Join(s.Dir, "fixtures")
	s.Env = append(s.Env, "SBXPAIR_RECORD="+calls)
	got := sbxpair(t, s, "doctor", "--conformance", "--json")
	got.want(t, 0)
	var table doctor.Conformance
	if err := json.Unmarshal([]byte(got.stdout), &table); err != nil {
		t.Fatal(err)
	}
	if table.Count(conformance.Same) < 100 || table.Count(conformance.Differs) != 0 || table.Count(conformance.Unknown) != 0 {
		for _, r := range table.Results {
			if r.Verdict != conformance.Same && r.Verdict != conformance.Known {
				t.Errorf("%+v", r)
			}
		}
	}
	sbxpair(t, s, "ls", "--all").want(t, 0, "conformance", "closed")
	if _, err := os.Stat(filepath.Join(s.State, "sbx-local-"+doctor.ConformanceState)); err != nil {
		t.Errorf("no state of its own: %v", err)
	}
	got = sbxpair(t, s, "doctor", "--import", calls, "--out", out, "--json")
	got.want(t, 0)
	var done doctor.Imported
	if err := json.Unmarshal([]byte(got.stdout), &done); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"version-local-0.47.0.json", "ls-local-0.47.0.json", "error-create-local-0.47.0.txt", "policy-check-local-0.47.0.json", "exec-launch-failure-stdout-local-0.47.0.txt"} {
		if !slices.ContainsFunc(done.Files, func(f string) bool {
			return f == want || strings.HasPrefix(f, strings.TrimSuffix(want, filepath.Ext(want)))
		}) {
			t.Errorf("%s is not among %v", want, done.Files)
		}
	}
	for _, name := range done.Files {
		text, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), s.Dir) || strings.Contains(string(text), "sbxpair-"+filepath.Base(s.Dir)) {
			t.Errorf("%s names a folder of this machine: %s", name, text)
		}
	}
}
