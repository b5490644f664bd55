package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// maxConns bounds the connections that are forwarded at once; further ones wait in the listener's queue.
const maxConns = 4096

// runInit is process 1: it collects orphans and forwards [ProxyAddr] to the host's socket until ctx is done.
func runInit(ctx context.Context, ready *os.File) error {
	ln, err := net.Listen("tcp4", ProxyAddr)
	if err != nil {
		return fmt.Errorf("proxy forwarder: %w", err)
	}
	go reap()
	if ready != nil {
		ready.Write([]byte{1})
		ready.Close()
	}
	return forward(ctx, ln, filepath.Join(ProxyDir, "proxy.sock"))
}

// reap waits for every child there is, for as long as the process lives: orphans become children of process 1.
func reap() {
	for {
		var ws syscall.WaitStatus
		if pid, err := syscall.Wait4(-1, &ws, 0, nil); pid <= 0 && err != syscall.EINTR {
			time.Sleep(100 * time.Millisecond) // no children: there is no event to wait for without racing
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

// halfCloser is a stream whose two directions end on their own.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

func carry(client halfCloser, socket string) {
	defer client.Close()
	up, err := net.DialTimeout("unix", socket, 5*time.Second)
	if err != nil {
		io.WriteString(client, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"+
			"The egress proxy of this sandbox is not running; any sbx-local command on the host starts it again.\n")
		return
	}
	defer up.Close()
	server := up.(halfCloser)
	var wg sync.WaitGroup
	wg.Go(func() { pipe(server, client) })
	pipe(client, server)
	wg.Wait()
}

// pipe copies until src ends, then ends dst's direction; on an error both ends are closed, so that the peer ends too.
func pipe(dst, src halfCloser) {
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		src.Close()
		return
	}
	dst.CloseWrite()
}
