package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// stamp is set by the linker (-X main.stamp=…) from git; a plain go build leaves it empty.
var stamp string

// version returns the stamp, else what the Go toolchain knows of the module.
func version() string {
	if stamp != "" {
		return stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func newVersionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: usage(noArgs),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{a.version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "sbxpair %s (%s, %s)\n", v.Version, v.Go, v.Platform) })
		},
	}
}
