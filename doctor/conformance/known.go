package conformance

import (
	"fmt"
	"strings"

	"github.com/sbxpair/sbxpair/sbx"
)

// Difference is an answer of an engine that is another than sbx's, and why it stays so.
type Difference struct {
	ID, Why string
	// Sometimes: on some machines the answer is the same.
	Sometimes bool
}

// Differences lists what is known to be different in an engine; nothing is for Docker's own sbx.
func Differences(engine string) []Difference {
	if engine != sbx.EngineLocal {
		return nil
	}
	return []Difference{
		{ID: "user.id", Why: "the user agent is user 0 of the sandbox's own kernel, so that files in the workspace belong to whoever runs sbx-local; user 0 there has no rights on this machine"},
		{ID: "env.placeholders", Why: "a placeholder is preset where a secret is stored for the sandbox, and nowhere else: one that nothing stands behind makes programs try a login that cannot work"},
		{ID: "system.os", Why: "programs are this machine's own, from its /usr, under a layer of its own, unless a template is given", Sometimes: true},
		{ID: "system.docker", Why: "there is no second container engine inside"},
		{ID: "allow.tunnel", Why: "a host that --resolve leads elsewhere is always opened, since its certificate is a test's own; other hosts without a secret are tunnelled"},
	}
}

// Table renders the questions, with the known differences of an engine, as a page's section.
func Table(engine string) string {
	why := map[string]string{}
	for _, d := range Differences(engine) {
		why[d.ID] = d.Why
	}
	var b strings.Builder
	b.WriteString("| question | sbx 0.47 | " + engine + " |\n| --- | --- | --- |\n")
	for _, p := range probes() {
		answer := "the same"
		if text, differs := why[p.id]; differs {
			answer = "differs: " + text
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.id, cell(p.want), cell(answer))
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
