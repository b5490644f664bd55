package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/egress"
	"github.com/sbxpair/sbxpair/engine/enginetest"
	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/settings"
	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/fixtures/page"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

var update = flag.Bool("update", false, "write docs/reference/attacks.md")

// The values that must never be seen in a sandbox. They are nobody's.
const (
	githubValue = "ghs_canaryCANARYcanaryCANARY0123456789ab"
	customValue = "canary-custom-VALUE-0123456789abcdefgh"
)

// Every attempt is refused, what is traffic is in the policy log, and nothing of it is on the host afterwards.
func TestAttacks(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	out := h.run("mallory", "control")
	for _, want := range []string{"200 HTTP/2.0 SERVER api.github.com /\n", "200 HTTP/1.1 SERVER open.test /\n", "SERVER paths.test /repos/a/x\n", "SERVER echo.test /\n"} {
		if !strings.Contains(out.Refused, want) {
			t.Fatalf("what is allowed does not work: %+v lacks %q", out, want)
		}
	}
	if !h.server.sawValue("api.github.com", githubValue) {
		t.Fatal("the credential does not reach its host")
	}
	for _, at := range attempts() {
		t.Run(at.name, func(t *testing.T) {
			box := at.from
			if box == "" {
				box = "mallory"
			}
			if at.group == groupLimits && box != "mallory" {
				h.limited(t, box)
			}
			before := len(h.entries())
			out := h.run(box, at.name)
			t.Logf("%.300s", out.Refused)
			if out.Through != "" || out.Refused == "" {
				t.Fatalf("not refused: %+v", out)
			}
			for _, value := range []string{githubValue, customValue} {
				if strings.Contains(strings.ToLower(out.Refused+out.Through), strings.ToLower(value)) {
					t.Error("a credential is in the sandbox")
				}
			}
			if at.host != "" {
				enginetest.Eventually(t, "the log has no line for it", func() bool {
					return slices.ContainsFunc(h.entries()[before:], func(e rules.Entry) bool {
						return e.Sandbox == box && !e.Allowed && strings.HasPrefix(e.Host, at.host) && strings.Contains(e.Reason, at.reason)
					})
				})
			}
			if h.aftermath[at.name] != nil {
				h.aftermath[at.name](t)
			}
		})
	}
	h.looksClean(t)
}

// programEnv names the program that runs inside, for a test process that cannot build it.
const programEnv = "SBX_ATTACK_TEST_PROGRAM"

// The same from a sandbox without root on the outside, where gVisor has no rights but its user's.
func TestAttacksAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the other test runs as an ordinary user already")
	}
	t.Parallel()
	dir, err := os.MkdirTemp("", "sbx-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	build(t, filepath.Join(dir, "attack"))
	out := enginetest.AsOrdinaryUser(t, "^TestAttacks$", programEnv+"="+filepath.Join(dir, "attack"))
	if bytes.Contains(out, []byte("--- SKIP: TestAttacks ")) {
		t.Skipf("sandboxes do not run for an ordinary user here:\n%s", out)
	}
}

// The page lists every attempt.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Attacks\n\nWhat is tried from inside real sandboxes of `sbx-local` in every test run (`go test ./engine/attack`). " +
		"Each attempt must be refused; where a log line is given, the policy log must hold it. The page is generated from the table " +
		"that the test runs.\n")
	group, n := "", 0
	for _, at := range attempts() {
		if at.group != group {
			group = at.group
			fmt.Fprintf(&b, "\n## %s\n\n| attempt | what is tried | in the policy log |\n| --- | --- | --- |\n", group)
		}
		logged := ""
		if at.host != "" {
			logged = "`" + at.host + "`"
			if at.reason != "" {
				logged += ": " + at.reason
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", at.name, at.what, logged)
		n++
	}
	fmt.Fprintf(&b, "\n%d attempts.\n", n)
	page.Holds(t, filepath.Join("..", "..", "docs", "reference", "attacks.md"), page.All, b.String(), *update)
	if n < 50 {
		t.Errorf("only %d attempts", n)
	}
	names := map[string]bool{}
	for _, at := range attempts() {
		if names[at.name] || at.what == "" || at.try == nil {
			t.Errorf("%q: twice, or incomplete", at.name)
		}
		names[at.name] = true
	}
}

// A host is a machine with sandboxes and everything that an attacker would like to have.
type host struct {
	t         *testing.T
	engine    *engine.Engine
	log       *rules.Log
	server    *server
	loopback  *httptest.Server
	reached   bool // the loopback server was
	names     *names
	facts     facts
	boxes     map[string]engine.Record
	aftermath map[string]func(*testing.T)
}

func newHost(t *testing.T) *host {
	binary := enginetest.Binary(t)
	st := enginetest.State(t, binary)
	h := &host{t: t, log: rules.OpenLog(st.PolicyDir()), names: newNames(), boxes: map[string]engine.Record{}}
	h.engine = &engine.Engine{State: st, Self: binary, Rootless: os.Geteuid() != 0, Stores: &stores{st}}
	enginetest.Require(t, h.engine)

	// Side by side, so that a few dots lead from one to the other.
	base := t.TempDir()
	work, outside := filepath.Join(base, "work"), filepath.Join(base, "outside")
	for _, dir := range []string{work, outside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.facts = facts{Workspace: work, HostFile: filepath.Join(outside, "private"), HostPID: os.Getpid(), HostAddrs: addresses(t)}
	if err := os.WriteFile(h.facts.HostFile, []byte(hostText), 0o644); err != nil {
		t.Fatal(err)
	}
	h.loopback = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.reached = true
		io.WriteString(w, "SERVER of the host")
	}))
	t.Cleanup(h.loopback.Close)
	h.facts.HostPort = h.loopback.Listener.Addr().(*net.TCPAddr).Port
	h.facts.Abstract = "sbxpair-attack-" + fmt.Sprint(os.Getpid())
	ln, err := net.Listen("unix", "@"+h.facts.Abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })

	h.server = newServer(t)
	h.policy()
	h.daemon()
	build(t, filepath.Join(work, "attack"))
	for _, name := range []string{"mallory", "tunnel"} {
		dir := work
		if name != "mallory" {
			dir = filepath.Join(base, name)
			if err := errorsOf(os.Mkdir(dir, 0o755), copyFile(filepath.Join(work, "attack"), filepath.Join(dir, "attack"))); err != nil {
				t.Fatal(err)
			}
		}
		h.create(t, name, dir)
	}
	h.facts.StateFiles = []string{
		filepath.Join(st.SecretsDir(), "secrets.json"), filepath.Join(st.CADir(), "proxy-ca.pem"), filepath.Join(st.PolicyDir(), "policy.json"),
		filepath.Join(st.PolicyDir(), "policy-log.jsonl"), filepath.Join(st.SandboxDir("mallory"), "record.json"),
	}
	for _, f := range h.facts.StateFiles {
		if _, err := os.Stat(f); err != nil && !strings.HasSuffix(f, ".jsonl") {
			t.Fatalf("an attempt would go for nothing: %v", err)
		}
	}
	other := st.ProxyDir(h.boxes["tunnel"].ID)
	h.facts.Sockets = []string{filepath.Join(other, "proxy.sock"), filepath.Join(other, "ports.sock"), st.DaemonSocket()}
	h.aftermath = map[string]func(*testing.T){
		"file-fifo":            h.copiesFIFO,
		"file-system-folders":  h.hostHasNo("/usr/bin/attack-planted"),
		"file-setuid":          h.noSetuid,
		"file-capabilities":    h.noSetuid,
		"limit-forks":          h.neighbourLives,
		"limit-disk":           h.neighbourLives,
		"limit-holes":          h.holesStayHoles,
		"limit-memory":         h.neighbourLives,
		"limit-connections":    h.neighbourLives,
		"limit-http2-resets":   h.neighbourLives,
		"limit-http2-header":   h.neighbourLives,
		"limit-http2-requests": h.neighbourLives,
		"log-injection":        h.logWhole,
	}
	return h
}

const hostText = "SERVER: a file of the host"

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// addresses are those of the machine's own networks.
func addresses(t *testing.T) []string {
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && !ip.IP.IsLinkLocalUnicast() {
			out = append(out, ip.IP.String())
		}
	}
	return out
}

// stores are the real ones.
type stores struct{ st *engine.State }

func (s *stores) Ready() error { return nil }
func (s *stores) CA() ([]byte, error) {
	ca, err := egress.LoadOrCreateCA(s.st.CADir())
	if err != nil {
		return nil, err
	}
	return ca.CertPEM(), nil
}
func (s *stores) Env(name string) ([]string, error)  { return vault.Open(s.st.SecretsDir()).Env(name) }
func (s *stores) Drop(context.Context, string) error { return nil }

// policy opens what the controls need, binds the credentials, and allows the names that lead where nobody may go.
func (h *host) policy() {
	t, st := h.t, h.engine.State
	store := rules.Open(st.PolicyDir())
	if err := store.Init(t.Context(), policy.DenyAll); err != nil {
		t.Fatal(err)
	}
	add := func(effect policy.Effect, list string, paths ...string) {
		resources, err := policy.ParseResources(list)
		if err != nil {
			t.Fatal(err)
		}
		n := rules.New{Resources: resources}
		for _, p := range paths {
			pattern, err := policy.ParsePathPattern(p)
			if err != nil {
				t.Fatal(err)
			}
			n.Methods, n.Paths = []string{"GET"}, append(n.Paths, pattern)
		}
		if _, err := store.Add(t.Context(), "", effect, n); err != nil {
			t.Fatal(err)
		}
	}
	add(policy.Allow, "api.github.com:443,github.com:443,open.test:80,open.test:443,echo.test:443,plain.test:80")
	add(policy.Allow, "paths.test:443", "/repos/a/**")
	add(policy.Deny, "bad.test")
	for name := range h.names.table {
		add(policy.Allow, name)
	}
	v := vault.Open(st.SecretsDir())
	if err := v.Set(t.Context(), vault.ServiceSecret{Service: "github", Sandbox: "mallory", Secret: vault.Secret{Value: secrets.New(githubValue)}}); err != nil {
		t.Fatal(err)
	}
	p, _, err := v.SetCustom(t.Context(), vault.CustomSecret{Sandbox: "mallory", Env: "ECHO_KEY", Hosts: []string{"echo.test", "plain.test"}, Secret: vault.Secret{Value: secrets.New(customValue)}})
	if err != nil {
		t.Fatal(err)
	}
	h.facts.Placeholder = p
}

// daemon serves the sandboxes from this process, with a resolver and certificates of the test's own.
func (h *host) daemon() {
	t, st := h.t, h.engine.State
	ca, err := egress.LoadOrCreateCA(st.CADir())
	if err != nil {
		t.Fatal(err)
	}
	p := egress.New(egress.Config{
		Rules: rules.Open(st.PolicyDir()), Vault: vault.Open(st.SecretsDir()), CA: ca, Log: h.log, Roots: h.server.roots, Resolver: h.names,
	})
	d := &engine.Daemon{Engine: h.engine, Version: "test", Proxy: func(ctx context.Context, l net.Listener, r engine.Record) error {
		sb := egress.Sandbox{Name: r.Name, ID: r.ID, Resolve: h.server.resolve}
		if r.Name != "tunnel" {
			sb.UpstreamRoots = h.server.roots
		}
		return p.Serve(ctx, l, sb)
	}}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for name := range h.boxes {
			if err := h.engine.Remove(context.Background(), name); err != nil {
				t.Error(err)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		h.log.Close()
	})
}

// build makes the program that runs inside.
func build(t *testing.T, path string) {
	if ready := os.Getenv(programEnv); ready != "" {
		if err := copyFile(ready, path); err != nil {
			t.Fatal(err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func (h *host) create(t *testing.T, name, dir string) {
	t.Helper()
	r, err := h.engine.Create(t.Context(), engine.CreateSpec{Name: name, Agent: "shell", Workspaces: []engine.Workspace{{Path: dir}}, MemoryMiB: 512})
	if err != nil {
		t.Fatal(err)
	}
	h.boxes[name] = r
}

// limited makes a sandbox that may end, with small limits.
func (h *host) limited(t *testing.T, name string) {
	s := settings.Open(h.engine.State.Dir)
	for key, value := range map[string]string{"limits.pids": "300", "limits.diskGiB": "1"} {
		if _, err := s.Set(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(filepath.Dir(h.facts.Workspace), name)
	if err := errorsOf(os.Mkdir(dir, 0o755), copyFile(filepath.Join(h.facts.Workspace, "attack"), filepath.Join(dir, "attack"))); err != nil {
		t.Fatal(err)
	}
	h.create(t, name, dir)
	if r := h.boxes[name]; name != "disk" && name != "holes" && strings.HasPrefix(r.Limits, "none") {
		t.Skipf("limits: %s", r.Limits)
	}
}

// run makes one attempt and returns what came of it. A sandbox that ended over it is a refusal too.
func (h *host) run(box, name string) outcome {
	r := h.boxes[box]
	f := h.facts
	f.Workspace = r.Primary()
	env, err := json.Marshal(f)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*limit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code, err := h.engine.Exec(ctx, r, engine.ExecSpec{Argv: []string{filepath.Join(f.Workspace, "attack"), name}, Env: []string{"FACTS=" + string(env)}, Stdout: &stdout, Stderr: &stderr})
	var out outcome
	if json.Unmarshal(stdout.Bytes(), &out) != nil {
		if box == "mallory" || box == "tunnel" {
			return outcome{Through: fmt.Sprintf("no answer: exit %d, %v: %s%s", code, err, stdout.String(), stderr.String())}
		}
		return outcome{Refused: fmt.Sprintf("it ended: exit %d, %v", code, err)}
	}
	return out
}

func (h *host) entries() []rules.Entry {
	list, bad, err := h.log.Entries()
	if err != nil || bad > 0 {
		h.t.Errorf("policy log: %d lines cannot be read, %v", bad, err)
	}
	return list
}

// looksClean is what has to hold after all of it.
func (h *host) looksClean(t *testing.T) {
	if h.reached {
		t.Error("the server on the host's loopback was reached")
	}
	if data, err := os.ReadFile(h.facts.HostFile); err != nil || string(data) != hostText {
		t.Errorf("the host's file: %q, %v", data, err)
	}
	if list, err := os.ReadDir(filepath.Dir(h.facts.HostFile)); err != nil || len(list) != 1 {
		t.Errorf("beside the host's file: %v, %v", list, err)
	}
	h.server.looksClean(t)
	h.names.looksClean(t)
}

func (h *host) hostHasNo(path string) func(*testing.T) {
	return func(t *testing.T) {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is on the host", path)
		}
	}
}

// copiesFIFO copies the workspace out with a pipe in it, which has to end.
func (h *host) copiesFIFO(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	fifo := filepath.Join(h.facts.Workspace, "fifo")
	defer os.Remove(fifo)
	cmd := exec.CommandContext(ctx, h.engine.Self, "cp", "mallory:"+fifo, t.TempDir())
	cmd.Env = append(os.Environ(), enginetest.Env(h.engine.State))
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Errorf("copying a pipe out does not end: %s", out)
	}
	t.Logf("cp: %v %s", err, out)
}

func (h *host) noSetuid(t *testing.T) {
	list, err := os.ReadDir(h.facts.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		path := filepath.Join(h.facts.Workspace, e.Name())
		if fi, err := os.Lstat(path); err != nil || fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("%s on the host: %v, %v", e.Name(), fi.Mode(), err)
		}
		if n, err := unix.Lgetxattr(path, "security.capability", make([]byte, 64)); n > 0 {
			t.Errorf("%s has capabilities on the host (%v)", e.Name(), err)
		}
	}
}

// neighbourLives asks another sandbox, through its own way out.
func (h *host) neighbourLives(t *testing.T) {
	if out := h.run("tunnel", "connect-denied"); !strings.Contains(out.Refused, "403") {
		t.Errorf("the other sandbox: %+v", out)
	}
	if box := h.boxes["mallory"]; h.run("mallory", "connect-denied").Through != "" {
		t.Errorf("%s does not get an answer any more", box.Name)
	}
}

// holesStayHoles asks for the disk to be kept, which is refused.
func (h *host) holesStayHoles(t *testing.T) {
	if _, err := h.engine.Stop(t.Context(), h.boxes["holes"].Name); !errors.Is(err, engine.ErrDisk) {
		t.Errorf("stop: %v, want ErrDisk", err)
	}
	h.neighbourLives(t)
}

func (h *host) logWhole(t *testing.T) {
	for _, e := range h.entries() {
		if e.Sandbox != "mallory" && e.Sandbox != "tunnel" || strings.Contains(e.Host, "forged") || strings.ContainsAny(e.Path+e.Method+e.Reason+e.Host, "\n\x1b") {
			t.Errorf("forged: %+v", e)
		}
	}
}

// names answers with addresses that nobody may be led to.
type names struct {
	mu    sync.Mutex
	table map[string][]string
	asked map[string]int
}

func newNames() *names {
	return &names{asked: map[string]int{}, table: map[string][]string{
		"meta.test": {"169.254.169.254"}, "loop.test": {"127.0.0.1"}, "loop6.test": {"::1"}, "lan.test": {"10.11.12.13", "192.168.7.7"},
		"nat64.test": {"64:ff9b::7f00:1"}, "6to4.test": {"2002:7f00:1::"}, "teredo.test": {"2001:0:7f00:1::1"}, "zero.test": {"0.0.0.0", "::"},
		"flip.test": {"127.0.0.1", "169.254.169.254"},
	}}
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	n.asked[host]++
	list := n.table[host]
	if host == "flip.test" {
		list = list[n.asked[host]%2:][:1]
	}
	if list == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func (n *names) looksClean(t *testing.T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, count := range n.asked {
		if n.table[name] == nil {
			t.Errorf("%s was looked up", name)
		}
		if name == "flip.test" && count != 2 { // one plain request, one tunnel
			t.Errorf("%s was looked up %d times", name, count)
		}
	}
}

// A server is every host that an attacker asks for.
type server struct {
	mu      sync.Mutex
	seen    []string // "HOST PATH"
	values  map[string]string
	roots   *x509.CertPool
	resolve map[string]string
}

func newServer(t *testing.T) *server {
	hosts := []string{"api.github.com", "github.com", "open.test", "paths.test", "echo.test", "evil.test", "bad.test"}
	s := &server{values: map[string]string{}, roots: x509.NewCertPool(), resolve: map[string]string{}}
	tlsServer := httptest.NewUnstartedServer(s)
	tlsServer.TLS = &tls.Config{Certificates: []tls.Certificate{s.certificate(t, hosts)}}
	tlsServer.EnableHTTP2 = true
	tlsServer.Config.ErrorLog = log.New(io.Discard, "", 0)
	tlsServer.StartTLS()
	t.Cleanup(tlsServer.Close)
	plain := httptest.NewServer(s)
	t.Cleanup(plain.Close)
	for _, h := range hosts {
		s.resolve[h] = tlsServer.Listener.Addr().String()
		s.resolve[h+":80"] = plain.Listener.Addr().String()
	}
	return s
}

func (s *server) certificate(t *testing.T, hosts []string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "servers of the attack test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), DNSNames: hosts, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s.roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (s *server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	io.Copy(io.Discard, req.Body)
	name, _, _ := strings.Cut(req.Host, ":")
	got := strings.Join(slices.Concat(req.Header["Authorization"], req.Header["X-Key"]), " ")
	s.mu.Lock()
	s.seen = append(s.seen, name+" "+req.RequestURI)
	s.values[name] += got + "\n"
	s.mu.Unlock()
	switch req.URL.Path {
	case "/echo":
		w.Header()["X-Echo"] = []string{got, "a, " + got}
		w.Header().Set("Set-Cookie", "k="+req.Header.Get("X-Key"))
	case "/echo-name":
		w.Header().Set("X-"+strings.TrimSpace(got), "1")
	case "/wait": // until the client gives up
		<-req.Context().Done()
		return
	case "/echo-body":
		w.Header().Set("Content-Length", fmt.Sprint(len(got)))
		io.WriteString(w, got)
		return
	case "/echo-pieces":
		for i := range got {
			w.Write([]byte{got[i]})
			w.(http.Flusher).Flush()
		}
	case "/echo-gzip":
		if strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			io.WriteString(z, got)
			return
		}
		io.WriteString(w, got)
	case "/echo-trailer":
		w.Header().Set("Trailer", "X-Echo")
		defer w.Header().Set("X-Echo", got)
	case "/redirect":
		http.Redirect(w, req, "https://evil.test/steal", http.StatusFound)
		return
	}
	fmt.Fprintf(w, "SERVER %s %s\n", name, req.RequestURI)
}

func (s *server) sawValue(name, value string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.values[name], value)
}

func (s *server) looksClean(t *testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.seen {
		name, uri, _ := strings.Cut(line, " ")
		switch {
		case name == "evil.test", name == "bad.test", strings.Contains(uri, "smuggled"), name == "paths.test" && !strings.HasPrefix(uri, "/repos/a/"):
			t.Errorf("a server was asked for %s", line)
		}
	}
	for name, got := range s.values {
		for value, at := range map[string][]string{githubValue: {"api.github.com", "github.com"}, customValue: {"echo.test"}} {
			if strings.Contains(got, value) && !slices.Contains(at, name) {
				t.Errorf("%s got a credential of %v", name, at)
			}
		}
		if strings.Contains(got, "ghp_") || strings.Contains(got, "sbx-cs-") || strings.Contains(got, githubPlaceholder) {
			t.Errorf("%s got %q", name, got)
		}
	}
}
