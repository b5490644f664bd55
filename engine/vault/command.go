package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sbxpair/sbxpair/secrets"
)

// ErrCommand matches every error about a credential command: one we cannot run, or one that failed or printed nothing.
var ErrCommand = errors.New("credential command")

const (
	// commandTimeout bounds one run of a credential command.
	commandTimeout = 10 * time.Second
	// maxValue bounds a credential, in bytes.
	maxValue = 64 << 10
)

// splitCommand cuts a command line into words as a shell does, with single and double quotes and backslashes, and
// nothing else: no variable, glob or substitution is expanded. The first word must be an absolute path, because the
// command runs in an empty folder. The error matches [ErrCommand].
func splitCommand(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote, escaped := false, rune(0), false
	for _, r := range line {
		switch {
		case r == 0 || r == '\n' || r == '\r':
			return nil, fmt.Errorf("%w: control character", ErrCommand)
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, in = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, in = r, true
		case r == ' ' || r == '\t':
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("%w: unfinished quote", ErrCommand)
	}
	if in {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrCommand)
	}
	if !filepath.IsAbs(words[0]) {
		return nil, fmt.Errorf("%w: %q is not an absolute path", ErrCommand, filepath.Base(words[0]))
	}
	return words, nil
}

// runCommand runs the command in a fresh empty folder, with env over this process's own variables, and returns what it prints
// on standard output. Its arguments and output are in no error: either may be the value.
func runCommand(ctx context.Context, argv, env []string) (secrets.Value, error) {
	name := filepath.Base(argv[0])
	dir, err := os.MkdirTemp("", "sbx-credential-")
	if err != nil {
		return secrets.Value{}, fmt.Errorf("%w %s: %w", ErrCommand, name, err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out := limited{max: maxValue}
	cmd.Stdout = &out
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return secrets.Value{}, fmt.Errorf("%w %s: %w", ErrCommand, name, ctx.Err())
	case out.over:
		return secrets.Value{}, fmt.Errorf("%w %s: printed more than %d bytes", ErrCommand, name, maxValue)
	case err != nil:
		return secrets.Value{}, fmt.Errorf("%w %s: %w", ErrCommand, name, err)
	}
	v := secrets.New(out.buf.String())
	if v.IsZero() {
		return secrets.Value{}, fmt.Errorf("%w %s: printed nothing", ErrCommand, name)
	}
	return v, nil
}

// limited keeps at most max bytes and takes the rest, so that the writer does not block.
type limited struct {
	buf  bytes.Buffer
	max  int
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	room := l.max - l.buf.Len()
	if len(p) > room {
		l.over = true
		l.buf.Write(p[:room])
		return len(p), nil
	}
	return l.buf.Write(p)
}
