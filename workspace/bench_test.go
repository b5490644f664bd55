package workspace_test

import (
	"path/filepath"
	"testing"

	"github.com/sbxpair/sbxpair/workspace"
)

// BenchmarkLargeRepository prepares and collects a repository of 20,000 files and 20 commits.
func BenchmarkLargeRepository(b *testing.B) {
	dir := b.TempDir()
	shell(b, dir, `git init -q; i=0; while [ $i -lt 20 ]; do mkdir d$i; j=0; while [ $j -lt 1000 ]; do echo "$i $j" >d$i/f$j; j=$((j+1)); done; git add d$i; git commit -qm $i; i=$((i+1)); done`)
	for b.Loop() {
		w, err := workspace.Prepare(b.Context(), workspace.Source{Dir: dir, Branch: "b"}, filepath.Join(b.TempDir(), "ws"))
		if err != nil {
			b.Fatal(err)
		}
		shell(b, w.Dir, "echo x >>d7/f7; echo n >n")
		e, err := w.Collect(b.Context(), sandbox{home: b.TempDir()}, workspace.CollectOptions{})
		if err != nil || len(e.Files) != 2 {
			b.Fatal(err)
		}
	}
}
