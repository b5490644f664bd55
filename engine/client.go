package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sbxpair/sbxpair/secrets"
)

// daemonTimeout bounds the start of a daemon, and a single request to it.
const daemonTimeout = 15 * time.Second

// daemonStarts bounds how many daemons may fail, one after the other, before it is taken that the next one would too.
const daemonStarts = 4

// DaemonStatus is what a running daemon says of itself.
type DaemonStatus struct {
	PID       int       `json:"pid"`
	Version   string    `json:"version"`
	Revision  string    `json:"revision"`
	Build     string    `json:"build"` // of sbx-local, beside the version of sbx whose command line it speaks
	StartedAt time.Time `json:"started_at"`
	Sandboxes int       `json:"sandboxes"` // with an open socket
	Sessions  int       `json:"sessions"`  // of commands
	// SessionsOf counts the execs of each sandbox, by id.
	SessionsOf map[string]int `json:"sessions_of,omitempty"`
}

func (e *Engine) httpClient() *http.Client {
	return &http.Client{Timeout: daemonTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", e.State.DaemonSocket())
		},
	}}
}

func (e *Engine) request(ctx context.Context, method, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, nil)
	if err != nil {
		return err
	}
	resp, err := e.httpClient().Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDaemon, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable { // it is leaving
		return fmt.Errorf("%w: it is shutting down", ErrDaemon)
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return fmt.Errorf("daemon: %s: %s", resp.Status, body)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// DaemonHealth asks the daemon; the error matches ErrDaemon if none runs. It starts none.
func (e *Engine) DaemonHealth(ctx context.Context) (DaemonStatus, error) {
	var s DaemonStatus
	err := e.request(ctx, http.MethodGet, "/health", &s)
	return s, err
}

// DaemonShutdown ends the daemon; sandboxes stay, without a way out until a daemon runs again. It returns when the daemon's
// socket is gone.
func (e *Engine) DaemonShutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	old, err := e.DaemonHealth(ctx)
	if err != nil {
		return err
	}
	if err := e.request(ctx, http.MethodPost, "/shutdown", nil); err != nil {
		if _, gone := os.Stat(e.State.DaemonSocket()); errors.Is(gone, os.ErrNotExist) {
			return nil // it ended by itself meanwhile
		}
		return err
	}
	for {
		if _, err := os.Stat(e.State.DaemonSocket()); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if now, err := e.DaemonHealth(ctx); err == nil && now.PID != old.PID {
			return nil // somebody needed one meanwhile
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("daemon does not end: %w", err)
		}
	}
}

// notify lets a running daemon look at the records; none is started for it, and it looks by itself every few seconds.
func (e *Engine) notify(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if err := e.request(ctx, http.MethodPost, "/sync", nil); err != nil && !errors.Is(err, ErrDaemon) {
		e.logger().Warn("daemon could not look at the sandboxes", "err", err)
	}
}

// EnsureDaemon starts the state's daemon if none answers.
func (e *Engine) EnsureDaemon(ctx context.Context) error {
	s, err := e.session(ctx, "", "")
	if err != nil {
		return err
	}
	s.Close()
	return nil
}

// A Session keeps the daemon alive while a command needs it. A session of an exec also tells the daemon what to kill in
// the sandbox should this process end without closing it, and brings back a daemon that died.
type Session struct {
	e             *Engine
	sandbox, mark string

	mu     sync.Mutex
	conn   net.Conn
	closed bool

	cancel context.CancelFunc // of keep
	kept   chan struct{}      // closed when keep has ended; nil if it never ran
}

// Session opens a session, starting the daemon if none runs.
func (e *Engine) Session(ctx context.Context) (*Session, error) { return e.session(ctx, "", "") }

// Hold opens a session of the named sandbox, so that it is not stopped for want of one before what the caller does next. It
// waits for a stop that has begun. The error matches ErrNotFound.
func (e *Engine) Hold(ctx context.Context, name string) (*Session, error) {
	r, err := e.load(name)
	if err != nil {
		return nil, err
	}
	first, err := e.Session(ctx) // a daemon that does not answer is found out in seconds
	if err != nil {
		return nil, err
	}
	defer first.Close()
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	conn, err := e.openSession(ctx, r.ID, "")
	if err != nil {
		return nil, err
	}
	return &Session{e: e, sandbox: r.ID, conn: conn}, nil
}

// session opens a session for the exec with the given mark in the sandbox, or for none.
func (e *Engine) session(ctx context.Context, sandbox, mark string) (*Session, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	var starter *exec.Cmd
	ended, failed := make(chan error, 1), 0
	for {
		conn, err := e.openSession(ctx, sandbox, mark)
		if err == nil {
			return &Session{e: e, sandbox: sandbox, mark: mark, conn: conn}, nil
		}
		if len(e.DaemonArgs) == 0 || !errors.Is(err, ErrDaemon) {
			return nil, err
		}
		if starter == nil {
			if starter, err = e.startDaemon(); err != nil {
				return nil, fmt.Errorf("start the daemon: %w", err)
			}
			go func() { ended <- starter.Wait() }()
		}
		select {
		case err := <-ended: // it lost against another one, or failed
			if err != nil {
				failed++
			}
			if failed == daemonStarts {
				return nil, fmt.Errorf("%w: %d could not start%s, check logs at: %s", ErrDaemon, failed, e.State.daemonError(), e.State.DaemonLog())
			}
			starter = nil
			ended = make(chan error, 1)
		default:
		}
		if err := pause(ctx, 3*time.Millisecond); err != nil {
			if caller.Err() != nil {
				return nil, context.Cause(caller)
			}
			return nil, fmt.Errorf("%w within %v%s, check logs at: %s", ErrDaemon, daemonTimeout, e.State.daemonError(), e.State.DaemonLog())
		}
	}
}

// startDaemon starts a daemon that outlives this process and has none of its streams.
func (e *Engine) startDaemon() (*exec.Cmd, error) {
	cmd := exec.Command(e.Self, e.DaemonArgs...)
	cmd.Args[0] = "sbx-local"
	cmd.Dir = "/"
	cmd.Env = append(withoutCredentials(os.Environ()), e.DaemonEnv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

var credentialName = regexp.MustCompile(`(?i)(token|secret|passw|credential|api_?key|private_?key|auth$)`)

// withoutCredentials leaves out variables that are credentials by name or by value: the daemon outlives the command that
// happened to start it, and serves others.
func withoutCredentials(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return credentialName.MatchString(name) || secrets.Classify(secrets.New(value)) != secrets.KindUnknown
	})
}

// openSession asks for a session and waits for the answer: only then does the daemon promise to stay.
func (e *Engine) openSession(ctx context.Context, sandbox, mark string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", e.State.DaemonSocket())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDaemon, err)
	}
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	fmt.Fprintf(conn, "POST /session HTTP/1.1\r\nHost: daemon\r\nConnection: Upgrade\r\nUpgrade: session\r\nX-Sandbox: %s\r\nX-Mark: %s\r\n\r\n", sandbox, mark)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrDaemon, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		conn.Close()
		return nil, fmt.Errorf("%w: %s", ErrDaemon, resp.Status)
	}
	conn.SetDeadline(time.Time{})
	return conn, nil
}

// syncTries bounds how often a daemon that dies under a session is replaced for one call.
const syncTries = 3

// Sync returns when the daemon has a socket open for every sandbox that runs or is about to. A daemon that died meanwhile is
// replaced.
func (s *Session) Sync(ctx context.Context) error {
	for try := 1; ; try++ {
		err := s.e.request(ctx, http.MethodPost, "/sync", nil)
		if !errors.Is(err, ErrDaemon) || len(s.e.DaemonArgs) == 0 || try == syncTries || ctx.Err() != nil {
			return err
		}
		conn, err := s.join(ctx, true)
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.conn != nil {
			s.conn.Close()
		}
		s.conn = conn
		s.mu.Unlock()
	}
}

// rejoinEvery is how often a session without a daemon looks for one that it may not start itself.
const rejoinEvery = 100 * time.Millisecond

// keep starts watching the session until it is closed. When the daemon dies, it starts another at once and registers there,
// so that the sandbox's way out is back and the loss of this process is still noticed. After a daemon that was told to stop
// it starts none, but registers with the next one.
func (s *Session) keep(ctx context.Context) {
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.kept = make(chan struct{})
	go func() {
		defer close(s.kept)
		for {
			told, lost := s.watch()
			if !lost || s.rejoin(ctx, !told) != nil {
				return
			}
		}
	}()
}

// watch waits for the end of the connection. It is not lost if the end is ours; told: the daemon was told to stop.
func (s *Session) watch() (told, lost bool) {
	last, err := io.ReadAll(io.LimitReader(s.conn, int64(len(sessionBye))))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, false
	}
	s.conn.Close()
	s.conn = nil
	return err == nil && string(last) == sessionBye, true
}

// rejoin registers the session again, with start by starting a daemon; the error is the end of ctx.
func (s *Session) rejoin(ctx context.Context, start bool) error {
	for {
		conn, err := s.join(ctx, start)
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.closed {
				io.WriteString(conn, sessionDone)
				conn.Close()
				return net.ErrClosed
			}
			s.conn = conn
			return nil
		}
		if err := pause(ctx, rejoinEvery); err != nil {
			return err
		}
	}
}

func (s *Session) join(ctx context.Context, start bool) (net.Conn, error) {
	if start {
		next, err := s.e.session(ctx, s.sandbox, s.mark)
		if err != nil {
			return nil, err
		}
		return next.conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	return s.e.openSession(ctx, s.sandbox, s.mark)
}

// Close ends the session in order: nothing is killed.
func (s *Session) Close() {
	s.mu.Lock()
	s.closed = true
	if s.conn != nil {
		io.WriteString(s.conn, sessionDone)
		s.conn.Close()
	}
	s.mu.Unlock()
	if s.kept != nil {
		s.cancel()
		<-s.kept
	}
}

// What the two ends of a session say at its orderly end: the client that it is done, the daemon that it was told to stop.
const (
	sessionDone = "done\n"
	sessionBye  = "bye\n"
)

// pause waits, or returns the context's cause.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
