package github

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// world is a github sandbox as the tests see it: commands run on this machine, and the only way out is a proxy that
// leads every host name to one TLS server on loopback. The server's certificate comes from a CA that only the sandbox trusts.
type world struct {
	*hostRunner
	server *httptest.Server
	// blocked hosts get the proxy's block page inside TLS, as sbx does it; refused ones get 403 to CONNECT.
	blocked, refused sync.Map
	connects         atomic.Int64
}

func newWorld(t *testing.T, h http.Handler) *world {
	t.Helper()
	for _, tool := range []string{"curl", "git", "sh"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing", tool)
			}
			t.Skipf("%s is missing", tool)
		}
	}
	w := &world{}
	cert, caFile := testCA(t)
	outer := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := strings.Cut(r.Host, ":")
		if page, ok := w.blocked.Load(host); ok {
			rw.Header().Set("Content-Type", "text/plain")
			rw.WriteHeader(http.StatusForbidden)
			io.WriteString(rw, page.(string))
			return
		}
		h.ServeHTTP(rw, r)
	})
	w.server = httptest.NewUnstartedServer(outer)
	w.server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	w.server.Config.ErrorLog = nil
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	proxy := w.proxy(t)
	home := t.TempDir()
	w.hostRunner = &hostRunner{env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + t.TempDir(),
		"HTTPS_PROXY=" + proxy, "https_proxy=" + proxy,
		"SSL_CERT_FILE=" + caFile, "CURL_CA_BUNDLE=" + caFile, "GIT_SSL_CAINFO=" + caFile,
		"GH_TOKEN=gho_sbxproxymanaged000000000000000000000",
	}}
	return w
}

// proxy is a CONNECT proxy that leads everything to the server.
func (w *world) proxy(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.connects.Add(1)
		host, _, _ := strings.Cut(r.Host, ":")
		if _, ok := w.refused.Load(host); ok || r.Method != http.MethodConnect {
			http.Error(rw, "no", http.StatusForbidden)
			return
		}
		up, err := net.Dial("tcp", w.server.Listener.Addr().String())
		if err != nil {
			http.Error(rw, "no", http.StatusBadGateway)
			return
		}
		down, buf, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			up.Close()
			return
		}
		io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { io.Copy(up, buf); up.(*net.TCPConn).CloseWrite() }()
		go func() { io.Copy(down, up); down.Close(); up.Close() }()
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return "http://" + l.Addr().String()
}

// testCA makes a CA and a server certificate for the hosts of the tests.
func testCA(t testing.TB) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "github test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "api.github.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"api.github.com", "github.com", "ghe.example.test", "octo.ghe.com", "api.octo.ghe.com"},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, caDER}, PrivateKey: leafKey}, file
}

// hostRunner runs a spec's command on this machine, with nothing of the test's own environment.
type hostRunner struct {
	env   []string
	execs atomic.Int64
	live  atomic.Int64
	mu    sync.Mutex
	argvs [][]string
	envs  [][]sbx.EnvVar
	kill  context.CancelFunc // of the running exec
	fail  error              // the next exec fails with it
}

func (r *hostRunner) Exec(ctx context.Context, spec sbx.ExecSpec) (sbx.ExecResult, error) {
	r.execs.Add(1)
	r.live.Add(1)
	defer r.live.Add(-1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.argvs, r.envs = append(r.argvs, spec.Argv), append(r.envs, spec.Env)
	r.kill = cancel
	fail := r.fail
	r.fail = nil
	r.mu.Unlock()
	if fail != nil {
		return sbx.ExecResult{}, fail
	}
	if spec.Timeout > 0 {
		var c context.CancelFunc
		ctx, c = context.WithTimeout(ctx, spec.Timeout)
		defer c()
	}
	cmd := exec.CommandContext(ctx, spec.Argv[0], spec.Argv[1:]...)
	cmd.Env = append([]string{}, r.env...)
	for _, e := range spec.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Stdin, spec.Stdout, spec.Stderr
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &errs
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	// Stdin goes through a pipe of our own, so that an end of the command does not wait for a reader that gives nothing.
	if spec.Stdin != nil {
		pipe, err := cmdStdin(cmd)
		if err != nil {
			return sbx.ExecResult{}, err
		}
		go func() { io.Copy(pipe, spec.Stdin); pipe.Close() }()
	}
	err := cmd.Run()
	res := sbx.ExecResult{Stdout: out.Bytes(), Stderr: errs.Bytes()}
	if cmd.ProcessState != nil {
		res.Code = cmd.ProcessState.ExitCode()
	}
	if ctx.Err() != nil {
		return res, fmt.Errorf("exec: %w", ctx.Err())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return res, err
	}
	return res, nil
}

func cmdStdin(cmd *exec.Cmd) (io.WriteCloser, error) {
	cmd.Stdin = nil
	return cmd.StdinPipe()
}

// killRunning ends the running exec, as a sandbox that stops does.
func (r *hostRunner) killRunning() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kill != nil {
		r.kill()
	}
}
