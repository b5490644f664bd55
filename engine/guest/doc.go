// Package guest is the part of sbx-local that runs inside a sandbox: process 1, and the helpers behind cp, user look-up,
// terminals and killing what an exec left. It speaks over standard streams only, and trusts nothing of the host but its arguments.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// Dir is where the engine mounts this program in a sandbox, and Path what to start.
const (
	Dir  = "/.sbx"
	Path = Dir + "/sbx-local"
	Verb = "_guest" // argv[1] that leads here
)

// ProxyAddr is where process 1 listens for the sandbox's programs, ProxyDir where the host's socket is.
const (
	ProxyAddr = "127.0.0.1:3128"
	ProxyDir  = "/run/sbx"
)

// ReadyFD is the descriptor on which process 1 writes one byte when programs may start.
const ReadyFD = 3

// Mark is the variable that ties a process to the exec that started it: children inherit it.
const Mark = "SBX_EXEC_ID"

// errUsage is a call that the engine of this very binary would not make.
var errUsage = errors.New("guest: bad arguments")

// Main runs one helper and returns the process's exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[0] == "tty" {
		word := os.NewFile(WordFD, "word")
		syscall.CloseOnExec(WordFD)
		code, err := runTTY(args[1:])
		if err != nil {
			fmt.Fprint(word, err)
			return 1
		}
		return code
	}
	if err := dispatch(args, stdin, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func dispatch(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	verb, args := args[0], args[1:]
	switch {
	case verb == "init" && len(args) == 0:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		return runInit(ctx, os.NewFile(ReadyFD, "ready"))
	case verb == "put" && len(args) == 3:
		return put(args[0], args[1], args[2] == "contents", stdin)
	case verb == "get" && len(args) == 2:
		return get(args[0], args[1] == "follow", stdout, stderr)
	case verb == "user" && len(args) == 1:
		return lookupUser(args[0], stdout)
	case verb == "group" && len(args) == 1:
		return lookupGroup(args[0], stdout)
	case verb == "kill" && len(args) == 2:
		root, err := strconv.Atoi(args[1])
		if err != nil {
			return errUsage
		}
		return killTree("/proc", args[0], root)
	}
	return errUsage
}
