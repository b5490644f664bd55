//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
)

// What the configuration sets up in each sandbox is there before any work, and a credential does not come in that way.
func TestSetup(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	for name, text := range map[string]string{"tools/bin/greet": "#!/bin/sh\necho greetings\n", "note.txt": "a note\n", "token.txt": "github_pat_1111111111111111111111_22222222222222222222222222222222222222222222222222222222222\n"} {
		path := filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	role := func(file string, commands ...string) map[string]any {
		return map[string]any{"toolchains": []string{filepath.Join(from, "tools")}, "commands": commands,
			"files": []any{map[string]any{"from": filepath.Join(from, file), "to": "/opt/notes/" + file}}}
	}
	s := open(t, stage.Options{Config: map[string]any{"setup": map[string]any{"agent": role("note.txt", "greet > /tmp/greeting"), "github": role("note.txt")}}})
	up := []string{"up", "--repo", stage.FullName, "--dir", s.Work}
	sbxpair(t, s, up...).want(t, 0)
	sbxpair(t, s, "exec", "--", "cat", "/tmp/greeting", "/opt/notes/note.txt").want(t, 0, "greetings\na note")
	sbxpair(t, s, "exec", "--role", "github", "--", "sh", "-c", "greet; cat /opt/notes/note.txt").want(t, 0, "greetings\na note")
	sbxpair(t, s, "down").want(t, 0)

	s = open(t, stage.Options{Config: map[string]any{"setup": map[string]any{"agent": role("token.txt")}}})
	sbxpair(t, s, "up", "--repo", stage.FullName, "--dir", s.Work).want(t, exitRefused, "set up the agent sandbox", "token.txt", "shape of a credential")
	s = open(t, stage.Options{Config: map[string]any{"setup": map[string]any{"github": role("note.txt", "echo oh no >&2; exit 3")}}})
	sbxpair(t, s, "up", "--repo", stage.FullName, "--dir", s.Work).want(t, exitFailed, "set up the github sandbox", "exit 3", "oh no")
}

// A run that failed leaves its pair for a look where that is asked for, and ls tells what the run used.
func TestKeepOnFailure(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{Config: map[string]any{"verify": []string{"exit 3"}}})
	sbxpair(t, s, append(runArgs(s), "--keep-on-failure", "--phases", "execute,verify")...).want(t, exitFailed, "exit 3")
	sbxpair(t, s, "ls").want(t, 0, "up", "turns", "tokens", "$0.", "agent running")
	sbxpair(t, s, "exec", "--", "cat", "slugify.sh").want(t, 0, "sed -e")
	sbxpair(t, s, "down").want(t, 0, "removed")
}
