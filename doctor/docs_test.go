package doctor

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/page"
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
	page.Holds(t, filepath.Join("..", "docs", "reference", "doctor.md"), page.Between("-update -->\n", "<!-- /checks -->"), b.String(), *update)
}
