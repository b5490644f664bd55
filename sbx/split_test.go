package sbx_test

import (
	"context"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// answers is an engine that gives each verb its answer.
type answers map[string]sbx.Result

func (a answers) Run(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
	for _, arg := range c.Args {
		if res, ok := a[arg]; ok {
			return res, nil
		}
	}
	return sbx.Result{Code: 99, Stderr: []byte("error: unknown argv")}, nil
}

// A value that the engine echoes with an escape or a control character in the middle is not put together again.
func TestSplitValueStaysMasked(t *testing.T) {
	value := secrets.New("some-global-value-1234567890")
	for name, between := range map[string]string{"NUL": "\x00", "escape": "\x1b[0m", "carriage return": "\r"} {
		echo := value.Reveal()[:10] + between + value.Reveal()[10:]
		c := sbx.New("sbx", sbx.WithRunner(answers{
			"version": {Stdout: []byte(`{"client":{"version":"v0.47.0"}}`)},
			"set":     {Code: 1, Stderr: []byte("error: cannot store " + echo + "\n")},
		}))
		err := c.SecretSet(t.Context(), sbx.ServiceSecret{Service: "github", Value: value})
		if err == nil || strings.Contains(err.Error(), value.Reveal()) {
			t.Errorf("%s: %v; want an error without the value", name, err)
		}
	}
}

// A command that prints what a daemon's failure looks like, in a sandbox that runs, has failed by itself.
func TestGuestWordsAreTheGuests(t *testing.T) {
	for _, text := range []string{"error: request failed: dial tcp 127.0.0.1:1: connection refused", "Error: request failed: 401 Unauthorized",
		"error: request failed: 500 Internal Server Error: backend unavailable"} {
		c := sbx.New("sbx", sbx.WithRunner(answers{
			"version": {Stdout: []byte(`{"client":{"version":"v0.47.0"}}`)},
			"exec":    {Code: 1, Stderr: []byte(text + "\n")},
			"ls":      {Stdout: []byte(`{"sandboxes":[{"name":"box","agent":"shell","status":"running"}]}`)},
		}))
		if res, err := c.Exec(t.Context(), "box", sbx.ExecSpec{Argv: []string{"curl", "x"}}); err != nil || res.Code != 1 {
			t.Errorf("%s: %d, %v; want the command's own exit code", text, res.Code, err)
		}
	}
}
