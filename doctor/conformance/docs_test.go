package conformance_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/fixtures/page"
	"github.com/sbxpair/sbxpair/sbx"
)

// TestReference holds that the page of sbx-local tells the differences that the code knows. Rewrite it with -update.
func TestReference(t *testing.T) {
	table := conformance.Table(sbx.EngineLocal)
	page.Holds(t, filepath.Join("..", "..", "docs", "reference", "sbx-local.md"), page.Between("-update -->\n", "<!-- /conformance -->"), table, *update)
	for _, d := range conformance.Differences(sbx.EngineLocal) {
		if !strings.Contains(table, "| `"+d.ID+"` |") || !strings.Contains(table, "differs: "+strings.ReplaceAll(d.Why, "|", `\|`)) {
			t.Errorf("%s is not a question that is asked", d.ID)
		}
	}
}
