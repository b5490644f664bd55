package vault_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/secrets"
)

// drawer is a helper that keeps items as files in a folder.
func drawer(t *testing.T, script string) (vault.HelperKeyring, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "helper")
	if script == "" {
		script = "cd " + dir + "\ncase $1 in set) cat >$2;; get) cat $2;; rm) rm -f $2;; esac\n"
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return vault.HelperKeyring{Argv: []string{path}}, dir
}

func items(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "secret-*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A value that is kept in the keyring is in no file of the store, is read back as it was, and goes with its row.
func TestKeyring(t *testing.T) {
	helper, kept := drawer(t, "")
	state := t.TempDir()
	s := vault.Open(state).WithKeyring(helper)
	put := func(sandbox, value string) {
		t.Helper()
		err := s.Set(t.Context(), vault.ServiceSecret{Service: "github", Sandbox: sandbox, Secret: vault.Secret{Value: secrets.New(value), Keyring: true}, Force: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("", canary)
	put("box", "first\n\n\xff") // one line end goes, at the door
	put("box", canary+"\n\xff")
	if got := values(t, s, "box")["service github"]; got != canary+"\n\xff" {
		t.Errorf("read back %q", got)
	}
	if got := items(t, kept); len(got) != 2 {
		t.Errorf("the keyring holds %v: what was replaced stays", got)
	}
	file, err := os.ReadFile(filepath.Join(state, "secrets.json"))
	if err != nil || strings.Contains(string(file), canary[:10]) || strings.Contains(string(file), `"value"`) {
		t.Errorf("the file holds %s, %v", file, err)
	}
	if list, err := s.List(vault.Filter{}); err != nil || list.Secrets[0].Secret != "(keyring)" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, _, err := s.SetCustom(t.Context(), vault.CustomSecret{Sandbox: "box", Hosts: []string{"a.test"}, Secret: vault.Secret{Value: secrets.New("custom-value"), Keyring: true}}); err != nil {
		t.Fatal(err)
	}
	if got := items(t, kept); len(got) != 3 {
		t.Errorf("the keyring holds %v", got)
	}
	// A row that is refused leaves nothing in the keyring either.
	err = s.Set(t.Context(), vault.ServiceSecret{Service: "github", Secret: vault.Secret{Value: secrets.New("another"), Keyring: true}})
	if got := items(t, kept); !errors.Is(err, vault.ErrExists) || len(got) != 3 {
		t.Errorf("%v, the keyring holds %v", err, got)
	}
	if err := s.DropScope(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if got := items(t, kept); len(got) != 1 {
		t.Errorf("after DropScope the keyring holds %v", got)
	}
	// Another store without a keyring says so, and is not silent about what it cannot remove.
	other := vault.Open(state)
	bindings, err := other.Bindings("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bindings[0].Value(t.Context()); !errors.Is(err, vault.ErrKeyring) {
		t.Errorf("without a keyring: %v", err)
	}
	if err := s.Reset(t.Context()); err != nil || len(items(t, kept)) != 0 {
		t.Errorf("Reset: %v, the keyring holds %v", err, items(t, kept))
	}
}

func TestKeyringFails(t *testing.T) {
	broken, _ := drawer(t, "echo 'error: no session bus' >&2; exit 1\n")
	hangs, _ := drawer(t, "sleep 600 & sleep 600\n")
	hangs.Timeout = 100 * time.Millisecond
	for name, tt := range map[string]struct {
		keyring vault.Keyring
		words   string
		also    error
	}{
		"none":    {nil, "not set up", nil},
		"broken":  {broken, "system keyring: no session bus", nil},
		"hangs":   {hangs, "no answer within 100ms", context.DeadlineExceeded},
		"missing": {vault.HelperKeyring{Argv: []string{"/no/such/helper"}}, "no such file", os.ErrNotExist},
	} {
		s := vault.Open(t.TempDir())
		if tt.keyring != nil {
			s.WithKeyring(tt.keyring)
		}
		start := time.Now()
		err := s.Set(t.Context(), vault.ServiceSecret{Service: "github", Secret: vault.Secret{Value: secrets.New(canary), Keyring: true}})
		if !errors.Is(err, vault.ErrKeyring) || !strings.Contains(err.Error(), tt.words) || tt.also != nil && !errors.Is(err, tt.also) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", name, err)
		}
		if time.Since(start) > 8*time.Second {
			t.Errorf("%s: took %v", name, time.Since(start))
		}
		if got := values(t, s, ""); len(got) != 0 { // nothing is stored in its place
			t.Errorf("%s: stored %v", name, got)
		}
	}
}

func TestRefCommand(t *testing.T) {
	const arn = "arn:aws-cn:secretsmanager:cn-north-1:123456789012:secret:team/key-AbCdEf"
	for ref, want := range map[string][]string{
		"op://team/github/token":             {"op", "read", "--no-newline", "op://team/github/token"},
		"op://team/github/part/token":        {"op", "read", "--no-newline", "op://team/github/part/token"},
		arn:                                  {"aws", "secretsmanager", "get-secret-value", "--region", "cn-north-1", "--secret-id", arn, "--query", "SecretString", "--output", "text"},
		"op://team/github":                   nil,
		"op://a/b/c d":                       nil,
		"op://a/b/c'":                        nil,
		"op://a/b/c\n":                       nil,
		"arn:aws:iam::1:user/x":              nil,
		"arn:aws:secretsmanager::1:secret:x": nil,
		"vault://a/b":                        nil,
		"":                                   nil,
	} {
		program, args, _, err := vault.RefCommand(ref)
		got := append([]string{program}, args...)
		if want == nil && !errors.Is(err, vault.ErrRef) || want != nil && (err != nil || !slices.Equal(got, want)) {
			t.Errorf("%q: %q, %v; want %q", ref, got, err, want)
		}
	}
}
