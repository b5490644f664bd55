// Package sbxpair_test holds tests of the whole house.
package sbxpair_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sbxpair/sbxpair/"

// TestImportsRunOneWay holds the arrows of the design: a package may import the ones listed with it, the packages
// under those, and nothing else of the house.
func TestImportsRunOneWay(t *testing.T) {
	leaves := []string{"policy", "secrets", "events", "prices", "guest"}
	arrows := map[string][]string{
		"policy":        {},
		"secrets":       {},
		"events":        {},
		"prices":        {},
		"guest":         {},
		"config":        {"policy", "secrets"},
		"sbx":           leaves,
		"pair":          append([]string{"sbx"}, leaves...),
		"provision":     append([]string{"gateway", "prices", "config", "pair", "sbx"}, leaves...),
		"github":        append([]string{"pair", "sbx"}, leaves...),
		"gateway":       {"prices", "secrets"},
		"agent":         leaves,
		"workspace":     leaves,
		"loop":          append([]string{"gateway", "provision", "github", "agent", "workspace", "config", "pair", "sbx"}, leaves...),
		"doctor":        append([]string{"provision", "github", "agent", "workspace", "config", "pair", "sbx"}, leaves...),
		"engine":        {"policy", "secrets", "engine"},
		"cmd/sbx-local": {"policy", "secrets", "engine", "cmd/sbx-local"},
		"cmd/sbxpair":   append([]string{"doctor", "loop", "provision", "github", "workspace", "config", "pair", "sbx"}, leaves...),
		"fixtures":      {"fixtures", "sbx", "secrets", "policy", "events"},
	}
	seen := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "bin"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		room := roomOf(filepath.ToSlash(filepath.Dir(path)))
		allowed, known := arrows[room]
		if !known {
			t.Errorf("%s: package %q has no place in the house", path, room)
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if target, ours := strings.CutPrefix(imported, module); ours {
				seen++
				if target := roomOf(target); target != room && !slices.Contains(allowed, target) {
					t.Errorf("%s: %s must not import %s", path, room, target)
				}
			}
			if strings.HasPrefix(imported, "gvisor.dev/") && filepath.ToSlash(path) != "cmd/sbx-local/main.go" {
				t.Errorf("%s: gVisor is linked into cmd/sbx-local's main alone", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Errorf("only %d imports of the house were seen: the test looks in the wrong place", seen)
	}
}

// roomOf names the room of a package's path: its first folder, or the command.
func roomOf(path string) string {
	parts := strings.Split(path, "/")
	if parts[0] == "cmd" && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}
