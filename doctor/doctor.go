// Package doctor answers, before a run, whether a run would start: engine, policy, secrets, tokens, machine, leftovers.
// Each check has an id, one of four verdicts, the behaviour that depends on it, and what to do.
//
// The shallow checks look from outside, need no sandbox and no engine, and change nothing. A shallow green does not
// promise that a model accepts a token (sbx-releases#595). The deep ones make a pair as a run does, lease first, take a
// run's own proof, ask further questions from inside, and always remove the pair: a green deep report means that a run
// will start.
//
// A check that could not be made is [Unknown], tried once more before that, and never remembered. [Import] turns
// recorded engine calls into fixtures; the package conformance below this one compares engines.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

// ErrRed matches the error of a report with a bad check.
var ErrRed = errors.New("a check is red")

// Verdict is what a check found.
type Verdict string

// The verdicts. Unknown is neither green nor red: the check itself could not be made.
const (
	OK      Verdict = "ok"
	Warn    Verdict = "warn"
	Bad     Verdict = "bad"
	Unknown Verdict = "unknown"
)

// Check is one answer.
type Check struct {
	ID      string  `json:"id"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Affects string  `json:"affects"`          // the behaviour that depends on it
	Remedy  string  `json:"remedy,omitempty"` // a command to paste where there is one
	Fix     string  `json:"fix,omitempty"`    // what [Fixes] would do about it; empty if that is not safe to do unasked
	Cached  bool    `json:"cached,omitempty"` // an earlier answer about the same engine and settings
}

// The depths of a report.
const (
	Shallow = "shallow" // nothing was asked from inside a sandbox
	Deep    = "deep"
)

// Report is the answers in the order of the questions.
type Report struct {
	Depth  string         `json:"depth"`
	Engine pair.EngineRef `json:"engine,omitzero"` // zero if none can be used
	Checks []Check        `json:"checks"`
	// Drift lists the deep checks that came out otherwise with another version of the engine, under the same settings.
	Drift []Drift `json:"drift,omitempty"`

	fixes []Fix
	left  error
}

// Err is nil unless a check is bad; it then matches [ErrRed] and names them. It matches [pair.ErrLeft] if the scratch pair
// may not be gone.
func (r Report) Err() error {
	var bad []string
	for _, c := range r.Checks {
		if c.Verdict == Bad {
			bad = append(bad, c.ID)
		}
	}
	if bad == nil {
		return nil
	}
	err := fmt.Errorf("%w: %s", ErrRed, strings.Join(bad, ", "))
	if r.left != nil {
		err = fmt.Errorf("%w: %w", err, r.left)
	}
	return err
}

// Check returns the check with that id.
func (r Report) Check(id string) (Check, bool) {
	for _, c := range r.Checks {
		if c.ID == id {
			return c, true
		}
	}
	return Check{}, false
}

// Options is what Examine looks at.
type Options struct {
	Config  config.Config
	Locate  sbx.LocateOptions
	Store   *pair.Store
	State   string                           // sbxpair's folder of state
	Home    string                           // the user's; "" leaves out what is looked for there
	Dir     string                           // the checkout that a run would take; "" looks at none
	Path    string                           // list of folders in which other programs called sbx are looked for
	Lookup  func(string) (string, bool)      // reads the environment
	Reach   func(pair.EngineRef) *sbx.Client // client of an engine that a lease names; nil: leases of other engines are left out
	Limit   time.Duration                    // of one question; 0 means 30 s
	Version string                           // of sbxpair

	Deep     bool
	Fresh    bool         // ask again what is remembered
	Progress func(string) // told what is being done; nil is fine
}

func (o Options) limit() time.Duration {
	if o.Limit > 0 {
		return o.Limit
	}
	return 30 * time.Second
}

// Examine makes every check and goes on after a bad one. Without Deep it changes nothing.
func Examine(ctx context.Context, o Options) Report {
	e := &examination{Options: o}
	e.tokens(ctx)
	e.git(ctx)
	e.checkout(ctx)
	e.machine(ctx)
	e.path(ctx)
	engine, usable := e.engine(ctx)
	if engine.Path != "" {
		e.about(ctx, engine, usable)
	}
	e.leftovers(ctx, engine, usable)
	if usable {
		e.report.Engine = e.ref(engine)
	}
	e.report.Depth = Shallow
	if o.Deep {
		e.deep(ctx, engine, usable)
	}
	return e.report
}

// examination is one Examine.
type examination struct {
	Options
	report Report
	creds  provision.Credentials
	fit    bool // both credentials can work, by their shape
}

func (e *examination) say(format string, args ...any) {
	if e.Progress != nil {
		e.Progress(fmt.Sprintf(format, args...))
	}
}

func (e *examination) add(c Check) {
	c.Affects = affects(c.ID)
	e.report.Checks = append(e.report.Checks, c)
}

// fix notes that a check has a remedy that is safe to carry out.
func (e *examination) fix(f Fix) string {
	e.report.fixes = append(e.report.fixes, f)
	return f.What
}

// ask makes one check. An error means that it could not be made; it is then tried once more, and after that the answer
// is that nobody knows: a probe without an answer says nothing about what it probes.
func (e *examination) ask(ctx context.Context, id string, do func(context.Context) (Check, error)) Check {
	c := attempt(ctx, e.limit(), id, do)
	e.add(c)
	return c
}

func attempt(ctx context.Context, limit time.Duration, id string, do func(context.Context) (Check, error)) Check {
	once := func() (Check, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return do(ctx)
	}
	c, err := once()
	if err != nil && ctx.Err() == nil && worthRepeating(err) {
		c, err = once()
	}
	if err != nil {
		c = undecided(err)
	}
	c.ID = id
	return c
}

// worthRepeating leaves out the failures that the same call would meet again at once.
func worthRepeating(err error) bool {
	for _, kind := range []error{sbx.ErrKeyring, sbx.ErrUnsupported, sbx.ErrNotSignedIn, sbx.ErrNotInstalled, sbx.ErrInvalid, sbx.ErrPrompt} {
		if errors.Is(err, kind) {
			return false
		}
	}
	return true
}

// undecided is a check that could not be made, with the reason. What has a check of its own is named, not repeated.
func undecided(err error) Check {
	switch {
	case errors.Is(err, sbx.ErrKeyring):
		return Check{Verdict: Unknown, Detail: "could not check: no key store (see engine.keyring)"}
	case errors.Is(err, sbx.ErrNotSignedIn):
		return Check{Verdict: Unknown, Detail: "could not check: not signed in (see engine.login)"}
	case errors.Is(err, sbx.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return Check{Verdict: Unknown, Detail: "could not check: " + oneLine(err.Error()), Remedy: "sbx daemon status; then, when nothing else runs: sbx daemon restart"}
	}
	return Check{Verdict: Unknown, Detail: "could not check: " + oneLine(err.Error()), Remedy: sbx.Hint(err)}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
