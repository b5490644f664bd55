package egress

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/policy"
)

// What passes the check has one framing, one host and no line that another reader would cut elsewhere.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
		"CONNECT a.test:443 HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
		"GET / HTTP/1.1\nHost: a\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		br := bufio.NewReaderSize(bytes.NewReader(in), maxHead)
		head, err := peekHead(br)
		if err != nil {
			return
		}
		host, err := checkHead(head)
		if err != nil {
			if !errors.Is(err, errHead) {
				t.Fatalf("%q: %v", head, err)
			}
			return
		}
		text := strings.ReplaceAll(string(head), "\r\n", "")
		if strings.ContainsAny(text, "\r\n\x00") {
			t.Fatalf("line ends in %q", head)
		}
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if len(req.TransferEncoding) > 0 && (req.Header.Get("Content-Length") != "" || !slices.Equal(req.TransferEncoding, []string{"chunked"})) {
			t.Fatalf("framing of %q: %v", head, req.TransferEncoding)
		}
		if lower := strings.ToLower(string(head)); strings.Count(lower, "\r\nhost:") > 1 || strings.Contains(lower, "\r\ncontent-length:") && strings.Contains(lower, "\r\ntransfer-encoding:") {
			t.Fatalf("passed: %q", head)
		}
		if strings.Count(strings.ToLower(string(head)), "\r\nhost:") == 1 && strings.ContainsAny(host, "\r\n") {
			t.Fatalf("host %q", host)
		}
	})
}

// A credential header goes out with our value, without one, or not at all: never with what the sandbox wrote.
func FuzzInject(f *testing.F) {
	w := newWorld(f, policy.DenyAll)
	w.service("github", canary)
	w.custom("KEY", "sbx-cs-AAAAAAAAAAAAAAAA", "custom_value_0123456789", "api.github.com")
	s, err := New(w.config).newSession(w.sandbox)
	if err != nil {
		f.Fatal(err)
	}
	api, err := policy.ParseHost("api.github.com")
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range []string{"", "Bearer x", "token gho_sbxproxymanaged000000000000000000000", "Basic eDp5", "bearer  proxy-managed", "Bearer sbx-cs-AAAAAAAAAAAAAAAA", "Basic", "\tBearer\tproxy-managed"} {
		f.Add("Authorization", v)
		f.Add("X-Api-Key", v)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		if !isToken(name) {
			return
		}
		u := upstreamURL(&http.Request{URL: mustURL("https://api.github.com/user")}, s.target(api, 443), true)
		h := http.Header{}
		h.Add(name, value)
		used, err := s.inject(t.Context(), s.target(api, 443), true, u, h)
		if err != nil {
			if _, ok := errors.AsType[*refusal](err); !ok || strings.Contains(err.Error(), canary) {
				t.Fatalf("%v", err)
			}
			return
		}
		if len(used) == 0 {
			t.Fatalf("%s: %q: nothing was put in: %v", name, value, h)
		}
		for _, cred := range credentialHeaders() {
			for _, got := range h[cred] {
				decoded, _ := decodeBasic(cred, got)
				if !strings.Contains(got+decoded, canary) && !strings.Contains(got+decoded, "custom_value_0123456789") && strings.TrimSpace(got) != "" {
					t.Fatalf("%s: %q goes out as %s: %q", name, value, cred, got)
				}
			}
		}
	})
}
