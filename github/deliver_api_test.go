package github

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

// TestDeliverByAPIOutcomes are those that only this way has; the others are in TestDeliverySituations.
func TestDeliverByAPIOutcomes(t *testing.T) {
	b := newBench(t)
	b.write("src/a.go", "package a // x\n")
	b.commit("one")
	for _, tt := range []struct {
		name string
		edit func(d *Delivery)
		want error
	}{
		{"another tree than was checked", func(d *Delivery) { d.Tree = strings.Repeat("a", 40) }, ErrMalformed},
		{"a submodule", func(d *Delivery) { d.Files[0].Mode = modeSubmodule }, ErrRefused},
		{"nothing", func(d *Delivery) { d.Files = nil }, ErrNoChanges},
		{"too large for the API", func(d *Delivery) { d.Files[0].Content = make([]byte, maxBlob+1) }, ErrTooLarge},
		{"too many for the API", func(d *Delivery) {
			for i := range maxBlobs + 1 {
				d.Files = append(d.Files, TreeFile{Path: fmt.Sprint("bin", i), Mode: modeFile, OldMode: modeNone, Content: []byte{0}})
			}
		}, ErrTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := b.deliver(b.byAPI, tt.edit); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}
