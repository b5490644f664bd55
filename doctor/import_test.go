package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// record makes some calls and returns the folder in which they were recorded.
func record(t *testing.T) string {
	t.Helper()
	b := newBench(t, `
policy: deny-all
exec: [{match: "^cat source", stdout: "the user's own source\n"}]`)
	dir := filepath.Join(t.TempDir(), "calls")
	client := sbx.New("sbx", sbx.WithRunner(sbx.RunnerFunc(b.run)), sbx.WithRecorder(dir))
	ctx := t.Context()
	if _, err := client.Version(ctx); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(t.TempDir(), "janes-work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(ctx, sbx.CreateSpec{Name: "my-private-project", Workspaces: []sbx.Workspace{{Path: work}}}); err != nil {
		t.Fatal(err)
	}
	if err := client.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "my-private-project", Value: secrets.New(pat("c")), NoCheck: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Exec(ctx, "my-private-project", sbx.ExecSpec{Argv: []string{"cat", "source"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Exec(ctx, "my-private-project", sbx.ExecSpec{Argv: []string{"no-such-program"}}); !errors.Is(err, sbx.ErrLaunch) {
		t.Fatal(err)
	}
	if _, err := client.Inspect(ctx, "nobody"); !errors.Is(err, sbx.ErrNotFound) {
		t.Fatal(err)
	}
	return dir
}

func TestImport(t *testing.T) {
	dir, out := record(t), filepath.Join(t.TempDir(), "fixtures")
	done, err := Import(dir, out, Mine{Home: "/home/jane"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"version-0.47.0.json", "ls-0.47.0.json", "secret-ls-0.47.0.json", "exec-launch-failure-stdout-0.47.0.txt", "error-inspect-0.47.0.txt"} {
		if !slices.Contains(done.Files, name) {
			t.Errorf("%s is not among %v", name, done.Files)
		}
	}
	index, err := os.ReadFile(done.Index)
	if err != nil {
		t.Fatal(err)
	}
	all := string(index)
	for _, name := range done.Files {
		text, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
		if !strings.Contains(string(index), "| "+name+" | 0.47.0 | recorded: sbx ") {
			t.Errorf("%s has no line in the index", name)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid(text) {
			t.Errorf("%s is no JSON", name)
		}
	}
	for _, private := range []string{"my-private-project", "jane", "own source", "github_pat_c"} {
		if strings.Contains(all, private) {
			t.Errorf("%q is in the fixtures", private)
		}
	}
	// They are what the package that reads them can read.
	text, err := os.ReadFile(filepath.Join(out, "ls-0.47.0.json"))
	if err != nil {
		t.Fatal(err)
	}
	if list, err := sbx.ParseSandboxes(text); err != nil || len(list) != 1 || list[0].Name != "demo-1" || list[0].Workspaces[0] != "/home/dev/project" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := Import(dir, out, Mine{}); !errors.Is(err, ErrImport) {
		t.Error("a folder that has something in it was written to")
	}
}

// A credential that somebody put into a recording by hand, or that an engine printed in a way that was not masked.
func TestImportRefusesCredentials(t *testing.T) {
	for name, text := range map[string]string{
		"in an output":      "error: bad token ghp_" + strings.Repeat("Ab1", 12),
		"split by the line": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir, out := record(t), filepath.Join(t.TempDir(), "fixtures")
			file := fmt.Sprintf(`{"args":["ls"],"code":1,"stderr":%q}`, text)
			if err := os.WriteFile(filepath.Join(dir, "99999-ls.json"), []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Import(dir, out, Mine{}); !errors.Is(err, ErrCredentialInside) || strings.Contains(fmt.Sprint(err), "Ab1Ab1") {
				t.Errorf("error %v", err)
			}
			if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
				t.Error("something was written")
			}
		})
	}
}

func TestNeutral(t *testing.T) {
	n := newNeutral(Mine{Home: "/home/jane", Host: "thinkpad-7"}, []sbx.Recording{
		{Args: []string{"--app-name=x", "rm", "--force", "secret-plan", "name"}},
		{Args: []string{"exec", "-u", "root", "web", "ls"}},
		{Args: []string{"policy", "allow", "--sandbox", "payroll", "db.corp.internal"}},
		{Args: []string{"cp", "C:\\x", "ledger:/tmp/x"}},
	})
	for _, tt := range [][2]string{
		{"Signed in as jane.doe.", "Signed in as dev"},
		{"github  gho_GCaw4o****...****43qy", "github  ****"},
		{`C:\Users\Jane\project`, `C:\Users\dev\project`},
		{"/tmp/TestX123/001/state/x", "/tmp/work"},
		{"Sandbox 'sbxpair-abcdefabcdef-agent' gone", "Sandbox 'demo-agent' gone"},
		{"3b1f6c1e-6f0a-4f0e-9a51-0d5f7c1a2b01 twice", "c0ffee00-1111-4222-8333-000000000001 twice"},
		{"jane@corp.example.org", "dev@example.com"},
		{"jane on thinkpad-7", "dev on devbox"},

		{`{"name":"secret-plan","secret-plan":{"status":"running"}}`, `{"name":"demo-1","demo-1":{"status":"running"}}`},
		{"payroll is no payrolls, nor x-payroll.", "demo-3 is no payrolls, nor x-payroll."},
		{"web web-2 webs", "demo-2 web-2 webs"},
		{"ledger: no such path", "demo-4: no such path"},

		{"allow db.corp.internal:5432, *.corp.internal", "allow host-1.example.com:5432, *.host-2.example.com"},
		{"DB.corp.internal again, https://wiki.corp/page", "host-1.example.com again, https://host-3.example.com/page"},
		{"api.github.com **.docker.io config.json", "api.github.com **.docker.io config.json"},
		{"/etc/sandbox-persistent.sh v0.47.0", "/etc/sandbox-persistent.sh v0.47.0"},
		{"https://api.github.com/repos/corp/payroll/x", "https://api.github.com/repos/octo/slugify/x"},
		{"10.1.2.3:80 127.0.0.1:80 fd00::7 at 04:43:12", "192.0.2.1:80 127.0.0.1:80 2001:db8::2 at 04:43:12"},
	} {
		if got := n.text("ls", tt[0]); got != tt[1] {
			t.Errorf("%q becomes %q, want %q", tt[0], got, tt[1])
		}
	}
	listed := newNeutral(Mine{}, []sbx.Recording{
		{Args: []string{"create", "--name", "x1", "shell", "/srv/acme/plan:ro"}},
		{Args: []string{"secret", "ls"}, Stdout: `{"secrets":[{"scope":"merger","type":"service","name":"github"}],"custom_secrets":[{"scope":"merger","targets":["db.corp"],"env":"ACME_PASS","placeholder":"sbx-cs-aaaaaaaaaaaaaaaa"}]}`},
		{Args: []string{"prune", "--dry-run", "--json"}, Stdout: `{"would_remove":[{"name":"layoffs"}]}`},
	})
	for text, want := range map[string]string{
		"merger has ACME_PASS": "demo-2 has SECRET_1", "layoffs would go": "demo-3 would go",
		"in /srv/acme/plan now": "in /home/dev/project now", "/mnt/users/jdoe/x and /run/user/31337/jdoe": "/home/dev/files and /run/user/1000",
	} {
		if got := listed.text("ls", text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	if got := n.text("settings-get", "ssh.agentforwarding   true"); got != "ssh.agentforwarding   true" {
		t.Errorf("the key of a setting becomes %q", got)
	}
	table := "SANDBOX       AGENT   STATUS\nsecret-plan   shell   running\nweb           shell   stopped\n"
	if got := n.text("ls", table); got != "SANDBOX       AGENT   STATUS\ndemo-1        shell   running\ndemo-2        shell   stopped\n" {
		t.Errorf("the table becomes\n%s", got)
	}
}
