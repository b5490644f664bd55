package workspace

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of refusal, for errors.Is.
var (
	ErrNoGit          = errors.New("git is not installed")
	ErrNotRepository  = errors.New("not a git repository")
	ErrNoCommits      = errors.New("the repository has no commit")
	ErrMoved          = errors.New("the checkout changed meanwhile")
	ErrDirty          = errors.New("the work tree has uncommitted changes")
	ErrLinkedWorktree = errors.New("linked work tree")
	ErrBare           = errors.New("bare repository")
	ErrSubmodules     = errors.New("the repository has submodules")
	ErrLFS            = errors.New("the repository keeps files in Git LFS")
	ErrPartialClone   = errors.New("partial clone")
	ErrForbiddenDir   = errors.New("folder holds credentials or a home folder")
	ErrBadPath        = errors.New("unusable path")
	ErrBadBranch      = errors.New("unusable branch name")
	ErrNested         = errors.New("destination lies inside the repository")
	ErrDestination    = errors.New("destination is not an empty folder")
	ErrMode           = errors.New("unknown workspace mode")
	ErrEdit           = errors.New("the edits do not fit the repository")
	ErrNoSpace        = errors.New("no space left on device")
	ErrUnusable       = errors.New("workspace is not usable inside the sandbox")

	ErrTooLarge = errors.New("the end state is too large")
	ErrHostile  = errors.New("the end state was refused")
	ErrGuest    = errors.New("the end state could not be produced inside the sandbox")
	ErrEmpty    = errors.New("there is no change to bundle")
)

// Error is a refusal of [Prepare] or [Workspace.Probe]. It matches its Kind.
type Error struct {
	Kind   error
	Path   string   // what it is about: a folder, or a branch name
	Detail string   // one line, may be empty
	Files  []string // for ErrDirty, ErrSubmodules, ErrLFS: the first ones, at most listed
	Total  int      // how many there are in all
	Remedy string   // what the user can do, as a sentence or a command
}

// listed is how many files an Error names.
const listed = 10

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Kind.Error())
	if e.Path != "" {
		fmt.Fprintf(&b, ": %q", e.Path)
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	if e.Total > 0 {
		fmt.Fprintf(&b, ": %d in all: %s", e.Total, quoted(e.Files))
		if e.Total > len(e.Files) {
			b.WriteString(", …")
		}
	}
	return b.String()
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Hint returns the remedy; it is what a command prints below the error.
func (e *Error) Hint() string { return e.Remedy }

// TooLargeError reports an end state, or a file in it, over the limit. It matches [ErrTooLarge].
type TooLargeError struct {
	Size    int64 // bytes of the bundle that the sandbox made, or of the file; what arrived, where it lied about its size
	Limit   int64
	Largest []Blob // the biggest new objects, biggest first
}

// Blob is a file's content by size, as the sandbox reported it: for a hint, not for a decision.
type Blob struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

func (e *TooLargeError) Error() string {
	s := fmt.Sprintf("%v: %d bytes, limit %d", ErrTooLarge, e.Size, e.Limit)
	for i, b := range e.Largest {
		if i == 3 {
			break
		}
		s += fmt.Sprintf("; %q %d", b.Path, b.Size)
	}
	return s
}

// Is matches ErrTooLarge.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// HostileError reports an end state that breaks a rule. It matches [ErrHostile]. Nothing of it was kept.
type HostileError struct {
	Path   string // the path in question, if it is about one
	Reason string
}

func (e *HostileError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%v: %s", ErrHostile, e.Reason)
	}
	return fmt.Sprintf("%v: %q: %s", ErrHostile, e.Path, e.Reason)
}

// Is matches ErrHostile.
func (e *HostileError) Is(target error) bool { return target == ErrHostile }

// GuestError reports that the script inside the sandbox failed. It matches [ErrGuest].
type GuestError struct {
	Code   int
	Stderr string // the last 4 KiB
}

func (e *GuestError) Error() string {
	return fmt.Sprintf("%v: exit %d: %s", ErrGuest, e.Code, oneLine(e.Stderr))
}

// Is matches ErrGuest.
func (e *GuestError) Is(target error) bool { return target == ErrGuest }

// GitError reports a git process of ours on the host that failed for a reason that has no kind of its own.
type GitError struct {
	Op     string // such as "fetch"
	Code   int    // exit status, -1 if a signal ended it
	Stderr string // the last 4 KiB
	kind   error
}

func (e *GitError) Error() string {
	return fmt.Sprintf("git %s: exit %d: %s", e.Op, e.Code, oneLine(e.Stderr))
}

// Unwrap returns ErrNoSpace or ErrTooLarge where that is the cause.
func (e *GitError) Unwrap() error { return e.kind }

func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(strings.TrimSpace(s), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

// first returns the head of names for an Error.
func first(names []string) []string { return names[:min(len(names), listed)] }
