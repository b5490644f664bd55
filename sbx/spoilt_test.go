package sbx_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// TestErrorWithinAnAnswer: an answer that tells of an error is none, wherever it does, although the engine exits with 0.
func TestErrorWithinAnAnswer(t *testing.T) {
	boxes := `{"sandboxes":[{"name":"box","status":"running"}]}` + "\n"
	table := "SANDBOX   AGENT   STATUS    PORTS   WORKSPACE\nbox       shell   running           /w\n"
	for _, tt := range []struct{ parser, text string }{
		{"secrets", "SCOPE  TYPE  NAME  SECRET\nERROR: read secret store: database is locked\n"},
		{"secrets", "SCOPE     TYPE     NAME    SECRET\n(global)  service  github  gho_***\nERROR: read the scope of box: database is locked\n"},
		{"secrets", "ERROR: read secret store: database is locked\nNo secrets found\n"},
		{"secrets", `{"secrets":[],"custom_secrets":[],"errors":["locked"]}`},
		{"sandboxes", table + "error: list runtimes\n"},
		{"sandboxes", table + "WARN: the listing is incomplete\n"},
		{"sandboxes", boxes + "WARN: the listing is incomplete\n"},
		{"sandboxes", boxes + "WARN: no update check\nerror: list runtimes\n"},
		{"sandboxes", boxes + "\nDocker Sandboxes Update Available\nError: list runtimes\n"},
		{"sandboxes", "ERROR: list runtimes\n" + boxes},
		{"sandboxes", `{"sandboxes":[],"error":"listing incomplete"}`},
		{"sandboxes", `{"error":{"code":5},"sandboxes":[]}`},
		{"sandboxes", `{"sandboxes":[],"incomplete":true}`},
		{"rules", `{"rules":[],"Error":"no database"}`},
		{"rules", "PROVENANCE  APPLIES_TO  POLICY/RULE  TYPE     DECISION  RESOURCES\nERROR: no database\n"},
		{"ports", "ERROR: no daemon\n[]"},
		{"log", "ERROR: no database\nNo policy log entries found\n"},
		{"verdict", "ERROR: no database\nAllowed: a.example:443\n"},
		{"templates", `{"images":[],"error":"x"}`},
		{"inspection", "Name: box\nState: running\nERROR: read secrets: database is locked\n"},
	} {
		if got, err := parsers()[tt.parser].parse([]byte(tt.text)); !errors.Is(err, sbx.ErrMalformed) {
			t.Errorf("%s of %q: %+v, %v", tt.parser, tt.text, got, err)
		}
	}
	for _, text := range []string{`{"sandboxes":[],"error":null}`, `{"sandboxes":[],"errors":[],"error":"","incomplete":false}`, `{"sandboxes":[{"name":"error","status":"running"}]}`} {
		_, err := sbx.ParseSandboxes([]byte(text))
		ok(t, err)
	}
	list := func(stderr string) error {
		_, err := sbx.New("", v47(), canned{"secret ls": says(`{"secrets":[],"custom_secrets":[]}`, stderr, 0)}.runner(t)).SecretList(t.Context())
		return err
	}
	wantKinds(t, list("ERROR: The name org.freedesktop.secrets was not provided by any .service files\n"), sbx.ErrKeyring)
	if err := list("WARN: the list is incomplete\n"); err == nil || !strings.Contains(err.Error(), "incomplete") {
		t.Errorf("error %v", err)
	}
	ok(t, list("WARN: keychain is slow\nERROR: no usage report today\n"))
}

// TestRowOfSingleSpaces: a row that runs into its neighbours, or is cut off, does not pass for prose.
func TestRowOfSingleSpaces(t *testing.T) {
	const head = "SANDBOX   AGENT   STATUS    PORTS   WORKSPACE\na         shell   running           /w\n"
	const tail = "b         shell   running           /w\n"
	for _, row := range []string{"my-long-sandbox docker-agent running /home/dev/b\n", "my-long-sandbox docker-agent running\n", "box2\n", "box2 shell\n", "upgrade-box shell\n"} {
		for _, text := range []string{head + row + tail, head + row, head + strings.TrimSpace(row)} {
			list, err := sbx.ParseSandboxes([]byte(text))
			if err == nil && len(list) != strings.Count(strings.TrimSpace(text), "\n") || err != nil && !errors.Is(err, sbx.ErrMalformed) {
				t.Errorf("%q: %+v, %v", row, list, err)
			}
		}
	}
	secretList := "SCOPE     TYPE     NAME    SECRET\n(global)  service  github  gho_***\n"
	if list, err := sbx.ParseSecrets([]byte(secretList + "(global) service anthropic-long-name\n")); err == nil && len(list) != 2 {
		t.Errorf("%+v", list)
	}
	for _, prose := range []string{
		"Run sbx create to make another.\n", "Docker Sandboxes Update Available\n", "╭────╮\n│ Docker Sandboxes Update Available │\n╰────╯\n", "Two more stopped.\n",
		"run: brew upgrade sbx\n", "Note: something\n",
	} {
		list, err := sbx.ParseSandboxes([]byte(head + tail + prose))
		if err != nil || len(list) != 2 {
			t.Errorf("%q: %+v, %v", prose, list, err)
		}
	}
}

// TestNamesAreNoReasons: what a user called a thing says nothing of why a call failed.
func TestNamesAreNoReasons(t *testing.T) {
	ctx := t.Context()
	for _, name := range []string{"dbus-fix", "keyring", "keychain-1", "no-space", "secret"} {
		for _, text := range []string{"ERROR: sandbox '" + name + "' not found", "Error: sandbox \"" + name + "\" not found", "error: no sandbox named " + name} {
			c := sbx.New("", v47(), canned{"stop": says("", text, 1), "inspect": says("", text, 1), "exec": says("", text, 1), "ls": says(`{"sandboxes":[]}`, "", 0)}.runner(t))
			_, err := c.Inspect(ctx, name)
			only(t, err, sbx.ErrNotFound)
			only(t, c.Stop(ctx, name), sbx.ErrNotFound)
		}
	}
	c := sbx.New("", v47(), canned{
		"template ls":  says(`{"images":[]}`, "", 0),
		"template rm":  says("", "ERROR: no such template: acme/keyring:latest", 1),
		"settings get": says("", "ERROR: unknown setting \"ssh.keyring\"", 1),
		"stop":         says("", "ERROR: stop \"dbus-fix\": the keyring is locked: prompt dismissed", 1),
		"ports":        says("", "ERROR: Get \"http://sandboxd/sandbox/keyring\": EOF", 1),
	}.runner(t))
	ok(t, c.TemplateRemove(ctx, "acme/keyring:latest")) // it was gone before
	_, err := c.Setting(ctx, "ssh.keyring")
	only(t, err, sbx.ErrNotFound)
	only(t, c.Stop(ctx, "dbus-fix"), sbx.ErrKeyring) // and the reason is seen still
	_, err = c.Ports(ctx, "keyring")
	only(t, err, sbx.ErrDaemon)
}

// only wants an error of one kind of those that a text may stand for.
func only(t *testing.T, err, want error) {
	t.Helper()
	for _, kind := range kinds() {
		if errors.Is(err, kind) != (kind == want) {
			t.Errorf("%v: is %v: %v", err, kind, errors.Is(err, kind))
		}
	}
}

// TestHungVersion: calls that wait for the answer to one question wait no longer than for a question of their own.
func TestHungVersion(t *testing.T) {
	c := sbx.New("", sbx.WithTimeouts(sbx.Timeouts{Version: 500 * time.Millisecond}), sbx.WithRunner(sbx.RunnerFunc(func(ctx context.Context, _ sbx.Cmd) (sbx.Result, error) {
		<-ctx.Done()
		return sbx.Result{Code: -1}, ctx.Err()
	})))
	var all sync.WaitGroup
	within(t, 5*time.Second, func() {
		for range 40 { // one after the other they would take 20 s
			all.Go(func() {
				_, err := c.List(t.Context())
				only(t, err, sbx.ErrTimeout)
			})
		}
		all.Wait()
	})
}

// TestZeroByte: no system can pass one on to a program, whatever the verb is; it has nothing to do with what is installed.
func TestZeroByte(t *testing.T) {
	ctx, c := t.Context(), sbx.New("/bin/true", v47())
	_, labelled := c.PolicyAllow(ctx, sbx.PolicyRule{Resources: []string{"a.example"}, Sandbox: "box", Path: "/\x00"})
	_, inspected := c.PolicyInspect(ctx, "a\x00")
	_, pruned := c.Prune(ctx, sbx.PruneSpec{Until: "1\x00h", DryRun: true})
	_, set := c.SecretSetCustom(ctx, sbx.CustomSecret{Hosts: []string{"a.example"}, Env: "A", Ref: "op://a\x00"})
	for what, err := range map[string]error{
		"rule": labelled, "rule's id": inspected, "filter": pruned, "reference": set, "copy": c.CopyOut(ctx, "box", "/a\x00", filepath.Join(t.TempDir(), "x")),
	} {
		if !errors.Is(err, sbx.ErrInvalid) || errors.Is(err, sbx.ErrNotInstalled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestProxyPassword: an engine that cannot reach the network names its proxy, as it was given.
func TestProxyPassword(t *testing.T) {
	dir := t.TempDir()
	text := "ERROR: proxyconnect http://joe:canary-pass@proxy.example:3128: connection refused"
	c := sbx.New("", v47(), sbx.WithRecorder(dir), canned{"ls": says("", text, 1)}.runner(t))
	_, err := c.List(t.Context())
	if err == nil || strings.Contains(err.Error(), "canary-pass") || !strings.Contains(err.Error(), "joe:***@proxy.example:3128") {
		t.Errorf("error %v", err)
	}
	names, err := sbx.RecordingFiles(dir)
	ok(t, err)
	for _, name := range names {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || strings.Contains(string(b), "canary-pass") {
			t.Errorf("%s, %v", b, err)
		}
	}
	env := strings.Join(sbx.Environ([]string{"DOCKER_SANDBOXES_PAT=canary", "DOCKER_SANDBOXES_AUTH=canary", "SANDBOXES_KEY=canary", "SBX_LOCAL_APIKEY=canary", "SBX_LOCAL_PATH=/kept"}), " ")
	if strings.Contains(env, "canary") || !strings.Contains(env, "/kept") {
		t.Errorf("%s", env)
	}
}

// TestRecordingFolder: the folder's name is no pattern.
func TestRecordingFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rec[1")
	for range 2 { // a second process goes on behind the first
		_, err := sbx.New("", v47(), sbx.WithRecorder(dir), canned{"ls": says(`{"sandboxes":[]}`, "", 0)}.runner(t)).List(t.Context())
		ok(t, err)
	}
	recs, err := sbx.ReadRecordings(dir)
	if err != nil || len(recs) != 2 {
		t.Errorf("%d recordings, %v", len(recs), err)
	}
}

// TestLongLine: a line of very many fields is no row, and found out at its start.
func TestLongLine(t *testing.T) {
	line := strings.Repeat("a  ", 3<<20) + "\n"
	for _, text := range []string{line, "SANDBOX   STATUS\n" + line} {
		within(t, 20*time.Second, func() {
			if list, err := sbx.ParseSandboxes([]byte(text)); err == nil {
				t.Errorf("%d rows", len(list))
			}
		})
	}
}
