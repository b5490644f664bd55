package vault

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sbxpair/sbxpair/secrets"
)

// ErrKeyring matches the errors of a keyring: one that is not there, is locked, or does not answer.
var ErrKeyring = errors.New("system keyring")

// keyringTimeout bounds one call: a locked keyring asks a person, who may not be there.
const keyringTimeout = 10 * time.Second

// A Keyring keeps values outside the store's file, by a name that the store makes up.
type Keyring interface {
	Set(ctx context.Context, item string, value secrets.Value) error
	Get(ctx context.Context, item string) (secrets.Value, error)
	// Remove forgets an item; that there is none is success.
	Remove(ctx context.Context, item string) error
}

// A HelperKeyring reaches the system's keyring by a process of its own for each call, which is killed after Timeout:
// what speaks to a session bus may otherwise wait for ever. The process gets "set", "get" or "rm" and the item as its last
// arguments, and the value by standard input or output. Errors match [ErrKeyring].
type HelperKeyring struct {
	Argv    []string
	Timeout time.Duration // 0: ten seconds
}

// Set implements [Keyring].
func (h HelperKeyring) Set(ctx context.Context, item string, value secrets.Value) error {
	_, err := h.run(ctx, strings.NewReader(value.Reveal()), "set", item)
	return err
}

// Get implements [Keyring].
func (h HelperKeyring) Get(ctx context.Context, item string) (secrets.Value, error) {
	out, err := h.run(ctx, nil, "get", item)
	if err != nil {
		return secrets.Value{}, err
	}
	v := secrets.New(out + "\n") // New takes one line end off
	if v.IsZero() {
		return secrets.Value{}, fmt.Errorf("%w: the item is empty", ErrKeyring)
	}
	return v, nil
}

// Remove implements [Keyring].
func (h HelperKeyring) Remove(ctx context.Context, item string) error {
	_, err := h.run(ctx, nil, "rm", item)
	return err
}

func (h HelperKeyring) run(ctx context.Context, in io.Reader, args ...string) (string, error) {
	limit := cmp.Or(h.Timeout, keyringTimeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	argv := slices.Concat(h.Argv, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Dir = in, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, words := limited{max: maxValue}, limited{max: 512}
	cmd.Stdout, cmd.Stderr = &out, &words
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%w: no answer within %v: %w", ErrKeyring, limit, ctx.Err())
	case err != nil && words.buf.Len() > 0:
		return "", fmt.Errorf("%w: %s", ErrKeyring, bytes.TrimPrefix(bytes.TrimSpace(words.buf.Bytes()), []byte("error: ")))
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrKeyring, err)
	case out.over:
		return "", fmt.Errorf("%w: the item is longer than %d bytes", ErrKeyring, maxValue)
	}
	return out.buf.String(), nil
}

// keep puts a value that is to be kept in the keyring there, and notes under which name.
func (s *Store) keep(ctx context.Context, sec Secret, v *storedValue) error {
	if !sec.Keyring || sec.Value.IsZero() {
		return nil
	}
	if s.keyring == nil {
		return fmt.Errorf("%w: not set up", ErrKeyring)
	}
	item := newItem()
	if err := s.keyring.Set(ctx, item, sec.Value); err != nil {
		return err
	}
	v.Value, v.Item = nil, item
	return nil
}

// forget removes from the keyring what the store needs no more.
func (s *Store) forget(ctx context.Context, gone ...storedValue) error {
	var errs []error
	for _, v := range gone {
		switch {
		case v.Item == "":
		case s.keyring == nil:
			errs = append(errs, fmt.Errorf("%w: not set up", ErrKeyring))
		default:
			errs = append(errs, s.keyring.Remove(ctx, v.Item))
		}
	}
	return errors.Join(errs...)
}
