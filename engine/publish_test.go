package engine_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
	"github.com/sbxpair/sbxpair/engine/ports"
)

// A published port leads to a program inside, over a kill of the daemon and a stop of the sandbox; taken back, it is closed.
func TestPublish(t *testing.T) {
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("no python3 here to listen in the sandbox")
	}
	e, workspace := newEngine(t)
	want, err := ports.Parse("8080")
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", Workspaces: []engine.Workspace{{Path: workspace}}, Ports: want})
	if err != nil {
		t.Fatal(err)
	}
	serve := func() {
		sh(t, e, r, `cat > /tmp/s.py <<'X'
import socketserver
class H(socketserver.BaseRequestHandler):
    def handle(self):
        while d := self.request.recv(65536): self.request.sendall(d.upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 8080), H).serve_forever()
X
nohup python3 /tmp/s.py >/dev/null 2>&1 &`)
	}
	serve()
	p := r.Ports[0]
	talk := func(p ports.Port) string {
		conn, err := net.Dial("tcp", p.Host())
		if err != nil {
			return ""
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(conn, "hello")
		conn.(*net.TCPConn).CloseWrite()
		data, _ := io.ReadAll(conn)
		return string(data)
	}
	answers := func(what string, p ports.Port) {
		t.Helper()
		enginetest.Eventually(t, what, func() bool { return talk(p) == "HELLO" })
	}
	answers("no answer", p)
	more, err := ports.Parse("8080/tcp")
	if err != nil {
		t.Fatal(err)
	}
	both, err := e.Publish(t.Context(), "demo", more)
	if err != nil || len(both) != 2 || both[0].HostPort != both[1].HostPort {
		t.Fatalf("both families: %v, %v", both, err)
	}
	answers("no answer on the second port", both[0])
	for _, taken := range []ports.Port{p, {HostIP: "127.0.0.1", HostPort: busyPort(t), SandboxPort: 1, Protocol: "tcp4"}} {
		if _, err := e.Publish(t.Context(), "demo", []ports.Port{taken}); !isPortError(err) {
			t.Errorf("%s: %v, want a *PortError", taken, err)
		}
	}
	if got, err := e.Get("demo"); err != nil || len(got.Ports) != 3 {
		t.Errorf("recorded %v, %v; want three", got.Ports, err)
	}
	h, err := e.DaemonHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	enginetest.Eventually(t, "the daemon lives", func() bool { return !daemonRuns(t, e) })
	if err := e.EnsureDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers("no answer after a kill of the daemon", p)
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	if got := talk(p); got != "" {
		t.Errorf("a stopped sandbox answers %q", got)
	}
	if r, _, _, err = e.Ensure(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	serve()
	answers("no answer after a stop", p)
	if gone, err := e.Unpublish(t.Context(), "demo", func(q ports.Port) bool { return q == p }); err != nil || len(gone) != 1 {
		t.Errorf("unpublish: %v, %v", gone, err)
	}
	if got := talk(p); got != "" {
		t.Errorf("a port that was taken back answers %q", got)
	}
}

func isPortError(err error) bool {
	_, ok := errors.AsType[*engine.PortError](err)
	return ok
}

// busyPort is a port that the test itself holds.
func busyPort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().(*net.TCPAddr).Port
}
