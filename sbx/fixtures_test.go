package sbx_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
)

var update = flag.Bool("update", false, "rewrite golden files")

const fixtureDir = "../fixtures/sbx"

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(fixtureDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parser names a parser and gives its result as something that can be written as JSON.
type parser struct {
	name  string
	parse func([]byte) (any, error)
}

func as[T any](name string, parse func([]byte) (T, error)) parser {
	return parser{name, func(b []byte) (any, error) { return parse(b) }}
}

func parsers() map[string]parser {
	all := []parser{
		as("sandboxes", sbx.ParseSandboxes), as("inspection", sbx.ParseInspection), as("version", sbx.ParseVersion),
		as("ports", sbx.ParsePorts), as("rules", sbx.ParseRules), as("rule", sbx.ParseRule), as("verdict", sbx.ParseVerdict),
		as("log", sbx.ParsePolicyLog), as("secrets", sbx.ParseSecrets), as("diagnosis", sbx.ParseDiagnosis),
		as("daemon", sbx.ParseDaemonState), as("templates", sbx.ParseTemplates), as("settings", sbx.ParseSettings),
	}
	m := map[string]parser{}
	for _, p := range all {
		m[p.name] = p
	}
	return m
}

// fixtureParser says which parser a fixture is for. The longest matching prefix counts.
func fixtureParser(name string) (parser string, malformed bool) {
	for _, m := range []struct {
		re, parser string
		malformed  bool
	}{
		{`^ls-quiet`, "sandboxes", true}, // no header: a list of names is not asked for
		{`^ls`, "sandboxes", false},
		{`^inspect`, "inspection", false},
		{`^version`, "version", false},
		{`^ports-publish`, "", false},
		{`^ports`, "ports", false},
		{`^policy-ls-0\.35(-governed|-include-inactive)?\.txt|^policy-ls-filesystem-0\.35`, "rules", true}, // counts, not rules
		{`^policy-ls`, "rules", false},
		{`^policy-inspect`, "rule", false},
		{`^policy-check`, "verdict", false},
		{`^policy-log`, "log", false},
		{`^secret-ls`, "secrets", false},
		{`^diagnose-github-issue`, "diagnosis", true},
		{`^diagnose`, "diagnosis", false},
		{`^daemon-status`, "daemon", false},
		{`^template-ls`, "templates", false},
		{`^settings-list`, "settings", false},
	} {
		if regexp.MustCompile(m.re).MatchString(name) {
			return m.parser, m.malformed
		}
	}
	return "", false
}

// fixtureNames lists the fixtures by the index beside them, with their status.
func fixtureIndex(t testing.TB) map[string]string {
	index := map[string]string{}
	for line := range strings.Lines(string(fixture(t, "README.md"))) {
		cells := strings.Split(line, "|")
		if len(cells) == 6 {
			index[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[4])
		}
	}
	delete(index, "File")
	delete(index, "---")
	return index
}

// TestFixtures parses every listing that was seen in public. What parses is pinned; a layout that was reconstructed has to
// parse, and is not pinned.
func TestFixtures(t *testing.T) {
	for name, status := range fixtureIndex(t) {
		which, malformed := fixtureParser(name)
		if which == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			got, err := parsers()[which].parse(fixture(t, name))
			if malformed {
				if !errors.Is(err, sbx.ErrMalformed) {
					t.Fatalf("error %v, want ErrMalformed", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if status != "reconstructed" {
				checkGolden(t, name, got)
			}
		})
	}
}

func checkGolden(t *testing.T, name string, got any) {
	t.Helper()
	data, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, '\n')
	file := filepath.Join("testdata", "golden", name+".golden")
	if *update {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, want) {
		t.Errorf("got:\n%s\nwant:\n%s", data, want)
	}
}

// TestFixtureIndex keeps the index complete, and each fixture in use: parsed, classified, or named here with the reason.
func TestFixtureIndex(t *testing.T) {
	index := fixtureIndex(t)
	entries, err := os.ReadDir(fixtureDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "README.md" && index[e.Name()] == "" {
			t.Errorf("%s is not in the index", e.Name())
		}
	}
	elsewhere := []string{
		`^blocked-`, `^env-inside`, `^daemon-log`, // what a sandbox or the daemon sees: for the engine's tests
		`^create-`, `^stop-`, `^rm-ok`, `^reset-ok`, `^prune-0\.47\.txt`, `^template-(rm|save)`, `^policy-rm`, `^policy-init`, `^daemon-(start|stop)`, // progress, not read
		`^mcp-`, `^setup-`, // verbs that are not driven
		`^login-already`,
		`^exec-`, `^policy-(allow|deny)-`, `^ports-publish`, `^secret-(set-custom|rm|import|no-keychain)`, `^prune-dry-run`, `^settings-get`, `^warn-`, // read by methods: client_test.go
	}
	for name := range index {
		if _, err := os.Stat(filepath.Join(fixtureDir, name)); err != nil {
			t.Errorf("%s is in the index and not here", name)
		}
		which, _ := fixtureParser(name)
		used := which != "" || strings.HasPrefix(name, "error-") || slices.Contains([]string{"rm-prompt.txt", "login-device.txt", "login-implicit-0.39.txt"}, name)
		for _, re := range elsewhere {
			used = used || regexp.MustCompile(re).MatchString(name)
		}
		if !used {
			t.Errorf("%s is used by no test", name)
		}
	}
}

// TestFixturesSurvive feeds every listing to every parser, in forms that terminals and networks give them: the result is
// the same, or an error.
func TestFixturesSurvive(t *testing.T) {
	for name := range fixtureIndex(t) {
		which, malformed := fixtureParser(name)
		if which == "" || malformed {
			continue
		}
		plain := fixture(t, name)
		want, err := parsers()[which].parse(plain)
		if err != nil {
			t.Fatal(err)
		}
		for form, change := range map[string]func(string) string{
			"crlf": func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
			"escapes": func(s string) string {
				return "\x1b[?25l\x1b[1m" + strings.ReplaceAll(s, "\n", "\x1b[0m\n\x1b[1m") + "\x1b[0m"
			},
			"bom":     func(s string) string { return "\ufeff" + s },
			"warned":  func(s string) string { return "Warning: -g is deprecated\n" + s },
			"started": func(s string) string { return "Starting sandboxd daemon...\nDaemon started (PID: 1, socket: /s)\n" + s },
			"notice":  func(s string) string { return s + "\nDocker Sandboxes Update Available\nrun brew upgrade sbx\n" },
			"no-eol":  func(s string) string { return strings.TrimRight(s, "\n") },
		} {
			if form == "notice" && !strings.HasPrefix(strings.TrimSpace(string(plain)), "{") {
				continue // behind a table a notice is prose; see TestTableNotes
			}
			got, err := parsers()[which].parse([]byte(change(string(plain))))
			if err != nil {
				t.Errorf("%s, %s: %v", name, form, err)
				continue
			}
			a, _ := json.Marshal(want)
			b, _ := json.Marshal(got)
			if !bytes.Equal(a, b) {
				t.Errorf("%s, %s:\ngot  %s\nwant %s", name, form, b, a)
			}
		}
		for other, p := range parsers() {
			if _, err := p.parse(plain); err == nil && other != which {
				t.Logf("%s also parses as %s", name, other)
			}
		}
	}
}
