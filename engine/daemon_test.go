package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// startDaemon serves a state in this process until the test ends; proxies do nothing.
func startDaemon(t *testing.T, idle time.Duration) (e *Engine, d *Daemon, ended chan error) {
	t.Helper()
	return startDaemonIn(t, idle, t.TempDir())
}

func startDaemonIn(t *testing.T, idle time.Duration, run string) (e *Engine, d *Daemon, ended chan error) {
	t.Helper()
	e = &Engine{State: &State{Dir: t.TempDir(), Runtime: run}}
	d = &Daemon{Engine: e, Version: "v1", Idle: idle, Proxy: func(ctx context.Context, _ net.Listener, _ Record) error {
		<-ctx.Done()
		return nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- d.Run(ctx, func() { close(ready) }) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("daemon ended: %v", err)
	}
	return e, d, done
}

// A session that was granted holds the daemon; a daemon that decided to leave grants none.
func TestDaemonLeavesOrStays(t *testing.T) {
	e, d, done := startDaemon(t, time.Nanosecond)
	s, err := e.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.leave() {
		t.Fatal("the daemon left a session")
	}
	if got, err := e.DaemonHealth(t.Context()); err != nil || got.Sessions != 1 || got.Version != "v1" {
		t.Errorf("health %+v, %v; want one session", got, err)
	}
	s.Close()
	deadline := time.Now().Add(10 * time.Second)
	for !d.leave() { // until the end of the session is seen
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not leave")
		}
	}
	if _, err := e.Session(t.Context()); !errors.Is(err, ErrDaemon) {
		t.Errorf("a session of a leaving daemon: %v, want ErrDaemon", err)
	}
	d.stop()
	if err := <-done; err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// One daemon a state; sockets follow the records; only the owner's processes are heard.
func TestDaemonSockets(t *testing.T) {
	e, d, _ := startDaemon(t, 0)
	if err := (&Daemon{Engine: e}).Run(t.Context(), nil); !errors.Is(err, ErrDaemonRuns) {
		t.Errorf("a second daemon: %v, want ErrDaemonRuns", err)
	}
	r := Record{Version: recordVersion, Name: "demo", ID: uuid.NewString(), Status: Creating}
	s, err := e.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	there := func() bool {
		conn, err := net.Dial("unix", e.State.proxySocket(r.ID))
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	for _, step := range []struct {
		status Status
		want   bool
	}{{Creating, true}, {Stopped, false}, {Starting, true}, {Running, false}} { // running without a process: lost
		r.Status = step.status
		unlock, err := e.lock(t.Context(), r.Name) // as its creator holds it: nobody recovers it
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(ownDir(e.State.SandboxDir(r.Name)), e.save(r), s.Sync(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := there(); got != step.want {
			t.Errorf("%s: socket %v, want %v", step.status, got, step.want)
		}
		unlock()
	}
	client, server := socketPair(t)
	defer client.Close()
	defer server.Close()
	uid, err := peerUID(server)
	if err != nil || uid < 0 {
		t.Errorf("peer of a socket: %d, %v", uid, err)
	}
	d.stop()
}

// Processes of other users get no answer, even where the socket's mode and folder would let them in.
func TestDaemonForeignUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	run, err := os.MkdirTemp("/tmp", "sbx-test-") // t.TempDir is closed to others at its top
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	e, _, _ := startDaemonIn(t, 0, run)
	socket := e.State.DaemonSocket()
	if _, err := askAs(4242, socket); !errors.Is(err, os.ErrPermission) {
		t.Errorf("through the folder's mode: %v, want a refusal", err)
	}
	for path, mode := range map[string]os.FileMode{run: 0o755, socket: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if answer, err := askAs(4242, socket); answer != "" {
		t.Errorf("a foreign user got %q, %v", answer, err)
	}
	if answer, err := askAs(0, socket); !strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Errorf("the owner got %q, %v", answer, err)
	}
}

// askAs asks the daemon for its health as another user: the thread that connects becomes that user, and is given up.
func askAs(uid int, socket string) (answer string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			err = errno
			return
		}
		fd, e := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if e != nil {
			err = e
			return
		}
		f := os.NewFile(uintptr(fd), socket)
		defer f.Close()
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
			return
		}
		io.WriteString(f, "GET /health HTTP/1.1\r\nHost: daemon\r\nConnection: close\r\n\r\n")
		data, e := io.ReadAll(f)
		answer, err = string(data), e
	}()
	<-done
	return answer, err
}

func socketPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("unix", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}
