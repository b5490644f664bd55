package sbx_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// TestRecordAndReplay: what was recorded with one engine plays without it, and holds no credential.
func TestRecordAndReplay(t *testing.T) {
	dir, work := filepath.Join(t.TempDir(), "cassette"), t.TempDir()
	value := secrets.New("github_pat_11ABCDEFG0canarycanarycanary")
	session := func(c *sbx.Client) (answers []string) {
		ctx := t.Context()
		box, err := c.Create(ctx, sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: work}}})
		ok(t, err)
		err = c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: value})
		ok(t, err)
		_, missing := c.Inspect(ctx, "nobody")
		if !errors.Is(missing, sbx.ErrNotFound) {
			t.Errorf("inspect nobody: %v", missing)
		}
		res, err := c.Exec(ctx, "box", sbx.ExecSpec{Argv: []string{"leak"}, Redact: []secrets.Value{value}})
		ok(t, err)
		ok(t, c.Remove(ctx, "box"))
		return []string{asJSON(t, box), missing.Error(), string(res.Stdout), string(res.Stderr)}
	}
	e := newEngine(t, "0.47").script(`exec: [{match: "^leak$", stdout: "github_pat_11ABCDEFG0canarycanarycanary\n", stderr: "ghp_0123456789012345678901234567890123canary\n", code: 3}]`)
	first := session(e.client(sbx.WithRecorder(dir)))

	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	ok(t, err)
	if len(names) != len(e.calls()) {
		t.Errorf("%d recordings of %d calls", len(names), len(e.calls()))
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		ok(t, err)
		if strings.Contains(string(data), "canary") {
			t.Errorf("%s holds a value:\n%s", filepath.Base(name), data)
		}
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	recs, err := sbx.ReadRecordings(dir)
	ok(t, err)
	if recs[0].Args[0] != "version" || !strings.HasSuffix(names[0], "00001-version.json") {
		t.Errorf("first: %v, %s", recs[0].Args, names[0])
	}

	player, err := sbx.NewReplay(dir)
	ok(t, err)
	second := session(sbx.New("", sbx.WithRunner(player)))
	for i := range first[:3] {
		if first[i] != second[i] {
			t.Errorf("played %q, recorded %q", second[i], first[i])
		}
	}
	if _, err := sbx.New("", v47(), sbx.WithRunner(player)).Inspect(t.Context(), "other"); !errors.Is(err, sbx.ErrNotRecorded) {
		t.Errorf("a call that was not recorded: %v", err)
	}
	// A second process goes on behind the first.
	_, err = e.client(sbx.WithRecorder(dir)).List(t.Context())
	ok(t, err)
	more, err := filepath.Glob(filepath.Join(dir, "*.json"))
	ok(t, err)
	if len(more) != len(names)+1 {
		t.Errorf("%d recordings after %d", len(more), len(names))
	}
}
