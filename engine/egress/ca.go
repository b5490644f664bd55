package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/policy"
)

// ErrCA matches the errors of a CA that cannot be used.
var ErrCA = errors.New("proxy CA")

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 7 * 24 * time.Hour
	// clockSkew is how far behind a sandbox's clock may be.
	clockSkew = time.Hour
	// maxLeaves bounds the cache of leaf certificates.
	maxLeaves = 1024
)

// A CA signs the certificates that the proxy shows to sandboxes. It belongs to one state folder, and its key never
// leaves it. It is safe for concurrent use.
type CA struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	pem     []byte
	leafKey *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[policy.Host]*tls.Certificate
}

// LoadOrCreateCA returns the CA of a state folder. Key and certificate are in one file, mode 0600; it appears whole or
// not at all, and of several processes that create it at once all get the same. The error matches [ErrCA].
func LoadOrCreateCA(dir string) (*CA, error) {
	path := filepath.Join(dir, "proxy-ca.pem")
	ca, err := loadCA(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return ca, err
	}
	if err := createCA(dir, path); err != nil {
		return nil, fmt.Errorf("%w: create: %w", ErrCA, err)
	}
	return loadCA(path)
}

// CertPEM returns the certificate to trust, without the key.
func (c *CA) CertPEM() []byte { return bytes.Clone(c.pem) }

func loadCA(path string) (*CA, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCA, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%w: %s must be a regular file that only its owner can read (mode %v)", ErrCA, path, info.Mode())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCA, err)
	}
	ca := &CA{leaves: map[policy.Host]*tls.Certificate{}}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		switch block.Type {
		case "CERTIFICATE":
			ca.cert, err = x509.ParseCertificate(block.Bytes)
			ca.pem = pem.EncodeToMemory(block)
		case "EC PRIVATE KEY":
			ca.key, err = x509.ParseECPrivateKey(block.Bytes)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s is damaged", ErrCA, path)
		}
	}
	switch {
	case ca.cert == nil || ca.key == nil || !ca.key.PublicKey.Equal(ca.cert.PublicKey):
		return nil, fmt.Errorf("%w: %s is damaged", ErrCA, path)
	case time.Now().After(ca.cert.NotAfter):
		return nil, fmt.Errorf("%w: %s expired on %s; remove it to get a new one", ErrCA, path, ca.cert.NotAfter.Format(time.DateOnly))
	}
	if ca.leafKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCA, err)
	}
	return ca, nil
}

func createCA(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "sbx-local proxy CA", Organization: []string{"sbx-local"}},
		NotBefore:    now.Add(-caLife), // a clock that was ahead when this was made is put right one day
		NotAfter:     now.Add(caLife),
		KeyUsage:     x509.KeyUsageCertSign,
		// What it signs is good for servers and nothing else. Names are not constrained: a denied host, any host, is answered
		// with a page inside TLS, and what running programs trust cannot change when a credential is bound to a new host.
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".proxy-ca.*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...))
	if err == nil {
		err = tmp.Sync()
	}
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	// A link fails where a rename would replace the CA that another process has just made.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
}

// leaf returns a certificate for host, from the cache while it is fresh.
func (c *CA) leaf(host policy.Host) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	// The clock can have been set back since.
	if have := c.leaves[host]; have != nil && now.Before(have.Leaf.NotAfter.Add(-leafLife/2)) && now.After(have.Leaf.NotBefore) {
		return have, nil
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	name := host.String()
	if len(name) <= 64 { // the limit of a common name; clients read the alternative name
		tmpl.Subject.CommonName = name
	}
	if a := host.Addr(); a.IsValid() {
		tmpl.IPAddresses = []net.IP{a.AsSlice()}
	} else {
		tmpl.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, c.cert, c.leafKey.Public(), c.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if len(c.leaves) >= maxLeaves {
		clear(c.leaves)
	}
	cert := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: c.leafKey, Leaf: parsed}
	c.leaves[host] = cert
	return cert, nil
}
