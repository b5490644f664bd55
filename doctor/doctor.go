// Package doctor answers, before a run, whether a run would start: engine, policy, secrets, tokens, machine, leftovers.
// Each check has an id, one of four verdicts, the behaviour that depends on it, and what to do.
//
// The shallow checks look from outside, need no sandbox and no engine, and change nothing. A shallow green does not
// promise that a model accepts a token (sbx-releases#595). The deep ones make a pair as a run does, lease first, take a
// run's own proof, ask further questions from inside, and always remove the pair: a green deep report means that a run
// will start.
//
// A check that could not be made is [Unknown], tried once more before that unless its time was up, and never remembered.
// One cause is reported once: what hangs on it is listed as not asked, with the id of the check that says why. [Import]
// turns recorded engine calls into fixtures; the package conformance below this one compares engines.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

// Errors of a report. One that is neither is green.
var (
	ErrRed    = errors.New("a check is red")
	ErrUnsure = errors.New("what a run depends on could not be checked")
)

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
	// Because is the id of the check that says why this one was not asked. Empty for one that was.
	Because string `json:"because,omitempty"`
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

// Err is nil for a green report: no check is bad, and each that a run depends on was made. It matches [ErrRed] or else
// [ErrUnsure] and names those checks; a check that was not asked because of another is not named beside it. It matches
// [pair.ErrLeft] as well if the scratch pair may not be gone.
func (r Report) Err() error {
	bad := map[Verdict][]string{}
	for _, c := range r.Checks {
		if about, _ := aboutOf(c.ID); c.Because == "" && (c.Verdict == Bad || about.Vital) {
			bad[c.Verdict] = append(bad[c.Verdict], c.ID)
		}
	}
	var err error
	switch {
	case len(bad[Bad]) > 0:
		err = fmt.Errorf("%w: %s", ErrRed, strings.Join(bad[Bad], ", "))
	case len(bad[Unknown]) > 0:
		err = fmt.Errorf("%w: %s", ErrUnsure, strings.Join(bad[Unknown], ", "))
	}
	if err != nil && r.left != nil {
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
	Config config.Config
	Locate sbx.LocateOptions
	Store  *pair.Store
	State  string                           // sbxpair's folder of state
	Home   string                           // the user's; "" leaves out what is looked for there
	Dir    string                           // the checkout that a run would take; "" looks at none
	Asked  bool                             // Dir was named by the user
	Path   string                           // list of folders in which other programs called sbx are looked for
	Lookup func(string) (string, bool)      // reads the environment
	Reach  func(pair.EngineRef) *sbx.Client // client of an engine that a lease names; nil: leases of other engines are left out
	Limit  time.Duration                    // of one question; 0 means 30 s
	// Prune removes what runs left in an engine, and their workspaces; Lost says what of a run nobody fetched, or nothing. They are
	// those of sbxpair prune. Without Prune, leftovers are told, and not fixed.
	Prune   func(context.Context, pair.EngineRef, []pair.Leftover) error
	Lost    func(pair.RunID) string
	Version string                                // of sbxpair
	Proxy   func(*http.Request) (*url.URL, error) // how this host reaches a model's provider, for a gateway; nil is directly

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
	// The finding on the version says what its client would.
	e.Locate.Client = append(slices.Clone(o.Locate.Client), sbx.WithoutVersionWarnings())
	e.tokens(ctx)
	e.git(ctx)
	e.checkout(ctx)
	e.machine(ctx)
	engine, usable := e.engine(ctx)
	e.path(ctx)
	e.about(ctx, engine, usable)
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
	// silent is the check at which the engine was given up, since it did not answer; "" while it does. late counts the
	// questions in a row that it has not answered.
	silent string
	late   int
	mute   string // a program that did not answer when the engine was chosen
}

func (e *examination) say(format string, args ...any) {
	if e.Progress != nil {
		e.Progress(fmt.Sprintf(format, args...))
	}
}

func (e *examination) add(c Check) {
	about, _ := aboutOf(c.ID)
	c.Affects = about.Affects
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
	c, _ := attempt(ctx, e.limit(), id, do)
	e.add(c)
	return c
}

// askEngine makes one check by asking the engine. One that has not answered two questions in a row is asked no more: each
// would wait as long.
func (e *examination) askEngine(ctx context.Context, id string, do func(context.Context) (Check, error)) {
	if e.silent != "" {
		e.skip(e.silent, id)
		return
	}
	c, err := attempt(ctx, e.limit(), id, do)
	e.add(c)
	e.late++
	if err == nil || !unanswered(err) {
		e.late = 0
	}
	if e.late == 2 {
		e.silent = id
	}
}

// skip adds checks that are not made since another one says why they cannot be.
func (e *examination) skip(because string, ids ...string) {
	for _, id := range ids {
		e.add(Check{ID: id, Verdict: Unknown, Detail: "not asked (see " + because + ")", Because: because})
	}
}

func attempt(ctx context.Context, limit time.Duration, id string, do func(context.Context) (Check, error)) (Check, error) {
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
	return c, err
}

// worthRepeating leaves out the failures that the same call would meet again at once, and those that took all of its time.
func worthRepeating(err error) bool {
	for _, kind := range []error{sbx.ErrKeyring, sbx.ErrUnsupported, sbx.ErrNotSignedIn, sbx.ErrNotInstalled, sbx.ErrInvalid, sbx.ErrPrompt, sbx.ErrTimeout, context.DeadlineExceeded} {
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
		return Check{Verdict: Unknown, Detail: "could not check: no key store (see engine.keyring)", Because: "engine.keyring"}
	case errors.Is(err, sbx.ErrNotSignedIn):
		return Check{Verdict: Unknown, Detail: "could not check: not signed in (see engine.login)", Because: "engine.login"}
	case errors.Is(err, sbx.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return Check{Verdict: Unknown, Detail: "could not check: " + oneLine(err.Error()), Remedy: "sbx daemon status; then, when nothing else runs: sbx daemon restart"}
	}
	return Check{Verdict: Unknown, Detail: "could not check: " + oneLine(err.Error()), Remedy: sbx.Hint(err)}
}

// oneLine joins the lines of a text; where a line ended stays to be seen.
func oneLine(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
