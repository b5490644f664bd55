package engine

import (
	"errors"
	"fmt"
)

// Errors that callers tell apart.
var (
	ErrNotFound   = errors.New("sandbox not found")
	ErrExists     = errors.New("sandbox already exists with this name") // sbx's detail of its 409
	ErrRecord     = errors.New("cannot be read")                        // a sandbox's record that is damaged or of another version; Remove takes it away
	ErrNotRunning = errors.New("sandbox is not running")
	ErrDaemon     = errors.New("daemon is not reachable")
	ErrText       = errors.New("not UTF-8, and would arrive as something else")
)

// A NameError is a sandbox name that sbx 0.43 and later would refuse.
type NameError struct{ Name, Reason string }

func (e *NameError) Error() string {
	return fmt.Sprintf("invalid sandbox name %q: %s", e.Name, e.Reason)
}

// A WorkspaceError is a folder that may not, or cannot, be mounted.
type WorkspaceError struct{ Path, Reason string }

func (e *WorkspaceError) Error() string { return fmt.Sprintf("workspace %s: %s", e.Path, e.Reason) }

// An IsolationError says why gVisor cannot run here, and what would let it. Nothing weaker is ever tried.
type IsolationError struct {
	Cause  string
	Remedy string
	Detail string // gVisor's own words
}

func (e *IsolationError) Error() string {
	return fmt.Sprintf("gVisor cannot run here: %s; %s", e.Cause, e.Remedy)
}

// A LaunchError is a program that could not be started in a running sandbox. Text is worded as the OCI runtime of sbx
// words it, for standard output; the exit code is 127.
type LaunchError struct{ Text string }

func (e *LaunchError) Error() string { return e.Text }
