package conformance

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Names that lead to the upstream server: one that is bound to nothing, one that custom secrets are bound to, one of the
// built-in github service's, and one with rules for paths.
const (
	nameOpen   = "open.sbxpair.example"
	nameCustom = "custom.sbxpair.example"
	nameGitHub = "api.github.com"
	namePath   = "path.sbxpair.example"
)

func names() []string { return []string{nameOpen, nameCustom, nameGitHub, namePath} }

// recorder answers every request and keeps the last one.
type recorder struct {
	mu   sync.Mutex
	last *http.Request
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = req.Clone(context.WithoutCancel(req.Context()))
	r.last.Host = req.Host
	io.WriteString(w, "reached\n")
}

// take returns the last request, if there was one since the last take.
func (r *recorder) take() *http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.last = nil }()
	return r.last
}

// server is an HTTP server on loopback.
type server struct {
	recorder
	http *http.Server
	done chan struct{}
	addr string
}

func (s *server) start(config *tls.Config) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.addr, s.done = l.Addr().String(), make(chan struct{})
	if config != nil {
		l = tls.NewListener(l, config)
	}
	s.http = &http.Server{Handler: &s.recorder, ReadHeaderTimeout: 10 * time.Second, ErrorLog: nil}
	go func() {
		defer close(s.done)
		s.http.Serve(l) // ends with close
	}()
	return nil
}

func (s *server) close() {
	s.http.Close()
	<-s.done
}

// hostServer is what a sandbox reaches as host.docker.internal.
type hostServer struct{ server }

func startHost() (*hostServer, error) {
	s := &hostServer{}
	return s, s.start(nil)
}

func (s *hostServer) port() string {
	_, port, _ := net.SplitHostPort(s.addr)
	return port
}

// upstreamServer stands for the outside, with a certificate that only sandboxes led to it trust.
type upstreamServer struct {
	server
	caFile string
}

func startUpstream(caFile string) (*upstreamServer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sbxpair conformance"}, DNSNames: names(),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return nil, err
	}
	s := &upstreamServer{caFile: caFile}
	return s, s.start(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12})
}

// flags are those of create that lead a sandbox here.
func (s *upstreamServer) flags() []string {
	if s == nil {
		return nil
	}
	var list []string
	for _, name := range names() {
		list = append(list, "--resolve", name+"="+s.addr)
	}
	return append(list, "--upstream-ca", s.caFile)
}

// carries reports whether any header of the request has the text.
func carries(r *http.Request, text string) bool {
	if r == nil {
		return false
	}
	for _, values := range r.Header {
		if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, text) }) {
			return true
		}
	}
	return false
}
