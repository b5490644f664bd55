package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/ports"
	"github.com/sbxpair/sbxpair/engine/rules"
)

func newPortsCmd(a *app) *cobra.Command {
	var publish, unpublish []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ports SANDBOX",
		Short: "List, publish and unpublish ports of a sandbox",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(publish)+len(unpublish) > 0 {
				return runPortsChange(cmd.Context(), a, args[0], publish, unpublish)
			}
			return runPorts(a, args[0], asJSON)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&publish, "publish", nil, "publish [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL]")
	f.StringArrayVar(&unpublish, "unpublish", nil, "take back [HOST_IP:]HOST_PORT:SANDBOX_PORT[/PROTOCOL]")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// parsePorts reads the --publish flags.
func parsePorts(specs []string) ([]ports.Port, error) {
	var out []ports.Port
	for _, spec := range specs {
		list, err := ports.Parse(spec)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

// publishedPorts are the ports that can be reached now.
func publishedPorts(r engine.Record) []ports.Port {
	if r.Status != engine.Running || r.Lost() {
		return nil
	}
	return r.Ports
}

// portsText is the PORTS cell of a listing.
func portsText(r engine.Record) string { return strings.Join(portTexts(r), ", ") }

func portTexts(r engine.Record) []string {
	var out []string
	for _, p := range publishedPorts(r) {
		out = append(out, p.Short())
	}
	return out
}

func runPorts(a *app, name string, asJSON bool) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	r, err := e.Get(name)
	if err != nil {
		return worded(err, name)
	}
	list := publishedPorts(r)
	switch {
	case asJSON:
		return a.printJSON(append([]ports.Port{}, list...))
	case len(list) == 0:
		fmt.Fprintln(a.Stdout, "No published ports")
	default:
		rows := [][]string{{"HOST IP", "HOST PORT", "SANDBOX PORT", "PROTOCOL"}}
		for _, p := range list {
			rows = append(rows, []string{p.HostIP, strconv.Itoa(p.HostPort), strconv.Itoa(p.SandboxPort), p.Protocol})
		}
		fmt.Fprint(a.Stdout, rules.Table(rows))
	}
	return nil
}

func runPortsChange(ctx context.Context, a *app, name string, publish, unpublish []string) error {
	add, err := parsePorts(publish)
	if err != nil {
		return err
	}
	var drop []func(ports.Port) bool
	for _, spec := range unpublish {
		match, err := portMatch(spec)
		if err != nil {
			return err
		}
		drop = append(drop, match)
	}
	e, err := a.engine()
	if err != nil {
		return err
	}
	hold, err := e.Hold(ctx, name)
	if err != nil {
		return worded(err, name)
	}
	defer hold.Close()
	if _, err := a.ensure(ctx, e, name); err != nil {
		return err
	}
	for i, match := range drop {
		removed, err := e.Unpublish(ctx, name, match)
		if err != nil {
			return worded(err, name)
		}
		if len(removed) == 0 {
			return hint(fmt.Errorf("unpublish port: %s is not published", unpublish[i]), "sbx ports "+name)
		}
		for _, p := range removed {
			fmt.Fprintf(a.Stdout, "Unpublished %s\n", p)
		}
	}
	if len(add) == 0 {
		return nil
	}
	added, err := e.Publish(ctx, name, add)
	if err != nil {
		return worded(err, name)
	}
	for _, p := range added {
		fmt.Fprintf(a.Stdout, "Published %s\n", p)
	}
	return nil
}

// portMatch reads what to unpublish. A host port must be given; without a protocol or an address any is meant.
func portMatch(spec string) (func(ports.Port) bool, error) {
	list, err := ports.Parse(spec)
	if err != nil {
		return nil, err
	}
	want := list[0]
	if want.HostPort == 0 {
		return nil, errors.New("unpublish needs HOST_PORT:SANDBOX_PORT")
	}
	anyHost := strings.Count(spec, ":") == 1
	anyProtocol := !strings.Contains(spec, "/")
	return func(p ports.Port) bool {
		return p.HostPort == want.HostPort && p.SandboxPort == want.SandboxPort && (anyHost || p.HostIP == want.HostIP) && (anyProtocol || p.Protocol == want.Protocol)
	}, nil
}
