//go:build linux

package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/sbxpair/sbxpair/doctor"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
)

func examine(t *testing.T, s *stage.Stage, code int, args ...string) doctor.Report {
	t.Helper()
	got := sbxpair(t, s, append([]string{"doctor", "--json"}, args...)...)
	got.want(t, code)
	var r doctor.Report
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("%v\n%s", err, got.stdout)
	}
	if os.Getenv("DUMP") != "" {
		t.Log(got.stdout)
	}
	return r
}

// A deep examination on the real engine: every question gets an answer, and nothing is left (the stage looks).
func TestDoctorDeep(t *testing.T) {
	s := open(t, stage.Options{})
	r := examine(t, s, 0, "--deep", "--repo", stage.FullName)
	for _, c := range r.Checks {
		if c.Verdict == doctor.Unknown || c.Verdict == doctor.Bad {
			t.Errorf("%s is %s: %s", c.ID, c.Verdict, c.Detail)
		}
	}
}
