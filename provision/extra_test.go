package provision_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

// What the engine's own rules open or close beside ours is denied to the sandbox, or refused by name: nothing in between.
func TestRulesOfTheEngineThatWouldBreakTheSplit(t *testing.T) {
	for _, tt := range []struct {
		name    string
		preset  sbx.Preset
		hosts   bool   // no path rules
		allow   string // global
		deny    string // global
		listed  string // what a global allow is listed with, which our client would not make
		refused string // in the error
		denied  string // to the agent sandbox, by a rule of ours
		noted   string
	}{
		{name: "the preset opens everything", preset: "allow-all", refused: "default-allow-all"},
		{name: "the preset opens other hosts", preset: "balanced", denied: "registry.example.com:443"},
		{name: "a rule opens another host", allow: "**.example.org", denied: "**.example.org"},
		{name: "a rule opens git to the agent", hosts: true, allow: "github.com:443", denied: "github.com:443"},
		{name: "a rule opens git with every path", allow: "github.com:443", refused: "network.rules: hosts"},
		{name: "a rule opens every path", allow: "api.github.com", refused: "network.rules: hosts"},
		{name: "a rule opens more around the model", allow: "*.githubcopilot.com", noted: "*.githubcopilot.com"},
		{name: "a rule opens all of GitHub", allow: "**.github.com", refused: "every path"},
		{name: "a range of everything", allow: "**", refused: "covers everything"},
		{name: "the model is denied", deny: "api.githubcopilot.com", refused: "cannot do without"},
		{name: "another host is denied", deny: "example.net"},
		{name: "an allow that cannot be read", listed: "*", refused: "opens what cannot be read"},
		{name: "a URL", listed: "https://files.example.org/x", denied: "files.example.org"},
		{name: "a URL around what is meant by path", listed: "https://api.github.com", refused: "network.rules: hosts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "0.47", func(in *provision.Input) { in.Paths = !tt.hosts })
			if tt.preset != "" {
				if err := b.engine.PolicyReset(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := b.engine.PolicyInit(t.Context(), tt.preset); err != nil {
					t.Fatal(err)
				}
			}
			if tt.allow != "" {
				if _, err := b.engine.PolicyAllow(t.Context(), sbx.PolicyRule{Resources: []string{tt.allow}}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.deny != "" {
				if _, err := b.engine.PolicyDeny(t.Context(), sbx.PolicyRule{Resources: []string{tt.deny}}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.listed != "" { // a rule of the user's, edited in the engine's own file
				const planted = "planted.example.org"
				if _, err := b.engine.PolicyAllow(t.Context(), sbx.PolicyRule{Resources: []string{planted}}); err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(b.state, "state.json")
				text, err := os.ReadFile(file)
				if err == nil {
					err = os.WriteFile(file, bytes.ReplaceAll(text, []byte(planted), []byte(tt.listed)), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			p := b.acquire()
			report, err := provision.Apply(t.Context(), b.engine.Unverified(), p, b.plan, creds)
			if (tt.refused == "") != (err == nil) || err != nil && (!errors.Is(err, provision.ErrRefused) || !strings.Contains(err.Error(), tt.refused)) {
				t.Errorf("Apply: %v, want refused with %q", err, tt.refused)
			}
			rules, err := b.engine.PolicyList(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			var denied []string
			for _, r := range rules {
				if r.Sandbox == b.plan.Agent.Name && r.Decision == sbx.Deny {
					denied = append(denied, r.Resources...)
				}
			}
			if !slices.Contains(denied, "openrouter.ai") || tt.denied != "" && !slices.Contains(denied, tt.denied) {
				t.Errorf("denied to the agent sandbox: %v, want %s", denied, tt.denied)
			}
			if notes := strings.Join(report.Notes, "\n"); tt.noted != "" && !strings.Contains(notes, tt.noted) || tt.denied != "" && !strings.Contains(notes, tt.denied) {
				t.Errorf("notes %q", notes)
			}
			if _, err := p.Release(t.Context(), "done", time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
}
