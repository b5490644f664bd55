package command

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
)

type clientVersion struct {
	Version       string `json:"version"`
	Revision      string `json:"revision"`
	Engine        string `json:"engine"`
	EngineVersion string `json:"engine_version"`
	Isolation     string `json:"isolation"`
}

type serverVersion struct {
	State         string `json:"state"`
	Version       string `json:"version,omitempty"`
	Revision      string `json:"revision,omitempty"`
	EngineVersion string `json:"engine_version,omitempty"`
}

func newVersionCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return runVersion(cmd.Context(), a, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func runVersion(ctx context.Context, a *app, asJSON bool) error {
	if !asJSON {
		fmt.Fprintf(a.Stdout, "sbx version: %s %s\n", Version, a.Revision)
		return nil
	}
	iso := engine.Engine{Rootless: os.Geteuid() != 0}
	doc := struct {
		Client clientVersion `json:"client"`
		Server serverVersion `json:"server"`
	}{
		clientVersion{Version, a.Revision, "sbx-local", a.Version, iso.Isolation()},
		serverVersion{State: "stopped"},
	}
	if e, err := a.engine(); err == nil { // that the state folder cannot be used is diagnose's to say
		if d, err := e.DaemonHealth(ctx); err == nil {
			doc.Server = serverVersion{"running", d.Version, d.Revision, d.Build} // it may be of another build than this command
		}
	}
	return a.printJSON(doc)
}
