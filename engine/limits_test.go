package engine_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/enginetest"
	"github.com/sbxpair/sbxpair/engine/guest"
)

// The helper refuses calls that the engine would not make.
func TestGuestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"init", "x"}, {"put", "a"}, {"kill", "x", "y"}, {"nothing"}} {
		var errs bytes.Buffer
		if code := guest.Main(args, strings.NewReader(""), io.Discard, &errs); code != 1 || errs.Len() == 0 {
			t.Errorf("guest %q: exit %d, %q", args, code, errs.String())
		}
	}
}

// Where control groups can be had, the limits hold; where not, the record says so.
func TestLimits(t *testing.T) {
	e, workspace := newEngine(t)
	r, err := e.Create(t.Context(), engine.CreateSpec{Name: "demo", Agent: "shell", MemoryMiB: 512, Workspaces: []engine.Workspace{{Path: workspace}}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Limits != "cgroup" {
		if !strings.HasPrefix(r.Limits, "none: ") {
			t.Errorf("limits %q, want a reason", r.Limits)
		}
		t.Skipf("limits cannot be had here: %s", r.Limits)
	}
	if code, err := e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"sh", "-c", "head -c 900M /dev/zero | tail -c 800M >/dev/null"}}); err == nil && code == 0 {
		t.Error("800 MiB of memory were had within 512")
	}

	if out, err := cli(t.Context(), e, "settings", "set", "limits.pids", "96").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r = create(t, e, "threads", workspace)
	groups, _ := filepath.Glob("/sys/fs/cgroup/*" + r.ID) // version 2
	if len(groups) == 0 {
		groups, _ = filepath.Glob("/sys/fs/cgroup/pids/*" + r.ID)
	}
	if len(groups) != 1 {
		t.Fatalf("control groups %q", groups)
	}
	number := func(file string) int {
		data, err := os.ReadFile(filepath.Join(groups[0], file))
		if err != nil {
			return 0 // the sandbox has ended at its limit
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(data)))
		return n
	}
	if n := number("pids.max"); n != 96 {
		t.Errorf("the kernel's limit is %d, want 96", n)
	}
	var out bytes.Buffer // the sandbox may end at the limit, and the exec with it
	_, err = e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"sh", "-c", "i=0; while [ $i -lt 300 ]; do sleep 60 & i=$((i+1)); done; echo all"}, Stdout: &out})
	if n := number("pids.current"); n > 96 {
		t.Errorf("%d threads on the host, of 96", n)
	}
	if err == nil && out.String() == "all\n" {
		t.Error("300 processes were had with 96 threads")
	}
	if _, _, _, err := e.Ensure(t.Context(), "threads"); err != nil { // whatever became of it
		t.Errorf("after its limit: %v", err)
	}
}

// What a sandbox may hold outside its workspaces is bounded.
func TestDiskLimit(t *testing.T) {
	e, workspace := newEngine(t)
	if out, err := cli(t.Context(), e, "settings", "set", "limits.diskGiB", "1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := create(t, e, "demo", workspace)
	if got := sh(t, e, r, "echo $(( $(stat -f -c '%b * %S' / ) >> 20 ))"); got != "1024" {
		t.Errorf("the disk has %s MiB, want 1024", got)
	}
	if out, errs, code := run(t, e, r, engine.ExecSpec{Argv: []string{"fallocate", "-l", "1100M", "/usr/b"}}); code == 0 {
		t.Errorf("1.1 GB were had of 1 GiB: %s%s", out, errs)
	}
	// Holes cost a sandbox nothing, and the host the zeros that are written in their place.
	sh(t, e, r, "rm -f /usr/b; truncate -s 900T /home/agent/hole")
	if _, err := e.Stop(t.Context(), "demo"); !errors.Is(err, engine.ErrDisk) {
		t.Errorf("stop with a hole of 900 TB: %v, want ErrDisk", err)
	}
	if left, err := filepath.Glob(filepath.Join(e.State.SandboxDir("demo"), "*.new")); err != nil || left != nil {
		t.Errorf("left behind: %q, %v", left, err)
	}
	enginetest.Eventually(t, "it does not go on", func() bool { // its kernel makes room for the zeros first, and may end by that
		r, _, _, err := e.Ensure(t.Context(), "demo")
		if err != nil {
			return false
		}
		_, err = e.Exec(t.Context(), r, engine.ExecSpec{Argv: []string{"rm", "-f", "/home/agent/hole"}})
		return err == nil
	})
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Errorf("stop without the hole: %v", err)
	}
}
