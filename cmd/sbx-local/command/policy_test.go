package command

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A cli runs verbs that need no sandbox, on a state of its own.
type cli struct {
	t   *testing.T
	dir string
}

func newCLI(t *testing.T) *cli { return &cli{t, t.TempDir()} }

func (c *cli) run(stdin string, args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	var out, errs bytes.Buffer
	code = Run(c.t.Context(), c.environment(args, strings.NewReader(stdin), &out, &errs))
	return code, out.String(), errs.String()
}

func (c *cli) environment(args []string, stdin io.Reader, stdout, stderr io.Writer) Environment {
	env := map[string]string{"SBX_LOCAL_STATE": filepath.Join(c.dir, "state"), "HOME": c.dir}
	return Environment{
		Args: args, Stdin: stdin, Stdout: stdout, Stderr: stderr, Getenv: func(k string) string { return env[k] },
		Self: "/bin/false", Version: "test",
	}
}

// want runs a verb and compares the code and, where given, standard output; it returns both streams.
func (c *cli) want(code int, stdout string, args ...string) (string, string) {
	c.t.Helper()
	got, out, errs := c.run("", args...)
	if got != code || stdout != "" && out != stdout {
		c.t.Errorf("%s: exit %d, stdout %q, stderr %q; want %d, %q", strings.Join(args, " "), got, out, errs, code, stdout)
	}
	return out, errs
}

func fixture(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "fixtures", "sbx", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

func TestPolicyVerbs(t *testing.T) {
	c := newCLI(t)
	_, errs := c.want(1, "", "policy", "ls")
	if errs != fixture(t, "error-policy-uninitialised-0.47.txt") {
		t.Errorf("before init: %q", errs)
	}
	_, errs = c.want(1, "", "policy", "allow", "network", "a.test")
	if errs != fixture(t, "error-policy-uninitialised-0.47.txt") {
		t.Errorf("before init: %q", errs)
	}
	c.want(0, fixture(t, "policy-init-ok.txt"), "policy", "init", "balanced")
	_, errs = c.want(1, "", "policy", "init", "balanced")
	if want := "error: " + strings.TrimPrefix(fixture(t, "error-policy-already-initialised-0.34.txt"), "ERROR: "); errs != want {
		t.Errorf("second init: %q, want %q", errs, want)
	}
	c.want(1, "", "policy", "init", "open")
	_, errs = c.want(1, "", "policy", "allow", "network", "--sandbox", "demo-agent", "a.test")
	if !strings.HasPrefix(errs, "error: "+strings.TrimPrefix(strings.TrimSpace(fixture(t, "error-policy-sandbox-not-found.txt")), "ERROR: ")) {
		t.Errorf("unknown sandbox: %q", errs)
	}
	_, errs = c.want(1, "", "policy", "allow", "network", "demo-agent", "example.org:443")
	if want := "error: " + strings.TrimPrefix(fixture(t, "error-policy-second-arg-0.33.txt"), "ERROR: "); errs != want {
		t.Errorf("second argument: %q, want %q", errs, want)
	}

	out, _ := c.want(0, "", "policy", "deny", "network", "example.com")
	if got, want := uuids.ReplaceAllString(out, "ID"), uuids.ReplaceAllString(fixture(t, "policy-deny-0.47.txt"), "ID"); got != want {
		t.Errorf("deny: %q, want %q", got, want)
	}
	id := uuids.FindString(out)
	_, errs = c.want(1, "", "policy", "allow", "network", "ok.test,example.com")
	if errs != `error: allow: "example.com" conflicts with existing deny rule "`+id+"\"\n" {
		t.Errorf("conflict: %q", errs)
	}
	out, _ = c.want(0, "", "policy", "allow", "network", "a.test:443,*.b.test", "--protocol", "tcp")
	if n := strings.Count(out, "Rule added to policy local (scope: global): "); n != 2 {
		t.Errorf("two resources: %q", out)
	}
	for _, bad := range []string{"https://a.test", "*", "127.0.0.1", "10.0.0.0/33", "a.test,", "*com"} {
		if out, errs := c.want(1, "", "policy", "allow", "network", bad); out != "" || !strings.HasPrefix(errs, "error: ") {
			t.Errorf("%s: %q %q", bad, out, errs)
		}
	}

	c.want(0, "Allowed: a.test\n", "policy", "check", "network", "a.test")
	c.want(0, "Allowed: https://a.test/x\n", "policy", "check", "network", "https://a.test/x")
	c.want(1, fixture(t, "policy-check-deny.txt"), "policy", "check", "network", "example.com")
	out, _ = c.want(1, "", "policy", "check", "network", "--json", "example.com")
	var check struct {
		Allowed bool
		Rule    string
	}
	if err := json.Unmarshal([]byte(out), &check); err != nil || check.Allowed || check.Rule != "local:"+id {
		t.Errorf("check: %q", out)
	}
	out, _ = c.want(1, "", "policy", "check", "network", "--verbose", "deep.x.b.test")
	if !strings.Contains(out, "hint: ") {
		t.Errorf("verbose: %q", out)
	}

	out, _ = c.want(0, "", "policy", "allow", "network", "--method", "GET", "--path", "/x/**", "h.test")
	if !strings.Contains(out, "(h.test [tcp])") {
		t.Errorf("http rule: %q", out)
	}
	out, _ = c.want(0, "", "policy", "ls", "--json")
	var listing struct {
		Rules []struct {
			ID, Decision string
			Type         string `json:"resource_type"`
			Resources    []string
		}
	}
	if err := json.Unmarshal([]byte(out), &listing); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range listing.Rules {
		count[r.Type+" "+r.Decision]++
	}
	if count["http allow"] != 1 || count["filesystem:read allow"] != 1 || count["network deny"] != 2 || count["network allow"] < 3 {
		t.Errorf("listing: %v", count)
	}
	out, _ = c.want(0, "", "policy", "ls")
	if lines := strings.Split(out, "\n"); strings.Join(strings.Fields(lines[0]), " ") != "POLICY SOURCE APPLIES TO SUMMARY" || !strings.HasPrefix(lines[1], "local-policy ") {
		t.Errorf("table:\n%s", out)
	}
	out, _ = c.want(0, "", "policy", "ls", "--wide")
	header := strings.Join(strings.Fields(strings.Split(fixture(t, "policy-ls-wide-0.45.txt"), "\n")[0]), " ")
	if lines := strings.Split(out, "\n"); strings.Join(strings.Fields(lines[0]), " ") != header || lines[2] != "" {
		t.Errorf("wide table:\n%s", out)
	}
	c.want(0, fixture(t, "policy-ls-none.txt"), "policy", "ls", "--source", "org")
	out, _ = c.want(0, "", "policy", "ls", "no-such-box", "--json") // no proof of existence, as in sbx
	if strings.Contains(out, "default-deny-all") {
		t.Errorf("scoped listing shows the fall-back: %s", out)
	}
	c.want(0, "", "policy", "inspect", id)
	out, _ = c.want(0, "", "policy", "inspect", id, "--json")
	if !strings.Contains(out, `"resource_type": "network"`) {
		t.Errorf("inspect: %q", out)
	}

	c.want(0, fixture(t, "policy-rm-0.23.txt"), "policy", "rm", "network", "--id", id, "--force")
	_, errs = c.want(1, "", "policy", "rm", "network", "--id", id)
	if errs != "error: "+fixture(t, "error-policy-rule-not-found.txt") {
		t.Errorf("second rm: %q", errs)
	}
	c.want(0, "Policy removed: resources=a.test:443,*.b.test\n", "policy", "rm", "network", "--resource", "a.test:443,*.b.test")
	c.want(1, "", "policy", "rm", "network")

	c.want(0, fixture(t, "policy-log-empty.txt"), "policy", "log")
	c.want(0, fixture(t, "policy-log-empty.json"), "policy", "log", "box", "--json", "--limit", "5")
	c.want(0, "Reset the network policy and stop all sandboxes? (y/N): Cancelled\n", "policy", "reset")
	c.want(0, "", "policy", "reset", "-f")
	c.want(1, "", "policy", "ls")
	c.want(0, "", "policy", "init", "deny-all")
}
