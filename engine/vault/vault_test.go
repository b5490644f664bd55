package vault_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine/statefile"
	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

const canary = "ghs_canaryCANARYcanaryCANARY0123456789ab"

func host(t *testing.T, s string) policy.Host {
	t.Helper()
	h, err := policy.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func set(t *testing.T, s *vault.Store, sandbox, service, value string) {
	t.Helper()
	if err := s.Set(t.Context(), vault.ServiceSecret{Service: service, Sandbox: sandbox, Secret: vault.Secret{Value: secrets.New(value)}, Force: true}); err != nil {
		t.Fatal(err)
	}
}

func custom(t *testing.T, s *vault.Store, c vault.CustomSecret, value string) string {
	t.Helper()
	c.Value = secrets.New(value)
	p, _, err := s.SetCustom(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// values returns what a sandbox is bound to, by binding name.
func values(t *testing.T, s *vault.Store, sandbox string) map[string]string {
	t.Helper()
	bindings, err := s.Bindings(sandbox)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, b := range bindings {
		v, err := b.Value(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := out[b.Name]; twice {
			t.Errorf("%s is bound twice for %q", b.Name, sandbox)
		}
		out[b.Name] = v.Reveal()
	}
	return out
}

func TestScopedWins(t *testing.T) {
	s := vault.Open(t.TempDir())
	set(t, s, "", "github", "global-github-token")
	set(t, s, "box", "github", "scoped-github-token")
	set(t, s, "", "openai", "global-openai-key")
	custom(t, s, vault.CustomSecret{Env: "KEY", Placeholder: "placeholder-global", Hosts: []string{"a.test"}}, "global-custom-value")
	custom(t, s, vault.CustomSecret{Sandbox: "box", Env: "KEY", Placeholder: "placeholder-scoped", Hosts: []string{"a.test"}}, "scoped-custom-value")
	for sandbox, want := range map[string]map[string]string{
		"":      {"service github": "global-github-token", "service openai": "global-openai-key", "custom KEY": "global-custom-value"},
		"box":   {"service github": "scoped-github-token", "service openai": "global-openai-key", "custom KEY": "scoped-custom-value"},
		"other": {"service github": "global-github-token", "service openai": "global-openai-key", "custom KEY": "global-custom-value"},
	} {
		if got := values(t, s, sandbox); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: %v, want %v", sandbox, got, want)
		}
	}
	env, err := s.Env("box")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"GH_TOKEN=" + secrets.GitHubServicePlaceholder, "OPENAI_API_KEY=proxy-managed", "KEY=placeholder-scoped", "SBX_CRED_GITHUB_MODE=apikey"} {
		if !slices.Contains(env, want) {
			t.Errorf("environment %v lacks %s", env, want)
		}
	}
	if strings.Contains(strings.Join(env, " "), "token") && strings.Contains(strings.Join(env, " "), "scoped-github") {
		t.Error("a value is in the environment")
	}
	if err := s.DropScope(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if got := values(t, s, "box"); got["service github"] != "global-github-token" || len(got) != 3 {
		t.Errorf("after DropScope: %v", got)
	}
	if err := s.DropScope(t.Context(), ""); err != nil || len(values(t, s, "")) != 3 {
		t.Errorf("DropScope of nobody: %v", err)
	}
}

func TestBindingHosts(t *testing.T) {
	s := vault.Open(t.TempDir())
	set(t, s, "box", "github", canary)
	custom(t, s, vault.CustomSecret{Sandbox: "box", Env: "K", Placeholder: "demo-placeholder", Hosts: []string{"*.example.com:443", "host.docker.internal:8080"}}, "some-value")
	bindings, err := s.Bindings("box")
	if err != nil || len(bindings) != 2 {
		t.Fatal(bindings, err)
	}
	for _, tt := range []struct {
		i    int
		host string
		port uint16
		want bool
	}{
		{0, "api.github.com", 443, true}, {0, "github.com", 443, true}, {0, "api.githubcopilot.com", 443, true},
		{0, "evil-github.com", 443, false}, {0, "example.com", 443, false},
		{1, "a.example.com", 443, true}, {1, "a.example.com", 80, false}, {1, "example.com", 443, false}, {1, "localhost", 8080, true},
	} {
		if got := bindings[tt.i].Covers(host(t, tt.host), tt.port); got != tt.want {
			t.Errorf("%s covers %s:%d = %t", bindings[tt.i].Name, tt.host, tt.port, got)
		}
	}
	if bindings[0].Style(host(t, "github.com")) != vault.BasicGit || bindings[0].Style(host(t, "api.github.com")) != vault.Bearer {
		t.Error("style of github hosts")
	}
}

func TestSetNeedsForce(t *testing.T) {
	s := vault.Open(t.TempDir())
	set(t, s, "", "github", "first-value")
	err := s.Set(t.Context(), vault.ServiceSecret{Service: "github", Secret: vault.Secret{Value: secrets.New("second-value")}})
	if !errors.Is(err, vault.ErrExists) || values(t, s, "")["service github"] != "first-value" {
		t.Errorf("%v", err)
	}
}

func TestCustomUpdate(t *testing.T) {
	s := vault.Open(t.TempDir())
	p, generated, err := s.SetCustom(t.Context(), vault.CustomSecret{Env: "DEMO_API_KEY", Hosts: []string{"a.test"}, Secret: vault.Secret{Value: secrets.New("value-one")}})
	if err != nil || !generated || !secrets.IsPlaceholder(p) || len(p) != len("sbx-cs-")+16 {
		t.Fatalf("%q %t %v", p, generated, err)
	}
	_, _, err = s.SetCustom(t.Context(), vault.CustomSecret{Env: "DEMO_API_KEY", Hosts: []string{"a.test"}, Secret: vault.Secret{Value: secrets.New("value-two")}})
	exists, ok := errors.AsType[*vault.CustomExistsError](err)
	if want := `custom secret env "DEMO_API_KEY" already exists in scope "_" with placeholder "` + p + `"`; !ok || exists.Error() != want {
		t.Errorf("%v", err)
	}
	custom(t, s, vault.CustomSecret{Env: "DEMO_API_KEY", Placeholder: p, Hosts: []string{"b.test"}}, "value-three")
	list, err := s.List(vault.Filter{})
	if err != nil || len(list.Custom) != 1 || !slices.Equal(list.Custom[0].Targets, []string{"b.test"}) || values(t, s, "")["custom DEMO_API_KEY"] != "value-three" {
		t.Errorf("%+v, %v", list, err)
	}
	shaped := custom(t, s, vault.CustomSecret{Env: "PAT", Placeholder: "github_pat_{rand}_{rand}", Hosts: []string{"a.test"}}, "value-four")
	if !strings.HasPrefix(shaped, "github_pat_") || strings.Contains(shaped, "{rand}") {
		t.Errorf("placeholder %q", shaped)
	}
	if ok, err := s.RemoveCustom(t.Context(), "", p); !ok || err != nil {
		t.Errorf("%t %v", ok, err)
	}
	if ok, err := s.RemoveCustom(t.Context(), "", p); ok || err != nil {
		t.Errorf("second removal: %t %v", ok, err)
	}
	if n, err := s.RemoveCustomHost(t.Context(), "", "a.test"); n != 1 || err != nil {
		t.Errorf("by host: %d %v", n, err)
	}
}

func TestRefusals(t *testing.T) {
	s := vault.Open(t.TempDir())
	value := vault.Secret{Value: secrets.New("some-value")}
	for name, c := range map[string]vault.CustomSecret{
		"no host":           {Secret: value},
		"URL":               {Hosts: []string{"https://a.test"}, Secret: value},
		"everything":        {Hosts: []string{"**"}, Secret: value},
		"public suffix":     {Hosts: []string{"*.com"}, Secret: value},
		"short placeholder": {Hosts: []string{"a.test"}, Placeholder: "abc", Secret: value},
		"space":             {Hosts: []string{"a.test"}, Placeholder: "placeholder with", Secret: value},
		"line end":          {Hosts: []string{"a.test"}, Placeholder: "placeholder\r\nX: y", Secret: value},
		"variable":          {Hosts: []string{"a.test"}, Env: "A B", Secret: value},
		"no value":          {Hosts: []string{"a.test"}},
		"both":              {Hosts: []string{"a.test"}, Secret: vault.Secret{Value: secrets.New("v"), Command: "/bin/echo x"}},
		"is a placeholder":  {Hosts: []string{"a.test"}, Secret: vault.Secret{Value: secrets.New("proxy-managed")}},
		"holds its own":     {Hosts: []string{"a.test"}, Placeholder: "placeholder-0", Secret: vault.Secret{Value: secrets.New("xplaceholder-0x")}},
	} {
		if _, _, err := s.SetCustom(t.Context(), c); !errors.Is(err, vault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, service := range []string{"", "-x", "a b", "../x", "A"} {
		if err := s.Set(t.Context(), vault.ServiceSecret{Service: service, Secret: value}); !errors.Is(err, vault.ErrInvalid) {
			t.Errorf("service %q: %v", service, err)
		}
	}
	if _, err := os.Stat(filepath.Join(t.TempDir(), "secrets.json")); err == nil {
		t.Error("a refused secret made a file")
	}
}

func TestFileIsPrivateAndListingMasked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	s := vault.Open(dir)
	set(t, s, "", "github", canary)
	custom(t, s, vault.CustomSecret{Env: "K", Hosts: []string{"a.test"}}, canary)
	for p, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "secrets.json"): 0o600} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", p, info, err)
		}
	}
	list, err := s.List(vault.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(list)
	bindings, _ := s.Bindings("")
	text := string(b) + fmt.Sprintf("%v %+v %#v", list, bindings, bindings)
	for _, part := range []string{canary, canary[:8], canary[len(canary)-4:]} {
		if strings.Contains(text, part) {
			t.Errorf("listing shows %q", part)
		}
	}
	none := "nobody"
	if l, err := s.List(vault.Filter{Scope: &none}); err != nil || len(l.Secrets)+len(l.Custom) != 0 {
		t.Errorf("%+v %v", l, err)
	}
}

func TestCommand(t *testing.T) {
	dir := t.TempDir()
	counter := filepath.Join(dir, "runs")
	helper := filepath.Join(dir, "helper with space")
	// It says where it runs and that it has run; the value is its argument.
	script := "#!/bin/sh\npwd >>" + counter + "\nls -A\nprintf '%s\\n' \"$1\"\n"
	if err := os.WriteFile(helper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	s := vault.Open(filepath.Join(dir, "state"))
	sec := vault.Secret{Command: `"` + helper + `" 'va lue'`}
	if err := s.Set(t.Context(), vault.ServiceSecret{Service: "openai", Secret: sec}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := values(t, s, "")["service openai"]; got != "va lue" {
			t.Errorf("value %q", got)
		}
	}
	b, err := os.ReadFile(counter)
	if err != nil {
		t.Fatal(err)
	}
	runs := strings.Fields(string(b))
	if len(runs) != 2 || runs[0] == runs[1] { // once to verify, once for three uses
		t.Errorf("runs in %v", runs)
	}
	for _, d := range runs {
		if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder %s is left", d)
		}
	}
	list, _ := s.List(vault.Filter{})
	if list.Secrets[0].Secret != "(command)" {
		t.Errorf("%+v", list)
	}
	for name, line := range map[string]string{
		"relative": "helper x", "empty": "", "quote": `/bin/echo "x`, "fails": "/bin/false", "silent": "/bin/true", "missing": "/no/such/helper x",
		"line end": "/bin/echo a\nb", "too much": "/usr/bin/head -c 100000 /dev/zero",
	} {
		err := s.Set(t.Context(), vault.ServiceSecret{Service: "groq", Secret: vault.Secret{Command: line}})
		if !errors.Is(err, vault.ErrCommand) && !(name == "empty" && errors.Is(err, vault.ErrInvalid)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A failing command is not run for every request.
	if err := s.Set(t.Context(), vault.ServiceSecret{Service: "groq", Secret: vault.Secret{Command: "/bin/false"}, NoVerify: true}); err != nil {
		t.Fatal(err)
	}
	bindings, _ := s.Bindings("")
	for range 2 {
		if _, err := bindings[1].Value(t.Context()); !errors.Is(err, vault.ErrCommand) {
			t.Errorf("%v", err)
		}
	}
}

func TestDamagedStore(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secrets.json"), []byte(`{"services":[{"value":"`+canary), 0o600); err != nil {
		t.Fatal(err)
	}
	s := vault.Open(dir)
	_, err := s.Bindings("")
	if !errors.Is(err, statefile.ErrCorrupt) || strings.Contains(err.Error(), canary) {
		t.Errorf("%v", err)
	}
	if _, err := s.Env(""); !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

func TestFieldReports(t *testing.T) {
	t.Run("R049", func(t *testing.T) {
		s := vault.Open(t.TempDir())
		for _, v := range []string{"abc", "abc\n", "abc\r\n"} {
			set(t, s, "", "github", v)
			if got := values(t, s, "")["service github"]; got != "abc" {
				t.Errorf("%q is stored as %q", v, got)
			}
		}
	})
	t.Run("R050", func(t *testing.T) {
		for _, v := range []string{"@abc", "-x", "--help", "-----BEGIN KEY-----\nAAA\n-----END KEY-----", "\xff\xfe\x01", " lead", "a\n\n"} {
			s := vault.Open(t.TempDir())
			set(t, s, "", "openai", v)
			want := secrets.New(v).Reveal() // one line end goes, at the door
			if got := values(t, s, "")["service openai"]; got != want {
				t.Errorf("%q is stored as %q", v, got)
			}
		}
	})
	t.Run("R053", func(t *testing.T) {
		dir := t.TempDir()
		daemon, cli := vault.Open(dir), vault.Open(dir)
		for _, v := range []string{"old-value", "new-value"} {
			set(t, cli, "box", "github", v)
			if got := values(t, daemon, "box")["service github"]; got != v {
				t.Errorf("daemon has %q after %q was set", got, v)
			}
		}
		if ok, err := cli.RemoveService(t.Context(), "box", "github"); !ok || err != nil {
			t.Errorf("%t %v", ok, err)
		}
		if got := values(t, daemon, "box"); len(got) != 0 {
			t.Errorf("after removal: %v", got)
		}
	})
	t.Run("R054", func(t *testing.T) {
		s := vault.Open(t.TempDir())
		if ok, err := s.RemoveCustom(t.Context(), "", "never-existed-0"); ok || err != nil {
			t.Errorf("%t %v", ok, err)
		}
		custom(t, s, vault.CustomSecret{Env: "K", Hosts: []string{"a.test"}}, "value")
	})
	t.Run("R077", func(t *testing.T) {
		s := vault.Open(t.TempDir())
		if err := s.Set(t.Context(), vault.ServiceSecret{Service: "github", Secret: vault.Secret{Value: secrets.New("")}}); !errors.Is(err, vault.ErrInvalid) {
			t.Errorf("%v", err)
		}
	})
}
