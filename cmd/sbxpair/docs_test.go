package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxpair/sbxpair/config"
)

var update = flag.Bool("update", false, "write the generated pages of docs/reference")

// TestReferencePagesAreCurrent holds that the generated pages say what the command does. Rewrite them with -update.
func TestReferencePagesAreCurrent(t *testing.T) {
	root := newRootCmd(&app{stdout: io.Discard, stderr: io.Discard, version: "test"})
	for name, text := range map[string]string{"commands.md": commandsPage(root), "configuration.md": configurationPage(t)} {
		path := filepath.Join("..", "..", "docs", "reference", name)
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil || string(have) != text {
			t.Errorf("%s is not what the command says (%v); run: go test ./cmd/sbxpair -run Reference -update", path, err)
		}
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
		"`gate.maxFiles` and `gate.maxPatchKiB`.\n\n| key | default |\n| --- | --- |\n")
	for _, e := range loaded.Entries() {
		value := fmt.Sprint(e.Value)
		if value == "" || value == "[]" || value == "map[]" {
			value = "—"
		} else {
			value = "`" + strings.TrimSuffix(strings.TrimPrefix(value, "map["), "]") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", e.Key, value)
	}
	return b.String()
}
