package loop

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
)

// maxTask bounds the text of an issue that becomes a task, in characters.
const maxTask = 32_000

// readTask takes the text of an issue as the task. It is read from inside the github sandbox, which is why the pair stands
// before the task is known. Whatever the text says, it is data: it goes to the agent and, quoted, to GitHub.
func (r *run) readTask(ctx context.Context) (string, error) {
	client, repo, err := r.github()
	if err != nil {
		return "", err
	}
	defer client.Close()
	issue, err := client.GetIssue(ctx, repo, r.req.Issue)
	if err != nil {
		return "", err
	}
	switch {
	case issue.PullRequest:
		return "", fmt.Errorf("%w: #%d of %s is a pull request, not an issue", config.ErrInvalid, r.req.Issue, repo)
	case issue.State != "open":
		return "", fmt.Errorf("%w: issue #%d of %s is %s", config.ErrInvalid, r.req.Issue, repo, issue.State)
	}
	title := strings.Join(strings.Fields(github.ReadableText(issue.Title, github.MaxTitleRunes)), " ")
	r.req.Task = strings.TrimSpace(title + "\n\n" + github.ReadableText(issue.Body, maxTask))
	if err := r.checkTask(); err != nil {
		return "", fmt.Errorf("issue #%d of %s: %w", r.req.Issue, repo, err)
	}
	r.log.Emit(events.Tasked{Issue: issue.Number, URL: issue.URL, Task: r.req.Task})
	if err := r.ask(); err != nil {
		return "", err
	}
	r.tell()
	return fmt.Sprintf("issue #%d: %s", issue.Number, title), nil
}

// Bounds of what is told on an issue while a run goes on.
const (
	tellPause   = 20 * time.Second // between two updates
	maxUpdates  = 60               // updates of one run, without the last
	tellTimeout = 30 * time.Second // of one update
)

// telling keeps one comment on the run's issue current. Updates come from one goroutine, which it owns; what is said while one is
// on its way replaces what was waiting. An update that fails is noted and ends nothing.
type telling struct {
	open   func() (*github.Client, github.Repo, error)
	issue  int
	run    string
	note   func(error)
	latest chan string // holds at most the newest text
	quit   chan struct{}
	done   chan struct{}
	once   sync.Once
}

// tell begins to tell the run's issue, if that is wanted.
func (r *run) tell() {
	if !r.req.Config.GitHub.Progress || r.req.Staged {
		return
	}
	r.telling = &telling{
		open: r.github, issue: r.req.Issue, run: string(r.id), latest: make(chan string, 1), quit: make(chan struct{}), done: make(chan struct{}),
		note: func(err error) { r.log.Emit(events.Noted{Text: "the issue could not be told: " + err.Error()}) },
	}
	go r.telling.keep()
}

// say makes the comment say what make returns, soon. It never waits. A nil telling tells nobody.
func (t *telling) say(make func() string) {
	if t == nil {
		return
	}
	text := make()
	for {
		select {
		case t.latest <- text:
			return
		default:
		}
		select {
		case <-t.latest: // nobody has told it yet, and now nobody need
		default:
		}
	}
}

func (t *telling) keep() {
	defer close(t.done)
	for range maxUpdates {
		select {
		case <-t.quit:
			return
		case text := <-t.latest:
			t.update(context.Background(), text)
		}
		select {
		case <-t.quit:
			return
		case <-time.After(tellPause):
		}
	}
	<-t.quit
}

func (t *telling) update(ctx context.Context, text string) {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	client, repo, err := t.open()
	if err == nil {
		defer client.Close()
		clean := github.CleanBody(text, github.DefaultCleaning(client.Endpoint(), repo))
		_, err = client.KeepComment(ctx, repo, t.issue, github.NewComment{Body: clean, Op: github.Op{Run: t.run, Name: "progress"}})
	}
	if err != nil {
		t.note(err)
	}
}

// end says the last word and returns when it is said or given up. It works after the run was cancelled.
func (t *telling) end(ctx context.Context, text string) {
	if t == nil {
		return
	}
	t.once.Do(func() {
		close(t.quit)
		<-t.done
		t.update(context.WithoutCancel(ctx), text)
	})
}

// standing is what the issue is told: how far the run is, and at the end what came of it.
func (r *run) standing(now string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**: sbxpair run %s with %s, started %s.\n", now, r.id, r.adapter.Name, r.started.UTC().Format("2006-01-02 15:04 UTC"))
	for _, p := range r.result.Phases {
		attempt := ""
		if p.Attempt > 1 {
			attempt = fmt.Sprintf(" (attempt %d)", p.Attempt)
		}
		fmt.Fprintf(&b, "\n- %s%s: %s", p.Phase, attempt, p.Took.Round(time.Second))
	}
	if n := r.result.Delivered.Number; n > 0 {
		fmt.Fprintf(&b, "\n\nPull request: #%d\n", n)
	}
	return b.String()
}

// lastWord is what the issue is told at the end. Why it went wrong may hold text of strangers: it is quoted, and cleaned like all of it.
func (r *run) lastWord(err error) string {
	text := r.standing("Ended: " + Outcome(err))
	if err != nil {
		text += "\n\n> " + firstLine(cut(r.redact.String(err.Error()), 600)) + "\n"
	}
	return text
}
