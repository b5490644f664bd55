package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// beCommand makes the test binary act as sbxpair: the end-to-end tests start it as a process of its own.
const beCommand = "TEST_BINARY_IS_SBXPAIR"

func TestMain(m *testing.M) {
	if os.Getenv(beCommand) != "" {
		main()
	}
	testscript.Main(m, map[string]func(){"sbxpair": main})
}

// TestScripts runs the command as a user would, without any engine.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			env.Setenv("XDG_STATE_HOME", env.WorkDir+"/state")
			env.Setenv("GIT_CONFIG_NOSYSTEM", "1")
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
	})
}
