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

// TestLiar: an engine that says done and does nothing is found out by every method that changes something.
func TestLiar(t *testing.T) {
	value := secrets.New("canary-value")
	type step = func(t *testing.T, c *sbx.Client) error
	box := func(t *testing.T, c *sbx.Client) error {
		return second(c.Create(t.Context(), sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: t.TempDir()}}}))
	}
	stopped := func(t *testing.T, c *sbx.Client) error {
		ok(t, box(t, c))
		return c.Stop(t.Context(), "box")
	}
	template := func(t *testing.T, c *sbx.Client) error {
		ok(t, stopped(t, c))
		return c.TemplateSave(t.Context(), "box", "demo:v1", "")
	}
	file := func(t *testing.T) string {
		f := filepath.Join(t.TempDir(), "f")
		ok(t, os.WriteFile(f, []byte("x"), 0o600))
		return f
	}
	rule := sbx.PolicyRule{Resources: []string{"a.example:443"}}
	for name, tt := range map[string]struct {
		verb   string // pattern of the call that is a lie
		before step
		lie    step
		says   string
	}{
		"create": {"^create", nil, box, "sandbox box is not in the listing"},
		"run": {"^run", nil, func(t *testing.T, c *sbx.Client) error {
			return second(c.Run(t.Context(), sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: t.TempDir()}}}))
		}, "box is not in the listing"},
		"run, another": {"^run", box, func(t *testing.T, c *sbx.Client) error {
			return second(c.Run(t.Context(), sbx.CreateSpec{Name: "box", Workspaces: []sbx.Workspace{{Path: t.TempDir()}}}))
		}, "box has workspace"},
		"keep-alive":       {"^run", stopped, func(t *testing.T, c *sbx.Client) error { return c.KeepAlive(t.Context(), "box") }, "box is stopped"},
		"keep-alive, gone": {"^run", nil, func(t *testing.T, c *sbx.Client) error { return c.KeepAlive(t.Context(), "box") }, "box is not in the listing"},
		"stop":             {"^stop", box, func(t *testing.T, c *sbx.Client) error { return c.Stop(t.Context(), "box") }, "box is still running"},
		"stop, gone":       {"^stop", nil, func(t *testing.T, c *sbx.Client) error { return c.Stop(t.Context(), "box") }, "box is not in the listing"},
		"rm":               {"^rm", box, func(t *testing.T, c *sbx.Client) error { return c.Remove(t.Context(), "box") }, "box is still there"},
		"prune":            {"^prune --force", stopped, func(t *testing.T, c *sbx.Client) error { return second(c.Prune(t.Context(), sbx.PruneSpec{})) }, "box is still there"},
		"publish":          {"^ports .*--publish", box, func(t *testing.T, c *sbx.Client) error { return second(c.Publish(t.Context(), "box", "18080:80")) }, "18080:80 is not in the listing"},
		"unpublish": {"^ports .*--unpublish", func(t *testing.T, c *sbx.Client) error {
			ok(t, box(t, c))
			return second(c.Publish(t.Context(), "box", "18080:80"))
		}, func(t *testing.T, c *sbx.Client) error {
			return c.Unpublish(t.Context(), "box", sbx.Port{HostPort: 18080, SandboxPort: 80})
		}, "18080->80/tcp"},
		"policy init":  {"^policy init", nil, func(t *testing.T, c *sbx.Client) error { return c.PolicyInit(t.Context(), sbx.PresetDenyAll) }, "the preset is balanced, not deny-all"},
		"policy allow": {"^policy allow", nil, func(t *testing.T, c *sbx.Client) error { return second(c.PolicyAllow(t.Context(), rule)) }, "allow a.example:443 (global)"},
		"policy deny":  {"^policy deny", nil, func(t *testing.T, c *sbx.Client) error { return second(c.PolicyDeny(t.Context(), rule)) }, "deny a.example:443 (global)"},
		"policy rm": {"^policy rm", func(t *testing.T, c *sbx.Client) error { return second(c.PolicyAllow(t.Context(), rule)) }, func(t *testing.T, c *sbx.Client) error {
			return c.PolicyRemove(t.Context(), sbx.RuleRef{Resources: rule.Resources})
		}, "is still there"},
		"policy reset": {"^policy reset", nil, func(t *testing.T, c *sbx.Client) error { return c.PolicyReset(t.Context()) }, "there is a policy"},
		"secret set": {"^secret set ", nil, func(t *testing.T, c *sbx.Client) error {
			return c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Value: value})
		}, "service secret github (global)"},
		"secret set, by command": {"^secret set ", nil, func(t *testing.T, c *sbx.Client) error {
			return c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Command: "/bin/x"})
		}, "service secret github (global)"},
		"secret set-custom": {"^secret set-custom", nil, func(t *testing.T, c *sbx.Client) error {
			return second(c.SecretSetCustom(t.Context(), sbx.CustomSecret{Hosts: []string{"a.example"}, Placeholder: "placeholder-of-mine", Command: "/bin/x"}))
		}, "custom secret placeholder-of-mine"},
		"secret set --registry": {"^secret set --registry", nil, func(t *testing.T, c *sbx.Client) error {
			return c.SecretSetRegistry(t.Context(), sbx.RegistryCredential{Host: "a.example", Value: value})
		}, "registry secret a.example"},
		"secret rm": {"^secret rm", func(t *testing.T, c *sbx.Client) error {
			return c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Value: value})
		}, func(t *testing.T, c *sbx.Client) error {
			return c.SecretRemove(t.Context(), sbx.Secret{Name: "github"})
		}, "github (global) is still there"},
		"secret rm, custom": {"^secret rm", func(t *testing.T, c *sbx.Client) error {
			return second(c.SecretSetCustom(t.Context(), sbx.CustomSecret{Hosts: []string{"a.example"}, Env: "K", Placeholder: "placeholder-of-mine", Command: "/bin/x"}))
		}, func(t *testing.T, c *sbx.Client) error {
			return c.SecretRemove(t.Context(), sbx.Secret{Type: sbx.SecretCustom, Placeholder: "placeholder-of-mine", Env: "OLD_NAME", Hosts: []string{"b.example"}})
		}, "is still there"},
		"secret import":        {"^secret import", nil, func(t *testing.T, c *sbx.Client) error { return second(c.SecretImport(t.Context(), "github", false)) }, "service secret github (global)"},
		"secret import, all":   {"^secret import", nil, func(t *testing.T, c *sbx.Client) error { return second(c.SecretImport(t.Context(), "", false)) }, "no global secret"},
		"template save":        {"^template save", stopped, func(t *testing.T, c *sbx.Client) error { return c.TemplateSave(t.Context(), "box", "demo:v1", "") }, "template demo:v1 is not in the listing"},
		"template save, again": {"^template save", template, func(t *testing.T, c *sbx.Client) error { return c.TemplateSave(t.Context(), "box", "demo:v1", "") }, "template demo:v1 is the one of before"},
		"template save, file": {"^template save .*--output", template, func(t *testing.T, c *sbx.Client) error {
			return c.TemplateSave(t.Context(), "box", "demo:v1", filepath.Join(t.TempDir(), "a.tar"))
		}, "the file was not written"},
		"template save, old file": {"^template save .*--output", template, func(t *testing.T, c *sbx.Client) error { return c.TemplateSave(t.Context(), "box", "demo:v1", file(t)) }, "is the one of before"},
		"template load":           {"^template load", nil, func(t *testing.T, c *sbx.Client) error { return c.TemplateLoad(t.Context(), image(t)) }, "template demo:v2 is not in the listing"},
		"template load, untagged": {"^template load", template, func(t *testing.T, c *sbx.Client) error { return c.TemplateLoad(t.Context(), file(t)) }, "no template came from"},
		"template rm":             {"^template rm", template, func(t *testing.T, c *sbx.Client) error { return c.TemplateRemove(t.Context(), "demo:v1") }, "template demo:v1 is still there"},
		"settings set": {"^settings set", nil, func(t *testing.T, c *sbx.Client) error {
			return second(c.SetSetting(t.Context(), "ssh.agentForwardingEnabled", "false"))
		}, "ssh.agentForwardingEnabled is true"},
		"settings unset": {"^settings unset", func(t *testing.T, c *sbx.Client) error {
			return second(c.SetSetting(t.Context(), "ssh.agentForwardingEnabled", "false"))
		}, func(t *testing.T, c *sbx.Client) error {
			return c.UnsetSetting(t.Context(), "ssh.agentForwardingEnabled")
		}, "ssh.agentForwardingEnabled is false (source user)"},
		"daemon start":         {"^daemon start", nil, func(t *testing.T, c *sbx.Client) error { return c.DaemonStart(t.Context()) }, "daemon is stopped"},
		"daemon stop":          {"^daemon stop", func(t *testing.T, c *sbx.Client) error { return c.DaemonStart(t.Context()) }, func(t *testing.T, c *sbx.Client) error { return c.DaemonStop(t.Context()) }, "daemon is running"},
		"daemon restart":       {"^daemon restart", box, func(t *testing.T, c *sbx.Client) error { return c.DaemonRestart(t.Context()) }, "sandbox box runs on"},
		"daemon restart, none": {"^daemon restart", nil, func(t *testing.T, c *sbx.Client) error { return c.DaemonRestart(t.Context()) }, "daemon is stopped"},
		"logout":               {"^logout", nil, func(t *testing.T, c *sbx.Client) error { return c.Logout(t.Context()) }, "signed in"},
		"reset":                {"^reset", box, func(t *testing.T, c *sbx.Client) error { return c.Reset(t.Context(), false) }, "sandbox box is still there"},
		"cp in":                {"^cp ", box, func(t *testing.T, c *sbx.Client) error { return c.CopyIn(t.Context(), "box", file(t), "/f") }, `file "f" of 1 bytes did not arrive`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, version := range []string{"0.35", "0.47"} {
				e := newEngine(t, version)
				c := e.client()
				if tt.before != nil {
					if err := tt.before(t, c); errors.Is(err, sbx.ErrUnsupported) {
						continue
					} else if err != nil {
						t.Fatal(err)
					}
				}
				e.script(`calls: [{match: "` + tt.verb + `"}]`)
				err := tt.lie(t, c)
				if errors.Is(err, sbx.ErrUnsupported) && version != "0.47" {
					continue
				}
				wantKinds(t, err, sbx.ErrNotApplied)
				if !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v does not say %q", version, err, tt.says)
				}
			}
		})
	}
}

// TestCreatedOtherwise: a sandbox that is there, and is not what was asked for.
func TestCreatedOtherwise(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	spec := sbx.CreateSpec{
		Name: "box", Workspaces: []sbx.Workspace{{Path: a}, {Path: b, ReadOnly: true}}, Publish: []string{"127.0.0.1:18080:80"},
		DenyNetwork: []string{"a.example", "**.b.example"}, Env: []sbx.EnvVar{{Name: "A", Value: "x y"}, {Name: "EMPTY", Value: ""}},
	}
	e := newEngine(t, "0.47")
	if s, err := e.client().Create(t.Context(), spec); err != nil || len(s.Workspaces) != 2 || len(s.Ports) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	for name, tt := range map[string]struct {
		as   string // the create that really happens
		says string
	}{
		"workspace":       {"create --name box -p 127.0.0.1:18080:80 --deny-network a.example --deny-network **.b.example -e EMPTY= -e A=x_y shell " + a, "has no workspace " + b},
		"no primary":      {"create --name box -p 127.0.0.1:18080:80 shell " + b, "has workspace " + b + ", not " + a},
		"order":           {"create --name box -p 127.0.0.1:18080:80 shell " + b + " " + a, "has " + b + " for its primary workspace, not " + a},
		"one too many":    {"create --name box -p 127.0.0.1:18080:80 shell " + a + " " + b + " " + filepath.Dir(a), "sees " + filepath.Dir(a) + ", which was not asked for"},
		"agent":           {"create --name box -p 127.0.0.1:18080:80 claude " + a + " " + b, "has agent claude, not shell"},
		"port":            {"create --name box -p 127.0.0.1:18081:80 shell " + a + " " + b, "does not publish 127.0.0.1:18080:80"},
		"address":         {"create --name box -p 0.0.0.0:18080:80 shell " + a + " " + b, "does not publish 127.0.0.1:18080:80"},
		"denied host":     {"create --name box -p 127.0.0.1:18080:80 --deny-network **.b.example -e EMPTY= -e A=x_y shell " + a + " " + b, "no rule that denies a.example"},
		"denied wildcard": {"create --name box -p 127.0.0.1:18080:80 --deny-network a.example -e EMPTY= -e A=x_y shell " + a + " " + b, "no rule that denies **.b.example"},
		"variable":        {"create --name box -p 127.0.0.1:18080:80 --deny-network a.example --deny-network **.b.example -e EMPTY= -e A=z shell " + a + " " + b, "another A in its environment, or none"},
		"no variable":     {"create --name box -p 127.0.0.1:18080:80 --deny-network a.example --deny-network **.b.example -e EMPTY= shell " + a + " " + b, "another A in its environment, or none"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, "0.47")
			args := strings.Fields(tt.as)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "x_y", "x y")
			}
			e.call(args...)
			e.script(`calls: [{match: "^create"}]`)
			_, err := e.client().Create(t.Context(), spec)
			wantKinds(t, err, sbx.ErrNotApplied)
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v does not say %q", err, tt.says)
			}
		})
	}
	// A version that keeps denials out of its listing, and says that the host is denied by a rule.
	e = newEngine(t, "0.47").script(`calls: [{match: "^policy ls", stdout: '{"rules":[]}'}]`)
	ok(t, second(e.client().Create(t.Context(), sbx.CreateSpec{Name: "box", DenyNetwork: []string{"a.example"}})))
	_, err := e.client().Create(t.Context(), sbx.CreateSpec{Name: "box-b", DenyNetwork: []string{"**"}})
	wantKinds(t, err, sbx.ErrNotApplied)
}

func second(_ any, err error) error { return err }

// image is an archive as docker save writes it, with the tag demo:v2.
func image(t *testing.T) string {
	t.Helper()
	e := newEngine(t, "0.47")
	file := filepath.Join(t.TempDir(), "image.tar")
	e.call("create", "--name", "box", "shell")
	e.call("stop", "box")
	e.call("template", "save", "box", "demo:v2", "-o", file)
	return file
}

// TestPresets: what was chosen is what is there.
func TestPresets(t *testing.T) {
	for _, preset := range []sbx.Preset{sbx.PresetAllowAll, sbx.PresetBalanced, sbx.PresetDenyAll} {
		e := newEngine(t, "0.47").script(`policy: ""`)
		ok(t, e.client().PolicyInit(t.Context(), preset))
		rules, err := e.client().PolicyList(t.Context(), "")
		ok(t, err)
		if got, known := sbx.PresetOf(rules); got != preset || !known {
			t.Errorf("%s is read as %s", preset, got)
		}
	}
	rules, err := sbx.ParseRules(fixture(t, "policy-ls-0.47.json"))
	ok(t, err)
	if got, known := sbx.PresetOf(rules); got != sbx.PresetBalanced || !known {
		t.Errorf("the recorded one is read as %q", got)
	}
	c := sbx.New("", v47(), canned{"policy init": says("", "", 0), "policy ls": says(`{"rules":[]}`, "", 0)}.runner(t))
	wantKinds(t, c.PolicyInit(t.Context(), sbx.PresetDenyAll), sbx.ErrNotApplied)
}

// TestRuleLeft: a rule is looked for by what names it, wherever it stands.
func TestRuleLeft(t *testing.T) {
	listing := `{"rules":[
		{"id":"1","scope":"sandbox:box","resource_type":"network","decision":"allow","resources":["a.example"]},
		{"id":"2","scope":"global","resource_type":"http","decision":"deny","resources":null,"http_targets":[{"host":"b.example","path":"/x"}]},
		{"id":"3","scope":"global","resource_type":"filesystem:read","decision":"deny","resources":["/"]},
		{"id":"4","scope":"global","resource_type":"network","decision":"allow","resources":["kit.example"],"origin":"kit"}]}`
	for _, verb := range []struct {
		said string
		code int
	}{{"Policy removed\n", 0}, {"remove-resource: rule not found\n", 1}} {
		c := sbx.New("", v47(), canned{"policy rm": says("", verb.said, verb.code), "policy ls": says(listing, "", 0)}.runner(t))
		for name, ref := range map[string]sbx.RuleRef{
			"another scope":   {ID: "1"},
			"by target":       {Resources: []string{"b.example"}},
			"of another type": {ID: "3"},
		} {
			if err := c.PolicyRemove(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "is still there") {
				t.Errorf("%s, exit %d: %v", name, verb.code, err)
			}
		}
		ok(t, c.PolicyRemove(t.Context(), sbx.RuleRef{Resources: []string{"kit.example"}}))
		ok(t, c.PolicyRemove(t.Context(), sbx.RuleRef{ID: "9"}))
	}
}

// TestEmptyListingIsNoProof: an engine whose runtime is broken lists nothing, and exits 0.
func TestEmptyListingIsNoProof(t *testing.T) {
	for _, listing := range []string{`{"sandboxes":[]}`, "No sandboxes found.\n"} {
		c := sbx.New("", v47(), canned{"rm": says("", "", 0), "ls": says(listing, "", 0), "inspect": says("", string(fixture(t, "error-backend-unavailable.txt")), 1)}.runner(t))
		wantKinds(t, c.Remove(t.Context(), "box"), sbx.ErrEngine)
		c = sbx.New("", v47(), canned{"rm": says("", "", 0), "ls": says(listing, "", 0), "inspect": says(`{"name":"box","state":"running"}`, "", 0)}.runner(t))
		wantKinds(t, c.Remove(t.Context(), "box"), sbx.ErrNotApplied)
		c = sbx.New("", v47(), canned{"rm": says("", "", 0), "ls": says(listing, "", 0), "inspect": says("", "error: sandbox 'box' not found\n  try: sbx ls\n", 1)}.runner(t))
		ok(t, c.Remove(t.Context(), "box"))
	}
	c := sbx.New("", v47(), canned{"rm": says("", "", 0), "ls": says(`{"sandboxes":null}`, "", 0)}.runner(t))
	wantKinds(t, c.Remove(t.Context(), "box"), sbx.ErrMalformed)
}

// TestPortsAsAsked: what is published is what was asked for, and what is taken back is that and nothing else.
func TestPortsAsAsked(t *testing.T) {
	for spec, answer := range map[string]string{
		"8080":                     "Published 0.0.0.0:49200 -> 8080/tcp4",
		"18080:8080":               "Published 127.0.0.1:18081 -> 8080/tcp4",
		"127.0.0.1:18080:8080":     "Published 192.0.2.7:18080 -> 8080/tcp4",
		"[::1]:18080:8080":         "Published 127.0.0.1:18080 -> 8080/tcp4",
		"18080:8080/udp":           "Published 127.0.0.1:18080 -> 8080/tcp4",
		"18080:8080/tcp6":          "Published 127.0.0.1:18080 -> 8080/tcp4",
		"18080:8081":               "Published 127.0.0.1:18080 -> 8080/tcp4",
		"127.0.0.1:18080:8080/tcp": "Published 127.0.0.1:18080 -> 8080/tcp\nPublished [2001:db8::1]:18080 -> 8080/tcp",
	} {
		listed := `[{"host_ip":"0.0.0.0","host_port":49200,"sandbox_port":8080,"protocol":"tcp4"}]`
		for _, said := range []string{answer, ""} { // without words the listing decides
			c := sbx.New("", v47(), canned{"ports box --publish": says(said+"\n", "", 0), "ports box --json": says(listed, "", 0)}.runner(t))
			if ports, err := c.Publish(t.Context(), "box", spec); err == nil || !strings.Contains(err.Error(), "did not take effect") {
				t.Errorf("%s, told %q: %v, %v", spec, said, ports, err)
			}
		}
	}
	e := newEngine(t, "0.47")
	c := e.client()
	ok(t, second(c.Create(t.Context(), sbx.CreateSpec{Name: "box"})))
	for _, spec := range []string{"18080:80/tcp", "18080:80/udp4", "[::1]:18081:80"} {
		ports, err := c.Publish(t.Context(), "box", spec)
		if err != nil || len(ports) == 0 {
			t.Fatalf("%s: %v, %v", spec, ports, err)
		}
	}
	left := func(want ...string) {
		t.Helper()
		ports, err := c.Ports(t.Context(), "box")
		ok(t, err)
		var have []string
		for _, p := range ports {
			have = append(have, p.String())
		}
		if !slices.Equal(have, want) {
			t.Errorf("published %q, want %q", have, want)
		}
	}
	left("127.0.0.1:18080->80/tcp", "[::1]:18080->80/tcp", "127.0.0.1:18080->80/udp4", "[::1]:18081->80/tcp4")
	ok(t, c.Unpublish(t.Context(), "box", sbx.Port{HostIP: "127.0.0.1", HostPort: 18080, SandboxPort: 80, Protocol: "tcp"})) // its udp twin stays
	left("[::1]:18080->80/tcp", "127.0.0.1:18080->80/udp4", "[::1]:18081->80/tcp4")
	ok(t, c.Unpublish(t.Context(), "box", sbx.Port{HostPort: 18080, SandboxPort: 80})) // on every address, for every protocol
	left("[::1]:18081->80/tcp4")
	// Half of it is not all of it.
	half := canned{"ports box --unpublish": says("Unpublished 18080:80\n", "", 0), "ports box --json": says(`[{"host_ip":"::1","host_port":18080,"sandbox_port":80,"protocol":"tcp6"}]`, "", 0)}
	wantKinds(t, sbx.New("", v47(), half.runner(t)).Unpublish(t.Context(), "box", sbx.Port{HostPort: 18080, SandboxPort: 80, Protocol: "tcp"}), sbx.ErrNotApplied)
	ok(t, sbx.New("", v47(), half.runner(t)).Unpublish(t.Context(), "box", sbx.Port{HostPort: 18080, SandboxPort: 80, Protocol: "tcp4"}))
	ok(t, sbx.New("", v47(), half.runner(t)).Unpublish(t.Context(), "box", sbx.Port{HostPort: 18080, SandboxPort: 80, Protocol: "udp"}))
}

// TestCopyTrees: a folder arrived when each file of it did, with its size.
func TestCopyTrees(t *testing.T) {
	tree := func(t *testing.T) string {
		dir := filepath.Join(t.TempDir(), "tree")
		for name, text := range map[string]string{"a": "1", "sub/b c": "22", "sub/new\nline": "333", "sub/.hidden": ""} {
			p := filepath.Join(dir, filepath.FromSlash(name))
			ok(t, os.MkdirAll(filepath.Dir(p), 0o755))
			ok(t, os.WriteFile(p, []byte(text), 0o644))
		}
		ok(t, os.MkdirAll(filepath.Join(dir, "empty"), 0o755))
		ok(t, os.Symlink("/nowhere", filepath.Join(dir, "link")))
		return dir
	}
	box := func(t *testing.T) (*engine, *sbx.Client, func(string) string) {
		e := newEngine(t, "0.47")
		c := e.client()
		ok(t, second(c.Create(t.Context(), sbx.CreateSpec{Name: "box"})))
		return e, c, func(p string) string { return filepath.Join(e.dir, "fs", "box", filepath.FromSlash(p)) }
	}
	// Whatever goes missing on the way, behind a copy that was one: the damage is done by the script's second half.
	for name, damage := range map[string]struct {
		do   func(root string) error
		says string
	}{
		"cut file":       {func(r string) error { return os.Truncate(filepath.Join(r, "sub", "b c"), 1) }, `file "tree/sub/b c" of 2 bytes did not arrive`},
		"missing file":   {func(r string) error { return os.Remove(filepath.Join(r, "a")) }, `file "tree/a" of 1 bytes did not arrive`},
		"missing link":   {func(r string) error { return os.Remove(filepath.Join(r, "link")) }, `link "tree/link" did not arrive`},
		"missing folder": {func(r string) error { return os.Remove(filepath.Join(r, "empty")) }, `directory "tree/empty" did not arrive`},
		"odd name":       {func(r string) error { return os.Remove(filepath.Join(r, "sub", "new\nline")) }, `file "tree/sub/new\nline" of 3 bytes did not arrive`},
	} {
		t.Run(name, func(t *testing.T) {
			e, c, inside := box(t)
			src := tree(t)
			ok(t, c.CopyIn(t.Context(), "box", src, "/home/agent/tree"))
			ok(t, damage.do(inside("/home/agent/tree")))
			ok(t, os.RemoveAll(inside("/srv")))
			ok(t, os.MkdirAll(inside("/srv"), 0o755))
			ok(t, os.Rename(inside("/home/agent/tree"), inside("/srv/tree")))
			e.script(`calls: [{match: "^cp "}]`)
			err := c.CopyIn(t.Context(), "box", src, "/srv")
			wantKinds(t, err, sbx.ErrNotApplied)
			if !strings.Contains(err.Error(), damage.says) {
				t.Errorf("in: %v does not say %q", err, damage.says)
			}
			// Out: what arrives is less than what is there.
			e.script("")
			ok(t, c.CopyIn(t.Context(), "box", src, "/whole"))
			half := filepath.Join(t.TempDir(), "half")
			ok(t, os.Rename(inside("/srv/tree"), half))
			out := t.TempDir()
			err = e.copier(half).CopyOut(t.Context(), "box", "/whole", filepath.Join(out, "tree"))
			wantKinds(t, err, sbx.ErrNotApplied)
			want, _, _ := strings.Cut(strings.ReplaceAll(damage.says, `"tree/`, `"whole/`), `\n`)
			if !strings.Contains(err.Error(), want) {
				t.Errorf("out: %v does not say %q", err, want)
			}
			if left, err := os.ReadDir(out); err != nil || len(left) != 0 {
				t.Errorf("left behind %v, %v", left, err)
			}
		})
	}
	_, c, inside := box(t)
	src := tree(t)
	for range 2 { // the second time into the directory that is there
		ok(t, c.CopyIn(t.Context(), "box", src, "/home/agent/tree"))
	}
	ok(t, c.CopyIn(t.Context(), "box", src+"/.", "/home/agent/flat"))
	ok(t, c.CopyIn(t.Context(), "box", filepath.Join(src, "link"), "/home/agent/flat"))
	for _, p := range []string{"/home/agent/tree/tree/sub/b c", "/home/agent/flat/sub/b c", "/home/agent/flat/link"} {
		if _, err := os.Lstat(inside(p)); err != nil {
			t.Error(err)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	ok(t, c.CopyOut(t.Context(), "box", "/home/agent/flat", out))
	ok(t, c.CopyOut(t.Context(), "box", "/home/agent/flat/link", out+"-link"))
	if to, err := os.Readlink(out + "-link"); err != nil || to != "/nowhere" {
		t.Errorf("%q, %v", to, err)
	}
	// A folder that is there already, and a copy into it that did not happen: what is there is not what was sent.
	e, c, _ := box(t)
	ok(t, c.CopyIn(t.Context(), "box", src, "/home/agent/tree"))
	e.script(`calls: [{match: "^cp "}]`)
	wantKinds(t, c.CopyIn(t.Context(), "box", src, "/home/agent/tree"), sbx.ErrNotApplied)
}

// TestSettingValues: numbers of any size, negative ones, words.
func TestSettingValues(t *testing.T) {
	for _, tt := range []struct {
		value, json string
		applied     bool
	}{
		{"1000000", "1000000", true}, {"1e6", "1000000", true}, {"1000000", "1e6", true}, {"9007199254740993", "9007199254740993", true},
		{"9007199254740993", "9007199254740992", false}, {"-1", "-1", true}, {"-1", "1", false}, {"0.1", "0.10", true}, {"true", "true", true}, {"TRUE", "true", true},
		{"false", "true", false}, {"a b", `"a b"`, true}, {"5", `"5"`, true}, {`["a","b"]`, `["a", "b"]`, true}, {`["a"]`, `["b"]`, false}, {"x", "null", false}, {"0", "false", true},
	} {
		c, calls := sent(func(args []string) sbx.Result {
			if args[1] == "get" {
				return says(`{"key":"some.key","value":`+tt.json+`,"type":"x","source":"user","default":0}`, "", 0)
			}
			return says("", "", 0)
		})
		_, err := c.SetSetting(t.Context(), "some.key", tt.value)
		line := strings.Join((*calls)[0], " ")
		if (err == nil) != tt.applied {
			t.Errorf("%s read as %s: %v (%s)", tt.value, tt.json, err, line)
		}
		if !tt.applied {
			wantKinds(t, err, sbx.ErrNotApplied)
		}
		if strings.HasPrefix(tt.value, "-") != strings.Contains(line, " -- ") {
			t.Errorf("sent %q", line)
		}
	}
	e := newEngine(t, "0.47").script("settings: {retry.limit: 5, proxy.url: \"\", kit.sources: [a], big.number: 1}")
	for key, value := range map[string]string{"retry.limit": "-1", "big.number": "1234567890123456789", "proxy.url": "http://proxy.example:3128", "kit.sources": `["a","b"]`} {
		s, err := e.client().SetSetting(t.Context(), key, value)
		if err != nil || s.Source != "user" {
			t.Errorf("%s: %+v, %v", key, s, err)
		}
		ok(t, e.client().UnsetSetting(t.Context(), key))
	}
}

// TestWordsAgainstState: what the engine says is held against what it shows.
func TestWordsAgainstState(t *testing.T) {
	const id, other = "3b1f6c1e-6f0a-4f0e-9a51-0d5f7c1a2b01", "c0ffee00-1111-4222-8333-444455556603"
	listing := `{"sandboxes":[{"name":"box","id":"` + id + `","status":"running"}]}`
	keep := func(said string) error {
		return sbx.New("", v47(), canned{"run": says(said, "", 0), "ls": says(listing, "", 0)}.runner(t)).KeepAlive(t.Context(), "box")
	}
	ok(t, keep("Starting sandboxd daemon...\n"+id+"\n"))
	ok(t, keep("kept alive\n"))
	wantKinds(t, keep(other+"\n"), sbx.ErrNotApplied) // another sandbox

	// A restart that fails, and a daemon that runs: it may be the old one, unless there was none.
	restart := func(before string) error {
		asked := 0
		c, _ := sent(func(args []string) sbx.Result {
			switch args[0] + " " + args[1] {
			case "daemon status":
				if asked++; asked == 1 {
					return says(`{"status":"`+before+`"}`, "", 0)
				}
				return says(`{"status":"running"}`, "", 0)
			case "daemon restart":
				return says("", "error: daemon process 4242 still runs\n", 1)
			}
			return says(`{"sandboxes":[]}`, "", 0)
		})
		return c.DaemonRestart(t.Context())
	}
	if err := restart("running"); err == nil || !strings.Contains(err.Error(), "4242") {
		t.Errorf("the old daemon was taken for a new one: %v", err)
	}
	ok(t, restart("stopped"))

	// One that stopped after it was asked what prune would remove was removed as well.
	pruned := canned{
		"prune --dry-run": says(`{"would_remove":[{"name":"old"}],"skipped_unknown_stop":[]}`, "", 0),
		"prune --force":   says("Deleting sandbox old...\nSandbox 'old' removed\nDeleting sandbox new...\nSandbox 'new' removed\n", "", 0),
		"ls":              says(listing, "", 0),
	}
	report, err := sbx.New("", v47(), pruned.runner(t)).Prune(t.Context(), sbx.PruneSpec{})
	ok(t, err)
	if !slices.Equal(report.Removed, []string{"old", "new"}) {
		t.Errorf("removed %q", report.Removed)
	}
}

// TestRuleAsAsked: a rule that lets through more than was asked for, or stops less, is not the one.
func TestRuleAsAsked(t *testing.T) {
	for _, tt := range []struct {
		listed string // of a rule for a.example
		want   sbx.PolicyRule
		is     bool
	}{
		{`"resource_type":"network","actions":["net:connect:tcp"]`, sbx.PolicyRule{Protocol: "tcp"}, true},
		{`"resource_type":"network"`, sbx.PolicyRule{Protocol: "tcp"}, true}, // not told
		{`"resource_type":"network","actions":["net:connect:tcp","net:connect:udp"]`, sbx.PolicyRule{Protocol: "tcp"}, false},
		{`"resource_type":"network","actions":["net:connect:tcp","net:connect:udp"]`, sbx.PolicyRule{Protocol: "tcp", Decision: sbx.Deny}, true},
		{`"resource_type":"network","actions":["net:connect:udp"]`, sbx.PolicyRule{Protocol: "tcp", Decision: sbx.Deny}, false},
		{`"resource_type":"http","methods":["GET"],"http_targets":[{"host":"a.example","path":"/**"}]`, sbx.PolicyRule{Methods: []string{"GET"}}, true},
		{`"resource_type":"http","methods":["GET","POST"],"http_targets":[{"host":"a.example","path":"/**"}]`, sbx.PolicyRule{Methods: []string{"GET"}}, false},
		{`"resource_type":"http","methods":["GET","POST"],"http_targets":[{"host":"a.example","path":""}]`, sbx.PolicyRule{Methods: []string{"GET"}, Decision: sbx.Deny}, true},
		{`"resource_type":"http","methods":["*"],"http_targets":[{"host":"a.example","path":"/x"}]`, sbx.PolicyRule{Methods: []string{"GET"}, Path: "/x"}, false},
		{`"resource_type":"http","methods":["*"],"http_targets":[{"host":"a.example","path":"/x"}]`, sbx.PolicyRule{Methods: []string{"GET"}, Path: "/x", Decision: sbx.Deny}, true},
		{`"resource_type":"http","http_targets":[{"host":"a.example","path":"/x"}]`, sbx.PolicyRule{Path: "/x"}, true},
		{`"resource_type":"http","methods":["GET"],"http_targets":[{"host":"a.example","path":"/x"}]`, sbx.PolicyRule{Path: "/x", Decision: sbx.Deny}, false},
		{`"resource_type":"http","methods":["POST"],"http_targets":[{"host":"a.example","path":"/x"}]`, sbx.PolicyRule{Methods: []string{"POST"}, Decision: sbx.Deny}, false},
		{`"resource_type":"http","methods":["POST"],"http_targets":[{"host":"b.example","path":"/x"}]`, sbx.PolicyRule{Methods: []string{"POST"}, Path: "/x"}, false},
	} {
		tt.want.Resources = []string{"a.example"}
		if tt.want.Decision == "" {
			tt.want.Decision = sbx.Allow
		}
		rules, err := sbx.ParseRules([]byte(`{"rules":[{"id":"1","scope":"global","decision":"` + string(tt.want.Decision) + `","resources":["a.example"],` + tt.listed + `}]}`))
		ok(t, err)
		if err := sbx.CheckRules(rules, tt.want); (err == nil) != tt.is {
			t.Errorf("%s, asked for %+v: %v", tt.listed, tt.want, err)
		}
	}
	// A custom secret that is bound to one more host is sent there.
	c := sbx.New("", v47(), canned{"secret ls": says(`{"secrets":[],"custom_secrets":[{"scope":"box","targets":["a.example","b.example"],"env":"K","placeholder":"sbx-cs-0123456789"}]}`, "", 0)}.runner(t))
	key := sbx.Secret{Type: sbx.SecretCustom, Sandbox: "box", Env: "K", Placeholder: "sbx-cs-0123456789", Hosts: []string{"a.example"}}
	wantKinds(t, c.VerifySecrets(t.Context(), key), sbx.ErrNotApplied)
	key.Hosts = []string{"B.example.", "a.example"}
	ok(t, c.VerifySecrets(t.Context(), key))
}
