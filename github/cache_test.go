package github

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
)

// TestConditionalReads: a read of what did not change is answered with 304, gives the same, and costs nothing of the limit.
func TestConditionalReads(t *testing.T) {
	b := newBench(t)
	n, err := b.AddIssue("octo/app", "octo", "one", "text")
	if err != nil {
		t.Fatal(err)
	}
	read := func(want string) {
		t.Helper()
		if got, err := b.client.GetIssue(t.Context(), repoApp, n); err != nil || got.Title != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	read("one")
	used := b.Used()
	read("one")
	read("one")
	if b.Used() != used {
		t.Errorf("%d requests were counted for reading what did not change", b.Used()-used)
	}
	title := "two"
	if _, err := b.client.UpdateIssue(t.Context(), repoApp, n, IssueUpdate{Title: &title}); err != nil {
		t.Fatal(err)
	}
	read("two")
	read("two")
	var statuses []int
	for _, r := range b.Log().All() {
		if r.Method == http.MethodGet {
			statuses = append(statuses, r.Status)
		}
	}
	if !slices.Equal(statuses, []int{200, 304, 304, 200, 304}) {
		t.Errorf("answers to the reads: %v", statuses)
	}
}

// TestConditionalPages: the links of a remembered page still lead on.
func TestConditionalPages(t *testing.T) {
	b := newBench(t)
	for i := range 120 {
		if _, err := b.AddIssue("octo/app", "octo", fmt.Sprint("issue ", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		list, err := b.client.ListIssues(t.Context(), repoApp, IssueFilter{Limit: 1000})
		if err != nil || len(list) != 120 || list[0].Title != "issue 119" || list[119].Title != "issue 0" {
			t.Fatalf("%d issues, %v", len(list), err)
		}
	}
	if n := b.Used(); n != 2 {
		t.Errorf("%d requests were counted for reading 120 issues twice, want 2", n)
	}
}

// A repetition after a fault stays conditional, and one whose answer was forgotten is not.
func TestConditionalReadRepeated(t *testing.T) {
	b := newBench(t)
	for range 2 {
		if _, err := b.client.Repository(t.Context(), repoApp); err != nil {
			t.Fatal(err)
		}
		b.Inject(hub.Fault{Kind: hub.ServerError, Op: "repos/get", Times: 1})
	}
	if info, err := b.client.Repository(t.Context(), repoApp); err != nil || info.Repo != repoApp {
		t.Fatalf("%+v, %v", info, err)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	var a answers
	ask := func(i, size int) {
		t.Helper()
		req := request(t, "GET", fmt.Sprintf("https://api.github.com/%d", i), nil)
		a.take(req, &http.Response{StatusCode: 200, Header: http.Header{"Etag": {fmt.Sprint(i)}}}, make([]byte, size))
	}
	for i := range 3 * maxCached {
		ask(i, 1)
	}
	if len(a.byKey) != maxCached || len(a.oldest) != maxCached || a.size != maxCached {
		t.Errorf("%d answers of %d bytes are kept", len(a.byKey), a.size)
	}
	for i := range 20 {
		ask(i, maxCachedBody)
	}
	if a.size > maxCachedSize {
		t.Errorf("%d bytes are kept", a.size)
	}
	kept := len(a.byKey)
	ask(1000, maxCachedBody+1)
	if len(a.byKey) != kept {
		t.Error("an answer over the limit is kept")
	}
}

// TestPagesEnd: a list without end is an error, not a part passed off as all.
func TestPagesEnd(t *testing.T) {
	asked := 0
	b := newBench(t)
	b.strict = false
	endless := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-GitHub-Request-Id", "1")
		w.Header().Set("Link", fmt.Sprintf(`<https://api.github.com%s?page=%d>; rel="next"`, r.URL.Path, asked+1))
		fmt.Fprint(w, "[]")
	}))
	c := NewClient(endless, DotCom(), WithClock((&testClock{now: time.Now()}).clock()))
	defer c.Close()
	if _, err := c.ListComments(t.Context(), repoApp, 1); !errors.Is(err, ErrTooLarge) || asked != maxPages {
		t.Errorf("%v after %d pages", err, asked)
	}
}

// TestNotModifiedKeepsHeaders: an answer of 304 need not repeat the links, so they come from the answer it stands for.
func TestNotModifiedKeepsHeaders(t *testing.T) {
	var a answers
	req := request(t, "GET", "https://api.github.com/x", nil)
	full := &http.Response{StatusCode: 200, Header: http.Header{"Etag": {"1"}, "Link": {"next"}}}
	a.take(req, full, []byte("body"))
	a.ask(req)
	got := a.take(req, &http.Response{StatusCode: 304, Header: http.Header{"Etag": {"1"}}}, nil)
	if got.StatusCode != 200 || got.Header.Get("Link") != "next" || got.ContentLength != 4 {
		t.Errorf("%+v", got)
	}
}
