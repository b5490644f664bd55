package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/policy"
)

// rawServer answers each request over TLS with what answer returns for its path and the credential it came with, byte for byte.
func (w *world) rawServer(answer func(path, credential string) string, host string) {
	w.t.Helper()
	upstream, err := LoadOrCreateCA(w.t.TempDir())
	if err != nil {
		w.t.Fatal(err)
	}
	w.sandbox.UpstreamRoots = poolOf(upstream)
	h, err := policy.ParseHost(host)
	if err != nil {
		w.t.Fatal(err)
	}
	leaf, err := upstream.leaf(h)
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*leaf}})
	if err != nil {
		w.t.Fatal(err)
	}
	var work sync.WaitGroup
	w.t.Cleanup(func() { l.Close(); work.Wait() })
	w.sandbox.Resolve[host] = l.Addr().String()
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(10 * time.Second))
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				io.WriteString(c, answer(req.URL.Path, strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")))
				c.(*tls.Conn).CloseWrite()
				io.Copy(io.Discard, c)
			})
		}
	})
}

// A server that has the value may put it where the proxy would quote it: into a line that cannot be parsed, into the name of a
// header. Neither the sandbox nor the log gets to see it.
func TestBrokenAnswersQuoteNothing(t *testing.T) {
	answers := map[string]string{
		"/status":   "HTTP/1.1 %s OK\r\n\r\n",
		"/protocol": "%s\r\n\r\n",
		"/line":     "HTTP/1.1 200 OK\r\n%s\r\n\r\n",
		"/folded":   "HTTP/1.1 200 OK\r\n %s\r\n\r\n",
		"/length":   "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
		"/coding":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n",
		"/reason":   "HTTP/1.1 200 %s\r\nContent-Length: 0\r\n\r\n",
		"/name":     "HTTP/1.1 200 OK\r\nX-%s: 1\r\nContent-Length: 0\r\n\r\n",
		"/ext":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;%s\r\nx\r\n0\r\n\r\n",
		"/trailer":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-%[1]s: %[1]s\r\n\r\n",
		"/early":    "HTTP/1.1 103 Early Hints\r\nLink: %s\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"/switch":   "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n%s",
	}
	w := newWorld(t, policy.DenyAll)
	w.rawServer(func(path, credential string) string { return fmt.Sprintf(answers[path], credential) }, "api.github.com")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	lower := strings.ToLower(canary)
	for path := range answers {
		got := w.inside("api.github.com", "GET "+path+" HTTP/1.1\r\nHost: api.github.com\r\nConnection: close\r\n\r\n")
		if got == "" || strings.Contains(strings.ToLower(got), lower) {
			t.Errorf("%s: %q", path, got)
		}
	}
	unanswered := 0
	for _, e := range w.entries(len(answers) + 7) { // of /switch and of what cannot be parsed there are two
		if strings.Contains(e.Reason, "not answered: its answer is malformed") && e.Kind == "dial" {
			unanswered++
		}
		if strings.Contains(strings.ToLower(fmt.Sprint(e)), lower) {
			t.Errorf("log %+v", e)
		}
	}
	if unanswered != 6 {
		t.Errorf("%d answers are in the log as malformed, want 6", unanswered)
	}
	// A change to another protocol than the one that was offered is no better than one that was not.
	got := w.inside("api.github.com", "GET /switch HTTP/1.1\r\nHost: api.github.com\r\nConnection: Upgrade, close\r\nUpgrade: other\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 502 ") {
		t.Errorf("a protocol nobody asked for: %q", got)
	}
}

// inside sends bytes inside TLS inside a CONNECT, and returns what comes back until the end.
func (w *world) inside(host, text string) string {
	w.t.Helper()
	c, err := w.connectTLS(host+":443", host)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		w.t.Errorf("%.40q: no end after %q", text, b)
	}
	return string(b)
}

// What comes behind a body is looked at as what comes before it.
func TestTrailersOfRequests(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			w := newWorld(t, policy.DenyAll)
			w.http1 = protocol == "HTTP/1.1"
			var trailer atomic.Pointer[http.Header]
			w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if _, err := io.Copy(io.Discard, req.Body); err == nil {
					trailer.Store(&req.Trailer)
				}
			}), "api.github.com", "open.test")
			w.rule(policy.Allow, "api.github.com")
			w.rule(policy.Allow, "open.test:443", onPath("POST", "/**"))
			w.service("github", canary)
			w.serve()
			c := w.client2()
			if protocol == "HTTP/1.1" {
				c = w.client()
			}
			for _, tt := range []struct{ host, name, value, want string }{
				{"api.github.com", "X-Sum", "1", ""},
				{"api.github.com", "Authorization", "Bearer ghp_" + strings.Repeat("F", 36), "Authorization in a trailer"},
				{"open.test", "Cookie", "a=b", "Cookie in a trailer"},
				{"open.test", "Host", "evil.test", "Host in a trailer"},
				{"open.test", "X-Original-URL", "/other", "X-Original-Url in a trailer"},
				{"api.github.com", "X-Sum", "a ghp_sbxproxymanaged", "Placeholder in the X-Sum trailer"},
			} {
				trailer.Store(nil)
				req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+tt.host+"/x", io.NopCloser(strings.NewReader("body")))
				if err != nil {
					t.Fatal(err)
				}
				req.Trailer = http.Header{tt.name: {tt.value}}
				resp, err := c.Do(req)
				if err != nil && tt.want != "" && protocol == "HTTP/2.0" {
					if got := trailer.Load(); got != nil {
						t.Errorf("%s: the server got %v", tt.name, got)
					}
					continue // the server of HTTP/2 may be faster to reset such a stream
				}
				if err != nil {
					t.Fatal(err)
				}
				page, err := io.ReadAll(resp.Body)
				cut := err != nil && protocol == "HTTP/2.0" // by that reset
				resp.Body.Close()
				got := trailer.Load()
				if tt.want == "" {
					if resp.StatusCode != 200 || got == nil || got.Get(tt.name) != tt.value {
						t.Errorf("%s: %d, the server got %v", tt.name, resp.StatusCode, got)
					}
					continue
				}
				if resp.StatusCode != 403 || !cut && !strings.Contains(string(page), tt.want) || got != nil {
					t.Errorf("%s %s: %d %q, the server got %v", tt.name, tt.value, resp.StatusCode, page, got)
				}
				list, _, err := w.log.Entries()
				if err != nil || !slices.ContainsFunc(list, func(e rules.Entry) bool { return !e.Allowed && strings.Contains(e.Reason, tt.want) }) {
					t.Errorf("%s: log %+v, %v", tt.name, list, err)
				}
			}
		})
	}
}

// Answers that nobody takes wait in bounded memory, and no sandbox has more requests under way than connections.
func TestStreamsAreBounded(t *testing.T) {
	const conns, streams = 4, 16
	w := newWorld(t, policy.DenyAll)
	w.config.MaxConns = conns * streams
	var sent atomic.Int64
	w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		buf := make([]byte, 64<<10)
		for req.URL.Path == "/flood" {
			n, err := rw.Write(buf)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}), "api.github.com")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	client := func() *http.Client {
		c := w.client2()
		c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10}
		return c
	}
	var open []io.Closer
	for range conns {
		c := client()
		for range streams {
			resp, err := c.Get("https://api.github.com/flood")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, resp.Body)
		}
	}
	c := client()
	if code, body, _ := w.get(c, "https://api.github.com/more"); code != 503 || !strings.Contains(body, "Too many requests from this sandbox") {
		t.Errorf("one more: %d %q", code, body)
	}
	last := int64(-1)
	eventually(t, func() bool {
		now := sent.Load()
		still := now == last
		last = now
		return still
	}, func() string { return "the servers go on sending to nobody" })
	// What is in sockets and in the server's own hands comes on top.
	if limit := int64(conns*streams*(streamBuffer+256<<10) + 64<<20); last > limit {
		t.Errorf("%d MiB wait for clients that take nothing, more than %d MiB", last>>20, limit>>20)
	}
	for _, body := range open {
		body.Close()
	}
	eventually(t, func() bool { code, _, _ := w.get(c, "https://api.github.com/more"); return code == 200 }, func() string { return "no request passes after that" })
}

// A header that asks a server for another method or path would pass by rules about those.
func TestOverridingHeaders(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.tlsServer(server, "paths.test", "api.github.com")
	w.rule(policy.Allow, "paths.test:443", onPath("GET,POST", "/a/**"))
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	for _, header := range []string{"X-HTTP-Method-Override: DELETE", "x_http_method_override: DELETE", "X-Method-Override: PUT", "X-Original-URL: /b", "X-Rewrite-URL: /b"} {
		if code, body, _ := w.do(w.client(), "POST", "https://paths.test/a/x", nil, header); code != 403 || !strings.Contains(body, "asks for something else") {
			t.Errorf("%s: %d %q", header, code, body)
		}
	}
	if server.count() != 0 {
		t.Errorf("the server saw %v", server.paths())
	}
	if code, _, _ := w.do(w.client(), "POST", "https://api.github.com/x", nil, "X-HTTP-Method-Override: PATCH"); code != 200 {
		t.Errorf("where no rule is about methods: %d", code)
	}
}
