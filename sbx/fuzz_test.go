package sbx_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

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

// freeText names the fields that hold text for people, which may be anything that a terminal can show.
var freeText = []string{
	"Check.Name", "Check.Message", "Check.Detail", "Check.Hint", "LogEntry.Rule", "LogEntry.Reason", "PolicyVerdict.Rule", "PolicyVerdict.Reason",
	"Rule.Name", "Rule.Policy", "Sandbox.RawStatus", "Sandbox.Agent", "Sandbox.Workspaces", "Setting.Description", "Setting.Source",
	"Setting.Value", "Setting.Default", "Inspection.Agent", "Inspection.Image", "Inspection.Workspace", "InspectionSecret.Source",
	"DaemonState.Status", "DaemonState.Socket", "DaemonState.Logs", "Version.EngineVersion", "Version.Isolation", "Version.ServerState",
	"Semver.Raw", "Semver.Pre", "Secret.Sandbox", "Sandbox.Status", "Inspection.State",
}

// checkStrings looks at every string in v. Those that are names, ids or addresses must be one word that is no flag;
// text for people must not act on a terminal.
func checkStrings(t *testing.T, v reflect.Value, where string) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			checkStrings(t, v.Field(i), v.Type().Name()+"."+v.Type().Field(i).Name)
		}
	case reflect.Slice:
		for i := range v.Len() {
			checkStrings(t, v.Index(i), where)
		}
	case reflect.String:
		s := v.String()
		free := slices.Contains(freeText, where)
		if where == "Semver.Raw" || where == "Semver.Pre" || where == "Version.ServerState" {
			return // the engine's own spelling; shown quoted or not at all
		}
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) && where != "Inspection.Image" && where != "Inspection.Workspace" {
			t.Errorf("%s has control characters: %q", where, s)
		}
		if !free && s != "" && (s[0] == '-' || strings.ContainsAny(s, " \t\r\n\x00\x1b")) && where != "Version.Engine" {
			t.Errorf("%s reads as a flag, or is not one word: %q", where, s)
		}
	}
}

// fuzzParser holds what every parser promises for any input: no panic, nothing beside an error, no more rows than lines or
// braces, no name that is none, and an error that shows what was read and fits a screen.
func fuzzParser(f *testing.F, names ...string) {
	addFixtures(f)
	all := parsers()
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range names {
			got, err := all[name].parse(data)
			v := reflect.ValueOf(got)
			if err != nil {
				if !v.IsZero() {
					t.Errorf("%s: %v beside %v", name, got, err)
				}
				if text := err.Error(); len(text) > 2<<10 || strings.ContainsAny(text, "\x1b\x00\n") {
					t.Errorf("%s: error %.200q", name, text)
				}
				if !errors.Is(err, sbx.ErrMalformed) && !errors.Is(err, sbx.ErrForeignTool) {
					t.Errorf("%s: error %v", name, err)
				}
				continue
			}
			if v.Kind() == reflect.Slice {
				if v.IsNil() {
					t.Errorf("%s: nil for a listing", name)
				}
				if v.Len() > bytes.Count(data, []byte("\n"))+bytes.Count(data, []byte("{")) {
					t.Errorf("%s: %d rows out of nothing", name, v.Len())
				}
			}
			checkStrings(t, v, name)
		}
	})
}

func FuzzParseSandboxes(f *testing.F) { fuzzParser(f, "sandboxes") }
func FuzzParseSecrets(f *testing.F)   { fuzzParser(f, "secrets") }

func FuzzParseRules(f *testing.F) {
	f.Add([]byte("NAME                  TYPE      ORIGIN   DECISION   STATUS   RESOURCES\nai \x81-services here   network   local    allow\n"))
	f.Add([]byte("ERROR: failed\x93 to create sandbox\x00"))
	fuzzParser(f, "rules", "rule")
}

func FuzzParseVersion(f *testing.F) {
	f.Add([]byte("sbx version: dev"))
	f.Add([]byte("sbx version: v0.48.0-nightly.20261101+abc 0123"))
	fuzzParser(f, "version")
}

// FuzzParsers feeds the others; one target for all, since each costs its start.
func FuzzParsers(f *testing.F) {
	fuzzParser(f, "inspection", "ports", "verdict", "log", "diagnosis", "daemon", "templates", "settings")
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
