package loop

import (
	"embed"
	"fmt"
	"strings"
	"text/template"
)

//go:embed prompts/*.md
var promptFiles embed.FS

// prompt fills in the text of prompts/NAME.md. What comes from others is put in as it is: a prompt is text, and is passed by
// standard input.
func prompt(name string, data any) (string, error) {
	t, err := template.ParseFS(promptFiles, "prompts/"+name+".md")
	if err != nil {
		return "", fmt.Errorf("prompt %s: %w", name, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return "", fmt.Errorf("prompt %s: %w", name, err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}
