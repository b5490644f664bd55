package egress

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/upstream"
	"github.com/sbxpair/sbxpair/policy"
)

// An upstreamProxy is what stands between a machine and the world: it looks names up for itself.
type upstreamProxy struct {
	auth  string            // Basic credentials it wants; "" for none
	table map[string]string // HOST:PORT to loopback address

	mu    sync.Mutex
	asked []string // "METHOD TARGET"
}

func (u *upstreamProxy) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	u.mu.Lock()
	u.asked = append(u.asked, req.Method+" "+req.RequestURI)
	u.mu.Unlock()
	if u.auth != "" && req.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(u.auth)) {
		http.Error(rw, "who?", http.StatusProxyAuthRequired)
		return
	}
	if req.Method != http.MethodConnect {
		to := *req.URL
		if to.Port() == "" {
			to.Host += ":80"
		}
		to.Host = u.table[to.Host]
		out, err := http.NewRequestWithContext(req.Context(), req.Method, to.String(), req.Body)
		if err != nil || to.Host == "" {
			http.Error(rw, "nowhere", http.StatusBadGateway)
			return
		}
		out.Host, out.Header = req.Host, req.Header
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		rw.WriteHeader(resp.StatusCode)
		io.Copy(rw, resp.Body)
		return
	}
	up, err := net.Dial("tcp", u.table[req.Host])
	if err != nil {
		http.Error(rw, "nowhere", http.StatusForbidden)
		return
	}
	defer up.Close()
	conn, brw, err := rw.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	io.WriteString(conn, "HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n")
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(up, brw); closeWrite(up) })
	wg.Go(func() { io.Copy(conn, up); closeWrite(conn) })
	wg.Wait()
}

func (u *upstreamProxy) saw() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Join(u.asked, "\n")
}

// newUpstream starts a proxy that leads the world's hosts to where overrides would, and takes those away.
func (w *world) newUpstream(secure bool) (*upstreamProxy, string) {
	u := &upstreamProxy{table: map[string]string{}}
	for host, addr := range w.sandbox.Resolve {
		if !strings.Contains(host, ":") {
			for _, port := range []string{":80", ":443", ":22"} {
				u.table[host+port] = addr
			}
		} else {
			u.table[host] = addr
		}
	}
	w.sandbox.Resolve = nil
	var srv *httptest.Server
	if secure {
		srv = httptest.NewTLSServer(u)
		w.config.Roots.AddCert(srv.Certificate())
	} else {
		srv = httptest.NewServer(u)
	}
	w.t.Cleanup(srv.Close)
	return u, srv.URL
}

func TestUpstream(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			w := newWorld(t, policy.DenyAll)
			server, plain := &saw{}, &saw{}
			w.tlsServer(server, "api.github.com", "open.test")
			w.plainServer(plain, "plain.test")
			for _, r := range []string{"api.github.com:443", "open.test:443", "plain.test", "lan.test", "direct.test"} {
				w.rule(policy.Allow, r)
			}
			w.service("github", canary)
			w.names.table["lan.test"] = []netip.Addr{netip.MustParseAddr("10.1.2.3")}
			up, address := w.newUpstream(scheme == "https")
			up.auth = "me:pass word"
			address = strings.Replace(address, "://", "://me:pass%20word@", 1)
			conf := upstream.Proxies{HTTP: address, HTTPS: address, NoProxy: "direct.test"}
			w.config.Upstream = func() (upstream.Proxies, error) { return conf, nil }
			w.serve()

			if code, body, _ := w.get(w.client(), "https://api.github.com/x"); code != 200 || server.last().Header.Get("Authorization") != "Bearer "+canary {
				t.Errorf("intercepted: %d %q", code, body)
			}
			if code, body, _ := w.get(w.clientTrusting(w.config.Roots), "https://open.test/"); code != 200 || body != "hello from open.test" {
				t.Errorf("tunnelled: %d %q", code, body)
			}
			if code, body, _ := w.do(w.client(), "POST", "http://plain.test/y", strings.NewReader("body")); code != 200 || body != "hello from plain.test" || plain.lastBody() != "body" {
				t.Errorf("plain: %d %q", code, body)
			}
			if got, want := up.saw(), "CONNECT api.github.com:443\nCONNECT open.test:443\nPOST http://plain.test/y"; got != want {
				t.Errorf("the proxy was asked for\n%s\nwant\n%s", got, want)
			}
			for _, e := range w.entries(3) {
				if !e.Allowed || strings.Contains(e.Reason, "not reached") {
					t.Errorf("log %+v", e)
				}
			}
			// Addresses are decided on as far as they are known here.
			for _, target := range []string{"http://lan.test/", "https://lan.test/"} {
				if code, body, _ := w.get(w.client(), target); code != 403 || !strings.Contains(body, "10.1.2.3 is private") {
					t.Errorf("%s: %d %q", target, code, body)
				}
			}
			// What is not to go through it does not, and is looked up here.
			w.get(w.client(), "http://direct.test/")
			if asked := w.names.questions(); asked[len(asked)-1] != "direct.test" || strings.Contains(up.saw(), "direct") || strings.Contains(up.saw(), "lan.test") {
				t.Errorf("looked up %v, the proxy was asked for\n%s", asked, up.saw())
			}
			// A refusal of the proxy is said, without its address.
			conf.HTTP, conf.HTTPS = strings.Replace(address, "word", "wrong", 1), strings.Replace(address, "word", "wrong", 1)
			before := 6
			for i, target := range []string{"http://plain.test/", "https://open.test/"} {
				code, body, _ := w.get(w.client(), target)
				if code == 200 || strings.Contains(body, "wrong") {
					t.Errorf("%s: %d %q", target, code, body)
				}
				if e := w.entries(before + i + 1)[before+i]; e.Kind != "dial" || !strings.Contains(e.Reason, "not reached: upstream proxy: ") || strings.Contains(e.Reason, "wrong") {
					t.Errorf("log %+v", e)
				}
			}
		})
	}
}

// A proxy that is not there, or described wrongly, is named in the log, and nothing goes around it.
func TestUpstreamBroken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + l.Addr().String()
	l.Close()
	for name, conf := range map[string]upstream.Proxies{
		"gone": {HTTP: gone, HTTPS: gone}, "scheme": {HTTP: "ftp://p.test", HTTPS: "ftp://p.test"}, "no address": {HTTP: "http://:s3cret@", HTTPS: "http://:s3cret@"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, policy.DenyAll)
			w.rule(policy.Allow, "a.test")
			w.config.Upstream = func() (upstream.Proxies, error) { return conf, nil }
			w.serve()
			for i, target := range []string{"http://a.test/", "https://a.test/"} {
				if code, body, _ := w.get(w.client(), target); code == 200 || strings.Contains(body, "s3cret") {
					t.Errorf("%d %q", code, body)
				}
				if e := w.entries(i + 1)[i]; e.Kind != "dial" || !strings.Contains(e.Reason, "upstream proxy: ") || strings.Contains(e.Reason, "s3cret") {
					t.Errorf("log %+v", e)
				}
			}
		})
	}
	w := newWorld(t, policy.DenyAll)
	w.rule(policy.Allow, "a.test")
	w.config.Upstream = func() (upstream.Proxies, error) { return upstream.Proxies{}, errors.New("settings cannot be read") }
	w.serve()
	w.get(w.client(), "http://a.test/")
	if e := w.entries(1)[0]; !strings.Contains(e.Reason, "settings cannot be read") {
		t.Errorf("log %+v", e)
	}
}

// Loopback and overrides never leave the machine, and a SOCKS proxy carries all the rest.
func TestUpstreamSOCKS(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	here := &saw{}
	srv := w.plainServer(here, "over.test")
	over := w.sandbox.Resolve
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go socks(c, srv.Listener.Addr().String(), asked)
		}
	}()
	w.sandbox.Resolve = over
	for _, r := range []string{"over.test", "far.test:80", "localhost:" + port} {
		w.rule(policy.Allow, r)
	}
	conf := upstream.Proxies{HTTP: "socks5://u:p@" + l.Addr().String(), HTTPS: "socks5h://u:p@" + l.Addr().String()}
	w.config.Upstream = func() (upstream.Proxies, error) { return conf, nil }
	w.serve()
	for _, target := range []string{"http://over.test/", "http://host.docker.internal:" + port + "/"} {
		if code, body, _ := w.get(w.client(), target); code != 200 {
			t.Errorf("%s: %d %q", target, code, body)
		}
	}
	if len(asked) != 0 {
		t.Errorf("the proxy was asked for %s", <-asked)
	}
	if code, body, _ := w.get(w.client(), "http://far.test/"); code != 200 || body != "hello from far.test" {
		t.Errorf("plain: %d %q", code, body)
	}
	c, br, status := w.connect("far.test:80")
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: far.test\r\nConnection: close\r\n\r\n")
	if line, err := br.ReadString('\n'); line != "HTTP/1.1 200 OK\r\n" {
		t.Errorf("tunnel: %s %q %v", status, line, err)
	}
	for range 2 {
		select {
		case got := <-asked:
			if got != "u:p far.test:80" {
				t.Errorf("the proxy was asked for %q", got)
			}
		case <-time.After(5 * time.Second):
			t.Error("the proxy was not asked")
		}
	}
}

// socks answers one SOCKS 5 connection (RFC 1928, 1929) and joins it to a server.
func socks(c net.Conn, server string, asked chan<- string) {
	defer c.Close()
	br := bufio.NewReader(c)
	read := func(n int) []byte { b := make([]byte, n); io.ReadFull(br, b); return b }
	read(int(read(2)[1])) // version, methods
	c.Write([]byte{5, 2})
	user := string(read(int(read(2)[1])))
	password := string(read(int(read(1)[0])))
	c.Write([]byte{1, 0})
	read(4) // CONNECT to a name
	host := string(read(int(read(1)[0])))
	port := read(2)
	asked <- fmt.Sprintf("%s:%s %s:%d", user, password, host, int(port[0])<<8|int(port[1]))
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer up.Close()
	c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(up, br); closeWrite(up) })
	wg.Go(func() { io.Copy(c, up); closeWrite(c) })
	wg.Wait()
}
