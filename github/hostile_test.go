package github

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestHostileAnswers: an answer that cannot be GitHub's is an error of a kind for every operation, never a success or "not there"; what
// was sent with a credential in it follows no redirect to another place; a write is neither repeated blindly nor made a read.
func TestHostileAnswers(t *testing.T) {
	var answer http.HandlerFunc
	var hits []string
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		hits = append(hits, r.Host+" "+r.Method)
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("X-GitHub-Request-Id", "1:2")
		answer(rw, r)
	}))
	say := func(status int, body string, header ...string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(header); i += 2 {
				rw.Header().Set(header[i], header[i+1])
			}
			rw.WriteHeader(status)
			io.WriteString(rw, body)
		}
	}
	redirect := func(status int, to string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				say(200, `{"id":3,"number":3,"state":"open"}`)(rw, r)
				return
			}
			say(status, "", "Location", to)(rw, r)
		}
	}
	clock := &testClock{now: time.Now()}
	c := NewClient(w, DotCom(), WithClock(clock.clock()), WithLimits(Limits{Attempts: 2, Backoff: time.Second, MaxWait: time.Minute}))
	defer c.Close()
	closed := "closed"
	type operation struct {
		name string
		do   func(context.Context) error
	}
	objects := []operation{
		{"who am I", func(ctx context.Context) error { _, err := c.WhoAmI(ctx); return err }},
		{"read a repository", func(ctx context.Context) error { _, err := c.Repository(ctx, repoApp); return err }},
		{"read a branch", func(ctx context.Context) error { _, _, err := c.Branch(ctx, repoApp, "main"); return err }},
		{"read an issue", func(ctx context.Context) error { _, err := c.GetIssue(ctx, repoApp, 7); return err }},
		{"search", func(ctx context.Context) error { _, err := c.SearchIssues(ctx, repoApp, "x", 10); return err }},
	}
	writes := []operation{
		{"open an issue", func(ctx context.Context) error {
			_, err := c.CreateIssue(ctx, repoApp, NewIssue{Title: "t"})
			return err
		}},
		{"close an issue", func(ctx context.Context) error { _, err := c.CloseIssue(ctx, repoApp, 7, true); return err }},
		{"comment", func(ctx context.Context) error {
			_, err := c.Comment(ctx, repoApp, 7, NewComment{Body: "b"})
			return err
		}},
		{"change a pull request", func(ctx context.Context) error {
			_, err := c.UpdatePullRequest(ctx, repoApp, 7, PullRequestUpdate{State: &closed})
			return err
		}},
		{"assign", func(ctx context.Context) error { _, err := c.Assign(ctx, repoApp, 7, []string{"friend"}); return err }},
		{"review", func(ctx context.Context) error { return c.Review(ctx, repoApp, 7, ReviewComment, "b", Op{}) }},
		{"status", func(ctx context.Context) error {
			return c.SetStatus(ctx, repoApp, strings.Repeat("a", 40), StatusSuccess, "c", "", "")
		}},
	}
	lists := []operation{
		{"list issues", func(ctx context.Context) error {
			_, err := c.ListIssues(ctx, repoApp, IssueFilter{Limit: 1000})
			return err
		}},
		{"look for a pull request", func(ctx context.Context) error { _, _, err := c.FindPullRequest(ctx, repoApp, "x", "main"); return err }},
	}
	var things []operation
	things = append(append(things, objects...), writes...)
	all := append(append([]operation{}, things...), lists...)
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		ops    []operation
		want   error
	}{
		{"null", say(201, "null"), all, ErrMalformed},
		{"nothing", say(200, ""), all, ErrMalformed},
		{"no content", say(204, ""), all, ErrMalformed},
		{"accepted", say(202, `{"id":1,"number":1}`), all, ErrMalformed},
		{"a page for people", say(200, "<html>Unicorn!</html>", "Content-Type", "text/html"), all, ErrMalformed},
		{"an empty object", say(201, "{}"), all, ErrMalformed},
		{"an error that says it is none", say(200, `{"message":"Bad credentials","status":"401"}`), all, ErrMalformed},
		{"values of another type", say(201, `{"id":"x","number":"7","ref":1,"total_count":"1"}`), all, ErrMalformed},
		{"a list for a thing", say(200, "[]"), things, ErrMalformed},
		{"half a document", say(200, `{"id":1,"number":1`), all, ErrMalformed},
		{"moved, and not said where", say(301, ""), all, ErrMalformed},
		{"a write that is made a read", redirect(301, "/elsewhere"), writes, ErrOutOfBounds},
		{"a write that is made a read, 303", redirect(303, "/elsewhere"), writes, ErrOutOfBounds},
		{"to another host", redirect(307, "https://evil.test/elsewhere"), all, ErrOutOfBounds},
		{"to another port", redirect(307, "https://api.github.com:8443/elsewhere"), all, ErrOutOfBounds},
		{"to plain http", redirect(307, "http://api.github.com/elsewhere"), all, ErrOutOfBounds},
		{"in circles", func(rw http.ResponseWriter, r *http.Request) { say(307, "", "Location", r.URL.Path+"x")(rw, r) }, all, ErrOutOfBounds},
		{"a page after which it comes again", say(200, `[{"id":1,"number":1}]`, "Link", `<https://api.github.com/x?page=1>; rel="next"`), lists, ErrMalformed},
		{"pages without end", func(rw http.ResponseWriter, r *http.Request) {
			say(200, `[]`, "Link", `<https://evil.test/x?page=1`+r.URL.Query().Get("page")[:1]+strings.Repeat("0", len(hits)%15)+`>; rel="next"`)(rw, r)
		}, lists[:1], ErrMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer = tt.answer
			for _, op := range tt.ops {
				hits = nil
				if err := op.do(t.Context()); !errors.Is(err, tt.want) {
					t.Errorf("%s: error %v, want %v", op.name, err, tt.want)
				}
				sent := 0
				for _, hit := range hits {
					if !strings.HasPrefix(hit, "api.github.com ") {
						t.Errorf("%s: a request to %s", op.name, hit)
					}
					if !strings.HasSuffix(hit, " GET") {
						sent++
					}
				}
				if sent > 1 && tt.name != "in circles" || len(hits) > 60 {
					t.Errorf("%s: %d requests, %d of them writes", op.name, len(hits), sent)
				}
			}
		})
	}
}
