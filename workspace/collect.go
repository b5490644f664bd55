package workspace

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/guest"
)

// GuestEnv is the environment for processes that work in the mounted tree: who commits, and that git may use a folder
// whose owner is the host's user, not the sandbox's.
func GuestEnv() []string {
	return []string{
		"GIT_AUTHOR_NAME=" + AuthorName, "GIT_AUTHOR_EMAIL=" + AuthorEmail,
		"GIT_COMMITTER_NAME=" + AuthorName, "GIT_COMMITTER_EMAIL=" + AuthorEmail,
		"GIT_TERMINAL_PROMPT=0",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}
}

// probeScript checks what the run relies on: the folder is at the same path, the user inside can write there, relative
// links resolve (field report R157), and git sees the base commit.
const probeScript = `cd "$1" || { echo "the folder is not there" >&2; exit 1; }
t=.sbxpair-probe-$$
mkdir "$t" && echo ok >"$t/a" && ln -s a "$t/b" && [ "$(cat "$t/b")" = ok ]
ok=$?
rm -rf "$t"
[ $ok = 0 ] || { echo "the user $(id -u) cannot write there; it belongs to $(ls -ldn . | tr -s ' ' | cut -d' ' -f3)" >&2; exit 1; }
head=$(git rev-parse HEAD) || { echo "git does not work there" >&2; exit 1; }
[ "$head" = "$2" ] || { echo "HEAD is $head" >&2; exit 1; }`

// Probe checks from inside that the mounted tree can be worked in. An error matches [ErrUnusable] if it cannot, for
// instance because the sandbox's user may not write there (field report R147).
func (w Workspace) Probe(ctx context.Context, r guest.Runner) error {
	stderr := &guest.Tail{Limit: 4 << 10}
	code, err := r.Run(ctx, guest.Command{Argv: []string{"sh", "-c", probeScript, "sh", w.Dir, w.Base}, Env: GuestEnv(), Stderr: stderr})
	if err != nil {
		return fmt.Errorf("probe workspace: %w", err)
	}
	if code != 0 {
		return &Error{Kind: ErrUnusable, Path: w.Dir, Detail: oneLine(stderr.String()),
			Remedy: "check that the engine mounts it at the same path, writable for the sandbox's user"}
	}
	return nil
}

// CollectOptions bounds an end state. Zeros are the defaults.
type CollectOptions struct {
	MaxBundle  int64         // bytes; 64 MiB
	MaxFile    int64         // bytes of one file, in any commit; 100 MB, above which GitHub refuses a push
	MaxPatch   int64         // bytes of EndState.Patch; 4 MiB
	MaxFiles   int           // entries of EndState.Files; 10,000
	MaxCommits int           // 1,000; more is refused
	Message    string        // of the commit that holds what the agent did not commit
	Timeout    time.Duration // of the script inside; 10 minutes
	Check      time.Duration // of what is done with its bundle here; 10 minutes
}

func (o CollectOptions) defaults() CollectOptions {
	o.MaxBundle = cmp.Or(o.MaxBundle, 64<<20)
	o.MaxFile = cmp.Or(o.MaxFile, 100<<20)
	o.MaxPatch = cmp.Or(o.MaxPatch, 4<<20)
	o.MaxFiles = cmp.Or(o.MaxFiles, 10_000)
	o.MaxCommits = cmp.Or(o.MaxCommits, 1000)
	o.Message = cmp.Or(o.Message, "Changes made by the agent")
	o.Timeout, o.Check = cmp.Or(o.Timeout, 10*time.Minute), cmp.Or(o.Check, 10*time.Minute)
	return o
}

//go:embed collect.sh
var collectScript string

// Collect produces the end state inside the sandbox and imports it. Nothing changed is a normal result (Empty). It can be
// called again while the agent goes on: each call replaces what the last one imported.
func (w Workspace) Collect(ctx context.Context, r guest.Runner, o CollectOptions) (_ EndState, err error) {
	o = o.defaults()
	g, err := w.git()
	if err != nil {
		return EndState{}, err
	}
	format, err := g.line(ctx, gitRun{repo: w.BaseRepo}, "rev-parse", "--show-object-format")
	if err != nil {
		return EndState{}, err
	}
	spool, err := os.CreateTemp(w.Root, "incoming-*")
	if err != nil {
		return EndState{}, err
	}
	defer func() {
		err = errors.Join(err, spool.Close(), os.Remove(spool.Name()))
	}()
	shallow := "0"
	if w.Shallow {
		shallow = "1"
	}
	limited := &limitedWriter{w: spool, left: o.MaxBundle + headerLimit}
	stderr := &guest.Tail{Limit: 4 << 10}
	inner, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	code, err := r.Run(inner, guest.Command{
		Argv: []string{"sh", "-c", collectScript, "sh", w.Dir, w.Base, strconv.FormatInt(o.MaxBundle, 10), o.Message, shallow, format},
		Env:  []string{"SBXPAIR_NAME=" + AuthorName, "SBXPAIR_EMAIL=" + AuthorEmail, "SBXPAIR_BRANCH=" + w.Branch},
		Dir:  "/", Stdout: limited, Stderr: stderr,
	})
	switch {
	case limited.over:
		return EndState{}, &TooLargeError{Size: o.MaxBundle + headerLimit + 1, Limit: o.MaxBundle}
	case err != nil && ctx.Err() == nil && inner.Err() != nil:
		return EndState{}, &GuestError{-1, fmt.Sprintf("no end after %v: %s", o.Timeout, stderr.String())}
	case err != nil:
		return EndState{}, fmt.Errorf("collect end state: %w", err)
	case code != 0:
		return EndState{}, &GuestError{code, stderr.String()}
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return EndState{}, err
	}
	return w.Import(ctx, spool, o)
}

// limitedWriter refuses what goes over the limit: the writer's side is ended by the error.
type limitedWriter struct {
	w    io.Writer
	left int64
	over bool
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		l.over = true
		return 0, ErrTooLarge
	}
	n, err := l.w.Write(p)
	l.left -= int64(n)
	return n, err
}

const (
	headerLimit = 256 << 10
	headerMagic = "sbxpair-end-state 1"
)

// header is what the script says about the bundle. All of it is the agent's word.
type header struct {
	kind         string
	base, head   string
	size         int64
	ignored      int
	ignoredPaths []string
	notes        []string
	largest      []Blob
	pushed       []Push
}

// readHeader reads the lines before the bundle. Lines before the first one of ours are skipped: an engine that has to
// start a sandbox first says so on stdout (sbx 0.47).
func readHeader(in *bufio.Reader) (header, error) {
	var h header
	budget := headerLimit
	started := false
	for {
		line, err := in.ReadSlice('\n')
		budget -= len(line)
		switch {
		case errors.Is(err, io.EOF):
			return h, &HostileError{Reason: "the stream ends before its header does"}
		case errors.Is(err, bufio.ErrBufferFull) || budget < 0:
			return h, &HostileError{Reason: "the header is too long"}
		case err != nil:
			return h, err
		}
		text := strings.TrimSuffix(string(line), "\n")
		if !started {
			started = text == headerMagic
			continue
		}
		if text == "end" {
			return h, nil
		}
		key, value, _ := strings.Cut(text, " ")
		h.set(key, value)
	}
}

// set stores one line. What makes no sense is left at its zero value, which the import then refuses where it matters.
func (h *header) set(key, value string) {
	number := func() int64 {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return -1
		}
		return n
	}
	switch key {
	case "kind":
		h.kind = value
	case "base":
		h.base = value
	case "head":
		h.head = value
	case "size":
		h.size = number()
	case "ignored":
		h.ignored = int(max(0, number()))
	case "ignored-path":
		if len(h.ignoredPaths) < 50 {
			h.ignoredPaths = append(h.ignoredPaths, unquotePath(value))
		}
	case "note":
		if n := noteText(value); n != "" && len(h.notes) < 20 {
			h.notes = append(h.notes, n)
		}
	case "other":
		count, ref, _ := strings.Cut(value, " ")
		if n, err := strconv.Atoi(count); err == nil && n > 0 && len(h.notes) < 20 {
			h.notes = append(h.notes, fmt.Sprintf("%d commits on %q were not taken: HEAD does not contain them", n, ref))
		}
	case "pushed":
		f := strings.Fields(value) // count, object, ref
		if len(f) == 3 && isOID(f[1]) && len(h.pushed) < 50 {
			if n, err := strconv.Atoi(f[0]); err == nil && n >= 0 {
				h.pushed = append(h.pushed, Push{Ref: strings.ToValidUTF8(f[2], "\uFFFD"), SHA: f[1], Commits: n})
			}
		}
	case "large":
		size, path, _ := strings.Cut(value, " ")
		if n, err := strconv.ParseInt(size, 10, 64); err == nil && len(h.largest) < 10 {
			h.largest = append(h.largest, Blob{strings.ToValidUTF8(path, "\uFFFD"), n})
		}
	}
}

// noteText gives the sentence for a code of the script: the agent cannot put words into our report.
func noteText(code string) string {
	code, arg, _ := strings.Cut(code, " ")
	n, err := strconv.Atoi(arg)
	counted := err == nil && n > 0
	switch {
	case code == "head-lost":
		return "HEAD names no commit: all changes are in one commit on the base"
	case code == "reset":
		return "HEAD was set back behind the base: all changes are in one commit on the base"
	case code == "rewritten":
		return "the base is not in HEAD's history: all changes are in one commit on the base"
	case code == "objects-lost":
		return "the agent's repository is broken or gone: its commits are lost, its files are in one commit on the base"
	case code == "elsewhere":
		return "HEAD held no change: the commits of the run's branch were taken"
	case code == "merging":
		return "a merge was left unfinished"
	case code == "rebasing":
		return "a rebase was left unfinished"
	case code == "nested" && counted:
		return fmt.Sprintf("%d repositories inside the work tree were left out", n)
	case code == "unread" && counted:
		return fmt.Sprintf("%d folders could not be read, and what is in them was left out", n)
	case code == "pipes" && counted:
		return fmt.Sprintf("%d things that git would wait for (pipes, in the place of files) were removed", n)
	case code == "add-errors" && counted:
		return fmt.Sprintf("%d files could not be read and were left out", n)
	}
	return ""
}

// unquotePath undoes git's C-style quotes (quote.c), whose escapes are a subset of Go's.
func unquotePath(s string) string {
	if u, err := strconv.Unquote(s); err == nil && strings.HasPrefix(s, `"`) {
		s = u
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// importRepo is where the last import lies.
func (w Workspace) importRepo() string { return filepath.Join(w.Root, "import.git") }
