package lower

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A failure is left where the engine looks for it, until binds are written again. That binds hold is shown by the engine's
// tests: only a process of its own may mount.
func TestFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lower.json")
	if err := Mount(path); err == nil || !strings.Contains(Failure(path), "no such file") {
		t.Errorf("without binds: %v, left %q", err, Failure(path))
	}
	if err := Write(path, []Bind{{"/usr", "/x/usr"}}); err != nil || Failure(path) != "" {
		t.Errorf("written: %v, left %q", err, Failure(path))
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != `[{"source":"/usr","target":"/x/usr"}]` {
		t.Errorf("file holds %s, %v", data, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Mount(path); err == nil || !strings.Contains(Failure(path), "unexpected end") {
		t.Errorf("damaged: %v, left %q", err, Failure(path))
	}
}
