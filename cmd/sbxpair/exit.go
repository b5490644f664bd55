package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/doctor"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// Exit codes; docs/reference/exit-codes.md explains them.
const (
	exitDone       = 0
	exitFailed     = 1 // the work failed, or a check is red
	exitUsage      = 2 // usage or configuration
	exitLeft       = 3 // clean-up incomplete: something may be left, prune finds it
	exitEngine     = 4
	exitCredential = 5
	exitRefused    = 6 // by policy or gate
	exitBudget     = 7
	exitNothing    = 8
	exitOwn        = 125 // of exec and shell: our own failure, not the command's
)

// A signalError is the cause of a context that a signal cancelled.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string { return e.signal.String() + " signal received" }

// Is makes it a kind of cancellation.
func (e *signalError) Is(target error) bool { return target == context.Canceled }

// code is what a shell reports for a program that the signal ended.
func (e *signalError) code() int {
	if s, ok := e.signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return exitFailed
}

// A usageError is a mistake in how the command was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// A codeError ends the command with a code and no message: a guest's exit code, or a result that was printed already.
type codeError int

func (e codeError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// exitCode maps an error to the command's exit code. The order matters: what is left behind outranks why.
func exitCode(err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	if err == nil {
		return exitDone
	}
	if code, ok := errors.AsType[codeError](err); ok {
		return int(code)
	}
	signalled, bySignal := errors.AsType[*signalError](err)
	failure, ownFailure := errors.AsType[*ownError](err)
	_, usage := errors.AsType[*usageError](err)
	_, misspelt := errors.AsType[*policy.ResourceError](err)
	_, crashed := errors.AsType[*pair.Crash](err)
	_, workspaceErr := errors.AsType[*workspace.Error](err)
	_, gitErr := errors.AsType[*workspace.GitError](err)
	switch {
	case is(pair.ErrLeft):
		return exitLeft
	case bySignal:
		return signalled.code()
	case crashed: // whatever else the error is about
		return exitFailed
	case ownFailure:
		return failure.code
	case is(workspace.ErrHostile, workspace.ErrTooLarge): // also of git itself, which met a bound of ours
		return exitRefused
	case is(workspace.ErrNoSpace):
		return exitEngine
	case usage, misspelt, workspaceErr, gitErr, is(config.ErrInvalid, loop.ErrNoTask, loop.ErrTask, loop.ErrNoAgent, loop.ErrNotResumable, pair.ErrOwned, loop.ErrNoPlan, pair.ErrNoLease, pair.ErrUnreadable, sbx.ErrInvalid, doctor.ErrImport,
		github.ErrBaseMissing, github.ErrEmptyRepository, github.ErrArchived):
		return exitUsage
	case is(loop.ErrBudget, pair.ErrNoRoom):
		return exitBudget
	case is(loop.ErrNothing, loop.ErrNoHandover, github.ErrNoChanges):
		return exitNothing
	case is(secrets.ErrMissing, secrets.ErrUnfit, provision.ErrCredential, provision.ErrStale, github.ErrUnauthorized):
		return exitCredential
	case is(loop.ErrRefused, provision.ErrRefused, provision.ErrNotProven, github.ErrForbidden, github.ErrBlockedByPolicy,
		github.ErrRefused, github.ErrOutOfBounds, github.ErrPushRefused, github.ErrBranchMoved, github.ErrPullClosed, doctor.ErrCredentialInside):
		return exitRefused
	case is(pair.ErrLost, provision.ErrNoProof):
		return exitEngine
	case is(loop.ErrFailed, doctor.ErrRed, doctor.ErrUnsure):
		return exitFailed
	case isEngine(err):
		return exitEngine
	}
	return exitFailed
}

// isEngine reports whether err is trouble with the engine itself.
func isEngine(err error) bool {
	for _, kind := range []error{
		sbx.ErrNotInstalled, sbx.ErrForeignTool, sbx.ErrNotSignedIn, sbx.ErrPolicyUninitialised, sbx.ErrExists, sbx.ErrNotRunning,
		sbx.ErrEngine, sbx.ErrDaemon, sbx.ErrVersionMismatch, sbx.ErrMountDenied, sbx.ErrPullFailed, sbx.ErrDiskFull, sbx.ErrKeyring,
		sbx.ErrSecretStore, sbx.ErrRefusedFlag, sbx.ErrUnsupported, sbx.ErrPrompt, sbx.ErrTimeout, sbx.ErrConnectionLost, sbx.ErrLaunch,
		sbx.ErrMalformed, sbx.ErrNotApplied, sbx.ErrNotFound, pair.ErrLost,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	exit, exited := errors.AsType[*sbx.ExitError](err)
	return exited && exit.Op != "cp" // which fails for its files, where nothing of the above is said
}

// hint returns what to do about err, if anything is known.
func hint(err error) string {
	if ws, ok := errors.AsType[*workspace.Error](err); ok && ws.Remedy != "" {
		return ws.Remedy
	}
	_, crashed := errors.AsType[*pair.Crash](err)
	switch {
	case errors.Is(err, pair.ErrLeft):
		return "sbxpair prune"
	case crashed:
		return "tell who makes sbxpair, with what --verbose prints: this is a mistake in it"
	case errors.Is(err, pair.ErrUnreadable):
		return "if a later version of sbxpair wrote it, use that one; if nobody works on the run, move its folder away: prune then finds its sandboxes by their names"
	case errors.Is(err, loop.ErrNoAgent):
		return "use a template that has the CLI, or mount a folder with it: docs/how-to/agent-cli.md"
	case errors.Is(err, provision.ErrNoProof):
		return "sbxpair doctor, then once more: a proof that is not whole is none"
	case errors.Is(err, provision.ErrExpired):
		return "make a new token (sbxpair credential link) and put it where the old one was; what was done is kept in the run's folder"
	case errors.Is(err, provision.ErrPermission), errors.Is(err, provision.ErrCredential):
		return "sbxpair credential link"
	case errors.Is(err, secrets.ErrMissing):
		return "make one fine-grained token for each role and put it where the configuration says (sbxpair config show); docs/how-to/tokens.md"
	}
	h := strings.TrimSpace(sbx.Hint(err))
	if h == sbx.Hint(sbx.ErrNotInstalled) { // the library knows nothing of our flags
		return "install Docker Sandboxes, or use --engine local"
	}
	return h
}
