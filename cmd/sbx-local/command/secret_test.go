package command

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

var placeholders = regexp.MustCompile(`sbx-cs-[A-Za-z0-9]{16}`)

func TestSecretVerbs(t *testing.T) {
	const canary = "ghs_canaryCANARYcanaryCANARY0123456789ab"
	c := newCLI(t)
	var everything strings.Builder
	run := func(stdin string, args ...string) (int, string, string) {
		code, out, errs := c.run(stdin, args...)
		everything.WriteString(out + errs)
		return code, out, errs
	}
	c.want(0, fixture(t, "secret-ls-empty.txt"), "secret", "ls")
	c.want(0, "No secrets found for scope \"box\".\n", "secret", "ls", "--sandbox", "box")
	c.want(0, strings.Replace(fixture(t, "secret-rm-unknown.txt"), "demo", "github", 1), "secret", "rm", "github", "-f")

	for _, value := range []string{canary, canary + "\n"} {
		if code, out, errs := run(value, "secret", "set", "github", "--force"); code != 0 || !strings.Contains(out, "Applied secret updates for 0 running sandbox(es)") {
			t.Errorf("set: %d %q %q", code, out, errs)
		}
	}
	// Without force and without an answer the old one stays, and the exit code is 0, as in sbx.
	if code, out, _ := run("other", "secret", "set", "github"); code != 0 || !strings.HasSuffix(out, "Cancelled\n") {
		t.Errorf("set again: %d %q", code, out)
	}
	if code, out, errs := run(canary, "secret", "set", "openai", "--sandbox", "demo-agent"); code != 0 || !strings.Contains(out, `Applied secret updates for sandbox "demo-agent"`) {
		t.Errorf("scoped set: %d %q %q", code, out, errs)
	}
	if code, _, errs := run("", "secret", "set", "groq"); code != 1 || !strings.Contains(errs, "empty") {
		t.Errorf("empty value: %d %q", code, errs)
	}
	if code, _, errs := run(canary, "secret", "set", "nosuch"); code != 0 || !strings.Contains(errs, "not a built-in service") {
		t.Errorf("unknown service: %d %q", code, errs)
	}
	run("", "secret", "rm", "nosuch", "-f")
	for _, args := range [][]string{
		{"secret", "set"}, {"secret", "set", "--registry", "x"}, {"secret", "set", "github", "--ref", "op://x"}, {"secret", "set", "github", "--oauth"},
		{"secret", "set", "github", "--sandbox", "../x"}, {"secret", "set", "github", "--refresh", "soon"}, {"secret", "set", "github", "--command", "echo x"},
		{"secret", "set-custom", "--env", "X"}, {"secret", "set-custom", "--host", "a.test"}, {"secret", "set-custom", "--host", "**", "--command", "/bin/echo x"},
	} {
		if code, out, errs := run(canary, args...); code != 1 || out != "" || !strings.HasPrefix(errs, "error: ") {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}

	code, out, errs := run("", "secret", "set-custom", "--sandbox", "demo-agent", "--host", "api.example.com", "--env", "DEMO_API_KEY", "--command", "/bin/echo "+canary)
	placeholder := placeholders.FindString(out)
	if want := placeholders.ReplaceAllString(fixture(t, "secret-set-custom-ok.txt"), "P"); code != 0 || placeholders.ReplaceAllString(out, "P") != want {
		t.Errorf("set-custom: %d %q %q, want %q", code, out, errs, want)
	}
	_, _, errs = run("", "secret", "set-custom", "--sandbox", "demo-agent", "--host", "api.example.com", "--env", "DEMO_API_KEY", "--command", "/bin/echo x")
	if want := placeholders.ReplaceAllString(strings.TrimPrefix(fixture(t, "error-secret-set-custom-exists-scoped.txt"), "ERROR: "), "P"); placeholders.ReplaceAllString(errs, "P") != "error: "+want {
		t.Errorf("set-custom again: %q, want %q", errs, want)
	}
	if code, out, errs := run("", "secret", "set-custom", "--host", "b.test,c.test", "--env", "OTHER_KEY", "--placeholder", "sk-demo-{rand}", "-t", "some_value_1"); code != 0 || !strings.Contains(out, `for target "b.test, c.test" env "OTHER_KEY" in scope "(global)"`) {
		t.Errorf("global set-custom: %d %q %q", code, out, errs)
	}

	_, out, _ = run("", "secret", "ls")
	for _, want := range []string{"SCOPE        TYPE      NAME     SECRET\n", "(global)     service   github   ", "demo-agent   service   openai   ", "\nCUSTOM SECRETS\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("listing lacks %q:\n%s", want, out)
		}
	}
	_, out, _ = run("", "secret", "ls", "--json")
	var listing struct {
		Secrets []map[string]string `json:"secrets"`
		Custom  []map[string]any    `json:"custom_secrets"`
	}
	if err := json.Unmarshal([]byte(out), &listing); err != nil || len(listing.Secrets) != 2 || len(listing.Custom) != 2 || listing.Secrets[0]["scope"] != "global" || listing.Custom[0]["placeholder"] != placeholder {
		t.Errorf("JSON: %s", out)
	}
	if _, out, _ := run("", "secret", "ls", "--sandbox", "demo-agent", "-q"); out != "openai\n"+placeholder+"\n" {
		t.Errorf("quiet: %q", out)
	}

	_, _, errs = run("", "secret", "rm", "--env", "DEMO_API_KEY")
	if want := "error: " + strings.TrimPrefix(fixture(t, "error-secret-rm-custom.txt"), "ERROR: "); errs != want {
		t.Errorf("rm by variable: %q, want %q", errs, want)
	}
	if code, out, _ := run("", "secret", "rm", "github"); code != 0 || out != fixture(t, "secret-rm-cancelled-0.38.txt") {
		t.Errorf("rm without an answer: %d %q", code, out)
	}
	if code, out, _ := run("y\n", "secret", "rm", "github"); code != 0 || !strings.Contains(out, "Deleted") {
		t.Errorf("rm with an answer: %d %q", code, out)
	}
	for _, args := range [][]string{
		{"secret", "rm", "--sandbox", "demo-agent", "--placeholder", placeholder, "-f"}, {"secret", "rm", "--all", "--sandbox", "demo-agent", "-f"},
		{"secret", "rm", "--host", "b.test", "-f"}, {"secret", "rm", "--all", "--force"},
	} {
		if code, out, errs := run("", args...); code != 0 || !strings.Contains(out, "Deleted") {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}
	c.want(0, fixture(t, "secret-ls-empty.txt"), "secret", "ls")
	if strings.Contains(everything.String(), canary) || strings.Contains(everything.String(), canary[:12]) {
		t.Error("a value was printed")
	}
}
