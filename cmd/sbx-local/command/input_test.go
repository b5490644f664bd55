package command

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What an unset variable of a script leaves of a flag is refused, and nothing is done: without its value each of these would
// mean more than it says.
func TestEmptyValues(t *testing.T) {
	c := newCLI(t)
	c.want(0, "Global network policy initialized to \"deny-all\".\n", "policy", "init", "deny-all")
	for _, args := range [][]string{
		{"policy", "allow", "network", "--sandbox", "", "open.example"},
		{"policy", "allow", "network", "--method", "", "open.example"},
		{"policy", "allow", "network", "--path=", "open.example"},
		{"policy", "rm", "network", "--resource", "open.example", "--sandbox="},
		{"secret", "set", "github", "--sandbox", ""},
		{"secret", "set-custom", "--sandbox=", "--host", "a.example", "--value", "abcdefghijklmnop"},
		{"secret", "rm", "github", "--sandbox", "", "--force"},
		{"create", "shell", "--name", ""},
		{"create", "shell", ""},
		{"create", "shell", "--deny-network", "", "."},
		{"exec", "-u", "", "box", "true"},
		{"ls", "--app-name="},
	} {
		if code, _, errs := c.run("ghp_value0000000000000000000000000000000", args...); code != 1 || !strings.Contains(errs, "empty") {
			t.Errorf("%q: %d %q; want 1 and that something is empty", args, code, errs)
		}
	}
	if _, out, _ := c.run("", "policy", "ls", "--wide"); strings.Contains(out, "open.example") {
		t.Errorf("a rule was made:\n%s", out)
	}
	if c.value("github") != "" {
		t.Error("a secret was stored")
	}
}

// A list with a line end in it is not cut there, and what nobody can read is not repeated.
func TestBadValues(t *testing.T) {
	c := newCLI(t)
	c.run("", "policy", "init", "deny-all")
	long := strings.Repeat("n", 10<<10)
	for _, args := range [][]string{
		{"policy", "allow", "network", "--method", "GET\nPOST", "a.test"},
		{"policy", "allow", "network", "--path", "/x", "10.0.0.0/8"},
		{"secret", "set-custom", "--host", "a.test\nb.test", "--value", "abcdefghijklmnop"},
		{"secret", "set-custom", "--host", "a.test", "--env", long, "--value", "abcdefghijklmnop"},
		{"exec", long, "true"}, {long}, {"settings", "get", long}, {"template", "load", long}, {"create", "shell", "--memory", long},
	} {
		code, _, errs := c.run("", args...)
		if code != 1 || !strings.HasPrefix(errs, "error: ") || len(errs) > 2<<10 {
			t.Errorf("%.60q: %d, %d bytes: %.300q", args, code, len(errs), errs)
		}
	}
	if code, out, errs := c.run("", "policy", "allow", "network", "--method", "GET,HEAD", "--method", "POST", "a.test"); code != 0 {
		t.Errorf("a list: %d %q %q", code, out, errs)
	}
	if _, out, _ := c.run("", "policy", "ls", "--json"); !strings.Contains(strings.Join(strings.Fields(out), ""), `["GET","HEAD","POST"]`) {
		t.Errorf("the rule of a list:\n%s", out)
	}
}

// full is an output that takes nothing, as a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, unix.ENOSPC }

func TestOutputThatIsLost(t *testing.T) {
	c := newCLI(t)
	c.run("", "policy", "init", "deny-all")
	for _, line := range []string{"ls", "ls --json", "policy ls", "settings get limits.pids", "secret ls", "version", "help", "template ls"} {
		var errs strings.Builder
		env := c.environment(strings.Fields(line), strings.NewReader(""), full{}, &errs)
		if code := Run(t.Context(), env); code != 1 || !strings.Contains(errs.String(), unix.ENOSPC.Error()) {
			t.Errorf("%s: %d %q; want 1 and the reason", line, code, errs.String())
		}
	}
}

// A signal ends what waits for a pipe that nobody writes to, and for a person who does not answer.
func TestSignalWhileReading(t *testing.T) {
	c := newCLI(t)
	c.run("", "policy", "init", "deny-all")
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	silent, quiet, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	defer quiet.Close()
	for _, line := range []string{
		"secret set github", "policy reset", "create shell --env-file " + pipe, "create shell --resolve a.test=127.0.0.1:1 --upstream-ca " + pipe,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(&SignalError{Signal: 2}) })
		ended := make(chan int, 1)
		go func() { ended <- Run(ctx, c.environment(strings.Fields(line), silent, io.Discard, io.Discard)) }()
		select {
		case code := <-ended:
			if code != 130 {
				t.Errorf("%s: %d, want 130", line, code)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: still waits", line)
		}
		cancel(nil)
	}
	if w, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil { // lets the reads end
		w.Close()
	}
}

func TestFilesOfFlags(t *testing.T) {
	c := newCLI(t)
	for _, path := range []string{"/dev/zero", t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		if code, _, errs := c.run("", "create", "shell", "--env-file", path); code != 1 || !strings.Contains(errs, "--env-file") {
			t.Errorf("%s: %d %q", path, code, errs)
		}
	}
	a := &app{files: map[string][]byte{}}
	if _, err := readEnv(t.Context(), a, []string{"A\n=1"}, nil); err == nil {
		t.Error("a line end in a variable's name is taken")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.WriteString("A=1\n")
	w.Close()
	path := filepath.Join("/dev/fd", strconv.Itoa(int(r.Fd())))
	for range 2 { // run reads it for the sandbox and for its agent
		got, err := readEnv(t.Context(), a, nil, []string{path})
		if err != nil || strings.Join(got, " ") != "A=1" {
			t.Errorf("variables of a pipe: %q, %v", got, err)
		}
	}
}
