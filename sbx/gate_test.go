package sbx_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// everyMethod calls each method of a Client that starts the engine, with arguments that every engine takes.
func everyMethod(t *testing.T, c *sbx.Client) map[string]func(context.Context) error {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	ok(t, os.WriteFile(file, nil, 0o600))
	value := secrets.New("canary-value")
	spec := sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: dir}}}
	hosted := sbx.CreateSpec{Name: "box"}
	command := sbx.ExecSpec{Argv: []string{"true"}}
	rule := sbx.PolicyRule{Sandbox: "box", Resources: []string{"a.example"}}
	custom := sbx.CustomSecret{Hosts: []string{"a.example"}, Command: "/bin/x"}
	registry := sbx.RegistryCredential{Host: "a.example", Value: value}
	port := sbx.Port{HostIP: "127.0.0.1", HostPort: 1, SandboxPort: 2, Protocol: "tcp"}
	second := func(_ any, err error) error { return err }
	return map[string]func(context.Context) error{
		"Version": func(ctx context.Context) error { return second(c.Version(ctx)) },
		"List":    func(ctx context.Context) error { return second(c.List(ctx)) },
		"Get":     func(ctx context.Context) error { return second(c.Get(ctx, "box")) },
		"Inspect": func(ctx context.Context) error { return second(c.Inspect(ctx, "box")) },
		"Create": func(ctx context.Context) error {
			if _, err := c.Create(ctx, spec); !errors.Is(err, sbx.ErrInvalid) {
				return err
			}
			return second(c.Create(ctx, hosted))
		},
		"Run": func(ctx context.Context) error {
			if _, err := c.Run(ctx, spec); !errors.Is(err, sbx.ErrInvalid) {
				return err
			}
			return c.KeepAlive(ctx, "box") // a hosted sandbox has no workspace, which Run wants
		},
		"KeepAlive":     func(ctx context.Context) error { return c.KeepAlive(ctx, "box") },
		"Exec":          func(ctx context.Context) error { return second(c.Exec(ctx, "box", command)) },
		"Attach":        func(ctx context.Context) error { return second(c.Attach(ctx, "box", command)) },
		"CopyIn":        func(ctx context.Context) error { return c.CopyIn(ctx, "box", file, "/tmp/file") },
		"CopyOut":       func(ctx context.Context) error { return c.CopyOut(ctx, "box", "/tmp/file", filepath.Join(dir, "out")) },
		"Stop":          func(ctx context.Context) error { return c.Stop(ctx, "box") },
		"Remove":        func(ctx context.Context) error { return c.Remove(ctx, "box") },
		"Prune":         func(ctx context.Context) error { return second(c.Prune(ctx, sbx.PruneSpec{})) },
		"VerifyCreated": func(ctx context.Context) error { return second(c.VerifyCreated(ctx, spec)) },
		"VerifyDenied": func(ctx context.Context) error {
			return c.VerifyDenied(ctx, sbx.CreateSpec{Name: "box", DenyNetwork: []string{"a.example"}})
		},
		"VerifyEnv": func(ctx context.Context) error {
			return c.VerifyEnv(ctx, sbx.CreateSpec{Name: "box", Env: []sbx.EnvVar{{Name: "A"}}})
		},
		"VerifyRemoved": func(ctx context.Context) error { return c.VerifyRemoved(ctx, "box") },
		"VerifyRules":   func(ctx context.Context) error { return c.VerifyRules(ctx, rule) },
		"VerifySecrets": func(ctx context.Context) error { return c.VerifySecrets(ctx, sbx.Secret{Name: "x"}) },
		"Ports":         func(ctx context.Context) error { return second(c.Ports(ctx, "box")) },
		"Publish":       func(ctx context.Context) error { return second(c.Publish(ctx, "box", "8080")) },
		"Unpublish":     func(ctx context.Context) error { return c.Unpublish(ctx, "box", port) },
		"PolicyInit":    func(ctx context.Context) error { return c.PolicyInit(ctx, sbx.PresetDenyAll) },
		"PolicyAllow":   func(ctx context.Context) error { return second(c.PolicyAllow(ctx, rule)) },
		"PolicyDeny":    func(ctx context.Context) error { return second(c.PolicyDeny(ctx, rule)) },
		"PolicyList":    func(ctx context.Context) error { return second(c.PolicyList(ctx, "")) },
		"PolicyInspect": func(ctx context.Context) error { return second(c.PolicyInspect(ctx, "x")) },
		"PolicyRemove":  func(ctx context.Context) error { return c.PolicyRemove(ctx, sbx.RuleRef{ID: "x"}) },
		"PolicyReset":   func(ctx context.Context) error { return c.PolicyReset(ctx) },
		"PolicyCheck":   func(ctx context.Context) error { return second(c.PolicyCheck(ctx, "", "a.example")) },
		"PolicyLog":     func(ctx context.Context) error { return second(c.PolicyLog(ctx, "", 0)) },
		"SecretSet": func(ctx context.Context) error {
			return c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Value: value})
		},
		"SecretSetCustom":   func(ctx context.Context) error { return second(c.SecretSetCustom(ctx, custom)) },
		"SecretSetRegistry": func(ctx context.Context) error { return c.SecretSetRegistry(ctx, registry) },
		"SecretList":        func(ctx context.Context) error { return second(c.SecretList(ctx)) },
		"SecretRemove": func(ctx context.Context) error {
			return c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretService, Name: "github"})
		},
		"SecretImport":   func(ctx context.Context) error { return second(c.SecretImport(ctx, "", true)) },
		"TemplateList":   func(ctx context.Context) error { return second(c.TemplateList(ctx)) },
		"TemplateSave":   func(ctx context.Context) error { return c.TemplateSave(ctx, "box", "demo:v1", "") },
		"TemplateLoad":   func(ctx context.Context) error { return c.TemplateLoad(ctx, file) },
		"TemplateRemove": func(ctx context.Context) error { return c.TemplateRemove(ctx, "demo:v1") },
		"Setting":        func(ctx context.Context) error { return second(c.Setting(ctx, "a.b")) },
		"Settings":       func(ctx context.Context) error { return second(c.Settings(ctx)) },
		"SetSetting":     func(ctx context.Context) error { return second(c.SetSetting(ctx, "a.b", "x")) },
		"UnsetSetting":   func(ctx context.Context) error { return c.UnsetSetting(ctx, "a.b") },
		"Diagnose":       func(ctx context.Context) error { return second(c.Diagnose(ctx)) },
		"DaemonStatus":   func(ctx context.Context) error { return second(c.DaemonStatus(ctx)) },
		"DaemonStart":    func(ctx context.Context) error { return c.DaemonStart(ctx) },
		"DaemonStop":     func(ctx context.Context) error { return c.DaemonStop(ctx) },
		"DaemonRestart":  func(ctx context.Context) error { return c.DaemonRestart(ctx) },
		"CheckSignedIn":  func(ctx context.Context) error { return c.CheckSignedIn(ctx) },
		"Login":          func(ctx context.Context) error { return c.Login(ctx, "demo", value) },
		"Logout":         func(ctx context.Context) error { return c.Logout(ctx) },
		"Reset":          func(ctx context.Context) error { return c.Reset(ctx, false) },
	}
}

// TestNothingRunsUnasked: before any verb runs, the program is known to be an engine, and one that can be driven. No method
// is left out of the question.
func TestNothingRunsUnasked(t *testing.T) {
	methods := reflect.TypeFor[*sbx.Client]()
	known := everyMethod(t, sbx.New("sbx", canned{}.runner(t)))
	for i := range methods.NumMethod() {
		m := methods.Method(i)
		if m.Type.NumIn() > 1 && m.Type.In(1) == reflect.TypeFor[context.Context]() && known[m.Name] == nil {
			t.Errorf("%s is not in the table of this test", m.Name)
		}
	}
	for name, tt := range map[string]struct {
		answers map[string]sbx.Result // to the whole command line; anything else may not be sent
		opts    []sbx.Option
		want    error
		says    string
		but     []string // methods that have nothing to refuse
	}{
		"too old": {
			map[string]sbx.Result{"version --json": says("", "ERROR: unknown flag: --json\n", 1), "version": says("sbx version: v0.34.2 0123\n", "", 0)},
			nil, sbx.ErrUnsupported, "; installed is sbx 0.34.2", []string{"Version"},
		},
		"no cloud": {
			map[string]sbx.Result{"version --json": says("", "ERROR: unknown flag: --json\n", 1), "version": says("sbx version: v0.39.0 0123\n", "", 0)},
			[]sbx.Option{sbx.WithCloud()}, sbx.ErrUnsupported, "", []string{"Version"},
		},
		"no cloud on sbx-local": {
			map[string]sbx.Result{"version --json": says(`{"client":{"version":"v0.47.0","engine":"sbx-local","engine_version":"0.1"}}`, "", 0)},
			[]sbx.Option{sbx.WithCloud()}, sbx.ErrUnsupported, "", []string{"Version"},
		},
		"another tool": {
			map[string]sbx.Result{"version --json": says("", "Error: unknown flag: --json\nUsage:\n  sbx [command]\n", 1), "version": says("", "Error: unknown command \"version\" for \"sbx\"\n", 1)},
			nil, sbx.ErrForeignTool, "", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runner := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
				res, found := tt.answers[strings.Join(c.Args, " ")]
				if !found {
					t.Errorf("ran %q", c.Args)
				}
				return res, nil
			})
			for method := range known {
				if slices.Contains(tt.but, method) {
					continue
				}
				c := sbx.New("sbx", append(tt.opts, sbx.WithRunner(runner))...)
				err := everyMethod(t, c)[method](t.Context())
				if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v", method, err)
				}
			}
		})
	}
}

// TestForeignTool has what other tools answer to "version". What Docker's sbx may say is another error, which tells why.
func TestForeignTool(t *testing.T) {
	flag := says("", "Error: unknown flag: --json\nUsage:\n  sbx version [flags]\n", 1)
	for name, tt := range map[string]struct {
		json, text sbx.Result
		want       []error
	}{
		"cobra, no such verb":       {says("", "Error: unknown command \"version\" for \"sbx\"\nRun 'sbx --help' for usage.\n", 1), says("", "Error: unknown command \"version\" for \"sbx\"\n", 1), []error{sbx.ErrForeignTool}},
		"cobra, no such flag":       {flag, says("", "Error: unknown command \"version\" for \"sbx\"\n", 1), []error{sbx.ErrForeignTool}},
		"cobra, its own version":    {flag, says("sbx version 1.2.3\n", "", 0), []error{sbx.ErrForeignTool}},
		"clap":                      {says("", "error: unexpected argument '--json' found\n", 2), says("", "error: unrecognized subcommand 'version'\n", 2), []error{sbx.ErrForeignTool}},
		"click":                     {says("", "Error: No such option: --json\n", 2), says("", "Error: No such command 'version'.\n", 2), []error{sbx.ErrForeignTool}},
		"commander":                 {says("", "error: unknown option '--json'\n", 1), says("1.0.0\n", "", 0), []error{sbx.ErrForeignTool}},
		"argparse":                  {says("", "usage: sbx [-h]\nsbx: error: unrecognized arguments: version --json\n", 2), says("", "usage: sbx [-h]\n", 2), []error{sbx.ErrForeignTool}},
		"takes anything":            {says("hello\n", "", 0), says("hello\n", "", 0), []error{sbx.ErrForeignTool}},
		"a client of another thing": {flag, says("Client Version: v1.30.0\nKustomize Version: v5.0.4\n", "", 0), []error{sbx.ErrForeignTool}},
		"JSON of another thing":     {says(`{"version":"1.2.3"}`, "", 0), sbx.Result{}, []error{sbx.ErrForeignTool}},
		"not there":                 {says("", "", 127), says("", "", 127), []error{sbx.ErrForeignTool}},
		"sbx with a broken daemon":  {says("", string(fixture(t, "error-daemon-start-timeout.txt")), 1), sbx.Result{}, []error{sbx.ErrDaemon}},
		"sbx with a new complaint":  {says("", "error: something new\n", 1), says("", "error: something new\n", 1), nil},
		"sbx without --app-name":    {says("", "ERROR: unknown flag: --app-name\n", 1), says("", "ERROR: unknown flag: --app-name\n", 1), []error{sbx.ErrRefusedFlag}},
	} {
		t.Run(name, func(t *testing.T) {
			c := sbx.New("", canned{"version --json": tt.json, "version": tt.text}.runner(t))
			_, err := c.List(t.Context())
			if err == nil {
				t.Fatal("taken for an engine")
			}
			wantKinds(t, err, tt.want...)
		})
	}
}

// TestVersionAskedOnce: many callers, one question, one warning, which is seen without a logger of one's own.
func TestVersionAskedOnce(t *testing.T) {
	var log warnings
	old := slog.Default()
	slog.SetDefault(log.logger())
	defer slog.SetDefault(old)
	var mu sync.Mutex
	asked := 0
	runner := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
		if c.Args[0] == "version" {
			mu.Lock()
			asked++
			mu.Unlock()
			return says(`{"client":{"version":"v0.99.0"}}`, "", 0), nil
		}
		return says(`{"sandboxes":[]}`, "", 0), nil
	})
	c := sbx.New("sbx", sbx.WithRunner(runner))
	u := c.Unverified()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := c.List(t.Context()); err != nil {
				t.Error(err)
			}
			if err := u.Stop(t.Context(), "box"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if asked != 1 || log.count() != 1 || !strings.Contains(log.text.String(), "0.99.0") {
		t.Errorf("asked %d times, said %q", asked, log.text.String())
	}
	_, err := sbx.New("sbx", sbx.WithRunner(runner), sbx.WithoutVersionWarnings()).List(t.Context())
	ok(t, err)
	if log.count() != 1 {
		t.Errorf("said %q", log.text.String())
	}
}

// TestMismatchQuestion: the version verb of 0.37 says both versions and then asks to restart the daemon. The versions count.
func TestMismatchQuestion(t *testing.T) {
	text := string(fixture(t, "version-mismatch-0.37.txt"))
	for _, res := range []sbx.Result{says(text, "", 0), says(text, "ERROR: user cancelled operation\n", 1)} {
		var log warnings
		c := sbx.New("", canned{"version --json": says("", "ERROR: unknown flag: --json\n", 1), "version": res}.runner(t), sbx.WithLogger(log.logger()))
		v, err := c.Version(t.Context())
		ok(t, err)
		if !v.Mismatch() || v.Client.String() != "0.37.0" || v.Server.String() != "0.35.0" || log.count() != 1 {
			t.Errorf("%+v, %d warnings", v, log.count())
		}
	}
}
