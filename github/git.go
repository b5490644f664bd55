package github

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

const (
	gitTimeout       = 10 * time.Minute
	maxRawDiff       = 16 << 20
	maxBundle        = 256 << 20
	maxPrerequisites = 20
)

// gitPrelude makes a clean room for git: a private directory named from the run, no configuration but ours, no hooks, no
// helpers, no prompts, https only. The proxy outside puts the credential in; there is none in here. Where it waits for the placeholder to
// do so, SBXPAIR_GIT_AUTH is the header with it.
const gitPrelude = `set -u
umask 077
case "${SBXPAIR_RUN:-}" in ''|.*|*[!A-Za-z0-9._-]*) exit 65;; esac
command -v git >/dev/null 2>&1 || { echo "sbxpair: git is missing" >&2; exit 127; }
d="${TMPDIR:-/tmp}/sbxpair-deliver-$SBXPAIR_RUN"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_COMMON_DIR GIT_NAMESPACE GIT_CONFIG GIT_CONFIG_PARAMETERS GIT_CONFIG_COUNT GIT_SSH GIT_SSH_COMMAND GIT_PROXY_COMMAND GIT_EXTERNAL_DIFF GIT_TEMPLATE_DIR GIT_TRACE GIT_TRACE_CURL GIT_TRACE_PACKET GIT_CURL_VERBOSE GIT_TRACE_REDACT
LC_ALL=C HOME="$d/home" XDG_CONFIG_HOME="$d/home" GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_SYSTEM=/dev/null GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_ASKPASS=/bin/false SSH_ASKPASS=/bin/false GIT_ALLOW_PROTOCOL=https GIT_NO_REPLACE_OBJECTS=1
export LC_ALL HOME XDG_CONFIG_HOME GIT_CONFIG_NOSYSTEM GIT_CONFIG_SYSTEM GIT_CONFIG_GLOBAL GIT_ATTR_NOSYSTEM GIT_TERMINAL_PROMPT GIT_ASKPASS SSH_ASKPASS GIT_ALLOW_PROTOCOL GIT_NO_REPLACE_OBJECTS
if [ -z "${GIT_SSL_CAINFO:-}" ] && [ -n "${SSL_CERT_FILE:-}" ]; then GIT_SSL_CAINFO=$SSL_CERT_FILE; export GIT_SSL_CAINFO; fi
g() { [ -z "${SBXPAIR_GIT_AUTH:-}" ] || set -- -c "http.extraHeader=$SBXPAIR_GIT_AUTH" "$@"; git -c core.hooksPath=/dev/null -c credential.helper= -c protocol.allow=never -c protocol.https.allow=always -c http.followRedirects=false -c http.lowSpeedLimit=100 -c http.lowSpeedTime=60 -c transfer.fsckObjects=true -c gc.auto=0 -c maintenance.auto=false -c core.fsmonitor=false -c submodule.recurse=false -c push.gpgSign=false "$@"; }
`

// importScript makes a fresh repository, fetches the base, reads the pack from standard input with object checks, and
// prints what the change does to the tree. Exit codes: 41 fetch, 42 pack, 43 history.
const importScript = gitPrelude + `
rm -rf "$d" && mkdir "$d" "$d/home" || exit 70
cat >"$d/pack" || exit 74
git init -q --bare --template= "$d/repo" || exit 70
cd "$d/repo" || exit 70
for w in $SBXPAIR_WANT; do set -- "$@" "$w:refs/sbxpair/have/$w"; done
[ $# -eq 0 ] || g -c transfer.fsckObjects=false fetch -q --no-tags --no-write-fetch-head --no-recurse-submodules --depth=1 "$SBXPAIR_URL" "$@" </dev/null || exit 41
g index-pack --stdin --fix-thin --strict <"$d/pack" >/dev/null || exit 42
rm -f "$d/pack"
[ "$(g cat-file -t "$SBXPAIR_HEAD")" = commit ] || exit 43
g update-ref refs/sbxpair/head "$SBXPAIR_HEAD" || exit 43
g merge-base --is-ancestor "$SBXPAIR_BASE" "$SBXPAIR_HEAD" || exit 43
echo "sbxpair-commits $(g rev-list --count "$SBXPAIR_BASE..$SBXPAIR_HEAD")" || exit 43
echo sbxpair-raw
g diff-tree -r -z -M --raw --no-abbrev --no-ext-diff "$SBXPAIR_BASE" "$SBXPAIR_HEAD" || exit 43
`

// pushScript pushes the imported commit. Into an empty repository it pushes the base first, to a branch that nobody else may have
// made meanwhile (exit code 47). It first demands that the branch does not exist; if it does, it moves it only
// from a commit that the run knows as its own, or that is an ancestor. Exit codes: 44 push, 45 branch unreadable, 46 not ours.
const pushScript = gitPrelude + `
cd "$d/repo" || exit 70
ref="refs/heads/$SBXPAIR_BRANCH"
put() { g push --porcelain --no-verify --recurse-submodules=no --force-with-lease="$1:$2" "$SBXPAIR_URL" "$3:$1" </dev/null >"$d/report"; }
push() { put "$ref" "$1" "$SBXPAIR_HEAD"; }
if [ -n "$SBXPAIR_INIT" ] && ! put "refs/heads/$SBXPAIR_INIT" '' "$SBXPAIR_BASE"; then
  g ls-remote "$SBXPAIR_URL" "refs/heads/$SBXPAIR_INIT" >"$d/remote" </dev/null || exit 45
  at=
  while IFS='	' read -r sha name; do [ "$name" = "refs/heads/$SBXPAIR_INIT" ] && at=$sha; done <"$d/remote"
  [ "$at" = "$SBXPAIR_BASE" ] || { cat "$d/report"; [ -z "$at" ] || echo "sbxpair-remote $at"; exit 47; }
fi
if push ''; then cat "$d/report"; cd / && rm -rf "$d"; exit 0; fi
grep -qE 'stale info|already exists|failed to update ref|cannot lock ref' "$d/report" || { cat "$d/report"; exit 44; }
g ls-remote "$SBXPAIR_URL" "$ref" >"$d/remote" </dev/null || exit 45
at=
while IFS='	' read -r sha name; do [ "$name" = "$ref" ] && at=$sha; done <"$d/remote"
case "$at" in ''|*[!0-9a-f]*) exit 45;; esac
ours=
for k in $SBXPAIR_KNOWN; do [ "$k" = "$at" ] && ours=1; done
[ -n "$ours" ] || { g cat-file -e "$at^{commit}" 2>/dev/null && g merge-base --is-ancestor "$at" "$SBXPAIR_HEAD" && ours=1; }
[ -n "$ours" ] || { echo "sbxpair-remote $at"; exit 46; }
if push "$at"; then cat "$d/report"; cd / && rm -rf "$d"; exit 0; fi
cat "$d/report"
exit 44
`

const cleanScript = gitPrelude + `cd / && rm -rf "$d"`

// gitDelivery is the part of a delivery that git does.
type gitDelivery struct {
	runner Runner
	client *Client
	d      Delivery
	url    string
	// pushURL is another one for a fork.
	pushURL string
	init    bool // the repository is empty: Base comes with the bundle, and makes the base branch
	execs   *int
}

// run imports, judges and pushes. What it leaves in the sandbox on an error it removes.
func (g *gitDelivery) run(ctx context.Context, h bundleHeader) (state PushState, err error) {
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
			defer cancel()
			_, cerr := g.exec(ctx, cleanScript, nil, nil)
			if cerr != nil {
				err = errors.Join(err, fmt.Errorf("clean up in the sandbox: %w", cerr))
			}
		}
	}()
	g.d.progress("import")
	want := append([]string{g.d.Base}, h.prerequisites...)
	slices.Sort(want)
	want = slices.Compact(want)
	first := ""
	if g.init {
		want, first = nil, g.d.BaseBranch
	}
	out, err := g.repeat(ctx, "import the change", importScript, func() io.Reader { return io.NewSectionReader(g.d.Bundle, int64(h.pack), h.size-int64(h.pack)) },
		sbx.EnvVar{Name: "SBXPAIR_WANT", Value: strings.Join(want, " ")})
	if err != nil {
		return "", err
	}
	change, err := appliedChange(out)
	if err != nil {
		return "", err
	}
	change.Repo, change.Fork, change.Branch, change.BaseBranch, change.Title = g.d.Repo, g.d.Fork, g.d.Branch, g.d.BaseBranch, g.d.Title
	if len(change.Files) == 0 {
		return "", ErrNoChanges
	}
	if err := Check(g.d.Bounds, change).Err(); err != nil {
		return "", err
	}
	g.d.progress("push")
	g.url = g.pushURL
	out, err = g.repeat(ctx, "push "+g.d.Branch, pushScript, nil,
		sbx.EnvVar{Name: "SBXPAIR_INIT", Value: first}, sbx.EnvVar{Name: "SBXPAIR_BRANCH", Value: g.d.Branch}, sbx.EnvVar{Name: "SBXPAIR_KNOWN", Value: strings.Join(g.d.Known, " ")})
	if err != nil {
		return "", err
	}
	return pushState(out, "refs/heads/"+g.d.Branch)
}

// repeat runs a script, and runs it again where the way to GitHub failed: both scripts may be repeated at will.
func (g *gitDelivery) repeat(ctx context.Context, what, script string, stdin func() io.Reader, env ...sbx.EnvVar) ([]byte, error) {
	for attempt := 1; ; attempt++ {
		var in io.Reader
		if stdin != nil {
			in = stdin()
		}
		res, err := g.exec(ctx, script, in, env)
		if err == nil && res.code == 0 {
			return res.out, nil
		}
		if err == nil {
			err = gitFailure(res, g.d, g.client.endpoint.Host())
		}
		err = fmt.Errorf("%s: %w", what, err)
		var network *NetworkError
		again := errors.As(err, &network) && network.Trouble != TroubleTLS || errors.Is(err, ErrServer)
		if !again || ctx.Err() != nil || attempt >= g.client.wire.limits.Attempts {
			return nil, err
		}
		wait := g.client.wire.jitter(g.client.wire.limits.Backoff << (attempt - 1))
		g.client.log.Info("waiting for GitHub", "op", what, "wait", wait.Round(time.Millisecond), "attempt", attempt, "err", err)
		if serr := g.client.clock.Sleep(ctx, wait); serr != nil {
			return nil, errors.Join(serr, err)
		}
	}
}

// gitResult is how a script ended.
type gitResult struct {
	code   int
	out    []byte
	stderr string
}

func (g *gitDelivery) exec(ctx context.Context, script string, stdin io.Reader, env []sbx.EnvVar) (gitResult, error) {
	*g.execs++
	out := &cappedBuffer{limit: maxRawDiff}
	var stderr tailBuffer
	res, err := g.runner.Exec(ctx, sbx.ExecSpec{
		Argv:  []string{"/bin/sh", "-c", script},
		Stdin: stdin, Stdout: out, Stderr: &stderr, Timeout: gitTimeout, MaxCapture: 4 << 10,
		Env: append([]sbx.EnvVar{
			{Name: "SBXPAIR_RUN", Value: g.d.Run}, {Name: "SBXPAIR_URL", Value: g.url},
			{Name: "SBXPAIR_BASE", Value: g.d.Base}, {Name: "SBXPAIR_HEAD", Value: g.d.Head}, {Name: "SBXPAIR_GIT_AUTH", Value: g.client.gitAuth()},
		}, env...),
	})
	switch {
	case errors.Is(err, sbx.ErrLaunch):
		return gitResult{}, fmt.Errorf("%w: %w", ErrTool, err)
	case err != nil:
		return gitResult{}, fmt.Errorf("exec in the github sandbox: %w", err)
	case out.over:
		return gitResult{}, fmt.Errorf("output of git: %w of %d bytes", ErrTooLarge, maxRawDiff)
	}
	return gitResult{res.Code, out.b.Bytes(), stderr.String()}, nil
}

// appliedChange reads importScript's output: what the imported commits do to the tree.
func appliedChange(out []byte) (Change, error) {
	_, raw, ok := bytes.Cut(out, []byte("sbxpair-raw\n"))
	if !ok {
		return Change{}, fmt.Errorf("%w: the import did not say what it did", ErrMalformed)
	}
	files, err := ParseRawDiff(raw)
	return Change{Files: files}, err
}

// pushState reads the report of git push --porcelain.
func pushState(report []byte, ref string) (PushState, error) {
	for line := range strings.Lines(string(report)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) < 3 || !strings.HasSuffix(f[1], ":"+ref) {
			continue
		}
		switch f[0] {
		case "*":
			return PushCreated, nil
		case "=":
			return PushUpToDate, nil
		case " ":
			return PushFastForward, nil
		case "+":
			return PushForced, nil
		}
	}
	return "", fmt.Errorf("%w: git's report does not name the branch", ErrMalformed)
}

// cappedBuffer keeps what fits, and remembers that more came.
type cappedBuffer struct {
	b     bytes.Buffer
	limit int
	over  bool
}

func (c *cappedBuffer) Write(p []byte) (int, error) {
	if c.b.Len()+len(p) > c.limit {
		c.over = true
		return len(p), nil
	}
	return c.b.Write(p)
}

// ParseRawDiff reads the output of "git diff-tree -r -z --raw", with or without rename detection.
func ParseRawDiff(raw []byte) ([]FileChange, error) {
	bad := fmt.Errorf("%w: git diff-tree", ErrMalformed)
	var files []FileChange
	fields := bytes.Split(raw, []byte{0})
	if n := len(fields); n > 0 && len(fields[n-1]) == 0 {
		fields = fields[:n-1]
	} else if n > 0 {
		return nil, bad // cut off
	}
	for len(fields) > 0 {
		head := strings.Fields(string(fields[0]))
		if len(head) != 5 || !strings.HasPrefix(head[0], ":") || len(fields) < 2 || head[4] == "" {
			return nil, bad
		}
		f := FileChange{OldMode: head[0][1:], Mode: head[1], Status: head[4][:1], Path: string(fields[1])}
		fields = fields[2:]
		for _, mode := range []string{f.OldMode, f.Mode} {
			if _, err := strconv.ParseUint(mode, 8, 32); err != nil || len(mode) != 6 {
				return nil, bad
			}
		}
		switch f.Status {
		case "R", "C":
			if len(fields) < 1 {
				return nil, bad
			}
			f.OldPath, f.Path = f.Path, string(fields[0])
			fields = fields[1:]
		case "A", "D", "M", "T":
		default:
			return nil, bad
		}
		if f.Path == "" {
			return nil, bad
		}
		files = append(files, f)
	}
	return files, nil
}
