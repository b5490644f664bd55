//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/demo/repo"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/fixtures/github/openapi"
	"github.com/sbxpair/sbxpair/fixtures/model"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/secrets"
)

// description reads GitHub's description once for all stages: it takes longer than all else that a stage needs.
var description = sync.OnceValues(openapi.Load)

// open sets a stage for the race-built command of this test binary. The engine and the Copilot CLI are the ones that
// make builds and installs.
func open(t *testing.T, opts stage.Options) *stage.Stage {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if opts.Sbxpair, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	opts.Dir, opts.Engine, opts.Copilot = t.TempDir(), filepath.Join(root, "bin", "sbx-local"), filepath.Join(root, ".cache", "copilot")
	if opts.Spec, err = description(); err != nil {
		t.Fatal(err)
	}
	opts.Env = append(opts.Env, beCommand+"=1", "GORACE=atexit_sleep_ms=0")
	if opts.Config == nil { // one session, one attempt: what the other phases do has tests of its own
		opts.Env = append(opts.Env, "SBXPAIR_PHASES=execute,verify", "SBXPAIR_LIMITS_REVISIONS=0")
	}
	s, err := stage.Open(t.Context(), opts)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err) // make test builds and installs what is missing
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		for _, problem := range s.Left(ctx, io.Discard) {
			t.Error(problem)
		}
		if err := s.Standin.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// outcome is how a call of the command ended.
type outcome struct {
	code           int
	stdout, stderr string
	peak           int64 // bytes of memory that the process had at most
}

// sbxpair runs the command to its end.
func sbxpair(t *testing.T, s *stage.Stage, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := s.Command(ctx, append([]string{"--config", s.Config}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("sbxpair %s: %v", args[0], err)
	}
	over, peak := make(chan struct{}), make(chan int64)
	go func() { peak <- highWater(cmd.Process.Pid, over) }()
	err := cmd.Wait()
	close(over)
	got := outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(), <-peak}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("sbxpair %s: %v\n%s", args[0], err, stderr.String())
	}
	return got
}

// highWater is the most memory that a process had, in bytes, looked at until it is over. What the kernel tells of one that has
// ended (ru_maxrss) includes what its parent had at the time of the fork.
func highWater(pid int, over <-chan struct{}) (most int64) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // none once it has ended
		if _, rest, found := strings.Cut(string(text), "VmHWM:"); found {
			var kib int64
			fmt.Sscan(rest, &kib)
			most = max(most, kib<<10)
		}
		select {
		case <-tick.C:
		case <-over:
			return most
		}
	}
}

func (o outcome) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d", o.code, code)
	}
	for _, text := range texts {
		if !strings.Contains(o.stdout+o.stderr, text) {
			t.Errorf("nothing says %q", text)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s", o.stdout, o.stderr)
	}
}

func runArgs(s *stage.Stage) []string {
	return []string{"run", "--json", "--repo", stage.FullName, "--dir", s.Work, repo.Task}
}

// The demo's run: a failing repository goes in, a draft pull request with the fix comes out, and nothing is left.
func TestRunEndToEnd(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	got := sbxpair(t, s, runArgs(s)...)
	got.want(t, 0)
	for _, problem := range s.Result(t.Context()) {
		t.Error(problem)
	}
	var result loop.Result
	if err := json.Unmarshal([]byte(got.stdout), &result); err != nil {
		t.Fatalf("result: %v\n%s", err, got.stdout)
	}
	if !result.Delivered.Draft || result.Delivered.Number == 0 || result.Agent.Turns != 4 || result.Agent.Input == 0 || len(result.Verified) != 1 {
		t.Errorf("result %+v", result)
	}
	log, err := os.Open(result.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	list, head, err := events.Read(log)
	if err != nil || list[len(list)-1].Type != (events.RunEnded{}).Kind() {
		t.Fatalf("event log: %d events, %v", len(list), err)
	}
	var receipt loop.Receipt
	text, err := os.ReadFile(filepath.Join(result.Dir, "receipt.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &receipt); err != nil || receipt.LogHead != head || receipt.LogEvents != int64(len(list)) {
		t.Errorf("the receipt pins %d events with head %s, the log has %d with %s (%v)", receipt.LogEvents, receipt.LogHead, len(list), head, err)
	}
	// The calls of one pair, on an engine whose policy is set up already: the design allows twelve.
	second := sbxpair(t, s, runArgs(s)...)
	second.want(t, 0)
	if n := engineCalls(t, second); n > 12 {
		t.Errorf("a pair cost %d engine calls", n)
	}
}

func engineCalls(t *testing.T, o outcome) int {
	t.Helper()
	var result loop.Result
	if err := json.Unmarshal([]byte(o.stdout), &result); err != nil {
		t.Fatal(err)
	}
	log, err := os.Open(result.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	list, _, err := events.Read(log)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list {
		if e.Type == (events.EngineCall{}).Kind() {
			n++
			t.Logf("engine call %s", e.Data)
		}
	}
	return n
}

// The other strategy: a placeholder of our own, the value from a private file that is gone afterwards.
func TestRunWithCustomSecret(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{Env: []string{"SBXPAIR_AGENT_STRATEGY=custom"}})
	sbxpair(t, s, runArgs(s)...).want(t, 0)
	for _, problem := range s.Result(t.Context()) {
		t.Error(problem)
	}
}

// The credential itself in the sandbox, because somebody said so: every result says it too, and nothing of it stays.
func TestRunWithPlainEnv(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{Env: []string{"SBXPAIR_AGENT_STRATEGY=plain-env"}})
	args := runArgs(s)
	got := sbxpair(t, s, append([]string{args[0]}, args[2:]...)...) // without --json
	got.want(t, 0, "readable by everything there (plain-env)")
	for _, problem := range s.Result(t.Context()) {
		t.Error(problem)
	}
}

// SIGINT in each phase of a run: the exit code says so, and nothing is left (the stage looks).
func TestInterruptInEachPhase(t *testing.T) {
	t.Parallel()
	for _, phase := range events.Phases() {
		if phase == events.PhasePreflight || phase == events.PhaseGate {
			continue // over before a signal can be aimed at them: preflight makes nothing, gate takes no time
		}
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			s := open(t, stage.Options{})
			if phase == events.PhasePlan || phase == events.PhaseReview {
				s.Env = append(s.Env, "SBXPAIR_PHASES=plan,execute,review")
			}
			args := runArgs(s)
			if phase == events.PhaseTask {
				if _, err := s.Hub.AddIssue(stage.FullName, repo.Owner, "Too many dashes", repo.Task); err != nil {
					t.Fatal(err)
				}
				args = append(args[:len(args)-1], "--issue", "1")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd, stderr, ended := start(ctx, t, s, args...)
			if err := awaitPhase(ctx, s.State, phase, ended); err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			// To the whole group, as a terminal does: the engine's processes must not die of it before they are told to.
			syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
			<-ended
			code := cmd.ProcessState.ExitCode()
			want := 130
			if phase == events.PhaseRelease {
				want = 0 // the work was done; the release goes on
			}
			if code != want && !(phase == events.PhaseRelease && code == 130) {
				t.Errorf("exit code %d, want %d\n%s", code, want, stderr.String())
			}
		})
	}
}

// startRun starts a run as start does.
func startRun(ctx context.Context, t *testing.T, s *stage.Stage) (cmd *exec.Cmd, stderr *bytes.Buffer, ended <-chan error) {
	t.Helper()
	return start(ctx, t, s, runArgs(s)...)
}

// start starts the command in a process group of its own and does not wait for it: ended gets its end, after which stderr may be
// read.
func start(ctx context.Context, t *testing.T, s *stage.Stage, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer, ended <-chan error) {
	t.Helper()
	cmd, stderr = s.Command(ctx, append([]string{"--config", s.Config}, args...)...), &bytes.Buffer{}
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	return cmd, stderr, done
}

// awaitPhase returns when the event log of the only run says that phase has started.
func awaitPhase(ctx context.Context, state string, phase events.Phase, ended <-chan error) error {
	started := []byte(fmt.Sprintf(`"type":"phase.started","data":{"phase":%q`, phase))
	return await(ctx, "phase "+string(phase), ended, func() bool {
		logs, _ := filepath.Glob(filepath.Join(state, "sbxpair", "runs", "*", "events.jsonl")) // the pattern is well formed
		return slices.ContainsFunc(logs, func(log string) bool {
			text, err := os.ReadFile(log)
			return err == nil && bytes.Contains(text, started)
		})
	})
}

// awaitSession returns when the agent of the only run works in phase: its transcript has begun, a moment after the phase has.
func awaitSession(ctx context.Context, state string, phase events.Phase, ended <-chan error) error {
	return await(ctx, "the session of "+string(phase), ended, func() bool {
		transcripts, _ := filepath.Glob(filepath.Join(state, "sbxpair", "runs", "*", "transcripts", "*-"+string(phase)+".jsonl"))
		return len(transcripts) > 0
	})
}

// await polls until reached says so. What it waits for is named in the errors: the run ended first, or the context did.
func await(ctx context.Context, what string, ended <-chan error, reached func() bool) error {
	for !reached() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not reached: %w", what, ctx.Err())
		case err := <-ended:
			return fmt.Errorf("the run ended before %s: %w", what, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

// While a pair is up, neither token is in any process's environment or command line, nor in any file, of either sandbox; nor in what
// the host writes, the engine's own store of secrets aside.
func TestNoTokenAnywhere(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	args := runArgs(s)
	sbxpair(t, s, append([]string{args[0], "--keep"}, args[1:]...)...).want(t, 0)
	known := secrets.NewRedactor(s.Tokens...)
	for _, role := range []string{"agent", "github"} {
		inside := sbxpair(t, s, "exec", "--role", role, "--", "sh", "-c",
			`env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; find / -xdev \( -path /proc -o -path /sys -o -path /usr -o -path /opt \) -prune -o -type f -size -4096k -print0 2>/dev/null | xargs -0 cat 2>/dev/null; ls -laR /home /tmp /run /var 2>/dev/null; true`)
		inside.want(t, 0, "SANDBOX_NAME")
		if known.Contains([]byte(inside.stdout)) || known.Contains([]byte(inside.stderr)) {
			t.Errorf("a token shows inside the %s sandbox", role)
		}
	}
	store := 0
	err := filepath.WalkDir(s.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // sockets, and folders that went away meanwhile
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		if known.Contains(text) {
			if info, _ := entry.Info(); info.Mode().Perm() == 0o600 && strings.Contains(path, "/sbx-local/secrets/") {
				store++ // the engine has to keep the value somewhere: outside the sandboxes, for its owner only
				return nil
			}
			t.Errorf("a token is in %s", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if store == 0 {
		t.Error("the engine's store was not seen: the search looks in the wrong place")
	}
	for _, name := range hostCommandLines(t) {
		if known.Contains([]byte(name)) {
			t.Error("a token is on a command line of the host")
		}
	}
	sbxpair(t, s, "down", "--all").want(t, 0)
}

func hostCommandLines(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			lines = append(lines, string(text))
		}
	}
	return lines
}

// The verbs that take the steps one at a time.
func TestStepByStep(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	text, err := os.ReadFile(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("resolve:"), []byte("resolve:\n        "+grantable+": 127.0.0.1:9"), 1)
	if err := os.WriteFile(s.Config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	sbxpair(t, s, "plan", "--repo", stage.FullName, "--dir", s.Work).want(t, 0, "/repos/octo/slugify/**", "policy init", "15 engine calls")
	if ls := sbxpair(t, s, "ls", "--all"); ls.stdout != "" {
		t.Errorf("plan made something: %q", ls.stdout)
	}
	up := sbxpair(t, s, "up", "--repo", stage.FullName, "--dir", s.Work)
	up.want(t, 0)
	run := strings.TrimSpace(up.stdout)
	sbxpair(t, s, "ls").want(t, 0, run, "agent running", "github running", "gvisor")
	sbxpair(t, s, "exec", "--", "sh", "-c", "exit 42").want(t, 42)
	sbxpair(t, s, "exec", "--", "cat", "slugify.sh").want(t, 0, "sed")
	sbxpair(t, s, "exec", "--role", "github", "--", "ls", "-A").want(t, 0)
	sbxpair(t, s, "exec", "--", "no-such-program").want(t, 127, "no-such-program")
	sbxpair(t, s, "exec", "--", "echo", "--json", "-v", "--", "x").want(t, 0, "--json -v -- x") // R128
	note := filepath.Join(s.Dir, "note.txt")
	if err := os.WriteFile(note, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	sbxpair(t, s, "cp", note, "agent:/tmp/note.txt").want(t, 0)
	sbxpair(t, s, "exec", "--", "cat", "/tmp/note.txt").want(t, 0, "hello")
	sbxpair(t, s, "cp", "agent:/tmp/note.txt", filepath.Join(s.Dir, "back.txt")).want(t, 0)
	if text, err := os.ReadFile(filepath.Join(s.Dir, "back.txt")); err != nil || string(text) != "hello" {
		t.Errorf("copied back %q, %v", text, err)
	}
	shell(t, s)
	grants(t, s, run)
	sbxpair(t, s, "github", "issue", "create", "--title", "An issue", "--body", "With text").want(t, 0, "/issues/1")
	sbxpair(t, s, "github", "comment", "--number", "1", "--body", "A comment").want(t, 0, "#issuecomment")
	sbxpair(t, s, "github", "comment", "--number", "99", "--body", "x").want(t, 1, "404 Not Found")
	sbxpair(t, s, "doctor", "-C", s.Work).want(t, 0, "ok", "engine")
	sbxpair(t, s, "credential", "rotate", run).want(t, 0, "replaced the github sandbox's credential; asked from inside: accepted")
	joined, elsewhere := *s, *s // neither may get what is the other's, or what is for another place
	joined.Env = append(slices.Clone(s.Env), "GH_TOKEN="+s.Tokens[0].Reveal())
	sbxpair(t, &joined, "credential", "rotate", run).want(t, 5, "hold the same token")
	elsewhere.Env = append(slices.Clone(s.Env), "SBXPAIR_GITHUB_HOST=ghe.example.com", "SBXPAIR_AGENT_PROVIDER=openai", "SBXPAIR_AGENT_NAME=opencode")
	sbxpair(t, &elsewhere, "credential", "rotate", run).want(t, 2, "the pair is for github.com")
	sbxpair(t, &elsewhere, "credential", "rotate", run, "--role", "agent").want(t, 2, "its token is of no use there")
	sbxpair(t, s, "credential", "remove", run, "--role", "agent").want(t, 0, "removed the agent sandbox's credential")
	sbxpair(t, s, "exec", "--", "curl", "-s", "-H", "Authorization: Bearer "+secrets.GitHubPATPlaceholder, "https://api.github.com/copilot_internal/user").want(t, 0, "not bound")
	sbxpair(t, s, "prune", "--force").want(t, 0, "nothing to prune") // it was left in place on purpose
	sbxpair(t, s, "down", run).want(t, 0, "removed "+run)
	sbxpair(t, s, "down", run).want(t, 2, "closed")
	if ls := sbxpair(t, s, "ls"); ls.stdout != "" {
		t.Errorf("ls after down: %q", ls.stdout)
	}
	for _, problem := range s.Standin.Report().Problems() {
		t.Error(problem)
	}
}

// grants opens a host to the agent sandbox of a pair in place, sees that it is open, and closes it again. Nothing listens
// there: what tells the policy's answer from the host's is the block page.
func grants(t *testing.T, s *stage.Stage, run string) {
	t.Helper()
	ask := func() string {
		return sbxpair(t, s, "exec", "--", "curl", "-s", "--max-time", "20", "https://"+grantable+"/").stdout
	}
	if said := ask(); !strings.Contains(said, grantable) {
		t.Errorf("before the grant: %q, want the block page", said)
	}
	sbxpair(t, s, "grant", run).want(t, 0, "refused "+grantable+":443", "sbxpair grant "+run)
	sbxpair(t, s, "policy", "learn", run).want(t, 0, "+ "+grantable+":443 (agent, 1 time)", "with the addition 1 of", "allow: [\""+grantable+":443\"]")
	sbxpair(t, s, "grant", run, "github.com").want(t, 6, "belongs to the github sandbox")
	sbxpair(t, s, "grant", run, grantable+":443", "--dry-run").want(t, 0, "would be granted "+grantable)
	sbxpair(t, s, "grant", run, grantable+":443").want(t, 0, "granted "+grantable)
	sbxpair(t, s, "revoke", run, "--dry-run").want(t, 0, "would be revoked "+grantable)
	sbxpair(t, s, "policy", "explain", "--run", run, grantable).want(t, 0, "agent: allowed", "layer   grant", "github: denied")
	if said := ask(); strings.Contains(said, "policy") {
		t.Errorf("after the grant: %q", said)
	}
	sbxpair(t, s, "revoke", run).want(t, 0, "revoked "+grantable)
	if said := ask(); !strings.Contains(said, grantable) {
		t.Errorf("after the revocation: %q, want the block page", said)
	}
}

// grantable is a host that nobody may reach at first.
const grantable = "docs.example.com"

// shell opens a shell on a terminal, sees that it is one, and leaves it with a code.
func shell(t *testing.T, s *stage.Stage) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := s.Command(ctx, "--config", s.Config, "shell")
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if _, err := terminal.WriteString("test -t 0 && echo 'on a 'terminal; exit 5\n"); err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(terminal) // ends with EIO when the other side closes
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 5 || !bytes.Contains(said, []byte("on a terminal")) {
		t.Errorf("shell: exit code %d, want 5\n%s", code, said)
	}
	if bytes.Contains(said, []byte("\x1b]1")) {
		t.Errorf("the terminal was asked for its colours: %q", said)
	}
}

// After SIGKILL the lease is what is left; prune takes the pair down, and only then.
func TestPruneAfterKill(t *testing.T) { t.Parallel(); t.Run("R088", pruneAfterKill) }

func pruneAfterKill(t *testing.T) {
	s := open(t, stage.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd, stderr, ended := startRun(ctx, t, s)
	if err := awaitPhase(ctx, s.State, events.PhaseExecute, ended); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	sbxpair(t, s, "prune", "--force").want(t, 0, "nothing to prune") // its owner lives
	cmd.Process.Kill()
	<-ended
	sbxpair(t, s, "ls").want(t, 0, "orphaned")
	sbxpair(t, s, "prune").want(t, 2, "nothing removed") // no terminal: the answer is no
	sbxpair(t, s, "prune", "--force").want(t, 0, "is dead")
}

// The proxy is killed while the agent works: the run ends with its own outcome or gets over it, and leaves nothing.
func TestKilledProxy(t *testing.T) {
	t.Parallel()
	s := open(t, stage.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd, stderr, ended := startRun(ctx, t, s)
	if err := awaitPhase(ctx, s.State, events.PhaseExecute, ended); err != nil {
		t.Fatal(err)
	}
	pid := daemon(t, s)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 1 && code != 4 {
		t.Errorf("exit code %d, want done, failed or engine trouble\n%s", code, stderr.String())
	}
	t.Logf("exit code %d\n%s", cmd.ProcessState.ExitCode(), stderr.String())
}

// daemon returns the process id of the stage's engine daemon.
func daemon(t *testing.T, s *stage.Stage) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		cmdline, _ := os.ReadFile(file)
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if bytes.Contains(cmdline, []byte("sbx-local\x00daemon")) && bytes.Contains(environ, []byte("XDG_STATE_HOME="+s.State)) {
			var pid int
			fmt.Sscanf(file, "/proc/%d/cmdline", &pid)
			return pid
		}
	}
	t.Fatal("the engine has no daemon")
	return 0
}

// What the agent does or does not do decides the outcome, not its exit code.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		steps []model.Step
		code  int
		text  string
	}{
		"nothing done":        {[]model.Step{say("Looks fine to me.")}, 8, "nothing"},
		"verify fails":        {[]model.Step{bash("echo '# no fix' >> slugify.sh"), say("Done.")}, 1, "sh test.sh"},
		"workflow is touched": {[]model.Step{bash("mkdir -p .github/workflows; echo x > .github/workflows/x.yml; printf '#!/bin/sh\\nexit 0\\n' > test.sh"), say("Done.")}, 6, ".github/workflows/x.yml"},
		// The fix is in a file that .gitignore hides: it would not be delivered, so it must not count.
		"fix is hidden":      {[]model.Step{bash("cat slugify.sh > real.sh; " + fixWith("real.sh") + "; printf '#!/bin/sh\\nexec sh ./real.sh \"$@\"\\n' > slugify.sh; echo real.sh > .gitignore; sh test.sh"), say("Done.")}, 1, "sh test.sh"},
		"secret in a binary": {[]model.Step{bash(fixWith("slugify.sh") + "; printf 'github_pat_%022d_%059d\\0' 1 2 > data.bin"), say("Done.")}, 6, "data.bin"},
		// A process that hides from the search by environment swaps the file once the end state is taken.
		"swapped behind": {[]model.Step{bash("env -i setsid sh -c 'while ! ls -d /tmp/sbxpair-end.* >/dev/null 2>&1; do sleep 0.05; done; " + "sleep 0.3; cd $PWD; sed -i s/+/x/ test.sh' >/dev/null 2>&1 &"), say("Done.")}, 8, "nothing"},
		"escapes":        {[]model.Step{bash("printf '#!/bin/sh\\nprintf \"\\\\033]0;pwned\\\\007\"; exit 3\\n' > test.sh"), say("Done.")}, 1, "exit 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, stage.Options{Scripts: []model.Script{{Steps: tt.steps}}})
			got := sbxpair(t, s, runArgs(s)...)
			got.want(t, tt.code, tt.text)
			if strings.ContainsAny(got.stderr, "\x1b\a") {
				t.Errorf("control characters of the agent reach the terminal: %q", got.stderr)
			}
			if pulls, err := s.Hub.Pulls(t.Context(), stage.FullName); err != nil || len(pulls) != 0 {
				t.Errorf("%d pull requests, %v", len(pulls), err)
			}
		})
	}
}

// fixWith is a command that mends the demo's script in the file name.
func fixWith(name string) string {
	return `sed -i "s|sed 's/\[^a-z0-9\]/-/g'|sed -e 's/[^a-z0-9][^a-z0-9]*/-/g' -e 's/^-//' -e 's/-$//'|" ` + name
}

// What the agent committed on the way and took back again is not on the remote, nor are its messages and names.
func TestOnlyTheEndStateIsDelivered(t *testing.T) {
	t.Parallel()
	token := "github_pat_" + strings.Repeat("a", 22) + "_" + strings.Repeat("b", 59)
	work := "echo " + token + ` > k.txt; git add .; git -c user.name=Linus -c user.email=l@example.com commit -qm "Fixes #1 @everyone ` + token + `"; git rm -q k.txt; mkdir -p .github/workflows; echo x > .github/workflows/x.yml; git add .; git commit -qm two; git rm -qr .github; git commit -qm three; ` + fixWith("slugify.sh")
	s := open(t, stage.Options{Scripts: []model.Script{{Steps: []model.Step{
		{Calls: []model.Call{{Tool: "bash", Args: map[string]any{"command": work, "description": "work"}}}}, {Text: "Done."},
	}}}})
	sbxpair(t, s, runArgs(s)...).want(t, 0)
	dir, err := s.Hub.Dir(stage.FullName)
	if err != nil {
		t.Fatal(err)
	}
	all, err := exec.CommandContext(t.Context(), "sh", "-c", `git --git-dir="$1" log --all --format='%an %ae %B'; git --git-dir="$1" cat-file --batch-all-objects --batch`, "sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, all)
	}
	for _, text := range []string{token, "Linus", "@everyone", ".github"} {
		if bytes.Contains(all, []byte(text)) {
			t.Errorf("%q is on the remote", text)
		}
	}
}

// A pipe that its reader closes, and the two signals at once of timeout(1), do not keep a run from cleaning up.
func TestRudeCallers(t *testing.T) {
	t.Parallel()
	t.Run("closed pipe", rude(`"$@" 2>&1 | head -n 2`))
	t.Run("R079", rude(`"$@" & pid=$!; sleep 2; kill -TERM $pid; wait $pid`))
	t.Run("R083", rude(`timeout 4 "$@"`))
	t.Run("R101", rude(`"$@" & pid=$!; sleep 3; kill -HUP $pid; kill -HUP $pid; wait $pid`))
}

func rude(script string) func(*testing.T) {
	return func(t *testing.T) {
		s := open(t, stage.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		inner := s.Command(ctx, append([]string{"--config", s.Config}, runArgs(s)...)...)
		cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", script, "bash"}, inner.Args...)...)
		cmd.Args[4] = inner.Path
		cmd.Env = inner.Env
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, _ := cmd.CombinedOutput() // the stage looks for what is left
		t.Logf("%s", out)
		deadline := time.After(30 * time.Second)
		for { // head goes before sbxpair does
			if ls := sbxpair(t, s, "ls"); ls.stdout == "" {
				return
			}
			select {
			case <-deadline:
				t.Fatal("the run does not end")
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

// What goes wrong on GitHub has its own exit code, says what stands there already, and keeps the work.
func TestGitHubTrouble(t *testing.T) {
	t.Parallel()
	t.Run("token expires before the comment", func(t *testing.T) {
		t.Parallel()
		s := open(t, stage.Options{})
		s.Hub.Inject(hub.Fault{Kind: hub.Expired, Op: "issues/create-comment"})
		got := sbxpair(t, s, runArgs(s)...)
		got.want(t, 5, "pull/1")
		var result loop.Result
		if err := json.Unmarshal([]byte(got.stdout), &result); err != nil || result.Delivered.Number != 1 {
			t.Errorf("result %+v, %v; want the pull request that is there", result, err)
		}
		bundle := exec.CommandContext(t.Context(), "git", "-C", s.Work, "bundle", "verify", "--quiet", result.Work)
		if out, err := bundle.CombinedOutput(); err != nil {
			t.Errorf("the work is not kept: %v %s", err, out)
		}
	})
	t.Run("R055", func(t *testing.T) { // refused once in the middle of a run: given again, and not called a wrong token
		t.Parallel()
		s := open(t, stage.Options{})
		s.Hub.Inject(hub.Fault{Kind: hub.Expired, Op: "repos/get", Skip: 1, Times: 1})
		sbxpair(t, s, runArgs(s)...).want(t, 0, "both were given to the pair once more")
		for _, problem := range s.Result(t.Context()) {
			t.Error(problem)
		}
	})
	t.Run("token expires in the middle", func(t *testing.T) {
		t.Parallel()
		s := open(t, stage.Options{})
		s.Hub.Inject(hub.Fault{Kind: hub.Expired, Op: "repos/get", Skip: 1})
		got := sbxpair(t, s, runArgs(s)...)
		got.want(t, 5, "both were given to the pair once more", "expired or revoked", "sbxpair credential link")
		var result loop.Result
		if err := json.Unmarshal([]byte(got.stdout), &result); err != nil || result.Outcome != "credential expired" || result.Work == "" {
			t.Errorf("outcome %q, work %q, %v; want it to be its own outcome, and the work kept", result.Outcome, result.Work, err)
		}
	})
	t.Run("the answer holds the token", func(t *testing.T) {
		t.Parallel()
		s := open(t, stage.Options{})
		dir, err := s.Hub.Dir(stage.FullName)
		if err != nil {
			t.Fatal(err)
		}
		token := s.Tokens[1].Reveal()
		basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
		hook := filepath.Join(dir, "hooks", "pre-receive")
		if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(hook, []byte("#!/bin/sh\necho 'denied for "+token+"'\necho 'error: basic "+basic+"'\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		got := sbxpair(t, s, runArgs(s)...)
		os.Remove(hook)
		got.want(t, 6, secrets.Mask)
		if known := secrets.NewRedactor(s.Tokens...); known.Contains([]byte(got.stdout)) || known.Contains([]byte(got.stderr)) {
			t.Error("the token that GitHub's answer holds is shown")
		}
	})
	t.Run("base is not there", func(t *testing.T) {
		t.Parallel()
		s := open(t, stage.Options{})
		sbxpair(t, s, append(runArgs(s), "--base", "release")...).want(t, 2, `no branch "release"`)
		if n := len(s.Model.Calls()); n != 0 {
			t.Errorf("the model was called %d times for a result that cannot be delivered", n)
		}
	})
}

// Bad input ends with a clear error and the documented code, and leaves nothing.
func TestBadInput(t *testing.T) {
	t.Run("swapped tokens", func(t *testing.T) {
		s := open(t, stage.Options{})
		s.Env = append(s.Env, "COPILOT_GITHUB_TOKEN="+s.Tokens[1].Reveal(), "GH_TOKEN="+s.Tokens[0].Reveal())
		sbxpair(t, s, runArgs(s)...).want(t, 5, "credential refused", "agent sandbox", "github sandbox")
	})
	t.Run("a checkout that cannot be used", func(t *testing.T) {
		s := open(t, stage.Options{})
		elsewhere := t.TempDir()
		sbxpair(t, s, "run", "--repo", stage.FullName, "--dir", elsewhere, "x").want(t, 2, "try:")
		dirty := filepath.Join(s.Work, "slugify.sh")
		if err := os.WriteFile(dirty, []byte("changed"), 0o755); err != nil {
			t.Fatal(err)
		}
		sbxpair(t, s, runArgs(s)...).want(t, 2, "slugify.sh")
		sbxpair(t, s, append(runArgs(s), "--allow-dirty", "--base", "a..b")...).want(t, 2, "github.base")
		sbxpair(t, s, "run", "--repo", "a/b/c", "--dir", s.Work, "x").want(t, 2, "OWNER/NAME")
		sbxpair(t, s, append(runArgs(s), "--allow", "169.254.169.254")...).want(t, 2, "network.allow")
	})
	t.Run("no disk", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("mounting a small file system needs root")
		}
		s := open(t, stage.Options{})
		small := filepath.Join(s.Dir, "small")
		if err := os.Mkdir(small, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
			t.Fatal(err)
		}
		defer syscall.Unmount(small, syscall.MNT_DETACH)
		full := *s
		full.Env = append(slices.Clone(s.Env), "XDG_STATE_HOME="+small)
		sbxpair(t, &full, runArgs(s)...).want(t, 4, "no space left")
	})
	t.Run("no engine", func(t *testing.T) {
		s := open(t, stage.Options{Config: map[string]any{"engine": map[string]any{"kind": "sbx", "path": "/nowhere/sbx"}}})
		sbxpair(t, s, runArgs(s)...).want(t, 4, "sbx")
	})
	t.Run("a second run at the same time", func(t *testing.T) {
		s := open(t, stage.Options{})
		results := make(chan outcome, 2)
		for range 2 {
			go func() { results <- sbxpair(t, s, runArgs(s)...) }()
		}
		for range 2 {
			got := <-results
			got.want(t, 0)
		}
		if pulls, err := s.Hub.Pulls(t.Context(), stage.FullName); err != nil || len(pulls) != 2 {
			t.Errorf("%d pull requests, %v; want one for each run", len(pulls), err)
		}
	})
}
