//go:build linux

// Command sbx-local is a local engine for sbxpair: it answers to the command line of Docker's sbx 0.47, and each of its
// sandboxes is a gVisor sandbox of its own. One static binary holds everything: the command, its daemon, gVisor, and the
// helper that is process 1 in a sandbox.
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli/maincli"

	"github.com/sbxpair/sbxpair/cmd/sbx-local/command"
	"github.com/sbxpair/sbxpair/engine/guest"
	"github.com/sbxpair/sbxpair/engine/lower"
)

// stamp is set by the linker (-X main.stamp=…) from git; a plain go build leaves it empty.
var stamp string

// version and revision of this program: the stamp, and the commit that the Go toolchain noted, as far as they are known.
func version() (version, revision string) {
	version, revision = "dev", "unknown"
	if stamp != "" {
		version, revision = stamp, stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return version, revision
}

func main() {
	args := os.Args[1:]
	switch {
	case isRunscChild(os.Args[0]):
		maincli.Main()
	case len(args) > 0 && args[0] == "_runsc":
		os.Args = append(os.Args[:1], args[1:]...)
		maincli.Main()
	case len(args) > 2 && args[0] == lower.Verb:
		if lower.Mount(args[1]) != nil { // it left word where the engine looks
			os.Exit(1)
		}
		os.Args = append(os.Args[:1], args[3:]...) // after "_runsc"
		maincli.Main()
	case len(args) > 0 && args[0] == guest.Verb:
		os.Exit(guest.Main(args[1:], os.Stdin, os.Stdout, os.Stderr))
	case len(args) == 1 && args[0] == "_true": // what the probe starts in a new user namespace
	default:
		os.Exit(run(args))
	}
}

// isRunscChild reports whether gVisor re-executed us: as runsc-sandbox or runsc-gofer, or under its plain ExePath
// (for its umount helper), which the engine itself never uses as argv[0].
func isRunscChild(argv0 string) bool {
	return argv0 == "/proc/self/exe" || strings.HasPrefix(filepath.Base(argv0), "runsc")
}

func run(args []string) int {
	// What our caller left open (a lock, a pipe that somebody reads to its end) is not for the daemon and the sandboxes,
	// which outlive us. Kernels before 5.11 cannot; there it stays as it is.
	unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	syscall.Umask(0o022) // a sandbox's root file system is for all its users, whatever the caller's umask
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		return 1
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // the first signal ends the work in order, a second one at once
		for s := range signals {
			if ctx.Err() != nil {
				os.Exit(128 + int(s.(syscall.Signal)))
			}
			cancel(&command.SignalError{Signal: int(s.(syscall.Signal))})
		}
	}()
	version, revision := version()
	return command.Run(ctx, command.Environment{
		Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
		Self: self, Version: version, Revision: revision,
	})
}
