package sbx_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// TestEveryVersion takes a sandbox through its life on every version that the fake speaks. What a version cannot do is an
// UnsupportedError, and then nothing was run.
func TestEveryVersion(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			e := newEngine(t, version).script(`policy: ""`)
			c := e.client()
			ctx := t.Context()
			work := t.TempDir()

			v, err := c.Version(ctx)
			ok(t, err)
			if got := v.Client.String(); got != version+".0" || v.Engine != sbx.EngineSbx || v.Untested() {
				t.Fatalf("version %+v", v)
			}
			minor := v.Client.Minor

			// unsupported reports whether err is the refusal that is due below since, and fails if it should not be one.
			unsupported := func(since int, err error) bool {
				t.Helper()
				var u *sbx.UnsupportedError
				if minor >= since {
					ok(t, err)
					return false
				}
				if !errors.As(err, &u) || !errors.Is(err, sbx.ErrUnsupported) || !strings.Contains(err.Error(), "sbx 0.") {
					t.Fatalf("error %v, want an UnsupportedError", err)
				}
				return true
			}

			_, err = c.Create(ctx, sbx.CreateSpec{Name: "box-a", Workspaces: []sbx.Workspace{{Path: work}}})
			if !errors.Is(err, sbx.ErrPolicyUninitialised) || sbx.Hint(err) == "" {
				t.Fatalf("create without a policy: %v", err)
			}
			ok(t, c.PolicyInit(ctx, sbx.PresetDenyAll))
			if err := c.PolicyInit(ctx, sbx.PresetDenyAll); !errors.Is(err, sbx.ErrExists) {
				t.Fatalf("second init: %v", err)
			}

			spec := sbx.CreateSpec{
				Name: "box-a", Workspaces: []sbx.Workspace{{Path: work}, {Path: t.TempDir(), ReadOnly: true}},
				CPUs: 2, MemoryMiB: 1024, Publish: []string{"18080:8080"}, SkillsOff: true,
			}
			box, err := c.Create(ctx, spec)
			ok(t, err)
			if box.Name != "box-a" || box.Status != sbx.StatusRunning || box.ID == "" || box.Workspaces[0] != work || len(box.Ports) == 0 {
				t.Errorf("created %+v", box)
			}
			if _, err := c.Create(ctx, spec); !errors.Is(err, sbx.ErrExists) {
				t.Errorf("create again: %v", err)
			}
			before := len(e.calls())
			_, err = c.Create(ctx, sbx.CreateSpec{Name: "box-b", Workspaces: spec.Workspaces[:1], Env: []sbx.EnvVar{{Name: "A", Value: "b c"}}})
			if unsupported(39, err) && len(e.calls()) != before {
				t.Error("something ran before the refusal")
			}
			_, err = c.Create(ctx, sbx.CreateSpec{Name: "box-c", Workspaces: spec.Workspaces[:1], DenyNetwork: []string{"example.com"}})
			unsupported(38, err)
			_, err = c.Create(ctx, sbx.CreateSpec{Name: "box-d"})
			unsupported(42, err)
			_, err = c.Create(ctx, sbx.CreateSpec{Name: "box-e", Local: sbx.LocalOptions{Resolve: map[string]string{"example.com": "127.0.0.1:1"}}})
			if !errors.Is(err, sbx.ErrUnsupported) || !strings.Contains(err.Error(), "needs sbx-local") {
				t.Errorf("local options on sbx: %v", err)
			}

			_, err = c.Run(ctx, spec) // nothing shows of which size it is
			wantKinds(t, err, sbx.ErrNotApplied)
			spec.CPUs, spec.MemoryMiB = 0, 0
			_, err = c.Run(ctx, spec)
			ok(t, err)
			ok(t, c.KeepAlive(ctx, "box-a"))
			in, err := c.Inspect(ctx, "box-a")
			ok(t, err)
			if in.State != sbx.StatusRunning || in.Workspace != work {
				t.Errorf("inspection %+v", in)
			}

			res, err := c.Exec(ctx, "box-a", sbx.ExecSpec{Argv: []string{"printenv", "SANDBOX_NAME", "X"}, Env: []sbx.EnvVar{{Name: "X", Value: "a=b"}}})
			ok(t, err)
			if string(res.Stdout) != "box-a\na=b\n" {
				t.Errorf("printenv: %q", res.Stdout)
			}
			res, err = c.Exec(ctx, "box-a", sbx.ExecSpec{Argv: []string{"cat"}, Stdin: strings.NewReader("in\n")})
			ok(t, err)
			if string(res.Stdout) != "in\n" {
				t.Errorf("cat: %q", res.Stdout)
			}

			ids, err := c.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: "box-a", Resources: []string{"API.example.com:443", "example.org"}})
			ok(t, err)
			if len(ids) != 2 {
				t.Errorf("ids %q", ids)
			}
			verdict, err := c.PolicyCheck(ctx, "box-a", "example.org")
			ok(t, err)
			if !verdict.Allowed {
				t.Errorf("verdict %+v", verdict)
			}
			if verdict, err = c.PolicyCheck(ctx, "box-a", "example.net"); err != nil || verdict.Allowed {
				t.Errorf("verdict %+v, %v", verdict, err)
			}
			if _, err := c.PolicyDeny(ctx, sbx.PolicyRule{Sandbox: "box-a", Resources: []string{"example.org"}}); !errors.Is(err, sbx.ErrConflict) {
				t.Errorf("deny of what is allowed: %v", err)
			}
			if _, err := c.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: "nobody", Resources: []string{"example.org"}}); !errors.Is(err, sbx.ErrNotFound) {
				t.Errorf("rule for nobody: %v", err)
			}
			_, err = c.PolicyDeny(ctx, sbx.PolicyRule{Sandbox: "box-a", Resources: []string{"github.com"}, Methods: []string{"POST"}, Path: "/**/git-receive-pack"})
			unsupported(45, err)
			_, err = c.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: "box-a", Resources: []string{"udp.example.com:53"}, Protocol: "udp"})
			unsupported(45, err)
			rule, err := c.PolicyInspect(ctx, ids[0])
			if !unsupported(42, err) && rule.Sandbox != "box-a" {
				t.Errorf("rule %+v", rule)
			}
			ok(t, c.PolicyRemove(ctx, sbx.RuleRef{Sandbox: "box-a", ID: ids[0]}))
			ok(t, c.PolicyRemove(ctx, sbx.RuleRef{Sandbox: "box-a", ID: ids[0]})) // gone is success
			ok(t, c.PolicyRemove(ctx, sbx.RuleRef{Sandbox: "box-a", Resources: []string{"example.org"}}))
			log, err := c.PolicyLog(ctx, "box-a", 10)
			ok(t, err)
			if len(log.Blocked) != 0 {
				t.Errorf("log %+v", log)
			}

			token := secrets.New("github_pat_11ABCDEFG0canarycanarycanary")
			ok(t, c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "box-a", Value: token}))
			ok(t, c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "box-a", Value: token})) // overwrites
			ok(t, c.SecretSet(ctx, sbx.ServiceSecret{Service: "anthropic", Value: token}))
			placeholder, err := c.SecretSetCustom(ctx, sbx.CustomSecret{Sandbox: "box-a", Env: "KEY", Hosts: []string{"api.example.com"}, Command: "/bin/echo x"})
			if !unsupported(42, err) {
				_, err = c.SecretSetCustom(ctx, sbx.CustomSecret{Sandbox: "box-a", Env: "KEY", Hosts: []string{"api.example.com"}, Placeholder: "other-placeholder", Command: "/bin/echo x"})
				if !errors.Is(err, sbx.ErrExists) {
					t.Errorf("second placeholder: %v", err)
				}
				ok(t, c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretCustom, Sandbox: "box-a", Placeholder: placeholder}))
			}
			err = c.SecretSetRegistry(ctx, sbx.RegistryCredential{Host: "registry.example.com", Username: "u", Value: token})
			if !unsupported(38, err) {
				ok(t, c.SecretRemove(ctx, sbx.Secret{Type: sbx.SecretRegistry, Sandbox: sbx.HostScope, Name: "registry.example.com"}))
			}
			listed, err := c.SecretList(ctx)
			ok(t, err)
			want := []sbx.Secret{{Type: sbx.SecretService, Sandbox: "box-a", Name: "github"}, {Type: sbx.SecretService, Name: "anthropic"}}
			if !slices.EqualFunc(listed, want, func(a, b sbx.Secret) bool { return asJSON(t, a) == asJSON(t, b) }) || !listed[1].Global() {
				t.Errorf("secrets %+v", listed)
			}
			ok(t, c.SecretRemove(ctx, want[0]))
			ok(t, c.SecretRemove(ctx, want[0])) // gone is success
			ok(t, c.SecretRemove(ctx, want[1]))
			_, err = c.SecretImport(ctx, "", true)
			ok(t, err)

			ports, err := c.Publish(ctx, "box-a", "127.0.0.1:18081:9000/tcp4")
			ok(t, err)
			if len(ports) != 1 || ports[0].String() != "127.0.0.1:18081->9000/tcp4" {
				t.Errorf("published %v", ports)
			}
			if _, err := c.Publish(ctx, "box-a", "127.0.0.1:18081:9001"); !errors.Is(err, sbx.ErrConflict) {
				t.Errorf("same port: %v", err)
			}
			ok(t, c.Unpublish(ctx, "box-a", ports[0]))
			ok(t, c.Unpublish(ctx, "box-a", ports[0])) // gone is success

			file := filepath.Join(work, "f.txt")
			ok(t, os.WriteFile(file, []byte("hello"), 0o600))
			ok(t, os.MkdirAll(filepath.Join(work, "tree", "sub"), 0o755))
			ok(t, os.WriteFile(filepath.Join(work, "tree", "sub", "g"), []byte("g"), 0o644))
			ok(t, c.CopyIn(ctx, "box-a", file, "/home/agent/f.txt"))
			ok(t, c.CopyIn(ctx, "box-a", filepath.Join(work, "tree"), "/home/agent/tree"))
			ok(t, c.CopyIn(ctx, "box-a", filepath.Join(work, "tree"), "/home/agent/tree")) // into the directory that is there
			out := filepath.Join(t.TempDir(), "out.txt")
			err = c.CopyOut(ctx, "box-a", "/home/agent/f.txt", out)
			if !unsupported(38, err) {
				if b, err := os.ReadFile(out); err != nil || string(b) != "hello" {
					t.Errorf("copied out %q, %v", b, err)
				}
			}

			if err := c.TemplateSave(ctx, "box-a", "demo:v1", ""); !errors.Is(err, sbx.ErrPrompt) || !errors.Is(err, sbx.ErrConflict) || sbx.Hint(err) != "stop it first: sbx stop box-a" {
				t.Errorf("save of a running sandbox: %v (%s)", err, sbx.Hint(err))
			}
			ok(t, c.Stop(ctx, "box-a"))
			tar := filepath.Join(t.TempDir(), "demo.tar")
			ok(t, c.TemplateSave(ctx, "box-a", "demo:v1", tar))
			images, err := c.TemplateList(ctx)
			ok(t, err)
			if len(images) != 1 || images[0].Repository != "demo" || images[0].Tag != "v1" {
				t.Errorf("images %+v", images)
			}
			ok(t, c.TemplateRemove(ctx, "demo:v1"))
			ok(t, c.TemplateRemove(ctx, "demo:v1")) // gone is success
			ok(t, c.TemplateLoad(ctx, tar))

			settings, err := c.Settings(ctx)
			ok(t, err)
			if len(settings) == 0 {
				t.Error("no settings")
			}
			setting, err := c.SetSetting(ctx, "ssh.agentForwardingEnabled", "false")
			ok(t, err)
			if setting.Value != false || !setting.RequiresRestart {
				t.Errorf("setting %+v", setting)
			}
			ok(t, c.UnsetSetting(ctx, "ssh.agentForwardingEnabled"))

			d, err := c.Diagnose(ctx)
			ok(t, err)
			if auth, found := d.Check("Authentication"); !found || auth.Status != sbx.CheckPass || len(d.Failed()) > 0 {
				t.Errorf("diagnosis %+v", d)
			}

			report, err := c.Prune(ctx, sbx.PruneSpec{DryRun: true})
			ok(t, err)
			if !slices.Contains(report.Removed, "box-a") {
				t.Errorf("prune would remove %q", report.Removed)
			}
			_, err = c.Prune(ctx, sbx.PruneSpec{Until: "1h", DryRun: true})
			unsupported(43, err)
			_, err = c.Prune(ctx, sbx.PruneSpec{})
			ok(t, err)
			ok(t, c.Remove(ctx, "box-a", "box-b", "box-c", "box-d", "box-a"))
			left, err := c.List(ctx)
			ok(t, err)
			if len(left) != 0 {
				t.Errorf("left: %+v", left)
			}

			unsupported(38, c.DaemonRestart(ctx))
			ok(t, c.DaemonStop(ctx))
			ok(t, c.DaemonStop(ctx)) // stopped is success
			ok(t, c.DaemonStart(ctx))
			ok(t, c.Logout(ctx))
			if err := c.CheckSignedIn(ctx); !errors.Is(err, sbx.ErrNotSignedIn) || sbx.Hint(err) != "sbx login" {
				t.Errorf("signed out: %v", err)
			}
			d, err = c.Diagnose(ctx)
			ok(t, err)
			if len(d.Failed()) != 1 {
				t.Errorf("diagnosis while signed out: %+v", d)
			}
			ok(t, c.Login(ctx, "demo", token))
			ok(t, c.Reset(ctx, true))

			for _, line := range e.calls() {
				if strings.Contains(line, "canary") {
					t.Errorf("a value on the command line: %s", line)
				}
			}
		})
	}
}

// TestPairCost counts the engine calls that a pair costs a caller who batches its read-backs.
func TestPairCost(t *testing.T) {
	e := newEngine(t, "0.47")
	ctx := t.Context()
	lookPath := func(string) (string, error) { return "/usr/bin/sbx", nil }
	found, err := sbx.Locate(ctx, sbx.LocateOptions{LookPath: lookPath, Client: []sbx.Option{sbx.WithRunner(sbx.RunnerFunc(e.run))}})
	ok(t, err)
	c := found.Client()
	u := c.Unverified()
	names := []string{"pair-agent", "pair-github"}
	var specs []sbx.CreateSpec
	var rules []sbx.PolicyRule
	var bindings []sbx.Secret
	for i, name := range names {
		specs = append(specs, sbx.CreateSpec{Name: name})
		rules = append(rules, sbx.PolicyRule{Sandbox: name, Resources: []string{"api.github.com:443", "github.com:443"}})
		bindings = append(bindings, sbx.Secret{Type: sbx.SecretService, Sandbox: name, Name: "github"})
		_, err := u.Create(ctx, specs[i])
		ok(t, err)
		_, err = u.PolicyAllow(ctx, rules[i])
		ok(t, err)
		ok(t, u.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: name, Value: secrets.New("canary-value")}))
	}
	_, err = c.VerifyCreated(ctx, specs...)
	ok(t, err)
	ok(t, c.VerifyRules(ctx, rules...))
	ok(t, c.VerifySecrets(ctx, bindings...))
	if calls := e.calls(); len(calls) != 12 {
		t.Errorf("%d calls:\n%s", len(calls), strings.Join(calls, "\n"))
	}
}
