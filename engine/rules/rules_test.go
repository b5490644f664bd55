package rules_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/statefile"
	"github.com/sbxpair/sbxpair/policy"
)

func fixture(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "fixtures", "sbx", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, preset policy.Preset) *rules.Store {
	t.Helper()
	s := rules.Open(t.TempDir())
	if err := s.Init(t.Context(), preset); err != nil {
		t.Fatal(err)
	}
	return s
}

func resources(t *testing.T, list string) []policy.Resource {
	t.Helper()
	r, err := policy.ParseResources(list)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func add(t *testing.T, s *rules.Store, scope string, effect policy.Effect, list string) []rules.Rule {
	t.Helper()
	added, err := s.Add(t.Context(), scope, effect, rules.New{Resources: resources(t, list)})
	if err != nil {
		t.Fatal(err)
	}
	return added
}

func TestInitOnce(t *testing.T) {
	s := rules.Open(t.TempDir())
	if ok, err := s.Initialised(); ok || err != nil {
		t.Errorf("fresh store: %t, %v", ok, err)
	}
	if _, err := s.Set("x"); !errors.Is(err, rules.ErrUninitialised) {
		t.Errorf("Set: %v", err)
	}
	if _, err := s.Add(t.Context(), "", policy.Allow, rules.New{Resources: resources(t, "a.test")}); !errors.Is(err, rules.ErrUninitialised) {
		t.Errorf("Add: %v", err)
	}
	if err := s.Init(t.Context(), policy.Balanced); err != nil {
		t.Fatal(err)
	}
	err := s.Init(t.Context(), policy.DenyAll)
	want := strings.TrimPrefix(strings.TrimSpace(string(fixture(t, "error-policy-already-initialised-0.34.txt"))), "ERROR: ")
	if !errors.Is(err, rules.ErrInitialised) || err.Error() != want {
		t.Errorf("second Init: %v", err)
	}
	if p, err := s.Preset(); p != policy.Balanced || err != nil {
		t.Errorf("preset %q, %v", p, err)
	}
	if err := s.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Initialised(); ok || err != nil {
		t.Errorf("after Reset: %t, %v", ok, err)
	}
}

func TestAddListRemove(t *testing.T) {
	s := open(t, policy.DenyAll)
	added := add(t, s, "demo-agent", policy.Allow, "example.com:443,*.example.org")
	if len(added) != 2 || added[0].ID == added[1].ID {
		t.Fatalf("%+v", added)
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if !uuid.MatchString(added[0].ID) {
		t.Errorf("id %q", added[0].ID)
	}
	// Adding again is no second rule.
	if again := add(t, s, "demo-agent", policy.Allow, "EXAMPLE.com.:443"); again[0].ID != added[0].ID {
		t.Errorf("same rule stored twice: %+v", again)
	}
	add(t, s, "other", policy.Allow, "other.test")
	add(t, s, "", policy.Deny, "bad.test")
	if list, err := s.List(rules.Filter{Sandbox: "demo-agent"}); err != nil || len(list) != 3 {
		t.Errorf("for demo-agent: %+v, %v", list, err)
	}
	_, err := s.Add(t.Context(), "demo-agent", policy.Deny, rules.New{Resources: resources(t, "fine.test,example.com:443")})
	conflict, ok := errors.AsType[*rules.ConflictError](err)
	if !ok || conflict.Existing != added[0].ID {
		t.Errorf("deny beside allow: %v", err)
	}
	if list, _ := s.List(rules.Filter{}); len(list) != 4 {
		t.Errorf("half of a refused list was stored: %+v", list)
	}
	if _, err := s.Add(t.Context(), "other", policy.Deny, rules.New{Resources: resources(t, "example.com:443")}); err != nil {
		t.Errorf("same resource in another scope: %v", err)
	}
	if _, err := s.Add(t.Context(), "", policy.Allow, rules.New{Resources: resources(t, "127.0.0.1")}); !errors.Is(err, policy.ErrUnreachable) {
		t.Errorf("loopback: %v", err)
	}

	if _, err := s.RemoveID(t.Context(), "other", added[0].ID); !errors.Is(err, rules.ErrNotFound) {
		t.Errorf("removal from another scope: %v", err)
	}
	if r, err := s.RemoveID(t.Context(), "demo-agent", added[0].ID); err != nil || r.ID != added[0].ID {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.RemoveID(t.Context(), "demo-agent", added[0].ID); !errors.Is(err, rules.ErrNotFound) ||
		err.Error() != strings.TrimSpace(string(fixture(t, "error-policy-rule-not-found.txt"))) {
		t.Errorf("second removal: %v", err)
	}
	if _, err := s.RemoveResources(t.Context(), "demo-agent", resources(t, "*.example.org,gone.test")); !errors.Is(err, rules.ErrNotFound) {
		t.Errorf("one of two is missing: %v", err)
	}
	if gone, err := s.RemoveResources(t.Context(), "demo-agent", resources(t, "*.example.org")); err != nil || len(gone) != 1 {
		t.Errorf("%+v, %v", gone, err)
	}
	if err := s.DropScope(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	if err := s.DropScope(t.Context(), "other"); err != nil {
		t.Errorf("nothing left to drop: %v", err)
	}
	if err := s.DropScope(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if list, _ := s.List(rules.Filter{}); len(list) != 1 || list[0].Effect != policy.Deny {
		t.Errorf("left: %+v", list)
	}
}

// A change by one process is seen by another, and the set stays the same object while nothing changes.
func TestSetFollowsTheFile(t *testing.T) {
	dir := t.TempDir()
	writer, reader := rules.Open(dir), rules.Open(dir)
	if err := writer.Init(t.Context(), policy.DenyAll); err != nil {
		t.Fatal(err)
	}
	first, err := reader.Set("box")
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := reader.Set("box"); again != first {
		t.Error("a new set without a change")
	}
	add(t, writer, "box", policy.Allow, "a.test")
	second, err := reader.Set("box")
	if err != nil || second == first {
		t.Errorf("the change is not seen: %v", err)
	}
	h, _ := policy.ParseHost("a.test")
	if !second.Decide(policy.Request{Host: h, Port: 443}).Allowed {
		t.Error("denied after allow")
	}
	other, _ := reader.Set("another")
	if other.Decide(policy.Request{Host: h, Port: 443}).Allowed {
		t.Error("a scoped rule holds for another sandbox")
	}
}

// What another version wrote is not written over.
func TestAnotherVersionIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.json")
	const text = `{"version": 99, "preset": "deny-all", "rules": [], "more": true}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := rules.Open(dir)
	if _, err := s.Add(t.Context(), "", policy.Allow, rules.New{Resources: resources(t, "a.test")}); err == nil {
		t.Error("a rule is added")
	}
	if err := s.Init(t.Context(), policy.AllowAll); err == nil || errors.Is(err, rules.ErrInitialised) {
		t.Errorf("Init = %v", err)
	}
	if err := s.DropScope(t.Context(), "box"); err == nil {
		t.Error("DropScope passes")
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != text {
		t.Errorf("it holds %s, %v", data, err)
	}
}

func TestUnreadableStoreIsAnError(t *testing.T) {
	dir := t.TempDir()
	s := rules.Open(dir)
	if err := os.WriteFile(filepath.Join(dir, "policy.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Set(""); !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("Set: %v", err)
	}
	if _, err := s.Initialised(); !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("Initialised: %v", err)
	}
	if err := s.Init(t.Context(), policy.DenyAll); !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("Init writes over a damaged store: %v", err)
	}
	for _, bad := range []string{`{"version":1,"preset":"deny-all","rules":[{"id":"x","decision":"allow","resources":["*com"]}]}`, `{"version":9,"preset":"deny-all"}`} {
		if err := os.WriteFile(filepath.Join(dir, "policy.json"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Set(""); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

// shape compares two JSON documents by their keys and kinds of values, in order.
func shape(t *testing.T, v any) any {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = shape(t, x)
		}
		return out
	case []any:
		if len(v) == 0 {
			return "list"
		}
		return []any{shape(t, v[0])}
	case nil:
		return "null"
	}
	return reflect.TypeOf(v).String()
}

func decode(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestViewHasTheShapeOfSbx(t *testing.T) {
	s := open(t, policy.DenyAll)
	r := add(t, s, "demo-agent", policy.Allow, "example.com")[0]
	r.ID = "3b1f6c1e-6f0a-4f0e-9a51-0d5f7c1a2b01"
	got, err := json.MarshalIndent(r.View(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(fixture(t, "policy-inspect-rule-0.47.json"))); string(got) != want {
		t.Errorf("View:\n%s\nwant:\n%s", got, want)
	}
	if line, want := r.AddedLine(), strings.TrimSpace(string(fixture(t, "policy-allow-0.47.txt"))); line != want {
		t.Errorf("%q, want %q", line, want)
	}
	d := add(t, s, "", policy.Deny, "example.com")[0]
	d.ID = "c0ffee00-1111-4222-8333-444455556603"
	if line, want := d.AddedLine(), strings.TrimSpace(string(fixture(t, "policy-deny-0.47.txt"))); line != want {
		t.Errorf("%q, want %q", line, want)
	}
	pat, err := policy.ParsePathPattern("/**/git-receive-pack")
	if err != nil {
		t.Fatal(err)
	}
	http, err := s.Add(t.Context(), "demo-agent", policy.Deny, rules.New{Resources: resources(t, "github.com"), Methods: []string{"POST"}, Paths: []policy.PathPattern{pat}})
	if err != nil {
		t.Fatal(err)
	}
	http[0].ID = "c0ffee00-1111-4222-8333-444455556603"
	got, err = json.MarshalIndent(rules.Listing{Rules: []rules.View{http[0].View()}}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(fixture(t, "policy-ls-http-0.47.json"))); string(got) != want {
		t.Errorf("View:\n%s\nwant:\n%s", got, want)
	}
	fs := decode(t, fixture(t, "policy-ls-0.47.json")).(map[string]any)["rules"].([]any)[1]
	b, _ := json.Marshal(rules.FilesystemViews()[0])
	if got := decode(t, b); !reflect.DeepEqual(got, fs) {
		t.Errorf("%v, want %v", got, fs)
	}
}

func TestCheckHasTheShapeOfSbx(t *testing.T) {
	s := open(t, policy.DenyAll)
	check := func(want string, mend func(*rules.Check)) {
		t.Helper()
		c, err := s.Check("demo-agent", "example.com")
		if err != nil {
			t.Fatal(err)
		}
		mend(&c)
		got, err := json.MarshalIndent(c, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimSpace(string(fixture(t, want))); string(got) != want {
			t.Errorf("%s\nwant:\n%s", got, want)
		}
	}
	check("policy-check-deny-implicit-0.47.json", func(*rules.Check) {})
	add(t, s, "demo-agent", policy.Allow, "example.com")
	check("policy-check-allow-0.47.json", func(*rules.Check) {})
	add(t, s, "", policy.Deny, "example.com")
	check("policy-check-deny-explicit-0.47.json", func(c *rules.Check) {
		if !strings.HasPrefix(c.Rule, "local:") {
			t.Errorf("rule %q", c.Rule)
		}
		c.Rule = "local:c0ffee00-1111-4222-8333-444455556603"
	})
	for target, want := range map[string]string{"https://x.test/a?b": "x.test:443", "http://u:p@x.test:81/": "x.test:81", "http://x.test": "x.test:80", "[fd00::1]": "[fd00::1]:443"} {
		if c, err := s.Check("", target); err != nil || c.Target != want || c.Context != "global" {
			t.Errorf("%s: %+v, %v", target, c, err)
		}
	}
	if _, err := s.Check("", "a b"); !errors.Is(err, policy.ErrHost) {
		t.Errorf("%v", err)
	}
}

func TestLogView(t *testing.T) {
	l := rules.OpenLog(t.TempDir())
	defer l.Close()
	at := time.Date(2026, 10, 8, 9, 40, 51, 0, time.UTC)
	for _, e := range []rules.Entry{
		{Time: at, Sandbox: "demo-agent", Host: "example.com:443", Type: rules.Forward, Kind: "explicit", Rule: "local:c0ffee00-1111-4222-8333-444455556603", Reason: "Denied by local rule"},
		{Time: at.Add(-time.Minute), Sandbox: "demo-agent", Host: "example.org:443", Type: rules.Bypass, Allowed: true, Rule: "local:x", Reason: "Allowed by local rule"},
		{Time: at.Add(16 * time.Second), Sandbox: "demo-agent", Host: "example.com:443", Type: rules.Forward, Kind: "explicit", Rule: "local:c0ffee00-1111-4222-8333-444455556603", Reason: "Denied by local rule"},
		{Time: at.Add(time.Second), Sandbox: "demo-agent", Host: "download.docker.com:443", Type: rules.Forward, Kind: "implicit", Reason: "No matching allow rule (default deny)"},
		{Time: at, Sandbox: "other", Host: "x.test:443", Type: rules.Forward, Kind: "implicit", Reason: "No matching allow rule (default deny)"},
	} {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	v, err := l.View("demo-agent", 0)
	if err != nil {
		t.Fatal(err)
	}
	want := decode(t, fixture(t, "policy-log-0.47.json")).(map[string]any)["blocked_hosts"].([]any)
	if len(v.Blocked) != 2 || len(v.Allowed) != 1 {
		t.Fatalf("%+v", v)
	}
	b, _ := json.Marshal(v.Blocked[0])
	if got := decode(t, b); !reflect.DeepEqual(got, want[0]) {
		t.Errorf("got  %v\nwant %v", got, want[0])
	}
	if got, want := v.Blocked[1].Rule, want[1].(map[string]any)["rule"]; got != want {
		t.Errorf("rule %q, want %q", got, want)
	}
	var text bytes.Buffer
	if err := v.Write(&text, time.UTC); err != nil {
		t.Fatal(err)
	}
	header := strings.Fields(strings.Split(string(fixture(t, "policy-log-0.35.txt")), "\n")[1])
	if lines := strings.Split(text.String(), "\n"); lines[0] != "Blocked requests:" || !slices.Equal(strings.Fields(lines[1]), header) ||
		!strings.Contains(text.String(), "09:41:07 08-Oct   2\n") || !strings.Contains(text.String(), "\n\nAllowed requests:\n") {
		t.Errorf("text:\n%s", text.String())
	}
	if v, err := l.View("", 1); err != nil || len(v.Blocked) != 1 {
		t.Errorf("limit: %+v, %v", v, err)
	}
	empty, err := rules.OpenLog(t.TempDir()).View("", 0)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := json.MarshalIndent(empty, "", "  "); string(b) != strings.TrimSpace(string(fixture(t, "policy-log-empty.json"))) {
		t.Errorf("empty: %s", b)
	}
	text.Reset()
	if empty.Write(&text, time.UTC); text.String() != string(fixture(t, "policy-log-empty.txt")) {
		t.Errorf("empty: %q", text.String())
	}
}

// What an agent puts into a host name cannot write a second line, move the cursor or hide text.
func TestLogInjection(t *testing.T) {
	dir := t.TempDir()
	l := rules.OpenLog(dir)
	defer l.Close()
	evil := "a.test\n{\"host\":\"forged\"}\x1b[2K\r\u202e\x00\u2028" + strings.Repeat("x", 5000)
	if err := l.Append(rules.Entry{Sandbox: evil, Host: evil, Type: rules.Forward, Reason: evil, Path: evil, Method: evil}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "policy-log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(raw, []byte("\n")) != 1 || bytes.ContainsAny(raw, "\x1b\r\x00\u202e\u2028") || len(raw) > 4000 {
		t.Errorf("log holds %q", raw)
	}
	entries, bad, err := l.Entries()
	if err != nil || bad != 0 || len(entries) != 1 || strings.ContainsAny(entries[0].Host, "\n\x1b\r\x00\u202e") {
		t.Errorf("%+v, %d, %v", entries, bad, err)
	}
}

// The log stays under its limit and keeps what happened once beside what happened a million times.
func TestLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	l := rules.OpenLog(dir)
	defer l.Close()
	rare := rules.Entry{Sandbox: "box", Host: "rare.test:443", Type: rules.Forward, Reason: "No matching allow rule (default deny)"}
	if err := l.Append(rare); err != nil {
		t.Fatal(err)
	}
	loud := rules.Entry{Sandbox: "box", Host: "loud.test:443", Type: rules.Forward, Reason: strings.Repeat("r", 400)}
	const n = 40_000
	for range n {
		if err := l.Append(loud); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "policy-log.jsonl"))
	if err != nil || info.Size() > rules.LogLimit {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	v, err := l.View("box", 0)
	if err != nil || len(v.Blocked) != 2 {
		t.Fatalf("%+v, %v", v, err)
	}
	for _, row := range v.Blocked {
		if want := map[string]int{"rare.test:443": 1, "loud.test:443": n}[row.Host]; row.CountSince != want {
			t.Errorf("%s: %d, want %d", row.Host, row.CountSince, want)
		}
	}
}

func TestLogSurvivesACutLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy-log.jsonl")
	if err := os.WriteFile(path, []byte(`{"time":"2026-01-01T00:00:00Z","host":"a.te`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := rules.OpenLog(dir)
	defer l.Close()
	if err := l.Append(rules.Entry{Sandbox: "box", Host: "b.test:443", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	entries, bad, err := l.Entries()
	if err != nil || bad != 1 || len(entries) != 1 || entries[0].Host != "b.test:443" {
		t.Errorf("%+v, %d, %v", entries, bad, err)
	}
	if err := l.Reset(); err != nil {
		t.Error(err)
	}
	if err := l.Append(rules.Entry{Sandbox: "box", Host: "c.test:443", Reason: "r"}); err != nil {
		t.Error(err)
	}
}

func TestLogFromManyGoroutines(t *testing.T) {
	l := rules.OpenLog(t.TempDir())
	defer l.Close()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if err := l.Append(rules.Entry{Sandbox: "box", Host: "a.test:443", Reason: "r"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if entries, bad, err := l.Entries(); len(entries) != 800 || bad != 0 || err != nil {
		t.Errorf("%d entries, %d unreadable, %v", len(entries), bad, err)
	}
}

// R035: what was written can be read back.
func TestFieldReports(t *testing.T) {
	t.Run("R035", func(t *testing.T) {
		s := open(t, policy.Balanced)
		added := add(t, s, "box", policy.Deny, "a.test,b.test:443")
		list, err := s.List(rules.Filter{Sandbox: "box", Effect: policy.Deny})
		if err != nil || len(list) != len(added) {
			t.Errorf("%+v, %v", list, err)
		}
	})
}
