package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/sbx"
)

// TestFieldReports holds the rows of the categories daemon and doctor that a doctor answers; what a single call does about
// them is in package sbx.
func TestFieldReports(t *testing.T) {
	t.Run("R075", func(t *testing.T) { // the daemon holds the agent, not the client
		b, pid := benchWithDaemon(t, "SSH_AUTH_SOCK=/run/user/1000/agent")
		want(t, b.examine(), "ssh.agent", Warn, "holds the agent socket, not this shell", fmt.Sprintf("process %d", pid), "sbx daemon restart")
		b, _ = benchWithDaemon(t)
		want(t, b.examine(), "ssh.agent", OK, "started without an agent")
	})
	t.Run("R174", func(t *testing.T) { // the proxy is the client's alone
		for held, verdict := range map[string]Verdict{"": Bad, "http://other.example:3128": Bad, "http://proxy.example:3128": OK} {
			b, _ := benchWithDaemon(t, "DOCKER_SANDBOXES_PROXY="+held)
			lookup := b.opts.Lookup
			b.opts.Lookup = func(name string) (string, bool) {
				if name == "DOCKER_SANDBOXES_PROXY" {
					return "http://proxy.example:3128", true
				}
				return lookup(name)
			}
			want(t, b.examine(), "engine.proxy", verdict)
		}
	})
	t.Run("R147", func(t *testing.T) { // files of the sandbox belong to the user
		write := func(owner int) *scratch {
			var s *scratch
			s = scratchOf(t, func([]string) (sbx.ExecResult, error) {
				dir := filepath.Join(s.dir, "made-inside")
				if err := os.Mkdir(dir, 0o700); err != nil {
					return sbx.ExecResult{Code: 1, Stderr: []byte(err.Error())}, nil
				}
				file := filepath.Join(dir, "file")
				if err := os.WriteFile(file, []byte("written\n"), 0o600); err != nil {
					return sbx.ExecResult{}, err
				}
				return sbx.ExecResult{}, os.Chown(file, owner, -1)
			})
			return s
		}
		s := write(os.Getuid())
		if c := s.question(t.Context(), "workspace", s.workspace); c.Verdict != OK {
			t.Errorf("%+v", c)
		}
		refused := scratchOf(t, func([]string) (sbx.ExecResult, error) {
			return sbx.ExecResult{Code: 1, Stderr: []byte("mkdir: cannot create directory: Permission denied")}, nil
		})
		if c := refused.question(t.Context(), "workspace", refused.workspace); c.Verdict != Bad || !strings.Contains(c.Detail, "Permission denied") {
			t.Errorf("%+v", c)
		}
		if os.Getuid() != 0 {
			t.Skip("files cannot be given to another user here")
		}
		s = write(1001)
		if c := s.question(t.Context(), "workspace", s.workspace); c.Verdict != Bad || !strings.Contains(c.Detail, "1001") {
			t.Errorf("%+v", c)
		}
	})
	t.Run("R239", func(t *testing.T) { // 3 h 42 min behind
		for offset, verdict := range map[time.Duration]Verdict{0: OK, -(3*time.Hour + 42*time.Minute): Bad, 20 * time.Second: Warn} {
			s := scratchOf(t, func([]string) (sbx.ExecResult, error) {
				at := time.Now().Add(offset)
				return sbx.ExecResult{Stdout: fmt.Appendf(nil, "%d.%09d\n", at.Unix(), at.Nanosecond())}, nil
			})
			c := s.question(t.Context(), "clock.agent", func(ctx context.Context) (Check, error) { return s.clock(ctx, s.pair.Agent) })
			if c.Verdict != verdict || offset < 0 && !strings.Contains(c.Detail, "3h42m0s behind") {
				t.Errorf("%s: %+v", offset, c)
			}
		}
	})
	t.Run("R240", func(t *testing.T) { // the free space is shown, and nothing of others is cleaned up
		b := newBench(t, "policy: deny-all")
		want(t, b.examine(), "host.disk", OK, "free at "+b.dir)
	})
	t.Run("R242", func(t *testing.T) { // few calls, and nothing is polled
		b := newBench(t, "policy: deny-all")
		b.examine()
		if len(b.calls) > 16 {
			t.Errorf("%d engine calls: %q", len(b.calls), b.calls)
		}
		if slices.ContainsFunc(b.calls, func(c string) bool { return strings.HasPrefix(c, "diagnose") }) {
			t.Error("diagnose is called, which contacts Docker's servers (sbx-releases#402)")
		}
	})
	t.Run("R247", func(t *testing.T) { // daemon status hangs: bounded, and says which command to run
		b := newBench(t, "policy: deny-all")
		b.opts.Limit = 100 * time.Millisecond
		b.before = func(ctx context.Context, c sbx.Cmd) (sbx.Result, error, bool) {
			if c.Args[0] != "daemon" {
				return sbx.Result{}, nil, false
			}
			<-ctx.Done()
			return sbx.Result{Code: -1}, ctx.Err(), true
		}
		want(t, b.examine(), "engine.daemon", Unknown, "could not check", "sbx daemon restart")
	})
	t.Run("R248", func(t *testing.T) { // every check passes and the agent's login fails: a shallow green is called shallow, the deep check is red
		if r := newBench(t, "policy: deny-all").examine(); r.Depth != Shallow || r.Err() != nil {
			t.Errorf("%s, %v", r.Depth, r.Err())
		}
		c := judgeLogin(events.Probe{Got: `401 "Bad credentials"`}, "https://api.example.com/user")
		if r := (Report{Depth: Deep, Checks: []Check{c}}); r.Err() == nil {
			t.Error("a refused login is green")
		}
	})
	t.Run("R249", func(t *testing.T) { // one finding for three wordings
		texts := map[string]string{
			"^ls":        "ERROR: failed to read credentials: The name org.freedesktop.secrets was not provided by any .service files",
			"^secret ls": "ERROR: failed to open secret store: dbus: couldn't determine address of session bus",
			"^policy":    "ERROR: save credentials: prompt dismissed",
		}
		script := "policy: deny-all\ncalls:\n"
		for match, text := range texts {
			script += fmt.Sprintf("  - {match: %q, stderr: %q, code: 1}\n", match, text+"\n")
		}
		r := newBench(t, script).examine()
		want(t, r, "engine.keyring", Bad, "no key store", "Secret Service")
		for _, c := range r.Checks {
			if c.ID != "engine.keyring" && c.ID != "engine" && c.Verdict == Bad {
				t.Errorf("%s is bad, too: %s", c.ID, c.Detail)
			}
			if c.Verdict == Unknown && c.Remedy != "" {
				t.Errorf("%s has a remedy of its own: %s", c.ID, c.Remedy)
			}
		}
	})
	t.Run("R250", func(t *testing.T) { // 401 is an answer: up, and wants a login
		c := judgeLogin(events.Probe{Got: `401 "Bad credentials"`}, "https://api.example.com/user")
		if c.Verdict != Bad || !strings.Contains(c.Detail, "is up") {
			t.Errorf("%+v", c)
		}
		r := newBench(t, `
policy: deny-all
calls: [{match: "^(ls|policy ls)", stderr: "ERROR: list local sandboxes: list runtimes: request failed: 401 Unauthorized: docker session has expired: refresh failed\n", code: 1}]`).examine()
		want(t, r, "engine", Bad)
		want(t, r, "engine.daemon", OK)
		want(t, r, "engine.login", Bad, "sbx login")
	})
	t.Run("R251", func(t *testing.T) { // could not check is neither green nor red, and is tried twice
		b := newBench(t, `
policy: deny-all
calls: [{match: "^policy check", stderr: "ERROR: ensure daemon: no answer\n", code: 125}]`)
		r := b.examine()
		want(t, r, "policy.github", Unknown, "could not check")
		if err := r.Err(); errors.Is(err, ErrRed) || !errors.Is(err, ErrUnsure) {
			t.Errorf("it ends with %v", err)
		}
		n := 0
		for _, c := range b.calls {
			if strings.HasPrefix(c, "policy check") {
				n++
			}
		}
		if n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
	t.Run("R252", func(t *testing.T) { // an empty listing is no drift of the format
		r := newBench(t, `
policy: deny-all
calls: [{match: "^ls", stdout: "No sandboxes found.\n"}]`).examine()
		want(t, r, "leftovers.pairs", OK)
		want(t, r, "engine.login", OK)
	})
	t.Run("R253", func(t *testing.T) { // no sandbox, and no sbx
		r := newBench(t, "").none().examine()
		want(t, r, "engine", Bad, "sbx is not on the path", "install")
		want(t, r, "host.git", OK)
		if r.Err() == nil {
			t.Error("it is green")
		}
		want(t, newBench(t, "policy: deny-all").examine(), "engine", OK, "sbx 0.47")
	})
	t.Run("R258", func(t *testing.T) { // no answer once, fine the second time
		for _, tt := range []struct {
			failures int
			want     Verdict
		}{{1, OK}, {1000, Unknown}} {
			b := newBench(t, "policy: deny-all")
			left := tt.failures
			b.before = func(_ context.Context, c sbx.Cmd) (sbx.Result, error, bool) {
				if c.Args[0] != "version" || left == 0 {
					return sbx.Result{}, nil, false
				}
				left--
				return sbx.Result{Code: -1, Killed: true}, nil, true
			}
			r := b.examine()
			want(t, r, "engine", tt.want)
			if _, err := os.Stat(memoryDir(b.dir)); err == nil {
				t.Error("something was remembered")
			}
		}
	})
	t.Run("R259", func(t *testing.T) { // one tool for each trust store
		type said struct {
			code           int
			stdout, stderr string
			want           Verdict
		}
		url := "https://api.example.com/user"
		for _, tt := range []struct {
			probe trustProbe
			said  []said
		}{
			{curlTrust(url), []said{{0, "answered 401", "", OK}, {60, "answered 000", "curl: (60) SSL certificate problem: unable to get local issuer certificate", Bad}, {28, "answered 000", "curl: (28) timed out", Unknown}, {127, "", "", Bad}}},
			{gitTrust(url), []said{{0, "abc\trefs/heads/main", "", OK}, {128, "", "fatal: could not read Username for 'https://x': terminal prompts disabled", OK}, {128, "", "fatal: unable to access 'https://x/': server certificate verification failed. CAfile: none CRLfile: none", Bad}}},
			{nodeTrust(url), []said{{0, "answered 200", "", OK}, {0, "answered by hand; fetch: ENOTFOUND", "", Warn}, {1, "", "SELF_SIGNED_CERT_IN_CHAIN", Bad}, {127, "", "", OK}}},
			{pythonTrust(url), []said{{0, "answered 200", "", OK}, {1, "", "<urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed>", Bad}}},
			{goTrust(), []said{{0, "go: reading https://example.com/x/@v/list: 403 Forbidden", "", OK}, {0, "go: Get \"https://example.com/x\": tls: failed to verify certificate: x509: certificate signed by unknown authority", "", Bad}, {0, "go: dial tcp: lookup gateway: no such host", "", Unknown}}},
		} {
			for _, s := range tt.said {
				c, _ := attempt(t.Context(), time.Second, tt.probe.name, func(context.Context) (Check, error) {
					return tt.probe.judge(s.code == 127, s.code, s.stdout, s.stderr)
				})
				if c.Verdict != s.want {
					t.Errorf("%s: %+v gives %s: %s", tt.probe.name, s, c.Verdict, c.Detail)
				}
			}
		}
	})
}

// benchWithDaemon is a bench whose daemon is a process that listens, started with these variables.
func benchWithDaemon(t *testing.T, env ...string) (*bench, int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("another process's environment cannot be seen on this system")
	}
	dir, err := os.MkdirTemp("", "daemon-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "d.sock")
	daemon := exec.CommandContext(t.Context(), os.Args[0])
	daemon.Env = append([]string{listenOn + "=" + socket}, env...)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Process.Kill(); daemon.Wait() })
	waitFor(t, func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return newBench(t, fmt.Sprintf("policy: deny-all\ncalls: [{match: \"^daemon status\", stdout: '{\"status\":\"running\",\"socket\":%q,\"logs\":\"/l\"}'}]", socket)), daemon.Process.Pid
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("timed out")
		case <-time.After(5 * time.Millisecond):
		}
	}
}
