package doctor

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// listenOn makes the test binary a daemon that only listens.
const listenOn = "DOCTOR_TEST_LISTEN"

func TestMain(m *testing.M) {
	if socket := os.Getenv(listenOn); socket != "" {
		l, err := net.Listen("unix", socket)
		if err != nil {
			os.Exit(1)
		}
		for { // until it is killed
			if conn, err := l.Accept(); err == nil {
				conn.Close()
			}
		}
	}
	os.Exit(m.Run())
}

// bench is a machine with a fake sbx on it.
type bench struct {
	t   *testing.T
	dir string
	env []string
	// before answers a call in the fake's place if it returns true.
	before func(ctx context.Context, c sbx.Cmd) (sbx.Result, error, bool)
	mu     sync.Mutex
	calls  []string
	opts   Options
}

// pat is in the shape of a fine-grained token, made up of one letter.
func pat(letter string) string {
	return "github_pat_" + strings.Repeat(letter, 22) + "_" + strings.Repeat(letter, 59)
}

func newBench(t *testing.T, script string) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	state := filepath.Join(b.dir, "fake")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	b.env = []string{"FAKESBX_STATE=" + state}
	b.script(script)
	cfg := config.Default()
	env := map[string]string{"COPILOT_GITHUB_TOKEN": pat("a"), "GH_TOKEN": pat("b")}
	b.opts = Options{
		Config: cfg, Store: pair.NewStore(b.dir), State: b.dir, Limit: 5 * time.Second,
		Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Locate: sbx.LocateOptions{
			LookPath: func(name string) (string, error) {
				if name == "sbx" {
					return filepath.Join(b.dir, "bin", "sbx"), nil
				}
				return "", os.ErrNotExist
			},
			Client: []sbx.Option{sbx.WithRunner(sbx.RunnerFunc(b.run))},
		},
	}
	b.opts.Prune = func(ctx context.Context, _ pair.EngineRef, found []pair.Leftover) error {
		return pair.Prune(ctx, sbx.New("sbx", b.opts.Locate.Client...), b.opts.Store, found, nil)
	}
	b.opts.Lost = func(run pair.RunID) string { return "what " + string(run) + " did" }
	return b
}

// none takes the engine off the machine.
func (b *bench) none() *bench {
	b.opts.Locate.LookPath = func(string) (string, error) { return "", os.ErrNotExist }
	return b
}

func (b *bench) script(text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "fake", "script.yaml"), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) run(ctx context.Context, c sbx.Cmd) (sbx.Result, error) {
	b.mu.Lock()
	b.calls = append(b.calls, strings.Join(c.Args, " "))
	b.mu.Unlock()
	if b.before != nil {
		if res, err, done := b.before(ctx, c); done {
			return res, err
		}
	}
	var out, errOut bytes.Buffer
	stdin := c.Stdin
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	code := fake.Run(c.Args, stdin, &out, &errOut, b.env)
	if code == 99 {
		b.t.Errorf("the fake refused: %s", errOut.String())
	}
	redact := secrets.NewRedactor(c.Redact...)
	return sbx.Result{Stdout: redact.Bytes(out.Bytes()), Stderr: redact.Bytes(errOut.Bytes()), StdoutHead: out.Bytes()[:min(out.Len(), 1024)], StdoutBytes: int64(out.Len()), Code: code}, nil
}

func (b *bench) client() *sbx.Client { return sbx.New("sbx", b.opts.Locate.Client...) }

func (b *bench) examine() Report {
	b.t.Helper()
	return Examine(b.t.Context(), b.opts)
}

// want checks a verdict, and that detail or remedy say something.
func want(t *testing.T, r Report, id string, v Verdict, texts ...string) Check {
	t.Helper()
	c, found := r.Check(id)
	if !found {
		t.Errorf("%s was not checked", id)
		return c
	}
	if c.Verdict != v {
		t.Errorf("%s is %s, want %s: %s", id, c.Verdict, v, c.Detail)
	}
	for _, text := range texts {
		if !strings.Contains(c.Detail+"\n"+c.Remedy, text) {
			t.Errorf("%s does not say %q: %s; %s", id, text, c.Detail, c.Remedy)
		}
	}
	return c
}

// guest is an engine with one sandbox in it, in which exec does what the test says.
type guest func(argv []string) (sbx.ExecResult, error)

func (g guest) Exec(_ context.Context, _ string, spec sbx.ExecSpec) (sbx.ExecResult, error) {
	return g(spec.Argv)
}
func (guest) List(context.Context) ([]sbx.Sandbox, error)      { return nil, nil }
func (guest) Remove(context.Context, ...string) error          { return nil }
func (guest) SecretList(context.Context) ([]sbx.Secret, error) { return nil, nil }
func (guest) SecretRemove(context.Context, sbx.Secret) error   { return nil }

func (g guest) box() *pair.Sandbox {
	return pair.NewSandbox(g, pair.NewRunID(time.Now()), pair.RoleAgent)
}

// scratchOf is a deep examination whose sandboxes are g.
func scratchOf(t *testing.T, g guest) *scratch {
	t.Helper()
	b := newBench(t, "")
	s := &scratch{examination: &examination{Options: b.opts}, dir: t.TempDir()}
	s.pair = &pair.Pair{Agent: g.box(), GitHub: g.box()}
	return s
}
