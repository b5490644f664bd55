package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

func sandboxProcesses(st *engine.State) []string {
	var left []string
	for _, p := range enginetest.Processes(st) {
		if strings.Contains(p, ".runsc") {
			left = append(left, p)
		}
	}
	return left
}

// Nothing is left of a sandbox that was removed: no process, file, socket, group or daemon.
func TestRemoveLeavesNothing(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	sh(t, e, r, "mkdir -p a/b && chmod 500 a && chmod 000 a/b; mkdir /home/agent/x; chmod 000 /home/agent/x")
	if err := e.Remove(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	if err := e.Remove(t.Context(), "demo"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("second removal: %v, want ErrNotFound", err)
	}
	if got := e.Stores.(*stores).dropped; len(got) != 1 || got[0] != "demo" {
		t.Errorf("dropped rules and secrets of %q", got)
	}
	enginetest.Eventually(t, "the daemon stays", func() bool { return len(enginetest.Processes(e.State)) == 0 && !daemonRuns(t, e) })
	enginetest.Eventually(t, "the daemon's folder stays", func() bool { // it goes after the daemon has let go of its lock
		_, err := os.Stat(e.State.Runtime)
		return errors.Is(err, os.ErrNotExist)
	})
	for _, pattern := range []string{filepath.Join(e.State.Dir, "sandboxes", "*"), "/sys/fs/cgroup/*" + r.ID, "/sys/fs/cgroup/*/*" + r.ID} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
	if data, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(data), e.State.Runtime) {
		t.Errorf("a mount is left (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(workspace, "a")); err != nil {
		t.Errorf("the workspace lost something: %v", err)
	}
	os.Chmod(filepath.Join(workspace, "a"), 0o700)
}

// Where the daemon was stopped before the sandbox was removed, nothing is left either.
func TestRemoveWithoutDaemon(t *testing.T) {
	e, workspace := newEngine(t)
	create(t, e, "demo", workspace)
	if err := errors.Join(e.DaemonShutdown(t.Context()), e.Remove(t.Context(), "demo")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(e.State.Runtime); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the runtime folder is left: %v", err)
	}
}

func daemonRuns(t *testing.T, e *engine.Engine) bool {
	_, err := e.DaemonHealth(t.Context())
	return err == nil
}
