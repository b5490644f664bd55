package ports

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The link is a unix socket of the daemon. Process 1 of the sandbox opens one connection that says "control", and reads
// "dial PORT TOKEN" from it; for each it opens another that says "conn TOKEN" and then carries the stream.
const (
	helloControl = "control"
	helloConn    = "conn "
	orderDial    = "dial "
)

// Bounds.
const (
	maxStreams  = 512              // of one sandbox at once; further ones are closed
	maxHellos   = 64               // connections that have not said what they are
	maxLine     = 128              // bytes
	linkTimeout = 10 * time.Second // for the sandbox to take up a connection
)

// A Forwarder publishes the ports of one sandbox. It is safe for concurrent use.
type Forwarder struct {
	log     *slog.Logger
	streams chan struct{}

	mu        sync.Mutex
	closed    bool
	listeners map[Port]net.Listener
	control   net.Conn
	ready     chan struct{} // closed when control is there
	waiting   map[string]chan Stream
	work      sync.WaitGroup
}

// New returns a Forwarder that publishes nothing yet.
func New(log *slog.Logger) *Forwarder {
	return &Forwarder{log: log, streams: make(chan struct{}, maxStreams), listeners: map[Port]net.Listener{}, ready: make(chan struct{}), waiting: map[string]chan Stream{}}
}

// Set publishes the wanted ports and no others, and returns the error of each that could not be. It may be called often.
func (f *Forwarder) Set(ctx context.Context, want []Port) map[Port]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := map[Port]error{}
	keep := map[Port]bool{}
	for _, p := range want {
		keep[p] = true
	}
	for p, ln := range f.listeners {
		if !keep[p] {
			ln.Close()
			delete(f.listeners, p)
		}
	}
	for p := range maps.Keys(keep) {
		if f.listeners[p] != nil || f.closed {
			continue
		}
		network := "tcp4"
		if strings.Contains(p.HostIP, ":") {
			network = "tcp6"
		}
		ln, err := net.Listen(network, p.Host())
		if err != nil {
			failed[p] = err
			continue
		}
		f.listeners[p] = ln
		f.work.Go(func() { f.accept(ctx, ln, p) })
	}
	return failed
}

func (f *Forwarder) accept(ctx context.Context, ln net.Listener, p Port) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as no descriptors: it passes when connections end
			select {
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		select {
		case f.streams <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		f.work.Go(func() {
			defer func() { <-f.streams }()
			f.carry(ctx, conn.(*net.TCPConn), p)
		})
	}
}

// carry joins a connection from the host to one that the sandbox opens for it.
func (f *Forwarder) carry(ctx context.Context, conn *net.TCPConn, p Port) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	wait, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	inside, err := f.ask(wait, p.SandboxPort)
	if err != nil {
		f.log.Debug("published port: no connection inside", "port", p.String(), "err", err)
		conn.SetLinger(0) // reset, as a closed port would answer
		return
	}
	stopInside := context.AfterFunc(ctx, func() { inside.Close() })
	defer stopInside()
	Join(conn, inside)
}

// ask has the sandbox dial one of its ports.
func (f *Forwarder) ask(ctx context.Context, port int) (Stream, error) {
	token := rand.Text()
	got := make(chan Stream, 1)
	for {
		f.mu.Lock()
		control, ready := f.control, f.ready
		if control != nil {
			f.waiting[token] = got
		}
		f.mu.Unlock()
		if control != nil {
			control.SetWriteDeadline(time.Now().Add(linkTimeout))
			if _, err := io.WriteString(control, orderDial+strconv.Itoa(port)+" "+token+"\n"); err == nil {
				break
			}
			f.drop(control)
			continue
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ready:
		}
	}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiting, token)
		select {
		case late := <-got: // it came when we had given up
			if late != nil {
				late.Close()
			}
		default:
		}
	}()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case s := <-got:
		if s == nil {
			return nil, errors.New("connection refused")
		}
		return s, nil
	}
}

// Serve answers the sandbox's end of the link until ctx is done or ln is closed. Then all published ports are closed.
func (f *Forwarder) Serve(ctx context.Context, ln net.Listener) {
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	defer f.work.Wait()
	defer f.close()
	hellos := make(chan struct{}, maxHellos)
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		select {
		case hellos <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		f.work.Go(func() {
			defer func() { <-hellos }()
			f.hello(ctx, conn.(*net.UnixConn))
		})
	}
}

// hello reads what a connection of the sandbox is. Nothing is read beyond its line.
func (f *Forwarder) hello(ctx context.Context, conn *net.UnixConn) {
	conn.SetReadDeadline(time.Now().Add(linkTimeout))
	line, err := readLine(conn)
	if err != nil {
		conn.Close()
		return
	}
	conn.SetReadDeadline(time.Time{})
	if line == helloControl {
		f.attach(ctx, conn)
		return
	}
	token, isConn := strings.CutPrefix(line, helloConn)
	refused, isRefusal := strings.CutPrefix(token, "-")
	f.mu.Lock()
	got := f.waiting[refused]
	delete(f.waiting, refused)
	switch {
	case !isConn || got == nil:
		conn.Close()
	case isRefusal:
		conn.Close()
		got <- nil
	default:
		got <- conn
	}
	f.mu.Unlock()
}

// attach takes a control connection in the place of an older one, and watches for its end.
func (f *Forwarder) attach(ctx context.Context, conn net.Conn) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		conn.Close()
		return
	}
	if f.control != nil {
		f.control.Close()
	} else {
		close(f.ready)
	}
	f.control = conn
	f.work.Go(func() { // beside the hello, which others wait to say
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		io.Copy(io.Discard, conn)
		f.drop(conn)
	})
	f.mu.Unlock()
}

func (f *Forwarder) drop(conn net.Conn) {
	conn.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.control == conn {
		f.control, f.ready = nil, make(chan struct{})
	}
}

func (f *Forwarder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for p, ln := range f.listeners {
		ln.Close()
		delete(f.listeners, p)
	}
	if f.control != nil {
		f.control.Close()
	}
}

func readLine(r io.Reader) (string, error) {
	var b strings.Builder
	one := make([]byte, 1)
	for b.Len() < maxLine {
		if _, err := io.ReadFull(r, one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return b.String(), nil
		}
		b.WriteByte(one[0])
	}
	return "", errors.New("line too long")
}

// Answer is the sandbox's end: it keeps the control connection to the daemon's socket, through every restart of that, and
// dials inside as it is told. It ends with ctx.
func Answer(ctx context.Context, socket string, dial func(ctx context.Context, port int) (Stream, error)) {
	const shortest, longest = 50 * time.Millisecond, time.Second
	wait := shortest
	for ctx.Err() == nil {
		if conn, err := net.Dial("unix", socket); err == nil {
			wait = shortest
			obey(ctx, conn, socket, dial)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			wait = min(2*wait, longest)
		}
	}
}

func obey(ctx context.Context, control net.Conn, socket string, dial func(context.Context, int) (Stream, error)) {
	defer control.Close()
	stop := context.AfterFunc(ctx, func() { control.Close() })
	defer stop()
	if _, err := io.WriteString(control, helloControl+"\n"); err != nil {
		return
	}
	lines := bufio.NewScanner(control)
	for lines.Scan() {
		order, ok := strings.CutPrefix(lines.Text(), orderDial)
		number, token, ok2 := strings.Cut(order, " ")
		port, err := strconv.Atoi(number)
		if !ok || !ok2 || err != nil {
			continue
		}
		go answer(ctx, socket, port, token, dial)
	}
}

func answer(ctx context.Context, socket string, port int, token string, dial func(context.Context, int) (Stream, error)) {
	host, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer host.Close()
	timeout, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	inside, err := dial(timeout, port)
	if err != nil {
		fmt.Fprintf(host, "%s-%s\n", helloConn, token)
		return
	}
	if _, err := fmt.Fprintf(host, "%s%s\n", helloConn, token); err != nil {
		inside.Close()
		return
	}
	Join(host.(*net.UnixConn), inside)
}
