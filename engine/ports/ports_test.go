package ports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for spec, want := range map[string][]string{
		"8080":              {"127.0.0.1:0 -> 8080/tcp4"},
		"18081:8080":        {"127.0.0.1:18081 -> 8080/tcp4"},
		"0.0.0.0:1:2":       {"0.0.0.0:1 -> 2/tcp4"},
		"8080/tcp":          {"127.0.0.1:0 -> 8080/tcp", "[::1]:0 -> 8080/tcp"},
		"1:2/tcp":           {"127.0.0.1:1 -> 2/tcp", "[::1]:1 -> 2/tcp"},
		"127.0.0.1:1:2/tcp": {"127.0.0.1:1 -> 2/tcp"},
		"8080/tcp6":         {"[::1]:0 -> 8080/tcp6"},
		"[::1]:1:2":         {"[::1]:1 -> 2/tcp6"},
		"::1:1:2":           {"[::1]:1 -> 2/tcp6"},
		"":                  nil, "0": nil, "65536": nil, "x": nil, "1:2:3": nil, "+1": nil, "-1": nil, "1:": nil, ":1:2": nil,
		"1:2/udp": nil, "8080/sctp": nil, "localhost:1:2": nil, "[::1]:1:2/tcp4": nil, "127.0.0.1:1:2/tcp6": nil, "[fe80::1%lo]:1:2": nil,
		"224.0.0.1:1:2": nil, "[ff02::1]:1:2": nil, "255.255.255.255:1:2": nil,
	} {
		got, err := Parse(spec)
		var texts []string
		for _, p := range got {
			texts = append(texts, p.String())
		}
		if (err != nil) != (want == nil) || !slices.Equal(texts, want) {
			t.Errorf("Parse(%q) = %q, %v; want %q", spec, texts, err, want)
		}
	}
}

// A box is both ends of a link, with a server inside that answers each connection with what it read, in capitals.
type box struct {
	f      *Forwarder
	socket string
	ctx    context.Context
	inside net.Listener
}

func newBox(t *testing.T) *box {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &box{socket: filepath.Join(t.TempDir(), "ports.sock"), ctx: ctx}
	var err error
	if b.inside, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		b.inside.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			conn, err := b.inside.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer conn.Close()
				data, _ := io.ReadAll(conn)
				io.WriteString(conn, strings.ToUpper(string(data)))
			})
		}
	})
	work.Go(func() {
		Answer(ctx, b.socket, func(ctx context.Context, port int) (Stream, error) {
			if port != 8080 {
				return nil, errors.New("refused")
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp4", b.inside.Addr().String())
			if err != nil {
				return nil, err
			}
			return conn.(*net.TCPConn), nil
		})
	})
	return b
}

// serve starts the daemon's end, and returns how to end it.
func (b *box) serve(t *testing.T) (stop func()) {
	t.Helper()
	ln, err := net.Listen("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	b.f = New(slog.New(slog.DiscardHandler))
	var work sync.WaitGroup
	work.Go(func() { b.f.Serve(ctx, ln) })
	stop = func() {
		cancel()
		work.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func (b *box) publish(t *testing.T, sandboxPort int) Port {
	t.Helper()
	port, err := Free("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	p := Port{"127.0.0.1", port, sandboxPort, "tcp4"}
	if failed := b.f.Set(b.ctx, []Port{p}); len(failed) > 0 {
		t.Fatal(failed)
	}
	return p
}

func talk(p Port, text string) (string, error) {
	conn, err := net.Dial("tcp", p.Host())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	conn.(*net.TCPConn).CloseWrite()
	data, err := io.ReadAll(conn)
	return string(data), err
}

func TestForward(t *testing.T) {
	b := newBox(t)
	stop := b.serve(t)
	p := b.publish(t, 8080)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			text := strings.Repeat(fmt.Sprintf("text %d ", i), 5000)
			if got, err := talk(p, text); err != nil || got != strings.ToUpper(text) {
				t.Errorf("%d bytes came back of %d, %v", len(got), len(text), err)
			}
		})
	}
	wg.Wait()
	if failed := b.f.Set(b.ctx, []Port{p}); len(failed) > 0 {
		t.Errorf("the same again: %v", failed)
	}
	q := p
	q.HostIP, q.SandboxPort = "127.0.0.2", 81
	if failed := b.f.Set(b.ctx, []Port{p, q}); len(failed) > 0 {
		t.Fatal(failed)
	}
	if got, err := talk(q, "x"); err == nil {
		t.Errorf("a port on which nothing listens answered %q", got)
	}
	r := p
	r.SandboxPort = 82
	if failed := b.f.Set(b.ctx, []Port{p, r}); failed[r] == nil || failed[p] != nil {
		t.Errorf("one address twice: %v", failed)
	}
	if failed := b.f.Set(b.ctx, nil); len(failed) > 0 {
		t.Errorf("none: %v", failed)
	}
	if _, err := talk(p, "x"); err == nil {
		t.Error("a port that was taken back answers")
	}
	stop()
	b.serve(t) // the daemon comes back: so does the link
	p = b.publish(t, 8080)
	if got, err := talk(p, "again"); err != nil || got != "AGAIN" {
		t.Errorf("after a restart: %q, %v", got, err)
	}
}

// What the sandbox says on the link cannot do more than break its own ports, and holds nothing for ever.
func TestHostileLink(t *testing.T) {
	b := newBox(t)
	b.serve(t)
	p := b.publish(t, 8080)
	say := func(text string) {
		conn, err := net.Dial("unix", b.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(conn, text)
		if data, err := io.ReadAll(conn); len(data) > 0 {
			t.Errorf("%.20q was answered with %q, %v", text, data, err)
		}
	}
	for _, text := range []string{"nonsense\n", "conn \n", "conn -\n", "conn unknown\n", strings.Repeat("x", 1000)} {
		say(text)
	}
	// A second control connection takes over, and its end gives way to the first's return.
	thief, err := net.Dial("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(thief, "control\n")
	thief.SetDeadline(time.Now().Add(20 * time.Second))
	thief.Close()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got, err := talk(p, "x")
		if got == "X" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the link does not come back: %q, %v", got, err)
		}
	}
}
