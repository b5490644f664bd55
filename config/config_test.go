package config_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/config"
)

func layer(t *testing.T, text string) config.Layer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := config.File(path, true)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLayersAndSources(t *testing.T) {
	user := layer(t, "engine: {kind: local}\nlimits: {run: 5m}\nagent: {token: {file: /t}}\nverify: [make test]\n")
	env, err := config.Environment([]string{"SBXPAIR_ENGINE_KIND=sbx", "SBXPAIR_VERIFY=a, b", "SBXPAIR_GITHUB_DRAFT=false", "OTHER=1", "SBXPAIR_RECORD=/x"}, "SBXPAIR_RECORD")
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(user, env, config.Layer{Name: "flag", Values: map[string]any{"github.repo": "o/r"}})
	if err != nil {
		t.Fatal(err)
	}
	c := loaded.Config
	if c.Engine.Kind != "sbx" || c.GitHub.Repo != "o/r" || c.GitHub.Draft || time.Duration(c.Limits.Run) != 5*time.Minute ||
		len(c.Verify) != 2 || c.Agent.Token.File != "/t" || c.Agent.Token.Env != "" {
		t.Errorf("merged to %+v", c)
	}
	sources := map[string]string{}
	for _, e := range loaded.Entries() {
		sources[e.Key] = e.Source
	}
	for key, want := range map[string]string{"engine.kind": "environment", "github.repo": "flag", "limits.run": user.Name, "limits.idle": "default"} {
		if sources[key] != want {
			t.Errorf("source of %s is %q, want %q", key, sources[key], want)
		}
	}
}

func TestTokenComesFromTheProvidersVariable(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "COPILOT_GITHUB_TOKEN",
		"agent: {name: claude}\n":             "ANTHROPIC_API_KEY",
		"agent: {name: codex}\n":              "OPENAI_API_KEY",
		"agent: {name: pi, provider: google}": "GEMINI_API_KEY",
		"agent: {name: pi, provider: google, token: {env: MINE}}": "MINE",
	} {
		loaded, err := config.Load(layer(t, text))
		if err != nil || loaded.Config.Agent.Token.Env != want {
			t.Errorf("%q: token from %s, %v; want %s", text, loaded.Config.Agent.Token, err, want)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"enigne: {kind: local}":                         `"engine"`,
		"engine: {kindd: local}":                        `"kind"`,
		"engine: {kind: docker}":                        "auto, sbx, local",
		"agent: {name: hal}":                            `agent "hal"`,
		"agent: {name: pi}":                             "no provider of its own; name one of anthropic, openai, google",
		"agent: {provider: google}":                     "it can use github",
		"limits: {run: fast}":                           "duration",
		"limits: {run: -5s}":                            "duration",
		"github: {repo: justname}":                      "OWNER/NAME",
		"github: {branchPrefix: '../x/'}":               "branchPrefix",
		"network: {allow: ['http://x/y']}":              "network.allow",
		"agent: {mounts: [{path: rel}]}":                "absolute",
		"local: {resolve: {a: '10.0.0.1:1'}}":           "loopback",
		"sandbox: {memoryMiB: 100}":                     "512",
		"engine: [":                                     "yaml",
		"workspace: {mode: copy}":                       "tracked",
		"workspace: {remove: [a]}":                      "mode tracked",
		"workspace: {mode: tracked, remove: ['a:5-2']}": "range",
		"agent: {name: command, provider: openai}":      "needs a program",
		"phases: [plan, verify]":                        "execute is missing",
		"phases: [execute, plan]":                       "before execute",
		"phases: [review, execute]":                     "after execute",
		"phases: [execute, execute]":                    "twice",
		"phases: [execute, tests]":                      "tests",
		"limits: {turns: -1}":                           "negative",
	} {
		path := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := config.File(path, true)
		if err == nil {
			_, err = config.Load(l)
		}
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an ErrInvalid that says %s", text, err, want)
		}
	}
	if _, err := config.Environment([]string{"SBXPAIR_ENGIN_KIND=x"}); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "SBXPAIR_ENGINE_KIND") {
		t.Errorf("a misspelt variable: %v", err)
	}
}

// A file in a repository can narrow what a run may do, never widen it, and never decides what runs on the host.
func TestRepositoryFileOnlyNarrows(t *testing.T) { t.Run("R076", repositoryFileOnlyNarrows) }

func repositoryFileOnlyNarrows(t *testing.T) {
	user, err := config.Load(layer(t, "network: {deny: [bad.test]}\ngate: {maxFiles: 10}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"network: {allow: [evil.test]}", "engine: {path: /tmp/x}", "agent: {token: {command: [sh]}}", "gate: {maxFiles: 11}",
		"gate: {protectMode: allow}", "gate: {maxFiles: 0}", "github: {repo: evil/evil}", "local: {upstreamCA: /x}", "agent: {mounts: [{path: /}]}",
	} {
		if _, err := config.Repository(repository(t, text), user.Config); !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s was accepted: %v", text, err)
		}
	}
	own, err := config.Repository(repository(t, "network: {deny: [worse.test]}\ngate: {maxFiles: 5}\nverify: [sh test.sh]\n"), user.Config)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(layer(t, "network: {deny: [bad.test]}\ngate: {maxFiles: 10}\n"), own)
	if err != nil {
		t.Fatal(err)
	}
	if c := loaded.Config; len(c.Network.Deny) != 2 || c.Gate.MaxFiles != 5 || len(c.Verify) != 1 {
		t.Errorf("narrowed to %+v %+v %v", c.Network, c.Gate, c.Verify)
	}
}

func repository(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.RepositoryFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A stranger may have written the repository's file, and made it anything that is not a file.
func TestRepositoryFileIsAPlainSmallFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"link to a device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"folder":           func(path string) error { return os.Mkdir(path, 0o700) },
		"huge file":        func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("# x\n"), 1<<16), 0o600) },
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, config.RepositoryFile)); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Repository(dir, config.Default()); !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if l, err := config.Repository(t.TempDir(), config.Default()); err != nil || len(l.Values) != 0 {
		t.Errorf("no file: %v, %v", l, err)
	}
}

func TestDiff(t *testing.T) {
	a, b := config.Default(), config.Default()
	if list, err := config.Diff(a, b); err != nil || len(list) != 0 {
		t.Errorf("equal: %v, %v", list, err)
	}
	b.Verify, b.Limits.Cost, b.Agent.Token.File = []string{"make"}, 1.5, "/t"
	list, err := config.Diff(a, b)
	if err != nil || len(list) != 3 || list[1] != (config.Change{Key: "limits.cost", A: "0", B: "1.5"}) || list[2].Key != "verify" || list[0].Key != "agent.token" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestParseRemoval(t *testing.T) {
	for entry, want := range map[string]string{
		"AGENTS.md": "AGENTS.md []", "a/b.md:3": "a/b.md [[3 3]]", "a.md:3-7,12": "a.md [[3 7] [12 12]]", "a:b": "a:b []", "a:1-": "a:1- []", ":3": ":3 []",
		"a.md:0": "range", "a.md:7-3": "range", "a.md:99999999999999999999": "range",
	} {
		path, lines, err := config.ParseRemoval(entry)
		got := fmt.Sprint(path, " ", lines)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", entry, got, want)
		}
	}
}
