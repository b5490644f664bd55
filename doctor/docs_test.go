package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReference holds that the page lists the checks that are made. Rewrite it with -update.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("| id | depth | what is looked at | what depends on it |\n| --- | --- | --- | --- |\n")
	for _, a := range Catalogue() {
		depth := Shallow
		if a.Deep {
			depth = "*deep*"
		}
		if a.Vital {
			depth += ", vital"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", a.ID, depth, a.Asks, a.Affects)
	}
	path := filepath.Join("..", "docs", "reference", "doctor.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), "-update -->\n")
	_, tail, closed := strings.Cut(rest, "<!-- /checks -->")
	if !found || !closed {
		t.Fatal("the marks of the generated section are missing")
	}
	page := head + "-update -->\n" + b.String() + "<!-- /checks -->" + tail
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if page != string(text) {
		t.Errorf("%s is not what is checked; run: go test ./doctor -run Reference -update", path)
	}
}
