package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a proxy that serves one sandbox, on a state folder of its own, and servers on loopback behind overrides.
type world struct {
	t       testing.TB
	dir     string
	rules   *rules.Store
	vault   *vault.Store
	log     *rules.Log
	ca      *CA
	socket  string
	sandbox Sandbox
	config  Config
	names   *names
	http1   bool // servers made from now on speak HTTP/1.1 only
}

const box = "demo-agent"

// names is a resolver that knows what it was told and counts what it is asked.
type names struct {
	mu    sync.Mutex
	table map[string][]netip.Addr
	asked []string
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	n.asked = append(n.asked, host)
	if a, ok := n.table[host]; ok {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (n *names) questions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.asked)
}

// newWorld makes the stores; serve starts the proxy.
func newWorld(t testing.TB, preset policy.Preset) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{
		t: t, dir: dir, rules: rules.Open(dir), vault: vault.Open(dir), log: rules.OpenLog(dir),
		sandbox: Sandbox{Name: box, ID: "id", Resolve: map[string]string{}}, names: &names{table: map[string][]netip.Addr{}},
	}
	ca, err := LoadOrCreateCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	w.ca = ca
	if err := w.rules.Init(t.Context(), preset); err != nil {
		t.Fatal(err)
	}
	w.config = Config{Rules: w.rules, Vault: w.vault, CA: ca, Log: w.log, Resolver: w.names}
	return w
}

func (w *world) serve() {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "eg") // a socket path has at most 108 bytes
	if err != nil {
		w.t.Fatal(err)
	}
	w.socket = filepath.Join(dir, "proxy.sock")
	l, err := net.Listen("unix", w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(w.config).Serve(ctx, l, w.sandbox) }()
	w.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("Serve = %v after its context ended", err)
			}
		case <-time.After(10 * time.Second):
			w.t.Error("Serve does not end")
		}
		w.log.Close()
		os.RemoveAll(dir)
	})
}

func (w *world) rule(effect policy.Effect, resource string, more ...func(*rules.New)) rules.Rule {
	w.t.Helper()
	res, err := policy.ParseResource(resource)
	if err != nil {
		w.t.Fatal(err)
	}
	n := rules.New{Resources: []policy.Resource{res}}
	for _, m := range more {
		m(&n)
	}
	added, err := w.rules.Add(w.t.Context(), box, effect, n)
	if err != nil {
		w.t.Fatal(err)
	}
	return added[0]
}

func onPath(methods string, paths ...string) func(*rules.New) {
	return func(n *rules.New) {
		if methods != "" {
			n.Methods = strings.Split(methods, ",")
		}
		for _, p := range paths {
			pat, err := policy.ParsePathPattern(p)
			if err != nil {
				panic(err)
			}
			n.Paths = append(n.Paths, pat)
		}
	}
}

func (w *world) service(name, value string) {
	w.t.Helper()
	err := w.vault.Set(w.t.Context(), vault.ServiceSecret{Service: name, Sandbox: box, Secret: vault.Secret{Value: secrets.New(value)}, Force: true})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) custom(env, placeholder, value string, hosts ...string) {
	w.t.Helper()
	_, _, err := w.vault.SetCustom(w.t.Context(), vault.CustomSecret{
		Sandbox: box, Env: env, Placeholder: placeholder, Hosts: hosts, Secret: vault.Secret{Value: secrets.New(value)},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// tlsServer serves h over TLS for the given names, with overrides to it and a CA that only the proxy trusts.
func (w *world) tlsServer(h http.Handler, hosts ...string) *httptest.Server {
	w.t.Helper()
	srv := httptest.NewUnstartedServer(h)
	if w.config.Roots == nil {
		w.config.Roots = x509.NewCertPool()
	}
	upstream, err := LoadOrCreateCA(w.t.TempDir())
	if err != nil {
		w.t.Fatal(err)
	}
	w.config.Roots.AppendCertsFromPEM(upstream.CertPEM())
	srv.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		h, err := policy.ParseHost(hello.ServerName)
		if err != nil {
			return nil, err
		}
		return upstream.leaf(h)
	}}
	srv.EnableHTTP2 = !w.http1
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	w.t.Cleanup(srv.Close)
	for _, host := range hosts {
		w.sandbox.Resolve[host] = srv.Listener.Addr().String()
	}
	return srv
}

func (w *world) plainServer(h http.Handler, hosts ...string) *httptest.Server {
	srv := httptest.NewServer(h)
	w.t.Cleanup(srv.Close)
	for _, host := range hosts {
		w.sandbox.Resolve[host] = srv.Listener.Addr().String()
	}
	return srv
}

// client is what a well-behaved program in the sandbox is: proxy variables and the CA set.
func (w *world) client() *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca.CertPEM())
	return w.clientTrusting(pool)
}

func (w *world) clientTrusting(pool *x509.CertPool) *http.Client {
	tr := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: Gateway + ":3128"}),
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) },
		TLSClientConfig: &tls.Config{RootCAs: pool},
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

func (w *world) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", w.socket)
}

func (w *world) get(c *http.Client, target string, header ...string) (int, string, http.Header) {
	w.t.Helper()
	return w.do(c, "GET", target, nil, header...)
}

func (w *world) do(c *http.Client, method, target string, body io.Reader, header ...string) (int, string, http.Header) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, target, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, h := range header {
		k, v, _ := strings.Cut(h, ": ")
		req.Header.Add(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Errorf("%s %s: body: %v", method, target, err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// raw sends bytes to the proxy and returns the first answer.
func (w *world) raw(text string) string {
	w.t.Helper()
	return w.exchange(text, func(br *bufio.Reader) string {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return "no answer: " + err.Error()
		}
		defer resp.Body.Close()
		if strings.HasPrefix(text, "CONNECT") && resp.StatusCode == http.StatusOK {
			return "HTTP/1.1 200 tunnel"
		}
		b, err := httputil.DumpResponse(resp, true)
		if err != nil {
			return err.Error()
		}
		return string(b)
	})
}

// rawAll sends bytes to the proxy and returns all that comes back until the proxy closes.
func (w *world) rawAll(text string) string {
	w.t.Helper()
	return w.exchange(text, func(br *bufio.Reader) string {
		b, err := io.ReadAll(br)
		if err != nil {
			w.t.Errorf("the proxy does not close: %v", err)
		}
		return string(b)
	})
}

func (w *world) exchange(text string, read func(*bufio.Reader) string) string {
	w.t.Helper()
	c, err := w.dial(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return "write: " + err.Error()
	}
	return read(bufio.NewReader(c))
}

// connect opens a CONNECT by hand and returns the connection behind the proxy's answer.
func (w *world) connect(target string) (net.Conn, *bufio.Reader, string) {
	w.t.Helper()
	c, err := w.dial(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(15 * time.Second))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
	br := bufio.NewReader(c)
	status, err := br.ReadString('\n')
	if err != nil {
		w.t.Fatalf("CONNECT %s: %v", target, err)
	}
	for {
		line, err := br.ReadString('\n')
		if err != nil || line == "\r\n" {
			break
		}
	}
	return c, br, strings.TrimSpace(status)
}

// connectTLS is connect followed by TLS with any server name.
func (w *world) connectTLS(target, serverName string) (*tls.Conn, error) {
	w.t.Helper()
	c, br, status := w.connect(target)
	if !strings.Contains(status, " 200 ") {
		return nil, fmt.Errorf("CONNECT: %s", status)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca.CertPEM())
	tc := tls.Client(bufferedConn{c, br}, &tls.Config{ServerName: serverName, InsecureSkipVerify: true})
	return tc, tc.HandshakeContext(w.t.Context())
}

// entries waits for the log to have n decisions and returns them.
func (w *world) entries(n int) []rules.Entry {
	w.t.Helper()
	var got []rules.Entry
	eventually(w.t, func() bool {
		entries, bad, err := w.log.Entries()
		if err != nil || bad > 0 {
			w.t.Fatalf("log: %d unreadable lines, %v", bad, err)
		}
		got = entries
		return len(entries) >= n
	}, func() string { return fmt.Sprintf("log has %d decisions, want %d: %+v", len(got), n, got) })
	if len(got) != n {
		w.t.Errorf("log has %d decisions, want %d: %+v", len(got), n, got)
	}
	return got
}

// eventually polls until ok, at most five seconds.
func eventually(t testing.TB, ok func() bool, otherwise func() string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal(otherwise())
		}
		<-tick.C
	}
}

// saw is a handler that records requests and answers with what f says.
type saw struct {
	mu   sync.Mutex
	reqs []*http.Request
	body []string
	f    http.HandlerFunc
}

func (s *saw) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	b, _ := io.ReadAll(req.Body)
	s.mu.Lock()
	s.reqs = append(s.reqs, req)
	s.body = append(s.body, string(b))
	s.mu.Unlock()
	if s.f != nil {
		s.f(rw, req)
		return
	}
	io.WriteString(rw, "hello from "+req.Host)
}

func (s *saw) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reqs) == 0 {
		return nil
	}
	return s.reqs[len(s.reqs)-1]
}

func (s *saw) lastBody() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.body[len(s.body)-1]
}

func (s *saw) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.reqs {
		out = append(out, r.URL.Path)
	}
	return out
}

func (s *saw) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reqs)
}

// forwarder is what process 1 of a sandbox is: a TCP port that leads to the proxy's socket.
func forwarder(t testing.TB, w *world) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := w.dial(ctx)
			if err != nil {
				c.Close()
				continue
			}
			context.AfterFunc(ctx, func() { c.Close(); up.Close() })
			work.Go(func() { io.Copy(up, c); closeWrite(up) })
			work.Go(func() { io.Copy(c, up); closeWrite(c) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		work.Wait()
	})
	return l.Addr().String()
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

func poolOf(ca *CA) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM())
	return pool
}
