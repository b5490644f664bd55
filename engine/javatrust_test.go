package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/egress"
)

// Java's store of what it trusts holds each certificate of the bundle once. Where there is a keytool, it reads it.
func TestJavaKeyStore(t *testing.T) {
	var bundle []byte
	for range 3 {
		ca, err := egress.LoadOrCreateCA(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		bundle = append(append(bundle, "# a comment\n"...), ca.CertPEM()...)
	}
	bundle = append(bundle, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"...)
	store := javaKeyStore(bundle)
	if !bytes.HasPrefix(store, []byte{0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2}) || binary.BigEndian.Uint32(store[8:]) != 3 {
		t.Errorf("begins with % x", store[:12])
	}
	if empty := javaKeyStore(nil); len(empty) != 12+20 {
		t.Errorf("without certificates it has %d bytes", len(empty))
	}
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		t.Skip("no keytool here to read it; the format's head was checked")
	}
	path := filepath.Join(t.TempDir(), "cacerts")
	if err := os.WriteFile(path, store, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, keytool, "-list", "-keystore", path, "-storepass", javaPassword).CombinedOutput()
	if err != nil || strings.Count(string(out), "trustedCertEntry") != 3 {
		t.Errorf("%v: %s", err, out)
	}
}
