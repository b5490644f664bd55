package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	for stat, want := range map[string]process{
		"7 (sh) S 1 7 7 0":          {pid: 7, parent: 1, session: 7},
		"7 (a) Z b) c) Z 3 4 5 0":   {pid: 7, parent: 3, session: 5, zombie: true},
		"7 (x\n) 1 2 3) R 9 8 -1 0": {pid: 7, parent: 9, session: -1},
	} {
		if got, ok := parseStat(7, stat); !ok || got != want {
			t.Errorf("parseStat(%q) = %+v, %v; want %+v", stat, got, ok, want)
		}
	}
	for _, stat := range []string{"", "7 sh S 1 7", "7 (sh) S", "7 (sh) S x 7 7"} {
		if got, ok := parseStat(7, stat); ok {
			t.Errorf("parseStat(%q) = %+v, want nothing", stat, got)
		}
	}
}

// What belongs to an exec: its root, descendants, what shares a session with those, what carries the mark; nothing else,
// and never process 1.
func TestGrow(t *testing.T) {
	procs := []process{
		{pid: 1, session: 1},
		{pid: 10, session: 10},                          // root
		{pid: 11, parent: 10, session: 10},              // child
		{pid: 12, parent: 1, session: 10},               // orphan in the session
		{pid: 13, parent: 11, session: 13},              // child that left the session
		{pid: 14, parent: 1, session: 13},               // orphan of that
		{pid: 15, parent: 1, session: 15, marked: true}, // found by its mark alone
		{pid: 16, parent: 15, session: 15},
		{pid: 20, parent: 0, session: 20}, // another exec
		{pid: 21, parent: 20, session: 20},
		{pid: 22, parent: 1, session: 1},
	}
	known := map[int]bool{10: true}
	grow(procs, known)
	for _, pid := range []int{10, 11, 12, 13, 14, 15, 16} {
		if !known[pid] {
			t.Errorf("%d is not found", pid)
		}
	}
	for _, pid := range []int{1, 20, 21, 22} {
		if known[pid] {
			t.Errorf("%d is taken for one of it", pid)
		}
	}
	unknown := map[int]bool{0: true} // the client was killed before it noted the root
	grow(procs, unknown)
	for _, p := range procs {
		if want := p.pid == 15 || p.pid == 16; unknown[p.pid] != want {
			t.Errorf("without a root: %d is taken for one of it: %v", p.pid, unknown[p.pid])
		}
	}
}

func TestReadProcsMark(t *testing.T) {
	proc := t.TempDir()
	for pid, env := range map[int]string{5: "A=1\x00" + Mark + "=abc\x00B=2\x00", 6: "X" + Mark + "=abc\x00", 7: Mark + "=abcd\x00", 8: Mark + "=abc", 9: ""} {
		dir := filepath.Join(proc, fmt.Sprint(pid))
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "stat"), []byte(fmt.Sprintf("%d (x) S 1 1 1 0", pid)), 0o644),
			os.WriteFile(filepath.Join(dir, "environ"), []byte(env), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	procs, err := readProcs(proc, "abc")
	if err != nil || len(procs) != 5 {
		t.Fatalf("%+v, %v", procs, err)
	}
	for _, p := range procs {
		if want := p.pid == 5 || p.pid == 8; p.marked != want {
			t.Errorf("%d: marked %v, want %v", p.pid, p.marked, want)
		}
	}
}

// The forwarder carries both directions, ends each on its own, and says so when there is no proxy.
func TestForward(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "proxy.sock")
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- forward(ctx, ln, socket) }()
	talk := func(send string) string {
		conn, err := net.Dial("tcp4", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(conn, send)
		conn.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer)
	}
	if got := talk("GET"); !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, "proxy of this sandbox is not running") {
		t.Errorf("without a proxy: %q", got)
	}
	up, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	go func() {
		for {
			conn, err := up.Accept()
			if err != nil {
				return
			}
			data, _ := io.ReadAll(conn) // to the end of the client's direction
			io.WriteString(conn, "got "+string(data))
			conn.Close()
		}
	}()
	big := strings.Repeat("x", 1<<20)
	for _, send := range []string{"hello", "", big} {
		if got := talk(send); got != "got "+send {
			t.Errorf("%d bytes came back, want %d", len(got), len(send)+4)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("forward ended with %v", err)
	}
}
