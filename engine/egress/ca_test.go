package egress

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

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
