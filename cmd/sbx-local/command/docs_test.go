package command_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// The session of the how-to page is one that works, line by line.
func TestDocumentedSession(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "how-to", "sbx-local.md"))
	if err != nil {
		t.Fatal(err)
	}
	var session strings.Builder
	parts := strings.Split(string(page), "```\n")
	for i := 1; i < len(parts); i += 2 {
		session.WriteString(parts[i])
	}
	if len(parts)%2 == 0 || !strings.Contains(session.String(), "template save") {
		t.Fatalf("no session on the page: %q", session.String())
	}
	binary := enginetest.Binary(t)
	st := enginetest.State(t, binary)
	enginetest.Require(t, &engine.Engine{State: st, Self: binary, Rootless: os.Geteuid() != 0})
	home, bin := t.TempDir(), t.TempDir()
	project := filepath.Join(home, "src", "project")
	if err := errors.Join(os.MkdirAll(project, 0o755), os.WriteFile(filepath.Join(project, "notes.txt"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(bin, "sbx-local")); err != nil {
		t.Fatal(err)
	}
	token := "ghp_" + strings.Repeat("a1B2", 9)
	cmd := exec.CommandContext(t.Context(), "sh", "-exc", session.String())
	cmd.Dir = home
	cmd.Env = append(os.Environ(), enginetest.Env(st), "HOME="+home, "GH_TOKEN="+token, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{
		"✓ Virtualization — supported", "✓ Created sandbox demo", "demo      shell   running", "gho_", "notes.txt\nci\n", "it ended with 3\n", "some data\n",
		"Approval required for example.com:443.", "Allowed: example.com:443", `"blocked_hosts": [`, "Save complete", "image      tools:v1",
		"Isolation:       gvisor/systrap", "Sandbox 'second' removed", "Removed: tools:v1", "No sandboxes found.",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the session does not show %q:\n%s", want, out)
		}
	}
	if strings.Count(string(out), token) != 1 { // once: the shell's own trace
		t.Errorf("the session shows the secret's value:\n%s", out)
	}
	if data, err := os.ReadFile(filepath.Join(home, "result.txt")); err != nil || !strings.Contains(string(data), "gvisor") {
		t.Errorf("result.txt: %q, %v", data, err)
	}
}
