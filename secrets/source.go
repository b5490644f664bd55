package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/zalando/go-keyring"
)

// ErrMissing matches every error that says a credential is not there.
var ErrMissing = errors.New("credential missing")

// ErrUnfit matches every error that says a credential is there and cannot be the right one.
var ErrUnfit = errors.New("credential unfit")

// commandTimeout bounds a credential command.
const commandTimeout = 30 * time.Second

// Source says where a credential comes from; exactly one field is set.
type Source struct {
	Env     string   `yaml:"env,omitempty" json:"env,omitempty"`         // name of an environment variable
	File    string   `yaml:"file,omitempty" json:"file,omitempty"`       // path of a file that only its owner may read
	Command []string `yaml:"command,omitempty" json:"command,omitempty"` // argv of a program that prints it on standard output
	Keyring string   `yaml:"keyring,omitempty" json:"keyring,omitempty"` // SERVICE/ACCOUNT in the system's own store of secrets
	GH      string   `yaml:"gh,omitempty" json:"gh,omitempty"`           // host whose login GitHub's gh holds, such as github.com
}

// named counts the sources that are named.
func (s Source) named() int {
	n := 0
	for _, is := range []bool{s.Env != "", s.File != "", len(s.Command) > 0, s.Keyring != "", s.GH != ""} {
		if is {
			n++
		}
	}
	return n
}

// IsZero reports whether no source is named.
func (s Source) IsZero() bool { return s.named() == 0 }

// Check returns what is wrong with how the source is named. The error matches [ErrUnfit].
func (s Source) Check() error {
	service, account, both := strings.Cut(s.Keyring, "/")
	switch {
	case s.named() != 1:
		return fmt.Errorf("%w: name exactly one of env, file, command, keyring and gh", ErrUnfit)
	case s.Keyring != "" && (!both || service == "" || account == ""):
		return fmt.Errorf("%w: keyring %q is not SERVICE/ACCOUNT", ErrUnfit, s.Keyring)
	case s.GH != "" && !ghHost.MatchString(s.GH):
		return fmt.Errorf("%w: gh %q is not a host name", ErrUnfit, s.GH)
	}
	return nil
}

var ghHost = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)

// String names the source for people: never the value.
func (s Source) String() string {
	switch {
	case s.Env != "":
		return "environment variable " + s.Env
	case s.File != "":
		return "file " + s.File
	case len(s.Command) > 0:
		return "command " + filepath.Base(s.Command[0])
	case s.Keyring != "":
		return "keyring " + s.Keyring
	case s.GH != "":
		return "gh's login at " + s.GH
	}
	return "nowhere"
}

// Resolve fetches the value. lookup reads the environment; it is os.LookupEnv outside of tests. The error matches
// [ErrMissing] if there is nothing or it is empty, and [ErrUnfit] if a file is readable by others.
func (s Source) Resolve(ctx context.Context, lookup func(string) (string, bool)) (Value, error) {
	v, err := s.resolve(ctx, lookup)
	if err != nil {
		return Value{}, err
	}
	if v.IsZero() {
		return Value{}, fmt.Errorf("%w: %s is empty", ErrMissing, s)
	}
	return v, nil
}

func (s Source) resolve(ctx context.Context, lookup func(string) (string, bool)) (Value, error) {
	switch {
	case s.Env != "":
		text, ok := lookup(s.Env)
		if !ok {
			return Value{}, fmt.Errorf("%w: %s is not set", ErrMissing, s)
		}
		return New(text), nil
	case s.File != "":
		return readFile(s.File)
	case len(s.Command) > 0:
		return runCommand(ctx, s.Command)
	case s.Keyring != "":
		return readKeyring(ctx, s.Keyring)
	case s.GH != "":
		// With one of these set gh prints that, and not the login that was asked for.
		v, err := runCommand(ctx, []string{"gh", "auth", "token", "--hostname", s.GH}, "GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
			err = fmt.Errorf("%w (to log in: gh auth login --hostname %s)", err, s.GH)
		}
		return v, err
	}
	return Value{}, fmt.Errorf("%w: no source is configured", ErrMissing)
}

// maxCredential bounds what a file or a command has for a credential, in bytes.
const maxCredential = 64 << 10

func readFile(path string) (Value, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Value{}, fmt.Errorf("%w: file %s does not exist", ErrMissing, path)
	case err != nil:
		return Value{}, fmt.Errorf("read credential: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxCredential:
		return Value{}, fmt.Errorf("%w: %s is not a plain file of at most %d bytes", ErrUnfit, path, maxCredential)
	case info.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/':
		return Value{}, fmt.Errorf("%w: file %s can be read by others (mode %04o); run: chmod 600 %[2]s", ErrUnfit, path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Value{}, fmt.Errorf("read credential: %w", err)
	}
	return New(string(text)), nil
}

// runCommand runs argv without the variables in less.
func runCommand(ctx context.Context, argv []string, less ...string) (Value, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(less, name)
	})
	out := &bounded{stop: cancel}
	cmd.Stdout = out // standard error is dropped: a helper may echo the value there
	err := cmd.Run()
	switch {
	case out.over:
		return Value{}, fmt.Errorf("%w: command %s prints more than %d bytes", ErrUnfit, filepath.Base(argv[0]), maxCredential)
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
		fallthrough
	case err != nil:
		return Value{}, fmt.Errorf("%w: command %s: %w", ErrMissing, filepath.Base(argv[0]), err)
	}
	return New(out.text.String()), nil
}

// bounded keeps what a command prints, and stops it when that cannot be a credential any more.
type bounded struct {
	text bytes.Buffer
	over bool
	stop func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.over = b.over || b.text.Len()+len(p) > maxCredential; b.over {
		b.stop()
		return len(p), nil
	}
	return b.text.Write(p)
}

// CheckToken refuses a token that by its shape alone cannot work on a repository of GitHub. what names it in the error,
// which matches [ErrUnfit] and never holds the value.
func CheckToken(v Value, what string) error {
	if err := checkText(v, what); err != nil {
		return err
	}
	switch kind := Classify(v); kind {
	case KindFineGrained, KindClassic, KindOAuth, KindAppUser, KindInstallation:
		return nil
	case KindRefresh:
		return unfit(what, "is a refresh token (ghr_…), which is no credential for calls")
	case KindUnknown:
		return unfit(what, "does not have the shape of a GitHub token")
	default:
		return unfit(what, "is a key of another provider (%s)", kind)
	}
}

// readKeyring asks the system's store of secrets: the macOS keychain, the Windows credential manager, or the Secret
// Service on other systems.
func readKeyring(ctx context.Context, name string) (Value, error) {
	service, account, _ := strings.Cut(name, "/")
	type answer struct {
		text string
		err  error
	}
	// The library takes no context, and a locked store may wait for a person. The channel lets the goroutine end
	// whenever the store answers.
	got := make(chan answer, 1)
	go func() {
		text, err := keyring.Get(service, account)
		got <- answer{text, err}
	}()
	timeout := time.NewTimer(commandTimeout)
	defer timeout.Stop()
	select {
	case a := <-got:
		switch {
		case errors.Is(a.err, keyring.ErrNotFound):
			return Value{}, fmt.Errorf("%w: keyring has no %s", ErrMissing, name)
		case a.err != nil:
			return Value{}, fmt.Errorf("%w: keyring %s: %w", ErrMissing, name, a.err)
		}
		return New(a.text), nil
	case <-ctx.Done():
		return Value{}, ctx.Err()
	case <-timeout.C:
		return Value{}, fmt.Errorf("%w: keyring %s: no answer in %s; is it locked?", ErrMissing, name, commandTimeout)
	}
}

// checkText refuses what is no credential of any kind.
func checkText(v Value, what string) error {
	if strings.ContainsFunc(v.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return unfit(what, "holds white space, control characters or others that no token has; was more than the token copied, or is there a byte order mark before it?")
	}
	if Classify(v) == KindPlaceholder {
		return unfit(what, "is a placeholder, not a credential; is this shell itself inside a sandbox?")
	}
	return nil
}
