package github

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sbxpair/sbxpair/sbx"
)

// Delivery is one change on its way to GitHub. Everything in it that came from an agent is data: it was, or is here, checked
// against Bounds.
type Delivery struct {
	Run        string // run id; the key of every marker
	Repo       Repo
	Fork       Repo   // the branch is pushed there, and the pull request leads from there to Repo; zero: to Repo itself
	Base       string // commit the change starts from; it has to be on GitHub
	BaseBranch string // branch the pull request goes into; "" is the default branch
	Head       string // the change's last commit, as the host's own import saw it
	Branch     string // branch to push
	// Bundle is a git bundle of Base..Head with one ref, for ViaGit.
	Bundle Bundle
	// Way is ViaGit if it is empty. ViaAPI takes Files and Tree, the id of the tree they make on top of Base; Head is not needed then.
	Way   Way
	Files []TreeFile
	Tree  string
	// Known are commits that this run pushed to Branch before, from its journal. A branch that stands at one of them may be moved by force.
	Known []string
	Title string
	Body  string
	// Ready opens the pull request for review; otherwise it is a draft. DraftOptional lets it be ready where drafts do not exist.
	Ready         bool
	DraftOptional bool
	// InitEmpty makes BaseBranch at Base where the repository has no commit at all, which makes all history below Base public to whom
	// can read the repository. Bundle then has to hold that history: no prerequisites. Without it, and for ViaAPI, an empty
	// repository is ErrEmptyRepository.
	InitEmpty bool
	// Comment is posted on the pull request once; "" for none.
	Comment string
	// Issue is what the change is for, which the pull request names; 0 for none. Closes makes its merge close the issue.
	Issue  int
	Closes bool
	Bounds Bounds
	// Cleaning says what Title, Body and Comment may keep; the zero Cleaning stands for DefaultCleaning. They are always cleaned.
	Cleaning Cleaning
	// Progress, if set, is told each step before it starts: "repository", "import", "push", "pull request", "comment".
	Progress func(step string)
}

// Bundle is a git bundle that can be read from anywhere, as often as a push is tried: an [os.File] or a [bytes.Reader].
type Bundle interface {
	io.ReaderAt
	io.Seeker
}

// PushState says what the push did.
type PushState string

// What a push did.
const (
	PushCreated     PushState = "created"
	PushUpToDate    PushState = "up to date" // the branch stood at Head already
	PushFastForward PushState = "fast-forward"
	PushForced      PushState = "forced" // over a commit of this run's own
)

// Delivered is the state after a delivery; a second one of the same run gives the same but for Push and Existed.
type Delivered struct {
	Repo        Repo        `json:"repository"`    // as GitHub names it now
	Fork        Repo        `json:"fork,omitzero"` // where Branch is, if that is not Repo
	Branch      string      `json:"branch"`
	Head        string      `json:"head"`
	Push        PushState   `json:"push"`
	PullRequest PullRequest `json:"pull_request"`
	Comment     *Comment    `json:"comment,omitempty"`
	// Initialised: the repository was empty, and its base branch was made.
	Initialised bool `json:"initialised,omitempty"`
	// Execs is how many commands ran in the github sandbox for git: 2 when nothing went wrong. The REST requests share one more.
	Execs int `json:"execs"`
}

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

var runForm = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}$`)

// Deliver brings a change to GitHub: pushes the branch from the github sandbox, opens the draft pull request or brings
// the run's own up to date, and posts the comment once. It is idempotent by run id: after a crash, a lost answer or a success, calling
// it again ends in the same state with nothing twice.
//
// Two execs for git (import, push), one for all REST requests. The bundle's header is read here and only its pack crosses;
// the tree that was really built in the sandbox is judged by the gate again before anything is pushed.
//
// Errors beside those of the client: ErrNoChanges, ErrEmptyRepository, ErrArchived, ErrBadBundle, ErrBaseMissing, a
// [*RefusedError] of the gate, a [*BranchMovedError], a [*PushError], ErrPullClosed. After any of them the work is where it was, and Deliver can
// be called again. On an error the result holds what was done until then.
func Deliver(ctx context.Context, r Runner, c *Client, d Delivery) (Delivered, error) {
	done := Delivered{Repo: d.Repo, Branch: d.Branch, Head: d.Head}
	d.clean(c.endpoint)
	if err := d.check(); err != nil {
		return done, err
	}
	var header bundleHeader
	var err error
	if d.Way != ViaAPI {
		if header, err = d.readBundle(); err != nil {
			return done, err
		}
	}
	d.progress("repository")
	info, err := c.Repository(ctx, d.Repo)
	if err != nil {
		return done, err
	}
	done.Repo = info.Repo
	target := info.Repo // of the push
	if d.Fork != (Repo{}) {
		fork, err := c.Repository(ctx, d.Fork)
		if err != nil {
			return done, err
		}
		if fork.Archived {
			return done, fmt.Errorf("deliver to %s: %w", fork.Repo, ErrArchived)
		}
		done.Fork, target = fork.Repo, fork.Repo
	}
	if info.Archived {
		return done, fmt.Errorf("deliver to %s: %w", info.Repo, ErrArchived)
	}
	if d.BaseBranch == "" {
		d.BaseBranch = info.DefaultBranch
	}
	_, ok, err := c.Branch(ctx, info.Repo, d.BaseBranch)
	empty := errors.Is(err, ErrEmptyRepository)
	switch {
	case empty && d.InitEmpty && d.Fork != (Repo{}):
		return done, fmt.Errorf("%w: %s is empty, and a fork cannot make its first branch", ErrEmptyRepository, info.Repo)
	case empty && d.InitEmpty && d.Way != ViaAPI && len(header.prerequisites) > 0:
		return done, fmt.Errorf("%w: %s is empty, so the bundle has to hold the whole history", ErrBadBundle, info.Repo)
	case empty && d.InitEmpty && d.Way != ViaAPI:
	case err != nil:
		return done, err
	case !ok:
		return done, fmt.Errorf("base branch %s of %s: %w", d.BaseBranch, info.Repo, ErrNotFound)
	}
	if d.Way == ViaAPI {
		done.Head, done.Push, err = (&apiDelivery{client: c, repo: target, d: d}).run(ctx)
	} else {
		g := &gitDelivery{runner: r, client: c, d: d, url: c.endpoint.CloneURL(info.Repo), pushURL: c.endpoint.CloneURL(target), init: empty, execs: &done.Execs}
		done.Push, err = g.run(ctx, header)
	}
	if err != nil {
		return done, err
	}
	done.Initialised = empty
	d.progress("pull request")
	done.PullRequest, err = keepPullRequest(ctx, c, info.Repo, done.Fork, d)
	if err != nil {
		return done, err
	}
	if d.Comment == "" {
		return done, nil
	}
	d.progress("comment")
	comment, err := c.Comment(ctx, info.Repo, done.PullRequest.Number, NewComment{Body: d.Comment, Op: Op{d.Run, "comment"}})
	if err != nil {
		return done, err
	}
	done.Comment = &comment
	return done, nil
}

// clean makes the texts fit for GitHub. Who wrote which part of them does not matter: it changes nothing in clean text.
func (d *Delivery) clean(e Endpoint) {
	c := d.Cleaning
	if c.Domains == nil && c.Repos == nil && c.Mentions == nil {
		c = DefaultCleaning(e, d.Repo)
	}
	title, body := c, c
	link := d.link()
	title.MaxRunes = d.Bounds.MaxTitle
	body.MaxRunes = max(d.Bounds.MaxBody-utf8.RuneCountInString(link), 1)
	d.Title, d.Body = CleanTitle(d.Title, title), CleanBody(strings.TrimSuffix(d.Body, link), body)+link
	if d.Comment != "" {
		d.Comment = CleanBody(d.Comment, body)
	}
}

// link is the line that names the issue. It is ours, so it comes after the cleaning, which would take it out.
func (d *Delivery) link() string {
	switch {
	case d.Issue <= 0:
		return ""
	case d.Closes:
		return fmt.Sprintf("\n\nCloses #%d.", d.Issue)
	}
	return fmt.Sprintf("\n\nFor #%d.", d.Issue)
}

func (d Delivery) progress(step string) {
	if d.Progress != nil {
		d.Progress(step)
	}
}

// check refuses a delivery that is not in order before anything is asked or run.
func (d Delivery) check() error {
	switch {
	case !runForm.MatchString(d.Run):
		return fmt.Errorf("%w: run id %q", ErrOutOfBounds, oneLine(d.Run, 80))
	case !d.Repo.valid(), d.Fork != (Repo{}) && !d.Fork.valid():
		return fmt.Errorf("%w: repository name", ErrOutOfBounds)
	case strings.EqualFold(d.Fork.Owner, d.Repo.Owner):
		return fmt.Errorf("%w: GitHub cannot tell branches of two repositories of %s apart; the fork has to be another owner's", ErrOutOfBounds, d.Repo.Owner)
	case !ValidBranch(d.Branch) || d.BaseBranch != "" && !ValidBranch(d.BaseBranch):
		return fmt.Errorf("%w: branch name %q", ErrOutOfBounds, oneLine(d.Branch, 80))
	case d.Base == "":
		return ErrEmptyRepository
	case d.Way != "" && d.Way != ViaGit && d.Way != ViaAPI:
		return fmt.Errorf("%w: no way of delivery %q", ErrOutOfBounds, oneLine(string(d.Way), 20))
	case !validSHA(d.Base) || d.Way != ViaAPI && !validSHA(d.Head) || d.Way == ViaAPI && !validSHA(d.Tree):
		return fmt.Errorf("%w: base, head and tree have to be full ids", ErrBadBundle)
	case d.Base == d.Head, d.Way == ViaAPI && len(d.Files) == 0:
		return ErrNoChanges
	case d.Way != ViaAPI && d.Bundle == nil:
		return fmt.Errorf("%w: there is none", ErrBadBundle)
	case slices.ContainsFunc(d.Known, func(s string) bool { return !validSHA(s) }):
		return fmt.Errorf("%w: a known commit is no commit id", ErrOutOfBounds)
	}
	for _, text := range []string{d.Body, d.Comment} {
		if err := Check(d.Bounds, Change{Repo: d.Repo, Fork: d.Fork, Branch: d.Branch, BaseBranch: d.BaseBranch, Title: d.Title, Body: text}).Err(); err != nil {
			return err
		}
	}
	return nil
}

// readBundle reads the bundle's header and checks what it says. The pack stays where it is.
func (d Delivery) readBundle() (bundleHeader, error) {
	size, err := d.Bundle.Seek(0, io.SeekEnd)
	if err != nil {
		return bundleHeader{}, fmt.Errorf("read the bundle: %w", err)
	}
	if size > maxBundle {
		return bundleHeader{}, fmt.Errorf("bundle: %w of %d bytes", ErrTooLarge, maxBundle)
	}
	head, err := io.ReadAll(io.NewSectionReader(d.Bundle, 0, min(size, maxBundleHeader+4)))
	if err != nil {
		return bundleHeader{}, fmt.Errorf("read the bundle: %w", err)
	}
	h, err := parseBundle(head)
	if err != nil {
		return h, err
	}
	h.size = size
	if len(h.refs) != 1 {
		return h, fmt.Errorf("%w: %d refs, want one", ErrBadBundle, len(h.refs))
	}
	for _, sha := range h.refs {
		if d.Head != "" && sha != d.Head {
			return h, fmt.Errorf("%w: its ref is not the commit that was checked", ErrBadBundle)
		}
	}
	if len(h.prerequisites) > maxPrerequisites {
		return h, fmt.Errorf("%w: %d prerequisites", ErrBadBundle, len(h.prerequisites))
	}
	return h, nil
}

// Pushed is what stands on GitHub after PushBranch.
type Pushed struct {
	Repo   Repo      `json:"repository"` // as GitHub names it now
	Branch string    `json:"branch"`
	Head   string    `json:"head"`
	Push   PushState `json:"push"`
	URL    string    `json:"url"`
}

// PushBranch is the first half of a delivery by git: it brings the branch to GitHub, judged as [Deliver] judges it, and opens no pull
// request. Of d it takes Run, Repo, Branch, Bundle, Known and Bounds; Head and Base are the bundle's own where they are empty.
func PushBranch(ctx context.Context, r Runner, c *Client, d Delivery) (Pushed, error) {
	done := Pushed{Repo: d.Repo, Branch: d.Branch}
	h, err := d.readBundle()
	if err != nil {
		return done, err
	}
	if d.Head == "" {
		for _, d.Head = range h.refs { // there is one
		}
	}
	switch {
	case d.Base != "":
	case len(h.prerequisites) == 1:
		d.Base = h.prerequisites[0]
	default:
		return done, fmt.Errorf("%w: it does not tell the one commit that it starts from; name that", ErrBadBundle)
	}
	done.Head, d.Title = d.Head, d.Bounds.TitlePrefix+d.Branch
	if err := d.check(); err != nil {
		return done, err
	}
	info, err := c.Repository(ctx, d.Repo)
	if err != nil {
		return done, err
	}
	if info.Archived {
		return done, fmt.Errorf("push to %s: %w", info.Repo, ErrArchived)
	}
	done.Repo = info.Repo
	var execs int
	url := c.endpoint.CloneURL(info.Repo)
	if done.Push, err = (&gitDelivery{runner: r, client: c, d: d, url: url, pushURL: url, execs: &execs}).run(ctx, h); err != nil {
		return done, err
	}
	done.URL = c.endpoint.WebURL(info.Repo) + "/tree/" + d.Branch
	return done, nil
}

// keepPullRequest opens the pull request, or brings the one that is open up to date if this run opened it.
func keepPullRequest(ctx context.Context, c *Client, r, fork Repo, d Delivery) (PullRequest, error) {
	op, head := Op{d.Run, "pull-request"}, d.Branch
	if fork != (Repo{}) {
		head = fork.Owner + ":" + head
	}
	body := op.mark(d.Body)
	p, err := c.CreatePullRequest(ctx, r, NewPullRequest{
		Title: d.Title, Body: d.Body, Head: head, Base: d.BaseBranch, Ready: d.Ready, DraftOptional: d.DraftOptional, Op: op,
	})
	switch {
	case err != nil || !p.Existed:
		return p, err
	case p.Merged:
		p.Notes = append(p.Notes, "the pull request is merged already")
		return p, nil
	case p.State != "open":
		return p, fmt.Errorf("%w: #%d of %s; open it again there to have the rest delivered", ErrPullClosed, p.Number, r)
	}
	if !op.in(p.Body) {
		p.Notes = append(p.Notes, "the pull request was not opened by this run: its text was left as it is")
		return p, nil
	}
	// GitHub stores line ends as CR LF at times.
	if p.Title == d.Title && strings.ReplaceAll(p.Body, "\r\n", "\n") == body {
		return p, nil
	}
	notes := p.Notes
	p, err = c.UpdatePullRequest(ctx, r, p.Number, PullRequestUpdate{Title: &d.Title, Body: &body})
	p.Existed, p.Notes = true, notes
	return p, err
}

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
