package sbx_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		res, err := c.Exec(ctx, "box", sbx.ExecSpec{Argv: []string{"leak"}, Redact: []secrets.Value{value}, Env: []sbx.EnvVar{{Name: "TEAM", Value: "canary of the team"}}})
		ok(t, err)
		_, err = c.SecretSetCustom(ctx, sbx.CustomSecret{Sandbox: "box", Env: "KEY", Hosts: []string{"api.example.com"}, Command: "cat /home/canary/key"})
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
	_, err = e.client(v47(), sbx.WithRecorder(dir)).List(t.Context())
	ok(t, err)
	more, err := filepath.Glob(filepath.Join(dir, "*.json"))
	ok(t, err)
	if len(more) != len(names)+1 {
		t.Errorf("%d recordings after %d", len(more), len(names))
	}
}

// TestFakePlaysCassettes: a session that was recorded with one engine runs the same against the fake that plays it, as a
// process, without that engine's state.
func TestFakePlaysCassettes(t *testing.T) {
	cassette, work := filepath.Join(t.TempDir(), "cassette"), t.TempDir()
	file, out := filepath.Join(work, "in"), filepath.Join(work, "out")
	ok(t, os.WriteFile(file, []byte("x\n"), 0o644))
	session := func(c *sbx.Client) (answers []string) {
		ctx := t.Context()
		note := func(v any, err error) {
			answers = append(answers, asJSON(t, v), fmt.Sprint(err))
		}
		note(c.List(ctx))
		note(c.Create(ctx, sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: work}}}))
		note(c.List(ctx))
		note(c.Inspect(ctx, "nobody"))
		note(nil, c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: secrets.New("canary-value-0123")}))
		for _, spec := range []sbx.ExecSpec{
			{Argv: []string{"both"}, KillTree: true},
			{Argv: []string{"cat"}, Stdin: strings.NewReader("given")},
			{Argv: []string{"nothing-of-that-name"}},
			{Argv: []string{"dies"}},
		} {
			res, err := c.Exec(ctx, "box", spec)
			note([]any{string(res.Stdout), string(res.Stderr), res.Code}, err)
		}
		ok(t, os.RemoveAll(out))
		note(nil, c.CopyIn(ctx, "box", file, "/home/agent/in"))
		note(nil, c.Remove(ctx, "box"))
		return answers
	}
	e := newEngine(t, "0.47").script("exec: [{match: ^both, stdout: \"o\\n\", stderr: \"e\\n\", code: 5}]\ncalls: [{match: dies, stdout: half, crash: true}]")
	recorded := session(e.process(sbx.WithRecorder(cassette)))

	player := newEngine(t, "0.47")
	player.env = append(player.env, "FAKESBX_CASSETTE="+cassette)
	played := session(player.process())
	for i := range recorded {
		if recorded[i] != played[i] {
			t.Errorf("answer %d: played %s, recorded %s", i, played[i], recorded[i])
		}
	}
	if got, want := len(player.calls()), len(e.calls()); got != want {
		t.Errorf("%d calls, recorded were %d", got, want)
	}

	code := 0
	c := player.process(v47())
	for _, argv := range [][]string{{"never-recorded"}, {"both"}} { // the second was, and is used up
		res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: argv})
		code = res.Code
		if err != nil || code != 99 || !strings.Contains(string(res.Stderr), "not in the cassette") {
			t.Errorf("%q: exit %d, %q, %v", argv, code, res.Stderr, err)
		}
	}
}

// TestFakeReplaysTime: what was cut off hangs until it is cut off again, and a call takes its time if it is asked to.
func TestFakeReplaysTime(t *testing.T) {
	cassette := t.TempDir()
	for name, text := range map[string]string{
		"00001-exec.json": `{"args":["exec","box","slow"],"stdout":"half","code":-1,"error":"context deadline exceeded","took_ms":1}`,
		"00002-exec.json": `{"args":["exec","box","waits"],"code":0,"took_ms":300}`,
	} {
		ok(t, os.WriteFile(filepath.Join(cassette, name), []byte(text), 0o600))
	}
	player := newEngine(t, "0.47")
	player.env = append(player.env, "FAKESBX_CASSETTE="+cassette, "FAKESBX_CASSETTE_TIME=1")
	c := player.process(v47())
	res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"slow"}, Timeout: time.Second})
	wantKinds(t, err, sbx.ErrTimeout)
	if string(res.Stdout) != "half" {
		t.Errorf("kept %q", res.Stdout)
	}
	res, err = c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"waits"}})
	if err != nil || res.Took < 300*time.Millisecond {
		t.Errorf("took %s, %v", res.Took, err)
	}
}
