package loop

import (
	"encoding/json"
	"path"
	"regexp"
	"strings"
)

// detected is a verify command that nobody configured, and the program without which it says nothing.
type detected struct{ command, needs string }

// buildFile reports whether a file of that name may say how a repository is tested.
func buildFile(name string) bool {
	switch name {
	case "Makefile", "makefile", "GNUmakefile", "justfile", "package.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb", "deno.json", "go.mod", "Cargo.toml",
		"pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg", "setup.py", "Gemfile", "Rakefile", "pom.xml", "mvnw", "build.gradle", "build.gradle.kts", "gradlew",
		"composer.json", "mix.exs":
		return true
	}
	return path.Ext(name) == ".sln"
}

var (
	makeTarget = regexp.MustCompile(`(?m)^(test|check)[ \t]*:([^=]|$)`)
	justRecipe = regexp.MustCompile(`(?m)^@?test(?:[ \t][^:\n]*)?:([^=]|$)`)
	pytest     = regexp.MustCompile(`(?m)^\[tool\.pytest|^\[tool:pytest\]|^\[pytest\]`)
)

// detect finds out from a repository's own files how it is tested. files are those of the base commit: what the agent changes
// does not decide how it is judged. The first that is found counts, from the most to the least deliberate. Only fixed
// commands come out: no word of a file becomes part of one.
func detect(files map[string][]byte) []detected {
	has := func(names ...string) bool {
		for _, name := range names {
			if _, ok := files[name]; ok {
				return true
			}
		}
		return false
	}
	for _, name := range []string{"GNUmakefile", "makefile", "Makefile"} { // the order in which make looks
		if !has(name) {
			continue
		}
		if m := makeTarget.FindStringSubmatch(string(files[name])); m != nil {
			return []detected{{"make " + m[1], "make"}}
		}
		break
	}
	if justRecipe.Match(files["justfile"]) {
		return []detected{{"just test", "just"}}
	}
	var scripts struct{ Scripts map[string]any }
	if json.Unmarshal(files["package.json"], &scripts) == nil {
		if test, ok := scripts.Scripts["test"].(string); ok && test != "" && !strings.Contains(test, "no test specified") {
			switch {
			case has("pnpm-lock.yaml"):
				return []detected{{"pnpm test", "pnpm"}}
			case has("yarn.lock"):
				return []detected{{"yarn test", "yarn"}}
			case has("bun.lock", "bun.lockb"):
				return []detected{{"bun run test", "bun"}}
			}
			return []detected{{"npm test", "npm"}}
		}
	}
	var tasks struct{ Scripts map[string]any }
	switch {
	case has("go.mod"):
		return []detected{{"go vet ./...", "go"}, {"go test ./...", "go"}}
	case has("Cargo.toml"):
		return []detected{{"cargo test", "cargo"}}
	case has("pytest.ini"), pytest.Match(files["pyproject.toml"]), pytest.Match(files["tox.ini"]), pytest.Match(files["setup.cfg"]):
		return []detected{{"python3 -m pytest -q", "python3"}}
	case has("Rakefile") && has("Gemfile"):
		return []detected{{"bundle exec rake", "bundle"}}
	case has("pom.xml") && has("mvnw"):
		return []detected{{"sh ./mvnw -q -B test", "java"}}
	case has("pom.xml"):
		return []detected{{"mvn -q -B test", "mvn"}}
	case has("build.gradle", "build.gradle.kts") && has("gradlew"):
		return []detected{{"sh ./gradlew test", "java"}}
	case has("mix.exs"):
		return []detected{{"mix test", "mix"}}
	case has("deno.json"):
		return []detected{{"deno test", "deno"}}
	case json.Unmarshal(files["composer.json"], &tasks) == nil && tasks.Scripts["test"] != nil:
		return []detected{{"composer test", "composer"}}
	}
	for name := range files {
		if path.Ext(name) == ".sln" {
			return []detected{{"dotnet test", "dotnet"}}
		}
	}
	return nil
}
