// Package conformance asks one list of questions of any engine that speaks sbx's command line, and compares the answers
// with what Docker's sbx 0.47 is known to do: verbs, exit codes, which stream carries what, JSON, names, network rules,
// secrets, mounts, copying, and the life of a sandbox.
//
// A difference is a defect of the engine, or a new fact about sbx; those that are understood are listed by [Known]. Only
// what one or two sandboxes of the caller's names need is made; state that others share is changed only if the caller says
// that nobody shares it. Sources of the expectations: fixtures/sbx/README.md.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// ErrDiffers matches the error of a report with a difference that nobody has explained.
var ErrDiffers = errors.New("the engine differs from sbx")

// Verdict is how an answer compares.
type Verdict string

// The verdicts.
const (
	Same    Verdict = "same"
	Known   Verdict = "known"   // another answer, and [Differences] says why
	Differs Verdict = "differs" // another answer
	Skipped Verdict = "skipped" // not asked; the reason says why
	Unknown Verdict = "unknown" // asked, and no answer came
)

// Result is one line of the table.
type Result struct {
	ID      string  `json:"id"`
	Want    string  `json:"want"`
	Got     string  `json:"got,omitempty"` // empty where it is as wanted
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
}

// Report is the whole table.
type Report struct {
	Engine    string        `json:"engine_version"` // name and version, such as "sbx 0.47.0"
	Isolation string        `json:"isolation,omitempty"`
	Results   []Result      `json:"results"`
	Took      time.Duration `json:"took_ns"`
}

// Err is nil unless something differs without a known reason; it then matches [ErrDiffers] and names it.
func (r Report) Err() error {
	var ids []string
	for _, res := range r.Results {
		if res.Verdict == Differs {
			ids = append(ids, res.ID)
		}
	}
	if ids == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrDiffers, strings.Join(ids, ", "))
}

// Count is how many results have the verdict.
func (r Report) Count(v Verdict) int {
	n := 0
	for _, res := range r.Results {
		if res.Verdict == v {
			n++
		}
	}
	return n
}

// Options says what to ask, and of whom.
type Options struct {
	Runner sbx.Runner // runs the engine's command
	Global []string   // arguments before every verb, such as --app-name=NAME
	// First and Second are the names of the sandboxes. The caller sees to it that they are free, on record before they are
	// made, and removed afterwards.
	First, Second string
	Dir           string // an empty folder of this machine, which First mounts
	// Alone says that nobody else uses the engine's state, so that global secrets and rules may be made and its policy set up.
	Alone bool
	// ShapeOnly leaves out what needs a real sandbox: for a fake engine.
	ShapeOnly bool
	Progress  func(id string) // told each question before it is asked; nil is fine
	Limit     time.Duration   // of one question; 0 means 60 s
}

// probe is one question. ask returns what is other than wanted, or "".
type probe struct {
	id    string
	want  string
	needs needs
	ask   func(ctx context.Context, s *session) (string, error)
}

// needs are conditions of a question.
type needs uint

const (
	box      needs = 1 << iota // the first sandbox
	inside                     // a real one, in which programs run
	real                       // an engine that is no fake: fakes refuse what no sbx is known to take, and know no addresses
	alone                      // state that nobody shares
	upstream                   // host names that lead to a server of ours (sbx-local's --resolve)
)

// errSkip is the reason why a question does not apply after all.
type errSkip string

func (e errSkip) Error() string { return string(e) }

// Run asks everything and returns the table. The error says that not even the engine's version could be had; a question
// without an answer is a line of the table.
func Run(ctx context.Context, o Options) (Report, error) {
	started := time.Now()
	s := &session{Options: o, run: o.Runner}
	if len(o.Global) > 0 {
		s.run = sbx.RunnerFunc(func(ctx context.Context, c sbx.Cmd) (sbx.Result, error) {
			c.Args = append(append([]string{}, o.Global...), c.Args...)
			return o.Runner.Run(ctx, c)
		})
	}
	s.client = sbx.New("", sbx.WithRunner(s.run))
	version, err := s.client.Version(ctx)
	if err != nil {
		return Report{}, err
	}
	s.version = version
	if err := s.prepare(); err != nil {
		return Report{}, err
	}
	defer s.close(ctx)
	known := Differences(version.Engine)
	report := Report{Engine: version.String(), Isolation: version.Isolation}
	for _, p := range probes() {
		if err := ctx.Err(); err != nil {
			return report, err
		}
		res := s.one(ctx, p)
		for _, d := range known {
			if d.ID == p.id && res.Verdict == Differs {
				res.Verdict, res.Reason = Known, d.Why
			}
		}
		report.Results = append(report.Results, res)
	}
	report.Took = time.Since(started)
	return report, nil
}

func (s *session) one(ctx context.Context, p probe) Result {
	res := Result{ID: p.id, Want: p.want}
	switch {
	case s.ShapeOnly && p.needs&(inside|upstream|real) != 0:
		res.Verdict, res.Reason = Skipped, "not a real engine"
		return res
	case p.needs&alone != 0 && !s.Alone:
		res.Verdict, res.Reason = Skipped, "it would change what other sandboxes of this engine get; it is asked in a state of its own only (engine.appName: sbxpair-conformance)"
		return res
	case p.needs&upstream != 0 && !s.version.Has(sbx.FeatureResolve):
		res.Verdict, res.Reason = Skipped, "this engine cannot lead a host name to a server of ours"
		return res
	case p.needs&(box|inside|upstream) != 0 && !s.made:
		res.Verdict, res.Reason = Unknown, "the sandbox could not be made"
		return res
	}
	if s.Progress != nil {
		s.Progress(p.id)
	}
	limit := s.Limit
	if limit <= 0 {
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := p.ask(ctx, s)
	var skip errSkip
	switch {
	case errors.As(err, &skip):
		res.Verdict, res.Reason = Skipped, string(skip)
	case err != nil:
		res.Verdict, res.Reason = Unknown, oneLine(err.Error())
	case got == "":
		res.Verdict = Same
	default:
		res.Verdict, res.Got = Differs, oneLine(got)
	}
	return res
}

// session is one Run.
type session struct {
	Options
	run     sbx.Runner
	client  *sbx.Client
	version sbx.Version
	made    bool
	host    *hostServer     // on this machine's loopback, plain
	names   *upstreamServer // under names of its own, TLS; nil where the engine cannot be led there
	private string          // a folder that is not mounted
}

func (s *session) prepare() (err error) {
	if s.private, err = os.MkdirTemp("", "sbxpair-conformance-"); err != nil {
		return err
	}
	if s.ShapeOnly {
		return nil
	}
	if s.host, err = startHost(); err != nil {
		return err
	}
	if s.version.Has(sbx.FeatureResolve) {
		s.names, err = startUpstream(filepath.Join(s.private, "ca.pem"))
	}
	return err
}

// close ends the servers. A global secret is gone by then, unless the questions were cut off in between.
func (s *session) close(ctx context.Context) {
	if s.Alone && s.names != nil && ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		s.call(ctx, "secret", "rm", "github", "--force") // its value is made up, and the state is ours alone
	}
	if s.host != nil {
		s.host.close()
	}
	if s.names != nil {
		s.names.close()
	}
	os.RemoveAll(s.private)
}

// call makes one raw call of the engine's command, past the client's reading of it.
func (s *session) call(ctx context.Context, args ...string) (sbx.Result, error) {
	return s.run.Run(ctx, sbx.Cmd{Op: "conformance", Args: args})
}

func (s *session) feed(ctx context.Context, stdin string, args ...string) (sbx.Result, error) {
	return s.run.Run(ctx, sbx.Cmd{Op: "conformance", Args: args, Stdin: strings.NewReader(stdin)})
}

// exec runs a command in the first sandbox.
func (s *session) exec(ctx context.Context, argv ...string) (sbx.Result, error) {
	return s.call(ctx, append([]string{"exec", s.First}, argv...)...)
}

// fetch asks for a URL from inside a sandbox, and returns the status and the body.
func (s *session) fetch(ctx context.Context, name, url string, more ...string) (status string, body string, err error) {
	argv := append([]string{"exec", name, "curl", "-sS", "--max-time", "20", "-w", "\n%{http_code}"}, more...)
	res, err := s.call(ctx, append(argv, url)...)
	if err != nil {
		return "", "", err
	}
	text := string(res.Stdout)
	at := strings.LastIndexByte(text, '\n')
	if at < 0 {
		return "", "", fmt.Errorf("curl (exit %d): %s", res.Code, oneLine(string(res.Stderr)))
	}
	return text[at+1:], text[:at], nil
}

// wanted compares a result with an exit code and texts of both streams; an empty text means that the stream is.
func wanted(res sbx.Result, code int, stdout, stderr string) string {
	return all(
		that(res.Code == code, "exit code %d", res.Code),
		holds("standard output", res.Stdout, stdout),
		holds("standard error", res.Stderr, stderr),
	)
}

func holds(stream string, got []byte, want string) string {
	if want == "" {
		return that(len(got) == 0, "%s has %.160q", stream, got)
	}
	if want == anything {
		return ""
	}
	return that(strings.Contains(string(got), want), "%s has %.160q", stream, got)
}

// anything is a stream about which nothing is asked.
const anything = "\x00"

// that is "" if ok, else the text.
func that(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

func all(texts ...string) string {
	var list []string
	for _, t := range texts {
		if t != "" {
			list = append(list, t)
		}
	}
	return strings.Join(list, "; ")
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
