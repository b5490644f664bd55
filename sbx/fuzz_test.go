package sbx_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
)

// addFixtures seeds a fuzz target with every fixture: also those of other verbs are input that a parser may meet.
func addFixtures(f *testing.F) {
	entries, err := os.ReadDir(fixtureDir)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(fixtureDir, e.Name()))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		if len(b) > 40 {
			f.Add(b[:len(b)/2])
		}
	}
}

// readsAsFlag reports whether s would be read as a flag, or is not one word.
func readsAsFlag(s string) bool {
	return s == "" || strings.HasPrefix(s, "-") || strings.ContainsAny(s, " \t\r\n\x00\x1b")
}

func FuzzParseSandboxes(f *testing.F) {
	addFixtures(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := sbx.ParseSandboxes(data)
		if err != nil && list != nil {
			t.Error("a result beside an error")
		}
		for _, s := range list {
			if readsAsFlag(s.Name) || strings.Contains(s.Name, "/") {
				t.Errorf("name %q", s.Name)
			}
			if s.Status != sbx.StatusRunning && s.Status != sbx.StatusStopped && s.Status != sbx.StatusUnknown {
				t.Errorf("status %q", s.Status)
			}
		}
		if len(list) > strings.Count(string(data), "\n")+strings.Count(string(data), "{") {
			t.Errorf("%d rows out of nothing", len(list))
		}
	})
}

func FuzzParseRules(f *testing.F) {
	addFixtures(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		rules, err := sbx.ParseRules(data)
		if err != nil && rules != nil {
			t.Error("a result beside an error")
		}
		for _, r := range rules {
			if r.Decision != sbx.Allow && r.Decision != sbx.Deny || r.Sandbox != "" && readsAsFlag(r.Sandbox) {
				t.Errorf("rule %+v", r)
			}
		}
	})
}

func FuzzParseSecrets(f *testing.F) {
	addFixtures(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := sbx.ParseSecrets(data)
		if err != nil && list != nil {
			t.Error("a result beside an error")
		}
		for _, s := range list {
			if strings.HasPrefix(s.Name, "-") || strings.HasPrefix(s.Placeholder, "-") || s.Sandbox != "" && s.Sandbox != sbx.HostScope && readsAsFlag(s.Sandbox) {
				t.Errorf("secret %+v", s)
			}
		}
	})
}

func FuzzParseVersion(f *testing.F) {
	addFixtures(f)
	f.Add([]byte("sbx version: dev"))
	f.Add([]byte("sbx version: v0.48.0-nightly.20261101+abc 0123"))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := sbx.ParseVersion(data)
		if err == nil && v.Engine == "" || err != nil && v.Engine != "" {
			t.Errorf("%+v, %v", v, err)
		}
		_ = v.String() + v.Client.String()
		v.Has(sbx.FeatureMountless)
	})
}

// FuzzParsers feeds the others: none may panic, or give a result beside an error.
func FuzzParsers(f *testing.F) {
	addFixtures(f)
	all := parsers()
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, p := range all {
			got, err := p.parse(data)
			if err != nil && asJSON(t, got) != asJSON(t, zeroOf(name)) {
				t.Errorf("%s: %v beside %v", name, got, err)
			}
		}
	})
}

func zeroOf(name string) any {
	switch name {
	case "inspection":
		return sbx.Inspection{}
	case "version":
		return sbx.Version{}
	case "rule":
		return sbx.Rule{}
	case "verdict":
		return sbx.PolicyVerdict{}
	case "log":
		return sbx.PolicyLog{}
	case "diagnosis":
		return sbx.Diagnosis{}
	case "daemon":
		return sbx.DaemonState{}
	}
	return []int(nil)
}

// FuzzErrorText feeds the reader of the engine's prose: whatever it says, there is an error that shows it.
func FuzzErrorText(f *testing.F) {
	addFixtures(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := sbx.New("", v47(), canned{"ls": says("", string(data), 1)}.runner(t))
		_, err := c.List(t.Context())
		if err == nil || len(err.Error()) > 16<<10 || strings.ContainsAny(err.Error(), "\x1b\x00") {
			t.Errorf("error %.200q", err)
		}
	})
}
