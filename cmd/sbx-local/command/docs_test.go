package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// The session in the reference is one that works, line by line.
func TestDocumentedSession(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "sbx-local.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```\n")
	session, _, ok := strings.Cut(rest, "```\n")
	if !ok || !strings.Contains(session, "template save") {
		t.Fatalf("no session in the reference: %q", session)
	}
	binary := enginetest.Binary(t)
	st := enginetest.State(t, binary)
	enginetest.Require(t, &engine.Engine{State: st, Self: binary, Rootless: os.Geteuid() != 0})
	home, bin := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "src", "project"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(bin, "sbx-local")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-exc", session)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), enginetest.Env(st), "HOME="+home, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{"✓ Created sandbox demo", "example.com:443", "Save complete", "image      tools:v1", "Sandbox 'second' removed"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the session does not show %q:\n%s", want, out)
		}
	}
	if data, err := os.ReadFile(filepath.Join(home, "result.txt")); err != nil || !strings.Contains(string(data), "gvisor") {
		t.Errorf("result.txt: %q, %v", data, err)
	}
}
