package conformance_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/sbx"
)

// TestReference holds that the page of sbx-local tells the differences that the code knows. Rewrite it with -update.
func TestReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "sbx-local.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const end = "<!-- /conformance -->"
	head, rest, found := strings.Cut(string(text), "-update -->\n")
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("the marks of the generated section are missing")
	}
	page := head + "-update -->\n" + conformance.Table(sbx.EngineLocal) + end + tail
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if page != string(text) {
		t.Errorf("%s is not what the code knows; run: go test ./doctor/conformance -run Reference -update", path)
	}
	for _, d := range conformance.Differences(sbx.EngineLocal) {
		if !strings.Contains(page, "| `"+d.ID+"` |") || !strings.Contains(page, "differs: "+strings.ReplaceAll(d.Why, "|", `\|`)) {
			t.Errorf("%s is not a question that is asked", d.ID)
		}
	}
}
