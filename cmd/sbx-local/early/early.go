//go:build linux

// Package early does what this program does inside a sandbox, before the packages of gVisor are initialised, which takes longer
// than the work itself: process 1 of every sandbox, and each copy and look-up there, would wait for it.
//
// Go initialises packages in the order of their import paths as far as what they import allows, and this one needs little and
// comes before gvisor.dev. Were the order another one, it would do the same, later.
package early

import (
	"os"

	"github.com/sbxpair/sbxpair/engine/guest"
)

func init() {
	switch args := os.Args[1:]; {
	case len(args) > 0 && args[0] == guest.Verb:
		os.Exit(guest.Main(args[1:], os.Stdin, os.Stdout, os.Stderr))
	case len(args) == 1 && args[0] == "_true": // what the probe starts in a new user namespace
		os.Exit(0)
	}
}
