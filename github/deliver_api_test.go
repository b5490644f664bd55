package github

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
)

// byAPI turns a delivery into one by the API, from the commits in the work tree.
func (b *bench) byAPI(d *Delivery) {
	b.t.Helper()
	d.Way, d.Bundle, d.Head = ViaAPI, nil, ""
	d.Tree = b.git(b.work, "rev-parse", "HEAD^{tree}")
	d.Files = nil
	raw := b.git(b.work, "diff-tree", "-r", "-z", "--raw", "--no-renames", b.base, "HEAD")
	changes, err := ParseRawDiff([]byte(raw))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range changes {
		f := TreeFile{Path: c.Path, Mode: c.Mode, OldMode: c.OldMode}
		if c.Mode != modeNone {
			if f.Content, err = os.ReadFile(filepath.Join(b.work, c.Path)); err != nil {
				b.t.Fatal(err)
			}
		}
		d.Files = append(d.Files, f)
	}
}

// TestDeliverByAPI: the same change both ways gives the same tree and the same pull request.
func TestDeliverByAPI(t *testing.T) {
	b := newBench(t)
	b.write("src/a.go", "package a // x\n")
	b.write("empty", "")
	b.write("bin", string([]byte{0, 1, 255}))
	b.write("large.txt", strings.Repeat("x", inlineFile+1))
	os.Remove(filepath.Join(b.work, "run.sh"))
	b.write("run.sh/now-a-folder", "x\n") // after run.sh is gone
	os.Remove(filepath.Join(b.work, "README.md"))
	b.commit("one")
	got, err := b.deliver(b.byAPI, func(d *Delivery) { d.Bounds.MaxFiles = 20 })
	if err != nil {
		t.Fatal(err)
	}
	b.checkDelivered(got)
	dir, _ := b.Dir("octo/app")
	if tree := b.git(dir, "rev-parse", got.Head+"^{tree}"); tree != b.git(b.work, "rev-parse", "HEAD^{tree}") {
		t.Error("the tree on GitHub is another")
	}
	if parent := b.git(dir, "rev-parse", got.Head+"^"); parent != b.base || got.Push != PushCreated || got.Execs != 0 {
		t.Errorf("parent %s, %+v", parent, got)
	}
	again, err := b.deliver(b.byAPI)
	if err != nil || again.Push != PushUpToDate || again.Head != got.Head {
		t.Errorf("second delivery %+v %v", again, err)
	}
	if n := b.execs.Load(); n != 1 {
		t.Errorf("%d execs, want 1", n)
	}
	// More work of the same run moves its own branch.
	b.write("src/b.go", "package a\n")
	b.commit("two")
	more, err := b.deliver(b.byAPI)
	if err != nil || more.Push != PushForced {
		t.Fatalf("%+v %v", more, err)
	}
	b.checkDelivered(more)
}

func TestDeliverByAPIManyFiles(t *testing.T) {
	b := newBench(t)
	for i := range 450 {
		b.write(fmt.Sprintf("many/%d/f.txt", i), fmt.Sprint("text ", i))
	}
	b.commit("many")
	got, err := b.deliver(b.byAPI, func(d *Delivery) { d.Bounds.MaxFiles = 2000 })
	if err != nil {
		t.Fatal(err)
	}
	b.checkDelivered(got)
	// repository, base branch, base commit, branch, 3 trees, commit, ref; pull request looked for and opened; comments read, comment posted.
	if n := b.client.Requests(); n != 13 {
		t.Errorf("%d requests for 450 files, want 13", n)
	}
}

func TestDeliverByAPIFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault hub.Fault
		want  error
	}{
		{"tree done, answer lost", hub.Fault{Kind: hub.LostAnswer, Op: "git/create-tree", Times: 1}, nil},
		{"commit done, answer lost", hub.Fault{Kind: hub.LostAnswer, Op: "git/create-commit", Times: 1}, nil},
		{"commit 502", hub.Fault{Kind: hub.ServerError, Op: "git/create-commit", Times: 1}, nil},
		{"ref done, answer lost", hub.Fault{Kind: hub.LostAnswer, Op: "git/create-ref", Times: 1}, nil},
		{"ref refused", hub.Fault{Kind: hub.Refused, Op: "git/create-ref", Times: 1}, nil},
		{"ref refused without end", hub.Fault{Kind: hub.Refused, Op: "git/create-ref"}, ErrNetwork},
		{"ref expired", hub.Fault{Kind: hub.Expired, Op: "git/create-ref"}, ErrUnauthorized},
		{"tree limited", hub.Fault{Kind: hub.SecondaryLimit, Op: "git/create-tree", Times: 1, Status: 429}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.write("src/a.go", "package a // x\n")
			b.commit("one")
			b.Inject(tt.fault)
			got, err := b.deliver(b.byAPI)
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
			if got, err = b.deliver(b.byAPI); err != nil {
				t.Fatalf("second delivery: %v", err)
			}
			b.checkDelivered(got)
		})
	}
	for _, tt := range []struct {
		name  string
		setup func(b *bench)
		edit  func(b *bench, d *Delivery)
		want  error
	}{
		{"branch of somebody else", func(b *bench) {
			head := b.git(b.work, "rev-parse", "HEAD")
			b.git(b.work, "reset", "-q", "--hard", b.base)
			b.write("other.md", "x\n")
			other := b.commit("elsewhere")
			dir, _ := b.Dir("octo/app")
			b.git(b.work, "push", "-q", dir, other+":refs/heads/sbxpair/r1")
			b.git(b.work, "reset", "-q", "--hard", head)
		}, nil, ErrBranchMoved},
		{"base not on GitHub", nil, func(_ *bench, d *Delivery) { d.Base = strings.Repeat("a", 40) }, ErrBaseMissing},
		{"another tree than was checked", nil, func(_ *bench, d *Delivery) { d.Tree = strings.Repeat("a", 40) }, ErrMalformed},
		{"a workflow", nil, func(_ *bench, d *Delivery) { d.Files[0].Path = ".github/workflows/x.yml" }, ErrRefused},
		{"a submodule", nil, func(_ *bench, d *Delivery) { d.Files[0].Mode = modeSubmodule }, ErrRefused},
		{"nothing", nil, func(_ *bench, d *Delivery) { d.Files = nil }, ErrNoChanges},
		{"protected branch", func(b *bench) { b.Protect("octo/app", "sbxpair/r1") }, nil, ErrPushRefused},
		{"too large for the API", nil, func(_ *bench, d *Delivery) { d.Files[0].Content = make([]byte, maxBlob+1) }, ErrTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.write("src/a.go", "package a // x\n")
			b.commit("one")
			if tt.setup != nil {
				tt.setup(b)
			}
			_, err := b.deliver(b.byAPI, func(d *Delivery) {
				if tt.edit != nil {
					tt.edit(b, d)
				}
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}
