package sentry_test

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/engine/sentry"
)

// TestProgram holds what the kernel of a sandbox is told and how its answers are taken. That gVisor understands it is
// shown by every test with a sandbox.
func TestProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []string // each to one call; after the last one the kernel is gone
		pid     int
		status  syscall.WaitStatus
		refused string
		gone    bool
	}{
		"ends with a code":         {answers: []string{`{"success":true,"result":7}`, `{"success":true,"result":768}`}, pid: 7, status: 3 << 8},
		"ended by a signal":        {answers: []string{`{"success":true,"result":7}`, `{"success":true,"result":9}`}, pid: 7, status: 9},
		"not started":              {answers: []string{`{"success":false,"err":"no such file or directory"}`}, refused: "no such file or directory"},
		"the kernel dies under it": {answers: []string{`{"success":true,"result":7}`}, pid: 7, gone: true},
		"the kernel dies before":   {gone: true},
		"half an answer":           {answers: []string{`{"success":true,"res`}, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			socket := sentry.Socket{Path: filepath.Join(t.TempDir(), "s"), Container: "box"}
			calls := serve(t, socket.Path, tt.answers)
			file, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			program, err := sentry.Start(t.Context(), socket, sentry.Process{
				Argv: []string{"ls"}, Env: []string{"A=1"}, Dir: "/w", UID: 5, GID: 6, Bounding: 3, Held: 1, Files: []*os.File{file},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			file.Close() // the kernel has its own by now
			program.GiveUp(10 * time.Second)
			var status syscall.WaitStatus
			pid, err := program.PID()
			if err == nil {
				status, err = program.Wait(pid)
			}
			if pid != tt.pid || status != tt.status {
				t.Errorf("pid %d, status %#x; want %d, %#x", pid, status, tt.pid, tt.status)
			}
			if errors.Is(err, sentry.ErrGone) != tt.gone {
				t.Errorf("%v, want the kernel gone: %v", err, tt.gone)
			}
			if refusal, ok := errors.AsType[*sentry.RefusalError](err); ok != (tt.refused != "") || ok && refusal.Words != tt.refused {
				t.Errorf("%v, want %q", err, tt.refused)
			}
			const want = `{"method":"containerManager.ExecuteAsync","arg":{"argv":["ls"],"envv":["A=1"],"wd":"/w","KUID":5,"KGID":6,"ExtraKGIDs":null,` +
				`"Capabilities":{"PermittedCaps":1,"InheritableCaps":0,"EffectiveCaps":1,"BoundingCaps":3,"AmbientCaps":0},"StdioIsPty":false,"SupportTTYs":true,` +
				`"GuestFDs":[0],"ContainerID":"box"}}`
			if first := <-calls; first.text != want || first.files != 1 {
				t.Errorf("told %s with %d files", first.text, first.files)
			}
		})
	}
	if _, err := sentry.Start(t.Context(), sentry.Socket{Path: filepath.Join(t.TempDir(), "none")}, sentry.Process{}); !errors.Is(err, sentry.ErrGone) {
		t.Errorf("nobody listens: %v", err)
	}
}

type call struct {
	text  string
	files int
}

// serve is a kernel that takes one connection and hands out what it is told.
func serve(t *testing.T, path string, answers []string) <-chan call {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	calls := make(chan call, len(answers)+1)
	go func() {
		defer close(calls)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for i := 0; ; i++ {
			data, oob := make([]byte, 64<<10), make([]byte, 256)
			n, m, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(data, oob)
			if err != nil || !json.Valid(data[:n]) {
				return
			}
			c := call{text: string(data[:n])}
			if list, err := unix.ParseSocketControlMessage(oob[:m]); err == nil && len(list) == 1 {
				fds, _ := unix.ParseUnixRights(&list[0])
				for _, fd := range fds {
					unix.Close(fd)
				}
				c.files = len(fds)
			}
			calls <- c
			if i == len(answers) {
				return
			}
			conn.Write([]byte(answers[i]))
			if i == len(answers)-1 && len(answers) < 2 {
				return
			}
		}
	}()
	return calls
}
