package github

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// TestDeliverFaults is the table fault × step: what each ends in, and that a second, undisturbed delivery ends like a clean one.
func TestDeliverFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault hub.Fault
		want  error // nil: the delivery itself comes through
	}{
		{"refused connection, repository", hub.Fault{Kind: hub.Refused, Op: "repos/get", Times: 1}, nil},
		{"server error, repository", hub.Fault{Kind: hub.ServerError, Op: "repos/get", Times: 2}, nil},
		{"server error without end", hub.Fault{Kind: hub.ServerError, Op: "repos/get"}, ErrServer},
		{"expired before", hub.Fault{Kind: hub.Expired, Op: "repos/get"}, ErrUnauthorized},
		{"primary limit 403", hub.Fault{Kind: hub.PrimaryLimit, Op: "repos/get", Times: 1, Status: 403, Reset: time.Now().Add(40 * time.Second)}, nil},
		{"primary limit 429", hub.Fault{Kind: hub.PrimaryLimit, Op: "repos/get", Times: 1, Status: 429, Reset: time.Now().Add(40 * time.Second)}, nil},
		{"primary limit for an hour", hub.Fault{Kind: hub.PrimaryLimit, Op: "repos/get"}, ErrRateLimited},
		{"primary limit, reset in the past", hub.Fault{Kind: hub.PrimaryLimit, Op: "repos/get", Times: 1, Reset: time.Now().Add(-time.Hour)}, nil},
		{"secondary limit 403, body only", hub.Fault{Kind: hub.SecondaryLimit, Op: "pulls/create", Times: 1, Status: 403}, nil},
		{"secondary limit 429", hub.Fault{Kind: hub.SecondaryLimit, Op: "pulls/create", Times: 1, Status: 429, RetryAfter: 3 * time.Second}, nil},
		{"fetch refused once", hub.Fault{Kind: hub.Refused, Op: hub.OpFetch, Times: 1}, nil},
		{"fetch 502 once", hub.Fault{Kind: hub.ServerError, Op: hub.OpFetch, Times: 1}, nil},
		{"fetch expired", hub.Fault{Kind: hub.Expired, Op: hub.OpFetch}, ErrUnauthorized},
		{"push refused once", hub.Fault{Kind: hub.Refused, Op: hub.OpPush, Times: 1}, nil},
		{"push 502 once", hub.Fault{Kind: hub.ServerError, Op: hub.OpPush, Times: 1}, nil},
		{"push done, answer lost", hub.Fault{Kind: hub.LostAnswer, Op: hub.OpPush, Times: 1}, nil},
		{"push expired", hub.Fault{Kind: hub.Expired, Op: hub.OpPush}, ErrUnauthorized},
		{"pull request, connection refused", hub.Fault{Kind: hub.Refused, Op: "pulls/create", Times: 1}, nil},
		{"pull request done, answer lost", hub.Fault{Kind: hub.LostAnswer, Op: "pulls/create", Times: 1}, nil},
		{"pull request 502", hub.Fault{Kind: hub.ServerError, Op: "pulls/create", Times: 1}, nil},
		{"pull request, branch not seen yet", hub.Fault{Kind: hub.Lag, Op: "pulls/create", Times: 2}, nil},
		{"pull request, list lags", hub.Fault{Kind: hub.Lag, Op: "pulls/list", Times: 1}, nil},
		{"pull request expired", hub.Fault{Kind: hub.Expired, Op: "pulls/create"}, ErrUnauthorized},
		{"no drafts", hub.Fault{Kind: hub.NoDraft, Op: "pulls/create"}, ErrValidation},
		{"comment done, answer lost", hub.Fault{Kind: hub.LostAnswer, Op: "issues/create-comment", Times: 1}, nil},
		{"comment refused", hub.Fault{Kind: hub.Refused, Op: "issues/create-comment", Times: 1}, nil},
		{"comment 502 without end", hub.Fault{Kind: hub.ServerError, Op: "issues/create-comment"}, ErrServer},
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
			if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if err == nil {
				b.checkDelivered(got)
			}
			b.ClearFaults()
			if got, err = b.deliver(); err != nil {
				t.Fatalf("second delivery: %v", err)
			}
			b.checkDelivered(got)
		})
	}
}

func TestDeliverOutcomes(t *testing.T) {
	change := func(b *bench) {
		b.write("src/a.go", "package a // x\n")
		b.commit("one")
	}
	for _, tt := range []struct {
		name  string
		setup func(b *bench)
		edit  func(b *bench, d *Delivery)
		want  error
		check func(t *testing.T, b *bench, got Delivered, err error)
	}{
		{name: "nothing changed", setup: func(*bench) {}, want: ErrNoChanges},
		{name: "an empty commit", setup: func(b *bench) { b.commit("empty") }, want: ErrNoChanges},
		{name: "no base at all", edit: func(_ *bench, d *Delivery) { d.Base = "" }, want: ErrEmptyRepository},
		{name: "base not on GitHub", setup: func(b *bench) {
			b.write("local.go", "package x\n")
			b.base = b.commit("local only")
			change(b)
		}, want: ErrBaseMissing},
		{name: "base branch unknown", edit: func(_ *bench, d *Delivery) { d.BaseBranch = "next"; d.Bounds.BaseBranches = []string{"*"} }, want: ErrNotFound},
		{name: "base moved on", setup: func(b *bench) {
			change(b)
			b.git(b.work, "checkout", "-q", "main")
			head := b.git(b.work, "rev-parse", "HEAD")
			b.git(b.work, "reset", "-q", "--hard", b.base)
			b.write("other.md", "x\n")
			b.commit("elsewhere")
			dir, _ := b.Dir("octo/app")
			b.git(b.work, "push", "-q", dir, "HEAD:refs/heads/main")
			b.git(b.work, "reset", "-q", "--hard", head)
		}},
		{name: "branch of somebody else", setup: func(b *bench) {
			change(b)
			head := b.git(b.work, "rev-parse", "HEAD")
			b.git(b.work, "reset", "-q", "--hard", b.base)
			b.write("other.md", "x\n")
			other := b.commit("elsewhere")
			dir, _ := b.Dir("octo/app")
			b.git(b.work, "push", "-q", dir, other+":refs/heads/sbxpair/r1")
			b.git(b.work, "reset", "-q", "--hard", head)
		}, want: ErrBranchMoved},
		{name: "branch of an earlier try", setup: func(b *bench) {
			change(b)
			head := b.git(b.work, "rev-parse", "HEAD")
			b.git(b.work, "reset", "-q", "--hard", b.base)
			b.write("other.md", "x\n")
			b.git(b.work, "tag", "other", b.commit("earlier"))
			dir, _ := b.Dir("octo/app")
			b.git(b.work, "push", "-q", dir, "other:refs/heads/sbxpair/r1")
			b.git(b.work, "reset", "-q", "--hard", head)
		}, edit: func(b *bench, d *Delivery) { d.Known = []string{b.git(b.work, "rev-parse", "other")} },
			check: func(t *testing.T, _ *bench, got Delivered, _ error) {
				if got.Push != PushForced {
					t.Errorf("push %s, want forced", got.Push)
				}
			}},
		{name: "branch at an ancestor", setup: func(b *bench) {
			change(b)
			dir, _ := b.Dir("octo/app")
			b.git(b.work, "push", "-q", dir, b.base+":refs/heads/sbxpair/r1")
		}, check: func(t *testing.T, _ *bench, got Delivered, _ error) {
			if got.Push != PushFastForward {
				t.Errorf("push %s, want fast-forward", got.Push)
			}
		}},
		{name: "a merge in the history", setup: func(b *bench) {
			change(b)
			b.git(b.work, "checkout", "-q", "-b", "side", b.base)
			b.write("side.md", "x\n")
			b.commit("side")
			b.git(b.work, "checkout", "-q", "main")
			b.git(b.work, "merge", "-q", "--no-edit", "side")
		}},
		{name: "protected branch", setup: func(b *bench) { change(b); b.Protect("octo/app", "sbxpair/r1") }, want: ErrPushRefused},
		{name: "push protection", setup: func(b *bench) { change(b); b.PushProtection("octo/app", "package a") }, want: ErrPushRefused,
			check: func(t *testing.T, _ *bench, _ Delivered, err error) {
				var p *PushError
				if !errors.As(err, &p) || p.Detail == "" {
					t.Errorf("error %#v does not carry the remote's words", err)
				}
			}},
		{name: "renamed repository", setup: func(b *bench) { change(b); b.Rename("octo/app", "octo", "renamed") },
			check: func(t *testing.T, b *bench, got Delivered, err error) {
				if err != nil || got.Repo.Name != "renamed" {
					t.Errorf("delivered to %s, %v", got.Repo, err)
				}
			}},
		{name: "unknown repository", setup: change, edit: func(_ *bench, d *Delivery) { d.Repo.Name = "none"; d.Bounds.Repo.Name = "none" }, want: ErrNotFound},
		{name: "draft where there are none", setup: func(b *bench) { change(b); b.Inject(hub.Fault{Kind: hub.NoDraft, Op: "pulls/create"}) },
			edit: func(_ *bench, d *Delivery) { d.DraftOptional = true },
			check: func(t *testing.T, _ *bench, got Delivered, err error) {
				if err != nil || got.PullRequest.Draft || len(got.PullRequest.Notes) != 1 {
					t.Errorf("%+v %v", got.PullRequest, err)
				}
			}},
		{name: "blocked by policy, git", setup: func(b *bench) {
			change(b)
			b.blocked.Store("github.com", "Blocked by network policy: domain github.com:443\n  rule: x\n")
		}, want: ErrBlockedByPolicy},
		{name: "blocked by policy, REST", setup: func(b *bench) { change(b); b.blocked.Store("api.github.com", "Blocked by org policy\n") }, want: ErrBlockedByPolicy},
		{name: "workflow in the applied tree", setup: func(b *bench) { b.write(".github/workflows/x.yml", "on: push\n"); b.commit("one") }, want: ErrRefused,
			check: func(t *testing.T, b *bench, _ Delivered, err error) {
				if !strings.Contains(err.Error(), ".github/workflows/x.yml") {
					t.Errorf("error %v does not name the file", err)
				}
				if refs, _ := b.Refs(t.Context(), "octo/app"); refs["refs/heads/sbxpair/r1"] != "" {
					t.Error("pushed all the same")
				}
			}},
		{name: "bundle of another commit", setup: change, edit: func(b *bench, d *Delivery) { d.Head = strings.Repeat("a", 40) }, want: ErrBadBundle},
		{name: "bundle cut off", setup: change, edit: func(b *bench, d *Delivery) {
			raw := b.bundle()
			d.Bundle = bytes.NewReader(raw[:len(raw)-30])
		}, want: ErrBadBundle},
		{name: "a run id with a slash", setup: change, edit: func(_ *bench, d *Delivery) { d.Run = "../x" }, want: ErrOutOfBounds},
		{name: "a branch that is an option", setup: change, edit: func(_ *bench, d *Delivery) { d.Branch = "--mirror" }, want: ErrOutOfBounds},
		{name: "the base branch itself", setup: change, edit: func(_ *bench, d *Delivery) { d.Branch = "main" }, want: ErrRefused},
		{name: "a secret in the comment", setup: change, edit: func(b *bench, d *Delivery) {
			d.Bounds.Secrets = []secrets.Value{b.token}
			d.Comment = "it is " + b.token.Reveal()
		}, want: ErrRefused},
		{name: "no bounds", setup: change, edit: func(_ *bench, d *Delivery) { d.Bounds = Bounds{} }, want: ErrRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			if tt.setup == nil {
				change(b)
			} else {
				tt.setup(b)
			}
			got, err := b.deliver(func(d *Delivery) {
				if tt.edit != nil {
					tt.edit(b, d)
				}
			})
			if tt.want == nil && err != nil || !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), b.token.Reveal()) {
				t.Error("the error holds the token")
			}
			if tt.check != nil {
				tt.check(t, b, got, err)
			}
		})
	}
}

// TestDeliverCancelledAnywhere cancels at each step, and delivers again.
func TestDeliverCancelledAnywhere(t *testing.T) {
	for _, step := range []string{"repository", "import", "push", "pull request", "comment"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.write("src/a.go", "package a // x\n")
			b.commit("one")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d := b.delivery()
			d.Progress = func(s string) {
				if s == step {
					cancel()
				}
			}
			if _, err := Deliver(ctx, b.world, b.client, d); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want cancelled", err)
			}
			got, err := b.deliver()
			if err != nil {
				t.Fatal(err)
			}
			b.checkDelivered(got)
		})
	}
}
