package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/policy"
)

func TestCA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	// Several processes that start at once get the same one.
	got := make([]*CA, 8)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			ca, err := LoadOrCreateCA(dir)
			if err != nil {
				t.Error(err)
			}
			got[i] = ca
		})
	}
	wg.Wait()
	for _, ca := range got {
		if !bytes.Equal(ca.CertPEM(), got[0].CertPEM()) {
			t.Error("two authorities for one state")
		}
	}
	ca := got[0]
	if strings.Contains(string(ca.CertPEM()), "PRIVATE") {
		t.Error("the key is in what is handed out")
	}
	if !ca.cert.IsCA || ca.cert.MaxPathLen != 0 || !ca.cert.MaxPathLenZero {
		t.Errorf("constraints: %v %d", ca.cert.IsCA, ca.cert.MaxPathLen)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%v %v", files, err)
	}
	path := filepath.Join(dir, files[0].Name())
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM())
	for _, name := range []string{"example.com", "192.0.2.1", "fd00::1", strings.Repeat("a.", 60) + "example.com"} {
		h, err := policy.ParseHost(name)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := ca.leaf(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if again, _ := ca.leaf(h); again != leaf {
			t.Errorf("%s: not cached", name)
		}
	}
	h, err := policy.ParseHost("back.test")
	if err != nil {
		t.Fatal(err)
	}
	ahead, err := ca.leaf(h)
	if err != nil {
		t.Fatal(err)
	}
	ahead.Leaf.NotBefore = time.Now().Add(time.Hour) // as after the clock was set back
	if again, err := ca.leaf(h); err != nil || again == ahead {
		t.Errorf("a certificate of tomorrow is kept: %v", err)
	}
	signsServersOnly(t, ca, pool)
	for i := range 2 * maxLeaves {
		h, err := policy.ParseHost(fmt.Sprintf("h%d.test", i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ca.leaf(h); err != nil {
			t.Fatal(err)
		}
	}
	if len(ca.leaves) > maxLeaves {
		t.Errorf("%d leaves are kept", len(ca.leaves))
	}

	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreateCA(dir); !errors.Is(err, ErrCA) {
		t.Errorf("a key that others can read: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 300); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreateCA(dir); !errors.Is(err, ErrCA) {
		t.Errorf("a damaged file: %v", err)
	}
}

// signsServersOnly shows what the key is worth to a thief: nothing that it signs is good for clients or code, and no
// authority below it is one. That any name is in, the page of a denied host needs.
func signsServersOnly(t *testing.T, ca *CA, pool *x509.CertPool) {
	t.Helper()
	sign := func(tmpl, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
		t.Helper()
		tmpl.SerialNumber, tmpl.NotBefore, tmpl.NotAfter = big.NewInt(7), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, ca.leafKey.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	every := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageCodeSigning, x509.ExtKeyUsageEmailProtection}
	leaf := sign(&x509.Certificate{DNSNames: []string{"any.test"}, ExtKeyUsage: every}, ca.cert, ca.key)
	for _, usage := range every {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{usage}})
		if server := usage == x509.ExtKeyUsageServerAuth; (err == nil) != server {
			t.Errorf("usage %v: %v", usage, err)
		}
	}
	below := sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, ca.cert, ca.key)
	middle := x509.NewCertPool()
	middle.AddCert(below)
	if _, err := sign(&x509.Certificate{DNSNames: []string{"any.test"}}, below, ca.leafKey).Verify(x509.VerifyOptions{Roots: pool, Intermediates: middle}); err == nil {
		t.Error("an authority below it is one")
	}
}
