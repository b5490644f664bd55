package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zalando/go-keyring"

	"github.com/sbxpair/sbxpair/engine/settings"
	"github.com/sbxpair/sbxpair/engine/vault"
)

// runWith is run with variables of the shell.
func (c *cli) runWith(env map[string]string, stdin string, args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	var out, errs strings.Builder
	code = Run(c.t.Context(), Environment{
		Args: args, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Self: "/bin/false", Version: "test",
		Getenv: func(k string) string {
			switch k {
			case "SBX_LOCAL_STATE":
				return filepath.Join(c.dir, "state")
			case "HOME":
				return c.dir
			}
			return env[k]
		},
	})
	return code, out.String(), errs.String()
}

func (c *cli) value(service string) string {
	c.t.Helper()
	bindings, err := vault.Open(filepath.Join(c.dir, "state", "secrets")).Bindings("")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, b := range bindings {
		if b.Service == service {
			v, err := b.Value(c.t.Context())
			if err != nil {
				c.t.Fatal(err)
			}
			return v.Reveal()
		}
	}
	return ""
}

// Credentials of the shell are taken when that is asked for, and only then.
func TestSecretImport(t *testing.T) {
	c := newCLI(t)
	shell := map[string]string{"GITHUB_TOKEN": "ghs_canary0000000001", "GEMINI_API_KEY": "gemini-canary-00002", "OPENAI_API_KEY": "proxy-managed", "MISTRAL_API_KEY": ""}
	var everything strings.Builder
	want := func(stdout, stdin string, args ...string) {
		t.Helper()
		code, out, errs := c.runWith(shell, stdin, append([]string{"secret", "import"}, args...)...)
		everything.WriteString(out + errs)
		if code != 0 || out != stdout {
			t.Errorf("import %v: %d %q %q, want %q", args, code, out, errs, stdout)
		}
	}
	if _, out, _ := c.runWith(nil, "", "secret", "import"); out != fixture(t, "secret-import-none.txt") {
		t.Errorf("nothing there: %q", out)
	}
	want("Would import github from GITHUB_TOKEN\nWould import google from GEMINI_API_KEY\nSkipped openai: OPENAI_API_KEY holds a placeholder\n", "", "--dry-run", "--all")
	if c.value("github") != "" {
		t.Error("a dry run stored something")
	}
	want("Import github from GITHUB_TOKEN? (y/N): Cancelled\nImport google from GEMINI_API_KEY? (y/N): Cancelled\nSkipped openai: OPENAI_API_KEY holds a placeholder\n", "")
	want("Imported google from GEMINI_API_KEY\nApplied secret updates for 0 running sandbox(es)\n", "", "google")
	want("Imported github from GITHUB_TOKEN\nSkipped google: already stored\nSkipped openai: OPENAI_API_KEY holds a placeholder\nApplied secret updates for 0 running sandbox(es)\n", "", "--all")
	shell["GH_TOKEN"] = "ghs_canary0000000003" // the first of its variables counts
	want("Secret for service \"github\" already exists in scope \"(global)\". Overwrite? (y/N): Cancelled\n", "", "github")
	if got := c.value("github"); got != "ghs_canary0000000001" {
		t.Errorf("without an answer: %q", got)
	}
	want("Imported github from GH_TOKEN\nApplied secret updates for 0 running sandbox(es)\n", "", "github", "--force")
	if got := c.value("github"); got != "ghs_canary0000000003" {
		t.Errorf("by force: %q", got)
	}
	if code, _, errs := c.runWith(shell, "", "secret", "import", "nosuch"); code != 1 || !strings.Contains(errs, "not a built-in service") {
		t.Errorf("unknown: %d %q", code, errs)
	}
	if strings.Contains(everything.String(), "canary") {
		t.Error("a value was printed")
	}
}

// A reference is read by the password manager's own program, each time, with the account of when it was set.
func TestSecretRef(t *testing.T) {
	c := newCLI(t)
	bin := filepath.Join(c.dir, "with space")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n[ \"$1 $2\" = 'read --no-newline' ] && printf '%s' \"$3 of $OP_ACCOUNT\"\n"
	if err := os.WriteFile(filepath.Join(bin, "op"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	shell := map[string]string{"OP_ACCOUNT": "team"}
	if code, out, errs := c.runWith(shell, "", "secret", "set", "openai", "--ref", "op://vault/item/field"); code != 0 {
		t.Fatalf("%d %q %q", code, out, errs)
	}
	if got := c.value("openai"); got != "op://vault/item/field of team" {
		t.Errorf("value %q", got)
	}
	if _, out, _ := c.run("", "secret", "ls"); !strings.Contains(out, "(ref)") {
		t.Errorf("listing:\n%s", out)
	}
	for _, args := range [][]string{{"--ref", "op://vault/item"}, {"--ref", "op://a/b/c", "--command", "/bin/echo x"}, {"--ref", "arn:aws:secretsmanager:eu-west-1:1:secret:x"}} {
		if code, _, errs := c.runWith(shell, "", append([]string{"secret", "set", "groq"}, args...)...); code != 1 || !strings.HasPrefix(errs, "error: ") {
			t.Errorf("%v: %d %q", args, code, errs)
		}
	}
}

// The verb behind the keyring speaks to it, and does not go looking for a bus that is not there.
func TestKeyringVerb(t *testing.T) {
	keyring.MockInit()
	c := newCLI(t)
	bus := map[string]string{"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}
	if code, out, errs := c.runWith(bus, "val\nue", keyringVerb, "set", "item"); code != 0 {
		t.Fatalf("set: %d %q %q", code, out, errs)
	}
	if code, out, errs := c.runWith(bus, "", keyringVerb, "get", "item"); code != 0 || out != "val\nue" {
		t.Errorf("get: %d %q %q", code, out, errs)
	}
	for range 2 { // the second has nothing to do
		if code, _, errs := c.runWith(bus, "", keyringVerb, "rm", "item"); code != 0 {
			t.Errorf("rm: %d %q", code, errs)
		}
	}
	if code, _, errs := c.runWith(bus, "", keyringVerb, "get", "item"); code != 1 || !strings.Contains(errs, "not found") {
		t.Errorf("get of nothing: %d %q", code, errs)
	}
	if code, _, errs := c.runWith(nil, "", keyringVerb, "get", "item"); code != 1 || !strings.Contains(errs, "no session bus") {
		t.Errorf("without a bus: %d %q", code, errs)
	}
	// With the setting, a value goes there or nowhere.
	if _, err := settings.Open(filepath.Join(c.dir, "state")).Set(t.Context(), "secrets.store", "keyring"); err != nil {
		t.Fatal(err)
	}
	code, _, errs := c.runWith(nil, "ghs_canary0000000001", "secret", "set", "github")
	if code != 1 || !strings.Contains(errs, "system keyring") || !strings.Contains(errs, "try: sbx settings unset secrets.store") {
		t.Errorf("set: %d %q", code, errs)
	}
	if list, err := vault.Open(filepath.Join(c.dir, "state", "secrets")).List(vault.Filter{}); err != nil || len(list.Secrets) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
