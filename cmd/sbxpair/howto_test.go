package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommandsOnPagesAreTaken holds that each command line of sbxpair in a block of code on a how-to page, in the security
// model or in the README is one that the command takes: verb, flags and number of arguments.
func TestCommandsOnPagesAreTaken(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "how-to", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, filepath.Join("..", "..", "README.md"), filepath.Join("..", "..", "docs", "security-model.md"))
	quoted := regexp.MustCompile(`"[^"]*"|'[^']*'`)
	seen := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		code := false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if !code || !strings.HasPrefix(line, "sbxpair ") {
				continue
			}
			seen++
			line, _, _ = strings.Cut(quoted.ReplaceAllString(line, "x"), " #")
			root := newRootCmd(&app{stdout: io.Discard, stderr: io.Discard, version: "test"})
			cmd, args, err := root.Find(strings.Fields(line)[1:])
			if err == nil && cmd == root {
				continue // a flag of the command itself, such as --version
			}
			if err == nil {
				err = cmd.ParseFlags(args)
			}
			if err == nil && cmd.Args != nil {
				err = cmd.Args(cmd, cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(page), line, err)
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d command lines were seen: the test looks in the wrong place", seen)
	}
}
