//go:build linux

package sbx_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// local gives a client for a real sbx-local with a state of its own, or ends the test: with a skip that says what is
// missing, or under CI=true with a failure.
func local(t *testing.T) *sbx.Client {
	t.Helper()
	c, _ := localWith(t)
	return c
}

// localWith gives, beside it, a way to make further clients of the same engine.
func localWith(t *testing.T) (*sbx.Client, func(...sbx.Option) *sbx.Client) {
	t.Helper()
	missing := func(format string, args ...any) {
		t.Helper()
		if os.Getenv("CI") == "true" {
			t.Fatalf(format, args...)
		}
		t.Skipf(format, args...)
	}
	path := os.Getenv("SBX_LOCAL_TEST_BINARY") // as the engine's own tests take it
	if path == "" {
		path = "../bin/sbx-local"
	}
	path, err := filepath.Abs(path)
	ok(t, err)
	if _, err := os.Stat(path); err != nil {
		missing("sbx-local is not built (make build): %v", err)
	}
	state := t.TempDir()
	opts := []sbx.Option{
		sbx.WithAddedEnv("SBX_LOCAL_STATE=" + state), sbx.WithTimeouts(sbx.Timeouts{Create: time.Minute, Query: 30 * time.Second}),
	}
	e, err := sbx.Locate(t.Context(), sbx.LocateOptions{
		Prefer: sbx.PreferLocal, Client: opts, LookPath: func(string) (string, error) { return path, nil },
	})
	if err != nil {
		missing("sbx-local cannot isolate here: %v", err)
	}
	c := e.Client()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		all, err := c.List(ctx)
		for _, s := range all {
			err = errors.Join(err, c.Remove(ctx, s.Name))
		}
		if err = errors.Join(err, c.DaemonStop(ctx)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return c, func(more ...sbx.Option) *sbx.Client { return sbx.New(path, append(slices.Clone(opts), more...)...) }
}

// TestLocalKillTree: in a real sandbox, the scripts of KillTree start and end a command. The client takes the engine for
// Docker's, since sbx-local needs no such thing.
func TestLocalKillTree(t *testing.T) {
	c, client := localWith(t)
	ctx := t.Context()
	ok(t, c.PolicyInit(ctx, sbx.PresetDenyAll))
	_, err := c.Create(ctx, sbx.CreateSpec{Name: "demo-agent", MemoryMiB: 512})
	ok(t, err)
	forced := client(v47())
	run := func(argv ...string) (sbx.ExecResult, error) {
		return forced.Exec(ctx, "demo-agent", sbx.ExecSpec{Argv: argv, KillTree: true, Timeout: 20 * time.Second})
	}
	res, err := run("sh", "-c", `printf %s "$1"; exit 42`, "sh", "a\nb'\"$HOME")
	if err != nil || res.Code != 42 || string(res.Stdout) != "a\nb'\"$HOME" {
		t.Errorf("%d %q %q, %v", res.Code, res.Stdout, res.Stderr, err)
	}
	_, err = run("no-such-program")
	wantKinds(t, err, sbx.ErrLaunch)
	res, err = run("sh", "-c", "kill -TERM $$")
	if err != nil || res.Code != 128+15 {
		t.Errorf("%d, %v", res.Code, err)
	}

	res, err = forced.Exec(ctx, "demo-agent", sbx.ExecSpec{
		Argv:     []string{"sh", "-c", "trap '' INT TERM; (while :; do sleep 0.2; done) & nohup sleep 611 >/dev/null 2>&1 & echo half; wait"},
		KillTree: true, Timeout: 3 * time.Second,
	})
	wantKinds(t, err, sbx.ErrTimeout)
	if string(res.Stdout) != "half\n" || strings.Contains(err.Error(), "may be left") {
		t.Errorf("kept %q, %v", res.Stdout, err)
	}
	res, err = c.Exec(ctx, "demo-agent", sbx.ExecSpec{Argv: []string{"sh", "-c", "grep -lF SBXPAIR_TREE= /proc/[0-9]*/environ"}, Timeout: 20 * time.Second})
	ok(t, err)
	if res.Code != 1 || len(res.Stdout) > 0 {
		t.Errorf("left running: exit %d, %s", res.Code, res.Stdout)
	}
}

// TestLocalEngine drives the real sbx-local: what this client expects of sbx is what sbx-local does.
func TestLocalEngine(t *testing.T) {
	c := local(t)
	ctx := t.Context()
	work := t.TempDir()
	ok(t, os.Chmod(work, 0o777))

	if v, err := c.Version(ctx); err != nil || !v.IsLocal() || v.Client.String() != "0.47.0" || v.Isolation == "" {
		t.Fatalf("%+v, %v", v, err)
	}
	spec := sbx.CreateSpec{Name: "demo-agent", Workspaces: []sbx.Workspace{{Path: work}}, MemoryMiB: 1024}
	if _, err := c.Create(ctx, spec); !errors.Is(err, sbx.ErrPolicyUninitialised) {
		t.Errorf("create without a policy: %v", err)
	}
	ok(t, c.PolicyInit(ctx, sbx.PresetDenyAll))
	if err := c.PolicyInit(ctx, sbx.PresetDenyAll); !errors.Is(err, sbx.ErrExists) {
		t.Errorf("second init: %v", err)
	}
	box, err := c.Create(ctx, spec)
	ok(t, err)
	if box.Status != sbx.StatusRunning || box.ID == "" || len(box.Workspaces) != 1 || box.Workspaces[0] != work {
		t.Errorf("created %+v", box)
	}
	if _, err := c.Create(ctx, spec); !errors.Is(err, sbx.ErrExists) {
		t.Errorf("create again: %v", err)
	}
	if in, err := c.Inspect(ctx, "demo-agent"); err != nil || in.State != sbx.StatusRunning {
		t.Errorf("inspect: %+v, %v", in, err)
	}

	exec := func(argv ...string) sbx.ExecResult {
		t.Helper()
		res, err := c.Exec(ctx, "demo-agent", sbx.ExecSpec{Argv: argv, Timeout: time.Minute})
		ok(t, err)
		return res
	}
	res := exec("sh", "-c", "echo o; echo e >&2; exit 42")
	if res.Code != 42 || string(res.Stdout) != "o\n" || string(res.Stderr) != "e\n" {
		t.Errorf("%d %q %q", res.Code, res.Stdout, res.Stderr)
	}
	if res := exec("printf", "%s|", "a\nb", `'"$HOME`, ""); string(res.Stdout) != "a\nb|'\"$HOME||" {
		t.Errorf("arguments arrived as %q", res.Stdout)
	}
	if res := exec("pwd"); strings.TrimSpace(string(res.Stdout)) != work {
		t.Errorf("working directory %q", res.Stdout)
	}
	data := bytes.Repeat([]byte("\x00\xff\r\n"), 50_000)
	res, err = c.Exec(ctx, "demo-agent", sbx.ExecSpec{Argv: []string{"cat"}, Stdin: bytes.NewReader(data)})
	ok(t, err)
	if sha256.Sum256(res.Stdout) != sha256.Sum256(data) {
		t.Errorf("%d bytes came back of %d", len(res.Stdout), len(data))
	}
	_, err = c.Exec(ctx, "demo-agent", sbx.ExecSpec{Argv: []string{"no-such-program"}})
	wantKinds(t, err, sbx.ErrLaunch)
	_, err = c.Exec(ctx, "nobody", sbx.ExecSpec{Argv: []string{"true"}})
	wantKinds(t, err, sbx.ErrNotFound)
	res, err = c.Exec(ctx, "demo-agent", sbx.ExecSpec{Argv: []string{"sh", "-c", "echo half; sleep 600"}, Timeout: time.Second})
	wantKinds(t, err, sbx.ErrTimeout)
	if string(res.Stdout) != "half\n" {
		t.Errorf("kept %q", res.Stdout)
	}

	ids, err := c.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: "demo-agent", Resources: []string{"api.example.com:443", "example.org"}})
	ok(t, err)
	if len(ids) == 0 {
		t.Error("no ids")
	}
	for target, want := range map[string]bool{"api.example.com": true, "example.org:22": true, "example.net": false} {
		if v, err := c.PolicyCheck(ctx, "demo-agent", target); err != nil || v.Allowed != want {
			t.Errorf("check %s: %+v, %v", target, v, err)
		}
	}
	if _, err := c.PolicyLog(ctx, "demo-agent", 0); err != nil {
		t.Errorf("policy log: %v", err)
	}
	ok(t, c.PolicyRemove(ctx, sbx.RuleRef{Sandbox: "demo-agent", ID: ids[0]}))

	ok(t, c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "demo-agent", Value: secrets.New("canary-0123456789")}))
	ok(t, c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretService, Sandbox: "demo-agent", Name: "github"}))
	ok(t, c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretService, Sandbox: "demo-agent", Name: "github"}))

	file := filepath.Join(t.TempDir(), "job.json")
	ok(t, os.WriteFile(file, []byte("{}\n"), 0o600))
	ok(t, c.CopyIn(ctx, "demo-agent", file, "/home/agent/job.json"))
	if res := exec("cat", "/home/agent/job.json"); string(res.Stdout) != "{}\n" {
		t.Errorf("the copied file reads %q %q", res.Stdout, res.Stderr)
	}
	out := filepath.Join(t.TempDir(), "out.json")
	ok(t, c.CopyOut(ctx, "demo-agent", "/home/agent/job.json", out))
	if b, err := os.ReadFile(out); err != nil || string(b) != "{}\n" {
		t.Errorf("copied out %q, %v", b, err)
	}

	ok(t, c.Stop(ctx, "demo-agent"))
	if res := exec("echo", "awake"); string(res.Stdout) != "awake\n" {
		t.Errorf("after a stop: %q", res.Stdout)
	}
	ok(t, c.Remove(ctx, "demo-agent", "never-was"))
	ok(t, c.Remove(ctx, "demo-agent"))
}

// TestLocalReadBack: what each change reads back is there on a real engine, so that nobody is told "did not take effect" who
// need not be.
func TestLocalReadBack(t *testing.T) {
	c := local(t)
	ctx := t.Context()
	a, b := t.TempDir(), t.TempDir()
	for _, preset := range []sbx.Preset{sbx.PresetAllowAll, sbx.PresetBalanced, sbx.PresetDenyAll} {
		ok(t, c.PolicyInit(ctx, preset))
		ok(t, c.PolicyReset(ctx))
	}
	ok(t, c.PolicyInit(ctx, sbx.PresetDenyAll))
	spec := sbx.CreateSpec{
		Name: "demo-agent", Workspaces: []sbx.Workspace{{Path: a}, {Path: b, ReadOnly: true}}, Publish: []string{"8080"},
		DenyNetwork: []string{"a.example", "**.b.example"}, Env: []sbx.EnvVar{{Name: "A", Value: "x y'\"\n$z"}, {Name: "EMPTY"}},
	}
	box, err := c.Create(ctx, spec)
	ok(t, err)
	if len(box.Workspaces) != 2 || len(box.Ports) != 1 {
		t.Errorf("%+v", box)
	}
	_, err = c.Run(ctx, spec)
	ok(t, err)
	ok(t, c.KeepAlive(ctx, "demo-agent"))
	ports, err := c.Publish(ctx, "demo-agent", "9090/tcp")
	ok(t, err)
	for _, p := range ports {
		ok(t, c.Unpublish(ctx, "demo-agent", p))
	}
	ok(t, c.Unpublish(ctx, "demo-agent", ports[0]))

	src := filepath.Join(t.TempDir(), "tree")
	for name, text := range map[string]string{"a": "1", "sub/b c": "22", "sub/new\nline": "333", "sub/.hidden": ""} {
		p := filepath.Join(src, filepath.FromSlash(name))
		ok(t, os.MkdirAll(filepath.Dir(p), 0o700))
		ok(t, os.WriteFile(p, []byte(text), 0o600))
	}
	ok(t, os.MkdirAll(filepath.Join(src, "empty"), 0o700))
	ok(t, os.Symlink("sub/b c", filepath.Join(src, "link")))
	ok(t, os.Symlink("/nowhere", filepath.Join(src, "dangling")))
	for range 2 { // the second time into the directory that is there
		ok(t, c.CopyIn(ctx, "demo-agent", src, "/home/agent/tree"))
	}
	ok(t, c.CopyIn(ctx, "demo-agent", src+"/.", "/home/agent/flat"))
	ok(t, c.CopyIn(ctx, "demo-agent", filepath.Join(src, "link"), "/home/agent"))
	out := filepath.Join(t.TempDir(), "out")
	ok(t, c.CopyOut(ctx, "demo-agent", "/home/agent/tree", out))
	ok(t, c.CopyOut(ctx, "demo-agent", "/home/agent/link", out+"-link"))
	if b, err := os.ReadFile(filepath.Join(out, "tree", "sub", "new\nline")); err != nil || string(b) != "333" {
		t.Errorf("%q, %v", b, err)
	}

	ok(t, c.Stop(ctx, "demo-agent"))
	tar := filepath.Join(t.TempDir(), "demo.tar")
	ok(t, c.TemplateSave(ctx, "demo-agent", "demo", tar))
	ok(t, c.TemplateSave(ctx, "demo-agent", "demo", "")) // over it
	ok(t, c.TemplateRemove(ctx, "demo"))
	ok(t, c.TemplateRemove(ctx, "demo"))
	ok(t, c.TemplateLoad(ctx, tar))
	images, err := c.TemplateList(ctx)
	ok(t, err)
	if len(images) != 1 {
		t.Fatalf("%+v", images)
	}
	ok(t, c.TemplateRemove(ctx, images[0].ID))

	_, err = c.SetSetting(ctx, "autostop.graceSeconds", "-1")
	if err == nil {
		t.Error("a negative time was taken")
	}
	_, err = c.SetSetting(ctx, "autostop.graceSeconds", "30")
	ok(t, err)
	ok(t, c.UnsetSetting(ctx, "autostop.graceSeconds"))
	ok(t, c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Command: "/bin/echo canary-value"}))
	ok(t, c.SecretRemove(ctx, sbx.Secret{Name: "github"}))
	ids, err := c.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: "demo-agent", Resources: []string{"c.example"}, Methods: []string{"GET"}, Path: "/x"})
	ok(t, err)
	ok(t, c.PolicyRemove(ctx, sbx.RuleRef{Sandbox: "demo-agent", ID: ids[0]}))
	ok(t, c.DaemonRestart(ctx))
	ok(t, c.Remove(ctx, "demo-agent"))
}
