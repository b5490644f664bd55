package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/fixtures/page"
)

var update = flag.Bool("update", false, "write the generated pages of docs/reference")

// TestReferencePagesAreCurrent holds that the generated pages say what the command does. Rewrite them with -update.
func TestReferencePagesAreCurrent(t *testing.T) {
	root := newRootCmd(&app{stdout: io.Discard, stderr: io.Discard, version: "test"})
	for name, text := range map[string]string{"commands.md": commandsPage(root), "configuration.md": configurationPage(t)} {
		page.Holds(t, filepath.Join("..", "..", "docs", "reference", name), page.All, text, *update)
	}
}

func commandsPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\nGenerated from the command itself. Results go to standard output, everything else to standard error.\n" +
		"Exit codes: [exit-codes.md](exit-codes.md).\n\nFlags of every verb:\n\n")
	flagTable(&b, root.PersistentFlags())
	walk(root, func(cmd *cobra.Command) {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n```\n%s\n```\n", cmd.CommandPath(), cmd.Short, cmd.UseLine())
		if cmd.Long != "" {
			fmt.Fprintf(&b, "\n%s\n", cmd.Long)
		}
		if cmd.Example != "" {
			fmt.Fprintf(&b, "\n```\n%s\n```\n", strings.TrimRight(dedent(cmd.Example), "\n"))
		}
		if cmd.LocalNonPersistentFlags().HasAvailableFlags() {
			b.WriteString("\n")
			flagTable(&b, cmd.LocalNonPersistentFlags())
		}
	})
	return b.String()
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	for _, sub := range cmd.Commands() {
		if sub.Hidden || sub.Name() == "completion" {
			continue
		}
		if !sub.HasSubCommands() {
			visit(sub)
		}
		walk(sub, visit)
	}
}

func flagTable(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | meaning |\n| --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		def := ""
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
			def = " (" + f.DefValue + ")"
		}
		fmt.Fprintf(b, "| %s | %s%s |\n", name, f.Usage, def)
	})
}

func dedent(s string) string { return strings.TrimPrefix(strings.ReplaceAll(s, "\n  ", "\n"), "  ") }

func configurationPage(t *testing.T) string {
	loaded, err := config.Load()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Configuration\n\nGenerated from the built-in values. Strongest first: flags, environment (`SBXPAIR_` and the key in capitals, dots as\n" +
		"underscores: `SBXPAIR_LIMITS_RUN=20m`; lists separated by commas), `.sbxpair.yaml` in the repository, the user's\n" +
		"`$XDG_CONFIG_HOME/sbxpair/config.yaml` (or the file given with `--config`), these defaults. An unknown key is an error.\n" +
		"`sbxpair config show` prints each value with its source.\n\nThe repository's file may only narrow: `verify` where nobody else sets it, `network.deny`, `gate.protected`, and lower\n" +
		"`gate.maxFiles` and `gate.maxPatchKiB`.\n\n| key | default | |\n| --- | --- | --- |\n")
	meaning := configMeaning(t)
	for _, e := range loaded.Entries() {
		value := fmt.Sprint(e.Value)
		if value == "" || value == "[]" || value == "map[]" {
			value = "—"
		} else {
			value = "`" + strings.TrimSuffix(strings.TrimPrefix(value, "map["), "]") + "`"
		}
		if meaning[e.Key] == "" {
			t.Errorf("config: %s has no comment that says what it is", e.Key)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e.Key, value, meaning[e.Key])
	}
	return b.String()
}

// configMeaning reads the comments of the configuration's fields, by key.
func configMeaning(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "config", "config.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				structs[spec.Name.Name] = s
			}
		}
		return true
	})
	meaning := map[string]string{}
	var visit func(prefix string, s *ast.StructType)
	visit = func(prefix string, s *ast.StructType) {
		for _, f := range s.Fields.List {
			name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("yaml"), ",")
			if sub, ok := f.Type.(*ast.Ident); ok && structs[sub.Name] != nil {
				visit(prefix+name+".", structs[sub.Name])
				continue
			}
			text := f.Comment.Text() + " " + f.Doc.Text()
			meaning[prefix+name] = strings.Join(strings.Fields(strings.ReplaceAll(text, "|", "or")), " ")
		}
	}
	visit("", structs["Config"])
	return meaning
}

// TestDocsThatAreNamedExist holds that every page which the code, the README or another page names is there.
func TestDocsThatAreNamedExist(t *testing.T) {
	root := filepath.Join("..", "..")
	named := regexp.MustCompile(`docs/[a-z-]+(?:/[a-z-]+)*\.md`)
	code := regexp.MustCompile("(?s)```.*?```") // where brackets are the language's own
	linked := regexp.MustCompile(`\]\(([a-zA-Z0-9._][a-zA-Z0-9._/-]*)\)`)
	seen := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "bin"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, page := range named.FindAllString(string(text), -1) {
			seen++
			if _, err := os.Stat(filepath.Join(root, page)); err != nil && !strings.Contains(path, "fixtures/sbx") { // which names other projects' pages
				t.Errorf("%s names %s: %v", path, page, err)
			}
		}
		if strings.HasSuffix(path, ".md") {
			for _, m := range linked.FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
				seen++
				if strings.HasPrefix(m[1], "//") { // another server, in an example
					continue
				}
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
					t.Errorf("%s links to %s: %v", path, m[1], err)
				}
			}
		}
		return nil
	})
	if err != nil || seen < 10 {
		t.Errorf("%d pages named, %v", seen, err)
	}
}
