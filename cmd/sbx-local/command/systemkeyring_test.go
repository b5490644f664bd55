package command_test

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/enginetest"
	"github.com/sbxpair/sbxpair/engine/vault"
)

// A desktop is a session bus with GNOME's keyring on it, unlocked, in a home of its own.
type desktop struct {
	t      *testing.T
	binary string
	env    []string
}

func newDesktop(t *testing.T) *desktop {
	t.Helper()
	for _, program := range []string{"dbus-run-session", "dbus-send", "gnome-keyring-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%v: scripts/tools installs it", err)
			}
			t.Skipf("%v: apt-get install gnome-keyring dbus", err)
		}
	}
	home := t.TempDir()
	d := &desktop{t: t, binary: enginetest.Binary(t), env: append(os.Environ(), "HOME="+home, "XDG_RUNTIME_DIR="+home, "XDG_DATA_HOME="+filepath.Join(home, "data"),
		"SBX_LOCAL_STATE="+filepath.Join(home, "state"), "DISPLAY=", "DBUS_SESSION_BUS_ADDRESS=")}
	// The bus ends when this process, which holds it, has read to the end.
	bus := exec.Command("dbus-run-session", "--", "sh", "-c", "echo $DBUS_SESSION_BUS_ADDRESS; exec cat")
	bus.Env = d.env
	hold, err := bus.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := bus.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hold.Close(); bus.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	d.env = append(d.env, "DBUS_SESSION_BUS_ADDRESS="+strings.TrimSpace(address))
	keyring := exec.Command("gnome-keyring-daemon", "--unlock", "--components=secrets", "--foreground")
	keyring.Env, keyring.Stdin = d.env, strings.NewReader("a password")
	if err := keyring.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyring.Process.Kill(); keyring.Wait() })
	// Asked for by name, the bus would start a keyring of its own, locked and empty, if ours is not there yet.
	enginetest.Eventually(t, "the keyring is not on the bus", func() bool {
		out, _ := d.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.secrets")
		return strings.Contains(out, "boolean true")
	})
	enginetest.Eventually(t, "the keyring is not unlocked", func() bool {
		out, _ := d.secretService("/org/freedesktop/secrets", "org.freedesktop.DBus.Properties.Get", "string:org.freedesktop.Secret.Service", "string:Collections")
		return strings.Contains(out, "collection/login")
	})
	return d
}

func (d *desktop) secretService(path, method string, args ...string) (string, error) {
	return d.call("org.freedesktop.secrets", path, method, args...)
}

func (d *desktop) call(name, path, method string, args ...string) (string, error) {
	cmd := exec.CommandContext(d.t.Context(), "dbus-send", slices.Concat([]string{"--session", "--print-reply", "--dest=" + name, path, method}, args)...)
	cmd.Env = d.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// sbx runs the command on this desktop.
func (d *desktop) sbx(stdin string, more []string, args ...string) (code int, text string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.binary, args...)
	cmd.Env, cmd.Stdin = slices.Concat(d.env, more), strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		d.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// value is what a sandbox's requests to GitHub get.
func (d *desktop) value(sandbox string) (string, error) {
	d.t.Helper()
	s := vault.Open(filepath.Join(d.state(), "secrets")).WithKeyring(vault.HelperKeyring{Argv: slices.Concat([]string{"env"}, d.env, []string{d.binary, "_keyring"})})
	list, err := s.Bindings(sandbox)
	if err != nil || len(list) != 1 {
		return "", err
	}
	v, err := list[0].Value(d.t.Context())
	if err != nil {
		return "", err
	}
	return v.Reveal(), nil
}

func (d *desktop) state() string {
	for _, v := range slices.Backward(d.env) {
		if dir, ok := strings.CutPrefix(v, "SBX_LOCAL_STATE="); ok {
			return dir
		}
	}
	return ""
}

// Values are kept by the real keyring, and in no file of ours: set, scoped, removed, locked. Where there is no keyring that is
// said, nothing is kept in its place, and the file that one may choose then is its owner's alone.
func TestSystemKeyring(t *testing.T) {
	d := newDesktop(t)
	const global, own, later = "ghp_global0000000000000000000000000000", "ghp_scoped0000000000000000000000000000", "ghp_later00000000000000000000000000000"
	must := func(want string, code int, text string) {
		t.Helper()
		if code != 0 || !strings.Contains(text, want) || strings.Contains(text, "ghp_") {
			t.Fatalf("%d %q, want %q", code, text, want)
		}
	}
	set := func(stdin string, args ...string) (int, string) {
		return d.sbx(stdin, nil, append([]string{"secret", "set", "github", "--force"}, args...)...)
	}
	code, text := d.sbx("", nil, "settings", "set", "secrets.store", "keyring")
	must("keyring", code, text)
	code, text = set(global)
	must("Saved", code, text)
	code, text = set(own, "--sandbox", "box")
	must("Saved", code, text)
	for sandbox, want := range map[string]string{"": global, "box": own, "other": global} {
		if got, err := d.value(sandbox); err != nil || got != want {
			t.Errorf("%q gets %q, %v; want %q", sandbox, got, err, want)
		}
	}
	code, text = d.sbx("", nil, "secret", "ls")
	must("(keyring)", code, text)
	file := filepath.Join(d.state(), "secrets", "secrets.json")
	if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte(`"value"`)) {
		t.Errorf("the file holds %s, %v", data, err)
	}
	code, text = d.sbx("", nil, "secret", "rm", "github", "--sandbox", "box", "--force")
	must("", code, text)
	if got, err := d.value("box"); err != nil || got != global {
		t.Errorf("without its own it gets %q, %v", got, err)
	}
	if out, err := d.secretService("/org/freedesktop/secrets/collection/login", "org.freedesktop.DBus.Properties.Get", "string:org.freedesktop.Secret.Collection", "string:Items"); err != nil || strings.Count(out, "object path") != 1 {
		t.Errorf("the keyring holds %s, %v; want one item", out, err)
	}
	// Locked, with nobody there to unlock it.
	if out, err := d.secretService("/org/freedesktop/secrets", "org.freedesktop.Secret.Service.Lock", "array:objpath:/org/freedesktop/secrets/collection/login"); err != nil {
		t.Fatal(out, err)
	}
	if code, text := set(later); code != 1 || !strings.Contains(text, "error: system keyring: ") || !strings.Contains(text, "try: sbx settings unset secrets.store") || strings.Contains(text, "ghp_") {
		t.Errorf("locked: %d %q", code, text)
	}
	if got, err := d.value(""); err == nil {
		t.Errorf("a locked keyring gives %q", got)
	}
	// Gone.
	none := []string{"DBUS_SESSION_BUS_ADDRESS=", "XDG_RUNTIME_DIR="}
	if code, text := d.sbx(later, none, "secret", "set", "anthropic"); code != 1 || !strings.Contains(text, "no session bus") || strings.Contains(text, "ghp_") {
		t.Errorf("no bus: %d %q", code, text)
	}
	if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte("anthropic")) {
		t.Errorf("the file holds %s, %v", data, err)
	}
	code, text = d.sbx("", none, "settings", "unset", "secrets.store")
	must("", code, text)
	code, text = d.sbx(later, none, "secret", "set", "anthropic")
	must("Saved", code, text)
	for path, want := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): 0o700 | os.ModeDir} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, fi.Mode(), err, want)
		}
	}
}
