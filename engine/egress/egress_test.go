package egress

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

const canary = "ghs_canaryCANARYcanaryCANARY0123456789ab"

func TestTunnelUntouched(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.tlsServer(&saw{}, "open.test")
	w.rule(policy.Allow, "open.test:443")
	w.serve()
	// The client trusts the server's own CA only: had the proxy ended TLS, this would fail.
	code, body, _ := w.get(w.clientTrusting(w.config.Roots), "https://open.test/x")
	if code != 200 || body != "hello from open.test" {
		t.Fatalf("GET = %d %q", code, body)
	}
	e := w.entries(1)[0]
	if e.Type != rules.Bypass || !e.Allowed || e.Rule == "" || e.Host != "open.test:443" || e.Sandbox != box {
		t.Errorf("log = %+v", e)
	}
}

// A host with an override and a CA of its own is reached without the sandbox knowing that CA; the CA counts for no other host.
func TestUpstreamRoots(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.tlsServer(&saw{}, "stand-in.test")
	w.rule(policy.Allow, "stand-in.test:443")
	w.sandbox.UpstreamRoots, w.config.Roots = w.config.Roots, nil
	w.serve()
	if code, body, _ := w.get(w.client(), "https://stand-in.test/"); code != 200 {
		t.Errorf("%d %q", code, body)
	}
	if e := w.entries(1)[0]; e.Type != rules.Forward {
		t.Errorf("log = %+v", e)
	}
}

func TestDenied(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.tlsServer(&saw{}, "explicit.test", "implicit.test")
	rule := w.rule(policy.Deny, "explicit.test")
	w.serve()
	c := w.client()
	code, body, h := w.get(c, "https://implicit.test/")
	if want := "Approval required for implicit.test:443.\n\nReview and respond with:\n  sbx policy approval ls\n"; code != 403 || body != want {
		t.Errorf("implicit: %d %q", code, body)
	}
	if h.Get("Content-Type") != "text/plain" {
		t.Errorf("Content-Type = %q", h.Get("Content-Type"))
	}
	code, body, _ = w.get(c, "https://explicit.test/")
	if want := "Blocked by network policy: domain explicit.test:443\n  rule: \"" + rule.ID + "\" (domain, deny)\n  origin: local\n  detail: Denied by local rule\n"; code != 403 || body != want {
		t.Errorf("explicit: %d %q", code, body)
	}
	code, body, _ = w.get(c, "http://implicit.test/")
	if code != 403 || !strings.HasPrefix(body, "Approval required for implicit.test:80.") {
		t.Errorf("plain: %d %q", code, body)
	}
	if asked := w.names.questions(); len(asked) != 0 {
		t.Errorf("names of denied hosts were looked up: %v", asked)
	}
	for i, e := range w.entries(3) {
		if e.Allowed || e.Reason == "" || e.Type != rules.Forward {
			t.Errorf("log %d = %+v", i, e)
		}
	}
}

func TestServiceInjection(t *testing.T) {
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, tt := range []struct {
		name, host, header, want string
		status                   int
	}{
		{"none on the API", "api.github.com", "", "Bearer " + canary, 200},
		{"Bearer", "api.github.com", "Authorization: Bearer " + secrets.GitHubServicePlaceholder, "Bearer " + canary, 200},
		{"lower case bearer", "api.githubcopilot.com", "Authorization: bearer " + secrets.GitHubPATPlaceholder, "bearer " + canary, 200},
		{"token", "api.github.com", "Authorization: token " + secrets.GitHubServicePlaceholder, "token " + canary, 200},
		{"Basic on the API", "api.github.com", "Authorization: " + basic("x-access-token:"+secrets.GitHubServicePlaceholder), "Bearer " + canary, 200},
		{"none on git", "github.com", "", basic("x-access-token:" + canary), 200},
		{"Basic on git", "github.com", "Authorization: " + basic("u:"+secrets.GitHubServicePlaceholder), basic("x-access-token:" + canary), 200},
		{"user only on git", "github.com", "Authorization: " + basic(secrets.GitHubServicePlaceholder+":x-oauth-basic"), basic("x-access-token:" + canary), 200},
		{"proxy-managed", "api.github.com", "Authorization: Bearer proxy-managed", "Bearer " + canary, 200},
		{"foreign", "api.github.com", "Authorization: Bearer ghp_someoneElse000000000", "", 403},
		{"foreign Basic", "github.com", "Authorization: " + basic("mallory:ghp_someoneElse000000000"), "", 403},
		{"foreign api key", "api.github.com", "X-Api-Key: sk-someone", "", 403},
		{"unknown placeholder", "api.github.com", "Authorization: Bearer sbx-cs-0123456789ABCDEF", "", 403},
		{"placeholder elsewhere", "api.github.com", "X-Debug: " + secrets.GitHubServicePlaceholder, "", 403},
		{"foreign cookie", "github.com", "Cookie: a=b; user_session=abc", "", 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, policy.DenyAll)
			server := &saw{}
			w.tlsServer(server, "api.github.com", "github.com", "api.githubcopilot.com")
			w.rule(policy.Allow, tt.host+":443")
			w.service("github", canary)
			w.serve()
			var headers []string
			if tt.header != "" {
				headers = append(headers, tt.header)
			}
			code, body, _ := w.get(w.client(), "https://"+tt.host+"/p?q=1", headers...)
			if code != tt.status {
				t.Fatalf("status %d %q, want %d", code, body, tt.status)
			}
			e := w.entries(1)[0]
			if tt.status != 200 {
				if server.count() != 0 {
					t.Error("the request reached the server")
				}
				if e.Allowed || e.Kind != "credential" || e.Reason == "" {
					t.Errorf("log = %+v", e)
				}
				return
			}
			if got := server.last().Header.Get("Authorization"); got != tt.want {
				t.Errorf("server got Authorization %q, want %q", got, tt.want)
			}
			if !e.Allowed || e.Type != rules.Forward || e.Method != "GET" || e.Path != "/p" {
				t.Errorf("log = %+v", e)
			}
		})
	}
}

func TestCustomInjection(t *testing.T) {
	const ph, other = "sbx-cs-AAAAAAAAAAAAAAAA", "sbx-cs-BBBBBBBBBBBBBBBB"
	w := newWorld(t, policy.DenyAll)
	server := &saw{f: func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("X-Echo", req.Header.Get("X-Demo-Key"))
		rw.Header().Set("X-Echo-Basic", req.Header.Get("Authorization"))
		io.WriteString(rw, "ok")
	}}
	w.tlsServer(server, "api.example.com", "other.example.com")
	w.rule(policy.Allow, "*.example.com:443")
	w.custom("DEMO_KEY", ph, "demo_value_0123456789", "api.example.com")
	w.custom("OTHER_KEY", other, "other_value_0123456789", "other.example.com")
	const others = "tok_0123456789abcdef"
	if _, _, err := w.vault.SetCustom(t.Context(), vault.CustomSecret{Sandbox: "another", Placeholder: others, Hosts: []string{"api.example.com"}, Secret: vault.Secret{Value: secrets.New("third-value-0123456789")}}); err != nil {
		t.Fatal(err)
	}
	w.serve()
	c := w.client()
	code, _, h := w.get(c, "https://api.example.com/", "X-Demo-Key: k="+ph)
	if code != 200 || server.last().Header.Get("X-Demo-Key") != "k=demo_value_0123456789" {
		t.Errorf("custom header: %d, server got %q", code, server.last().Header.Get("X-Demo-Key"))
	}
	if got := h.Get("X-Echo"); got != "k=***" {
		t.Errorf("value echoed in a header reached the sandbox as %q", got)
	}
	code, _, h = w.get(c, "https://api.example.com/", "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte("me:"+ph)))
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:demo_value_0123456789"))
	if got := server.last().Header.Get("Authorization"); code != 200 || got != want {
		t.Errorf("custom in Basic: %d %q", code, got)
	}
	if strings.Contains(h.Get("X-Echo-Basic"), want) {
		t.Error("encoded value echoed in a header reached the sandbox")
	}
	// In a body it stays as it is.
	w.do(c, "POST", "https://api.example.com/", strings.NewReader("key="+ph))
	if got := server.lastBody(); got != "key="+ph {
		t.Errorf("body = %q", got)
	}
	before := server.count()
	for _, tt := range [][2]string{
		{"https://api.example.com/", "X-Demo-Key: " + other},               // bound elsewhere
		{"https://other.example.com/", "X-Demo-Key: " + ph},                // bound elsewhere
		{"https://api.example.com/", "Authorization: Bearer someone-else"}, // foreign
		{"https://api.example.com/?k=" + ph, "X-A: b"},                     // not filled in there
		{"https://api.example.com/?access_token=abc", "X-A: b"},
		{"https://api.example.com/?k=" + strings.ReplaceAll(ph, "-", "%2d"), "X-A: b"},
		{"https://api.example.com/", ph + ": b"},              // nor in a name
		{"https://api.example.com/", "X-Demo-Key: " + others}, // another sandbox's
	} {
		if code, body, _ := w.get(c, tt[0], tt[1]); code != 403 {
			t.Errorf("%s with %s: %d %q", tt[0], tt[1], code, body)
		}
	}
	if server.count() != before {
		t.Error("a refused request reached the server")
	}
}

func TestNoCredentialWithoutTLS(t *testing.T) {
	const ph = "sbx-cs-AAAAAAAAAAAAAAAA"
	w := newWorld(t, policy.DenyAll)
	w.rule(policy.Allow, "api.example.com")
	w.custom("DEMO_KEY", ph, "demo_value_0123456789", "api.example.com")
	w.serve()
	code, body, _ := w.get(w.client(), "http://api.example.com/", "X-Key: "+ph)
	if code != 403 || !strings.Contains(body, "without TLS") {
		t.Errorf("%d %q", code, body)
	}
	if len(w.names.questions()) != 0 {
		t.Error("host was looked up for a request that is refused")
	}
}

func TestPathRules(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.tlsServer(server, "api.test")
	w.rule(policy.Allow, "api.test:443", onPath("GET", "/repos/a/**"))
	w.serve()
	c := w.client()
	for _, tt := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/repos/a/b", 200},
		{"HEAD", "/repos/a/b", 200},
		{"GET", "/repos/a/../a/x", 200},
		{"POST", "/repos/a/b", 403},
		{"GET", "/repos/a/../b", 403},
		{"GET", "/repos/a/%2e%2e/b", 403},
		{"GET", "/repos//b", 403},
		{"GET", "/repos/a%2f..%2fb", 400},
		{"GET", "/repos/a%252fb", 400},
	} {
		code, body, _ := w.do(c, tt.method, "https://api.test"+tt.path, nil)
		if code != tt.want {
			t.Errorf("%s %s: %d %q, want %d", tt.method, tt.path, code, body, tt.want)
		}
		if code == 200 && !strings.HasPrefix(server.last().URL.Path, "/repos/a/") || strings.Contains(server.last().RequestURI, "..") {
			t.Errorf("server was asked for %q", server.last().RequestURI)
		}
	}
}

func TestBodiesPassUnchanged(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{f: func(rw http.ResponseWriter, req *http.Request) { rw.Write([]byte{0, 1, 2, 0xff}) }}
	w.tlsServer(server, "api.github.com")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	blob := bytes.Repeat([]byte{0x1f, 0x8b, 0xff, 0xfe, 0, 1}, 200_000)
	for name, body := range map[string]io.Reader{
		"length":  bytes.NewReader(blob),
		"chunked": io.MultiReader(bytes.NewReader(blob)), // hides the length
	} {
		code, answer, _ := w.do(w.client(), "POST", "https://api.github.com/upload", body, "Content-Encoding: gzip")
		if code != 200 || answer != "\x00\x01\x02\xff" {
			t.Errorf("%s: %d %q", name, code, answer)
		}
		if server.lastBody() != string(blob) {
			t.Errorf("%s: body changed on the way", name)
		}
		if wantLen := int64(len(blob)); name == "length" && server.last().ContentLength != wantLen {
			t.Errorf("length %d, want %d", server.last().ContentLength, wantLen)
		}
	}
}
