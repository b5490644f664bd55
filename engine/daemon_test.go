package engine

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// startDaemon serves a state in this process until the test ends; proxies do nothing.
func startDaemon(t *testing.T, idle time.Duration) (e *Engine, d *Daemon, ended chan error) {
	t.Helper()
	e = &Engine{State: &State{Dir: t.TempDir(), Runtime: t.TempDir()}}
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
	r := Record{Version: recordVersion, Name: "demo", ID: newID(), Status: Creating}
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
