package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/statefile"
	"github.com/sbxpair/sbxpair/engine/upstream"
)

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s, other := Open(dir), Open(dir)
	if d, err := s.AutoStop(); err != nil || d != 0 {
		t.Errorf("auto-stop is %v, %v; want off", d, err)
	}
	if got, err := s.Set(t.Context(), keyAutoStop, "30"); err != nil || got.Value != 30 || got.Source != "user" || got.Default != 0 {
		t.Errorf("set: %+v, %v", got, err)
	}
	if d, err := other.AutoStop(); err != nil || d != 30*time.Second {
		t.Errorf("another process sees %v, %v", d, err)
	}
	if got, err := other.Unset(t.Context(), keyAutoStop); err != nil || got.Value != 0 || got.Source != "default" {
		t.Errorf("unset: %+v, %v", got, err)
	}
	for _, tt := range []struct {
		key, value string
		want       error
	}{
		{"nothing", "1", ErrUnknown}, {keyAutoStop, "-1", ErrValue}, {keyAutoStop, "soon", ErrValue}, {keyPids, "1", ErrValue},
		{keySSHAgent, "true", ErrValue}, {keyUDP, "1", ErrValue}, {keySSHAgent, "maybe", ErrValue}, {keySecrets, "drawer", ErrValue}, {keySecrets, "keyring", nil}, {keySSHAgent, "false", nil}, {keyDisk, "40", nil},
	} {
		if _, err := s.Set(t.Context(), tt.key, tt.value); !errors.Is(err, tt.want) {
			t.Errorf("set %s %s: %v, want %v", tt.key, tt.value, err, tt.want)
		}
	}
	if _, err := s.Unset(t.Context(), "nothing"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unset of nothing: %v", err)
	}
	if n, err := s.DiskGiB(); err != nil || n != 40 {
		t.Errorf("disk is %d, %v", n, err)
	}
	if list, err := s.List(); err != nil || len(list) != 10 || list[0].Key != keyAutoStop {
		t.Errorf("list: %+v, %v", list, err)
	}
	for text, want := range map[string]error{"{": statefile.ErrCorrupt, `{"limits.pids":"many"}`: ErrValue} { // nothing is assumed in its place
		if err := os.WriteFile(filepath.Join(dir, "settings.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pids(); !errors.Is(err, want) {
			t.Errorf("file %q: %v, want %v", text, err, want)
		}
	}
}

// Proxies come back whole for those who need them, and are shown without their password.
func TestProxies(t *testing.T) {
	s := Open(t.TempDir())
	if p, err := s.Proxies(); err != nil || p != (upstream.Proxies{}) {
		t.Errorf("none: %+v, %v", p, err)
	}
	for _, kv := range [][2]string{{keyProxy, "http://me:s3cret@all.corp:3128"}, {keyNoProxy, ".intern.test"}} {
		got, err := s.Set(t.Context(), kv[0], kv[1])
		if err != nil || strings.Contains(fmt.Sprint(got), "s3cret") {
			t.Errorf("set: %+v, %v", got, err)
		}
	}
	if p, err := s.Proxies(); err != nil || p.HTTP != "http://me:s3cret@all.corp:3128" || p.HTTPS != p.HTTP || p.NoProxy != ".intern.test" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := s.Set(t.Context(), keyBoxProxy, "socks5://box.corp"); err != nil {
		t.Error(err)
	}
	if p, err := s.Proxies(); err != nil || p.HTTPS != "socks5://box.corp" || p.NoProxy != ".intern.test" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"ftp://s3cret", "http://", "http://[s3cret"} {
		if _, err := s.Set(t.Context(), keyProxy, bad); !errors.Is(err, ErrValue) || strings.Contains(err.Error(), "s3cret") && bad != "ftp://s3cret" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
