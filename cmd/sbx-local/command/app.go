// Package command is the command line of sbx-local: sbx 0.47's verbs, flags, output, streams and exit codes over [engine].
//
// It knows nothing of gVisor: the engine starts that as a process.
package command

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/egress"
	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/vault"
)

// An Environment is what the process hands to [Run]: nothing below reads the process's own.
type Environment struct {
	Args   []string // without the program's name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	// Self is the path of a program that answers to sbx-local's arguments, "_runsc" and "_guest" among them.
	Self     string
	Version  string // of sbx-local itself
	Revision string
}

// app is what every verb shares. Output is plain text: no colours, no spinner.
type app struct {
	Environment
	appName string
	debug   bool

	files  map[string][]byte // what readFile has read: a pipe can be read once
	opened *engine.State
}

// A heedful writer remembers the first error: a listing of which nobody got the end is no success.
type heedful struct {
	w   io.Writer
	err error
}

func (h *heedful) Write(p []byte) (int, error) {
	n, err := h.w.Write(p)
	if err != nil && h.err == nil {
		h.err = err
	}
	return n, err
}

// stateEnv names the state folder; what starts the daemon sets it, so that both mean the same one.
const stateEnv = "SBX_LOCAL_STATE"

// state opens the engine's folders at the first call: SBX_LOCAL_STATE, else XDG_STATE_HOME/sbx-local, else the same below
// ~/.local/state. An app name makes a sibling of its own.
func (a *app) state() (*engine.State, error) {
	if a.opened != nil {
		return a.opened, nil
	}
	dir := a.Getenv(stateEnv)
	if dir == "" {
		base := a.Getenv("XDG_STATE_HOME")
		if base == "" {
			home := a.Getenv("HOME")
			if home == "" {
				return nil, errors.New("HOME is not set; set it or SBX_LOCAL_STATE")
			}
			base = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(base, "sbx-local")
	}
	if a.appName != "" {
		dir += "-" + a.appName
	}
	st, err := engine.OpenState(dir, a.Getenv("XDG_RUNTIME_DIR"))
	if err != nil {
		return nil, err
	}
	a.opened = st
	return st, nil
}

// engine is a handle on the sandboxes of the state.
func (a *app) engine() (*engine.Engine, error) {
	st, err := a.state()
	if err != nil {
		return nil, err
	}
	return &engine.Engine{
		State: st, Self: a.Self, Home: a.Getenv("HOME"), Rootless: os.Geteuid() != 0, DaemonArgs: []string{"daemon", "start", "--auto"}, DaemonEnv: []string{stateEnv + "=" + st.Dir},
		Stores: &stores{state: st, vault: a.vault(st)}, Log: a.logger(),
	}, nil
}

// logger reports to stderr what an operation went on without.
func (a *app) logger() *slog.Logger {
	level := slog.LevelError
	if a.debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: level}))
}

// stores are the policy and the secrets of a state, as the engine needs them.
type stores struct {
	state *engine.State
	vault *vault.Store
}

func (s *stores) Ready() error {
	ok, err := rules.Open(s.state.PolicyDir()).Initialised()
	if err == nil && !ok {
		err = rules.ErrUninitialised
	}
	return err
}

func (s *stores) CA() ([]byte, error) {
	ca, err := egress.LoadOrCreateCA(s.state.CADir())
	if err != nil {
		return nil, err
	}
	return ca.CertPEM(), nil
}

func (s *stores) Env(sandbox string) ([]string, error) {
	return s.vault.Env(sandbox)
}

func (s *stores) Drop(ctx context.Context, sandbox string) error {
	return errors.Join(rules.Open(s.state.PolicyDir()).DropScope(ctx, sandbox), s.vault.DropScope(ctx, sandbox))
}
