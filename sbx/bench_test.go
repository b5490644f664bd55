//go:build unix

package sbx_test

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
)

// BenchmarkProcess compares a call through Exec with the bare start of the same process: the difference is what the
// wrapper costs.
func BenchmarkProcess(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.CommandContext(b.Context(), "/bin/true")
			var out, errOut bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errOut
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("exec", func(b *testing.B) {
		x := sbx.Exec{Path: "/bin/true", Env: sbx.Environ([]string{"PATH=/bin"})}
		for b.Loop() {
			if _, err := x.Run(b.Context(), sbx.Cmd{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("client", func(b *testing.B) {
		c := sbx.New("/bin/true", v47())
		for b.Loop() {
			if err := c.Unverified().Stop(b.Context(), "box"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
