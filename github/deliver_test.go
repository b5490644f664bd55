package github

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/secrets"
)

func TestDeliver(t *testing.T) {
	b := newBench(t)
	b.write("src/a.go", "package a\n\n// better\n")
	b.write("src/b.bin", string([]byte{0, 1, 2, 255}))
	b.commit("one")
	b.write("src/c.go", "package a\n")
	b.commit("two")
	var steps []string
	got, err := b.deliver(func(d *Delivery) { d.Progress = func(s string) { steps = append(steps, s) } })
	if err != nil {
		t.Fatal(err)
	}
	b.checkDelivered(got)
	if got.Push != PushCreated || !got.PullRequest.Draft || got.PullRequest.Existed || got.Comment == nil || got.Execs != 2 {
		t.Errorf("delivered %+v", got)
	}
	if want := "[repository import push pull request comment]"; fmt.Sprint(steps) != want {
		t.Errorf("steps %v, want %s", steps, want)
	}
	if n := b.execs.Load(); n != 3 {
		t.Errorf("%d execs, want 3: import, push, and one for all REST requests", n)
	}
	if n := b.client.Requests(); n != 6 {
		t.Errorf("%d requests, want 6", n)
	}
	// Again: nothing twice, and nothing asked that was not asked before.
	got, err = b.deliver()
	if err != nil {
		t.Fatal(err)
	}
	b.checkDelivered(got)
	if got.Push != PushUpToDate || !got.PullRequest.Existed || !got.Comment.Existed {
		t.Errorf("second delivery %+v", got)
	}
	// Nothing variable is a shell word or on an argv.
	constant := map[string]bool{channelScript: true, importScript: true, pushScript: true, cleanScript: true}
	for _, argv := range b.argvs {
		if len(argv) != 3 || argv[0] != "/bin/sh" || argv[1] != "-c" || !constant[argv[2]] {
			t.Errorf("argv %q", argv)
		}
	}
}

// TestDeliverLeavesNoCredential: the sandbox has no token, and what git keeps on disk holds none (R213 too).
func TestDeliverOverAgentsGit(t *testing.T) {
	b := newBench(t)
	b.write("src/a.go", "package a // x\n")
	b.commit("one")
	// A hostile home in the sandbox: configuration and hooks that would be run by a careless git.
	canary := filepath.Join(t.TempDir(), "canary")
	hostile := fmt.Sprintf("[core]\n\thooksPath = %s\n\tfsmonitor = touch %s\n[credential]\n\thelper = \"!touch %s\"\n[url \"ext::touch %s\"]\n\tinsteadOf = https://\n", t.TempDir(), canary, canary, canary)
	for _, e := range b.env {
		if home, ok := strings.CutPrefix(e, "HOME="); ok {
			if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(hostile), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.env = append(b.env, "GIT_SSH_COMMAND=touch "+canary, "GIT_DIR=/nonexistent", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.askpass", "GIT_CONFIG_VALUE_0=touch "+canary)
	got, err := b.deliver()
	if err != nil {
		t.Fatal(err)
	}
	b.checkDelivered(got)
	if _, err := os.Stat(canary); err == nil {
		t.Error("something of the sandbox's own git configuration ran")
	}
}

// TestDeliverFaults holds the faults that belong to one step only; TestDeliveryTable has all others at every step.
func TestDeliverFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault hub.Fault
	}{
		{"primary limit 403", hub.Fault{Kind: hub.PrimaryLimit, Op: "repos/get", Times: 1, Status: 403, Reset: time.Now().Add(40 * time.Second)}},
		{"primary limit 429", hub.Fault{Kind: hub.PrimaryLimit, Op: "repos/get", Times: 1, Status: 429, Reset: time.Now().Add(40 * time.Second)}},
		{"primary limit, reset in the past", hub.Fault{Kind: hub.PrimaryLimit, Op: "repos/get", Times: 1, Reset: time.Now().Add(-time.Hour)}},
		{"secondary limit 403, body only", hub.Fault{Kind: hub.SecondaryLimit, Op: "pulls/create", Times: 1, Status: 403}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.write("src/a.go", "package a // x\n")
			b.commit("one")
			b.Inject(tt.fault)
			got, err := b.deliver()
			if b.Fired() == 0 {
				t.Fatal("the fault never hit")
			}
			if err != nil {
				t.Fatal(err)
			}
			b.checkDelivered(got)
		})
	}
}

// elsewhere commits something else on top of the base, and returns it; the work stays as it was.
func (b *bench) elsewhere() string {
	b.t.Helper()
	head := b.git(b.work, "rev-parse", "HEAD")
	b.git(b.work, "reset", "-q", "--hard", b.base)
	b.write("other.md", "x\n")
	other := b.commit("elsewhere")
	b.git(b.work, "reset", "-q", "--hard", head)
	return other
}

// pushed makes a branch stand at a commit, as somebody else would.
func (b *bench) pushed(full, sha, branch string) {
	b.t.Helper()
	dir, err := b.Dir(full)
	if err != nil {
		b.t.Fatal(err)
	}
	b.git(b.work, "push", "-q", "--force", dir, sha+":refs/heads/"+branch)
}

// situation is a state of GitHub's that a delivery meets. Without an outcome of its own it ends like a clean one.
type situation struct {
	name   string
	host   string    // "" is github.com
	token  hub.Token // the zero one may do everything
	setup  func(b *bench)
	edit   func(b *bench, d *Delivery)
	git    error // what comes of it
	api    error
	finish string         // what a person does about it, for the page
	solve  func(b *bench) // does it; then the second delivery comes through
	check  func(t *testing.T, got Delivered, err error)
}

func situations() []situation {
	var archived sync.Map // benches whose repository was archived in the middle, once
	perms := func(skip string) hub.Token {
		all := map[string]string{"contents": "write", "pull_requests": "write", "issues": "write", "workflows": "write"}
		delete(all, skip)
		return hub.Token{Login: "octo", Permissions: all}
	}
	workflow := func(b *bench, d *Delivery) { d.Bounds.Protected = nil }
	noted := func(note string) func(*testing.T, Delivered, error) {
		return func(t *testing.T, got Delivered, err error) {
			if !strings.Contains(strings.Join(got.PullRequest.Notes, " "), note) {
				t.Errorf("notes %q (%v), want one with %q", got.PullRequest.Notes, err, note)
			}
		}
	}
	pushState := func(want PushState) func(*testing.T, Delivered, error) {
		return func(t *testing.T, got Delivered, err error) {
			if got.Push != want {
				t.Errorf("push %q (%v), want %q", got.Push, err, want)
			}
		}
	}
	detail := func(words string) func(*testing.T, Delivered, error) {
		return func(t *testing.T, _ Delivered, err error) {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("error %v does not say %q", err, words)
			}
		}
	}
	fork := Repo{"friend", "app"}
	known := func(b *bench, d *Delivery) { d.Known = []string{b.git(b.work, "rev-parse", "HEAD")} }
	return []situation{
		{name: "clean"},
		{name: "second delivery", setup: func(b *bench) {
			if _, err := b.deliver(); err != nil {
				b.t.Fatal(err)
			}
		}, edit: known},
		{name: "for an issue, which its merge closes", setup: func(b *bench) { b.AddIssue("octo/app", "octo", "Broken", "It is.") },
			edit: func(_ *bench, d *Delivery) { d.Issue, d.Closes = 1, true; d.Body += "\n\nfixes #7" }, check: func(t *testing.T, got Delivered, _ error) {
				if b := got.PullRequest.Body; !strings.Contains(b, "\n\nCloses #1.\n") || !strings.Contains(b, "`fixes #7`") {
					t.Errorf("body %q", b)
				}
			}},
		{name: "GitHub Enterprise Server", host: "ghe.example.test"},
		{name: "GHE.com", host: "octo.ghe.com"},
		{name: "the base moved on", setup: func(b *bench) { b.pushed("octo/app", b.elsewhere(), "main") }},
		{name: "renamed repository", setup: func(b *bench) { b.Rename("octo/app", "octo", "renamed") },
			check: func(t *testing.T, got Delivered, err error) {
				if got.Repo.Name != "renamed" {
					t.Errorf("delivered to %s, %v", got.Repo, err)
				}
			}},
		{name: "from a fork", setup: func(b *bench) {
			if err := b.AddRepo(b.t.Context(), hub.RepoSpec{Owner: "friend", Name: "app", Private: true, Fork: "octo/app"}); err != nil {
				b.t.Fatal(err)
			}
		}, edit: func(_ *bench, d *Delivery) { d.Fork, d.Bounds.Fork = fork, fork },
			check: func(t *testing.T, got Delivered, err error) {
				if got.Fork != fork || got.PullRequest.HeadRepo != fork {
					t.Errorf("%+v, %v", got, err)
				}
			}},
		{name: "from a fork that the run is not for", edit: func(_ *bench, d *Delivery) { d.Fork = fork }, git: ErrRefused, api: ErrRefused, finish: "`github.fork`",
			solve: func(*bench) {}},
		{name: "a merge in the history", setup: func(b *bench) {
			b.git(b.work, "checkout", "-q", "-b", "side", b.base)
			b.write("side.md", "x\n")
			b.commit("side")
			b.git(b.work, "checkout", "-q", "main")
			b.git(b.work, "merge", "-q", "--no-edit", "side")
		}},
		{name: "the branch is there, at an ancestor", setup: func(b *bench) { b.pushed("octo/app", b.base, "sbxpair/r1") }, check: pushState(PushFastForward)},
		{name: "the branch is there, from an earlier try", setup: func(b *bench) {
			b.git(b.work, "tag", "other", b.elsewhere())
			b.pushed("octo/app", "other", "sbxpair/r1")
		},
			edit: func(b *bench, d *Delivery) { d.Known = []string{b.git(b.work, "rev-parse", "other")} }, check: pushState(PushForced)},
		{name: "the branch is there, with commits of somebody else", setup: func(b *bench) { b.pushed("octo/app", b.elsewhere(), "sbxpair/r1") },
			git: ErrBranchMoved, api: ErrBranchMoved, finish: "remove or rename that branch", solve: func(b *bench) { b.pushed("octo/app", b.base, "sbxpair/r1") }},
		{name: "a pull request of somebody else is open for the branch", setup: func(b *bench) {
			b.pushed("octo/app", b.elsewhere(), "sbxpair/r1")
			if _, err := b.client.CreatePullRequest(b.t.Context(), repoApp, NewPullRequest{Title: "Fix it", Body: "What was done. (run=r1)", Head: "sbxpair/r1", Base: "main"}); err != nil {
				b.t.Fatal(err)
			}
			b.pushed("octo/app", b.base, "sbxpair/r1")
		}, check: noted("not opened by this run")},
		{name: "somebody closed the pull request", setup: func(b *bench) {
			got, err := b.deliver()
			if err == nil {
				_, err = b.client.ClosePullRequest(b.t.Context(), repoApp, got.PullRequest.Number)
			}
			if err != nil {
				b.t.Fatal(err)
			}
		}, edit: known, git: ErrPullClosed, api: ErrPullClosed, finish: "open it again", check: detail("#1 of octo/app"), solve: func(b *bench) {
			open := "open"
			if _, err := b.client.UpdatePullRequest(b.t.Context(), repoApp, 1, PullRequestUpdate{State: &open}); err != nil {
				b.t.Fatal(err)
			}
		}},
		{name: "somebody merged the pull request", setup: func(b *bench) {
			got, err := b.deliver(func(d *Delivery) { d.Ready = true })
			if err == nil {
				_, _, err = b.client.gh.PullRequests.Merge(b.t.Context(), "octo", "app", got.PullRequest.Number, "", nil)
			}
			if err != nil {
				b.t.Fatal(err)
			}
		}, edit: known, check: noted("merged already")},
		{name: "replication lag: the branch is not seen yet", setup: func(b *bench) { b.Inject(hub.Fault{Kind: hub.Lag, Op: "pulls/create", Times: 2}) }},
		{name: "replication lag: the list of pull requests is old", setup: func(b *bench) { b.Inject(hub.Fault{Kind: hub.Lag, Op: "pulls/list", Times: 1}) }},
		{name: "drafts are not allowed", setup: func(b *bench) { b.Inject(hub.Fault{Kind: hub.NoDraft, Op: "pulls/create"}) }, git: ErrValidation, api: ErrValidation,
			finish: "`github.draftOptional`", solve: func(b *bench) { b.ClearFaults() }},
		{name: "drafts are not allowed, and optional", setup: func(b *bench) { b.Inject(hub.Fault{Kind: hub.NoDraft, Op: "pulls/create"}) },
			edit: func(_ *bench, d *Delivery) { d.DraftOptional = true }, check: noted("no draft")},
		{name: "the branch is protected", setup: func(b *bench) { b.Protect("octo/app", "sbxpair/r1") }, git: ErrPushRefused, api: ErrPushRefused, finish: "lift the rule, or another `github.branchPrefix`"},
		{name: "push protection finds a secret", setup: func(b *bench) {
			b.PushProtection("octo/app", "package a")
			b.write("src/a.go", "package a\n"+strings.Repeat("// x\n", inlineFile/5))
			b.commit("two")
		}, git: ErrPushRefused, api: ErrPushRefused, finish: "decide on GitHub",
			check: detail("rule violations")},
		{name: "a workflow, allowed here, without the Workflows permission", token: perms("workflows"), setup: func(b *bench) { b.write(".github/workflows/x.yml", "on: push\n"); b.commit("two") },
			edit: workflow, git: ErrForbidden, api: ErrForbidden, finish: "give the token Workflows write", check: detail("workflows=write"),
			solve: func(b *bench) { b.AddToken(b.token, hub.Token{Login: "octo"}) }},
		{name: "a workflow", setup: func(b *bench) { b.write(".github/workflows/x.yml", "on: push\n"); b.commit("two") }, git: ErrRefused, api: ErrRefused, finish: "`gate.protectMode`",
			check: detail(".github/workflows/x.yml")},
		{name: "a token without Contents", token: perms("contents"), git: ErrForbidden, api: ErrForbidden, finish: "give the token Contents write", solve: func(b *bench) { b.AddToken(b.token, hub.Token{Login: "octo"}) }},
		{name: "a token without Pull requests", token: perms("pull_requests"), git: ErrForbidden, api: ErrForbidden, finish: "give the token Pull requests write", check: detail("pull_requests="),
			solve: func(b *bench) { b.AddToken(b.token, hub.Token{Login: "octo"}) }},
		{name: "nothing changed", setup: func(b *bench) { b.git(b.work, "reset", "-q", "--hard", b.base) }, git: ErrNoChanges, api: ErrNoChanges},
		{name: "an empty commit", setup: func(b *bench) { b.git(b.work, "reset", "-q", "--hard", b.base); b.commit("empty") }, git: ErrNoChanges, api: ErrNoChanges},
		{name: "the base is not on GitHub", setup: func(b *bench) {
			b.write("local.go", "package x\n")
			b.base = b.commit("local only")
			b.write("src/a.go", "package a // y\n")
			b.commit("two")
		}, git: ErrBaseMissing, api: ErrBaseMissing, finish: "push the commit that the work started from"},
		{name: "no such base branch", edit: func(_ *bench, d *Delivery) { d.BaseBranch = "next"; d.Bounds.BaseBranches = []string{"*"} }, git: ErrNotFound, api: ErrNotFound, finish: "make it, or name another with --base"},
		{name: "no such repository, or not for this token", edit: func(_ *bench, d *Delivery) { d.Repo.Name, d.Bounds.Repo.Name = "none", "none" }, git: ErrNotFound, api: ErrNotFound, finish: "let the token see it"},
		{name: "the repository is archived", setup: func(b *bench) { b.archive(true) }, git: ErrArchived, api: ErrArchived, finish: "take it out of the archive", solve: func(b *bench) { b.archive(false) }},
		{name: "the repository is archived in the middle", edit: func(b *bench, d *Delivery) {
			d.Progress = func(step string) {
				if _, again := archived.LoadOrStore(b, true); !again && step == "push" {
					b.archive(true)
				} else if !again {
					archived.Delete(b)
				}
			}
		}, git: ErrArchived, api: ErrArchived, finish: "take it out of the archive", solve: func(b *bench) { b.archive(false) }},
		{name: "git is blocked by policy", setup: func(b *bench) {
			b.blocked.Store("github.com", "Blocked by network policy: domain github.com:443\n  rule: x\n")
		}, git: ErrBlockedByPolicy, finish: "`network.deny`"},
		{name: "REST is blocked by policy", setup: func(b *bench) { b.blocked.Store("api.github.com", "Blocked by org policy\n") }, git: ErrBlockedByPolicy, api: ErrBlockedByPolicy, finish: "`network.deny`"},
		{name: "a secret in the comment", edit: func(b *bench, d *Delivery) {
			d.Bounds.Secrets, d.Comment = []secrets.Value{b.token}, "it is "+b.token.Reveal()
		}, git: ErrRefused, api: ErrRefused},
		{name: "no bounds", edit: func(_ *bench, d *Delivery) { d.Bounds = Bounds{} }, git: ErrRefused, api: ErrRefused},
	}
}

// TestDeliverySituations is the table of what a delivery may find on GitHub, both ways.
func TestDeliverySituations(t *testing.T) {
	all := situations()
	outcomes := make([][2]string, len(all))
	t.Run("cells", func(t *testing.T) {
		for i, s := range all {
			for j, way := range []Way{ViaGit, ViaAPI} {
				t.Run(string(way)+", "+s.name, func(t *testing.T) {
					t.Parallel()
					endpoint, err := ParseEndpoint(s.host)
					if err != nil {
						t.Fatal(err)
					}
					token := s.token
					token.Login = "octo"
					b := newBenchAs(t, endpoint, token)
					b.write("src/a.go", "package a // x\n")
					b.commit("one")
					if s.setup != nil {
						s.setup(b)
					}
					edit := func(d *Delivery) {
						if way == ViaAPI {
							b.byAPI(d)
						}
						if s.edit != nil {
							s.edit(b, d)
						}
					}
					got, err := b.deliver(edit)
					want := s.git
					if way == ViaAPI {
						want = s.api
					}
					if want == nil && err != nil || !errors.Is(err, want) {
						t.Fatalf("error %v, want %v", err, want)
					}
					if err != nil && strings.Contains(err.Error(), b.token.Reveal()) {
						t.Error("the error holds the token")
					}
					if s.check != nil {
						s.check(t, got, err)
					}
					outcomes[i][j] = ending(err)
					if err != nil && s.solve != nil {
						s.solve(b)
						if got, err = b.deliver(func(d *Delivery) {
							edit(d)
							d.Bounds.Fork = d.Fork
						}); err != nil && s.git != ErrRefused {
							t.Fatalf("once that is solved: %v", err)
						}
						if err == nil {
							outcomes[i][j] += ", then: done"
						}
					}
					if err == nil && got.Repo.Name == "app" && got.Fork == (Repo{}) {
						b.checkDelivered(got)
					}
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	table := "| situation | git | api | what finishes it |\n| --- | --- | --- | --- |\n"
	for i, s := range all {
		if outcomes[i][0] == "" || outcomes[i][1] == "" {
			return // only some of them were run
		}
		table += fmt.Sprintf("| %s | %s | %s | %s |\n", s.name, outcomes[i][0], outcomes[i][1], s.finish)
	}
	pageSection(t, "delivery.md", "situations", table)
}

// TestDeliverBadInput: what is not in order is refused before anything is asked or run.
func TestDeliverBadInput(t *testing.T) {
	b := newBench(t)
	b.write("src/a.go", "package a // x\n")
	b.commit("one")
	for _, tt := range []struct {
		name string
		edit func(d *Delivery)
		want error
	}{
		{"no base at all", func(d *Delivery) { d.Base = "" }, ErrEmptyRepository},
		{"bundle of another commit", func(d *Delivery) { d.Head = strings.Repeat("a", 40) }, ErrBadBundle},
		{"a run id with a slash", func(d *Delivery) { d.Run = "../x" }, ErrOutOfBounds},
		{"a branch that is an option", func(d *Delivery) { d.Branch = "--mirror" }, ErrOutOfBounds},
		{"the base branch itself", func(d *Delivery) { d.Branch = "main" }, ErrRefused},
		{"a way that there is not", func(d *Delivery) { d.Way = "mail" }, ErrOutOfBounds},
		{"a fork of the same owner", func(d *Delivery) { d.Fork = Repo{"Octo", "app2"} }, ErrOutOfBounds},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := b.deliver(tt.edit); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if n := b.execs.Load(); n != 0 {
				t.Errorf("%d execs", n)
			}
		})
	}
	t.Run("bundle cut off", func(t *testing.T) {
		_, err := b.deliver(func(d *Delivery) {
			raw := b.bundle()
			d.Bundle = bytes.NewReader(raw[:len(raw)-30])
		})
		if !errors.Is(err, ErrBadBundle) {
			t.Errorf("error %v", err)
		}
	})
}
