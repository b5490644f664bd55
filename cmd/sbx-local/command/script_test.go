package command_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sbxpair/sbxpair/cmd/sbx-local/command"
	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// selfEnv names the real sbx-local, which starts gVisor and the daemon; the command under test is this test binary, which
// says that it is of the same build.
const (
	selfEnv     = "TEST_SBX_LOCAL"
	versionEnv  = "TEST_SBX_VERSION"
	revisionEnv = "TEST_SBX_REVISION"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sbx": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(command.Run(ctx, command.Environment{
			Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
			Self: os.Getenv(selfEnv), Version: os.Getenv(versionEnv), Revision: os.Getenv(revisionEnv),
		}))
	}})
}

// The scripts are the verbs as a user types them, with sbx 0.47's texts, streams and exit codes. Each has a state of its own.
func TestScripts(t *testing.T) {
	binary := enginetest.Binary(t)
	enginetest.Require(t, &engine.Engine{State: enginetest.State(t, binary), Self: binary, Rootless: os.Geteuid() != 0})
	version, revision := buildOf(t, binary)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"), RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			dir := filepath.Join(env.WorkDir, ".state")
			env.Setenv(selfEnv, binary)
			env.Setenv(versionEnv, version)
			env.Setenv(revisionEnv, revision)
			env.Setenv("SBX_LOCAL_STATE", dir)
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			st, err := engine.OpenState(dir, "")
			if err != nil {
				return err
			}
			env.Defer(func() { enginetest.Clean(t, binary, st) })
			return os.MkdirAll(filepath.Join(env.WorkDir, "home", "project"), 0o755)
		},
	})
}

// buildOf asks the program what it is.
func buildOf(t *testing.T, binary string) (version, revision string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "version", "--json")
	cmd.Env = append(os.Environ(), "SBX_LOCAL_STATE="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Client struct {
			Revision      string
			EngineVersion string `json:"engine_version"`
		}
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Client.EngineVersion, doc.Client.Revision
}
