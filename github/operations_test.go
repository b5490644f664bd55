package github

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/secrets"
)

func TestOperations(t *testing.T) {
	b := newBenchAs(t, DotCom(), hub.Token{Login: "octo", Expires: time.Now().Add(48 * time.Hour)})
	c, ctx := b.client, t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	who, err := c.WhoAmI(ctx)
	must(err)
	if who.Login != "octo" || who.Expires.IsZero() {
		t.Errorf("%+v", who)
	}
	info, err := c.Repository(ctx, Repo{"OCTO", "app"})
	must(err)
	if info.Repo != repoApp || info.DefaultBranch != "main" || !info.Private || !info.CanPush {
		t.Errorf("%+v", info)
	}
	must(c.EnsureLabel(ctx, repoApp, "sbx pair/x", "ff0000", "made by a run"))
	must(c.EnsureLabel(ctx, repoApp, "sbx pair/x", "ff0000", "made by a run"))
	op := Op{"r1", "issue"}
	first, err := c.CreateIssue(ctx, repoApp, NewIssue{Title: "t", Body: "b", Labels: []string{"sbx pair/x"}, Assignees: []string{"octo"}, Op: op})
	must(err)
	again, err := c.CreateIssue(ctx, repoApp, NewIssue{Title: "t", Body: "b", Op: op})
	must(err)
	if first.Existed || !again.Existed || again.Number != first.Number || !slices.Equal(first.Labels, []string{"sbx pair/x"}) || len(first.Dropped) != 0 {
		t.Errorf("%+v then %+v", first, again)
	}
	n := first.Number
	got, err := c.GetIssue(ctx, repoApp, n)
	must(err)
	if got.Title != "t" || got.Author != "octo" || got.State != "open" {
		t.Errorf("%+v", got)
	}
	must(c.RemoveLabel(ctx, repoApp, n, "sbx pair/x"))
	must(c.RemoveLabel(ctx, repoApp, n, "sbx pair/x"))
	labels, err := c.AddLabels(ctx, repoApp, n, []string{"sbx pair/x"})
	must(err)
	if !slices.Equal(labels, []string{"sbx pair/x"}) {
		t.Errorf("labels %v", labels)
	}
	_, err = c.Assign(ctx, repoApp, n, []string{"octo"})
	must(err)
	one, err := c.Comment(ctx, repoApp, n, NewComment{Body: "c", Op: Op{"r1", "c"}})
	must(err)
	two, err := c.Comment(ctx, repoApp, n, NewComment{Body: "other", Op: Op{"r1", "c"}})
	must(err)
	if one.Existed || !two.Existed || one.ID != two.ID {
		t.Errorf("%+v %+v", one, two)
	}
	all, err := c.ListComments(ctx, repoApp, n)
	must(err)
	if len(all) != 1 {
		t.Errorf("%d comments", len(all))
	}
	list, err := c.ListIssues(ctx, repoApp, IssueFilter{Labels: []string{"sbx pair/x"}})
	must(err)
	if len(list) != 1 || list[0].Number != n {
		t.Errorf("%+v", list)
	}
	closed, err := c.CloseIssue(ctx, repoApp, n, true)
	must(err)
	if closed.State != "closed" || closed.Reason != "completed" {
		t.Errorf("%+v", closed)
	}
	if _, err := c.SearchIssues(ctx, repoApp, "x repo:other/one", 10); !errors.Is(err, ErrOutOfBounds) {
		t.Errorf("search of another repository: %v", err)
	}
	_, err = c.SearchIssues(ctx, repoApp, "t", 10)
	must(err)

	b.write("src/a.go", "package a // x\n")
	b.commit("one")
	d, err := b.deliver(func(d *Delivery) { d.Ready = true })
	must(err)
	pr := d.PullRequest.Number
	if d.PullRequest.Draft {
		t.Error("asked for ready, got a draft")
	}
	pulls, err := c.ListPullRequests(ctx, repoApp, PullFilter{})
	must(err)
	if len(pulls) != 1 || pulls[0].HeadRepo != repoApp {
		t.Errorf("%+v", pulls)
	}
	must(c.Review(ctx, repoApp, pr, ReviewComment, "looks fine", Op{"r1", "review"}))
	must(c.Review(ctx, repoApp, pr, ReviewComment, "looks fine", Op{"r1", "review"}))
	must(c.SetStatus(ctx, repoApp, d.Head, StatusSuccess, "sbxpair", strings.Repeat("é", 200), ""))
	if ok, err := c.HasCommit(ctx, repoApp, d.Head); err != nil || !ok {
		t.Errorf("HasCommit %t %v", ok, err)
	}
	title := "new"
	up, err := c.UpdatePullRequest(ctx, repoApp, pr, PullRequestUpdate{Title: &title})
	must(err)
	shut, err := c.ClosePullRequest(ctx, repoApp, pr)
	must(err)
	if up.Title != "new" || shut.State != "closed" {
		t.Errorf("%+v %+v", up, shut)
	}
	state, err := b.Pulls(ctx, "octo/app")
	must(err)
	if len(state[0].Reviews) != 1 {
		t.Errorf("reviews %v", state[0].Reviews)
	}
	if n := b.execs.Load(); n != 3 {
		t.Errorf("%d execs for all that, want 3", n)
	}
	for _, d := range b.clock.slept {
		if d > time.Second {
			t.Errorf("waited %s", d)
		}
	}
}

// TestLostAnswersAreNotRepeated: a create whose answer was lost is looked for before it is made again.
func TestLostAnswersAreNotRepeated(t *testing.T) {
	for _, kind := range []hub.Kind{hub.LostAnswer, hub.Refused, hub.ServerError} {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t)
			n, err := b.AddIssue("octo/app", "octo", "t", "b")
			if err != nil {
				t.Fatal(err)
			}
			b.Inject(hub.Fault{Kind: kind, Op: "issues/create", Times: 1})
			b.Inject(hub.Fault{Kind: kind, Op: "issues/create-comment", Times: 1})
			if _, err := b.client.CreateIssue(t.Context(), repoApp, NewIssue{Title: "x", Body: "y", Op: Op{"r1", "i"}}); err != nil {
				t.Error(err)
			}
			if _, err := b.client.Comment(t.Context(), repoApp, n, NewComment{Body: "y", Op: Op{"r1", "c"}}); err != nil {
				t.Error(err)
			}
			issues, err := b.Issues("octo/app")
			if err != nil || len(issues) != 2 || len(issues[0].Comments) != 1 {
				t.Errorf("%+v %v", issues, err)
			}
			// Without a marker nobody can look, so the caller hears of it.
			b.ClearFaults()
			b.Inject(hub.Fault{Kind: kind, Op: "issues/create", Times: 1})
			if _, err := b.client.CreateIssue(t.Context(), repoApp, NewIssue{Title: "x", Body: "y"}); err == nil {
				t.Error("a create without marker was repeated blindly")
			}
		})
	}
}

func TestSilentlyDropped(t *testing.T) {
	b := newBenchAs(t, DotCom(), hub.Token{Login: "octo", NoPush: true})
	i, err := b.client.CreateIssue(t.Context(), repoApp, NewIssue{Title: "x", Body: "y", Labels: []string{"bug"}, Assignees: []string{"octo"}})
	if err != nil || !slices.Equal(i.Dropped, []string{"bug", "octo"}) {
		t.Errorf("%+v %v", i, err)
	}
}

func TestReadError(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		want   error
		wait   time.Duration // of a rate limit
		second bool
	}{
		{"401", 401, nil, `{"message":"Bad credentials"}`, ErrUnauthorized, 0, false},
		{"403 permission", 403, map[string]string{"X-Accepted-Github-Permissions": "contents=write"}, `{"message":"Resource not accessible by personal access token"}`, ErrForbidden, 0, false},
		{"403 archived", 403, nil, `{"message":"Repository was archived so is read-only."}`, ErrArchived, 0, false},
		{"403 with quota left", 403, map[string]string{"X-Ratelimit-Remaining": "17"}, `{"message":"no"}`, ErrForbidden, 0, false},
		{"403 primary", 403, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1796040090"}, `{"message":"API rate limit exceeded"}`, ErrRateLimited, 91 * time.Second, false},
		{"429 primary", 429, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1796040090"}, `{}`, ErrRateLimited, 91 * time.Second, false},
		{"reset in the past", 429, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1000"}, `{}`, ErrRateLimited, time.Second, false},
		{"429 with retry-after", 429, map[string]string{"Retry-After": "7"}, ``, ErrRateLimited, 7 * time.Second, true},
		{"retry-after as a date", 429, map[string]string{"Retry-After": "Mon, 30 Nov 2026 12:00:09 GMT"}, ``, ErrRateLimited, 9 * time.Second, true},
		{"negative retry-after", 429, map[string]string{"Retry-After": "-7"}, ``, ErrRateLimited, 0, true},
		{"429 bare", 429, nil, `<html>`, ErrRateLimited, time.Minute, true},
		{"403 secondary by text", 403, map[string]string{"X-Ratelimit-Remaining": "100", "X-Ratelimit-Reset": "1796045690"}, `{"message":"You have exceeded a secondary rate limit."}`, ErrRateLimited, time.Minute, true},
		{"403 secondary by link", 403, nil, `{"message":"x","documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`, ErrRateLimited, time.Minute, true},
		{"404", 404, nil, `{"message":"Not Found"}`, ErrNotFound, 0, false},
		{"409 empty", 409, nil, `{"message":"Git Repository is empty."}`, ErrEmptyRepository, 0, false},
		{"409 other", 409, nil, `{"message":"is at x but expected y"}`, ErrConflict, 0, false},
		{"422 exists by code", 422, nil, `{"message":"Validation Failed","errors":[{"resource":"Label","code":"already_exists","field":"name"}]}`, ErrExists, 0, false},
		{"422 exists, pull request", 422, nil, `{"message":"Validation Failed","errors":[{"resource":"PullRequest","code":"custom","message":"A pull request already exists for octo:x."}]}`, ErrExists, 0, false},
		{"422 exists, ref", 422, nil, `{"message":"Reference already exists"}`, ErrExists, 0, false},
		{"422 no commits", 422, nil, `{"message":"Validation Failed","errors":[{"resource":"PullRequest","code":"custom","message":"No commits between main and x"}]}`, ErrNoChanges, 0, false},
		{"422 errors as text", 422, nil, `{"message":"Validation Failed","errors":["body is too long"]}`, ErrValidation, 0, false},
		{"422 errors as an object", 422, nil, `{"message":"Validation Failed","errors":{"a":1}}`, ErrValidation, 0, false},
		{"502 page", 502, nil, "<html>\n<h1>no</h1>", ErrServer, 0, false},
		{"418", 418, nil, ``, ErrMalformed, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := httptest.NewRequest("POST", "https://api.github.com/x", nil)
			resp := &http.Response{StatusCode: tt.status, Header: http.Header{}}
			for k, v := range tt.header {
				resp.Header.Set(k, v)
			}
			err := readError(req, resp, []byte(tt.body), now)
			if !errors.Is(err, tt.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			var limit *RateLimitError
			if errors.As(err, &limit) && (limit.RetryAfter != tt.wait || limit.Secondary != tt.second) {
				t.Errorf("%+v, want a wait of %s, secondary %t", limit, tt.wait, tt.second)
			}
			var api *APIError
			if errors.As(err, &api) && tt.name == "403 permission" && (api.Needed != "contents=write" || !strings.Contains(err.Error(), "contents=write")) {
				t.Errorf("%v does not say what is needed", err)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	b := DefaultBounds(repoApp, "main")
	b.Secrets = append(b.Secrets, canary)
	b.Requests.Labels = []string{"bug"}
	b.Requests.Numbers = []int{7}
	b.Requests.TitlePrefix = "[agent] "
	b.Requests.People = []string{"friend"}
	for _, kind := range RequestKinds() {
		b.Requests.Max[kind] = 1
	}
	page := "| request | decision | reason |\n| --- | --- | --- |\n"
	for _, tt := range []struct {
		name, line string
		want       Decision
		code       Code
	}{
		{"pull request", `{"kind":"pull_request","title":"Fix","body":"x"}`, Allow, ""},
		{"comment", `{"kind":"comment","body":"x","number":7}`, Allow, ""},
		{"issue", `{"kind":"issue","title":"t","body":"x","labels":["BUG"]}`, Allow, ""},
		{"labels", `{"kind":"labels","labels":["bug"]}`, Allow, ""},
		{"people", `{"kind":"assign","people":["Friend"]}`, Allow, ""},
		{"reviewers", `{"kind":"reviewers","people":["friend"]}`, Allow, ""},
		{"review", `{"kind":"review","body":"x","number":7}`, Allow, ""},
		{"close", `{"kind":"close"}`, Allow, ""},
		{"somebody else", `{"kind":"assign","people":["friend","boss"]}`, Refuse, ReasonPerson},
		{"nobody", `{"kind":"reviewers","people":[]}`, Refuse, ReasonField},
		{"too many people", `{"kind":"assign","people":["friend","friend","friend","friend","friend","friend","friend","friend","friend","friend","friend"]}`, Refuse, ReasonPerson},
		{"an approving review", `{"kind":"review","body":"x","event":"APPROVE"}`, Refuse, ReasonField},
		{"another issue closed", `{"kind":"close","number":9}`, Refuse, ReasonTarget},
		{"no JSON", `create an issue please`, Refuse, ReasonField},
		{"a list", `[]`, Refuse, ReasonField},
		{"null", `null`, Refuse, ReasonField},
		{"a field twice", `{"kind":"comment","body":"x","body":"y"}`, Refuse, ReasonField},
		{"a kind twice", `{"kind":"comment","kind":"merge","body":"x"}`, Refuse, ReasonField},
		{"a kind twice, spelled otherwise", `{"kind":"comment","\u006bind":"merge","body":"x"}`, Refuse, ReasonField},
		{"a field that says what another is called", `{"kind":"labels","labels":["kind","kind"]}`, Refuse, ReasonLabel},
		{"a NUL", `{"kind":"comment","body":"a` + "\x00" + `b"}`, Refuse, ReasonField},
		{"deep", `{"kind":"comment","body":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, Refuse, ReasonField},
		{"no kind", `{"title":"t"}`, Refuse, ReasonField},
		{"unknown kind", `{"kind":"merge","number":1}`, Refuse, ReasonKind},
		{"unknown field", `{"kind":"comment","body":"x","repo":"other/one"}`, Refuse, ReasonField},
		{"draft is not the agent's", `{"kind":"pull_request","title":"t","body":"b","draft":false}`, Refuse, ReasonField},
		{"number as text", `{"kind":"comment","body":"x","number":"7"}`, Refuse, ReasonField},
		{"negative number", `{"kind":"comment","body":"x","number":-1}`, Refuse, ReasonField},
		{"number with a fraction", `{"kind":"comment","body":"x","number":1.5}`, Refuse, ReasonField},
		{"body is null", `{"kind":"comment","body":null}`, Refuse, ReasonField},
		{"body missing", `{"kind":"comment"}`, Refuse, ReasonField},
		{"body empty once cleaned", `{"kind":"comment","body":"<!-- x -->"}`, Refuse, ReasonField},
		{"title only a prefix", `{"kind":"issue","title":" ","body":"x"}`, Refuse, ReasonField},
		{"title that only looks like the prefix", `{"kind":"issue","title":"[agent]\u200b x","body":"x"}`, Allow, ""},
		{"another issue", `{"kind":"comment","body":"x","number":8}`, Refuse, ReasonTarget},
		{"label not allowed", `{"kind":"labels","labels":["security"]}`, Refuse, ReasonLabel},
		{"a secret", `{"kind":"comment","body":"` + canary.Reveal() + `"}`, Refuse, ReasonSecret},
		{"a secret split by a comment", `{"kind":"comment","body":"` + canary.Reveal()[:20] + `<!-- -->` + canary.Reveal()[20:] + `"}`, Refuse, ReasonSecret},
	} {
		page += fmt.Sprintf("| %s | %s | %s |\n", tt.name, tt.want, tt.code)
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadRequests(strings.NewReader("\n"+tt.line+"\n"), b, Cleaning{})
			if err != nil || len(got) != 1 {
				t.Fatalf("%+v %v", got, err)
			}
			v := got[0]
			has := slices.ContainsFunc(v.Verdict.Reasons, func(r Reason) bool { return r.Code == tt.code })
			if v.Verdict.Decision != tt.want || tt.code != "" && !has || v.Line != 2 {
				t.Errorf("%+v, want %s for %s", v, tt.want, tt.code)
			}
			if v.Verdict.Decision == Allow && v.Request.Title != "" && !strings.HasPrefix(v.Request.Title, "[agent] ") {
				t.Errorf("title %q lacks its prefix", v.Request.Title)
			}
		})
	}
	pageSection(t, "requests.md", "refusals", page)
	t.Run("one fault does not stop the others, and counts hold", func(t *testing.T) {
		lines := strings.Repeat(`{"kind":"comment","body":"x"}`+"\n", 3) + "junk\n" + `{"kind":"issue","title":"t","body":"x"}`
		got, err := ReadRequests(strings.NewReader(lines), b, Cleaning{})
		var decisions []Decision
		for _, v := range got {
			decisions = append(decisions, v.Verdict.Decision)
		}
		if err != nil || !slices.Equal(decisions, []Decision{Allow, Refuse, Refuse, Refuse, Allow}) {
			t.Errorf("%v %v", decisions, err)
		}
	})
	t.Run("a line without end", func(t *testing.T) {
		got, err := ReadRequests(strings.NewReader(strings.Repeat("x", maxRequestLine+1)), b, Cleaning{})
		if err != nil || len(got) != 1 || got[0].Verdict.Decision != Refuse {
			t.Errorf("%+v %v", got, err)
		}
	})
	t.Run("schema and prompt name what is allowed and nothing else", func(t *testing.T) {
		var doc struct {
			OneOf []struct {
				Properties map[string]any
				Required   []string
			}
		}
		if err := json.Unmarshal(RequestSchema(b.Requests), &doc); err != nil || len(doc.OneOf) != len(RequestKinds()) {
			t.Errorf("%+v %v", doc, err)
		}
		if none := RequestSchema(RequestBounds{}); strings.Contains(string(none), "comment") {
			t.Errorf("empty bounds: %s", none)
		}
		prompt := RequestPrompt(DefaultRequestBounds(), "/out/requests.jsonl")
		for _, spec := range requestTable() {
			if allowed := DefaultRequestBounds().Max[spec.kind] > 0; strings.Contains(prompt, `"`+string(spec.kind)+`", "`) != allowed {
				t.Errorf("prompt for %s:\n%s", spec.kind, prompt)
			}
		}
	})
}

// TestPerform carries out one request of each kind, twice: the second time finds the first one's work.
func TestPerform(t *testing.T) {
	b := newBench(t)
	b.write("src/a.go", "package a // x\n")
	b.commit("one")
	b.AddToken(secrets.New("github_pat_11FRIEND000"+strings.Repeat("f", 59)), hub.Token{Login: "friend"})
	issue, err := b.AddIssue("octo/app", "octo", "Broken", "It is.", "bug")
	if err != nil {
		t.Fatal(err)
	}
	delivered, err := b.deliver()
	if err != nil {
		t.Fatal(err)
	}
	own := Own{Pull: delivered.PullRequest.Number, Issue: issue}
	bounds := DefaultBounds(repoApp, "main")
	bounds.Requests = RequestBounds{Max: map[RequestKind]int{}, Labels: []string{"bug"}, People: []string{"friend"}}
	lines := ""
	for _, spec := range requestTable() {
		bounds.Requests.Max[spec.kind] = 1
		request := map[string]any{"kind": spec.kind}
		for _, f := range spec.fields {
			switch f.name {
			case "labels":
				request[f.name] = []string{"bug"}
			case "people":
				request[f.name] = []string{"friend"}
			case "title", "body":
				request[f.name] = "An agent's " + f.name
			}
		}
		line, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		lines += string(line) + "\n"
	}
	verdicts, err := ReadRequests(strings.NewReader(lines), bounds, Cleaning{})
	if err != nil || len(verdicts) != len(RequestKinds()) {
		t.Fatalf("%+v, %v", verdicts, err)
	}
	for range 2 {
		for i, v := range verdicts {
			if v.Request.Kind == RequestPullRequest {
				continue
			}
			got, err := Perform(t.Context(), b.client, repoApp, "r1", i, own, v)
			want := own.Pull
			switch v.Request.Kind {
			case RequestAssign, RequestClose:
				want = issue
			case RequestIssue:
				want = got.Number
			}
			if err != nil || got.Number != want || len(got.Dropped) != 0 {
				t.Errorf("%s: %+v, %v; want it on #%d", v.Request.Kind, got, err, want)
			}
		}
	}
	pulls, err := b.Pulls(t.Context(), "octo/app")
	if err != nil || len(pulls) != 1 || len(pulls[0].Reviews) != 1 || len(pulls[0].Comments) != 2 || !slices.Equal(pulls[0].Labels, []string{"bug"}) {
		t.Errorf("pull requests %+v, %v", pulls, err)
	}
	issues, err := b.Issues("octo/app")
	if err != nil || len(issues) != 2 || issues[0].State != "closed" {
		t.Errorf("issues %+v, %v", issues, err)
	}
	for _, v := range verdicts {
		if v.Request.Kind == RequestIssue || v.Request.Kind == RequestPullRequest {
			continue
		}
		if _, err := Perform(t.Context(), b.client, repoApp, "r1", 9, Own{}, v); !errors.Is(err, ErrOutOfBounds) {
			t.Errorf("%s without anything of the run's own: %v", v.Request.Kind, err)
		}
	}
}

// TestRequestsPage holds that the page about requests is what the table says.
func TestRequestsPage(t *testing.T) {
	page := "| kind | what it asks for | fields |\n| --- | --- | --- |\n"
	for _, spec := range requestTable() {
		var fields []string
		for _, f := range spec.fields {
			text := "`" + f.name + "`: " + f.doc
			if !f.required {
				text += " (optional)"
			}
			fields = append(fields, text)
		}
		page += fmt.Sprintf("| `%s` | %s | %s |\n", spec.kind, spec.doc, strings.Join(fields, "; "))
	}
	pageSection(t, "requests.md", "kinds", page)
	pageSection(t, "requests.md", "prompt", "```\n"+RequestPrompt(DefaultRequestBounds(), "/tmp/outbox.jsonl")+"```\n")
	pageSection(t, "requests.md", "schema", "```json\n"+string(RequestSchema(DefaultRequestBounds()))+"\n```\n")
}
