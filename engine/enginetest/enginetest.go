// Package enginetest gives tests the real sbx-local and real sandboxes.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/engine"
)

// buildTimeout bounds a cold build on two slow cores.
const buildTimeout = 15 * time.Minute

// BinaryEnv names a ready sbx-local, for a test process that may not or cannot build.
const BinaryEnv = "SBX_LOCAL_TEST_BINARY"

// built is the one build of this test process.
var built = sync.OnceValues(func() (string, error) { return build(context.Background()) })

// Binary builds sbx-local from this checkout and returns its path, which every user may run. Test binaries of several
// packages share the result: go's own cache makes all but the first build short.
func Binary(tb testing.TB) string {
	tb.Helper()
	if path := os.Getenv(BinaryEnv); path != "" {
		return path
	}
	path, err := built()
	if err != nil {
		tb.Fatalf("build sbx-local: %v", err)
	}
	return path
}

func build(ctx context.Context) (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("cannot find the source folder")
	}
	module := filepath.Join(filepath.Dir(file), "..", "..")
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("sbxpair-test-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
		return "", fmt.Errorf("%s is not a folder of ours", dir)
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	lock := flock.New(filepath.Join(dir, "lock"))
	if _, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		return "", err
	}
	defer lock.Unlock()
	path := filepath.Join(dir, "sbx-local")
	// A new file each time: sandboxes of a test that still runs are mapped to the old one.
	fresh := path + ".new"
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", fresh, "./cmd/sbx-local")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, os.Rename(fresh, path)
}

// Require skips the test, with the reason, where gVisor cannot run; where CI=true it fails instead.
func Require(tb testing.TB, e *engine.Engine) {
	tb.Helper()
	err := e.BootTest(tb.Context())
	if err == nil {
		return
	}
	if _, cannot := errors.AsType[*engine.IsolationError](err); cannot && os.Getenv("CI") != "true" {
		tb.Skipf("no sandbox can run here: %v", err)
	}
	tb.Fatalf("a sandbox does not start: %v", err)
}

// State makes a state folder for the test. Sandboxes in it are removed, and its daemon ended, when the test ends; a
// process of it that is left then fails the test.
func State(t *testing.T, binary string) *engine.State {
	t.Helper()
	st, err := engine.OpenState(filepath.Join(t.TempDir(), "state"), os.Getenv("XDG_RUNTIME_DIR"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Clean(t, binary, st) })
	return st
}

// Env is the variable that makes sbx-local use the state.
func Env(st *engine.State) string { return "SBX_LOCAL_STATE=" + st.Dir }

// Clean removes the sandboxes of a state and ends its daemon; it fails the test if something cannot be removed or is left.
func Clean(t *testing.T, binary string, st *engine.State) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{{"rm", "--force", "--all"}, {"daemon", "stop"}} {
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = append(os.Environ(), Env(st))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("clean up: sbx-local %v: %v: %s", args, err, out)
		}
	}
	if left := Processes(st); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
	os.RemoveAll(st.Runtime)
}

// Processes lists the command lines of processes that belong to the state's sandboxes.
func Processes(st *engine.State) []string {
	var left []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(data), st.Runtime) {
			left = append(left, string(data))
		}
	}
	return left
}

// Eventually polls until ok, or fails the test after ten seconds.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("timed out: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// AsOrdinaryUser runs tests of the calling test's own binary once more, as an ordinary user whom no other test has, with env
// (NAME=VALUE) over the environment, and returns their output. Root alone can; others skip, since their tests run that way
// already. The binary under test is given to it by [BinaryEnv].
func AsOrdinaryUser(t *testing.T, run string, env ...string) []byte {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as an ordinary user already")
	}
	binary := Binary(t)
	// It needs no entry anywhere: a rootless sandbox has just this user.
	user := 50_000 + rand.IntN(1<<20)
	dir, err := os.MkdirTemp("", "sbx-user-") // t.TempDir's parents are root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	test, tmp := filepath.Join(dir, "user.test"), filepath.Join(dir, "tmp")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(test, program, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, user, user)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, test, "-test.run="+run, "-test.count=1", "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp, "XDG_RUNTIME_DIR=", BinaryEnv+"="+binary)
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	out, err := cmd.CombinedOutput()
	t.Cleanup(func() { os.RemoveAll(fmt.Sprintf("/tmp/sbx-local-%d", user)) })
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	return out
}
