package command

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/vault"
)

type inspectSecret struct {
	Name   string `json:"name"`
	Source string `json:"source"`
}

// inspection has the keys of sbx 0.38's "inspect --json", and what is ours: id, workspaces, isolation, limits.
type inspection struct {
	Name          string   `json:"name"`
	ID            string   `json:"id"`
	Agent         string   `json:"agent"`
	Kits          []string `json:"kits,omitempty"`
	State         string   `json:"state"`
	Uptime        string   `json:"uptime,omitempty"`
	Image         string   `json:"image"`
	Workspace     string   `json:"workspace,omitempty"`
	Workspaces    []string `json:"workspaces"`
	Network       string   `json:"network"`
	NetworkPolicy struct {
		Scope string `json:"scope"`
	} `json:"network_policy"`
	Proxy         string          `json:"proxy"`
	Secrets       []inspectSecret `json:"secrets,omitempty"`
	Ports         []string        `json:"ports,omitempty"`
	Sessions      int             `json:"sessions"`
	Isolation     string          `json:"isolation"`
	Limits        string          `json:"limits"`
	CPUs          int             `json:"cpus"`
	MemoryMiB     int             `json:"memory_mib"`
	Pids          int             `json:"pids"`
	DiskGiB       int             `json:"disk_gib"`
	DaemonVersion string          `json:"daemon_version,omitempty"`
	DaemonUptime  string          `json:"daemon_uptime,omitempty"`
}

func newInspectCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect SANDBOX",
		Short: "Show one sandbox",
		Args:  usage(cobra.ExactArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return runInspect(cmd.Context(), a, args[0], asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func runInspect(ctx context.Context, a *app, name string, asJSON bool) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	r, err := e.Get(name)
	if err != nil {
		return worded(err, name)
	}
	in, err := inspect(ctx, a, e, r)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(in)
	}
	a.printInspection(in, r)
	return nil
}

func inspect(ctx context.Context, a *app, e *engine.Engine, r engine.Record) (inspection, error) {
	in := inspection{
		Name: r.Name, ID: r.ID, Agent: r.Agent, State: status(r), Image: imageName(r), Workspace: r.Primary(), Workspaces: workspaces(r),
		Network: "none", Proxy: "gateway.docker.internal:3128", Isolation: r.Isolation, Limits: r.Limits, CPUs: r.CPUs, MemoryMiB: r.MemoryMiB, Pids: r.Pids, DiskGiB: r.DiskGiB,
		Ports: portTexts(r),
	}
	in.NetworkPolicy.Scope = "global"
	if r.Status == engine.Running && !r.Lost() {
		in.Uptime = age(time.Since(r.StartedAt))
	}
	store, err := a.secretStore()
	if err != nil {
		return in, err
	}
	bindings, err := store.Bindings(r.Name)
	if err != nil {
		return in, err
	}
	for _, b := range bindings {
		in.Secrets = append(in.Secrets, secretOf(b))
	}
	if d, err := e.DaemonHealth(ctx); err == nil {
		in.Sessions, in.DaemonVersion, in.DaemonUptime = d.SessionsOf[r.ID], Version, age(time.Since(d.StartedAt))
	}
	return in, nil
}

func secretOf(b vault.Binding) inspectSecret {
	if b.Service != "" {
		return inspectSecret{b.Service, "service"}
	}
	return inspectSecret{b.Env, "custom"}
}

func (a *app) printInspection(in inspection, r engine.Record) {
	row := func(key, value string) { fmt.Fprintf(a.Stdout, "%-17s%s\n", key+":", value) }
	state := in.State
	if in.Uptime != "" {
		state += " (" + in.Uptime + ")"
	}
	var names []string
	for _, s := range in.Secrets {
		names = append(names, s.Name+" ("+s.Source+")")
	}
	secrets := "none"
	if len(names) > 0 {
		secrets = strings.Join(names, ", ")
	}
	row("Name", in.Name)
	row("ID", in.ID)
	row("Agent", in.Agent)
	row("State", state)
	row("Image", in.Image)
	row("Isolation", in.Isolation)
	row("Limits", limitsText(r))
	row("Workspace", workspaceText(r))
	row("Network Policy", in.NetworkPolicy.Scope+" (local policy)")
	row("Mount Policy", "allowed")
	row("Proxy", in.Proxy)
	row("Secrets", secrets)
	row("Ports", cmp.Or(portsText(r), "none published"))
	row("Sessions", fmt.Sprint(in.Sessions))
	daemon := "not running"
	if in.DaemonVersion != "" {
		daemon = in.DaemonVersion + "   uptime " + in.DaemonUptime
	}
	fmt.Fprintln(a.Stdout)
	row("Daemon", daemon)
}

// limitsText says what the sandbox is held to, or why it is not.
func limitsText(r engine.Record) string {
	text := r.Limits
	if text == "cgroup" {
		cpus := "all"
		if r.CPUs > 0 {
			cpus = strconv.Itoa(r.CPUs)
		}
		text = fmt.Sprintf("memory %s, cpu %s, threads %d (cgroup)", memoryText(r.MemoryMiB), cpus, r.Pids)
	}
	return fmt.Sprintf("disk %d GiB; %s", r.DiskGiB, text)
}

// age is a duration in its largest unit, as sbx prints it: 15s, 2m, 1h, 1d.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}
