package statefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sbxpair/sbxpair/engine/statefile"
)

type counter struct {
	N    int      `json:"n"`
	List []string `json:"list"`
}

func TestReadOfNothing(t *testing.T) {
	f := statefile.New[counter](filepath.Join(t.TempDir(), "a", "x.json"), 0o600)
	v, err := f.Read()
	if err != nil || v.N != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := os.Stat(filepath.Dir(f.Path())); !errors.Is(err, os.ErrNotExist) {
		t.Error("reading made a folder")
	}
}

// Many writers, each with a File of its own as processes have: no change is lost, and readers see whole values only.
func TestUpdatesAreNotLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	var wg sync.WaitGroup
	const writers, each = 8, 20
	for range writers {
		wg.Go(func() {
			f := statefile.New[counter](path, 0o600)
			for range each {
				if err := f.Update(t.Context(), func(c *counter) error { c.N++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	reader := statefile.New[counter](path, 0o600)
	last := 0
	for range 200 {
		v, err := reader.Read()
		if err != nil || v.N < last {
			t.Fatalf("read %+v after %d: %v", v, last, err)
		}
		last = v.N
	}
	wg.Wait()
	if v, err := reader.Read(); err != nil || v.N != writers*each {
		t.Errorf("%+v, %v; want %d", v, err, writers*each)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v %v", left, err)
	}
}

func TestPointerIsStable(t *testing.T) {
	f := statefile.New[counter](filepath.Join(t.TempDir(), "x.json"), 0o600)
	if err := f.Update(t.Context(), func(c *counter) error { c.N = 1; return nil }); err != nil {
		t.Fatal(err)
	}
	a, _ := f.Read()
	if b, _ := f.Read(); a != b {
		t.Error("an unchanged file gives another pointer")
	}
	if err := f.Update(t.Context(), func(c *counter) error { c.N = 2; return nil }); err != nil {
		t.Fatal(err)
	}
	if b, _ := f.Read(); a == b || b.N != 2 || a.N != 1 {
		t.Errorf("%+v %+v", a, b)
	}
}

func TestFailedChangeLeavesTheFile(t *testing.T) {
	f := statefile.New[counter](filepath.Join(t.TempDir(), "x.json"), 0o600)
	boom := errors.New("boom")
	if err := f.Update(t.Context(), func(c *counter) error { c.N = 7; return boom }); !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
	if v, err := f.Read(); err != nil || v.N != 0 {
		t.Errorf("%+v %v", v, err)
	}
}

func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(path, []byte(`{"n": "ghp_secretlooking"`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := statefile.New[counter](path, 0o600)
	_, err := f.Read()
	if !errors.Is(err, statefile.ErrCorrupt) || strings.Contains(err.Error(), "secretlooking") {
		t.Errorf("Read: %v", err)
	}
	err = f.Update(t.Context(), func(*counter) error { return nil })
	if !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("Update: %v", err)
	}
}

func TestMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "x.json")
	f := statefile.New[counter](path, 0o600)
	if err := f.Update(t.Context(), func(*counter) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700, path + ".lock": 0o600} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Errorf("second Remove: %v", err)
	}
}
