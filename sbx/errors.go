package sbx

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/secrets"
)

// The kinds of failure, a closed set. Every error of this package matches at least one of them with errors.Is, or is
// an [*ExitError] whose text we do not know, or is the caller's own context error.
var (
	// ErrNotInstalled: there is no such program.
	ErrNotInstalled = errors.New("engine program not found")
	// ErrForeignTool: the program is another tool that shares the name.
	ErrForeignTool = errors.New("not Docker's sbx but another tool of that name")
	// ErrNotSignedIn: the engine wants a Docker login.
	ErrNotSignedIn = errors.New("not signed in to Docker")
	// ErrSessionExpired: there was a login and it ran out or cannot be refreshed. Such errors match ErrNotSignedIn too.
	ErrSessionExpired = errors.New("docker session expired")
	// ErrPolicyUninitialised: no network policy preset was chosen yet on this machine.
	ErrPolicyUninitialised = errors.New("network policy not initialised")
	// ErrNotFound: the sandbox, rule, secret, template or setting named does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken, or the thing was set up before.
	ErrExists = errors.New("already exists")
	// ErrNameLeaked: the engine says a name is taken that its own listing does not show (sbx-releases#129). Such errors
	// match ErrExists too.
	ErrNameLeaked = errors.New("name leaked by the engine")
	// ErrConflict: the request contradicts a rule, port or state that is there.
	ErrConflict = errors.New("conflicts with what is there")
	// ErrNotRunning: the sandbox is stopped or lost, and the call needs it running.
	ErrNotRunning = errors.New("sandbox not running")
	// ErrEngine: the engine's own machinery failed (HTTP 500 from its daemon, runtime gone).
	ErrEngine = errors.New("engine fault")
	// ErrDaemon: the engine's daemon does not answer or does not start.
	ErrDaemon = errors.New("engine daemon not answering")
	// ErrVersionMismatch: the command and its daemon are of different versions.
	ErrVersionMismatch = errors.New("engine command and daemon differ in version")
	// ErrMountDenied: policy forbids mounting the workspace.
	ErrMountDenied = errors.New("mount denied by policy")
	// ErrPullFailed: the template image could not be had.
	ErrPullFailed = errors.New("template image pull failed")
	// ErrDiskFull: no space left for the engine.
	ErrDiskFull = errors.New("no space left on the engine's disk")
	// ErrKeyring: the host's key store is absent or locked.
	ErrKeyring = errors.New("host key store not usable")
	// ErrSecretStore: the engine's own list of secrets is broken (sbx-releases#329).
	ErrSecretStore = errors.New("engine secret store broken")
	// ErrRefusedFlag: the engine does not know a flag or verb that we sent.
	ErrRefusedFlag = errors.New("engine refused a flag")
	// ErrUnsupported: the installed engine cannot do this. The error is an [*UnsupportedError].
	ErrUnsupported = errors.New("not supported by this engine")
	// ErrPrompt: the engine asked a question. The error is a [*PromptError].
	ErrPrompt = errors.New("engine asks a question")
	// ErrTimeout: the deadline of the verb passed.
	ErrTimeout = errors.New("timed out")
	// ErrConnectionLost: the engine's command was killed in the middle, so nobody knows how the work ended.
	ErrConnectionLost = errors.New("connection to the engine lost")
	// ErrLaunch: a sandbox could not start the program that it was told to run. The error is a [*LaunchError].
	ErrLaunch = errors.New("program could not be started in the sandbox")
	// ErrMalformed: the output is not what this verb prints in any version that we know.
	ErrMalformed = errors.New("unexpected engine output")
	// ErrNotApplied: the engine said done, and a later read does not show it. The error is a [*NotAppliedError].
	ErrNotApplied = errors.New("did not take effect")
	// ErrInvalid: an argument was refused before anything ran.
	ErrInvalid = errors.New("invalid argument")
)

// ExitError reports that the engine's command ran and failed. It matches the kinds that its text stands for; a text
// that we do not know, or none, leaves it without one.
type ExitError struct {
	Op     string // client method, such as "create"
	Code   int    // exit status
	Stderr string // tail of what it said (standard error, else standard output), redacted
	Hint   string // what to do, as a command to paste where there is one; may be empty
	kinds  []error
}

// Error gives the operation, the kind if there is one, and the text.
func (e *ExitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sbx %s: ", e.Op)
	if len(e.kinds) > 0 {
		fmt.Fprintf(&b, "%v: ", e.kinds[0])
	}
	text := e.Stderr
	if text == "" {
		text = "no message"
	}
	fmt.Fprintf(&b, "exit %d: %s", e.Code, text)
	return b.String()
}

// Unwrap gives the kinds.
func (e *ExitError) Unwrap() []error { return e.kinds }

// PromptError reports that the engine stopped at a question, which this package never answers.
type PromptError struct {
	Op       string
	Question string // the engine's own words, one line
	Remedy   string // command to run by hand, or what to do
	kinds    []error
}

// Error gives the question and the way out.
func (e *PromptError) Error() string {
	return fmt.Sprintf("sbx %s: engine asks %q; %s", e.Op, e.Question, e.Remedy)
}

// Unwrap gives the kinds; one of them is always ErrPrompt.
func (e *PromptError) Unwrap() []error { return append([]error{ErrPrompt}, e.kinds...) }

// UnsupportedError reports, before anything ran, that the installed engine cannot do what was asked.
type UnsupportedError struct {
	Op      string
	Feature string  // what was asked, in words
	Need    string  // what would do, such as "sbx 0.38 or later"
	Have    Version // what is installed; zero if it was not asked
}

// Error says what is needed and what is there.
func (e *UnsupportedError) Error() string {
	have := e.Have.String()
	if have == "" {
		return fmt.Sprintf("sbx %s: %s needs %s", e.Op, e.Feature, e.Need)
	}
	return fmt.Sprintf("sbx %s: %s needs %s; installed is %s", e.Op, e.Feature, e.Need, have)
}

// Unwrap returns ErrUnsupported.
func (e *UnsupportedError) Unwrap() error { return ErrUnsupported }

// NotAppliedError reports that a read after a change does not show the change.
type NotAppliedError struct {
	Op      string
	Missing []string // one entry for each thing that did not take
}

// Error lists what did not take.
func (e *NotAppliedError) Error() string {
	return fmt.Sprintf("sbx %s: %v: %s", e.Op, ErrNotApplied, strings.Join(e.Missing, "; "))
}

// Unwrap returns ErrNotApplied.
func (e *NotAppliedError) Unwrap() error { return ErrNotApplied }

// notApplied gives nil if nothing is missing.
func notApplied(op string, missing ...string) error {
	if len(missing) == 0 {
		return nil
	}
	return &NotAppliedError{Op: op, Missing: missing}
}

// LaunchError reports that the sandbox is there and could not start the program: it does not exist in the sandbox, or
// may not be executed. sbx prints this on standard output and exits 127 or 126.
type LaunchError struct {
	Sandbox string
	Program string
	Code    int // 126 or 127
	Text    string
}

// Error names the program and the runtime's reason.
func (e *LaunchError) Error() string {
	return fmt.Sprintf("sbx exec: %v: %s in %s: %s", ErrLaunch, e.Program, e.Sandbox, e.Text)
}

// Unwrap returns ErrLaunch.
func (e *LaunchError) Unwrap() error { return ErrLaunch }

// TimeoutError reports that the engine's command was ended because its time was up.
type TimeoutError struct {
	Op    string
	After time.Duration // how long it ran
	cause error         // context.DeadlineExceeded
	hint  string
}

// Error gives the time it was given.
func (e *TimeoutError) Error() string {
	text := fmt.Sprintf("sbx %s: %v after %s", e.Op, ErrTimeout, e.After.Round(time.Millisecond))
	if e.hint != "" {
		text += "; " + e.hint
	}
	return text
}

// Unwrap returns ErrTimeout and context.DeadlineExceeded.
func (e *TimeoutError) Unwrap() []error { return []error{ErrTimeout, e.cause} }

// ConnectionError reports that the engine's command was ended by a signal that we did not send.
type ConnectionError struct {
	Op   string
	Text string // tail of what it said, redacted
}

// Error says that the outcome is unknown.
func (e *ConnectionError) Error() string {
	text := fmt.Sprintf("sbx %s: %v: the command was killed; how the work ended is not known", e.Op, ErrConnectionLost)
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// Unwrap returns ErrConnectionLost.
func (e *ConnectionError) Unwrap() error { return ErrConnectionLost }

func invalid(op, format string, args ...any) error {
	return fmt.Errorf("sbx %s: %w: %s", op, ErrInvalid, fmt.Sprintf(format, args...))
}

// MalformedError reports output that is not what its verb prints in any version that we know. It shows the output, since
// whoever has to mend this needs to see it.
type MalformedError struct {
	Reason string // what is wrong, redacted
	Text   string // start of the output in one line, redacted; may be empty
}

// Error gives the reason and the text.
func (e *MalformedError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%v: %s", ErrMalformed, e.Reason)
	}
	return fmt.Sprintf("%v: %s, in: %s", ErrMalformed, e.Reason, e.Text)
}

// Unwrap returns ErrMalformed.
func (e *MalformedError) Unwrap() error { return ErrMalformed }

// reason is one masked line: it may quote what an engine printed, which must not act on a terminal.
func reason(format string, args []any) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, secrets.NewScanner().Mask(fmt.Sprintf(format, args...)))
}

func malformed(format string, args ...any) error {
	return &MalformedError{Reason: reason(format, args)}
}

// malformedIn is malformed with the output to show.
func malformedIn(out []byte, format string, args ...any) error {
	return &MalformedError{reason(format, args), excerpt(out)}
}

// showing runs a parser and looks at what it made. The error shows the output.
func showing[T any](out []byte, parse func([]byte) (T, error), check func(T) error) (T, error) {
	v, err := parse(out)
	if err == nil {
		err = check(v)
	}
	if err == nil {
		return v, nil
	}
	if m, ok := errors.AsType[*MalformedError](err); ok && m.Text == "" {
		m.Text = excerpt(out)
	}
	var zero T
	return zero, err
}

// maxExcerpt bounds what an error shows of output that could not be read.
const maxExcerpt = 240

// starred finds what an engine masks itself, prefix and suffix of a value around stars: not to be shown either.
var starred = regexp.MustCompile(`\S*\*{3}\S*`)

// excerpt shows the start of an output in one line.
func excerpt(out []byte) string {
	const look = 4 * maxExcerpt // a credential that the cut goes through has its shape still
	text := secrets.NewScanner().Mask(clean(out[:min(len(out), look)]))
	text = starred.ReplaceAllString(text, secrets.Mask)
	cut := len(out) > look
	if len(text) > maxExcerpt {
		text, cut = strings.ToValidUTF8(text[:maxExcerpt], ""), true
	}
	text = strings.Join(strings.FieldsFunc(strings.TrimSpace(text), func(r rune) bool { return r == '\n' || r == '\r' }), " ⏎ ")
	switch {
	case text == "":
		return "(nothing)"
	case cut:
		return text + "…"
	}
	return text
}

// Hint returns what a user can do about err, as a command to paste where there is one, or "".
func Hint(err error) string {
	if e, ok := errors.AsType[*ExitError](err); ok && e.Hint != "" {
		return e.Hint
	}
	if e, ok := errors.AsType[*PromptError](err); ok {
		return e.Remedy
	}
	if e, ok := errors.AsType[*TimeoutError](err); ok && e.hint != "" {
		return e.hint
	}
	for _, k := range kindHints() {
		if errors.Is(err, k.kind) {
			return k.hint
		}
	}
	return ""
}

const installHint = "install Docker Sandboxes, or put sbx-local on the path (Linux)"

type kindHint struct {
	kind error
	hint string
}

// kindHints lists what to do for a kind, the more special kind first.
func kindHints() []kindHint {
	return []kindHint{
		{ErrNameLeaked, "sbx rm --force NAME, then sbx daemon restart (this stops all sandboxes)"},
		{ErrSessionExpired, "sbx login"},
		{ErrNotSignedIn, "sbx login"},
		{ErrPolicyUninitialised, "sbx policy init balanced"},
		{ErrVersionMismatch, "sbx daemon restart (this stops all sandboxes)"},
		{ErrSecretStore, "sbx reset --preserve-secrets, or remove the broken entry from the key store"},
		{ErrKeyring, "start and unlock a Secret Service (gnome-keyring, KWallet), or run in a session that has one"},
		{ErrDaemon, "sbx daemon status, then sbx daemon start -d"},
		{ErrEngine, "sbx diagnose"},
		{ErrDiskFull, "free space on the disk that holds the engine's state, or sbx prune"},
		{ErrForeignTool, installHint},
		{ErrNotInstalled, installHint},
	}
}
