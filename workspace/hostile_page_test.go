package workspace_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/page"
)

var update = flag.Bool("update", false, "write docs/reference/hostile-repositories.md")

// TestReferencePageIsCurrent holds that the published traps are those of the tests. Rewrite it with -update.
func TestReferencePageIsCurrent(t *testing.T) {
	page.Holds(t, filepath.Join("..", "docs", "reference", "hostile-repositories.md"), page.All, renderTraps(), *update)
	if n := len(repositoryTraps()); n < 25 {
		t.Errorf("%d traps in the agent's repository", n)
	}
}

func renderTraps() string {
	var b strings.Builder
	b.WriteString(`# Hostile repositories

Generated from the tests of package workspace: each row is a subtest, which fails if anything of the trap runs, on the host or in
what the github sandbox is handed.

The agent owns its copy of the repository, and whoever wrote the repository owns the user's checkout. Neither decides what runs
on the host or in the github sandbox: the host runs no git in the agent's tree, what crosses is a bundle that is imported with
object checks into a bare repository of our own, and the github sandbox mounts nothing of it
([security model](../security-model.md)). ` + "`cmd/sbxpair TestHostileRepositoryEndToEnd`" + ` plants traps in a whole run, and looks for what they leave
on the host and in the github sandbox.

## Traps in the agent's repository

Set by an agent before its end state is taken (` + "`workspace TestHostileRepository`" + `). "Careless" is what springs the trap where it is done in
the agent's tree; the test does that too, to see that the trap is one.

| | trap | careless |
| --- | --- | --- |
`)
	for i, trap := range repositoryTraps() {
		careless := "—"
		if trap.naive != "" {
			careless = "`" + strings.ReplaceAll(trap.naive, "|", `\|`) + "`"
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", i+1, trap.name, careless)
	}
	b.WriteString("\n## Traps in the user's checkout\n\nThere before a run begins (`workspace TestHostileCheckout`).\n\n| | trap | |\n| --- | --- | --- |\n")
	for i, trap := range checkoutTraps() {
		end := "the workspace is made, and nothing runs"
		if trap.kind != nil {
			end = "refused: " + trap.kind.Error()
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", i+1, trap.name, end)
	}
	b.WriteString("\n## End states that no honest sandbox makes\n\nRefused whole, with nothing left of them (`workspace TestHostileBundle`).\n\n| | what is wrong | the refusal says |\n| --- | --- | --- |\n")
	for i, stream := range hostileStreams() {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", i+1, stream.name, stream.want)
	}
	return b.String()
}
