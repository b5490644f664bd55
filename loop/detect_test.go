package loop

import (
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
)

func TestDetect(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"make":                     {map[string]string{"Makefile": "build:\n\tx\ntest: build\n\ty\n", "go.mod": ""}, "make test"},
		"make check":               {map[string]string{"Makefile": "check:\n\ty"}, "make check"},
		"make, another target":     {map[string]string{"Makefile": "testing:\n\ty\n", "go.mod": ""}, "go vet ./...; go test ./..."},
		"make, a variable":         {map[string]string{"Makefile": "test := 1\n"}, ""},
		"make, what make reads":    {map[string]string{"Makefile": "test:\n", "GNUmakefile": "check:\n"}, "make check"},
		"just":                     {map[string]string{"justfile": "test *args:\n  x\n"}, "just test"},
		"npm":                      {map[string]string{"package.json": `{"scripts": {"test": "node --test"}}`}, "npm test"},
		"npm's own placeholder":    {map[string]string{"package.json": `{"scripts": {"test": "echo \"Error: no test specified\" && exit 1"}}`}, ""},
		"pnpm":                     {map[string]string{"package.json": `{"scripts": {"test": "x"}}`, "pnpm-lock.yaml": ""}, "pnpm test"},
		"yarn":                     {map[string]string{"package.json": `{"scripts": {"test": "x"}}`, "yarn.lock": ""}, "yarn test"},
		"bun":                      {map[string]string{"package.json": `{"scripts": {"test": "x"}}`, "bun.lock": ""}, "bun run test"},
		"package.json is hostile":  {map[string]string{"package.json": `{"scripts": {"test": {"x": "; rm -rf /"}}}`}, ""},
		"package.json is no JSON":  {map[string]string{"package.json": `{"scripts`, "Cargo.toml": ""}, "cargo test"},
		"go":                       {map[string]string{"go.mod": "module x"}, "go vet ./...; go test ./..."},
		"pytest":                   {map[string]string{"pyproject.toml": "[tool.pytest.ini_options]\n"}, "python3 -m pytest -q"},
		"python without pytest":    {map[string]string{"pyproject.toml": "[project]\n"}, ""},
		"setup.cfg":                {map[string]string{"setup.cfg": "[metadata]\n[tool:pytest]\n"}, "python3 -m pytest -q"},
		"ruby":                     {map[string]string{"Gemfile": "", "Rakefile": ""}, "bundle exec rake"},
		"maven's wrapper":          {map[string]string{"pom.xml": "", "mvnw": ""}, "sh ./mvnw -q -B test"},
		"maven":                    {map[string]string{"pom.xml": ""}, "mvn -q -B test"},
		"gradle":                   {map[string]string{"build.gradle.kts": "", "gradlew": ""}, "sh ./gradlew test"},
		"gradle without a wrapper": {map[string]string{"build.gradle": ""}, ""},
		"elixir":                   {map[string]string{"mix.exs": ""}, "mix test"},
		"deno":                     {map[string]string{"deno.json": ""}, "deno test"},
		"php":                      {map[string]string{"composer.json": `{"scripts": {"test": "phpunit"}}`}, "composer test"},
		".NET":                     {map[string]string{"a.sln": ""}, "dotnet test"},
		"nothing":                  {map[string]string{"README.md": "make test"}, ""},
	} {
		files := map[string][]byte{}
		for f, text := range tt.files {
			if name != "nothing" && !buildFile(f) {
				t.Errorf("%s: %s is not looked at", name, f)
			}
			files[f] = []byte(text)
		}
		var got []string
		for _, d := range detect(files) {
			got = append(got, d.command)
			if d.needs == "" {
				t.Errorf("%s: %q needs no program", name, d.command)
			}
		}
		if strings.Join(got, "; ") != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A command that nobody configured judges the work only if it can: its program is there, and it is not broken already.
func TestDetectedCommands(t *testing.T) {
	for name, tt := range map[string]struct {
		makefile string // of the base; the agent adds "good" to a.txt or breaks it
		work     string
		change   func(*config.Config)
		accepted bool
		note     string
	}{
		"passes":              {"test:\n\tgrep -q one a.txt\n", good, nil, true, ""},
		"fails by the change": {"test:\n\tgrep -q one a.txt\n", "echo bad >a.txt\n", nil, false, ""},
		"fails on the base":   {"test:\n\tgrep -q nowhere a.txt\n", good, nil, true, "without the change too"},
		// The agent's own Makefile does not say how it is judged.
		"the agent's word": {"test:\n\tgrep -q one a.txt\n", "echo bad >a.txt; rm Makefile\n", nil, false, ""},
		"switched off":     {"test:\n\tfalse\n", good, func(c *config.Config) { c.Detect = false }, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrialOf(t, map[string]string{"Makefile": tt.makefile}, []string{tt.work + say("Done.")}, func(c *config.Config) {
				c.Verify, c.Limits.Revisions = nil, 0
				if tt.change != nil {
					tt.change(c)
				}
			})
			err := tr.work(t.Context())
			if (err == nil) != tt.accepted {
				t.Errorf("%v, want accepted: %v", err, tt.accepted)
			}
			noted := ""
			for _, e := range tr.events {
				if n, ok := e.(events.Noted); ok {
					noted += n.Text
				}
			}
			if !strings.Contains(noted, tt.note) || tt.note == "" && strings.Contains(noted, "nobody configured") {
				t.Errorf("noted %q, want %q", noted, tt.note)
			}
		})
	}
	t.Run("no such program", func(t *testing.T) {
		tr := newTrialOf(t, map[string]string{"mix.exs": ""}, []string{good + say("Done.")}, func(c *config.Config) { c.Verify = nil })
		if missing, err := tr.missing(t.Context(), "mix"); err != nil || !missing {
			t.Skip("mix is there")
		}
		if err := tr.work(t.Context()); err != nil || len(tr.state.Verified) != 0 {
			t.Errorf("%v, verified %+v; want the missing program to judge nothing", err, tr.state.Verified)
		}
	})
}
