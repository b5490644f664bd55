//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/demo/repo"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/secrets"
)

// Every github verb, from inside the github sandbox of one pair, with what it changed read back from the stand-in.
func TestGitHubVerbs(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	s.Hub.AddToken(secrets.New("github_pat_11REVIEWER0_"+strings.Repeat("r", 59)), hub.Token{Login: "second"})
	up := sbxpair(t, s, "up", "--repo", stage.FullName, "--dir", s.Work)
	up.want(t, 0)
	if t.Failed() {
		t.FailNow()
	}
	defer func() { sbxpair(t, s, "down", strings.TrimSpace(up.stdout)).want(t, 0) }()
	call := func(code int, args ...string) func(texts ...string) outcome {
		t.Helper()
		got := sbxpair(t, s, append([]string{"github"}, args...)...)
		return func(texts ...string) outcome { t.Helper(); got.want(t, code, texts...); return got }
	}

	// Text goes out as it is: nothing is cleaned, and a line end stays one.
	const body = "Line <one>\n\n@nobody fixes #1 \"quoted\" $HOME\n"
	call(0, "issue", "create", "--title", "An issue", "--body", body, "--label", "bug,help wanted", "--assignee", "second")("/issues/1\n")
	var issue struct {
		github.Issue
		Comments []github.Comment
	}
	call(0, "issue", "comment", "1", "--body", "First words")("#issuecomment")
	call(0, "comment", "--number", "1", "--body", "Second words")("#issuecomment")
	decode(t, call(0, "issue", "view", "#1", "--comments", "--json")(), &issue)
	if issue.Body != body || len(issue.Comments) != 2 || !slices.Equal(issue.Labels, []string{"bug", "help wanted"}) || !slices.Equal(issue.Assignees, []string{"second"}) {
		t.Errorf("issue %+v", issue)
	}
	call(0, "issue", "view", "1", "--comments")("#1 An issue", "labels: bug, help wanted", "@nobody fixes #1", "Second words")
	call(0, "issue", "label", "1", "--add", "later", "--remove", "bug")("help wanted, later")
	call(0, "issue", "assign", "1", "second", "nobody-here")("assigned 1 of 2", "nobody-here")
	call(0, "issue", "update", "1", "--title", "Another title")("/issues/1")
	call(2, "issue", "update", "1")("nothing to change")
	call(2, "issue", "comment", "1", "--body", " ")("the text is missing or empty")
	call(2, "pr", "review", "1")("the text is missing or empty")
	call(2, "status", "set", "abc", "--context", "ci")("no full id of a commit")
	call(2, "issue", "view", "1", "2")("takes no argument")
	call(0, "issue", "list", "--label", "later", "--assignee", "second")("#1", "open", "Another title")
	var list []github.Issue
	decode(t, call(0, "issue", "list", "--author", "second", "--json")(), &list)
	if list == nil || len(list) != 0 {
		t.Errorf("issues of somebody else: %+v", list)
	}
	call(0, "issue", "search", "title")("#1", "Another title")
	call(6, "issue", "search", "title", "repo:octo/other")("a search stays in")
	call(0, "whoami")(repo.Owner + " (User), until 20")
	call(0, "issue", "comment", "1", "--keep", "state", "--body", "Under way")("#issuecomment")
	call(0, "issue", "comment", "1", "--keep", "state", "--body", "Over")("#issuecomment")
	decode(t, call(0, "issue", "view", "1", "--comments", "--json")(), &issue)
	if len(issue.Comments) != 3 || !strings.HasPrefix(issue.Comments[2].Body, "Over\n") {
		t.Errorf("comments %+v", issue.Comments)
	}
	call(0, "issue", "close", "1", "--not-planned")("/issues/1")
	decode(t, call(0, "issue", "view", "1", "--json")(), &issue)
	if issue.State != "closed" || issue.Reason != "not_planned" || issue.Title != "Another title" || issue.Body != body {
		t.Errorf("issue %+v", issue)
	}
	for _, args := range [][]string{
		{"issue", "view", "99"}, {"issue", "comment", "99", "--body", "x"}, {"comment", "--number", "99", "--body", "x"},
	} {
		call(1, args...)("issue or pull request #99 is not in "+stage.FullName, "404")
	}
	call(1, "pr", "close", "99")("sbxpair: pull request #99 is not in " + stage.FullName)
	call(1, "pr", "view", "1")("sbxpair: pull request #1 is not in " + stage.FullName) // it is an issue
	call(2, "issue", "view", "none")(`"none" is no number`)
	call(2, "issue", "view")("the number is missing")
	call(2, "issue", "list", "--state", "half-open")("one of open, closed, all")

	head := branch(t, s, "feature")
	create := []string{"pr", "create", "--title", "A change", "--body", "Why", "--head", "feature", "--base", "main"}
	call(0, create...)("/pull/2\n")
	call(0, create...)("/pull/2\n", "has an open pull request already")
	call(0, "pr", "list")("#2", "draft", "feature")
	call(0, "pr", "view", "2")("#2 A change", "draft, feature into main", "Why")
	call(0, "pr", "update", "2", "--body", "Because")("/pull/2")
	call(0, "pr", "reviewers", "2", "second")("/pull/2")
	call(2, "pr", "reviewers", "2")("at least one person")
	call(0, "pr", "label", "2", "--add", "later")("later")
	call(0, "pr", "comment", "2", "--body", "Look")("#issuecomment")
	call(0, "pr", "review", "2", "--body", "Fine so far")("reviewed #2: comment")
	call(6, "status", "set", head, "--context", "ci")("statuses=write") // the stage's token may not
	call(6, "check", "set", head, "--name", "ci", "--title", "Red", "--conclusion", "failure")("statuses=write")
	s.Hub.AddToken(s.Tokens[1], hub.Token{Login: repo.Owner}) // now it may
	call(0, "status", "set", head, "--context", "ci", "--state", "pending", "--description", "still at it")("status: ci pending")
	call(0, "check", "set", head, "--name", "ci", "--title", "Red", "--conclusion", "failure", "--body", "*why*")("status: ci failure") // no app: no check run
	var line github.LineComment
	decode(t, call(0, "pr", "line-comment", "2", "--path", "new.txt", "--line", "1", "--body", "Why?", "--json")(), &line)
	call(0, "pr", "reply", "2", "--to", fmt.Sprint(line.ID), "--body", "Because")("/pull/2")
	call(1, "pr", "reply", "2", "--to", "1", "--body", "x")("such a comment on pull request #2 is not in")
	call(0, "pr", "line-comments", "2")("new.txt:1", "Why?", "Because")
	note := filepath.Join(s.Dir, "note.txt")
	if err := os.WriteFile(note, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	bundle := bundleOf(t, s, "slugify.sh")
	call(0, "push", bundle, "--branch", "sbxpair/by-hand")("created https://github.com/" + stage.FullName + "/tree/sbxpair/by-hand")
	call(0, "push", bundle, "--branch", "sbxpair/by-hand", "--json")(`"push": "up to date"`)
	call(6, "push", bundle, "--branch", "main")("branch")
	call(6, "push", bundleOf(t, s, ".github/workflows/x.yml"), "--branch", "sbxpair/workflow")("protected-path: .github/workflows/x.yml")
	call(2, "push", "--branch", "sbxpair/x")("name a bundle, or with --work a run")
	call(2, "push", "--branch", "sbxpair/x", "--work", strings.TrimSpace(up.stdout))("kept no work")
	call(0, "artifacts", note)("/tree/sbxpair/" + strings.TrimSpace(up.stdout) + "-artifacts")
	call(2, "artifacts", filepath.Join(s.Dir, "none"))("no such file")
	call(0, "pr", "close", "2")("/pull/2")
	pulls, err := s.Hub.Pulls(t.Context(), stage.FullName)
	if err != nil || len(pulls) != 1 {
		t.Fatalf("%d pull requests, %v", len(pulls), err)
	}
	p := pulls[0]
	if p.State != "closed" || p.Title != "A change" || p.Body != "Because" || !slices.Equal(p.Reviewers, []string{"second"}) || !slices.Equal(p.Labels, []string{"later"}) ||
		!slices.Equal(p.Comments, []string{"Look"}) || len(p.Reviews) != 1 || !strings.HasSuffix(p.Reviews[0], ": Fine so far") {
		t.Errorf("pull request %+v", p)
	}
	for _, problem := range s.Standin.Report().Problems() {
		t.Error(problem)
	}
}

func decode(t *testing.T, got outcome, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(got.stdout), into); err != nil {
		t.Errorf("no JSON: %v\n%s", err, got.stdout)
	}
}

// bundleOf makes a commit on top of the stage's checkout that changes one file, and returns a bundle of it.
func bundleOf(t *testing.T, s *stage.Stage, path string) string {
	t.Helper()
	dir, bundle := filepath.Join(t.TempDir(), "clone"), filepath.Join(t.TempDir(), "bundle")
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=A", "-c", "user.email=a@example.test", "-C", dir}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	git("clone", "-q", s.Work, "c")
	dir = filepath.Join(dir, "c")
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, path), []byte("echo by hand\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	git("checkout", "-q", "-b", "by-hand")
	git("add", "-A")
	git("commit", "-q", "-m", "by hand")
	git("bundle", "create", "-q", bundle, "by-hand", "^HEAD~1")
	return bundle
}

// branch makes a branch with one more commit than main on the stand-in's GitHub, and returns that commit.
func branch(t *testing.T, s *stage.Stage, name string) string {
	t.Helper()
	dir, err := s.Hub.Dir(stage.FullName)
	if err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=A", "-c", "user.email=a@example.test", "--git-dir=" + dir}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	blob := git("hash-object", "-w", "--", dir+"/HEAD")
	git("update-ref", "refs/heads/"+name, "refs/heads/main")
	tree := git("rev-parse", "main^{tree}")
	listing := git("ls-tree", tree) + "\n100644 blob " + blob + "\tnew.txt\n"
	cmd := exec.CommandContext(t.Context(), "git", "--git-dir="+dir, "mktree")
	cmd.Stdin = strings.NewReader(listing)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	commit := git("commit-tree", strings.TrimSpace(string(out)), "-p", "main", "-m", "more")
	git("update-ref", "refs/heads/"+name, commit)
	return commit
}
