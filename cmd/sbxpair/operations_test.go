package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/github"
)

// TestOperationsPage holds that every operation that the page names is a function, a verb and, where it says so, a request;
// and that no kind of request is missing there.
func TestOperationsPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "github.md"))
	if err != nil {
		t.Fatal(err)
	}
	root := newRootCmd(&app{stdout: io.Discard, stderr: io.Discard, version: "test"})
	client := reflect.TypeFor[*github.Client]()
	word := regexp.MustCompile("`([^`]+)`")
	rows, asked := 0, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(f) != 4 || !strings.HasPrefix(f[1], "`") {
			continue
		}
		rows++
		name := word.FindStringSubmatch(f[1])[1]
		if _, method := client.MethodByName(name); !method && name != "Deliver" && name != "PushBranch" { // those two take the sandbox too
			t.Errorf("%s: there is no function %s", f[0], name)
		}
		verb := strings.Fields(word.FindStringSubmatch(f[2])[1])
		if cmd, rest, err := root.Find(verb); err != nil || len(rest) != 0 || cmd.Name() != verb[len(verb)-1] {
			t.Errorf("%s: there is no verb %v: %v", f[0], verb, err)
		}
		if m := word.FindStringSubmatch(f[3]); m != nil {
			asked[m[1]] = true
			if !slices.Contains(github.RequestKinds(), github.RequestKind(m[1])) {
				t.Errorf("%s: there is no request %s", f[0], m[1])
			}
		}
	}
	for _, kind := range github.RequestKinds() {
		if !asked[string(kind)] {
			t.Errorf("the page does not name the request %s", kind)
		}
	}
	if rows < 20 {
		t.Errorf("%d operations", rows)
	}
}
