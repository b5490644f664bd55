package sbx_test

import (
	"os"
	"strings"
	"testing"
)

// TestHowToIsRun: what the pages for importers show is part of an example, which is compiled and run.
func TestHowToIsRun(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	ok(t, err)
	examples := flat(string(source))
	for _, page := range []string{"../docs/how-to/use-the-sbx-package.md", "../docs/how-to/test-with-the-fake.md"} {
		text, err := os.ReadFile(page)
		ok(t, err)
		blocks := strings.Split(string(text), "```go\n")[1:]
		if len(blocks) == 0 {
			t.Errorf("%s shows no Go", page)
		}
		for _, block := range blocks {
			block, _, _ = strings.Cut(block, "```")
			if !strings.Contains(examples, flat(block)) {
				t.Errorf("%s: no example has\n%s", page, block)
			}
		}
	}
}

// flat leaves out how far lines are indented and how far comments are moved to the right.
func flat(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}
