package sbx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// TestFieldReports has the rows of the field reports that apply to a client of an engine. Those about processes are in
// TestFieldReportsProcesses.
func TestFieldReports(t *testing.T) {
	parse := func(t *testing.T, text string) []sbx.Sandbox {
		t.Helper()
		list, err := sbx.ParseSandboxes([]byte(text))
		ok(t, err)
		return list
	}
	answers := func(t *testing.T, verb string, res sbx.Result) *sbx.Client {
		return sbx.New("", v47(), canned{verb: res}.runner(t))
	}
	box := func(t *testing.T, version string, opts ...sbx.Option) (*engine, *sbx.Client) {
		e := newEngine(t, version)
		c := e.client(opts...)
		_, err := c.Create(t.Context(), sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: t.TempDir()}}})
		ok(t, err)
		return e, c
	}

	t.Run("R001", func(t *testing.T) {
		for _, head := range []string{"SANDBOX", "NAME   "} {
			got := parse(t, head+"  AGENT  STATUS   PORTS  WORKSPACE\nbox      shell  running         /w\n")
			if len(got) != 1 || got[0].Name != "box" || got[0].Status != sbx.StatusRunning || !slices.Equal(got[0].Workspaces, []string{"/w"}) || got[0].Ports != nil {
				t.Errorf("%+v", got)
			}
		}
	})
	t.Run("R002", func(t *testing.T) {
		long := strings.Repeat("x", 60)
		got := parse(t, "SANDBOX  AGENT  STATUS   WORKSPACE\nsix-ch   shell  running  /a\n"+long+"  shell  stopped  /b\n")
		if len(got) != 2 || got[0].Name != "six-ch" || got[1].Name != long || got[1].Status != sbx.StatusStopped || got[1].Workspaces[0] != "/b" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("R003", func(t *testing.T) {
		list, err := answers(t, "ls", says("", "template: bad\n", 1)).List(t.Context())
		if list != nil || err == nil || !strings.Contains(err.Error(), "template: bad") {
			t.Errorf("%v, %v", list, err)
		}
	})
	t.Run("R004", func(t *testing.T) {
		list, err := sbx.ParseSandboxes([]byte("{\"sandboxes\":[]}\n\n╭────╮\n│ Docker Sandboxes Update Available │\n╰────╯\nrun: brew upgrade sbx\n"))
		if err != nil || list == nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
		_, err = sbx.ParseSandboxes([]byte(`{"sandboxes":[]} canary {"sandboxes":[{"name":"x"}]}`))
		wantKinds(t, err, sbx.ErrMalformed)
		if strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "35 bytes") {
			t.Errorf("%v: want a byte count and not the content", err)
		}
	})
	t.Run("R005", func(t *testing.T) {
		if got := parse(t, "Starting sandboxd daemon...\n"+string(fixture(t, "ls-0.38.txt"))); len(got) != 2 {
			t.Errorf("%+v", got)
		}
		if got := parse(t, "Starting sandboxd daemon...\n"+string(fixture(t, "ls-0.47.json"))); len(got) != 2 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("R006", func(t *testing.T) { // that a registry must not forget is for its package; here: the sentence is an empty list
		if got := parse(t, "No sandboxes found"); got == nil || len(got) != 0 {
			t.Errorf("%#v", got)
		}
	})
	t.Run("R007", func(t *testing.T) {
		text := strings.ReplaceAll(string(fixture(t, "policy-ls-wide-0.39.txt")), "\n", "\n        \n")
		rules, err := sbx.ParseRules([]byte(text))
		if err != nil || len(rules) != 5 {
			t.Errorf("%d rules, %v", len(rules), err)
		}
	})
	t.Run("R008", func(t *testing.T) {
		list, err := sbx.ParseSecrets(fixture(t, "secret-ls-mixed.txt"))
		ok(t, err)
		if len(list) != 4 || list[2].Type != sbx.SecretCustom || strings.Contains(asJSON(t, list), "*****") {
			t.Errorf("%s", asJSON(t, list))
		}
	})
	t.Run("R009", func(t *testing.T) {
		got := parse(t, "\x1b[1mSANDBOX   STATUS\x1b[0m\r\n\x1b[1mbox       running\x1b[0m\r\n")
		if len(got) != 1 || got[0].Name != "box" || got[0].Status != sbx.StatusRunning {
			t.Errorf("%+v", got)
		}
	})
	t.Run("R010", func(t *testing.T) {
		got := parse(t, "SANDBOX   STATUS\na1        running\na2        Running\na3        stopped\na4        resuming\n")
		var states []string
		for _, s := range got {
			states = append(states, string(s.Status)+s.RawStatus)
		}
		if !slices.Equal(states, []string{"running", "running", "stopped", "unknownresuming"}) {
			t.Errorf("%q", states)
		}
	})
	t.Run("R011", func(t *testing.T) {
		list, err := sbx.ParseSecrets(append([]byte("Warning: -g is deprecated\n"), fixture(t, "secret-ls-service.txt")...))
		if err != nil || len(list) != 2 {
			t.Errorf("%v, %v", list, err)
		}
		e, c := box(t, "0.38")
		ok(t, c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "openai", Sandbox: "box", Value: secrets.New("canary-value")}))
		if i := slices.IndexFunc(e.calls(), func(l string) bool { return strings.HasPrefix(l, "secret set") }); !strings.Contains(e.calls()[i], "--sandbox box") {
			t.Errorf("old form on a version that has the new one: %q", e.calls()[i])
		}
	})
	t.Run("R018", func(t *testing.T) {
		env := sbx.Environ([]string{"LANG=fr_FR.UTF-8", "LC_MESSAGES=fr_FR.UTF-8", "LC_ALL=fr_FR.UTF-8", "LANGUAGE=fr", "HOME=/h"})
		if !slices.Equal(env, []string{"HOME=/h", "LANG=C", "LC_ALL=C"}) {
			t.Errorf("%q", env)
		}
		_, err := answers(t, "ls", says("", "Erreur : tout va mal\n", 1)).List(t.Context())
		wantKinds(t, err) // an error that shows it, of no kind
	})

	t.Run("R020", func(t *testing.T) {
		v, err := sbx.ParseVersion([]byte("Client Version:  v0.24.1 0123456789abcdef0123456789abcdef01234567\nServer Version:  v0.24.1 0123456789abcdef0123456789abcdef01234567\n"))
		ok(t, err)
		if v.Client.String() != "0.24.1" || v.Server.String() != "0.24.1" || v.Mismatch() {
			t.Errorf("%+v", v)
		}
	})
	t.Run("R021", func(t *testing.T) {
		for _, text := range []string{"sbx version: dev\n", "sbx version: nightly-20261101 0123\n", "sbx version: v0.48.0-nightly.20261101+0123 0123\n"} {
			var log warnings
			c := sbx.New("", canned{"version": says(text, "", 0), "ls": says(`{"sandboxes":[]}`, "", 0)}.runner(t), sbx.WithLogger(log.logger()))
			for range 3 {
				v, err := c.Version(t.Context())
				ok(t, err)
				if !v.Untested() || !v.Has(sbx.FeatureHTTPRules) {
					t.Errorf("%+v", v)
				}
			}
			_, err := c.List(t.Context())
			ok(t, err)
			if log.count() != 1 {
				t.Errorf("%q: %d warnings", text, log.count())
			}
		}
	})
	t.Run("R022", func(t *testing.T) {
		v := sbx.ParseSemver(" v0.33.0 0123456789abcdef0123456789abcdef01234567")
		if v.String() != "0.33.0" || v.Compare(sbx.ParseSemver("0.9.0")) <= 0 || sbx.ParseSemver("0.43.0-rc3").Compare(sbx.ParseSemver("0.43.0")) >= 0 {
			t.Errorf("%+v", v)
		}
		if v, err := sbx.ParseVersion([]byte("sbx 0.33.0-1~ubuntu.24.04~noble\n")); err == nil {
			t.Errorf("a package version was taken: %+v", v)
		}
	})

	t.Run("R103", func(t *testing.T) {
		gone := says("", string(fixture(t, "error-exec-not-found-0.39.txt")), 1)
		for name, tt := range map[string]struct {
			res  sbx.Result
			ls   string
			code int
			kind error
		}{
			"the command's 1":              {says("", "", 1), `{"sandboxes":[]}`, 1, nil},
			"no such sandbox":              {gone, `{"sandboxes":[]}`, 1, sbx.ErrNotFound},
			"the command says the same":    {gone, `{"sandboxes":[{"name":"demo-agent","status":"running"}]}`, 1, nil},
			"about another sandbox":        {says("", "ERROR: no sandbox named 'other'\n", 1), "", 1, nil},
			"with output before":           {says("x", string(fixture(t, "error-not-found-0.47.txt")), 1), "", 1, nil},
			"0.47":                         {says("", string(fixture(t, "error-not-found-0.47.txt")), 1), `{"sandboxes":[]}`, 1, sbx.ErrNotFound},
			"signed out":                   {says("", string(fixture(t, "error-not-authenticated-0.47.txt")), 1), "", 1, sbx.ErrNotSignedIn},
			"daemon fault in its frame":    {says("", string(fixture(t, "error-start-runtime-500.txt")), 1), "", 1, sbx.ErrEngine},
			"the command's own error line": {says("", "error: something of mine\n", 1), "", 1, nil},
		} {
			c := canned{"exec": tt.res, "ls": says(tt.ls, "", 0)}
			if tt.kind == sbx.ErrNotSignedIn {
				c["ls"] = tt.res
			}
			res, err := sbx.New("", v47(), c.runner(t)).Exec(t.Context(), "demo-agent", sbx.ExecSpec{Argv: []string{"grep", "x", "/dev/null"}})
			if res.Code != tt.code || !errors.Is(err, tt.kind) || tt.kind == nil && err != nil {
				t.Errorf("%s: code %d, %v", name, res.Code, err)
			}
		}
	})
	t.Run("R104", func(t *testing.T) {
		for _, res := range []sbx.Result{
			says("", "sh: dpkg: command not found\n", 127), says("", "curl: (22) The requested URL returned error: 404 Not Found\n", 22),
			says("", "bash: line 1: sandbox: not found\n", 1),
		} {
			got, err := answers(t, "exec", res).Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"x"}})
			if err != nil || got.Code != res.Code {
				t.Errorf("%d, %v", got.Code, err)
			}
		}
		// The engine's own: on standard output, 127.
		got, err := answers(t, "exec", says(string(fixture(t, "exec-launch-failure-stdout.txt")), "", 127)).Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"no-such-program"}})
		wantKinds(t, err, sbx.ErrLaunch)
		if launch, is := errors.AsType[*sbx.LaunchError](err); !is || launch.Code != 127 || got.Code != 127 || launch.Program != "no-such-program" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("R105", func(t *testing.T) {
		for _, code := range []int{0, 1, 42, 125, 126, 127, 130, 255} {
			got, err := answers(t, "exec", says("", "", code)).Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"x"}})
			if err != nil || got.Code != code {
				t.Errorf("%d: %d, %v", code, got.Code, err)
			}
		}
	})
	t.Run("R111", func(t *testing.T) {
		var sent []string
		c := sbx.New("", v47(), sbx.WithRunner(sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
			sent = c.Args
			return sbx.Result{}, nil
		})))
		argv := []string{"printf", "%s", "a\nb", `'"$HOME`, "-x", "--help"}
		_, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: argv})
		ok(t, err)
		if !slices.Equal(sent, append([]string{"exec", "box"}, argv...)) {
			t.Errorf("sent %q", sent)
		}
		// sbx refuses an empty item (0.38): a shell in the sandbox gets the whole, quoted.
		_, err = c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: append(argv, "")})
		ok(t, err)
		if want := []string{"exec", "box", "sh", "-c", `exec 'printf' '%s' 'a` + "\n" + `b' ''\''"$HOME' '-x' '--help' ''`}; !slices.Equal(sent, want) {
			t.Errorf("sent %q, want %q", sent, want)
		}
	})
	t.Run("R112", func(t *testing.T) { // variables come with the call, not from shell start files
		_, c := box(t, "0.47")
		res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"printenv", "X"}, Env: []sbx.EnvVar{{Name: "X", Value: "1"}}})
		if err != nil || string(res.Stdout) != "1\n" {
			t.Errorf("%q, %v", res.Stdout, err)
		}
	})
	t.Run("R113", func(t *testing.T) {
		e, c := box(t, "0.47")
		prompt := strings.Repeat("x", 1<<20)
		res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"cat"}, Stdin: strings.NewReader(prompt)})
		ok(t, err)
		if string(res.Stdout) != prompt {
			t.Errorf("%d bytes", len(res.Stdout))
		}
		if last := e.calls()[len(e.calls())-1]; last != "exec -i box cat" {
			t.Errorf("sent %.80q", last)
		}
	})
	t.Run("R115", func(t *testing.T) {
		e := newEngine(t, "0.39").script(`calls: [{match: "^exec", stderr: "ERROR: failed to start sandbox: start runtime: request failed: 500 Internal Server Error: failed to start runtime\n", code: 1}]`)
		_, err := e.client(vOf("0.39")).Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"true"}})
		wantKinds(t, err, sbx.ErrEngine)
		// The listing is asked whether the words were the command's own; the command is not tried again.
		if calls := e.calls(); len(calls) != 2 || !strings.HasPrefix(calls[0], "exec") || !strings.HasPrefix(calls[1], "ls") {
			t.Errorf("calls %q: no retries", calls)
		}
	})
	t.Run("R126", func(t *testing.T) {
		_, c := box(t, "0.47")
		res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"true"}, Timeout: 0})
		if err != nil || res.Code != 0 {
			t.Errorf("0 is none: %v", err)
		}
		_, err = c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"true"}, Timeout: -time.Second})
		wantKinds(t, err, sbx.ErrInvalid)
	})
	t.Run("R128", func(t *testing.T) {
		e, c := box(t, "0.47")
		e.script(`exec: [{match: "^python x.py -u me --help$", stdout: "ok"}]`)
		res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"python", "x.py", "-u", "me", "--help"}})
		if err != nil || string(res.Stdout) != "ok" {
			t.Errorf("%q, %v", res.Stdout, err)
		}
	})

	t.Run("R130", func(t *testing.T) {
		e, c := box(t, "0.35")
		e.script(`calls: [{match: "^cp "}]`)
		file := filepath.Join(t.TempDir(), "f")
		ok(t, os.WriteFile(file, []byte("x"), 0o644))
		wantKinds(t, c.CopyIn(t.Context(), "box", file, "/home/agent/f"), sbx.ErrNotApplied)
		e2, c2 := box(t, "0.47")
		e2.script(`calls: [{match: "^cp "}]`)
		wantKinds(t, c2.CopyOut(t.Context(), "box", "/home/agent/f", filepath.Join(t.TempDir(), "g")), sbx.ErrNotApplied)
	})
	t.Run("R131", func(t *testing.T) {
		e, c := box(t, "0.47")
		file := filepath.Join(t.TempDir(), "job")
		ok(t, os.WriteFile(file, []byte("x"), 0o600))
		ok(t, c.CopyIn(t.Context(), "box", file, "/home/agent/job"))
		calls := e.calls()
		if n := len(calls); n < 3 || !strings.HasPrefix(calls[n-2], "exec -i -u root -w / box sh -c ") || !strings.Contains(calls[n-2], "chown -h -R agent") {
			t.Errorf("calls %q: want the file given to the sandbox's user, mode unchanged, and looked at again", calls)
		}
	})
	t.Run("R133", func(t *testing.T) {
		_, c := box(t, "0.47")
		dir := t.TempDir()
		for _, p := range []string{"../../../../etc/passwd", "/home/agent/../../etc/passwd", "etc/passwd", "/", "/home/\x00"} {
			wantKinds(t, c.CopyOut(t.Context(), "box", p, filepath.Join(dir, "x")), sbx.ErrInvalid)
			if p != "/" {
				wantKinds(t, c.CopyIn(t.Context(), "box", dir, p), sbx.ErrInvalid)
			}
		}
	})
	t.Run("R134", func(t *testing.T) {
		e, c := box(t, "0.47")
		tree := filepath.Join(e.dir, "fs", "box", "tree")
		ok(t, os.MkdirAll(tree, 0o755))
		ok(t, os.WriteFile(filepath.Join(tree, "real"), []byte("x"), 0o644))
		for link, to := range map[string]string{"rel": "real", "dangling": "nowhere", "out": "/etc/passwd"} {
			ok(t, os.Symlink(to, filepath.Join(tree, link)))
		}
		dst := filepath.Join(t.TempDir(), "tree")
		ok(t, c.CopyOut(t.Context(), "box", "/tree", dst))
		for link, to := range map[string]string{"rel": "real", "dangling": "nowhere", "out": "/etc/passwd"} {
			if got, err := os.Readlink(filepath.Join(dst, link)); err != nil || got != to {
				t.Errorf("%s -> %q, %v: links stay links", link, got, err)
			}
		}
	})
	t.Run("R135", func(t *testing.T) {
		e, c := box(t, "0.47")
		dir := filepath.Join(t.TempDir(), "ignored")
		ok(t, os.Mkdir(dir, 0o755))
		ok(t, os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("*\n"), 0o644))
		ok(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o644))
		ok(t, c.CopyIn(t.Context(), "box", dir, "/home/agent/d"))
		e.script(`calls: [{match: "^cp "}]`)
		ok(t, os.MkdirAll(filepath.Join(e.dir, "fs", "box", "home", "agent", "empty"), 0o755))
		err := c.CopyIn(t.Context(), "box", dir, "/home/agent/empty")
		wantKinds(t, err, sbx.ErrNotApplied)
		if !strings.Contains(err.Error(), `file "ignored/.gitignore" of 2 bytes did not arrive`) {
			t.Errorf("%v: want it to name the files", err)
		}
	})
	t.Run("R141", func(t *testing.T) { // a path through links inside the root is the engine's to resolve
		_, c := box(t, "0.47")
		file := filepath.Join(t.TempDir(), "f")
		ok(t, os.WriteFile(file, []byte("x"), 0o644))
		ok(t, c.CopyIn(t.Context(), "box", file, "/var/run/f"))
	})
	t.Run("R143", func(t *testing.T) {
		e, c := box(t, "0.47")
		inside := filepath.Join(e.dir, "fs", "box", "f")
		ok(t, os.MkdirAll(filepath.Dir(inside), 0o755))
		ok(t, os.WriteFile(inside, []byte("x"), 0o644))
		dir := t.TempDir()
		ok(t, os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o644))
		ok(t, c.CopyOut(t.Context(), "box", "/f", filepath.Join(dir, "f")))
		i := slices.IndexFunc(e.calls(), func(l string) bool { return strings.HasPrefix(l, "cp ") })
		if !strings.HasPrefix(e.calls()[i], "cp box:/f "+filepath.Join(dir, ".sbx-cp-")) {
			t.Errorf("%q: want it staged beside the target", e.calls()[i])
		}
		entries, err := os.ReadDir(dir)
		ok(t, err)
		if b, err := os.ReadFile(filepath.Join(dir, "f")); len(entries) != 1 || string(b) != "x" || err != nil {
			t.Errorf("%v, %q, %v", entries, b, err)
		}
	})

	t.Run("R237", func(t *testing.T) {
		list, err := answers(t, "ls", says("", "ERROR: list local sandboxes: context deadline exceeded\n", 1)).List(t.Context())
		wantKinds(t, err, sbx.ErrDaemon)
		if list != nil {
			t.Error("an empty list")
		}
	})
	t.Run("R238", func(t *testing.T) {
		e := newEngine(t, "0.38").script(`calls: [{match: "^daemon restart", also: true, stderr: "ERROR: daemon process 4242 still runs\n", code: 1}]`)
		ok(t, e.client().DaemonRestart(t.Context())) // the message says no, the state says yes
		e = newEngine(t, "0.38").script(`calls: [{match: "^daemon restart", stderr: "ERROR: daemon process 4242 still runs\n", code: 1}]`)
		if err := e.client().DaemonRestart(t.Context()); err == nil || !strings.Contains(err.Error(), "4242") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("R240", func(t *testing.T) {
		text := "ERROR: failed to create sandbox: write /home/dev/.local/state/sandboxes/x: no space left on device"
		e := newEngine(t, "0.47").script(fmt.Sprintf(`calls: [{match: "^create", stderr: %q, code: 1}]`, text+"\n"))
		_, err := e.client().Create(t.Context(), sbx.CreateSpec{Name: "box"})
		wantKinds(t, err, sbx.ErrDiskFull)
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v: want the whole message", err)
		}
		for _, line := range e.calls() {
			if strings.HasPrefix(line, "prune") || strings.HasPrefix(line, "rm") || strings.HasPrefix(line, "reset") {
				t.Errorf("cleaned up: %s", line)
			}
		}
	})
	t.Run("R241", func(t *testing.T) {
		e := newEngine(t, "0.47").script(`calls: [{match: "^daemon start", stdout: "Daemon started (PID: 4242, socket: /s)\n"}]`)
		wantKinds(t, e.client(v47()).DaemonStart(t.Context()), sbx.ErrNotApplied)
		if n := len(e.calls()); n != 2 {
			t.Errorf("%d calls", n)
		}
	})
	t.Run("R247", func(t *testing.T) { // even the question after the daemon hangs
		e := newEngine(t, "0.47").script(`calls: [{match: "^daemon status", hang: true, deaf: true}]`)
		c := e.process(v47(), sbx.WithTimeouts(sbx.Timeouts{Version: 500 * time.Millisecond}))
		_, err := c.DaemonStatus(t.Context())
		wantKinds(t, err, sbx.ErrTimeout)
		if !strings.Contains(sbx.Hint(err), "sbx daemon restart") {
			t.Errorf("hint %q: want a command that does not ask the same again", sbx.Hint(err))
		}
	})
	t.Run("R249", func(t *testing.T) { // one finding for all wordings
		for _, text := range []string{
			"ERROR: The name org.freedesktop.secrets was not provided by any .service files",
			"ERROR: failed to store secret: dbus: couldn't determine address of session bus",
			"ERROR: save credentials: prompt dismissed",
		} {
			_, err := answers(t, "ls", says("", text, 1)).List(t.Context())
			wantKinds(t, err, sbx.ErrKeyring)
			if !strings.Contains(sbx.Hint(err), "Secret Service") {
				t.Errorf("hint %q", sbx.Hint(err))
			}
		}
	})
	t.Run("R251", func(t *testing.T) {
		for _, res := range []sbx.Result{says("", "ERROR: ensure daemon: no answer\n", 125), says("", "ERROR: ensure daemon: no answer\n", 1), says("Denied: x\n", "", 0)} {
			verdict, err := answers(t, "policy", res).PolicyCheck(t.Context(), "", "example.com")
			if err == nil {
				t.Errorf("%+v: could not check, and said so as a verdict: %+v", res, verdict)
			}
		}
		denied := sbx.Result{Stdout: fixture(t, "policy-check-deny-explicit-0.47.json"), Code: 1}
		verdict, err := answers(t, "policy", denied).PolicyCheck(t.Context(), "", "example.com")
		if err != nil || verdict.Allowed || !verdict.Explicit {
			t.Errorf("%+v, %v", verdict, err)
		}
	})
	t.Run("R252", func(t *testing.T) {
		for _, name := range []string{"ls-empty-0.23.txt", "ls-empty-0.34.txt", "ls-empty-0.38.txt", "ls-empty.json"} {
			if list, err := sbx.ParseSandboxes(fixture(t, name)); err != nil || list == nil || len(list) != 0 {
				t.Errorf("%s: %v, %v", name, list, err)
			}
		}
	})
	t.Run("R253", func(t *testing.T) { // no sandbox and no sbx: still an answer
		_, err := sbx.Locate(t.Context(), sbx.LocateOptions{LookPath: func(string) (string, error) { return "", os.ErrNotExist }})
		none, is := errors.AsType[*sbx.NoEngineError](err)
		if !is || len(none.Rejected) != 2 {
			t.Errorf("error %v", err)
		}
	})

	// Rows of other categories that this package has a part in.
	t.Run("R035", func(t *testing.T) {
		e, c := box(t, "0.47")
		e.script(`calls: [{match: "^policy deny", stdout: "Rule added to policy local (scope: sandbox:box): 0000 (bad.test [tcp,udp])\n"}]`)
		_, err := c.PolicyDeny(t.Context(), sbx.PolicyRule{Sandbox: "box", Resources: []string{"bad.test"}})
		wantKinds(t, err, sbx.ErrNotApplied)
	})
	t.Run("R047", func(t *testing.T) {
		value := secrets.New("canary-0123456789")
		e, c := box(t, "0.47")
		e.script(`calls: [{match: "^secret set", stdout: "got canary-0123456789\n", stderr: "ERROR: bad value canary-0123456789 and Y2FuYXJ5LTAxMjM0NTY3ODk=\n", code: 1}]`)
		for _, c := range []*sbx.Client{c, e.process(v47())} {
			err := c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: value})
			for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
				if strings.Contains(text, "canary") || strings.Contains(text, "Y2FuYXJ5") || !strings.Contains(text, "***") {
					t.Errorf("%s", text)
				}
			}
		}
	})
	t.Run("R048", func(t *testing.T) {
		e, c := box(t, "0.38")
		value := secrets.New("canary-value")
		ok(t, c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: value}))
		s := sbx.Secret{Type: sbx.SecretService, Sandbox: "box", Name: "github"}
		e.script(`calls: [{match: "^secret rm", stdout: "Delete selected secret? (y/N): Cancelled\n"}]`)
		wantKinds(t, c.SecretRemove(t.Context(), s), sbx.ErrPrompt)
		e.script(`calls: [{match: "^secret rm", stdout: "Deleted 0\n"}]`)
		wantKinds(t, c.SecretRemove(t.Context(), s), sbx.ErrNotApplied)
		e.script(`calls: [{match: "^secret set", stdout: "Overwrite? (y/N): Cancelled\n"}]`)
		wantKinds(t, c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: value}), sbx.ErrPrompt)
		e.script(``)
		ok(t, c.SecretRemove(t.Context(), s))
	})
	t.Run("R049", func(t *testing.T) {
		for _, text := range []string{"abc-value", "abc-value\n"} {
			e, c := box(t, "0.47")
			ok(t, c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: secrets.New(text)}))
			if got := e.state().Secrets[0].SHA256; got != sha("abc-value") {
				t.Errorf("%q was stored as something else", text)
			}
		}
	})
	t.Run("R050", func(t *testing.T) {
		for _, text := range []string{"@abc-value", "-x-value", "--help", "-----BEGIN KEY-----\nab\ncd\n-----END KEY-----"} {
			e, c := box(t, "0.47")
			ok(t, c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: secrets.New(text)}))
			if got := e.state().Secrets[0].SHA256; got != sha(text) {
				t.Errorf("%q was stored as something else", text)
			}
		}
	})
	t.Run("R054", func(t *testing.T) {
		e, c := box(t, "0.47")
		e.script(`calls: [{match: "^secret set-custom", stderr: "error: list custom secrets: secret not found\n", code: 1}]`)
		_, err := c.SecretSetCustom(t.Context(), sbx.CustomSecret{Sandbox: "box", Env: "K", Hosts: []string{"a.example"}, Command: "/bin/x"})
		wantKinds(t, err, sbx.ErrSecretStore)
		if sbx.Hint(err) == "" {
			t.Error("no remedy")
		}
	})
	t.Run("R058", func(t *testing.T) {
		env := sbx.Environ([]string{"GH_TOKEN=canary", "GITHUB_MCP_SERVER_TOKEN=canary", "MY_GH_PAT=canary", "ANTHROPIC_API_KEY=canary", "SSH_AUTH_SOCK=/canary",
			"DOCKER_SANDBOXES_API_TOKEN=canary", "SBX_LOCAL_SECRET_X=canary", "SBX_LOCAL_STATE=/s", "HTTPS_PROXY=http://p", "PATH=/bin", "DOCKER_SANDBOXES_ROOT_SIZE=20G"})
		if strings.Contains(strings.Join(env, " "), "canary") || !slices.Contains(env, "SBX_LOCAL_STATE=/s") || !slices.Contains(env, "HTTPS_PROXY=http://p") ||
			!slices.Contains(env, "PATH=/bin") || !slices.Contains(env, "DOCKER_SANDBOXES_ROOT_SIZE=20G") {
			t.Errorf("%q", env)
		}
	})
	t.Run("R077", func(t *testing.T) {
		_, c := box(t, "0.47")
		wantKinds(t, c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Value: secrets.New("")}), sbx.ErrInvalid)
	})
	t.Run("R081", func(t *testing.T) {
		e := newEngine(t, "0.47").script(`calls: [{match: "^create", stderr: "error: failed to create sandbox: request failed: 500 Internal Server Error: container create: Error response from daemon: already exists\n", code: 1}]`)
		c := e.client()
		_, err := c.Create(t.Context(), sbx.CreateSpec{Name: "box"})
		wantKinds(t, err, sbx.ErrNameLeaked, sbx.ErrExists)
		ok(t, c.Remove(t.Context(), "box")) // not found is gone
		if n := len(e.calls()); n > 5 {     // an empty listing is asked about once more
			t.Errorf("%d calls", n)
		}
	})
	t.Run("R086", func(t *testing.T) {
		e := newEngine(t, "0.47")
		c := e.client()
		for _, name := range []string{"hey/all", "a b", "x*", "..", "", "-rf", "a", "default", "x-", strings.Repeat("x", 64), "a\nb", "ä-b"} {
			_, err := c.Create(t.Context(), sbx.CreateSpec{Name: name})
			wantKinds(t, err, sbx.ErrInvalid)
			if err := sbx.CheckName(name); !strings.Contains(err.Error(), "letters, digits") {
				t.Errorf("%v: want the allowed form", err)
			}
		}
		wantKinds(t, c.Remove(t.Context(), "--all"), sbx.ErrInvalid)
		wantKinds(t, c.Remove(t.Context()), sbx.ErrInvalid)
		if n := len(e.calls()); n != 0 {
			t.Errorf("%d calls", n)
		}
	})
	t.Run("R087", func(t *testing.T) {
		_, c := box(t, "0.47")
		ok(t, c.Remove(t.Context(), "box"))
		_, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"true"}})
		wantKinds(t, err, sbx.ErrNotFound)
	})
	t.Run("R089", func(t *testing.T) { // it was stopped meanwhile: exec starts it, and its line is not the command's output
		e, c := box(t, "0.47")
		ok(t, c.Stop(t.Context(), "box"))
		var streamed bytes.Buffer
		res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"echo", "hi"}, Stdout: &streamed})
		ok(t, err)
		if string(res.Stdout) != "hi\n" || streamed.String() != "hi\n" || e.state().Sandboxes[0].Status != "running" {
			t.Errorf("%q, %q", res.Stdout, streamed.String())
		}
	})
}
