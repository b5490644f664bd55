package engine_test

import (
	"bytes"
	"testing"

	"github.com/sbxpair/sbxpair/engine/enginetest"
)

// Run by root, the tests with real sandboxes run once more as an ordinary user.
func TestAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	out := enginetest.AsOrdinaryUser(t, "^(TestSandbox|TestExecEndsWithItsClient|TestStopStart|TestRemoveLeavesNothing|TestCreateInterrupted)$")
	if bytes.Contains(out, []byte("--- SKIP: TestSandbox")) {
		t.Skipf("sandboxes do not run for an ordinary user here:\n%s", out)
	}
}
