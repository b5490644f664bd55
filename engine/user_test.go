package engine_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// ordinaryID is a user that needs no entry anywhere: a rootless sandbox has just this one.
const ordinaryID = 54321

// Run by root, the tests with real sandboxes run once more as an ordinary user.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as an ordinary user already")
	}
	t.Parallel()
	binary := enginetest.Binary(t)
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
	test := filepath.Join(dir, "engine.test")
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(test, program, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, ordinaryID, ordinaryID)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, test, "-test.run=^(TestSandbox|TestExecEndsWithItsClient|TestStopStart|TestRemoveLeavesNothing|TestCreateInterrupted)$", "-test.count=1", "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp, "XDG_RUNTIME_DIR=", enginetest.BinaryEnv+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryID, Gid: ordinaryID}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { os.RemoveAll("/tmp/sbx-local-54321") })
	if bytes.Contains(out, []byte("--- SKIP: TestSandbox")) {
		t.Skipf("sandboxes do not run for an ordinary user here:\n%s", out)
	}
	if testing.Verbose() {
		t.Logf("%s", out)
	}
}
