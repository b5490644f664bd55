package command

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

func newCpCmd(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "cp [-L] SRC DST",
		Short: "Copy files between the host and a sandbox (SANDBOX:/absolute/path)",
		Args:  usage(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCp(cmd.Context(), a, follow, args[0], args[1])
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow-link", "L", false, "copy what a link at SRC leads to")
	return cmd
}

func runCp(ctx context.Context, a *app, follow bool, src, dst string) error {
	srcBox, srcPath, srcRemote := splitRemote(src)
	dstBox, dstPath, dstRemote := splitRemote(dst)
	switch {
	case srcRemote && dstRemote:
		return hint(errors.New("copying between sandboxes is not supported"), "sbx cp --help")
	case !srcRemote && !dstRemote:
		return hint(errors.New("one of SRC and DST must be SANDBOX:/path"), "sbx cp --help")
	case srcPath == "" || dstPath == "":
		return hint(errors.New("path must not be empty"), "sbx cp --help")
	case srcPath == "-" || dstPath == "-":
		return errors.New("copying from or to a stream is not supported")
	case srcRemote && !path.IsAbs(srcPath), dstRemote && !path.IsAbs(dstPath):
		return errors.New("container path must be absolute")
	}
	e, err := a.engine()
	if err != nil {
		return err
	}
	name := srcBox + dstBox
	hold, err := e.Hold(ctx, name)
	if err != nil {
		return worded(err, name)
	}
	defer hold.Close()
	r, err := a.ensure(ctx, e, name)
	if err != nil {
		return err
	}
	var left string
	if srcRemote {
		left, err = e.CopyOut(ctx, r, srcPath, dstPath, follow)
	} else {
		left, err = e.CopyIn(ctx, r, srcPath, dstPath, follow)
	}
	if err == nil && left != "" {
		fmt.Fprintf(a.Stderr, "note: %s\n", strings.Map(printable, left))
	}
	return worded(err, name)
}

// printable drops what would act on a terminal: the words may be a sandbox's.
func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return -1
	}
	return r
}

// splitRemote splits SANDBOX:PATH. As in docker cp, a path that starts with / or . is a local one, colons and all.
func splitRemote(arg string) (sandbox, p string, remote bool) {
	if arg != "" && (arg[0] == '/' || arg[0] == '.') {
		return "", arg, false
	}
	sandbox, p, remote = strings.Cut(arg, ":")
	if !remote || strings.Contains(sandbox, "/") {
		return "", arg, false
	}
	return sandbox, p, true
}
