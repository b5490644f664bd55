package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/sbx"
)

// beCommand makes the test binary act as sbxpair: the end-to-end tests start it as a process of its own.
const beCommand = "TEST_BINARY_IS_SBXPAIR"

// mineAt makes the command panic while it writes this text to standard error.
const mineAt = "TEST_BINARY_PANICS_AT"

type mine struct {
	w  io.Writer
	at string
}

func (m *mine) Write(p []byte) (int, error) {
	if at := m.at; at != "" && bytes.Contains(p, []byte(at)) {
		m.at = ""
		panic("a mine at " + at)
	}
	return m.w.Write(p)
}

func TestMain(m *testing.M) {
	asEngine()
	if at := os.Getenv(mineAt); at != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, &mine{os.Stderr, at}))
	}
	if os.Getenv(beCommand) != "" {
		main()
	}
	testscript.Main(m, map[string]func(){"sbxpair": main, "fakesbx": fake.Main})
}

// TestScripts runs the command as a user would, without any engine but the fake one that some scripts name.
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
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"ends": ends},
	})
}

// ends is "ends CODE PROGRAM ARG…": exec, and the exit code is that one.
func ends(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 2 {
		ts.Fatalf("usage: ends CODE PROGRAM ARG…")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ran := errors.AsType[*exec.ExitError](err)
		if !ran {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if want, err := strconv.Atoi(args[0]); err != nil || code != want {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// TestHintNamesOurFlag: the client's library does not know the flags of this command.
func TestHintNamesOurFlag(t *testing.T) {
	for _, err := range []error{sbx.ErrNotInstalled, sbx.ErrForeignTool} {
		if h := hint(err); !strings.Contains(h, "--engine local") {
			t.Errorf("hint %q", h)
		}
	}
	if h := hint(sbx.ErrNotSignedIn); h != "sbx login" {
		t.Errorf("hint %q", h)
	}
}

// Whatever changes something can be asked what it would change.
func TestDryRunOfEveryVerb(t *testing.T) {
	reads := []string{"config show", "credential link", "ls", "plan", "policy explain", "policy learn", "policy lint", "pool ls", "result", "version",
		"github issue list", "github issue search", "github issue view", "github pr list", "github pr view", "github pr line-comments", "github whoami",
		"exec", "shell", "cp"} // the last three do in a sandbox what they are told, and no more
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			look(sub)
		}
		name := strings.TrimPrefix(cmd.CommandPath(), "sbxpair ")
		if cmd.HasSubCommands() {
			return
		}
		if has, want := cmd.Flags().Lookup("dry-run") != nil, !slices.Contains(reads, name); has != want {
			t.Errorf("%s: --dry-run is there: %v, want %v", name, has, want)
		}
	}
	look(newRootCmd(&app{}))
}
