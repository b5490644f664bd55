package github

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
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
