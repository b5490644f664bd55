package github

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
)

// TestLineComments: once for an Op, a reply under its thread, and a line that is not there is said so.
func TestLineComments(t *testing.T) {
	b := newBench(t)
	b.write("src/a.go", "package a // x\n")
	b.commit("one")
	d, err := b.deliver()
	if err != nil {
		t.Fatal(err)
	}
	c, ctx, n := b.client, t.Context(), d.PullRequest.Number
	ask := NewLineComment{Path: "src/a.go", Line: 1, Body: "why x?", Op: Op{"r1", "why"}}
	b.Inject(hub.Fault{Kind: hub.LostAnswer, Op: "pulls/create-review-comment", Times: 1})
	first, err := c.CommentLine(ctx, repoApp, n, ask)
	if err != nil || first.ID == 0 || first.Path != "src/a.go" || first.Line != 1 || b.Fired() != 1 {
		t.Fatalf("%+v %v", first, err)
	}
	if again, err := c.CommentLine(ctx, repoApp, n, ask); err != nil || !again.Existed || again.ID != first.ID {
		t.Errorf("%+v %v", again, err)
	}
	reply, err := c.ReplyLine(ctx, repoApp, n, first.ID, NewComment{Body: "because", Op: Op{"r1", "because"}})
	if err != nil || reply.ReplyTo != first.ID {
		t.Errorf("%+v %v", reply, err)
	}
	if again, err := c.ReplyLine(ctx, repoApp, n, first.ID, NewComment{Body: "because", Op: Op{"r1", "because"}}); err != nil || again.ID != reply.ID {
		t.Errorf("%+v %v", again, err)
	}
	all, err := c.ListLineComments(ctx, repoApp, n)
	if err != nil || len(all) != 2 || !strings.HasPrefix(all[0].Body, "why x?") || all[1].Author != "octo" {
		t.Errorf("%+v %v", all, err)
	}
	if _, err := c.CommentLine(ctx, repoApp, n, NewLineComment{Path: "none.go", Line: 1, Body: "x"}); !errors.Is(err, ErrValidation) {
		t.Errorf("a file that is not in the diff: %v", err)
	}
	if _, err := c.ReplyLine(ctx, repoApp, n, 1, NewComment{Body: "x"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("a reply to nothing: %v", err)
	}
}

// TestSetCheck: a check run with an app's token, a commit status with a personal one, and an error where neither may be.
func TestSetCheck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		token hub.Token
		form  CheckForm
		want  error
	}{
		{"app", hub.Token{Login: "app[bot]", App: true}, FormCheck, nil},
		{"person", hub.Token{Login: "octo"}, FormStatus, nil},
		{"app without the permission", hub.Token{Login: "app[bot]", App: true, Permissions: map[string]string{"statuses": "write"}}, FormStatus, nil},
		{"neither", hub.Token{Login: "octo", Permissions: map[string]string{"contents": "write"}}, FormStatus, ErrForbidden},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBenchAs(t, DotCom(), tt.token)
			for _, end := range []Conclusion{"", ConclusionFailure, ConclusionSuccess} {
				form, err := b.client.SetCheck(t.Context(), repoApp, CheckRun{
					Name: "sbxpair", Commit: b.base, Conclusion: end, Title: "a title", Summary: "*text*", URL: "https://github.com/octo/app",
				})
				if form != tt.form || !errors.Is(err, tt.want) {
					t.Errorf("%q: %q, %v", end, form, err)
				}
			}
			if tt.want != nil {
				return
			}
			if tt.form == FormCheck {
				runs, _, err := b.client.gh.Checks.ListCheckRunsForRef(t.Context(), "octo", "app", b.base, nil)
				if err != nil || len(runs.CheckRuns) != 1 || runs.CheckRuns[0].GetConclusion() != "success" || runs.CheckRuns[0].GetOutput().GetSummary() != "*text*" {
					t.Errorf("%+v %v", runs, err)
				}
				return
			}
			status, _, err := b.client.gh.Repositories.GetCombinedStatus(t.Context(), "octo", "app", b.base, nil)
			if err != nil || status.GetState() != "success" || len(status.Statuses) != 1 || status.Statuses[0].GetDescription() != "a title" {
				t.Errorf("%+v %v", status, err)
			}
		})
	}
	if _, err := newBench(t).client.SetCheck(t.Context(), repoApp, CheckRun{Name: "x", Commit: "main"}); !errors.Is(err, ErrOutOfBounds) {
		t.Errorf("a name in place of an id: %v", err)
	}
}

func TestKeepArtifacts(t *testing.T) {
	files := []TreeFile{{Path: "log.txt", Mode: "100644", Content: []byte("all went well\n")}, {Path: "shots/1.png", Mode: "100644", Content: []byte{0x89, 'P', 0, 1}}}
	t.Run("twice, then others", func(t *testing.T) {
		b := newBench(t)
		a := Artifacts{Run: "r1", Repo: repoApp, Files: files, Bounds: DefaultBounds(repoApp, "main")}
		got, err := b.client.KeepArtifacts(t.Context(), a)
		if err != nil || got.Branch != "sbxpair/r1-artifacts" || got.Push != PushCreated || got.URL != "https://github.com/octo/app/tree/sbxpair/r1-artifacts" {
			t.Fatalf("%+v %v", got, err)
		}
		dir, _ := b.Dir("octo/app")
		if out := b.git(dir, "ls-tree", "-r", "--name-only", got.Branch); out != "log.txt\nshots/1.png" {
			t.Errorf("files %q", out)
		}
		if out := b.git(dir, "rev-list", "--count", got.Branch); out != "1" {
			t.Errorf("%s commits", out)
		}
		if again, err := b.client.KeepArtifacts(t.Context(), a); err != nil || again.Push != PushUpToDate || again.Commit != got.Commit {
			t.Errorf("again: %+v %v", again, err)
		}
		a.Files = files[:1]
		more, err := b.client.KeepArtifacts(t.Context(), a)
		if err != nil || more.Push != PushForced || b.git(dir, "ls-tree", "-r", "--name-only", more.Branch) != "log.txt" {
			t.Errorf("others: %+v %v", more, err)
		}
		// The run's own branch still fits beside it.
		b.write("src/a.go", "package a // x\n")
		b.commit("one")
		if _, err := b.deliver(); err != nil {
			t.Error(err)
		}
	})
	t.Run("answers lost", func(t *testing.T) {
		for _, op := range []string{"git/create-tree", "git/create-commit", "git/create-ref"} {
			b := newBench(t)
			b.Inject(hub.Fault{Kind: hub.LostAnswer, Op: op, Times: 1})
			got, err := b.client.KeepArtifacts(t.Context(), Artifacts{Run: "r1", Repo: repoApp, Files: files, Bounds: DefaultBounds(repoApp, "main")})
			if refs, _ := b.Refs(t.Context(), "octo/app"); err != nil || refs["refs/heads/sbxpair/r1-artifacts"] != got.Commit || b.Fired() != 1 {
				t.Errorf("%s: %+v %v, refs %v", op, got, err, refs)
			}
		}
	})
	t.Run("branch of somebody else", func(t *testing.T) {
		b := newBench(t)
		dir, _ := b.Dir("octo/app")
		b.git(dir, "update-ref", "refs/heads/sbxpair/r1-artifacts", "main")
		if _, err := b.client.KeepArtifacts(t.Context(), Artifacts{Run: "r1", Repo: repoApp, Files: files, Bounds: DefaultBounds(repoApp, "main")}); !errors.Is(err, ErrBranchMoved) {
			t.Error(err)
		}
	})
	b := newBench(t)
	file := func(path, mode, text string) []TreeFile {
		return []TreeFile{{Path: path, Mode: mode, Content: []byte(text)}}
	}
	for _, tt := range []struct {
		name  string
		files []TreeFile
		code  Code
	}{
		{"secret", file("a", "100644", "x "+b.token.Reveal()), ReasonSecret},
		{"secret by its shape", file("a", "100644", "ghp_"+strings.Repeat("A1b2", 9)), ReasonSecret},
		{"workflow", file(".github/workflows/x.yml", "100644", "on: push"), ReasonProtected},
		{"out of the tree", file("../x", "100644", "x"), ReasonPath},
		{"link", file("a", "120000", "/etc/passwd"), ReasonLink},
		{"twice", append(file("a", "100644", "x"), file("a", "100644", "y")...), ReasonPath},
		{"deletion", file("a", "000000", ""), ReasonPath},
		{"too large", file("a", "100644", strings.Repeat("x", int(DefaultBounds(repoApp, "main").MaxPatch)+1)), ReasonPatchSize},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bounds := DefaultBounds(repoApp, "main")
			bounds.Secrets = append(bounds.Secrets, b.token)
			_, err := b.client.KeepArtifacts(t.Context(), Artifacts{Run: "r1", Repo: repoApp, Files: tt.files, Bounds: bounds})
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok || !slices.ContainsFunc(refused.Verdict.Reasons, func(r Reason) bool { return r.Code == tt.code }) {
				t.Errorf("%v, want %s", err, tt.code)
			}
		})
	}
	if n := b.client.Requests(); n != 0 {
		t.Errorf("%d requests for what was refused", n)
	}
}
