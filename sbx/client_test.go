package sbx_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// sent gives a client whose calls are kept and answered with what reply says.
func sent(reply func(args []string) sbx.Result, opts ...sbx.Option) (*sbx.Client, *[][]string) {
	var mu sync.Mutex
	calls := &[][]string{}
	runner := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
		mu.Lock()
		*calls = append(*calls, c.Args)
		mu.Unlock()
		res := reply(c.Args)
		return result(c, res.Stdout, res.Stderr, res.Code)
	})
	return sbx.New("sbx", append([]sbx.Option{sbx.WithRunner(runner), v47()}, opts...)...), calls
}

func TestGlobalFlags(t *testing.T) {
	c, calls := sent(func([]string) sbx.Result { return says(`{"sandboxes":[]}`, "", 0) }, sbx.WithAppName("pair"), sbx.WithCloud())
	_, err := c.List(t.Context())
	ok(t, err)
	if !slices.Equal((*calls)[0], []string{"--app-name=pair", "--cloud", "ls", "--json"}) {
		t.Errorf("%q", *calls)
	}
	_, err = c.Create(t.Context(), sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: t.TempDir()}}})
	wantKinds(t, err, sbx.ErrInvalid) // a hosted sandbox has no host workspace
	_, err = sbx.New("", vOf("0.39"), sbx.WithCloud(), canned{}.runner(t)).Create(t.Context(), sbx.CreateSpec{Name: "box"})
	wantKinds(t, err, sbx.ErrUnsupported)
	if n := len(*calls); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// TestCreateArgs pins the command line of a create with everything.
func TestCreateArgs(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	spec := sbx.CreateSpec{
		Name: "box", Agent: "./kit", Workspaces: []sbx.Workspace{{Path: a}, {Path: b, ReadOnly: true}}, CPUs: 2, MemoryMiB: 2048,
		Template: "demo:v1", Pull: "never", Clone: true, Env: []sbx.EnvVar{{Name: "A", Value: "-x y"}}, DenyNetwork: []string{"a.example", "**.b.example"},
		Publish: []string{"8080", "127.0.0.1:1:2/tcp"}, Kits: []string{"./other"}, SkillsOff: true,
	}
	reply := func(args []string) sbx.Result {
		switch args[0] {
		case "ls":
			return says(`{"sandboxes":[{"name":"box","status":"running","workspaces":["`+filepath.ToSlash(a)+`","`+filepath.ToSlash(b)+`:ro"],"ports":[
				{"host_ip":"127.0.0.1","host_port":49201,"sandbox_port":8080,"protocol":"tcp4"},{"host_ip":"127.0.0.1","host_port":1,"sandbox_port":2,"protocol":"tcp"}]}]}`, "", 0)
		case "policy":
			return says(`{"rules":[{"id":"1","scope":"sandbox:box","resource_type":"network","decision":"deny","resources":["a.example","**.b.example"]}]}`, "", 0)
		}
		return says("", "", 0)
	}
	c, calls := sent(reply)
	_, err := c.Create(t.Context(), spec)
	ok(t, err)
	want := []string{
		"create", "--name", "box", "--cpus", "2", "--memory", "2048m", "--template=demo:v1", "--pull", "never", "--clone", "--env", "A=-x y",
		"--deny-network", "a.example", "--deny-network", "**.b.example", "--kit=./other", "--skills", "off", "--publish", "8080",
		"--publish", "127.0.0.1:1:2/tcp", "./kit", a, b + ":ro",
	}
	if !slices.Equal((*calls)[0], want) {
		t.Errorf("\ngot  %q\nwant %q", (*calls)[0], want)
	}
	local := sbx.WithVersion(sbx.Version{Engine: sbx.EngineLocal, Client: sbx.ParseSemver("v0.47.0")})
	c, calls = sent(reply, local)
	_, err = c.Create(t.Context(), sbx.CreateSpec{
		Name: "box", Workspaces: spec.Workspaces, SkillsOff: true,
		Local: sbx.LocalOptions{Resolve: map[string]string{"b.example:443": "127.0.0.1:2", "a.example": "127.0.0.1:1"}, UpstreamCA: "/ca.pem"},
	})
	ok(t, err)
	want = []string{"create", "--name", "box", "--resolve", "a.example=127.0.0.1:1", "--resolve", "b.example:443=127.0.0.1:2", "--upstream-ca=/ca.pem", "shell", a, b + ":ro"}
	if !slices.Equal((*calls)[0], want) {
		t.Errorf("\ngot  %q\nwant %q", (*calls)[0], want)
	}
}

// TestRefusedBeforeAnythingRuns has arguments that no engine may see.
func TestRefusedBeforeAnythingRuns(t *testing.T) {
	c, calls := sent(func([]string) sbx.Result { return says("", "", 0) })
	ctx, dir, value := t.Context(), t.TempDir(), secrets.New("canary-value")
	file := filepath.Join(dir, "x:ro")
	ok(t, os.WriteFile(file, nil, 0o600))
	at := func(w ...sbx.Workspace) sbx.CreateSpec { return sbx.CreateSpec{Name: "box", Workspaces: w} }
	create := func(s sbx.CreateSpec) error { _, err := c.Create(ctx, s); return err }
	run := func(s sbx.ExecSpec) error { _, err := c.Exec(ctx, "box", s); return err }
	rule := func(r sbx.PolicyRule) error { _, err := c.PolicyAllow(ctx, r); return err }
	custom := func(s sbx.CustomSecret) error { _, err := c.SecretSetCustom(ctx, s); return err }
	second := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"relative workspace":     create(at(sbx.Workspace{Path: "src"})),
		"read-only primary":      create(at(sbx.Workspace{Path: dir, ReadOnly: true})),
		"path that reads as :ro": create(at(sbx.Workspace{Path: file})),
		"agent":                  create(sbx.CreateSpec{Name: "box", Agent: "--help"}),
		"memory":                 create(sbx.CreateSpec{Name: "box", MemoryMiB: 100}),
		"cpus":                   create(sbx.CreateSpec{Name: "box", CPUs: -1}),
		"pull":                   create(sbx.CreateSpec{Name: "box", Pull: "sometimes"}),
		"variable":               create(sbx.CreateSpec{Name: "box", Env: []sbx.EnvVar{{Name: "A=B"}}}),
		"published port":         create(sbx.CreateSpec{Name: "box", Publish: []string{"--help"}}),
		"published port 0":       create(sbx.CreateSpec{Name: "box", Publish: []string{"0"}}),
		"unpublished port 0":     c.Unpublish(ctx, "box", sbx.Port{SandboxPort: 80}),
		"unpublished address":    c.Unpublish(ctx, "box", sbx.Port{HostIP: "x", HostPort: 80, SandboxPort: 80}),
		"unpublished protocol":   c.Unpublish(ctx, "box", sbx.Port{HostPort: 80, SandboxPort: 80, Protocol: "sctp"}),
		"two sources":            c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Value: value, Command: "/bin/x"}),
		"two dynamic sources":    c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Ref: "op://x", Command: "/bin/x"}),
		"relative source":        c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Command: "bin/x"}),
		"refreshed value":        c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Value: value, Refresh: "1h"}),
		"denied host":            create(sbx.CreateSpec{Name: "box", DenyNetwork: []string{"a,b"}}),
		"run without workspace":  second(c.Run(ctx, sbx.CreateSpec{Name: "box"})),
		"no command":             run(sbx.ExecSpec{}),
		"exec variable":          run(sbx.ExecSpec{Argv: []string{"x"}, Env: []sbx.EnvVar{{Name: "1"}}}),
		"exec directory":         run(sbx.ExecSpec{Argv: []string{"x"}, Dir: "rel"}),
		"exec user":              run(sbx.ExecSpec{Argv: []string{"x"}, User: "-x"}),
		"zero byte":              run(sbx.ExecSpec{Argv: []string{"x", "\x00"}}),
		"capture":                run(sbx.ExecSpec{Argv: []string{"x"}, MaxCapture: -1}),
		"preset":                 c.PolicyInit(ctx, "some"),
		"no resource":            rule(sbx.PolicyRule{}),
		"url":                    rule(sbx.PolicyRule{Resources: []string{"https://example.com"}}),
		"comma":                  rule(sbx.PolicyRule{Resources: []string{"a,b"}}),
		"lone star":              rule(sbx.PolicyRule{Resources: []string{"*"}}),
		"flag":                   rule(sbx.PolicyRule{Resources: []string{"--json"}}),
		"protocol":               rule(sbx.PolicyRule{Resources: []string{"a"}, Protocol: "icmp"}),
		"method":                 rule(sbx.PolicyRule{Resources: []string{"a"}, Methods: []string{"get"}}),
		"path":                   rule(sbx.PolicyRule{Resources: []string{"a"}, Path: "x"}),
		"rule to remove":         c.PolicyRemove(ctx, sbx.RuleRef{}),
		"rule id":                c.PolicyRemove(ctx, sbx.RuleRef{ID: "-x"}),
		"inspected rule":         second(c.PolicyInspect(ctx, "-x")),
		"checked target":         second(c.PolicyCheck(ctx, "", "a b")),
		"service":                c.SecretSet(ctx, sbx.ServiceSecret{Service: "-x", Value: value}),
		"secret's sandbox":       c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "-x", Value: value}),
		"custom without host":    custom(sbx.CustomSecret{Env: "A", Command: "/bin/x"}),
		"custom without source":  custom(sbx.CustomSecret{Env: "A", Hosts: []string{"a"}}),
		"custom with two":        custom(sbx.CustomSecret{Env: "A", Hosts: []string{"a"}, Command: "/bin/x", Ref: "op://x"}),
		"relative helper":        custom(sbx.CustomSecret{Env: "A", Hosts: []string{"a"}, Command: "./bin/token --for x"}),
		"short placeholder":      custom(sbx.CustomSecret{Env: "A", Hosts: []string{"a"}, Command: "/bin/x", Placeholder: "abc"}),
		"registry":               c.SecretSetRegistry(ctx, sbx.RegistryCredential{Host: "a", Value: value, Sandbox: "box", AllSandboxes: true}),
		"empty registry value":   c.SecretSetRegistry(ctx, sbx.RegistryCredential{Host: "a"}),
		"custom to remove":       c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretCustom}),
		"service to remove":      c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretService, Name: "-x"}),
		"imported service":       second(c.SecretImport(ctx, "-x", true)),
		"port":                   second(c.Publish(ctx, "box", "x")),
		"tag":                    c.TemplateSave(ctx, "box", "-x", ""),
		"image":                  c.TemplateRemove(ctx, "--all"),
		"image file":             c.TemplateLoad(ctx, "-x"),
		"setting":                second(c.Setting(ctx, "-x")),
		"setting to set":         second(c.SetSetting(ctx, "a", "")),
		"setting to unset":       c.UnsetSetting(ctx, "-x"),
		"login":                  c.Login(ctx, "-x", value),
		"names":                  c.Stop(ctx, "a/b"),
	} {
		t.Run(name, func(t *testing.T) { wantKinds(t, err, sbx.ErrInvalid) })
	}
	if err := create(at(sbx.Workspace{Path: filepath.Join(dir, "nowhere")})); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing workspace: %v", err)
	}
	if len(*calls) != 0 {
		t.Errorf("ran %q", *calls)
	}
}

// TestReadBack: each change that says done and is not there is an error that says what.
func TestReadBack(t *testing.T) {
	box := `{"sandboxes":[{"name":"box","status":"running","workspaces":["/elsewhere"]}]}`
	reply := func(args []string) sbx.Result {
		switch strings.Join(args[:min(2, len(args))], " ") {
		case "ls --json":
			return says(box, "", 0)
		case "policy ls":
			return says(`{"rules":[{"id":"1","scope":"global","resource_type":"network","decision":"allow","resources":["a.example"]},
				{"id":"2","scope":"sandbox:box","resource_type":"network","decision":"allow","resources":["b.example"],"status":"inactive"},
				{"id":"3","scope":"sandbox:box","resource_type":"http","decision":"allow","resources":["c.example"],"http_targets":[{"host":"c.example","path":"/x"}],"methods":["GET"]}]}`, "", 0)
		case "secret ls":
			return says(`{"secrets":[{"scope":"global","type":"service","name":"github"}],"custom_secrets":[{"scope":"box","targets":["a.example"],"env":"K","placeholder":"sbx-cs-0123456789"}]}`, "", 0)
		case "ports box":
			return says("[]", "", 0)
		case "secret set-custom":
			return says("Saved custom secret placeholder \"sbx-cs-0123456789\" for target \"a.example\" env \"K\" in scope \"box\"\n", "", 0)
		case "settings get":
			return says(`{"key":"a.b","value":true,"type":"bool","source":"environment"}`, "", 0)
		case "daemon status":
			return says(`{"status":"stopped"}`, "", 0)
		}
		return says("", "", 0)
	}
	c, _ := sent(reply)
	ctx, value := t.Context(), secrets.New("canary-value")
	second := func(_ any, err error) error { return err }
	in := func(r sbx.PolicyRule) error { r.Sandbox = "box"; return second(c.PolicyAllow(ctx, r)) }
	for name, tt := range map[string]struct {
		err  error
		says string
	}{
		"create":           {second(c.Create(ctx, sbx.CreateSpec{Name: "other"})), "sandbox other is not in the listing"},
		"wrong workspace":  {second(c.Create(ctx, sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: t.TempDir()}}})), "has workspace /elsewhere"},
		"stop":             {c.Stop(ctx, "box"), "box is still running"},
		"remove":           {c.Remove(ctx, "box"), "box is still there"},
		"global, not ours": {in(sbx.PolicyRule{Resources: []string{"a.example"}}), "allow a.example (sandbox box)"},
		"inactive":         {in(sbx.PolicyRule{Resources: []string{"b.example"}}), "allow b.example"},
		"only over HTTP":   {in(sbx.PolicyRule{Resources: []string{"c.example"}}), "allow c.example"},
		"another path":     {in(sbx.PolicyRule{Resources: []string{"c.example"}, Methods: []string{"GET"}, Path: "/y"}), "allow c.example"},
		"another method":   {in(sbx.PolicyRule{Resources: []string{"c.example"}, Methods: []string{"GET", "POST"}, Path: "/x"}), "allow c.example"},
		"narrower method":  {in(sbx.PolicyRule{Resources: []string{"c.example"}, Path: "/x"}), "allow c.example"},
		"rule removed":     {c.PolicyRemove(ctx, sbx.RuleRef{ID: "1"}), "rule 1 (global) is still there"},
		"resource removed": {c.PolicyRemove(ctx, sbx.RuleRef{Resources: []string{"A.EXAMPLE."}}), "rule 1 (global) is still there"},
		"scoped secret":    {c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "box", Value: value}), "service secret github (sandbox box)"},
		"custom hosts":     {second(c.SecretSetCustom(ctx, sbx.CustomSecret{Sandbox: "box", Env: "K", Hosts: []string{"a.example", "b.example"}, Command: "/bin/x"})), "custom secret K"},
		"secret removed":   {c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretService, Name: "github"}), "github (global) is still there"},
		"port":             {second(c.Publish(ctx, "box", "8080")), "8080 is not in the listing"},
		"setting":          {second(c.SetSetting(ctx, "a.b", "false")), "a.b is true (source environment)"},
		"daemon":           {c.DaemonStart(ctx), "daemon is stopped"},
		"restart":          {c.DaemonRestart(ctx), "daemon is stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			wantKinds(t, tt.err, sbx.ErrNotApplied)
			if !strings.Contains(tt.err.Error(), tt.says) {
				t.Errorf("%v does not say %q", tt.err, tt.says)
			}
		})
	}
	// What is there is there, whatever its case, and whether the engine keeps one rule for each resource or one for all.
	ok(t, second(c.PolicyAllow(ctx, sbx.PolicyRule{Resources: []string{"A.example."}})))
	ok(t, in(sbx.PolicyRule{Resources: []string{"c.example"}, Methods: []string{"GET"}, Path: "/x"}))
	// And nothing is read when nobody wants it.
	u, calls := sent(reply)
	ok(t, u.Unverified().Remove(ctx, "box"))
	ok(t, u.Unverified().Stop(ctx, "box"))
	if len(*calls) != 2 {
		t.Errorf("calls %q", *calls)
	}
}

// TestMalformed: an answer in a shape that we do not know is an error, never an empty one.
func TestMalformed(t *testing.T) {
	for _, text := range []string{"", "\n", "{}", "[]", "null", `{"error":"x"}`, `{"sandboxes":[{"name":"--all"}]}`, `{"sandboxes":[{"name":""}]}`, `{"sandboxes":{}}`, `{"sandboxes":[`, "box running", "Something new\n"} {
		list, err := sbx.New("", v47(), canned{"ls": says(text, "", 0)}.runner(t)).List(t.Context())
		if list != nil || !errors.Is(err, sbx.ErrMalformed) {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
	if list, err := sbx.ParseSandboxes([]byte(`{"sandboxes":[],"new":1}`)); err != nil || list == nil || len(list) != 0 {
		t.Errorf("none: %v, %v", list, err)
	}
	_, err := sbx.New("", v47(), canned{"inspect": says(string(fixture(t, "inspect-0.38.json")), "", 0)}.runner(t)).Inspect(t.Context(), "other")
	wantKinds(t, err, sbx.ErrMalformed) // an answer about somebody else
	// A long listing that was cut is not a listing.
	cut := sbx.Result{Stdout: []byte(`{"sandboxes":[]}`), StdoutTruncated: true, StdoutBytes: 1 << 40}
	c := sbx.New("", v47(), sbx.WithRunner(sbx.RunnerFunc(func(context.Context, sbx.Cmd) (sbx.Result, error) { return cut, nil })))
	_, err = c.List(t.Context())
	wantKinds(t, err, sbx.ErrMalformed)
}

// TestWarningsAreNoFailure: standard error is full of warnings, and the verb worked.
func TestWarningsAreNoFailure(t *testing.T) {
	c := sbx.New("", v47(), canned{"ls": sbx.Result{Stdout: fixture(t, "ls-0.47.json"), Stderr: fixture(t, "warn-hub-refresh-stderr.txt")}}.runner(t))
	list, err := c.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestMasksByShape: a failing verb may print a credential that nobody named.
func TestMasksByShape(t *testing.T) {
	c := sbx.New("", v47(), canned{"ls": says("", "error: bad token ghp_0123456789012345678901234567890123 and sk-ant-0123456789012345678901234567890123\n", 1)}.runner(t))
	_, err := c.List(t.Context())
	if err == nil || strings.Contains(err.Error(), "0123456789") || strings.Count(err.Error(), "***") != 2 {
		t.Errorf("error %v", err)
	}
}

// TestMismatch: the command and its daemon are told apart, and it is said once.
func TestMismatch(t *testing.T) {
	var log warnings
	text := `{"client":{"version":"v0.47.0"},"server":{"state":"running","version":"v0.45.1"}}`
	c := sbx.New("", canned{"version": says(text, "", 0)}.runner(t), sbx.WithLogger(log.logger()))
	for range 2 {
		v, err := c.Version(t.Context())
		ok(t, err)
		if !v.Mismatch() || v.Server.String() != "0.45.1" {
			t.Errorf("%+v", v)
		}
	}
	if log.count() != 1 || !strings.Contains(log.text.String(), "0.45.1") {
		t.Errorf("%s", log.text.String())
	}
}

// TestConcurrent: one client, many callers.
func TestConcurrent(t *testing.T) {
	e := newEngine(t, "0.47")
	c := e.client()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := "box-" + string(rune('a'+i))
			if _, err := c.Create(t.Context(), sbx.CreateSpec{Name: name}); err != nil {
				t.Error(err)
			}
			if _, err := c.Exec(t.Context(), name, sbx.ExecSpec{Argv: []string{"true"}}); err != nil {
				t.Error(err)
			}
			if err := c.Remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if left := e.state().Sandboxes; len(left) != 0 {
		t.Errorf("left %+v", left)
	}
}

// TestLines has line ends, long lines and a last line without one.
func TestLines(t *testing.T) {
	var got []string
	w := sbx.Lines(func(line []byte) { got = append(got, string(line)) })
	for _, chunk := range []string{"a", "b\r\nc\n\n", "d", strings.Repeat("x", 3<<20), "\nlast"} {
		if n, err := w.Write([]byte(chunk)); n != len(chunk) || err != nil {
			t.Fatal(n, err)
		}
	}
	ok(t, w.Close())
	if len(got) != 8 || got[0] != "ab" || got[1] != "c" || got[2] != "" || got[7] != "last" || len(got[3]) != 1<<20 {
		t.Errorf("%d lines", len(got))
	}
}

// TestPreamble: only the engine's own lines are taken off, and only from the start.
func TestPreamble(t *testing.T) {
	for in, want := range map[string]string{
		"Sandbox box started successfully\nhi\n":                          "hi\n",
		"Sandbox other started successfully\nhi\n":                        "Sandbox other started successfully\nhi\n",
		"Starting sandboxd daemon...\nSandbox box started successfully\n": "",
		"Starting": "Starting",
		"Starting sandboxd daemon...\nDaemon started (PID: 42, socket: /s)\nLogs: /s/daemon.log\nSandbox box started successfully\r\nhi\n": "hi\n",
		"Daemon started (PID: 42, socket: /s)\nLogs: /s/daemon.log\nLogs: /s/daemon.log\n":                                                 "Logs: /s/daemon.log\n",
		"Daemon started (PID: 42, socket: /s)\nDaemon started (PID: 42, socket: /s)\n":                                                     "Daemon started (PID: 42, socket: /s)\n",
		// What a command prints that only looks like it is the command's.
		"Starting sandboxd daemon...\nhi\n":                                    "Starting sandboxd daemon...\nhi\n",
		"Starting sandboxd daemon...":                                          "Starting sandboxd daemon...",
		"Daemon started (PID: 42)\n":                                           "Daemon started (PID: 42)\n",
		"No keychain detected - hello\n":                                       "No keychain detected - hello\n",
		"Sandbox box started successfully\nSandbox box started successfully\n": "Sandbox box started successfully\n",
		"Sandbox box started successfully\nStarting sandboxd daemon...\n":      "Starting sandboxd daemon...\n",
		"hi\nSandbox box started successfully\n":                               "hi\nSandbox box started successfully\n",
		"Sandbox box started successfully":                                     "Sandbox box started successfully",
		strings.Repeat("L", 600) + "\n":                                        strings.Repeat("L", 600) + "\n",
		"Logs: /s/daemon.log\nLogs: mine\n":                                    "Logs: /s/daemon.log\nLogs: mine\n",
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			var streamed bytes.Buffer
			runner := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
				for rest := []byte(in); len(rest) > 0; {
					n := min(size, len(rest))
					if _, err := c.Stdout.Write(rest[:n]); err != nil {
						return sbx.Result{}, err
					}
					rest = rest[n:]
				}
				return sbx.Result{Stdout: []byte(in), StdoutHead: []byte(in), StdoutBytes: int64(len(in))}, nil
			})
			res, err := sbx.New("", v47(), sbx.WithRunner(runner)).Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"x"}, Stdout: &streamed})
			ok(t, err)
			if string(res.Stdout) != want || streamed.String() != want {
				t.Errorf("%q in pieces of %d: captured %q, streamed %q, want %q", in, size, res.Stdout, streamed.String(), want)
			}
		}
	}
}

// TestPlatforms has the pure parts of what differs between systems.
func TestPlatforms(t *testing.T) {
	for host, want := range map[string]string{"/home/dev": "/home/dev", `C:\Users\dev`: "/c/Users/dev", `d:\x`: "/d/x", "C:": "/c", "relative": "relative"} {
		if got := sbx.GuestPath(host); got != want {
			t.Errorf("%q is seen at %q, want %q", host, got, want)
		}
	}
	env := sbx.Environ([]string{"Path=C:\\bin", "SystemRoot=C:\\Windows", "LOCALAPPDATA=C:\\d", "https_proxy=http://p", "=C:=C:\\x", "Secret=canary"})
	if !slices.Contains(env, "Path=C:\\bin") || !slices.Contains(env, "https_proxy=http://p") || len(env) != 6 {
		t.Errorf("%q", env)
	}
}

// TestEnvironFindsTheUsersState: the engine is called with the folders, proxy and session that the user's own calls have:
// others would give a second, empty daemon without a login. Nothing that is a credential by its name goes along.
func TestEnvironFindsTheUsersState(t *testing.T) {
	given := []string{
		"HOME=/h", "PATH=/bin", "XDG_CONFIG_HOME=/c", "XDG_STATE_HOME=/s", "XDG_CACHE_HOME=/x", "XDG_DATA_HOME=/d", "XDG_RUNTIME_DIR=/r",
		"DBUS_SESSION_BUS_ADDRESS=unix:/b", "HTTPS_PROXY=http://p", "no_proxy=localhost", "DOCKER_SANDBOXES_API=unix:/a",
		"DOCKER_SANDBOXES_ROOT_SIZE=20G", "SANDBOXES_STORAGE_ROOT=/v", "SANDBOXD_LOG_LEVEL=debug", "SBX_NO_TELEMETRY=1",
	}
	env := sbx.Environ(slices.Concat(given, []string{
		"DOCKER_SANDBOXES_TOKEN=canary", "SANDBOXES_API_KEY=canary", "DOCKER_SANDBOXES_PASSWORD=canary", "SBX_LOCAL_CREDENTIALS=canary",
		"DOCKER_PASSWORD=canary", "SSH_AUTH_SOCK=/canary", "LD_PRELOAD=/canary", "HOME=/later",
	}))
	for _, kv := range given[1:] {
		if !slices.Contains(env, kv) {
			t.Errorf("%s is missing", kv)
		}
	}
	if all := strings.Join(env, " "); strings.Contains(all, "canary") || !slices.Contains(env, "HOME=/later") || slices.Contains(env, "HOME=/h") {
		t.Errorf("%s", all)
	}
}
