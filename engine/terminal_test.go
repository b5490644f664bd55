package engine_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// A screen is a terminal with a process of the real command on it.
type screen struct {
	cmd    *exec.Cmd
	master *os.File

	mu   sync.Mutex
	text bytes.Buffer
	read chan struct{} // closed when there is no more to read
}

func onTerminal(t *testing.T, e *engine.Engine, args ...string) *screen {
	t.Helper()
	s := &screen{cmd: cli(t.Context(), e, args...), read: make(chan struct{})}
	var err error
	if s.master, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.master.Close() })
	go func() {
		defer close(s.read)
		buf := make([]byte, 4096)
		for {
			n, err := s.master.Read(buf)
			s.mu.Lock()
			s.text.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) shows() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	enginetest.Eventually(t, text+" is not shown", func() bool { return strings.Contains(s.shows(), text) })
}

// end waits for the command, and returns its exit code and all that was shown.
func (s *screen) end(t *testing.T) (int, string) {
	t.Helper()
	s.cmd.Wait()
	<-s.read
	return s.cmd.ProcessState.ExitCode(), s.shows()
}

// A terminal inside has a name and the size of the one outside, follows it, and gives keys their meaning; exit codes, users
// and programs that cannot be started are as without one.
func TestTerminal(t *testing.T) {
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"name, size, code", []string{"-it", "demo", "sh", "-c", "tty; stty size; exit 3"}, 3, "/dev/pts/0\r\n40 100\r\n"},
		{"user", []string{"-t", "-u", "nobody", "demo", "sh", "-c", "id -un; test -w $(tty) && echo ours"}, 0, "nobody\r\nours\r\n"},
		{"environment, folder", []string{"-t", "-e", "X=y", "-w", "/tmp", "demo", "sh", "-c", "echo $X; pwd"}, 0, "y\r\n/tmp\r\n"},
		{"signal", []string{"-t", "demo", "sh", "-c", "kill -9 $$"}, 137, ""},
		{"no program", []string{"-t", "demo", "no-such-program"}, 127, "OCI runtime exec failed: exec failed: unable to start container process: exec: \"no-such-program\": executable file not found in $PATH\r\n"},
		{"no right", []string{"-t", "demo", "/etc/hosts"}, 127, "OCI runtime exec failed: exec failed: unable to start container process: exec: \"/etc/hosts\": permission denied\r\n"},
		{"what is left running does not hold it", []string{"-t", "demo", "sh", "-c", "nohup sleep 60 >/dev/null 2>&1 & echo bye"}, 0, "bye\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if code, text := onTerminal(t, e, append([]string{"exec"}, tt.args...)...).end(t); code != tt.code || text != tt.want {
				t.Errorf("exit %d, %q; want %d, %q", code, text, tt.code, tt.want)
			}
		})
	}
	t.Run("size follows", func(t *testing.T) {
		s := onTerminal(t, e, "exec", "-it", "demo", "bash", "-c", "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.02; done")
		s.await(t, "ready")
		if err := pty.Setsize(s.master, &pty.Winsize{Rows: 50, Cols: 120}); err != nil {
			t.Fatal(err)
		}
		if code, text := s.end(t); code != 0 || !strings.HasSuffix(text, "50 120\r\n") {
			t.Errorf("exit %d, %q", code, text)
		}
	})
	t.Run("keys", func(t *testing.T) {
		s := onTerminal(t, e, "exec", "-it", "demo", "sh", "-c", "read line; echo got $line; cat; echo end")
		s.master.WriteString("hello\r")
		s.await(t, "got hello")
		s.master.WriteString("again\r")
		s.await(t, "again\r\nagain")
		s.master.WriteString("\x04") // the end of cat's input
		if code, text := s.end(t); code != 0 || !strings.HasSuffix(text, "end\r\n") {
			t.Errorf("exit %d, %q", code, text)
		}
		s = onTerminal(t, e, "exec", "-it", "demo", "sh", "-c", "echo ready; exec sleep 71") // before that, the key is the outer terminal's
		s.await(t, "ready")
		s.master.WriteString("\x03")
		if code, text := s.end(t); code != 130 {
			t.Errorf("Ctrl-C: exit %d, %q", code, text)
		}
	})
	t.Run("ends with its client", func(t *testing.T) {
		s := onTerminal(t, e, "exec", "-it", "demo", "bash", "-c", "setsid sleep 72 & sleep 72")
		enginetest.Eventually(t, "it does not start", func() bool { return running(t, e, r, "72") })
		if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.end(t)
		enginetest.Eventually(t, "programs are left", func() bool { return !running(t, e, r, "72") })
	})
}

// running reports whether a sleep of so many seconds runs inside.
func running(t *testing.T, e *engine.Engine, r engine.Record, seconds string) bool {
	t.Helper()
	_, _, code := run(t, e, r, engine.ExecSpec{Argv: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -q '^" + seconds + "$'"}})
	return code == 0
}
