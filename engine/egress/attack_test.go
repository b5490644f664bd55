package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// What is wrong with a request's line, header or framing is refused before anything is forwarded.
func TestSmuggling(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.plainServer(server, "a.test")
	w.rule(policy.Allow, "a.test")
	w.serve()
	const head = "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"
	for name, tt := range map[string]struct{ text, status string }{
		"length and chunked":     {head + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"chunked and length":     {head + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", "400"},
		"two lengths":            {head + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "400"},
		"list of lengths":        {head + "Content-Length: 3, 3\r\n\r\nabc", "400"},
		"signed length":          {head + "Content-Length: +3\r\n\r\nabc", "400"},
		"hex length":             {head + "Content-Length: 0x3\r\n\r\nabc", "400"},
		"two codings":            {head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "501"},
		"unknown coding":         {head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501"},
		"coding with tab":        {head + "Transfer-Encoding:\vchunked\r\n\r\n0\r\n\r\n", "400"},
		"space before colon":     {head + "Content-Length : 3\r\n\r\nabc", "400"},
		"space before name":      {head + " Content-Length: 3\r\n\r\nabc", "400"},
		"folded line":            {head + "X-A: b\r\n c\r\n\r\n", "400"},
		"bare LF":                {"GET http://a.test/ HTTP/1.1\nHost: a.test\n\n", "400"},
		"LF in a value":          {head + "X-A: b\nX-B: c\r\n\r\n", "400"},
		"CR in a value":          {head + "X-A: b\rX-B: c\r\n\r\n", "400"},
		"NUL in a value":         {head + "X-A: b\x00\r\n\r\n", "400"},
		"no name":                {head + ": b\r\n\r\n", "400"},
		"no colon":               {head + "abc\r\n\r\n", "400"},
		"no Host":                {"GET http://a.test/ HTTP/1.1\r\n\r\n", "400"},
		"two Hosts":              {"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", "400"},
		"two spaces":             {"GET  http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"},
		"space in target":        {"GET http://a.test/a b HTTP/1.1\r\nHost: a.test\r\n\r\n", "505"},
		"old version":            {"GET http://a.test/ HTTP/0.9\r\nHost: a.test\r\n\r\n", "505"},
		"HTTP/2 preface":         {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
		"chunked in 1.0":         {"POST http://a.test/ HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"another Host":           {"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", "403"},
		"not proxy form":         {"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"},
		"other scheme":           {"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"},
		"user in target":         {"GET http://u:p@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"},
		"header too large":       {head + "X-A: " + strings.Repeat("x", maxHead) + "\r\n\r\n", "431"},
		"CONNECT without port":   {"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"},
		"CONNECT with body":      {"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\nContent-Length: 3\r\n\r\nabc", "400"},
		"CONNECT and other Host": {"CONNECT a.test:80 HTTP/1.1\r\nHost: b.test:80\r\n\r\n", "403"},
		"CONNECT to a URL":       {"CONNECT http://a.test:80/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "400"},
		"random bytes":           {"\x00\x01\x02\x03\r\n\r\n", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			before := server.count()
			if got := w.raw(tt.text); !strings.HasPrefix(got, "HTTP/1.1 "+tt.status+" ") {
				t.Errorf("answer %.100q, want status %s", got, tt.status)
			}
			if server.count() != before {
				t.Error("the request reached the server")
			}
		})
	}
	// A chunk size that two readers see differently ends the request, and what follows is no request of its own.
	w.rawAll(head + "Transfer-Encoding: chunked\r\n\r\n3;\n\r\nabc\r\n0\r\n\r\nGET http://a.test/smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n")
	if slices.Contains(server.paths(), "/smuggled") {
		t.Error("smuggled request reached the server")
	}
}

func TestPipelining(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.plainServer(server, "a.test")
	w.rule(policy.Allow, "a.test")
	w.serve()
	one := "GET http://a.test/1 HTTP/1.1\r\nHost: a.test\r\n\r\n"
	blocked := "GET http://b.test/2 HTTP/1.1\r\nHost: b.test\r\n\r\n"
	got := w.rawAll(one + "POST http://a.test/p HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc" + blocked +
		strings.Replace(one, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
	if n := strings.Count(got, "HTTP/1.1 200 OK"); n != 3 || strings.Count(got, "HTTP/1.1 403 ") != 1 {
		t.Errorf("answers:\n%s", got)
	}
	if server.count() != 3 {
		t.Errorf("server saw %d requests", server.count())
	}
}

// Whoever opens a connection to one host cannot use it for another.
func TestFronting(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.tlsServer(server, "api.github.com", "open.test", "other.test")
	w.rule(policy.Allow, "api.github.com")
	w.rule(policy.Allow, "open.test")
	w.service("github", canary)
	w.serve()
	t.Run("server name of an intercepted host", func(t *testing.T) {
		if _, err := w.connectTLS("api.github.com:443", "other.test"); err == nil {
			t.Error("handshake succeeds")
		}
	})
	t.Run("server name of a tunnelled host", func(t *testing.T) {
		if _, err := w.connectTLS("open.test:443", "other.test"); err == nil {
			t.Error("handshake succeeds")
		}
	})
	t.Run("no server name in a tunnel", func(t *testing.T) {
		c, br, _ := w.connect("open.test:443")
		tc := tls.Client(bufferedConn{c, br}, &tls.Config{InsecureSkipVerify: true})
		if err := tc.HandshakeContext(t.Context()); err != nil {
			t.Errorf("a hello without a name does not pass: %v", err)
		}
	})
	for name, head := range map[string]string{
		"Host header":          "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"Host with port":       "GET / HTTP/1.1\r\nHost: api.github.com:444\r\n\r\n",
		"absolute target":      "GET https://other.test/ HTTP/1.1\r\nHost: api.github.com\r\n\r\n",
		"other scheme":         "GET http://api.github.com/ HTTP/1.1\r\nHost: api.github.com\r\n\r\n",
		"CONNECT inside":       "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n",
		"Host of HTTP/1.0":     "GET / HTTP/1.0\r\n\r\n",
		"framing inside":       "POST / HTTP/1.1\r\nHost: api.github.com\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"Host that is no name": "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			tc, err := w.connectTLS("api.github.com:443", "api.github.com")
			if err != nil {
				t.Fatal(err)
			}
			defer tc.Close()
			io.WriteString(tc, head)
			status, err := bufio.NewReader(tc).ReadString('\n')
			if err != nil || !strings.HasPrefix(status, "HTTP/1.1 40") {
				t.Errorf("%q %v", status, err)
			}
		})
	}
	if server.count() != 0 {
		t.Errorf("server saw %v", server.last())
	}
	if _, err := w.connectTLS("api.github.com:443", "API.GitHub.com"); err != nil {
		t.Errorf("case of the server name: %v", err)
	}
}

// Addresses that no rule names are not dialled, whatever name leads to them.
func TestAddresses(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	srv := w.plainServer(server)
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	w.config.MaxConns = 64
	for name, list := range map[string][]string{
		"loop.test": {"127.0.0.1"}, "loop6.test": {"::1"}, "meta.test": {"169.254.169.254"}, "private.test": {"10.0.0.1", "192.168.0.1"},
		"mapped.test": {"::ffff:127.0.0.1"}, "cgnat.test": {"100.64.0.1"}, "ula.test": {"fd00::1"}, "zero.test": {"0.0.0.0"}, "nat64.test": {"64:ff9b::7f00:1"},
	} {
		for _, a := range list {
			w.names.table[name] = append(w.names.table[name], netip.MustParseAddr(a))
		}
		w.rule(policy.Allow, name)
	}
	w.rule(policy.Allow, "**")
	w.serve()
	c := w.client()
	for name := range w.names.table {
		for _, scheme := range []string{"http", "https"} {
			code, body, _ := w.get(c, scheme+"://"+name+":"+port+"/")
			if code != 403 || !strings.Contains(body, "Blocked by network policy") || !strings.Contains(body, "detail: Address ") {
				t.Errorf("%s %s: %d %q", scheme, name, code, body)
			}
		}
	}
	for _, target := range []string{"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254", "0.0.0.0"} {
		if code, body, _ := w.get(c, "http://"+target+":"+port+"/"); code != 403 {
			t.Errorf("%s: %d %q", target, code, body)
		}
	}
	for _, target := range []string{"localhost", "127.1", "0x7f000001", "2130706433", "LOCALHOST."} {
		if got := w.raw("GET http://" + target + ":" + port + "/ HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 40") {
			t.Errorf("%s: %.80q", target, got)
		}
	}
	if server.count() != 0 {
		t.Error("a server on loopback was reached")
	}
	// A name with a public address beside a private one is not led to the private one.
	if asked := w.names.questions(); len(asked) != 2*len(w.names.table) {
		t.Errorf("each name is looked up once for each request: %v", asked)
	}
}

func TestHostLoopback(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	srv := w.plainServer(server)
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	w.rule(policy.Allow, "localhost:"+port)
	w.custom("LOCAL_KEY", "sbx-cs-LOCALLOCALLOCAL", "local_value_0123", "localhost:"+port)
	w.serve()
	c := w.client()
	code, body, _ := w.get(c, "http://host.docker.internal:"+port+"/", "X-Key: sbx-cs-LOCALLOCALLOCAL")
	if code != 200 || server.last().Host != "localhost:"+port || server.last().Header.Get("X-Key") != "local_value_0123" {
		t.Errorf("%d %q, Host %q, header %v", code, body, server.last().Host, server.last().Header)
	}
	if e := w.entries(1)[0]; e.Host != "localhost:"+port || !e.Allowed {
		t.Errorf("log %+v", e)
	}
	if code, body, _ := w.get(c, "http://host.docker.internal:1/"); code != 403 || !strings.Contains(body, "localhost:1.") {
		t.Errorf("another port: %d %q", code, body)
	}
	if code, _, _ := w.get(c, "http://localhost:"+port+"/"); code == 200 {
		t.Error("localhost led to the host")
	}
}

func TestProxyToItself(t *testing.T) {
	w := newWorld(t, policy.AllowAll)
	w.serve()
	for _, text := range []string{
		"CONNECT gateway.docker.internal:3128 HTTP/1.1\r\nHost: gateway.docker.internal:3128\r\nConnection: close\r\n\r\n",
		"GET http://gateway.docker.internal:3128/ HTTP/1.1\r\nHost: gateway.docker.internal:3128\r\nConnection: close\r\n\r\n",
		"GET http://GATEWAY.docker.internal.:3128/ HTTP/1.1\r\nHost: gateway.docker.internal\r\nConnection: close\r\n\r\n",
	} {
		if got := w.rawAll(text); strings.Count(got, "HTTP/1.1 ") != 1 || !strings.HasPrefix(got, "HTTP/1.1 403 ") {
			t.Errorf("%q: %.200q", text, got)
		}
	}
	if len(w.names.questions()) != 0 {
		t.Error("the proxy looked itself up")
	}
}

// A denied client that speaks neither TLS nor HTTP is cut off, as sbx does with SSH.
func TestDeniedSSH(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.serve()
	c, br, status := w.connect("github.com:22")
	if !strings.Contains(status, "200") {
		t.Errorf("status %q", status)
	}
	io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n")
	if b, err := io.ReadAll(br); len(b) != 0 && !errors.Is(err, io.EOF) {
		t.Errorf("%q %v", b, err)
	}
	if e := w.entries(1)[0]; e.Allowed || e.Host != "github.com:22" {
		t.Errorf("%+v", e)
	}
}

// A server that speaks first is not made to wait for the client.
func TestServerSpeaksFirst(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "220 ready\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		io.WriteString(c, "you said "+line)
	}()
	w.sandbox.Resolve["mail.test:25"] = l.Addr().String()
	w.rule(policy.Allow, "mail.test:25")
	w.serve()
	c, br, _ := w.connect("mail.test:25")
	if line, err := br.ReadString('\n'); line != "220 ready\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	io.WriteString(c, "HELO x\r\n")
	c.(*net.UnixConn).CloseWrite()
	if rest, err := io.ReadAll(br); string(rest) != "you said HELO x\r\n" {
		t.Errorf("%q %v", rest, err)
	}
	<-done
	if e := w.entries(1)[0]; e.Type != rules.Bypass || !e.Allowed {
		t.Errorf("%+v", e)
	}
}

func TestTooManyConnections(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.config.MaxConns = 4
	w.serve()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range 4 {
		c, err := w.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	ask := func() string { return w.raw("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n") }
	eventually(t, func() bool { return strings.HasPrefix(ask(), "HTTP/1.1 503 ") }, func() string { return "never 503" })
	for _, c := range open {
		c.Close()
	}
	eventually(t, func() bool { return strings.HasPrefix(ask(), "HTTP/1.1 403 ") }, func() string { return "503 for good" })
}

// Three hundred connections that stop in the middle do not keep the proxy from serving, nor from ending.
func TestHalfOpen(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.plainServer(&saw{}, "a.test")
	w.rule(policy.Allow, "a.test")
	w.serve()
	for i := range 300 {
		c, err := w.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		switch i % 3 {
		case 0:
			io.WriteString(c, "GET http://a.te")
		case 1:
			io.WriteString(c, "CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n\x16\x03")
		case 2:
			io.WriteString(c, "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc")
			c.(*net.UnixConn).CloseWrite()
		}
	}
	if code, _, _ := w.get(w.client(), "http://a.test/"); code != 200 {
		t.Errorf("status %d", code)
	}
}

func TestStoreProblemsFailClosed(t *testing.T) {
	w := newWorld(t, policy.AllowAll)
	server := &saw{}
	w.tlsServer(server, "api.github.com")
	w.service("github", canary)
	w.serve()
	if err := writeFile(w.dir+"/secrets.json", "{"); err != nil {
		t.Fatal(err)
	}
	if code, body, _ := w.get(w.client(), "https://api.github.com/"); code != 0 || !strings.Contains(body, "Bad Gateway") {
		t.Errorf("damaged secrets: %d %q", code, body)
	}
	if err := writeFile(w.dir+"/policy.json", "{"); err != nil {
		t.Fatal(err)
	}
	if code, body, _ := w.get(w.client(), "https://api.github.com/"); code != 403 {
		t.Errorf("damaged policy: %d %q", code, body)
	}
	if server.count() != 0 {
		t.Error("the server was reached")
	}
}

// Rules and secrets that change act on a running sandbox at once, on open connections too.
func TestChangesActAtOnce(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.tlsServer(server, "api.github.com")
	rule := w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	c := w.client()
	if code, _, _ := w.get(c, "https://api.github.com/1"); code != 200 {
		t.Fatalf("status %d", code)
	}
	w.service("github", "ghs_rotated0123456789rotated0123456789ab")
	w.get(c, "https://api.github.com/2")
	if got := server.last().Header.Get("Authorization"); got != "Bearer ghs_rotated0123456789rotated0123456789ab" {
		t.Errorf("after rotation: %q", got)
	}
	if _, err := w.vault.RemoveService(t.Context(), box, "github"); err != nil {
		t.Fatal(err)
	}
	// The open connection is intercepted still; with nothing bound the placeholder has nowhere to go.
	if code, _, _ := w.get(c, "https://api.github.com/3", "Authorization: Bearer "+secrets.GitHubServicePlaceholder); code != 403 {
		t.Errorf("after removal: %d", code)
	}
	if _, err := w.rules.RemoveID(t.Context(), box, rule.ID); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := w.get(c, "https://api.github.com/4"); code != 403 {
		t.Errorf("after the rule went: %d", code)
	}
}

// A server that is not who it should be gets nothing.
func TestUpstreamIsVerified(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.tlsServer(server, "api.github.com")
	w.config.Roots = nil // then only the system's roots count
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	code, body, _ := w.get(w.client(), "https://api.github.com/")
	if code != 502 || !strings.Contains(body, "certificate") || server.count() != 0 {
		t.Errorf("%d %q", code, body)
	}
	if e := w.entries(1)[0]; !e.Allowed || e.Kind != "dial" || !strings.Contains(e.Reason, "not reached") {
		t.Errorf("%+v", e)
	}
}

// A redirect is the client's to follow, and the credential does not go along.
func TestRedirectIsNotFollowed(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{f: func(rw http.ResponseWriter, req *http.Request) {
		http.Redirect(rw, req, "https://evil.test/steal", http.StatusFound)
	}}
	w.tlsServer(server, "api.github.com", "evil.test")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	code, _, h := w.get(w.client(), "https://api.github.com/")
	if code != 302 || h.Get("Location") != "https://evil.test/steal" || server.count() != 1 {
		t.Errorf("%d %v, %d requests", code, h, server.count())
	}
}

// Headers for one hop, and those that Connection names, go no further; it cannot take our credential away either.
func TestHopByHop(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{f: func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("Connection", "X-Secret-Hop")
		rw.Header().Set("X-Secret-Hop", "1")
		rw.Header().Set("Keep-Alive", "timeout=5")
	}}
	w.http1 = true // a server does not send such headers over HTTP/2
	w.tlsServer(server, "api.github.com")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	tc, err := w.connectTLS("api.github.com:443", "api.github.com")
	if err != nil {
		t.Fatal(err)
	}
	defer tc.Close()
	io.WriteString(tc, "GET / HTTP/1.1\r\nHost: api.github.com\r\nConnection: authorization, x-drop, close\r\nX-Drop: 1\r\n"+
		"Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nUpgrade: h2c\r\nX-Keep: 1\r\n\r\n")
	answer, err := io.ReadAll(tc)
	if err != nil || strings.Contains(string(answer), "X-Secret-Hop") || strings.Contains(string(answer), "Keep-Alive") {
		t.Errorf("%q %v", answer, err)
	}
	h := server.last().Header
	if h.Get("Authorization") != "Bearer "+canary || h.Get("X-Keep") != "1" {
		t.Errorf("header %v", h)
	}
	for _, name := range []string{"X-Drop", "Proxy-Authorization", "Proxy-Connection", "Te", "Upgrade", "Connection"} {
		if h.Get(name) != "" {
			t.Errorf("%s went through: %q", name, h.Get(name))
		}
	}
}

// Serve ends with its context while connections of every kind are open; goleak looks for what is left.
func TestServeEnds(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	hang := make(chan struct{})
	defer close(hang)
	server := &saw{f: func(rw http.ResponseWriter, req *http.Request) {
		rw.(http.Flusher).Flush()
		select {
		case <-hang:
		case <-req.Context().Done():
		}
	}}
	w.tlsServer(server, "api.github.com", "open.test")
	w.rule(policy.Allow, "api.github.com")
	w.rule(policy.Allow, "open.test")
	w.service("github", canary)
	w.serve()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "https://api.github.com/", nil)
	resp, err := w.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.connect("open.test:443")
	if _, err := w.connectTLS("api.github.com:443", "api.github.com"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(io.Discard, resp.Status) // the clean-up of serve ends the proxy now, with all of this open
}

func TestResolveOverridesAreLoopbackOnly(t *testing.T) {
	for _, to := range []string{"8.8.8.8:443", "127.0.0.1", "127.0.0.1:0", "localhost:80", "", "10.0.0.1:80"} {
		w := newWorld(t, policy.DenyAll)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := New(w.config).Serve(t.Context(), l, Sandbox{Name: box, Resolve: map[string]string{"a.test": to}}); err == nil {
			t.Errorf("override to %q is taken", to)
		}
	}
}

// What is open when a rule goes, or a credential comes, does not stay open.
func TestOpenFlowsEnd(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		rw.(http.Flusher).Flush()
		<-req.Context().Done()
	})
	w.tlsServer(server, "tunnel.test", "api.github.com", "api.openai.com")
	tunnel := w.rule(policy.Allow, "tunnel.test")
	github := w.rule(policy.Allow, "api.github.com")
	w.rule(policy.Allow, "api.openai.com")
	w.service("github", canary)
	w.serve()
	straight, through := w.clientTrusting(w.config.Roots), w.client()
	open := func(c *http.Client, target string) <-chan error {
		t.Helper()
		resp, err := c.Get(target)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			defer resp.Body.Close()
			_, err := io.ReadAll(resp.Body)
			ended <- err
		}()
		return ended
	}
	ends := func(name string, ended <-chan error) {
		t.Helper()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: looks complete", name)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: still open", name)
		}
	}
	inTunnel, inAnswer, unbound := open(straight, "https://tunnel.test/"), open(through, "https://api.github.com/"), open(straight, "https://api.openai.com/")
	if _, err := w.rules.RemoveID(t.Context(), box, tunnel.ID); err != nil {
		t.Fatal(err)
	}
	ends("tunnel without a rule", inTunnel)
	if _, err := w.rules.RemoveID(t.Context(), box, github.ID); err != nil {
		t.Fatal(err)
	}
	ends("answer without a rule", inAnswer)
	w.service("openai", "sk-canary-0123456789")
	ends("tunnel to a host with a credential", unbound)
	for _, e := range w.entries(6)[3:] {
		if e.Allowed || !strings.Contains(e.Reason, "ended") {
			t.Errorf("log %+v", e)
		}
	}
}

// A poorListener has no descriptors left for its first connections.
type poorListener struct {
	net.Listener
	left int
}

func (p *poorListener) Accept() (net.Conn, error) {
	if p.left--; p.left >= 0 {
		return nil, &net.OpError{Op: "accept", Err: unix.EMFILE}
	}
	return p.Listener.Accept()
}

// When descriptors run out, the way out comes back with them.
func TestDescriptorsRunOut(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(w.config).Serve(ctx, &poorListener{l, 5}, w.sandbox) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 403 ") {
		t.Errorf("%q %v", line, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := w.log.Close(); err != nil {
		t.Error(err)
	}
}

// A range that is denied ends what is open to an address in it, and a connection that is kept for later is of no use any
// more, whatever name led there.
func TestDeniedRangeActsAtOnce(t *testing.T) {
	own := ownAddress(t)
	w := newWorld(t, policy.DenyAll)
	server := http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		io.WriteString(rw, "hello")
		rw.(http.Flusher).Flush()
		if req.URL.Path == "/stay" {
			<-req.Context().Done()
		}
	})
	l, err := net.Listen("tcp", net.JoinHostPort(own.String(), "0"))
	if err != nil {
		t.Skipf("cannot listen on an address of this machine: %v", err)
	}
	srv := w.tlsServer(server, "unused.test")
	front := &http.Server{Handler: server, TLSConfig: srv.TLS, ErrorLog: srv.Config.ErrorLog}
	go front.ServeTLS(l, "", "")
	t.Cleanup(func() { front.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	w.names.table["bound.test"], w.names.table["tunnel.test"] = []netip.Addr{own}, []netip.Addr{own}
	for _, r := range []string{"bound.test", "tunnel.test", netip.PrefixFrom(own, own.BitLen()).String()} {
		w.rule(policy.Allow, r)
	}
	w.custom("KEY", "sbx-cs-AAAAAAAAAAAAAAAA", "a_value_0123456789", "bound.test")
	w.serve()
	through, straight := w.client2(), w.clientTrusting(w.config.Roots)
	ask := func(c *http.Client, host, path string) (*http.Response, error) {
		return c.Get(fmt.Sprintf("https://%s:%d%s", host, port, path))
	}
	var open []*http.Response
	for c, host := range map[*http.Client]string{through: "bound.test", straight: "tunnel.test"} {
		resp, err := ask(c, host, "/stay")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		open = append(open, resp)
	}
	w.rule(policy.Deny, netip.PrefixFrom(own, own.BitLen()-1).Masked().String())
	resp, err := ask(through, "bound.test", "/again") // at once: over the connection that the stream above keeps busy
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 403 || !strings.Contains(string(body), "Denied by") {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	for _, resp := range open {
		ended := make(chan error, 1)
		go func() { _, err := io.ReadAll(resp.Body); ended <- err }()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("looks whole")
			}
		case <-time.After(10 * time.Second):
			t.Error("still open")
		}
	}
}

// ownAddress is one of this machine's that is not loopback; what is sent there does not leave it.
func ownAddress(t *testing.T) netip.Addr {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() && p.Addr().Is4() {
			return p.Addr()
		}
	}
	t.Skip("this machine has no address but loopback")
	panic("unreachable")
}
