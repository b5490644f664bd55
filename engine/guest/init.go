package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/sbxpair/sbxpair/engine/ports"
)

// maxConns bounds the connections that are forwarded at once; further ones wait in the listener's queue.
const maxConns = 4096

// runInit is process 1: it collects orphans, forwards [ProxyAddr] to the host's socket, and connects published ports, until
// ctx is done.
func runInit(ctx context.Context, ready *os.File) error {
	ln, err := net.Listen("tcp4", ProxyAddr)
	if err != nil {
		return fmt.Errorf("proxy forwarder: %w", err)
	}
	go reap()
	go ports.Answer(ctx, filepath.Join(ProxyDir, "ports.sock"), dialInside)
	if ready != nil {
		ready.Write([]byte{1})
		ready.Close()
	}
	return forward(ctx, ln, filepath.Join(ProxyDir, "proxy.sock"))
}

// reap takes the end of every child, for as long as the process lives: orphans become children of process 1. Between them it
// sleeps: a process that looked again and again would cost each idle sandbox a hundredth of a core.
func reap() {
	ended := make(chan os.Signal, 1) // one that waits here stands for all of its kind, as in the kernel
	signal.Notify(ended, syscall.SIGCHLD)
	for {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 && err != syscall.EINTR {
				break
			}
		}
		select {
		case <-ended:
		case <-time.After(time.Minute): // should a signal ever be lost
		}
	}
}

// forward carries each connection that ln accepts to the unix socket and back, until ctx is done.
func forward(ctx context.Context, ln net.Listener, socket string) error {
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	slots := make(chan struct{}, maxConns)
	for {
		slots <- struct{}{}
		conn, err := ln.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // such as no descriptors: it passes when connections end
			<-slots
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go func() {
			defer func() { <-slots }()
			carry(conn.(*net.TCPConn), socket)
		}()
	}
}

func carry(client *net.TCPConn, socket string) {
	defer client.Close()
	up, err := net.DialTimeout("unix", socket, 5*time.Second)
	if err != nil {
		io.WriteString(client, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"+
			"The egress proxy of this sandbox is not running; any sbx-local command on the host starts it again.\n")
		client.CloseWrite()
		client.SetReadDeadline(time.Now().Add(time.Second)) // an end with something unread would take the answer away
		io.Copy(io.Discard, io.LimitReader(client, 1<<20))
		return
	}
	ports.Join(client, up.(*net.UnixConn))
}

// dialInside connects to a published port, on whichever loopback address something listens.
func dialInside(ctx context.Context, port int) (ports.Stream, error) {
	var d net.Dialer
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
