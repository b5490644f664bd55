package sbx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sbxpair/sbxpair/secrets"
)

// Recording is one engine call as a [Recorder] writes it: one JSON file a call, named by number and verb. What was given
// on standard input is never kept; values of variables (-e), the commands and references that stand for a secret (--command,
// --ref), values that the call named and texts that have the shape of a credential are masked.
type Recording struct {
	Args       []string  `json:"args"`
	StdinBytes int64     `json:"stdin_bytes,omitempty"`
	Code       int       `json:"code"`
	Killed     bool      `json:"killed,omitempty"`
	Stdout     string    `json:"stdout,omitempty"`
	Stderr     string    `json:"stderr,omitempty"`
	Binary     bool      `json:"binary,omitempty"` // output was not text and is left out
	Truncated  bool      `json:"truncated,omitempty"`
	Error      string    `json:"error,omitempty"` // of the call itself: time-out, not installed
	Started    time.Time `json:"started"`
	TookMS     int64     `json:"took_ms"`
}

// maxRecorded bounds each stream of a recording; its end is kept.
const maxRecorded = 1 << 20

// Recorder is a Runner that writes each call of another into Dir: a cassette, which [NewReplay] plays and from which
// fixtures can be made. A call whose recording cannot be written fails.
type Recorder struct {
	Dir  string
	Next Runner

	mu sync.Mutex
	n  int
}

// Run implements [Runner].
func (r *Recorder) Run(ctx context.Context, c Cmd) (Result, error) {
	started := time.Now()
	var count *countReader
	if c.Stdin != nil && !c.Terminal {
		count = &countReader{r: c.Stdin}
		c.Stdin = count
	}
	res, err := r.Next.Run(ctx, c)
	rec := Recording{
		Args: c.Args, Code: res.Code, Killed: res.Killed, Started: started.UTC(), TookMS: time.Since(started).Milliseconds(),
		Truncated: res.StdoutTruncated || res.StderrTruncated,
	}
	if count != nil {
		rec.StdinBytes = count.total()
	}
	if err != nil {
		rec.Error = err.Error()
	}
	rec.setStreams(res.Stdout, res.Stderr)
	if writeErr := r.write(rec.masked(c.Redact)); writeErr != nil && err == nil {
		err = fmt.Errorf("record engine call: %w", writeErr)
	}
	return res, err
}

func (rec *Recording) setStreams(stdout, stderr []byte) {
	if !utf8.Valid(stdout) || !utf8.Valid(stderr) {
		rec.Binary = true
		return
	}
	cut := func(b []byte) string {
		if len(b) > maxRecorded {
			rec.Truncated = true
			b = b[len(b)-maxRecorded:]
		}
		return strings.ToValidUTF8(string(b), "")
	}
	rec.Stdout, rec.Stderr = cut(stdout), cut(stderr)
}

func (rec Recording) masked(values []secrets.Value) Recording {
	redact, scanner := secrets.NewRedactor(values...), secrets.NewScanner()
	mask := func(s string) string { return scanner.Mask(redact.String(s)) }
	rec.Args = withoutValues(rec.Args)
	for i, arg := range rec.Args {
		rec.Args[i] = mask(arg)
	}
	rec.Stdout, rec.Stderr, rec.Error = mask(rec.Stdout), mask(rec.Stderr), mask(rec.Error)
	return rec
}

// hidden stands in a recording for what a call was given to keep.
const hidden = "****"

// withoutValues hides what the arguments of a call carry for a sandbox alone: values of variables, whose names stay, and
// what stands for a secret.
func withoutValues(args []string) []string {
	out := slices.Clone(args)
	for i, arg := range out {
		flag, value, joined := strings.Cut(arg, "=")
		at := i
		if !joined && i+1 < len(out) {
			at, value = i+1, out[i+1]
		}
		var kept string
		switch flag {
		case "-e", "--env":
			name, _, set := strings.Cut(value, "=")
			if !set { // -e NAME hands on the caller's own
				continue
			}
			kept = name + "=" + hidden
		case "--command", "--ref", "--value", "--token", "--password":
			kept = hidden
		default:
			continue
		}
		if joined {
			kept = flag + "=" + kept
		}
		if joined || at > i {
			out[at] = kept
		}
	}
	return out
}

func (r *Recorder) write(rec Recording) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return err
	}
	if r.n == 0 { // go on behind what an earlier process recorded here
		old, err := RecordingFiles(r.Dir)
		if err != nil {
			return err
		}
		for _, name := range old {
			number, _, _ := strings.Cut(name, "-")
			if n, err := strconv.Atoi(number); err == nil && len(number) == 5 && n > r.n {
				r.n = n
			}
		}
	}
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	for range 1000 { // another process may be recording into the same directory
		r.n++
		name := filepath.Join(r.Dir, fmt.Sprintf("%05d-%s.json", r.n, rec.Verb()))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = f.Write(append(data, '\n'))
		return errors.Join(err, f.Close())
	}
	return errors.New("no free number")
}

// Verb names the call by its words alone: "ls", "policy-allow". Names, flags and what was given to them are not in it.
func (rec Recording) Verb() string {
	var words []string
	for _, arg := range rec.Args {
		if strings.HasPrefix(arg, "-") {
			if len(words) > 0 {
				break
			}
			continue
		}
		if strings.Trim(arg, "abcdefghijklmnopqrstuvwxyz-") != "" || len(words) == 2 {
			break
		}
		words = append(words, arg)
		if !slices.Contains([]string{"policy", "secret", "daemon", "template", "settings", "kit", "mcp"}, words[0]) {
			break
		}
	}
	if len(words) == 0 {
		return "call"
	}
	return strings.Join(words, "-")
}

type countReader struct {
	r  io.Reader
	mu sync.Mutex
	n  int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.mu.Lock()
	c.n += int64(n)
	c.mu.Unlock()
	return n, err
}

func (c *countReader) total() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// ErrNotRecorded: a replay has no such call left.
var ErrNotRecorded = errors.New("call is not in the recording")

// Matches reports whether a call with these arguments is the one that was recorded: they are the same, but for names that
// this package makes up anew for each call (the folder in which [Client.CopyOut] puts things together, the mark of
// [ExecSpec] KillTree), and for the values that a recording hides.
func (rec Recording) Matches(args []string) bool {
	return slices.EqualFunc(withoutValues(rec.Args), withoutValues(args), func(a, b string) bool { return a == b || sameButMadeUp(a, b) })
}

// madeUp finds the names that this package makes up. They have a form that nobody else gives.
var madeUp = regexp.MustCompile(`\.sbx-cp-[0-9]+|` + treeMarkPrefix + `[0-9a-f]{32}`)

func sameButMadeUp(a, b string) bool {
	return madeUp.MatchString(a) && madeUp.ReplaceAllString(a, "?") == madeUp.ReplaceAllString(b, "?")
}

// NewReplay returns a Runner that plays the recordings in dir: each call gets the first recording not yet played that
// [Recording.Matches] it. The error of a call that has none matches [ErrNotRecorded].
func NewReplay(dir string) (Runner, error) {
	recs, err := ReadRecordings(dir)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	played := make([]bool, len(recs))
	return RunnerFunc(func(ctx context.Context, c Cmd) (Result, error) {
		mu.Lock()
		defer mu.Unlock()
		for i, rec := range recs {
			if played[i] || !rec.Matches(c.Args) {
				continue
			}
			played[i] = true
			res := Result{
				Stdout: []byte(rec.Stdout), Stderr: []byte(rec.Stderr), Code: rec.Code, Killed: rec.Killed,
				StdoutHead: []byte(rec.Stdout[:min(len(rec.Stdout), headSize)]), StdoutBytes: int64(len(rec.Stdout)),
				Took: time.Duration(rec.TookMS) * time.Millisecond,
			}
			if c.Stdout != nil {
				if _, err := io.WriteString(c.Stdout, rec.Stdout); err != nil {
					return res, err
				}
			}
			if c.Stderr != nil {
				if _, err := io.WriteString(c.Stderr, rec.Stderr); err != nil {
					return res, err
				}
			}
			if rec.Error != "" {
				return res, fmt.Errorf("replayed: %s", rec.Error)
			}
			return res, nil
		}
		return Result{Code: -1}, fmt.Errorf("%w: %s", ErrNotRecorded, Recording{Args: c.Args}.Verb())
	}), nil
}

// maxRecording bounds one recording; the Recorder keeps far less of a call.
const maxRecording = 64 << 20

// readRecording reads a plain file: the folder may come from somebody else.
func readRecording(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecording {
		return nil, fmt.Errorf("recording %s: not a plain file of at most %d bytes", filepath.Base(name), maxRecording)
	}
	return os.ReadFile(name)
}

// RecordingFiles gives the names, within dir, of the files that hold recordings, in the order of the calls.
func RecordingFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // not a pattern: the folder's own name may hold what a pattern gives a meaning
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".json" {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// ReadRecordings reads the recordings in dir, in the order of the calls.
func ReadRecordings(dir string) ([]Recording, error) {
	names, err := RecordingFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("read recordings: %w", err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no recording in %s", dir)
	}
	recs := make([]Recording, 0, len(names))
	for _, name := range names {
		data, err := readRecording(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		var rec Recording
		if err := json.Unmarshal(data, &rec); err != nil {
			return nil, fmt.Errorf("read recording %s: %w", name, err)
		}
		recs = append(recs, rec)
	}
	return recs, nil
}
