package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/vault"
)

// A hintError is an error with the command that helps, printed as sbx 0.47 does: "error: …" and "  try: …".
type hintError struct {
	err error
	try string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// hint adds the command that helps to err; nil stays nil.
func hint(err error, try string) error {
	if err == nil {
		return nil
	}
	return &hintError{err, try}
}

// An exitError ends the command with a code and prints nothing: the guest's own exit, or a report already given.
type exitError int

func (exitError) Error() string { return "exit" }

// errCancelled is a question answered with no, or by nobody.
var errCancelled = errors.New("user cancelled operation")

// worded puts an error of the engine in sbx's words, for the sandbox it is about.
func worded(err error, name string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, engine.ErrNotFound):
		return hint(fmt.Errorf("sandbox '%s' not found", name), "sbx ls")
	case errors.Is(err, engine.ErrExists):
		return fmt.Errorf("failed to create sandbox: request failed: 409 Conflict: %w", err)
	case errors.Is(err, engine.ErrRecord):
		return hint(err, "sbx rm --force "+name)
	case errors.Is(err, rules.ErrUninitialised):
		return hint(err, "sbx policy init balanced")
	case errors.Is(err, vault.ErrKeyring):
		return hint(err, "sbx settings unset secrets.store")
	}
	if bad, ok := errors.AsType[*engine.WorkspaceError](err); ok && strings.HasPrefix(bad.Reason, "primary workspace") {
		return errors.New(bad.Reason)
	}
	return err
}

// usage marks a wrong call, as cobra's checks report it, with the verb's help as advice.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return hint(check(cmd, args), cmd.CommandPath()+" --help")
	}
}

// report prints an error once, as sbx 0.47 does.
func (a *app) report(err error) {
	fmt.Fprintf(a.Stderr, "error: %s\n", shortened(err.Error()))
	if h, ok := errors.AsType[*hintError](err); ok && h.try != "" {
		fmt.Fprintf(a.Stderr, "  try: %s\n", shortened(h.try))
	}
}

// maxWord is more than a path or a name that means something has, in bytes.
const maxWord = 1 << 10

// shortened cuts the words of a text that are too long to be read: what was given on a command line is quoted in errors.
func shortened(text string) string {
	if len(text) <= maxWord {
		return text
	}
	words := strings.Split(text, " ")
	for i, w := range words {
		if len(w) > maxWord {
			words[i] = strings.ToValidUTF8(w[:maxWord/4], "") + fmt.Sprintf("...(%d bytes)", len(w))
		}
	}
	return strings.Join(words, " ")
}
