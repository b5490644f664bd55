package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/engine/ports"
)

// ErrDaemonRuns matches the error of a second daemon on one state.
var ErrDaemonRuns = errors.New("a daemon is already running for this state folder")

// ProxyFunc serves the egress proxy of one sandbox on l until ctx is done.
type ProxyFunc func(ctx context.Context, l net.Listener, r Record) error

// A Daemon owns the sockets of a state: its own, and one for each sandbox that runs.
type Daemon struct {
	Engine   *Engine
	Proxy    ProxyFunc
	Version  string
	Revision string
	Build    string
	// AutoStop is how long a sandbox without a session stays; nil or 0: for ever.
	AutoStop func() (time.Duration, error)
	// Idle ends the daemon when no sandbox runs and no session is open for so long; 0: it stays until it is told.
	Idle time.Duration

	mu       sync.Mutex
	closing  bool
	started  time.Time
	lastBusy time.Time
	sessions map[string]int           // open sessions by sandbox id; "" for those of no sandbox
	execs    map[string]int           // those of them that are execs
	marks    map[string]bool          // of execs that registered while this daemon was new
	idle     map[string]time.Time     // when the last session of a sandbox ended, or when the daemon first saw it
	stopping map[string]chan struct{} // closed when the stop is over
	proxies  map[string]*proxy
	work     sync.WaitGroup
	stop     context.CancelFunc
}

// A proxy is what the daemon serves one sandbox.
type proxy struct {
	record   Record
	listener net.Listener
	cancel   context.CancelFunc
	publish  func([]ports.Port) map[ports.Port]error
	failed   map[ports.Port]error // ports that are not published, such as those that another program has
}

const (
	lookEvery    = time.Second     // between looks at the records that nobody asked for
	lockPatience = 5 * time.Second // for a daemon that is just leaving
	killTimeout  = 10 * time.Second
	orphanGrace  = 10 * time.Second // for clients of execs to register with a new daemon: they do so within milliseconds
)

// Run serves until ctx is done, a shutdown is asked for, or the daemon is idle. ready is called when the socket answers.
// The error matches ErrDaemonRuns if another daemon has the state.
func (d *Daemon) Run(ctx context.Context, ready func()) error {
	st := d.Engine.State
	if err := os.MkdirAll(filepath.Dir(st.daemonLock()), 0o700); err != nil {
		return err
	}
	lock := flock.New(st.daemonLock())
	wait, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for !lock.Locked() {
		if ok, err := lock.TryLock(); err != nil {
			return err
		} else if ok {
			break
		}
		if _, err := d.Engine.DaemonHealth(wait); err == nil {
			return ErrDaemonRuns
		}
		if pause(wait, 5*time.Millisecond) != nil {
			return ErrDaemonRuns
		}
	}
	defer lock.Unlock()
	return d.serve(ctx, ready)
}

func (d *Daemon) serve(ctx context.Context, ready func()) error {
	ctx, d.stop = context.WithCancel(ctx)
	defer d.stop()
	d.started, d.lastBusy = time.Now().UTC(), time.Now()
	d.sessions, d.execs, d.proxies = map[string]int{}, map[string]int{}, map[string]*proxy{}
	d.marks = map[string]bool{}
	d.idle, d.stopping = map[string]time.Time{}, map[string]chan struct{}{}

	socket := d.Engine.State.DaemonSocket()
	defer d.Engine.State.dropRuntime() // last, and still under the lock that the next daemon waits for
	if err := d.Engine.State.makeRuntime(); err != nil {
		return err
	}
	ln, err := listenUnix(socket)
	if err != nil {
		return err
	}
	defer os.Remove(socket)
	d.sync(ctx)
	srv := &http.Server{Handler: d.handler(ctx), ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(d.Engine.logger().Handler(), slog.LevelWarn)}
	d.work.Go(func() { d.watch(ctx) })
	d.work.Go(func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		srv.Shutdown(grace)
	})
	if ready != nil {
		ready()
	}
	err = srv.Serve(peerListener{ln})
	d.stop()
	d.mu.Lock()
	d.closing = true
	for id := range d.proxies {
		d.close(id)
	}
	d.mu.Unlock()
	d.work.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// listenUnix replaces a socket that a dead process left.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return ln, os.Chmod(path, 0o600)
}

// A peerListener accepts connections of this user's processes only; root may do anything anyway.
type peerListener struct{ net.Listener }

func (l peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := peerUID(conn); err == nil && (uid == os.Getuid() || uid == 0) {
			return conn, nil
		}
		conn.Close()
	}
}

func peerUID(conn net.Conn) (int, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var sockErr error
	if err := raw.Control(func(fd uintptr) { cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if sockErr != nil {
		return 0, sockErr
	}
	return int(cred.Uid), nil
}

func (d *Daemon) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(d.status())
	})
	mux.HandleFunc("POST /sync", func(w http.ResponseWriter, _ *http.Request) {
		if !d.busy() {
			http.Error(w, "shutting down", http.StatusServiceUnavailable)
			return
		}
		if err := d.sync(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	})
	mux.HandleFunc("GET /ports", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(d.portFailures(r.URL.Query().Get("sandbox")))
	})
	mux.HandleFunc("POST /shutdown", func(w http.ResponseWriter, _ *http.Request) {
		d.Engine.logger().Info("daemon asked to stop")
		w.WriteHeader(http.StatusOK)
		d.stop()
	})
	mux.HandleFunc("POST /session", func(w http.ResponseWriter, r *http.Request) { d.session(ctx, w, r) })
	return mux
}

func (d *Daemon) status() DaemonStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := DaemonStatus{PID: os.Getpid(), Version: d.Version, Revision: d.Revision, Build: d.Build, StartedAt: d.started, Sandboxes: len(d.proxies), SessionsOf: maps.Clone(d.execs)}
	for _, n := range d.sessions {
		s.Sessions += n
	}
	return s
}

// busy notes that somebody needs the daemon, and reports false if it is leaving.
func (d *Daemon) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastBusy = time.Now()
	return !d.closing
}

// session holds the connection until the client ends it. The answer is sent only when the session counts, so that a
// client that got it knows that the daemon stays.
func (d *Daemon) session(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	sandbox, mark := r.Header.Get("X-Sandbox"), r.Header.Get("X-Mark")
	hj, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "cannot hold a session", http.StatusInternalServerError)
		return
	}
	if !d.beginSession(r.Context(), sandbox, mark) {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	defer d.work.Done()
	defer d.endSession(sandbox, mark != "")
	conn, rw, err := hj.Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() {
		conn.SetWriteDeadline(time.Now().Add(time.Second))
		io.WriteString(conn, sessionBye)
		conn.Close()
	})
	defer stop()
	conn.SetDeadline(time.Time{})
	io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: session\r\n\r\n")
	line, err := rw.Reader.ReadString('\n')
	if err == nil && line == sessionDone || ctx.Err() != nil || mark == "" {
		return
	}
	d.Engine.logger().Info("client of an exec is gone, ending its processes", "sandbox", sandbox, "exec", mark)
	if err := d.kill(ctx, sandbox, mark); err != nil {
		d.Engine.logger().Warn("could not end the processes of an exec", "sandbox", sandbox, "exec", mark, "err", err)
	}
}

// beginSession counts a session, and reports false if the daemon is leaving. A sandbox that is just being stopped for want of
// sessions is waited for: what comes next finds it stopped, and starts it.
func (d *Daemon) beginSession(ctx context.Context, sandbox, mark string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.stopping[sandbox] != nil {
		over := d.stopping[sandbox]
		d.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
		}
		d.mu.Lock()
		if ctx.Err() != nil {
			return false
		}
	}
	if d.closing {
		return false
	}
	d.sessions[sandbox]++
	if mark != "" {
		d.execs[sandbox]++
		if time.Since(d.started) < orphanGrace {
			d.marks[mark] = true
		}
	}
	d.work.Add(1)
	return true
}

func (d *Daemon) endSession(sandbox string, exec bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[sandbox]--; d.sessions[sandbox] <= 0 {
		delete(d.sessions, sandbox)
	}
	if exec {
		if d.execs[sandbox]--; d.execs[sandbox] <= 0 {
			delete(d.execs, sandbox)
		}
	}
	d.lastBusy = time.Now()
	if p := d.proxies[sandbox]; p != nil && d.sessions[sandbox] == 0 {
		d.idle[sandbox] = d.lastBusy
		if grace := d.grace(); grace > 0 && !p.record.KeepAlive {
			d.Engine.logger().Info("session disconnected, deferring auto-stop", "runtime", p.record.Name, "delay", grace)
		}
	}
}

func (d *Daemon) grace() time.Duration {
	if d.AutoStop == nil {
		return 0
	}
	grace, err := d.AutoStop()
	if err != nil {
		d.Engine.logger().Warn("auto-stop is off", "err", err)
		return 0
	}
	return grace
}

// autoStop stops the sandboxes that had no session for the grace period.
func (d *Daemon) autoStop(ctx context.Context) {
	grace := d.grace()
	if grace == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, p := range d.proxies {
		if p.record.Status != Running || p.record.KeepAlive || d.sessions[id] > 0 || d.stopping[id] != nil || time.Since(d.idle[id]) < grace {
			continue
		}
		over := make(chan struct{})
		d.stopping[id] = over
		d.work.Go(func() {
			log := d.Engine.logger().With("runtime", p.record.Name)
			log.Info("auto-stop grace period expired, stopping runtime")
			_, err := d.Engine.Stop(ctx, p.record.Name)
			d.mu.Lock()
			delete(d.stopping, id)
			d.idle[id] = time.Now() // after a failure, the grace period again
			d.mu.Unlock()
			close(over)
			if err != nil && !errors.Is(err, ErrNotFound) {
				log.Warn("could not auto-stop", "err", err)
				return
			}
			log.Info("auto-stopped runtime after last session disconnected")
		})
	}
}

// kill ends what the exec with the mark left in the sandbox.
func (d *Daemon) kill(ctx context.Context, id, mark string) error {
	list, err := d.Engine.List()
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.ID == id && r.Status == Running {
			return d.Engine.killExec(ctx, r, mark)
		}
	}
	return nil
}

// watch looks at the records now and then, for commands that died before they told, and ends an idle daemon.
func (d *Daemon) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	before := d.Engine.execMarks() // of execs that an earlier daemon knew
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if before != nil && time.Since(d.started) > orphanGrace {
			d.endOrphans(ctx, before)
			before = nil
		}
		if !socketThere(d.Engine.State.DaemonSocket()) {
			d.Engine.logger().Warn("the socket is gone, daemon ends")
			d.endForgotten(ctx)
			d.stop()
			return
		}
		if err := errors.Join(d.Engine.Recover(ctx), d.sync(ctx)); err != nil {
			d.Engine.logger().Warn("could not look at the sandboxes", "err", err)
			continue
		}
		d.autoStop(ctx)
		if d.leave() {
			d.Engine.logger().Info("no sandbox runs, daemon ends")
			d.stop()
			return
		}
	}
}

// endForgotten ends the sandboxes whose records are gone, as with the whole state folder: nobody else knows of them any more.
func (d *Daemon) endForgotten(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.proxies {
		r, err := d.Engine.load(p.record.Name)
		if !errors.Is(err, ErrNotFound) && (err != nil || r.ID == p.record.ID) {
			continue
		}
		if err := d.Engine.destroy(ctx, p.record); err != nil {
			d.Engine.logger().Error("could not end a sandbox whose record is gone", "sandbox", p.record.Name, "err", err)
		}
	}
}

// endOrphans kills what execs started whose client is gone, and went while no daemon saw it.
func (d *Daemon) endOrphans(ctx context.Context, before map[string]string) {
	d.mu.Lock()
	for mark := range d.marks {
		delete(before, mark)
	}
	d.marks = map[string]bool{}
	d.mu.Unlock()
	for mark, name := range before {
		if _, err := os.Stat(d.Engine.execPID(Record{Name: name}, mark)); err != nil {
			continue // it ended in order meanwhile
		}
		r, err := d.Engine.load(name)
		if err != nil || r.Status != Running {
			os.Remove(d.Engine.execPID(Record{Name: name}, mark))
			continue
		}
		d.Engine.logger().Info("an exec has no client, ending its processes", "sandbox", name, "exec", mark)
		if err := d.Engine.killExec(ctx, r, mark); err != nil {
			d.Engine.logger().Warn("could not end the processes of an exec", "sandbox", name, "exec", mark, "err", err)
		}
	}
}

// leave decides to end, under the same lock that a new session takes: either the session comes first and the daemon
// stays, or the client is turned away and starts another daemon, which waits for our lock file.
func (d *Daemon) leave() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Idle == 0 || len(d.proxies) > 0 || len(d.sessions) > 0 || time.Since(d.lastBusy) < d.Idle {
		return false
	}
	d.closing = true
	return true
}

// sync makes the proxies match the records: one for each sandbox that runs or is about to.
func (d *Daemon) sync(ctx context.Context) error {
	list, listErr := d.Engine.List()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil
	}
	want := map[string]Record{}
	blind := listErr != nil
	for _, r := range list {
		switch {
		case r.Status == Damaged:
			blind = true
		case r.Status != Stopped && !r.Lost():
			want[r.ID] = r
		}
	}
	if !blind { // with a record unreadable, closing what we do not see would cut off a sandbox
		for id := range d.proxies {
			if _, ok := want[id]; !ok {
				d.close(id)
			}
		}
	}
	errs := []error{listErr}
	for id, r := range want {
		if _, ok := d.proxies[id]; !ok || !socketThere(d.Engine.State.proxySocket(id)) {
			d.close(id)
			errs = append(errs, d.open(ctx, r))
		}
		if p, ok := d.proxies[id]; ok { // a port that cannot be had must not stop what others wait for
			p.record = r
			failed := p.publish(r.Ports)
			for port, err := range failed {
				if p.failed[port] == nil {
					d.Engine.logger().Warn("port is not published", "sandbox", r.Name, "port", port.String(), "err", err)
				}
			}
			p.failed = failed
		}
	}
	return errors.Join(errs...)
}

// portFailures tells by port, as text, what keeps it from being published.
func (d *Daemon) portFailures(id string) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]string{}
	if p, ok := d.proxies[id]; ok {
		for port, err := range p.failed {
			out[port.String()] = err.Error()
		}
	}
	return out
}

func socketThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (d *Daemon) open(ctx context.Context, r Record) error {
	if err := ownDir(d.Engine.State.ProxyDir(r.ID)); err != nil {
		return err
	}
	ln, err := listenUnix(d.Engine.State.proxySocket(r.ID))
	if err != nil {
		return err
	}
	link, err := listenUnix(d.Engine.State.portsSocket(r.ID))
	if err != nil {
		ln.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	forwarder := ports.New(d.Engine.logger())
	d.idle[r.ID] = time.Now()
	d.proxies[r.ID] = &proxy{record: r, listener: ln, cancel: cancel, publish: func(list []ports.Port) map[ports.Port]error { return forwarder.Set(ctx, list) }}
	d.work.Go(func() { forwarder.Serve(ctx, link) })
	d.work.Go(func() {
		defer ln.Close()
		defer cancel()
		if err := d.Proxy(ctx, ln, r); err != nil && ctx.Err() == nil {
			d.Engine.logger().Error("egress proxy ended", "sandbox", r.Name, "err", err)
			d.mu.Lock()
			if p, ok := d.proxies[r.ID]; ok && p.listener == ln {
				delete(d.proxies, r.ID) // the next look opens it again
			}
			d.mu.Unlock()
		}
	})
	return nil
}

// close ends the proxy of a sandbox; the caller holds the mutex.
func (d *Daemon) close(id string) {
	if p, ok := d.proxies[id]; ok {
		p.cancel()
		p.listener.Close()
		delete(d.proxies, id)
		delete(d.idle, id)
	}
}
