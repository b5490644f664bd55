package sbx_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// TestMain lets the test binary be the fake engine: a real process without a build.
func TestMain(m *testing.M) {
	if os.Getenv("FAKESBX_MAIN") != "" {
		fake.Main()
	}
	os.Exit(m.Run())
}

// versions are those that the fake speaks differently.
func versions() []string { return []string{"0.35", "0.38", "0.39", "0.42", "0.45", "0.47"} }

// engine is a fake engine with its own state.
type engine struct {
	t   testing.TB
	dir string
	env []string
}

func newEngine(t testing.TB, version string) *engine {
	dir := t.TempDir()
	return &engine{t: t, dir: dir, env: []string{"FAKESBX_STATE=" + dir, "FAKESBX_VERSION=" + version}}
}

// script writes the fake's script.
func (e *engine) script(s string) *engine {
	e.t.Helper()
	if err := os.WriteFile(filepath.Join(e.dir, "script.yaml"), []byte(s), 0o600); err != nil {
		e.t.Fatal(err)
	}
	return e
}

// client drives the fake within this process.
func (e *engine) client(opts ...sbx.Option) *sbx.Client {
	return sbx.New("sbx", append([]sbx.Option{sbx.WithRunner(sbx.RunnerFunc(e.run))}, opts...)...)
}

// process drives the fake as a process.
func (e *engine) process(opts ...sbx.Option) *sbx.Client {
	e.t.Helper()
	self, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	added := append([]string{"FAKESBX_MAIN=1", "GORACE=atexit_sleep_ms=0", "GOCOVERDIR=" + e.t.TempDir()}, e.env...)
	return sbx.New(self, append([]sbx.Option{sbx.WithAddedEnv(added...), sbx.WithGrace(300 * time.Millisecond)}, opts...)...)
}

// call makes one call of the fake, and wants it to succeed.
func (e *engine) call(args ...string) {
	e.t.Helper()
	var errOut bytes.Buffer
	if code := fake.Run(args, strings.NewReader(""), io.Discard, &errOut, e.env); code != 0 {
		e.t.Fatalf("%q: exit %d, %s", args, code, errOut.String())
	}
}

// copier is a client whose copies out bring what is at from instead.
func (e *engine) copier(from string) *sbx.Client {
	return sbx.New("sbx", v47(), sbx.WithRunner(sbx.RunnerFunc(func(ctx context.Context, c sbx.Cmd) (sbx.Result, error) {
		if c.Args[0] == "cp" {
			return sbx.Result{}, os.Rename(from, c.Args[2])
		}
		return e.run(ctx, c)
	})))
}

func (e *engine) run(ctx context.Context, c sbx.Cmd) (sbx.Result, error) {
	var out, errOut bytes.Buffer
	stdin := c.Stdin
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	code := fake.Run(c.Args, stdin, &out, &errOut, append(e.env, c.Env...))
	if code == 99 {
		e.t.Errorf("the fake refused: %s", errOut.String())
	}
	return result(c, out.Bytes(), errOut.Bytes(), code)
}

// result masks and passes on, as [sbx.Exec] does.
func result(c sbx.Cmd, stdout, stderr []byte, code int) (sbx.Result, error) {
	redact := secrets.NewRedactor(c.Redact...)
	stdout, stderr = redact.Bytes(stdout), redact.Bytes(stderr)
	for _, s := range []struct {
		w io.Writer
		b []byte
	}{{c.Stdout, stdout}, {c.Stderr, stderr}} {
		if s.w != nil {
			if _, err := s.w.Write(s.b); err != nil {
				return sbx.Result{}, err
			}
		}
	}
	return sbx.Result{Stdout: stdout, Stderr: stderr, StdoutHead: stdout[:min(len(stdout), 1024)], StdoutBytes: int64(len(stdout)), Code: code}, nil
}

// calls gives the argument lists of the calls so far.
func (e *engine) calls() []string {
	e.t.Helper()
	logged, err := fake.Calls(e.dir)
	if err != nil {
		e.t.Fatal(err)
	}
	lines := make([]string, len(logged))
	for i, c := range logged {
		lines[i] = strings.Join(c.Args, " ")
	}
	return lines
}

func (e *engine) state() fake.State {
	e.t.Helper()
	s, err := fake.ReadState(e.dir)
	if err != nil {
		e.t.Fatal(err)
	}
	return s
}

// canned is a runner that gives the same answer to every call of a verb; others fail the test.
type canned map[string]sbx.Result

func (r canned) runner(t testing.TB) sbx.Option {
	return sbx.WithRunner(sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
		line := strings.Join(c.Args, " ")
		best := ""
		for prefix := range r {
			if (line == prefix || strings.HasPrefix(line, prefix+" ")) && len(prefix) >= len(best) {
				best = prefix
			}
		}
		res, ok := r[best]
		if !ok {
			t.Errorf("unexpected call: %s", line)
			return sbx.Result{Code: 1}, nil
		}
		res, err := result(c, res.Stdout, res.Stderr, res.Code)
		return res, err
	}))
}

func says(stdout, stderr string, code int) sbx.Result {
	return sbx.Result{Stdout: []byte(stdout), Stderr: []byte(stderr), Code: code}
}

// v47 saves the version call.
func v47() sbx.Option {
	return sbx.WithVersion(sbx.Version{Engine: sbx.EngineSbx, Client: sbx.ParseSemver("v0.47.0")})
}

func vOf(minor string) sbx.Option {
	return sbx.WithVersion(sbx.Version{Engine: sbx.EngineSbx, Client: sbx.ParseSemver("v" + minor + ".0")})
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
