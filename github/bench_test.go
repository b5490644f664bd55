package github

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/fixtures/github/openapi"
	"github.com/sbxpair/sbxpair/secrets"
)

// bench is a whole GitHub behind a world: the stand-in's REST and git, with a proxy in front that puts the credential in as the
// engine's does, and a working copy whose commits can be delivered.
type bench struct {
	*world
	*hub.Hub
	t      *testing.T
	client *Client
	clock  *testClock
	work   string // a clone with commits of the "agent"
	base   string
	token  secrets.Value
	strict bool // no violation of GitHub's description is expected
	// onAbort, if set, is called when a fault breaks a connection.
	onAbort atomic.Pointer[context.CancelFunc]
}

// archive makes the repository read-only, or takes that back.
func (b *bench) archive(on bool) {
	if err := b.Archive("octo/app", on); err != nil {
		b.t.Error(err)
	}
}

// testClock does not wait: a sleep moves it.
type testClock struct {
	mu    sync.Mutex
	now   time.Time
	slept []time.Duration
}

func (c *testClock) clock() Clock {
	return Clock{
		Now: func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now },
		Sleep: func(ctx context.Context, d time.Duration) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now, c.slept = c.now.Add(d), append(c.slept, d)
			return ctx.Err()
		},
		Jitter: func() float64 { return 0.5 },
	}
}

func (c *testClock) total() (sum time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.slept {
		sum += d
	}
	return sum
}

// loadOnce parses GitHub's description once for all hubs of this test binary.
var loadOnce = sync.OnceValues(openapi.Load)

func newBench(t *testing.T) *bench { return newBenchAs(t, DotCom(), hub.Token{Login: "octo"}) }

func newBenchAs(t *testing.T, e Endpoint, token hub.Token) *bench {
	t.Helper()
	b := &bench{t: t, work: filepath.Join(t.TempDir(), "work"), clock: &testClock{now: time.Now()}, strict: true,
		token: secrets.New("github_pat_11GITHUB00" + strings.Repeat("g", 60))}
	var rest, git http.Handler
	b.world = newWorld(t, b.aborted(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		isREST := r.Host == e.APIHost() && (e.APIHost() != e.Host() || strings.HasPrefix(r.URL.Path, "/api/"))
		switch auth := r.Header.Get("Authorization"); {
		case isREST && auth == "Bearer "+secrets.GitHubServicePlaceholder:
			r.Header.Set("Authorization", "Bearer "+b.token.Reveal())
			rest.ServeHTTP(rw, r)
		case !isREST && r.Host == e.Host() && auth == strings.TrimPrefix(b.client.gitAuth(), "Authorization: "):
			r.SetBasicAuth("x-access-token", b.token.Reveal())
			git.ServeHTTP(rw, r)
		default:
			t.Errorf("%s %s%s came with another credential than the placeholder: %d characters", r.Method, r.Host, r.URL.Path, len(auth))
			http.Error(rw, "no", http.StatusForbidden)
		}
	})))
	spec, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{Dir: t.TempDir(), Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	b.Hub, rest, git = h, h.API(), h.Git()
	b.git("", "init", "-q", "-b", "main", b.work)
	b.write("README.md", "# hello\n")
	b.write("src/a.go", "package a\n")
	b.write("run.sh", "echo\n")
	b.commit("first")
	b.base = b.git(b.work, "rev-parse", "HEAD")
	if err := h.AddRepo(t.Context(), hub.RepoSpec{Owner: "octo", Name: "app", Private: true, From: b.work}); err != nil {
		t.Fatal(err)
	}
	h.AddToken(b.token, token)
	b.client = NewClient(b.world, e, WithClock(b.clock.clock()), WithVersion("test"))
	t.Cleanup(func() {
		b.client.Close()
		if v := h.Violations(); b.strict && len(v) != 0 {
			t.Errorf("violations of GitHub's description: %q", v)
		}
		if left := glob(t, b.world, "sbxpair-*"); len(left) != 0 {
			t.Errorf("left in the sandbox: %v", left)
		}
		if n := b.live.Load(); n != 0 {
			t.Errorf("%d execs still run", n)
		}
	})
	return b
}

var repoApp = Repo{"octo", "app"}

// git runs git on the host, as the work of an agent.
func (b *bench) git(dir string, args ...string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.test", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.test"}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("git %v: %v %s", args, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	file := filepath.Join(b.work, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) commit(message string) string {
	b.t.Helper()
	b.git(b.work, "add", "-A")
	b.git(b.work, "commit", "-q", "--allow-empty", "-m", message)
	return b.git(b.work, "rev-parse", "HEAD")
}

// bundle makes the bundle of base..HEAD with one ref, as package workspace does.
func (b *bench) bundle() []byte {
	b.t.Helper()
	b.git(b.work, "update-ref", "refs/heads/sbxpair/r1", "HEAD")
	file := filepath.Join(b.t.TempDir(), "bundle")
	b.git(b.work, "bundle", "create", "-q", file, "refs/heads/sbxpair/r1", "^"+b.base)
	out, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// delivery describes the delivery of what is committed.
func (b *bench) delivery() Delivery {
	b.t.Helper()
	d := Delivery{
		Run: "r1", Repo: repoApp, Base: b.base, BaseBranch: "main", Head: b.git(b.work, "rev-parse", "HEAD"), Branch: "sbxpair/r1",
		Title: "Fix it", Body: "What was done.", Comment: "It took a minute.", Bounds: DefaultBounds(repoApp, "main"),
	}
	if d.Head != d.Base {
		d.Bundle = bytes.NewReader(b.bundle())
	}
	return d
}

func (b *bench) deliver(change ...func(*Delivery)) (Delivered, error) {
	b.t.Helper()
	d := b.delivery()
	for _, f := range change {
		f(&d)
	}
	return Deliver(b.t.Context(), b.world, b.client, d)
}

// state is what a delivery should have left, whatever happened on the way.
func (b *bench) checkDelivered(got Delivered) {
	b.t.Helper()
	refs, err := b.Refs(b.t.Context(), "octo/app")
	if err != nil {
		b.t.Fatal(err)
	}
	if refs["refs/heads/sbxpair/r1"] != got.Head || got.Head == "" {
		b.t.Errorf("branch stands at %q, want %q", refs["refs/heads/sbxpair/r1"], got.Head)
	}
	pulls, err := b.Pulls(b.t.Context(), "octo/app")
	if err != nil {
		b.t.Fatal(err)
	}
	if len(pulls) != 1 || pulls[0].Title != "Fix it" || pulls[0].Head != "sbxpair/r1" || pulls[0].Base != "main" ||
		pulls[0].Number != got.PullRequest.Number || !strings.HasPrefix(pulls[0].Body, "What was done.") || !strings.Contains(pulls[0].Body, "run=r1") {
		b.t.Errorf("pull requests %+v", pulls)
	} else if len(pulls[0].Comments) != 1 || !strings.HasPrefix(pulls[0].Comments[0], "It took a minute.") {
		b.t.Errorf("comments %q", pulls[0].Comments)
	}
}
