package github

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
)

// TestDeliverToEmptyRepository: the base branch is made only where that was asked for, and never over another's commit.
func TestDeliverToEmptyRepository(t *testing.T) {
	empty := Repo{"octo", "empty"}
	open := func(t *testing.T) (*bench, func(...func(*Delivery)) (Delivered, error)) {
		b := newBench(t)
		if err := b.AddRepo(t.Context(), hub.RepoSpec{Owner: "octo", Name: "empty", Private: true}); err != nil {
			t.Fatal(err)
		}
		b.write("src/a.go", "package a // x\n")
		b.commit("one")
		whole := filepath.Join(t.TempDir(), "whole")
		b.git(b.work, "update-ref", "refs/heads/sbxpair/r1", "HEAD")
		b.git(b.work, "bundle", "create", "-q", whole, "refs/heads/sbxpair/r1")
		raw, err := os.ReadFile(whole)
		if err != nil {
			t.Fatal(err)
		}
		return b, func(edit ...func(*Delivery)) (Delivered, error) {
			return b.deliver(append([]func(*Delivery){func(d *Delivery) {
				d.Repo, d.Bounds, d.Bundle, d.InitEmpty = empty, DefaultBounds(empty, "main"), bytes.NewReader(raw), true
			}}, edit...)...)
		}
	}
	refs := func(b *bench) map[string]string {
		t.Helper()
		refs, err := b.Refs(t.Context(), "octo/empty")
		if err != nil {
			t.Fatal(err)
		}
		return refs
	}
	t.Run("asked for", func(t *testing.T) {
		b, deliver := open(t)
		got, err := deliver()
		if err != nil {
			t.Fatal(err)
		}
		if r := refs(b); r["refs/heads/main"] != b.base || r["refs/heads/sbxpair/r1"] != got.Head || !got.Initialised || got.PullRequest.Number == 0 {
			t.Errorf("refs %v, %+v", r, got)
		}
		again, err := deliver() // the same bundle, into a repository that is not empty any more
		if err != nil || again.Initialised || again.Push != PushUpToDate || again.PullRequest.Number != got.PullRequest.Number {
			t.Errorf("second delivery %+v, %v", again, err)
		}
	})
	t.Run("answer lost after the base was pushed", func(t *testing.T) {
		b, deliver := open(t)
		b.Inject(hub.Fault{Kind: hub.LostAnswer, Op: hub.OpPush, Times: 1})
		got, err := deliver()
		if err != nil || b.Fired() == 0 {
			t.Fatalf("%d faults, %v", b.Fired(), err)
		}
		if r := refs(b); r["refs/heads/main"] != b.base || r["refs/heads/sbxpair/r1"] != got.Head {
			t.Errorf("refs %v, %+v", r, got)
		}
	})
	t.Run("not asked for", func(t *testing.T) {
		b, deliver := open(t)
		if _, err := deliver(func(d *Delivery) { d.InitEmpty = false }); !errors.Is(err, ErrEmptyRepository) || len(refs(b)) != 0 {
			t.Errorf("%v, refs %v", err, refs(b))
		}
	})
	t.Run("bundle without the history", func(t *testing.T) {
		b, deliver := open(t)
		if _, err := deliver(func(d *Delivery) { d.Bundle = bytes.NewReader(b.bundle()) }); !errors.Is(err, ErrBadBundle) || len(refs(b)) != 0 {
			t.Errorf("%v, refs %v", err, refs(b))
		}
	})
	t.Run("base branch out of bounds", func(t *testing.T) {
		b, deliver := open(t)
		if _, err := deliver(func(d *Delivery) { d.Bounds.BaseBranches = []string{"next"} }); !errors.Is(err, ErrRefused) || len(refs(b)) != 0 {
			t.Errorf("%v, refs %v", err, refs(b))
		}
	})
	t.Run("somebody else was first", func(t *testing.T) {
		b, deliver := open(t)
		other := b.git(b.work, "commit-tree", "HEAD^{tree}", "-m", "of somebody else")
		_, err := deliver(func(d *Delivery) {
			d.Progress = func(step string) {
				if step == "push" {
					dir, _ := b.Dir("octo/empty")
					b.git(b.work, "push", "-q", dir, other+":refs/heads/main")
				}
			}
		})
		var moved *BranchMovedError
		if r := refs(b); !errors.As(err, &moved) || moved.Branch != "main" || moved.Remote != other || r["refs/heads/main"] != other || r["refs/heads/sbxpair/r1"] != "" {
			t.Errorf("%v, refs %v", err, r)
		}
	})
	t.Run("refused by a rule", func(t *testing.T) {
		b, deliver := open(t)
		b.Protect("octo/empty", "main")
		var refused *PushError
		if _, err := deliver(); !errors.As(err, &refused) || refused.Ref != "main" || len(refs(b)) != 0 {
			t.Errorf("%v, refs %v", err, refs(b))
		}
	})
}
