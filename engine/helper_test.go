package engine_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// stores is a policy and secrets for tests: everything is there and nothing is in it. The daemon has its own.
type stores struct {
	mu      sync.Mutex
	dropped []string
}

func (*stores) Ready() error                 { return nil }
func (*stores) CA() ([]byte, error)          { return []byte("-----BEGIN CERTIFICATE-----\n"), nil }
func (*stores) Env(string) ([]string, error) { return []string{"GH_TOKEN=gho_placeholder"}, nil }
func (s *stores) Drop(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = append(s.dropped, name)
	return nil
}

// newEngine is an engine over the real sbx-local, with a state of its own and a workspace.
func newEngine(t *testing.T) (e *engine.Engine, workspace string) {
	t.Helper()
	t.Parallel()
	binary := enginetest.Binary(t)
	st := enginetest.State(t, binary)
	e = &engine.Engine{
		State: st, Self: binary, Rootless: os.Geteuid() != 0, Stores: &stores{},
		DaemonArgs: []string{"daemon", "start", "--auto"}, DaemonEnv: []string{enginetest.Env(st)},
	}
	enginetest.Require(t, e)
	workspace = filepath.Join(t.TempDir(), "project")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	return e, workspace
}

func create(t *testing.T, e *engine.Engine, name, workspace string) engine.Record {
	t.Helper()
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: name, Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func run(t *testing.T, e *engine.Engine, r engine.Record, spec engine.ExecSpec) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	spec.Stdout, spec.Stderr = &out, &errs
	code, err := e.Exec(t.Context(), r, spec)
	if err != nil {
		t.Fatalf("exec %q: %v", spec.Argv, err)
	}
	return out.String(), errs.String(), code
}

// cli is a process of the real command on the engine's state.
func cli(ctx context.Context, e *engine.Engine, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.Self, args...)
	cmd.Env = append(os.Environ(), enginetest.Env(e.State))
	return cmd
}

func sh(t *testing.T, e *engine.Engine, r engine.Record, script string) string {
	t.Helper()
	out, errs, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", script}})
	if code != 0 {
		t.Fatalf("%s: exit %d: %s%s", script, code, out, errs)
	}
	return strings.TrimSpace(out)
}
