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

// TestBlockPages reads what a block looks like from inside.
func TestBlockPages(t *testing.T) {
	for _, name := range []string{"blocked-403-detail.txt", "blocked-403-implicit-0.47.txt", "blocked-403-local-rule.txt", "blocked-403-org.txt"} {
		if body := fixture(t, name); !sbx.IsBlockPage(403, body) || sbx.IsBlockPage(200, body) {
			t.Errorf("%s is not told", name)
		}
	}
	if sbx.IsBlockPage(403, []byte(`{"message":"Resource not accessible by personal access token"}`)) {
		t.Error("GitHub's own 403 was taken for a block")
	}
	for exit, tt := range map[int]struct {
		stderr string
		want   bool
	}{
		6: {"curl: (6) Could not resolve host", true}, 52: {"curl: (52) Empty reply from server", true},
		56: {"curl: (56) CONNECT tunnel failed, response 403", true}, 97: {"", false}, 22: {"403", false}, 0: {"", false},
	} {
		if got := sbx.IsBlockedConnection(exit, tt.stderr); got != tt.want {
			t.Errorf("curl exit %d: %t", exit, got)
		}
	}
}

// TestEscapes: whatever a terminal is told, a parser does not see.
func TestEscapes(t *testing.T) {
	table := "SANDBOX   STATUS\nbox       running\n"
	for name, text := range map[string]string{
		"colours":            "\x1b[1;32m" + table,
		"window title, BEL":  "\x1b]0;sbx ls\x07" + table,
		"window title, ST":   "\x1b]0;sbx ls\x1b\\" + table,
		"link":               "\x1b]8;;https://example.com\x1b\\\x1b]8;;\x1b\\" + table,
		"character set":      "\x1b(B" + table,
		"device string":      "\x1bPq#0\x1b\\" + table,
		"two bytes":          "\x1b7\x1b8" + table,
		"cut at the end":     table + "\x1b",
		"cut in the middle":  table + "\x1b[1;",
		"unterminated":       table + "\x1b]0;never ends",
		"zero width":         strings.ReplaceAll(table, "box", "b\u200box"),
		"bell and backspace": "\a\b" + table,
	} {
		list, err := sbx.ParseSandboxes([]byte(text))
		if err != nil || len(list) != 1 || list[0].Name != "box" {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

func TestSemver(t *testing.T) {
	ordered := []string{"v0.9.0", "0.33.0", "0.43.0-rc1", "0.43.0-rc3", "0.43.0-rc10", "0.43.0", "v0.47.0", "v0.47.1", "1.0.0"}
	for i := range ordered {
		for j := range ordered {
			a, b := sbx.ParseSemver(ordered[i]), sbx.ParseSemver(ordered[j])
			if got := a.Compare(b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s against %s: %d", a, b, got)
			}
		}
	}
	for text, want := range map[string]string{"v0.47": "0.47.0", "dev": "dev", "": "", "nightly-20261101 0123": "nightly-20261101", "v0.48.0-nightly.20261101+0123 x": "0.48.0-nightly.20261101",
		"0.41.0~rc1": "0.41.0-rc1", "v0.47.0-12-g0123abc-dirty": "0.47.0-12-g0123abc-dirty", "0.38.2.1": "0.38.2", "(v0.39.1)": "0.39.1", "v0.0.0-20261101123456-0123456789ab": "v0.0.0-20261101123456-0123456789ab", "9.1.2.3x": "9.1.2.3x"} {
		if v := sbx.ParseSemver(text); v.String() != want || v.Known() != strings.HasPrefix(want, "0.") {
			t.Errorf("%q: %+v", text, v)
		}
	}
}

// TestDaemonStates has the answers of a daemon verb on versions and machines that differ.
func TestDaemonStates(t *testing.T) {
	status := func(c canned) (sbx.DaemonState, error) {
		return sbx.New("", v47(), c.runner(t)).DaemonStatus(t.Context())
	}
	s, err := status(canned{"daemon status --json": says("", "ERROR: unknown flag: --json\n", 1), "daemon status": says(string(fixture(t, "daemon-status.txt")), "", 0)})
	if err != nil || !s.Running || s.Socket == "" || s.Logs == "" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = status(canned{"daemon status": says(`{"status":"stopped"}`, "", 1)}); err != nil || s.Running {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = status(canned{"daemon status": says("", string(fixture(t, "error-daemon-start-timeout.txt")), 1)})
	wantKinds(t, err, sbx.ErrDaemon)
	_, err = status(canned{"daemon status": says("all is well\n", "", 0)})
	wantKinds(t, err, sbx.ErrMalformed)
	// It says that it could not, and runs.
	c := sbx.New("", v47(), canned{"daemon start": says("", "error: already running\n", 1), "daemon status": says(`{"status":"running"}`, "", 0)}.runner(t))
	ok(t, c.DaemonStart(t.Context()))
	c = sbx.New("", v47(), canned{"daemon start": says("", "error: ensure daemon: no\n", 1), "daemon status": says(`{"status":"stopped"}`, "", 0)}.runner(t))
	wantKinds(t, c.DaemonStart(t.Context()), sbx.ErrDaemon)
}

func TestResets(t *testing.T) {
	e := newEngine(t, "0.47")
	c := e.client()
	ok(t, c.PolicyReset(t.Context()))
	_, err := c.PolicyList(t.Context(), "")
	wantKinds(t, err, sbx.ErrPolicyUninitialised)
	ok(t, c.Reset(t.Context(), false))
	wantKinds(t, c.CheckSignedIn(t.Context()), sbx.ErrNotSignedIn)
	if got := strings.Join(e.calls(), "\n"); !strings.Contains(got, "policy reset --force") || !strings.Contains(got, "reset --force") {
		t.Errorf("%s", got)
	}
}

// TestRefusedFlags: a flag that came later is left out where it is not known.
func TestRefusedFlags(t *testing.T) {
	refuse := says("", "ERROR: unknown flag: --force\n", 1)
	c, calls := sent(func(args []string) sbx.Result {
		if args[len(args)-1] == "--force" {
			return refuse
		}
		return says("", "", 0)
	})
	ok(t, c.Unverified().PolicyRemove(t.Context(), sbx.RuleRef{ID: "1"}))
	if len(*calls) != 2 || strings.Join((*calls)[1], " ") != "policy rm network --id 1" {
		t.Errorf("%q", *calls)
	}
}

// TestErrorTextsForPeople: what, why, what to do.
func TestErrorTextsForPeople(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want []string
	}{
		{&sbx.LaunchError{Sandbox: "box", Program: "go", Code: 127, Text: "no such file"}, []string{"go", "box", "no such file"}},
		{&sbx.ConnectionError{Op: "create", Text: "half"}, []string{"create", "not known", "half"}},
		{&sbx.UnsupportedError{Op: "create", Feature: "x", Need: "sbx 0.38 or later"}, []string{"x needs sbx 0.38 or later"}},
		{&sbx.ExitError{Op: "ls", Code: 3}, []string{"exit 3", "no message"}},
	} {
		for _, want := range tt.want {
			if !strings.Contains(tt.err.Error(), want) {
				t.Errorf("%v does not say %q", tt.err, want)
			}
		}
	}
	for _, kind := range []error{sbx.ErrNameLeaked, sbx.ErrDiskFull, sbx.ErrForeignTool, sbx.ErrNotInstalled, sbx.ErrVersionMismatch} {
		if sbx.Hint(kind) == "" {
			t.Errorf("no hint for %v", kind)
		}
	}
	for name, kind := range kinds() { // a program that imports this package has flags of its own
		if hint := sbx.Hint(kind); strings.Contains(hint, "sbxpair") || strings.Contains(hint, "--engine") {
			t.Errorf("the hint for %s is for another program: %q", name, hint)
		}
	}
	if hint := sbx.Hint(errors.New("x")); hint != "" {
		t.Errorf("hint %q", hint)
	}
}

// TestBinaryIsNotRecorded: a cassette holds text, and says where it holds none.
func TestBinaryIsNotRecorded(t *testing.T) {
	dir := t.TempDir()
	next := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
		return sbx.Result{Stdout: []byte("\xff\xfe\x00canary"), Code: 0}, nil
	})
	r := &sbx.Recorder{Dir: dir, Next: next}
	_, err := r.Run(t.Context(), sbx.Cmd{Args: []string{"policy", "ls", "--json"}, Stdin: strings.NewReader("canary"), Redact: []secrets.Value{secrets.New("canary")}})
	ok(t, err)
	recs, err := sbx.ReadRecordings(dir)
	ok(t, err)
	if !recs[0].Binary || recs[0].Stdout != "" || recs[0].StdinBytes != 0 {
		t.Errorf("%+v", recs[0])
	}
	if _, err := os.Stat(filepath.Join(dir, "00001-policy-ls.json")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	ok(t, os.WriteFile(file, nil, 0o600))
	_, err = (&sbx.Recorder{Dir: file, Next: next}).Run(t.Context(), sbx.Cmd{Args: []string{"ls"}})
	if err == nil || !strings.Contains(err.Error(), "record engine call") {
		t.Errorf("a recording that cannot be written: %v", err)
	}
	if _, err := sbx.NewReplay(t.TempDir()); err == nil {
		t.Error("an empty cassette was taken")
	}
}
