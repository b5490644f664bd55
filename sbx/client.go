package sbx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/secrets"
)

// Timeouts bounds each kind of call. A field that is zero takes the default, which is named with it.
type Timeouts struct {
	Version  time.Duration // version; 20 s
	Query    time.Duration // ls, inspect, policy and secret listings, ports, settings; 75 s: the daemon may take 60 s to start
	Create   time.Duration // create, run: may pull an image; 10 min
	Stop     time.Duration // stop: sbx itself gives up after 120 s; 150 s
	Remove   time.Duration // rm, prune; 150 s
	Change   time.Duration // policy, secret, ports and settings changes; 90 s
	Copy     time.Duration // cp; 10 min
	Template time.Duration // template save and load; 15 min
	Diagnose time.Duration // diagnose, which contacts Docker's servers; 90 s
	Daemon   time.Duration // daemon start, stop, restart; 120 s
}

func (t Timeouts) withDefaults() Timeouts {
	set := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	set(&t.Version, 20*time.Second)
	set(&t.Query, 75*time.Second)
	set(&t.Create, 10*time.Minute)
	set(&t.Stop, 150*time.Second)
	set(&t.Remove, 150*time.Second)
	set(&t.Change, 90*time.Second)
	set(&t.Copy, 10*time.Minute)
	set(&t.Template, 15*time.Minute)
	set(&t.Diagnose, 90*time.Second)
	set(&t.Daemon, 120*time.Second)
	return t
}

// Client drives one engine. It is safe for concurrent use. Make one with [New].
type Client struct {
	run      Runner
	global   []string // flags before the verb
	cloud    bool
	timeouts Timeouts
	log      *slog.Logger
	unwarned bool
	readBack bool
	shared   *shared
}

// shared is what a Client and its Unverified form have in common.
type shared struct {
	scanner *secrets.Scanner

	asking chan struct{} // holds one item while somebody asks for the version

	mu      sync.Mutex
	version *Version
}

// options collects what New is given.
type options struct {
	runner   Runner
	env      []string
	envSet   bool
	added    []string
	appName  string
	cloud    bool
	timeouts Timeouts
	grace    time.Duration
	record   string
	log      *slog.Logger
	unwarned bool
	version  *Version
}

// Option changes how a Client works.
type Option func(*options)

// WithRunner makes r run the calls, in place of [Exec]. Environment, grace and path are then r's own business.
func WithRunner(r Runner) Option { return func(o *options) { o.runner = r } }

// WithEnv gives the environment that calls are made in, of which only the part that [Environ] allows is used. Without it,
// the process's own is taken.
func WithEnv(environ []string) Option {
	return func(o *options) { o.env, o.envSet = environ, true }
}

// WithAddedEnv adds NAME=value pairs to every call, past the allow list.
func WithAddedEnv(pairs ...string) Option {
	return func(o *options) { o.added = append(o.added, pairs...) }
}

// WithAppName makes every call use the engine's state tree of that name (the hidden flag --app-name): its own daemon,
// policy, secrets and sandboxes.
func WithAppName(name string) Option { return func(o *options) { o.appName = name } }

// WithCloud sends every call to the hosted service (--cloud, sbx 0.42).
func WithCloud() Option { return func(o *options) { o.cloud = true } }

// WithTimeouts sets the deadlines of verbs; zero fields keep their defaults.
func WithTimeouts(t Timeouts) Option { return func(o *options) { o.timeouts = t } }

// WithGrace sets the time between interrupt and kill of a call whose context is done; 2 s without it.
func WithGrace(d time.Duration) Option { return func(o *options) { o.grace = d } }

// WithRecorder writes every call to a file of its own in dir, masked: see [Recorder].
func WithRecorder(dir string) Option { return func(o *options) { o.record = dir } }

// WithLogger gives a logger for warnings (untested version, version mismatch; one of each for a Client) and, at debug level,
// one line a call: verb, exit code, time. Never arguments or output. Without it, slog's default logger is taken.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// WithoutVersionWarnings leaves it to the caller to say what [Version.Untested] and [Version.Mismatch] report.
func WithoutVersionWarnings() Option { return func(o *options) { o.unwarned = true } }

// WithVersion tells the Client what [Client.Version] would find, and so saves that call.
func WithVersion(v Version) Option { return func(o *options) { o.version = &v } }

// New returns a Client for the engine's program at path. Nothing is started.
func New(path string, opts ...Option) *Client {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.runner == nil {
		if !o.envSet {
			o.env = os.Environ() // as os/exec does
		}
		o.runner = Exec{Path: path, Env: append(Environ(o.env), o.added...), Grace: o.grace}
	}
	if o.record != "" {
		o.runner = &Recorder{Dir: o.record, Next: o.runner}
	}
	if o.log == nil {
		o.log = slog.Default()
	}
	c := &Client{
		run: o.runner, cloud: o.cloud, timeouts: o.timeouts.withDefaults(), log: o.log, unwarned: o.unwarned, readBack: true,
		shared: &shared{scanner: secrets.NewScanner(), asking: make(chan struct{}, 1), version: o.version},
	}
	if o.appName != "" {
		c.global = append(c.global, "--app-name="+o.appName)
	}
	return c
}

// Unverified returns a Client over the same engine whose changes are not read back. It is for callers that make several
// changes and then check them with one read each: [Client.VerifyCreated], [Client.VerifyDenied], [Client.VerifyEnv],
// [Client.VerifyRules], [Client.VerifySecrets], [Client.VerifyRemoved]. A change that nobody reads back is not known to have happened.
func (c *Client) Unverified() *Client {
	u := *c
	u.readBack = false
	return &u
}

const opVersion = "version"

// Version returns the engine's name and version. The first answer is kept; a failure is not. The error matches
// [ErrForeignTool] if the program does not answer as Docker's sbx or sbx-local does.
func (c *Client) Version(ctx context.Context) (Version, error) {
	if known := c.knownVersion(); known != nil {
		return *known, nil
	}
	// One asks, the others wait for its answer. The time to wait and to ask are one: behind an engine that hangs, whoever
	// waited would else wait as long again for each of those before.
	caller, begun := ctx, time.Now()
	ctx, cancel := context.WithTimeout(caller, c.timeouts.Version)
	defer cancel()
	select {
	case c.shared.asking <- struct{}{}:
		defer func() { <-c.shared.asking }()
	case <-ctx.Done():
		if caller.Err() != nil {
			return Version{}, fmt.Errorf("sbx %s: %w", opVersion, ctxError(caller))
		}
		return Version{}, timedOut(opVersion, begun)
	}
	if known := c.knownVersion(); known != nil {
		return *known, nil
	}
	v, err := c.askVersion(ctx)
	if err != nil {
		return Version{}, err
	}
	c.shared.mu.Lock()
	c.shared.version = &v
	c.shared.mu.Unlock()
	if v.Untested() && !c.unwarned {
		c.log.Warn("engine version is newer than the newest tested; going on", "engine", v.String(), "tested", Newest().String())
	}
	if v.Mismatch() && !c.unwarned {
		c.log.Warn("engine command and daemon differ in version", "client", v.Client.String(), "server", v.Server.String())
	}
	return v, nil
}

func (c *Client) knownVersion() *Version {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	return c.shared.version
}

func (c *Client) askVersion(ctx context.Context) (Version, error) {
	ask := func(args ...string) (Result, error) {
		return c.call(ctx, opVersion, c.timeouts.Version, Cmd{Args: append([]string{"version"}, args...)})
	}
	res, err := ask("--json")
	// Below 0.42 the flag is refused; another tool may refuse it in words that we do not know.
	if e, failed := errors.AsType[*ExitError](err); failed && (len(e.kinds) == 0 || e.kinds[0] == ErrRefusedFlag) {
		res, err = ask()
	}
	if e, failed := errors.AsType[*ExitError](err); failed && foreign(e) {
		return Version{}, fmt.Errorf("%w: %v", ErrForeignTool, err) // what its words would mean to us does not count
	}
	v, parseErr := ParseVersion(res.Stdout)
	switch {
	case err != nil && parseErr == nil && v.Mismatch() && errors.Is(err, ErrPrompt):
		return v, nil // it says both versions, and then asks to restart the daemon (sbx 0.37)
	case err != nil:
		return Version{}, err
	case parseErr != nil:
		return Version{}, fmt.Errorf("sbx %s: %w", opVersion, parseErr)
	}
	return v, nil
}

// foreign reports whether a failure of "sbx version" is not one of Docker's sbx, which has the verb in every version, signed
// out and without a daemon too, exits 1 and says why behind a prefix.
func foreign(e *ExitError) bool {
	if len(e.kinds) > 0 {
		return e.kinds[0] == ErrRefusedFlag && !strings.Contains(e.Stderr, "--app-name") // ours, and hidden
	}
	return e.Code != 1 || !hasErrorPrefix(strings.TrimSpace(e.Stderr))
}

// ready makes sure, before the first verb runs, that the program is Docker's sbx or sbx-local, in a version that can be
// driven. Login, daemon and diagnosis are no exception: the version needs none of them.
func (c *Client) ready(ctx context.Context, op string) error {
	if err := c.require(ctx, op, FeatureDriven); err != nil {
		return err
	}
	if c.cloud {
		return c.require(ctx, op, FeatureCloud)
	}
	return nil
}

// require returns an UnsupportedError unless the engine has every one of the features.
func (c *Client) require(ctx context.Context, op string, features ...Feature) error {
	for _, f := range features {
		v, err := c.Version(ctx)
		if err != nil {
			return err
		}
		if !v.Has(f) {
			return &UnsupportedError{Op: op, Feature: string(f), Need: needs(f), Have: v}
		}
	}
	return nil
}

// has reports whether the engine has f.
func (c *Client) has(ctx context.Context, f Feature) (bool, error) {
	v, err := c.Version(ctx)
	return v.Has(f), err
}

// call runs one verb to its end. A failure comes with the Result as far as there is one.
func (c *Client) call(ctx context.Context, op string, limit time.Duration, cmd Cmd) (Result, error) {
	res, err := c.start(ctx, op, limit, cmd)
	if err != nil {
		return res, err
	}
	if res.Code != 0 {
		return res, c.failure(op, res, cmd.Args)
	}
	if res.StdoutTruncated {
		return res, fmt.Errorf("sbx %s: %w", op, malformed("%d bytes of output", res.StdoutBytes))
	}
	return res, nil
}

// withGlobal puts the global flags before the verb. The version is that of the command on this machine, whatever is cloud.
func (c *Client) withGlobal(op string, args []string) []string {
	if c.cloud && op != opVersion {
		return slices.Concat(c.global, []string{"--cloud"}, args)
	}
	return slices.Concat(c.global, args)
}

// start runs one verb; a non-zero exit is left to the caller. limit 0 means no deadline but ctx's.
func (c *Client) start(ctx context.Context, op string, limit time.Duration, cmd Cmd) (Result, error) {
	cmd.Op = op
	if slices.ContainsFunc(cmd.Args, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
		return Result{Code: -1}, invalid(op, "argument with a zero byte") // no system can pass it on
	}
	if op != opVersion {
		if err := c.ready(ctx, op); err != nil {
			return Result{Code: -1}, err
		}
	}
	cmd.Args = c.withGlobal(op, cmd.Args)
	begun := time.Now()
	runCtx := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		runCtx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	res, err := c.run.Run(runCtx, cmd)
	c.log.Debug("engine call", "op", op, "code", res.Code, "took", time.Since(begun))
	res.Stdout, res.Stderr = whole(res.Stdout, cmd.Redact), whole(res.Stderr, cmd.Redact)
	if err != nil {
		prompt := c.findPrompt(op, c.text(res), cmd.Args)
		switch {
		case runCtx.Err() == nil || !errors.Is(err, runCtx.Err()):
			return res, fmt.Errorf("sbx %s: %w", op, err)
		case !errors.Is(err, context.DeadlineExceeded):
			return res, fmt.Errorf("sbx %s: %w", op, err)
		case prompt != nil && op != opExec && op != opAttach:
			prompt.kinds = append(slices.Clone(prompt.kinds), ErrTimeout)
			return res, prompt
		}
		return res, timedOut(op, begun)
	}
	if res.Killed {
		return res, &ConnectionError{Op: op, Text: tailText(trimError(c.text(res)), 1<<10)}
	}
	if res.Code == 0 && op != opExec && op != opAttach {
		return res, c.unanswered(op, res, cmd.Args)
	}
	return res, nil
}

func timedOut(op string, begun time.Time) error {
	hint := ""
	switch { // a stuck daemon or login lock makes every verb hang (sbx-releases#542, #381)
	case op == opExec || op == opAttach:
	case strings.HasPrefix(op, "daemon "):
		hint = "sbx daemon restart (this stops all sandboxes)"
	default:
		hint = "check with: sbx daemon status"
	}
	return &TimeoutError{Op: op, After: time.Since(begun), cause: context.DeadlineExceeded, hint: hint}
}

// whole masks values that the engine printed in pieces, with escapes or control characters between them: cleaned of
// those for an error they would be whole again. Output without such a value stays as it is, byte for byte.
func whole(out []byte, values []secrets.Value) []byte {
	if len(values) == 0 || len(out) == 0 {
		return out
	}
	redact := secrets.NewRedactor(values...)
	cleaned := []byte(clean(out))
	if !redact.Contains(cleaned) {
		return out
	}
	return redact.Bytes(cleaned)
}

// maxErrorText bounds the text of an ExitError.
const maxErrorText = 4 << 10

// text joins what a call said, for people: standard error first, credentials masked by shape as well.
func (c *Client) text(res Result) string {
	tail := func(b []byte) string { return clean(b[max(0, len(b)-4*maxErrorText):]) }
	return c.maskShapes(strings.TrimSpace(strings.TrimSpace(tail(res.Stderr)) + "\n" + strings.TrimSpace(tail(res.Stdout))))
}

// maskShapes masks what looks like a credential although nobody told us its value: sbx shows prefix and suffix of what it
// stores, and a failing verb may echo more.
func (c *Client) maskShapes(text string) string { return c.shared.scanner.Mask(text) }

// failure turns a non-zero exit into a typed error. args are those of the verb.
func (c *Client) failure(op string, res Result, args []string) error {
	text := c.text(res)
	kinds := classify(text, args)
	if prompt := c.findPrompt(op, text, c.withGlobal(op, args)); prompt != nil {
		prompt.kinds = append(slices.Clone(prompt.kinds), kinds...)
		return prompt
	}
	e := &ExitError{Op: op, Code: res.Code, Stderr: tailText(text, maxErrorText), kinds: kinds}
	for _, k := range kindHints() {
		if errors.Is(e, k.kind) {
			e.Hint = k.hint
			break
		}
	}
	return e
}

// read runs a verb that prints a listing: with --json where the engine takes it, else as text.
func (c *Client) read(ctx context.Context, op string, args ...string) ([]byte, error) {
	out, err := c.query(ctx, op, append(args, "--json")...)
	if errors.Is(err, ErrRefusedFlag) {
		out, err = c.query(ctx, op, args...)
	}
	return out, err
}

// query runs a verb that prints what is there. An error of the engine beside an answer is a failure whatever the exit
// status: the answer is then not all that there is.
func (c *Client) query(ctx context.Context, op string, args ...string) ([]byte, error) {
	res, err := c.call(ctx, op, c.timeouts.Query, Cmd{Args: args, MaxCapture: maxListing})
	if err == nil {
		err = c.besideAnswer(op, res, args)
	}
	return res.Stdout, err
}

// besideAnswer gives the failure that standard error tells of although the verb exited with 0: an error of a known kind, or
// words that say that something is missing. Any other is noise that says nothing of the answer.
func (c *Client) besideAnswer(op string, res Result, args []string) error {
	var said []string
	for line := range strings.Lines(clean(res.Stderr[max(0, len(res.Stderr)-4*maxErrorText):])) {
		if line = strings.TrimSpace(line); hasErrorPrefix(line) && len(classify(line, args)) > 0 || saysIncomplete(line) {
			said = append(said, line)
		}
	}
	if said == nil {
		return nil
	}
	return c.failure(op, Result{Stderr: []byte(strings.Join(said, "\n"))}, args)
}

// maxListing bounds a listing: 10,000 sandboxes are about 4 MiB of JSON.
const maxListing = 64 << 20

// change runs a verb that changes something and prints little.
func (c *Client) change(ctx context.Context, op string, args ...string) (Result, error) {
	return c.call(ctx, op, c.timeouts.Change, Cmd{Args: args})
}

// changeForced runs args with force appended, and without it if the version does not know the flag: it came to some
// verbs long after they did.
func (c *Client) changeForced(ctx context.Context, op, force string, args ...string) (Result, error) {
	res, err := c.change(ctx, op, append(append([]string{}, args...), force)...)
	if errors.Is(err, ErrRefusedFlag) {
		res, err = c.change(ctx, op, args...)
	}
	return res, err
}

// stdinOf returns the value's bytes, without a line end: some stores keep one.
func stdinOf(v secrets.Value) io.Reader { return v.Reader() }
