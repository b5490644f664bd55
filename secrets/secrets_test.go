package secrets_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zalando/go-keyring"

	"github.com/sbxpair/sbxpair/secrets"
)

// canary is token-shaped and nobody's.
const canary = "github_pat_11CANARY00000000000000_abcDEF+/=0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP"

// TestFieldReports holds the rows of the field reports that this package answers.
func TestFieldReports(t *testing.T) {
	t.Run("R061", func(t *testing.T) { // a struct printed for debugging showed the secret inside it
		type holder struct {
			Name  string
			Value secrets.Value
			inner secrets.Value
		}
		h := holder{"x", secrets.New(canary), secrets.New(canary)}
		asJSON, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", h.Value, "h", h)
		texts := []string{string(asJSON), log.String()}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			texts = append(texts, fmt.Sprintf(verb, h), fmt.Sprintf(verb, h.Value), fmt.Sprintf(verb, &h))
		}
		for _, text := range texts {
			if strings.Contains(text, "CANARY") || strings.Contains(strings.ToLower(text), hex.EncodeToString([]byte("CANARY"))) {
				t.Errorf("the value shows in %q", text)
			}
		}
	})
	t.Run("R060", func(t *testing.T) { // one byte at a time
		for _, chunk := range []int{1, 2, 3, 7, 1000} {
			text := "before " + canary + " after github_pat_ and " + canary[:20] + "\n"
			var out bytes.Buffer
			w := secrets.NewRedactor(secrets.New(canary)).Writer(&out)
			for in := []byte(text); len(in) > 0; in = in[min(chunk, len(in)):] {
				if _, err := w.Write(in[:min(chunk, len(in))]); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			want := "before *** after github_pat_ and " + canary[:20] + "\n"
			if out.String() != want {
				t.Errorf("in pieces of %d: got %q, want %q", chunk, out.String(), want)
			}
		}
	})
	t.Run("R059", func(t *testing.T) { // installation tokens with dots and dashes are found to their real end
		token := "ghs_" + strings.Repeat("aB3-", 8) + ".eyJ" + strings.Repeat("x", 20) + ".sig_-" + strings.Repeat("y", 20)
		text := []byte("token " + token + " end")
		found := secrets.NewScanner().Scan(text)
		if len(found) != 1 || string(text[found[0].Start:found[0].End]) != token || found[0].Kind != secrets.KindInstallation {
			t.Errorf("Scan = %v, want the whole token", found)
		}
	})
	t.Run("R049", func(t *testing.T) { // with and without a final line end, the same value
		for _, text := range []string{"abcdef", "abcdef\n", "abcdef\r\n"} {
			got, _ := io.ReadAll(secrets.New(text).Reader())
			if string(got) != "abcdef" {
				t.Errorf("New(%q) reads back as %q", text, got)
			}
		}
	})
	t.Run("R050", func(t *testing.T) { // special first characters stay as they are
		for _, text := range []string{"@abc", "-x", "--help", "-----BEGIN KEY-----\nabc\n-----END KEY-----"} {
			if got := secrets.New(text).Reveal(); got != text {
				t.Errorf("New(%q) = %q", text, got)
			}
		}
	})
	t.Run("R051", func(t *testing.T) { // a placeholder is not a credential, and not "missing"
		for _, text := range []string{"proxy-managed", "sbx-cs-0000", secrets.GitHubServicePlaceholder, secrets.GitHubPATPlaceholder} {
			err := secrets.CheckToken(secrets.New(text), "the token")
			if !errors.Is(err, secrets.ErrUnfit) || !strings.Contains(err.Error(), "placeholder") {
				t.Errorf("CheckToken(%q) = %v, want its own verdict", text, err)
			}
		}
	})
	t.Run("R077", func(t *testing.T) { // an empty secret is missing, and is never looked for in text
		src := secrets.Source{Env: "GH_TOKEN"}
		_, err := src.Resolve(t.Context(), func(string) (string, bool) { return "", true })
		if !errors.Is(err, secrets.ErrMissing) {
			t.Errorf("Resolve of an empty variable: %v, want ErrMissing", err)
		}
		if got := secrets.NewRedactor(secrets.New(""), secrets.New("ab")).String("abc abc"); got != "abc abc" {
			t.Errorf("redacted with an empty and a tiny value: %q", got)
		}
	})
}

func TestRedactorForms(t *testing.T) {
	r := secrets.NewRedactor(secrets.New(canary))
	quoted, _ := json.Marshal(canary)
	for name, text := range map[string]string{
		"raw":       canary,
		"json":      string(quoted),
		"hex":       hex.EncodeToString([]byte(canary)),
		"HEX":       strings.ToUpper(hex.EncodeToString([]byte(canary))),
		"query":     url.QueryEscape(canary),
		"path":      url.PathEscape(canary),
		"base64":    base64.StdEncoding.EncodeToString([]byte(canary)),
		"base64url": base64.URLEncoding.EncodeToString([]byte(canary)),
		"basic":     base64.StdEncoding.EncodeToString([]byte("x-access-token:" + canary)),
		"shift 1":   base64.StdEncoding.EncodeToString([]byte("u" + canary + "tail")),
		"shift 2":   base64.RawURLEncoding.EncodeToString([]byte("us" + canary + "more")),
	} {
		if got := r.String("a " + text + " b"); !strings.Contains(got, secrets.Mask) || len(got) > 40 {
			t.Errorf("%s: %q is not masked: %q", name, text, got)
		}
	}
	var none *secrets.Redactor
	if got := none.String(canary); got != canary {
		t.Errorf("a nil Redactor changed the text to %q", got)
	}
}

// FuzzRedactor holds that no cut of the input into writes lets a value through, and that other text passes as it is.
func FuzzRedactor(f *testing.F) {
	f.Add([]byte("x "+canary+" y"), uint8(3))
	f.Add([]byte(canary[:30]+canary), uint8(1))
	r := secrets.NewRedactor(secrets.New(canary), secrets.New(canary[:40]))
	f.Fuzz(func(t *testing.T, in []byte, chunk uint8) {
		var out bytes.Buffer
		w := r.Writer(&out)
		for rest := in; len(rest) > 0; {
			n := min(int(chunk)+1, len(rest))
			w.Write(rest[:n])
			rest = rest[n:]
		}
		w.Close()
		if !bytes.Equal(out.Bytes(), r.Bytes(in)) {
			t.Errorf("in pieces %q, at once %q", out.Bytes(), r.Bytes(in))
		}
		if bytes.Contains(out.Bytes(), []byte(canary)) {
			t.Errorf("the value passed: %q", out.Bytes())
		}
	})
}

func TestScannerMasksShapes(t *testing.T) {
	token := "github_pat_" + strings.Repeat("a", 22) + "_" + strings.Repeat("b", 59)
	got := secrets.NewScanner().Mask("push refused: " + token + ", gho_" + strings.Repeat("c", 36) + "; holds " + secrets.GitHubServicePlaceholder)
	if want := "push refused: ***, ***; holds " + secrets.GitHubServicePlaceholder; got != want {
		t.Errorf("masked to %q, want %q", got, want)
	}
}

func TestSource(t *testing.T) {
	dir := t.TempDir()
	private, open := filepath.Join(dir, "private"), filepath.Join(dir, "open")
	for path, mode := range map[string]os.FileMode{private: 0o600, open: 0o644} {
		if err := os.WriteFile(path, []byte("value-of-file\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"SET": "value-of-env", "EMPTY": ""}[name]
		return v, ok
	}
	for _, tt := range []struct {
		source secrets.Source
		want   string
		err    error
	}{
		{secrets.Source{Env: "SET"}, "value-of-env", nil},
		{secrets.Source{Env: "UNSET"}, "", secrets.ErrMissing},
		{secrets.Source{Env: "EMPTY"}, "", secrets.ErrMissing},
		{secrets.Source{File: private}, "value-of-file", nil},
		{secrets.Source{File: open}, "", secrets.ErrUnfit},
		{secrets.Source{File: filepath.Join(dir, "none")}, "", secrets.ErrMissing},
		{secrets.Source{Command: []string{"printf", "value-of-command\n"}}, "value-of-command", nil},
		{secrets.Source{Command: []string{"sh", "-c", "echo leaked-on-stderr >&2; exit 3"}}, "", secrets.ErrMissing},
		{secrets.Source{Command: []string{"yes", "leaked"}}, "", secrets.ErrUnfit}, // without end
		{secrets.Source{Command: []string{"true"}}, "", secrets.ErrMissing},
		{secrets.Source{Command: []string{filepath.Join(dir, "none")}}, "", secrets.ErrMissing},
		{secrets.Source{}, "", secrets.ErrMissing},
	} {
		t.Run(tt.source.String(), func(t *testing.T) {
			got, err := tt.source.Resolve(context.Background(), env)
			if !errors.Is(err, tt.err) || got.Reveal() != tt.want {
				t.Errorf("Resolve = %q, %v; want %q, %v", got.Reveal(), err, tt.want, tt.err)
			}
			if err != nil && strings.Contains(err.Error(), "leaked") {
				t.Errorf("the error shows what the command printed: %v", err)
			}
		})
	}
}

func TestCheckToken(t *testing.T) {
	pat := "github_pat_" + strings.Repeat("a", 22) + "_" + strings.Repeat("b", 59)
	many := strings.Repeat("a", 36)
	for _, tt := range []struct {
		token string
		ok    []string // roles that take it: "" is the repository's, the others are providers
	}{
		{pat, []string{"", "github"}},
		{"gho_" + many, []string{"", "github"}},
		{"ghp_" + many, []string{""}}, // the Copilot CLI refuses classic tokens
		{"ghr_" + many, nil},
		{"sk-ant-api03-" + many, []string{"anthropic"}},
		{"sk-ant-oat01-" + many, nil}, // another header than the service's
		{"sk-proj-" + many, []string{"openai"}},
		{"AIza" + many, []string{"google"}},
		{"AQ." + many, []string{"google"}},
		{"hunter2", []string{"google"}}, // Google's have many shapes
		{pat + " " + pat, nil},
		{pat + "\n" + pat, nil},
		{"\ufeff" + pat, nil},
		{pat + "\u200b", nil},
		{"hunter\xff", nil},
		{secrets.GitHubPATPlaceholder, nil},
		{"sk-ant-sbxproxymanaged0000000000000000", nil},
	} {
		roles := map[string]func(secrets.Value, string) error{"": secrets.CheckToken}
		for _, p := range secrets.Providers() {
			roles[p.Name] = p.CheckToken
		}
		for role, check := range roles {
			err := check(secrets.New(tt.token), "the token")
			if want := slices.Contains(tt.ok, role); (err == nil) != want || err != nil && (!errors.Is(err, secrets.ErrUnfit) || strings.Contains(err.Error(), tt.token)) {
				t.Errorf("%.12s… for %q: %v, want ok %v and no value in it", tt.token, role, err, want)
			}
		}
	}
	for _, p := range secrets.Providers() {
		if found, ok := secrets.LookupProvider(p.Name); !ok || found.Check != p.Check || !secrets.IsPlaceholder(p.Placeholder) {
			t.Errorf("provider %s: %+v", p.Name, found)
		}
	}
	if len(secrets.GitHubPATPlaceholder) != len(pat) {
		t.Errorf("the placeholder has %d characters, a fine-grained token %d", len(secrets.GitHubPATPlaceholder), len(pat))
	}
}

func TestKeyringAndGH(t *testing.T) {
	keyring.MockInit()
	if err := keyring.Set("sbxpair", "copilot", "github_pat_kept\n"); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := "#!/bin/sh\n[ \"$*\" = \"auth token --hostname github.com\" ] || exit 1\necho \"${GH_TOKEN:-${GITHUB_TOKEN:-gho_from_gh}}\"\n" // as gh does
	if err := os.WriteFile(filepath.Join(bin, "gh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GH_TOKEN", "the agent's")
	t.Setenv("GITHUB_TOKEN", "another")
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, tt := range []struct {
		source secrets.Source
		want   string // "" is missing
	}{
		{secrets.Source{Keyring: "sbxpair/copilot"}, "github_pat_kept"},
		{secrets.Source{Keyring: "sbxpair/other"}, ""},
		{secrets.Source{GH: "github.com"}, "gho_from_gh"},
		{secrets.Source{GH: "ghe.example.com"}, ""},
	} {
		v, err := tt.source.Resolve(t.Context(), os.LookupEnv)
		if v.Reveal() != tt.want || (tt.want == "") != errors.Is(err, secrets.ErrMissing) {
			t.Errorf("%s: %v", tt.source, err)
		}
	}
	for _, bad := range []secrets.Source{{}, {Env: "A", File: "/x"}, {Keyring: "copilot"}, {Keyring: "/x"}, {GH: "--help"}, {GH: "a b"}} {
		if err := bad.Check(); !errors.Is(err, secrets.ErrUnfit) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A file that is none would be waited for, or read, without end.
func TestFileThatIsNone(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	if out, err := exec.CommandContext(t.Context(), "mkfifo", "-m", "600", pipe).CombinedOutput(); err != nil {
		t.Skipf("no pipes here: %v %s", err, out)
	}
	if err := os.WriteFile(large, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{pipe, large, dir} {
		if _, err := (secrets.Source{File: file}).Resolve(t.Context(), nil); !errors.Is(err, secrets.ErrUnfit) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// The check of a provider is asked at a server in its place below that one's own path; the version stands once.
func TestCheckAt(t *testing.T) {
	for at, want := range map[[2]string]string{
		{"openai", "http://host:1/openai/v1"}:     "http://host:1/openai/v1/models",
		{"openai", "http://127.0.0.1:1"}:          "http://127.0.0.1:1/v1/models",
		{"openai", "http://127.0.0.1:1/v1/"}:      "http://127.0.0.1:1/v1/models",
		{"anthropic", "http://host:1/anthropic"}:  "http://host:1/anthropic/v1/models",
		{"google", "http://host:1/google/v1beta"}: "http://host:1/google/v1beta/models",
		{"openai", "http://host:1:2"}:             "",
	} {
		p, _ := secrets.LookupProvider(at[0])
		if got := p.CheckAt(at[1]); got != want {
			t.Errorf("%s at %s: %q, want %q", at[0], at[1], got, want)
		}
	}
}
