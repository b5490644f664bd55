package sbx_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// errorFixtures says what each recorded error stands for. nil is a failure without a kind: a refusal in plain words.
func errorFixtures() map[string][]error {
	return map[string][]error{
		"error-already-exists-409.txt":              {sbx.ErrExists},
		"error-ambiguous-selector-0.43.txt":         {sbx.ErrConflict},
		"error-backend-unavailable.txt":             {sbx.ErrEngine},
		"error-branch-removed.txt":                  {sbx.ErrRefusedFlag},
		"error-client-timeout.txt":                  {sbx.ErrDaemon},
		"error-clone-not-repo.txt":                  nil,
		"error-clone-worktree-0.39.txt":             nil,
		"error-cp-between-0.47.txt":                 nil,
		"error-cp-relative.txt":                     nil,
		"error-daemon-retries-0.35.txt":             {sbx.ErrDaemon},
		"error-daemon-start-timeout.txt":            {sbx.ErrDaemon},
		"error-exec-detach-0.45.txt":                {sbx.ErrRefusedFlag},
		"error-exec-empty-arg.txt":                  nil,
		"error-exec-not-found-0.39.txt":             {sbx.ErrNotFound},
		"error-kit-source.txt":                      nil,
		"error-login-failed.txt":                    {sbx.ErrNotSignedIn},
		"error-mount-denied.txt":                    {sbx.ErrMountDenied},
		"error-name-leaked.txt":                     {sbx.ErrNameLeaked, sbx.ErrExists},
		"error-not-authenticated-0.34.txt":          {sbx.ErrNotSignedIn},
		"error-not-authenticated-0.47.txt":          {sbx.ErrNotSignedIn},
		"error-not-found-0.34.txt":                  {sbx.ErrNotFound},
		"error-not-found-0.47.txt":                  {sbx.ErrNotFound},
		"error-policy-already-initialised-0.23.txt": {sbx.ErrExists},
		"error-policy-already-initialised-0.34.txt": {sbx.ErrExists},
		"error-policy-deny-conflict.txt":            {sbx.ErrConflict},
		"error-policy-rule-not-found.txt":           {sbx.ErrNotFound},
		"error-policy-sandbox-not-found.txt":        {sbx.ErrNotFound},
		"error-policy-second-arg-0.33.txt":          {sbx.ErrRefusedFlag},
		"error-policy-uninitialised-0.34.txt":       {sbx.ErrPolicyUninitialised},
		"error-policy-uninitialised-0.47.txt":       {sbx.ErrPolicyUninitialised},
		"error-port-published.txt":                  {sbx.ErrConflict},
		"error-pull-403.txt":                        {sbx.ErrPullFailed},
		"error-ro-primary.txt":                      nil,
		"error-secret-rm-custom.txt":                nil,
		"error-secret-set-custom-exists-scoped.txt": {sbx.ErrExists},
		"error-secret-set-custom-exists.txt":        {sbx.ErrExists},
		"error-session-expired.txt":                 {sbx.ErrSessionExpired, sbx.ErrNotSignedIn},
		"error-session-network.txt":                 {sbx.ErrSessionExpired, sbx.ErrNotSignedIn},
		"error-start-runtime-500.txt":               {sbx.ErrEngine},
		"error-template-save-running-0.47.txt":      {sbx.ErrPrompt, sbx.ErrConflict},
		"error-unknown-flag-json-0.38.txt":          {sbx.ErrRefusedFlag},
		"error-workspace-missing-0.38.txt":          {sbx.ErrPrompt},
		"version-mismatch-0.37.txt":                 {sbx.ErrPrompt, sbx.ErrVersionMismatch},
		"rm-prompt.txt":                             {sbx.ErrPrompt},
		"login-device.txt":                          {sbx.ErrPrompt, sbx.ErrNotSignedIn},
		"login-implicit-0.39.txt":                   {sbx.ErrPrompt, sbx.ErrNotSignedIn},
	}
}

func kinds() map[string]error {
	return map[string]error{
		"NotInstalled": sbx.ErrNotInstalled, "ForeignTool": sbx.ErrForeignTool, "NotSignedIn": sbx.ErrNotSignedIn,
		"SessionExpired": sbx.ErrSessionExpired, "PolicyUninitialised": sbx.ErrPolicyUninitialised, "NotFound": sbx.ErrNotFound,
		"Exists": sbx.ErrExists, "NameLeaked": sbx.ErrNameLeaked, "Conflict": sbx.ErrConflict, "NotRunning": sbx.ErrNotRunning,
		"Engine": sbx.ErrEngine, "Daemon": sbx.ErrDaemon, "VersionMismatch": sbx.ErrVersionMismatch, "MountDenied": sbx.ErrMountDenied,
		"PullFailed": sbx.ErrPullFailed, "DiskFull": sbx.ErrDiskFull, "Keyring": sbx.ErrKeyring, "SecretStore": sbx.ErrSecretStore,
		"RefusedFlag": sbx.ErrRefusedFlag, "Unsupported": sbx.ErrUnsupported, "Prompt": sbx.ErrPrompt, "Timeout": sbx.ErrTimeout,
		"ConnectionLost": sbx.ErrConnectionLost, "Launch": sbx.ErrLaunch, "Malformed": sbx.ErrMalformed, "NotApplied": sbx.ErrNotApplied,
		"Invalid": sbx.ErrInvalid,
	}
}

// wantKinds fails unless err matches exactly the given kinds.
func wantKinds(t *testing.T, err error, want ...error) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for name, kind := range kinds() {
		expected := false
		for _, w := range want {
			expected = expected || errors.Is(w, kind)
		}
		if got := errors.Is(err, kind); got != expected {
			t.Errorf("%v: matches %s = %t, want %t", err, name, got, expected)
		}
	}
}

// TestErrorFixtures feeds each recorded error, in the three styles and on either stream, to a verb.
func TestErrorFixtures(t *testing.T) {
	table := errorFixtures()
	for name := range fixtureIndex(t) {
		if _, found := table[name]; strings.HasPrefix(name, "error-") && !found {
			t.Errorf("%s is not in the table", name)
		}
	}
	for name, want := range table {
		text := string(fixture(t, name))
		for style, change := range map[string]func(string) string{
			"as recorded":  func(s string) string { return s },
			"lower prefix": func(s string) string { return strings.ReplaceAll(s, "ERROR:", "error:") },
			"0.23 prefix":  func(s string) string { return strings.ReplaceAll(s, "ERROR:", "Error:") },
			"warned":       func(s string) string { return string(fixture(t, "warn-hub-refresh-stderr.txt")) + s },
			"coloured":     func(s string) string { return "\x1b[31m" + s + "\x1b[0m" },
		} {
			t.Run(name+"/"+style, func(t *testing.T) {
				c := sbx.New("", v47(), canned{"ls": says("", change(text), 1)}.runner(t))
				_, err := c.List(t.Context())
				wantKinds(t, err, want...)
				c = sbx.New("", v47(), canned{"ls": says(change(text), "", 1)}.runner(t))
				_, err = c.List(t.Context())
				wantKinds(t, err, want...)
			})
		}
	}
}

// TestErrorTexts has wordings that were seen without a fixture of their own, and texts that say nothing to us.
func TestErrorTexts(t *testing.T) {
	for text, want := range map[string][]error{
		"ERROR: write /var/lib/x: no space left on device":                                      {sbx.ErrDiskFull},
		"ERROR: The name org.freedesktop.secrets was not provided by any .service files":        {sbx.ErrKeyring}, // sbx-releases#186
		"ERROR: failed to unlock correct collection '/org/freedesktop/secrets/aliases/default'": nil,
		"ERROR: prompt dismissed":                                                             {sbx.ErrKeyring},
		"ERROR: failed to connect to dbus: no such file":                                      {sbx.ErrKeyring},
		"ERROR: list custom secrets: secret not found":                                        {sbx.ErrSecretStore}, // sbx-releases#329
		"ERROR: Post \"http://sandboxd/x\": context deadline exceeded":                        {sbx.ErrDaemon},      // sbx-releases#65
		"ERROR: dial unix /s/sandboxd.sock: connect: connection refused":                      {sbx.ErrDaemon},
		"ERROR: request failed: 412 Precondition Failed: x":                                   {sbx.ErrPolicyUninitialised},
		"ERROR: request failed: 403 Forbidden: pull failed for image \"x\": 401 Unauthorized": {sbx.ErrPullFailed},
		// Two reasons at once: the disk is the one to mend.
		"ERROR: request failed: 500 Internal Server Error: pull failed for image \"x\": write /s: no space left on device": {sbx.ErrDiskFull, sbx.ErrPullFailed},
		"ERROR: pull failed for image \"x\": dial tcp 192.0.2.1:443: connect: connection refused":                          {sbx.ErrPullFailed},
		"ERROR: failed to pull docker.io/x/y: manifest unknown":                                                            {sbx.ErrPullFailed},
		"error: write C:\\x: There is not enough space on the disk.":                                                       {sbx.ErrDiskFull},
		"ERROR: dial unix /s/sandboxd.sock: connect: permission denied":                                                    {sbx.ErrDaemon}, // another user's (0.43)
		"error: open //./pipe/docker_sandboxes: The system cannot find the file specified.":                                {sbx.ErrDaemon},
		"ERROR: Post \"http://sandboxd/sandbox\": EOF":                                                                     {sbx.ErrDaemon},
		"ERROR: Get \"http://sandboxd/sandbox\": read unix @->/s: read: connection reset by peer":                          {sbx.ErrDaemon},
		"ERROR: ls: request failed: 503 Service Unavailable: starting":                                                     {sbx.ErrDaemon},
		"Erreur : bac à sable introuvable":                                                                                 nil,
		"":                                                                                                                 nil,
		"WARN: could not acquire docker hub refresh lock: context deadline exceeded\nERROR: something new":                 nil, // the warning is not the reason
	} {
		c := sbx.New("", v47(), canned{"ls": says("", text, 1)}.runner(t))
		_, err := c.List(t.Context())
		wantKinds(t, err, want...)
		exit, isExit := errors.AsType[*sbx.ExitError](err)
		if !isExit || exit.Code != 1 || exit.Op != "ls" {
			t.Fatalf("%q: %#v", text, err)
		}
		if exit.Stderr != text {
			t.Errorf("text %q, want %q", exit.Stderr, text)
		}
	}
}

// TestPrompts has the remedies of the questions that sbx is known to ask.
func TestPrompts(t *testing.T) {
	for text, remedy := range map[string]string{
		"Remove sandbox 'demo-agent'? This cannot be undone. (y/N): ": "sbx rm --force demo-agent",
		"Restart now? (y/N): ": "sbx daemon restart",
		"Secret for github already exists. Do you want to overwrite it? (y/N):": "--force",
		"Import 1 credential from your environment? (y/N): ":                    "sbx setup",
		"Select a network policy:":                                              "sbx policy init balanced",
		"Your one-time device confirmation code is: ABCD-EFGH":                  "sbx login",
		"Enter secret: ":                      "--command",
		"Something nobody has seen yet [y/N]": "in a terminal: sbx ls --json",
		"Cancelled":                           "in a terminal: sbx ls --json",
		"ERROR: user cancelled operation":     "in a terminal: sbx ls --json",
	} {
		for _, code := range []int{1, 0} { // a question that closed standard input answered may end well
			c := sbx.New("", v47(), canned{"ls": says(text, "", code)}.runner(t))
			_, err := c.List(t.Context())
			prompt, isPrompt := errors.AsType[*sbx.PromptError](err)
			if !isPrompt || !strings.Contains(prompt.Remedy, remedy) || !strings.Contains(err.Error(), prompt.Remedy) {
				t.Errorf("%q, exit %d: %v, want a PromptError with %q", text, code, err, remedy)
			}
		}
	}
}

// TestPromptsOfEveryVerb: whatever verb asks and exits with 0, what was asked for is not reported as done. A command in a
// sandbox may print what it likes.
func TestPromptsOfEveryVerb(t *testing.T) {
	ctx, value := t.Context(), secrets.New("canary-value")
	file := filepath.Join(t.TempDir(), "f")
	ok(t, os.WriteFile(file, nil, 0o600))
	second := func(_ any, err error) error { return err }
	for name, call := range map[string]func(c *sbx.Client) error{
		"create":       func(c *sbx.Client) error { return second(c.Create(ctx, sbx.CreateSpec{Name: "box"})) },
		"keep-alive":   func(c *sbx.Client) error { return c.KeepAlive(ctx, "box") },
		"stop":         func(c *sbx.Client) error { return c.Stop(ctx, "box") },
		"rm":           func(c *sbx.Client) error { return c.Remove(ctx, "box") },
		"prune":        func(c *sbx.Client) error { return second(c.Prune(ctx, sbx.PruneSpec{})) },
		"inspect":      func(c *sbx.Client) error { return second(c.Inspect(ctx, "box")) },
		"cp in":        func(c *sbx.Client) error { return c.CopyIn(ctx, "box", file, "/f") },
		"cp out":       func(c *sbx.Client) error { return c.CopyOut(ctx, "box", "/f", file+"2") },
		"publish":      func(c *sbx.Client) error { return second(c.Publish(ctx, "box", "8080")) },
		"unpublish":    func(c *sbx.Client) error { return c.Unpublish(ctx, "box", sbx.Port{HostPort: 1, SandboxPort: 1}) },
		"policy init":  func(c *sbx.Client) error { return c.PolicyInit(ctx, sbx.PresetDenyAll) },
		"policy allow": func(c *sbx.Client) error { return second(c.PolicyAllow(ctx, sbx.PolicyRule{Resources: []string{"a"}})) },
		"policy rm":    func(c *sbx.Client) error { return c.PolicyRemove(ctx, sbx.RuleRef{ID: "1"}) },
		"policy reset": func(c *sbx.Client) error { return c.PolicyReset(ctx) },
		"policy check": func(c *sbx.Client) error { return second(c.PolicyCheck(ctx, "", "a")) },
		"secret set":   func(c *sbx.Client) error { return c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Value: value}) },
		"secret set-custom": func(c *sbx.Client) error {
			return second(c.SecretSetCustom(ctx, sbx.CustomSecret{Hosts: []string{"a"}, Placeholder: "0123456789abc", Command: "/bin/x"}))
		},
		"secret set registry": func(c *sbx.Client) error {
			return c.SecretSetRegistry(ctx, sbx.RegistryCredential{Host: "a", Value: value})
		},
		"secret rm":      func(c *sbx.Client) error { return c.SecretRemove(ctx, sbx.Secret{Name: "github"}) },
		"secret import":  func(c *sbx.Client) error { return second(c.SecretImport(ctx, "github", false)) },
		"template save":  func(c *sbx.Client) error { return c.TemplateSave(ctx, "box", "a:1", "") },
		"template load":  func(c *sbx.Client) error { return c.TemplateLoad(ctx, file) },
		"template rm":    func(c *sbx.Client) error { return c.TemplateRemove(ctx, "a:1") },
		"settings set":   func(c *sbx.Client) error { return second(c.SetSetting(ctx, "a", "1")) },
		"settings unset": func(c *sbx.Client) error { return c.UnsetSetting(ctx, "a") },
		"daemon start":   func(c *sbx.Client) error { return c.DaemonStart(ctx) },
		"daemon stop":    func(c *sbx.Client) error { return c.DaemonStop(ctx) },
		"daemon restart": func(c *sbx.Client) error { return c.DaemonRestart(ctx) },
		"diagnose":       func(c *sbx.Client) error { return second(c.Diagnose(ctx)) },
		"login":          func(c *sbx.Client) error { return c.Login(ctx, "demo", value) },
		"logout":         func(c *sbx.Client) error { return c.Logout(ctx) },
		"reset":          func(c *sbx.Client) error { return c.Reset(ctx, false) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, said := range []string{"Go ahead? (y/N): Cancelled\n", "Cancelled\n"} {
				for _, c := range []*sbx.Client{
					sbx.New("", v47(), sbx.WithRunner(sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) { return result(c, []byte(said), nil, 0) }))),
					sbx.New("", v47(), sbx.WithRunner(sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) { return result(c, nil, []byte(said), 0) }))).Unverified(),
				} {
					err := call(c)
					prompt, isPrompt := errors.AsType[*sbx.PromptError](err)
					if !isPrompt || !strings.Contains(prompt.Remedy, ": sbx ") || strings.Contains(err.Error(), "canary") {
						t.Errorf("%q: %v, want a PromptError that names a command", said, err)
					}
				}
			}
		})
	}
	c := sbx.New("", v47(), canned{"exec": says("Cancelled\n", "Go ahead? (y/N): ", 0)}.runner(t))
	res, err := c.Exec(ctx, "box", sbx.ExecSpec{Argv: []string{"x"}})
	if err != nil || res.Code != 0 || string(res.Stdout) != "Cancelled\n" {
		t.Errorf("exec: %+v, %v", res, err)
	}
	// What stands in a document is data; and a question that somebody answered is none.
	doc := `{"rules":[{"id":"1","resource_type":"network","decision":"allow","resources":["a"],"name":"Restart now? (y/N):"}]}`
	_, err = sbx.New("", v47(), canned{"policy ls": says(doc, "", 0)}.runner(t)).PolicyList(ctx, "")
	ok(t, err)
	login := canned{"login": says(string(fixture(t, "login-device.txt"))+"Signed in as demo.\n", "", 0), "ls": says(`{"sandboxes":[]}`, "", 0)}
	ok(t, sbx.New("", v47(), login.runner(t)).Login(ctx, "demo", value))
	// The command to run by hand is one that a shell reads as we sent it, and has the client's own flags.
	c = sbx.New("", v47(), sbx.WithAppName("pair"), canned{"--app-name=pair secret rm": says("Delete selected secret? (y/N): Cancelled", "", 0)}.runner(t))
	err = c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretCustom, Sandbox: "box", Placeholder: "it's-a-placeholder"})
	if want := `to remove it, run: sbx --app-name=pair secret rm --sandbox box --placeholder 'it'\''s-a-placeholder' --force`; sbx.Hint(err) != want {
		t.Errorf("hint %q, want %q", sbx.Hint(err), want)
	}
}

// TestExecEnds tells what ended a command: the command itself, the runtime that could not start it, or its sandbox.
func TestExecEnds(t *testing.T) {
	daemonGone := string(fixture(t, "error-daemon-start-timeout.txt"))
	notFound := string(fixture(t, "error-not-found-0.47.txt")) // of demo-agent
	launch := string(fixture(t, "exec-launch-failure-stdout.txt"))
	running := `{"sandboxes":[{"name":"demo-agent","status":"running"}]}`
	stopped := `{"sandboxes":[{"name":"demo-agent","status":"stopped"}]}`
	for name, tt := range map[string]struct {
		res    sbx.Result
		ls     string
		daemon string
		kind   error // nil: the command's own exit
	}{
		"killed, sandbox runs":              {says("", "Killed\n", 137), running, "", nil},
		"killed, sandbox gone":              {says("half", "", 137), `{"sandboxes":[]}`, "", sbx.ErrNotFound},
		"killed, sandbox stopped":           {says("half", "", 143), stopped, "", sbx.ErrNotRunning},
		"killed, nobody knows":              {says("", "", 137), "???", "", nil},
		"interrupted":                       {says("", "", 130), "unasked", "", nil},
		"gone in the middle":                {says("half", notFound, 1), `{"sandboxes":[]}`, "", sbx.ErrNotFound},
		"its own words after output":        {says("half", notFound, 1), running, "", nil},
		"its own words about the daemon":    {says("", daemonGone, 1), "unasked", `{"status":"running"}`, nil},
		"the daemon does not start":         {says("", daemonGone, 1), "unasked", `{"status":"stopped"}`, sbx.ErrDaemon},
		"failed to, says the command":       {says("", "failed to start sandbox\n", 1), "unasked", "", nil},
		"error: failed to, says it":         {says("", "error: failed to open x: connection refused\n", 1), running, "", nil},
		"not found, says a shell":           {says("", "sh: 1: tool: not found\n", 127), "unasked", "", nil},
		"may not be executed":               {says("", "bash: ./x: Permission denied\n", 126), "unasked", "", nil},
		"cannot be started":                 {says(launch, "", 127), "unasked", "", sbx.ErrLaunch},
		"cannot be started, other stream":   {says("", launch, 127), "unasked", "", sbx.ErrLaunch},
		"not executable":                    {says("OCI runtime exec failed: exec failed: unable to start container process: exec: \"no-such-program\": permission denied\n", "", 126), "unasked", "", sbx.ErrLaunch},
		"no such directory":                 {says("OCI runtime exec failed: exec failed: unable to start container process: chdir to cwd (\"/x\"): no such file or directory\n", "", 126), "unasked", "", sbx.ErrLaunch},
		"a container in it cannot be":       {says(strings.ReplaceAll(launch, "no-such-program", "something"), "", 127), "unasked", "", nil},
		"a program that prints those words": {says(launch, "", 1), "unasked", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := canned{"exec": tt.res}
			if tt.ls != "unasked" {
				c["ls"] = says(tt.ls, "", 0)
			}
			if tt.daemon != "" {
				c["daemon status"] = says(tt.daemon, "", 0)
			}
			res, err := sbx.New("", v47(), c.runner(t)).Exec(t.Context(), "demo-agent", sbx.ExecSpec{Argv: []string{"no-such-program"}})
			if res.Code != tt.res.Code || !errors.Is(err, tt.kind) || tt.kind == nil && err != nil {
				t.Errorf("code %d, %v", res.Code, err)
			}
			if string(res.Stdout) != string(tt.res.Stdout) {
				t.Errorf("output %q", res.Stdout)
			}
		})
	}
}

// TestKindsAreClosed: every kind of failure is reached by some text or state of this package's tests, in each of the three
// styles of error.
func TestKindsAreClosed(t *testing.T) {
	reached := map[error]bool{}
	for _, kinds := range errorFixtures() {
		for _, kind := range kinds {
			reached[kind] = true
		}
	}
	for text, kind := range map[string]error{
		"no space left on device": sbx.ErrDiskFull, "The name org.freedesktop.secrets was not provided": sbx.ErrKeyring,
		"list custom secrets: secret not found": sbx.ErrSecretStore, "state was created by a newer version": sbx.ErrVersionMismatch,
		"sandbox 'box' is not running": sbx.ErrNotRunning,
	} {
		for _, style := range []string{"Error: %s\n", "ERROR: %s\n\nDo this:\n  sbx x\n", "error: %s\n  try: sbx x\n"} {
			_, err := sbx.New("", v47(), canned{"ls": says("", strings.Replace(style, "%s", text, 1), 1)}.runner(t)).List(t.Context())
			wantKinds(t, err, kind)
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%v does not show %q", err, text)
			}
		}
		reached[kind] = true
	}
	// These come of what happened, not of a text; each has a test of its own: TestForeignTool, TestExecRunner, TestDeadlines,
	// TestExecEnds, TestMalformed, TestReadBack, TestNothingRunsUnasked, TestRefusedBeforeAnythingRuns.
	for _, kind := range []error{
		sbx.ErrForeignTool, sbx.ErrNotInstalled, sbx.ErrTimeout, sbx.ErrConnectionLost, sbx.ErrLaunch, sbx.ErrMalformed, sbx.ErrNotApplied,
		sbx.ErrUnsupported, sbx.ErrInvalid,
	} {
		reached[kind] = true
	}
	for _, kind := range kinds() {
		if !reached[kind] {
			t.Errorf("%v is reached by nothing", kind)
		}
		delete(reached, kind)
	}
	for kind := range reached {
		t.Errorf("%v is not in kinds", kind)
	}
}
