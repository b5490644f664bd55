package command_test

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sbxpair/sbxpair/cmd/sbx-local/command"
	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// selfEnv names the real sbx-local, which starts gVisor and the daemon; the command under test is this test binary.
const selfEnv = "TEST_SBX_LOCAL"

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sbx": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(command.Run(ctx, command.Environment{
			Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
			Self: os.Getenv(selfEnv), Version: "v0.0.1", Revision: strings.Repeat("ab", 20),
		}))
	}})
}

// The scripts are the verbs as a user types them, with sbx 0.47's texts, streams and exit codes. Each has a state of its own.
func TestScripts(t *testing.T) {
	binary := enginetest.Binary(t)
	enginetest.Require(t, &engine.Engine{State: enginetest.State(t, binary), Self: binary, Rootless: os.Geteuid() != 0})
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"), RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			dir := filepath.Join(env.WorkDir, ".state")
			env.Setenv(selfEnv, binary)
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
