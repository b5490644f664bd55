package prices_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/prices"
)

func TestCost(t *testing.T) {
	table := prices.Builtin()
	for _, tt := range []struct {
		model string
		used  prices.Tokens
		want  float64 // US dollars; below zero: not known
	}{
		{"claude-haiku-4.5", prices.Tokens{Input: 1_000_000, Output: 1_000_000}, 6},
		{"claude-haiku-4-5-20251001", prices.Tokens{Input: 1_000_000, Cached: 1_000_000}, 0.1},
		{"anthropic/claude-haiku-4-5", prices.Tokens{Output: 100}, 0.0005},
		{"Claude-Sonnet-4.5", prices.Tokens{Input: 10, Cached: 20}, 10 * 0.3 / 1e6},                                       // more cached than there is: all of it
		{"claude-sonnet-4.5", prices.Tokens{Input: 1_000_000, Written: 600_000, Hour: 200_000}, 0.4*3 + 0.4*3.75 + 0.2*6}, // twice the price, for an hour
		{"gpt-5.4", prices.Tokens{Input: 1_000_000, Written: 9_000_000, Calls: 9}, 2.5},                                   // has no price of its own for it
		{"gpt-5.4", prices.Tokens{Input: 272_000}, 0.68},
		{"gpt-5.4-2026-03-05", prices.Tokens{Input: 272_001}, 272_001 * 5 / 1e6},
		{"gpt-5.4", prices.Tokens{Input: 500_000, Calls: 2}, 1.25}, // two calls, each below the mark
		{"models/gemini-3.1-pro-preview", prices.Tokens{Output: 1_000_000}, 12},
		{"gpt-5.4-turbo", prices.Tokens{Input: 1}, -1}, // a cousin's price is no price
		{"", prices.Tokens{Input: 1}, -1},
		{"gpt-5.4", prices.Tokens{}, 0},
	} {
		got, known := table.Cost(tt.model, tt.used)
		if known != (tt.want >= 0) || known && math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("%s %+v: %v, %v; want %v", tt.model, tt.used, got, known, tt.want)
		}
	}
}

func TestTables(t *testing.T) {
	for text, want := range map[string]string{
		`{"version":"x","models":{"a":{"input":1,"cached":0,"output":2}}}`:  "",
		`{"version":"x","models":{"a":{"input":-1}}}`:                       "negative",
		`{"version":"x","models":{"a":{"above":{"tokens":1,"output":-1}}}}`: "negative",
		`{"version":"x","models":{"a.b":{"input":1},"A-b":{"input":2}}}`:    "twice",
		`{"models":{"a":{"input":1}}}`:                                      "version",
		`{"version":"x"}`:                                                   "models",
		`{"version":"x","models":{"a":{"inptu":1}}}`:                        "inptu",
		`[`: "invalid",
		``:  "EOF",
		`{"version":"x","models":{"a":{"input":"one"}}}`: "input",
	} {
		path := filepath.Join(t.TempDir(), "prices.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		table, err := prices.Load(path)
		switch {
		case want == "":
			if usd, known := table.Cost("a", prices.Tokens{Output: 1e6}); err != nil || !known || usd != 2 {
				t.Errorf("%s: %v, %v, %v", text, usd, known, err)
			}
		case !errors.Is(err, prices.ErrInvalid) || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v; want an ErrInvalid that says %s", text, err, want)
		}
	}
	if _, err := prices.Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, prices.ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if table, err := prices.Load(""); err != nil || table.Version == "" {
		t.Errorf("built in: %q, %v", table.Version, err)
	}
}
