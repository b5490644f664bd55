package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/secrets"
)

// Limits bound a run. Zeros are the defaults; negative values are refused.
type Limits struct {
	Wall     time.Duration // from start to end; 60 min
	Idle     time.Duration // without a byte of output and without computing; 10 min
	Grace    time.Duration // from the request to end to the end by force; 5 s
	MaxTurns int           // 0 sets no limit
}

// Options are what Run needs besides the task.
type Options struct {
	Limits
	Sink          func(Event)       // gets each event as it happens, from one goroutine at a time
	Transcript    io.Writer         // gets each line of standard output as it came, masked
	MaxTranscript int64             // bytes; 256 MiB. What goes over is dropped and counted
	Redact        *secrets.Redactor // masks events, transcript and result; nil masks nothing
	// Spent, if not nil, is told what the session has used whenever the CLI says so; true ends the agent.
	Spent func(turns int, u Usage) bool
	// Meter is how often a CLI that writes down what it uses, but does not say it, is looked at for Spent while it calls its model; 5 s.
	Meter time.Duration
}

// Result is how a run went. It is complete in itself; [Judge] says what it means.
type Result struct {
	Agent        string
	Code         int // exit status; -1 if it is not known
	Stop         Stop
	Summary      Summary
	Usage        Usage
	SessionID    string
	Stderr       string // the last 8 KiB, masked
	LastOutput   string // the last line of standard output, whole or not
	Took         time.Duration
	Leftover     int   // processes that were still there after it ended by itself, and were ended
	DroppedLines int   // longer than 1 MiB
	DroppedBytes int64 // of the transcript
	ReadOnly     bool
	Limits       Limits // as they were applied

	expectsEnd bool
	structured bool // the CLI's output has a form of its own
}

// launch makes the run's folder and becomes the agent.
const launch = `umask 077; mkdir -p "$1/logs" || exit 125; umask 022; shift; exec "$@"`

// launchFresh does so with a home folder of its own there, in which only the caches are the user's: Copilot unpacks 235 MB into its.
const launchFresh = `umask 077; h="$1/home"; mkdir -p "$1/logs" "$h" "$HOME/.cache" && ln -s "$HOME/.cache" "$h/.cache" || exit 125
umask 022; shift; HOME=$h; export HOME; exec "$@"`

// place writes one file below the home folder from standard input.
const place = `umask 077; [ $# = 1 ] || { mkdir -p "$2" && HOME=$2; }; cd && mkdir -p "$(dirname "./$1")" && cat >"./$1"`

//go:embed sweep.sh
var sweepScript string

// pulse adds up the processor time of the run's processes, in ticks, and says how many of them want a processor right now: on
// a crowded machine they may have to wait for it.
const pulse = `t=0 r=0; for f in $(grep -ls "SBXPAIR_STEP=$1" /proc/[0-9]*/environ); do
s=; IFS= read -r s 2>/dev/null <"${f%/environ}/stat" || continue; set -- ${s##*) }; t=$((t + ${12} + ${13})); [ "$1" = R ] && r=$((r + 1)); done; echo "$t $r"`

// ErrLeftover matches the error that processes of the agent may still be there; a fork bomb can hold up what ends it. By
// itself it says nothing against the [Result].
var ErrLeftover = errors.New("end the processes")

// Run runs t in the sandbox behind r and returns when all its processes are gone. The error is about the sandbox: that the
// agent could not be started, or the connection broke, or [ErrLeftover]. What the agent did, and that it was stopped (by ctx
// too), is in the Result, which holds what had arrived even beside an error. It costs two commands in the sandbox, and one for each file.
func Run(ctx context.Context, r guest.Runner, a Adapter, t Task, o Options) (Result, error) {
	res := Result{Agent: a.Name, Code: -1, ReadOnly: t.ReadOnly, expectsEnd: a.finishes, structured: a.decoder != nil, SessionID: t.SessionID}
	if o.Wall < 0 || o.Idle < 0 || o.Grace < 0 || o.MaxTurns < 0 || o.MaxTranscript < 0 {
		return res, fmt.Errorf("%w: negative limit", ErrTask)
	}
	o.Wall, o.Idle, o.Grace = or(o.Wall, time.Hour), or(o.Idle, 10*time.Minute), or(o.Grace, 5*time.Second)
	o.MaxTranscript = or(o.MaxTranscript, 256<<20)
	res.Limits = o.Limits
	mark := newMark()
	state := stateMark + "-" + mark
	if a.meter != nil && t.SessionID == "" { // its record is found by that
		t.SessionID = uuid.NewString()
	}
	inv, err := a.invocation(t, state)
	if err != nil {
		return res, err
	}
	for _, f := range inv.Files {
		if err := writeFile(ctx, r, f, inv.Home); err != nil {
			return res, err
		}
	}
	x := &execution{r: r, o: o, a: a, inv: inv, task: t, mark: mark, state: state, stopped: make(chan Stop, 1)}
	x.out = newOutput(a.NewParser(), o, x.seen)
	started := time.Now()
	res.Code, res.Stop, err = x.run(ctx)
	res.Took = time.Since(started)
	leftover, usage, sweepErr := x.sweep(ctx, res.Stop != "", true)
	if res.Stop == "" {
		res.Leftover = leftover
	}
	x.out.close()
	x.out.fill(&res)
	if len(usage) > 0 && a.usage != nil {
		if u, uerr := a.usage(usage); uerr == nil && !u.IsZero() {
			u.PremiumRequests = max(u.PremiumRequests, res.Usage.PremiumRequests)
			res.Usage = u
		}
	}
	res.Usage = x.since(res.Usage)
	if sweepErr != nil {
		sweepErr = fmt.Errorf("%w of %s: %w", ErrLeftover, a.Name, sweepErr)
	}
	if err != nil {
		res.Code = -1
		return res, errors.Join(fmt.Errorf("run %s: %w", a.Name, err), sweepErr)
	}
	return res, sweepErr
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func newMark() string {
	var b [8]byte
	rand.Read(b[:]) // never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

func writeFile(ctx context.Context, r guest.Runner, f File, home string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stderr := &guest.Tail{Limit: 1 << 10}
	argv := []string{"sh", "-c", place, "sh", f.Path}
	if home != "" { // sbx refuses empty arguments
		argv = append(argv, home)
	}
	code, err := r.Run(ctx, guest.Command{Argv: argv, Stdin: strings.NewReader(f.Data), Stderr: stderr})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit %d: %s", code, oneLine(stderr.String()))
	}
	if err != nil {
		return fmt.Errorf("write ~/%s in the sandbox: %w", f.Path, err)
	}
	return nil
}

// execution is one agent process and what watches it.
type execution struct {
	r       guest.Runner
	o       Options
	a       Adapter
	inv     Invocation
	task    Task
	mark    string
	state   string
	out     *output
	stopped chan Stop   // a reason to stop found in the output
	called  atomic.Bool // its model answered since the meter was read
	metered Usage       // what the meter said
	records int         // of the meter that were read
}

// since is what this session used, of what its CLI counts.
func (x *execution) since(u Usage) Usage {
	if x.task.Resume && x.a.countsOn {
		return u.Minus(x.task.Used)
	}
	return u
}

// seen looks at the summary and the usage after each event; it is called under the output's lock.
func (x *execution) seen(e Event, s *Summary, u Usage) {
	var why Stop
	if e.Usage != nil {
		if !e.Total { // which the meter's own are
			x.called.Store(true)
		}
		u = x.since(u)
	}
	switch {
	// A first refusal may be a lost credential that comes back; the CLIs try again by themselves. An error is their last word.
	case s.fatalCred && !s.Finished || s.Credential > 1:
		why = StopCredential
	case x.o.MaxTurns > 0 && s.Turns > x.o.MaxTurns:
		why = StopTurns
	case e.Usage != nil && x.o.Spent != nil && x.o.Spent(s.Turns, u) && !s.Finished:
		why = StopSpent
	default:
		return
	}
	select {
	case x.stopped <- why:
	default:
	}
}

func (x *execution) command() guest.Command {
	script := launch
	if x.inv.Home != "" {
		script = launchFresh
	}
	argv := []string{"sh", "-c", script, "sh", x.state, "env"}
	for _, name := range x.inv.Unset {
		argv = append(argv, "-u", name)
	}
	argv = append(argv, x.inv.Argv...)
	return guest.Command{
		Argv: argv, Env: append(x.inv.Env, "SBXPAIR_STEP="+x.mark), Dir: x.inv.Dir,
		Stdin: strings.NewReader(x.inv.Stdin), Stdout: x.out, Stderr: x.out.errWriter(),
	}
}

// run starts the agent and waits for it, or for a reason to stop it.
func (x *execution) run(ctx context.Context) (code int, why Stop, err error) {
	if ctx.Err() != nil {
		return -1, StopCancelled, nil
	}
	// Not ctx: ending the client may leave the guest's process alone (sbx 0.47). We end that one, and hear its last words.
	inner, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	type exit struct {
		code int
		err  error
	}
	done := make(chan exit, 1)
	go func() {
		code, err := x.r.Run(inner, x.command())
		done <- exit{code, err}
	}()
	wall := time.NewTimer(x.o.Wall)
	defer wall.Stop()
	idle := time.NewTimer(x.o.Idle)
	defer idle.Stop()
	watch := idleWatch{x: x}
	meter := time.NewTicker(or(x.o.Meter, 5*time.Second))
	defer meter.Stop()
	for why == "" {
		select {
		case e := <-done:
			return e.code, "", e.err
		case <-ctx.Done():
			why = StopCancelled
		case <-wall.C:
			why = StopWall
		case why = <-x.stopped:
		case <-meter.C:
			if x.a.meter != nil && x.o.Spent != nil && x.called.Swap(false) && !x.readMeter(ctx) {
				x.called.Store(true) // the record of that call is still to come
			}
		case <-idle.C:
			again, silent := watch.check(ctx)
			switch {
			case ctx.Err() != nil:
				why = StopCancelled
			case silent:
				why = StopIdle
			default:
				idle.Reset(again)
			}
		}
	}
	x.sweep(inner, true, false)
	force := time.NewTimer(x.o.Grace)
	defer force.Stop()
	select {
	case e := <-done:
		if e.err != nil {
			return -1, why, nil // the connection went with the process: that is what we asked for
		}
		return e.code, why, nil
	case <-force.C:
	}
	abandon()
	select {
	case <-done:
		return -1, why, nil
	case <-time.After(30 * time.Second):
		return -1, why, errors.New("the engine's command does not end")
	}
}

// read prints the records, from the one whose number is given on, of the file that ends in a path below the home folder.
const read = `[ $# = 3 ] || HOME=$4; f=$HOME/$1; [ -f "$f" ] && grep -h "$2" "$f" | tail -n "+$3" | head -c 1048576`

// readMeter adds up what the CLI wrote down of its model calls, and reports whether there was anything new. It says nothing against
// the agent if there is not: what was used is told at the end, too.
func (x *execution) readMeter(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	path, start := x.a.meter.record(x.task.SessionID)
	argv := []string{"sh", "-c", read, "sh", path, "^" + start, strconv.Itoa(x.records + 1)}
	if x.inv.Home != "" {
		argv = append(argv, x.inv.Home)
	}
	var out bytes.Buffer
	if _, err := x.r.Run(ctx, guest.Command{Argv: argv, Dir: "/", Stdout: &capped{w: &out, left: 2 << 20}}); err != nil {
		return false
	}
	before := x.records
	for line := range bytes.Lines(out.Bytes()) {
		u, err := x.a.meter.usage(line)
		if err != nil {
			break // half a line: it is there next time
		}
		x.metered.add(u)
		x.records++
	}
	if x.records == before {
		return false
	}
	x.out.count(x.metered)
	return true
}

// sweep ends the run's processes and reads the usage file, in one command. The final one removes the run's folder.
func (x *execution) sweep(ctx context.Context, stopping, final bool) (ended int, usage []byte, err error) {
	grace := time.Duration(0)
	if stopping {
		grace = x.o.Grace
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+30*time.Second)
	defer cancel()
	when := "final"
	if !final {
		when = "not-yet"
	}
	argv := []string{"sh", "-c", sweepScript, "sh", x.mark, strconv.Itoa(int(grace / (100 * time.Millisecond))), x.state, when, x.inv.UsageFile}
	if x.inv.UsageFile == "" {
		argv = argv[:len(argv)-1] // sbx refuses empty arguments
	}
	for _, user := range []string{"root", ""} { // root first: an agent with sudo has processes that its user cannot end
		var out bytes.Buffer
		stderr := &guest.Tail{Limit: 1 << 10}
		var code int
		code, err = x.r.Run(ctx, guest.Command{Argv: argv, User: user, Dir: "/", Stdout: &capped{w: &out, left: 2 << 20}, Stderr: stderr})
		first, rest, _ := bytes.Cut(out.Bytes(), []byte("\n"))
		n, ok := bytes.CutPrefix(first, []byte("ended "))
		if err == nil && code == 0 && ok {
			ended, err = strconv.Atoi(string(n))
			return ended, rest, err
		}
		if err == nil {
			err = fmt.Errorf("exit %d: %s", code, oneLine(stderr.String()))
		}
	}
	return 0, nil, err
}

// idleWatch decides whether a silent agent is at work. Output that waits in a buffer is not seen (field report R235), so
// silence alone is no proof: processor time is asked for as well.
type idleWatch struct {
	x     *execution
	asked time.Time // zero: not yet
	ticks int64
}

// check returns when to look again, or that the agent is silent.
func (w *idleWatch) check(ctx context.Context) (again time.Duration, silent bool) {
	idle := w.x.o.Idle
	quiet := time.Since(w.x.out.lastByte())
	if quiet < idle {
		w.asked = time.Time{}
		return idle - quiet, false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var out bytes.Buffer
	code, err := w.x.r.Run(ctx, guest.Command{Argv: []string{"sh", "-c", pulse, "sh", w.x.mark}, User: "root", Dir: "/", Stdout: &capped{w: &out, left: 1 << 10}})
	var ticks, running int64
	_, perr := fmt.Sscan(out.String(), &ticks, &running)
	if quiet := time.Since(w.x.out.lastByte()); quiet < idle { // it spoke, and may have ended, while it was looked at
		w.asked = time.Time{}
		return idle - quiet, false
	}
	if err != nil || code != 0 || perr != nil {
		return 0, true // it does not answer, and the agent has been silent
	}
	now := time.Now()
	// A waiting Node process uses about half a per cent of a processor; a tick is 10 ms.
	if !w.asked.IsZero() && running == 0 && ticks-w.ticks < max(2, int64(now.Sub(w.asked).Seconds())) {
		return 0, true
	}
	w.asked, w.ticks = now, ticks
	return idle / 2, false
}

// maxLine is the longest line that is parsed.
const maxLine = 1 << 20

// output takes what the agent writes. It is safe for concurrent use.
type output struct {
	mu      sync.Mutex
	p       *Parser
	o       Options
	seen    func(Event, *Summary, Usage)
	line    []byte // what came since the last line end
	over    bool   // the line is too long; the rest is dropped
	last    []byte // the last line, cut
	at      time.Time
	written int64
	summary Summary
	usage   Usage
	total   bool
	session string
	dropped int
	lost    int64
	stderr  guest.Tail
	masked  io.WriteCloser // before stderr
	closed  bool
}

func newOutput(p *Parser, o Options, seen func(Event, *Summary, Usage)) *output {
	w := &output{p: p, o: o, seen: seen, at: time.Now(), stderr: guest.Tail{Limit: 8 << 10}}
	w.masked = writeCloser{&w.stderr}
	if o.Redact != nil {
		w.masked = o.Redact.Writer(&w.stderr)
	}
	return w
}

func (w *output) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = time.Now()
	n := len(b)
	for len(b) > 0 && !w.closed {
		i := bytes.IndexByte(b, '\n')
		chunk := b
		if i >= 0 {
			chunk = b[:i]
		}
		switch {
		case w.over:
		case len(w.line)+len(chunk) > maxLine:
			w.over, w.line = true, w.line[:0]
			w.dropped++
		default:
			w.line = append(w.line, chunk...)
		}
		if i < 0 {
			break
		}
		w.flush()
		b = b[i+1:]
	}
	return n, nil
}

// flush takes the line in hand for whole.
func (w *output) flush() {
	if w.over {
		w.line = fmt.Appendf(w.line[:0], "[a line of more than %d bytes was dropped]", maxLine)
	} else if w.o.Redact != nil { // before anything is cut: half a credential is not recognised any more
		w.line = append(w.line[:0], w.o.Redact.Bytes(w.line)...)
	}
	if w.o.Transcript != nil {
		if size := int64(len(w.line) + 1); w.written+size <= w.o.MaxTranscript {
			w.o.Transcript.Write(append(w.line, '\n')) // a transcript that cannot be written does not end the run
			w.written += size
		} else {
			w.lost += size
		}
	}
	if len(bytes.TrimSpace(w.line)) > 0 {
		w.last = append(w.last[:0], w.line[max(0, len(w.line)-4096):]...)
	}
	if !w.over {
		for _, e := range w.p.Line(w.line) {
			w.emit(e)
		}
	}
	w.line, w.over = w.line[:0], false
}

func (w *output) emit(e Event) {
	w.summary.add(e)
	if e.Session != "" {
		w.session = e.Session
	}
	if e.Usage != nil && e.Total {
		w.usage, w.total = *e.Usage, true
	} else if e.Usage != nil && !w.total {
		w.usage.add(*e.Usage)
	}
	if w.o.Sink != nil {
		w.o.Sink(e)
	}
	w.seen(e, &w.summary, w.usage)
}

// count takes what was read elsewhere for what the session used up to now.
func (w *output) count(u Usage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u.PremiumRequests = w.usage.PremiumRequests
	w.usage = u
	w.usage.Models = maps.Clone(u.Models)
	w.seen(Event{Kind: KindUsage, Usage: &u, Total: true}, &w.summary, w.usage)
}

func (w *output) errWriter() io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.at = time.Now()
		if w.closed {
			return len(b), nil
		}
		return w.masked.Write(b)
	})
}

func (w *output) lastByte() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// close takes a last line without an end for whole; what is written later is dropped.
func (w *output) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.line) > 0 || w.over {
		w.flush()
	}
	if !w.closed {
		w.masked.Close() // the tail below it does not fail
	}
	w.closed = true
}

func (w *output) fill(r *Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Summary, r.Usage, r.DroppedLines, r.DroppedBytes = w.summary, w.usage, w.dropped, w.lost
	if w.session != "" {
		r.SessionID = w.session
	}
	r.LastOutput = clean(string(w.last), 4096)
	r.Stderr = strings.TrimSpace(clean(w.stderr.String(), 8<<10))
}

type writeCloser struct{ io.Writer }

func (writeCloser) Close() error { return nil }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// capped passes on the first bytes and drops the rest.
type capped struct {
	w    io.Writer
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	c.left -= n
	if _, err := c.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
