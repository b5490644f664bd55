package settings

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/statefile"
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
		{keySSHAgent, "true", ErrValue}, {keyUDP, "1", ErrValue}, {keySSHAgent, "maybe", ErrValue}, {keySSHAgent, "false", nil}, {keyDisk, "40", nil},
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
	if list, err := s.List(); err != nil || len(list) != 5 || list[0].Key != keyAutoStop {
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
