package github

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/secrets"
)

// TestFieldReports has the rows of reference/field-reports.md of the category github, and two of the category secrets that are about
// text on GitHub. R203 (progress reporting over a run's life) is split: what a run needs of this package is here.
func TestFieldReports(t *testing.T) {
	change := func(b *bench) {
		b.write("src/a.go", "package a // x\n")
		b.commit("one")
	}
	t.Run("R191", func(t *testing.T) {
		b := newBench(t)
		b.Inject(hub.Fault{Kind: hub.SecondaryLimit, Op: "issues/create", Times: 2, Status: 403})
		i, err := b.client.CreateIssue(t.Context(), repoApp, NewIssue{Title: "x", Body: "y"})
		if err != nil || i.Number == 0 {
			t.Fatal(err)
		}
		if s := b.clock.slept; len(s) != 2 || s[0] < time.Minute || s[1] < 2*time.Minute || s[0]%time.Second == 0 {
			t.Errorf("waited %v: want at least a minute, growing, with jitter", s)
		}
		b.Inject(hub.Fault{Kind: hub.SecondaryLimit, Op: "issues/create", Status: 403})
		_, err = b.client.CreateIssue(t.Context(), repoApp, NewIssue{Title: "x", Body: "y"})
		var limit *RateLimitError
		if !errors.As(err, &limit) || !limit.Secondary || errors.Is(err, ErrForbidden) {
			t.Errorf("error %v, want a secondary limit and not forbidden", err)
		}
		if n := b.Fired(); n > 2+4 {
			t.Errorf("%d tries: not bounded", n)
		}
	})
	t.Run("R192", func(t *testing.T) {
		b := newBench(t)
		_, err := b.client.CreatePullRequest(t.Context(), repoApp, NewPullRequest{Title: "x", Body: "y", Head: "sbxpair/none", Base: "main"})
		if !errors.Is(err, ErrNotFound) || strings.Count(err.Error(), "sbxpair/none") != 1 || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("error %v, want one plain message", err)
		}
		if b.clock.total() > 20*time.Second {
			t.Errorf("waited %s for the race", b.clock.total())
		}
		change(b)
		b.Inject(hub.Fault{Kind: hub.Lag, Op: "pulls/create", Times: 2})
		got, err := b.deliver()
		if err != nil {
			t.Fatal(err)
		}
		b.checkDelivered(got)
	})
	t.Run("R193", func(t *testing.T) {
		b := newBench(t)
		change(b)
		if err := b.AddRepo(t.Context(), hub.RepoSpec{Owner: "octo", Name: "empty", Private: true}); err != nil {
			t.Fatal(err)
		}
		empty := Repo{"octo", "empty"}
		if _, _, err := b.client.Branch(t.Context(), empty, "main"); !errors.Is(err, ErrEmptyRepository) {
			t.Errorf("error %v, want empty repository", err)
		}
		if _, err := b.deliver(func(d *Delivery) { d.Repo, d.Bounds = empty, DefaultBounds(empty, "main") }); !errors.Is(err, ErrEmptyRepository) {
			t.Errorf("error %v, want a clear refusal", err)
		}
	})
	t.Run("R194", func(t *testing.T) {
		in := "cc @user and @org/team, see `@user`"
		want := "cc `@user` and `@org/team`, see `@user`"
		if got := CleanBody(in, Cleaning{}); got != want {
			t.Errorf("body %q", got)
		}
		if got := CleanTitle(in, Cleaning{}); got != want {
			t.Errorf("title %q", got)
		}
		b := DefaultBounds(repoApp, "main")
		for _, v := range CheckRequests(b, Cleaning{}, []Request{{Kind: RequestComment, Body: in}, {Kind: RequestIssue, Title: in, Body: in}}) {
			if v.Request.Body != want || v.Request.Title != "" && v.Request.Title != want {
				t.Errorf("%s: %+v", v.Request.Kind, v.Request)
			}
		}
	})
	t.Run("R195", func(t *testing.T) {
		got := CleanBody(strings.Repeat("aé漢𝄞", 17_500), Cleaning{})
		if n := utf8.RuneCountInString(got); n > 65_536 || n < 60_000 || !utf8.ValidString(got) || !strings.Contains(got, "(cut: ") {
			t.Errorf("%d characters, ends %q", n, got[len(got)-50:])
		}
	})
	t.Run("R196", func(t *testing.T) {
		b := newBenchAs(t, DotCom(), hub.Token{Login: "octo", Permissions: map[string]string{"contents": "write", "issues": "write", "pull_requests": "write", "metadata": "read"}})
		b.write(".github/workflows/x.yml", "on: push\n")
		b.commit("one")
		_, err := b.deliver()
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), ".github/workflows/x.yml") {
			t.Errorf("error %v, want a refusal that names the file", err)
		}
		refs, _ := b.Refs(t.Context(), "octo/app")
		if refs["refs/heads/sbxpair/r1"] != "" {
			t.Error("pushed all the same")
		}
		// Allowed by the bounds, GitHub is the second wall.
		_, err = b.deliver(func(d *Delivery) {
			for i := range d.Bounds.Protected {
				d.Bounds.Protected[i].Policy = PolicyAllow
			}
		})
		var p *PushError
		if !errors.As(err, &p) || !errors.Is(err, ErrForbidden) || p.Needed != "workflows=write" {
			t.Errorf("error %v, want the missing permission", err)
		}
	})
	t.Run("R197", func(t *testing.T) {
		bounds, c := DefaultBounds(repoApp, "main"), okChange()
		c.Patch = patchOf("a", strings.Repeat("x", 1_300_000))
		if v := Check(bounds, c); v.Decision != Allow {
			t.Errorf("1.3 MB: %+v", v)
		}
		bounds.MaxPatch = 1 << 20
		if v := Check(bounds, c); v.Decision != Refuse || !strings.Contains(v.Err().Error(), "1048576") {
			t.Errorf("over the limit: %v", v.Err())
		}
	})
	t.Run("R198", func(t *testing.T) {
		e, err := ParseEndpoint("ghe.example.test")
		if err != nil {
			t.Fatal(err)
		}
		b := newBenchAs(t, e, hub.Token{Login: "octo"}) // its server refuses every other host
		change(b)
		got, err := b.deliver()
		if err != nil {
			t.Fatal(err)
		}
		b.checkDelivered(got)
		if hosts := e.Hosts(); len(hosts) != 1 || hosts[0] != "ghe.example.test" {
			t.Errorf("policy hosts %v", hosts)
		}
		for _, env := range b.envs {
			for _, v := range env {
				if strings.Contains(v.Value, "github.com") {
					t.Errorf("%s=%s", v.Name, v.Value)
				}
			}
		}
	})
	t.Run("R199", func(t *testing.T) {
		b := newBench(t)
		change(b)
		b.Inject(hub.Fault{Kind: hub.Expired, Op: "pulls/create"})
		done, err := b.deliver()
		if !errors.Is(err, ErrUnauthorized) || done.Push != PushCreated {
			t.Errorf("%+v, error %v: want the push kept and the credential named", done, err)
		}
		b.ClearFaults()
		got, err := b.deliver()
		if err != nil || got.Push != PushUpToDate {
			t.Fatalf("%+v %v", got, err)
		}
		b.checkDelivered(got)
	})
	t.Run("R200", func(t *testing.T) {
		b := newBench(t)
		if sha, ok, err := b.client.Branch(t.Context(), repoApp, "none"); err != nil || ok || sha != "" {
			t.Errorf("%q %t %v, want a quiet no", sha, ok, err)
		}
		if _, ok, err := b.client.FindPullRequest(t.Context(), repoApp, "none", "main"); err != nil || ok {
			t.Errorf("%t %v, want a quiet no", ok, err)
		}
		if ok, err := b.client.HasCommit(t.Context(), repoApp, strings.Repeat("a", 40)); err != nil || ok {
			t.Errorf("%t %v, want a quiet no", ok, err)
		}
	})
	t.Run("R201", func(t *testing.T) {
		b := newBench(t)
		if _, err := b.deliver(); !errors.Is(err, ErrNoChanges) {
			t.Errorf("error %v, want no changes", err)
		}
		if n := b.execs.Load(); n != 0 {
			t.Errorf("%d execs for nothing", n)
		}
	})
	t.Run("R202", func(t *testing.T) {
		b := newBench(t)
		for i := range 200 {
			b.write(fmt.Sprintf("many/f%d.txt", i), fmt.Sprint(i))
		}
		b.commit("many")
		got, err := b.deliver()
		if err != nil {
			t.Fatal(err)
		}
		b.checkDelivered(got)
		if b.execs.Load() != 3 || b.client.Requests() != 6 {
			t.Errorf("%d execs, %d requests: want 3 and 6, as for one file", b.execs.Load(), b.client.Requests())
		}
	})
	t.Run("R203", func(t *testing.T) {
		b := newBench(t)
		op := Op{"r1", "progress"}
		i, err := b.client.CreateIssue(t.Context(), repoApp, NewIssue{Title: "run r1", Body: "started", Op: op})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"turn 1", "turn 2", "failed"} {
			if _, err := b.client.KeepComment(t.Context(), repoApp, i.Number, NewComment{Body: text, Op: op}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.client.CloseIssue(t.Context(), repoApp, i.Number, false); err != nil {
			t.Fatal(err)
		}
		issues, err := b.Issues("octo/app")
		if err != nil || len(issues) != 1 || issues[0].State != "closed" || len(issues[0].Comments) != 1 || !strings.HasPrefix(issues[0].Comments[0], "failed") {
			t.Errorf("%+v %v", issues, err)
		}
	})
	t.Run("R204", func(t *testing.T) {
		e, _ := ParseEndpoint("ghe.example.test")
		b := newBenchAs(t, e, hub.Token{Login: "octo"})
		if secrets.New(b.token.Reveal()+"\n").Reveal() != b.token.Reveal() {
			t.Error("a trailing newline changes the value")
		}
		b.Inject(hub.Fault{Kind: hub.Expired})
		_, err := b.client.WhoAmI(t.Context())
		if !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), "ghe.example.test") {
			t.Errorf("error %v, want 401 with the host", err)
		}
	})
	t.Run("R206", func(t *testing.T) {
		b := newBench(t)
		change(b)
		if err := b.AddRepo(t.Context(), hub.RepoSpec{Owner: "bar", Name: "app", From: b.work}); err != nil {
			t.Fatal(err)
		}
		_, err := b.client.CreatePullRequest(t.Context(), repoApp, NewPullRequest{Title: "x", Body: "y", Head: "bar:none", Base: "main"})
		if err == nil || !strings.Contains(err.Error(), "bar") || !strings.Contains(err.Error(), "octo/app") {
			t.Errorf("error %v does not name both", err)
		}
		if owner, branch := headParts(repoApp, "topic"); owner != "octo" || branch != "topic" {
			t.Errorf("owner %q not put before %q", owner, branch)
		}
	})
	t.Run("R211", func(t *testing.T) {
		b := newBench(t)
		for i := range 220 {
			b.write(fmt.Sprintf("many/f%d.txt", i), fmt.Sprint(i))
		}
		b.commit("many")
		_, err := b.deliver(func(d *Delivery) { d.Bounds.MaxFiles = 100 })
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "220 files, allowed are 100") {
			t.Errorf("error %v", err)
		}
		n, err := b.AddIssue("octo/app", "octo", "t", "b")
		if err != nil {
			t.Fatal(err)
		}
		v := CheckRequests(DefaultBounds(repoApp, "main"), Cleaning{}, []Request{{Kind: RequestComment, Body: "still here"}})
		if _, err := Perform(t.Context(), b.client, repoApp, "r1", 0, Own{Issue: n}, v[0]); err != nil {
			t.Errorf("the comment is not posted: %v", err)
		}
	})
	t.Run("R213", func(t *testing.T) {
		b := newBench(t)
		change(b)
		looked := 0
		_, err := b.deliver(func(d *Delivery) {
			d.Progress = func(step string) {
				if step != "push" {
					return
				}
				for _, dir := range glob(t, b.world, "sbxpair-deliver-*") {
					filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
						if err != nil || e.IsDir() {
							return err
						}
						raw, err := os.ReadFile(path)
						looked++
						if bytes.Contains(raw, []byte(b.token.Reveal())) || bytes.Contains(raw, []byte("gho_")) || bytes.Contains(raw, []byte("x-access-token")) {
							t.Errorf("a credential in %s", path)
						}
						return err
					})
				}
			}
		})
		if err != nil || looked < 5 {
			t.Errorf("%d files looked at, %v", looked, err)
		}
	})
}
