package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/policy"
)

// createOptions are the flags that create and run share.
type createOptions struct {
	name       string
	cpus       int
	memory     string
	template   string
	pull       string
	env        []string
	envFiles   []string
	deny       []string
	resolve    []string
	upstreamCA string
	clone      bool
	publish    []string
	kits       []string
	skills     string
	quiet      bool
	noProgress bool
}

func (o *createOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the sandbox (default <agent>-<workdir>)")
	f.IntVar(&o.cpus, "cpus", 0, "number of CPUs (0: all)")
	f.StringVarP(&o.memory, "memory", "m", "", "memory limit, such as 4g (at least 512m)")
	f.StringVarP(&o.template, "template", "t", "", "template: the name of one that was saved or loaded")
	f.StringVar(&o.pull, "pull", "always", "accepted: nothing is ever pulled")
	f.StringArrayVarP(&o.env, "env", "e", nil, "set a variable in the sandbox (NAME=VALUE)")
	f.StringArrayVar(&o.envFiles, "env-file", nil, "read variables from a file")
	f.StringArrayVar(&o.deny, "deny-network", nil, "deny a host for this sandbox")
	f.StringArrayVar(&o.resolve, "resolve", nil, "send HOST[:PORT] to a loopback address (HOST[:PORT]=127.0.0.1:PORT)")
	f.StringVar(&o.upstreamCA, "upstream-ca", "", "PEM file to trust for hosts named by --resolve")
	f.BoolVar(&o.clone, "clone", false, "work in a clone of the repository, which is mounted read-only")
	f.StringArrayVarP(&o.publish, "publish", "p", nil, "publish a port")
	f.StringArrayVar(&o.kits, "kit", nil, "add a kit")
	f.StringVar(&o.skills, "skills", "off", "off, readonly or readwrite")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print no progress")
	f.BoolVar(&o.noProgress, "no-progress", false, "print no progress")
	f.MarkHidden("quiet")
}

// unsupported refuses what this engine does not do: a flag that is taken and ignored would be a promise.
func (o *createOptions) unsupported() error {
	switch {
	case len(o.kits) > 0:
		return errors.New("--kit is not supported by sbx-local")
	case o.skills != "off":
		return errors.New("--skills is not supported by sbx-local")
	case !slices.Contains([]string{"always", "missing", "never"}, o.pull):
		return fmt.Errorf("invalid --pull %q: give always, missing or never", o.pull)
	}
	return nil
}

// agents are the names that sbx 0.47 knows; here they only name what run starts.
var agents = []string{"claude", "codex", "copilot", "cursor", "devin", "docker-agent", "droid", "gemini", "kiro", "opencode", "shell"}

func newCreateCmd(a *app) *cobra.Command {
	var o createOptions
	cmd := &cobra.Command{
		Use:   "create AGENT|SANDBOX_KIT [PATH...]",
		Short: "Create a sandbox",
		Args:  usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCreate(cmd.Context(), a, o, args[0], args[1:])
		},
	}
	o.register(cmd)
	return cmd
}

func runCreate(ctx context.Context, a *app, o createOptions, agent string, paths []string) error {
	out := a.Stdout
	if o.quiet {
		out = io.Discard
	}
	_, err := create(ctx, a, o, agent, paths, out)
	return err
}

// create makes the sandbox and tells about it on out, as sbx 0.47 does.
func create(ctx context.Context, a *app, o createOptions, agent string, paths []string, out io.Writer) (engine.Record, error) {
	e, err := a.engine()
	if err != nil {
		return engine.Record{}, err
	}
	spec, err := o.spec(ctx, a, agent, paths)
	if err != nil {
		return engine.Record{}, err
	}
	spec.Prepare, err = denyRules(a, o.deny)
	if err != nil {
		return engine.Record{}, err
	}
	a.warnBuild(ctx, e)
	r, err := e.Create(ctx, spec)
	if errors.Is(err, engine.ErrNoTemplate) { // nothing is ever pulled
		return engine.Record{}, hint(fmt.Errorf("request failed: 403 Forbidden: pull failed for image %q", o.template), "sbx template ls")
	}
	if err != nil {
		return engine.Record{}, worded(err, spec.Name)
	}
	announce(out, r)
	return r, nil
}

func (o *createOptions) spec(ctx context.Context, a *app, agent string, paths []string) (engine.CreateSpec, error) {
	var zero engine.CreateSpec
	if err := o.unsupported(); err != nil {
		return zero, err
	}
	if !slices.Contains(agents, agent) {
		return zero, hint(fmt.Errorf("unknown agent %q", agent), "sbx create shell")
	}
	cwd, err := os.Getwd()
	if err != nil {
		return zero, err
	}
	spec := engine.CreateSpec{Name: o.name, Agent: agent, CPUs: o.cpus, Template: o.template}
	for _, p := range paths {
		if p == "" { // an unset variable of a script does not mean the folder it runs in
			return zero, hint(errors.New("a path is empty"), "sbx create --help")
		}
		w := engine.ParseWorkspace(p, cwd)
		if _, err := os.Stat(w.Path); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprint(a.Stdout, "The selected workspace does not exist. Would you like to create it? (y/N): ")
			return zero, errCancelled // nobody is ever asked: there may be no terminal
		}
		spec.Workspaces = append(spec.Workspaces, w)
	}
	if spec.Name == "" {
		spec.Name = defaultName(agent, spec.Workspaces)
	}
	if o.clone {
		if len(spec.Workspaces) == 0 {
			return zero, errors.New("--clone needs the path of a Git repository")
		}
		if spec.Clone, err = engine.FindRepository(spec.Workspaces[0].Path); err != nil {
			return zero, err
		}
		spec.Workspaces = spec.Workspaces[1:]
	}
	if o.cpus < 0 || o.cpus > maxCPUs {
		return zero, fmt.Errorf("invalid --cpus %d: give a number from 1 to %d, or 0 for all", o.cpus, maxCPUs)
	}
	if spec.MemoryMiB, err = parseMemory(o.memory); err != nil {
		return zero, err
	}
	if spec.Env, err = readEnv(ctx, a, o.env, o.envFiles); err != nil {
		return zero, err
	}
	if spec.Ports, err = parsePorts(o.publish); err != nil {
		return zero, err
	}
	if spec.Resolve, err = parseResolve(o.resolve); err != nil {
		return zero, err
	}
	if o.upstreamCA != "" {
		data, err := a.readFile(ctx, o.upstreamCA)
		if err != nil {
			return zero, fmt.Errorf("--upstream-ca: %w", err)
		}
		spec.UpstreamCA = string(data)
	}
	return spec, nil
}

// defaultName is <agent>-<workdir>, with what a name may not hold left out.
func defaultName(agent string, list []engine.Workspace) string {
	base := "sandbox"
	if len(list) > 0 {
		base = filepath.Base(list[0].Path)
	}
	clean := regexp.MustCompile(`[^A-Za-z0-9.-]+`).ReplaceAllString(base, "-")
	name := agent + "-" + clean
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// maxCPUs is more than machines have, and less than cgroups can count.
const maxCPUs = 4096

// minMemoryMiB is sbx 0.43's floor.
const minMemoryMiB = 512

// parseMemory reads a size such as 4g, 512m or 2048 (MiB), in MiB; "" is 0.
func parseMemory(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	digits := strings.TrimRight(strings.ToLower(text), "bigmk")
	unit := strings.ToLower(text)[len(digits):]
	n, err := strconv.ParseInt(digits, 10, 40)
	mib := int64(0)
	switch unit {
	case "g", "gb", "gib", "gi":
		mib = n << 10
	case "", "m", "mb", "mib", "mi":
		mib = n
	case "k", "kb", "kib", "ki":
		mib = n >> 10
	default:
		err = errors.New("unknown unit")
	}
	if err != nil || mib > 1<<30 {
		return 0, fmt.Errorf("invalid --memory %q: give a size such as 4g", text)
	}
	if mib < minMemoryMiB {
		return 0, fmt.Errorf("invalid --memory %q: the minimum is %dm", text, minMemoryMiB)
	}
	return int(mib), nil
}

// parseResolve reads HOST[:PORT]=ADDRESS:PORT; only loopback addresses are targets, so that an override cannot lead
// anywhere that the policy would not.
func parseResolve(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, item := range list {
		host, target, ok := strings.Cut(item, "=")
		addr, err := netip.ParseAddrPort(target)
		if !ok || host == "" || err != nil || addr.Port() == 0 {
			return nil, fmt.Errorf("invalid --resolve %q: give HOST[:PORT]=127.0.0.1:PORT", item)
		}
		if !addr.Addr().IsLoopback() {
			return nil, fmt.Errorf("invalid --resolve %q: the target must be a loopback address", item)
		}
		name := strings.ToLower(strings.TrimSuffix(host, "."))
		if old, ok := out[name]; ok && old != target {
			return nil, fmt.Errorf("invalid --resolve: %s is given twice", host)
		}
		out[name] = target
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

// denyRules stores the sandbox's own denials before anything in it runs.
func denyRules(a *app, deny []string) (func(context.Context, engine.Record) error, error) {
	if len(deny) == 0 {
		return nil, nil
	}
	var resources []policy.Resource
	for _, list := range deny {
		parsed, err := policy.ParseResources(list)
		if err != nil {
			return nil, fmt.Errorf("--deny-network: %w", err)
		}
		resources = append(resources, parsed...)
	}
	store, err := a.ruleStore()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, r engine.Record) error {
		_, err := store.Add(ctx, r.Name, policy.Deny, rules.New{Resources: resources})
		return err
	}, nil
}

// announce tells about a new sandbox as sbx 0.47 does, and what of its limits is not enforced.
func announce(w io.Writer, r engine.Record) {
	if r.Clone != nil {
		fmt.Fprintf(w, "✓ Git repository detected: %s\n", r.Clone.Path)
	}
	fmt.Fprintf(w, "\nsandbox    %s\nagent      %s\n", r.Name, r.Agent)
	switch {
	case r.Clone != nil:
		fmt.Fprintf(w, "  mount  %s → %s (ro, source)\n", r.Clone.Path, engine.CloneSource)
	case len(r.Workspaces) == 0:
		fmt.Fprintln(w, "workspace  none · no workspace bind mount")
	}
	for _, ws := range r.Workspaces {
		mode := "rw"
		if ws.ReadOnly {
			mode = "ro"
		}
		fmt.Fprintf(w, "workspace  %s (%s)\n", ws.Path, mode)
	}
	fmt.Fprintf(w, "image      %s\n", imageName(r))
	if r.CPUs == 0 {
		fmt.Fprintln(w, "cpu        all")
	} else {
		fmt.Fprintf(w, "cpu        %d\n", r.CPUs)
	}
	fmt.Fprintf(w, "memory     %s\nisolation  %s\n", memoryText(r.MemoryMiB), r.Isolation)
	if r.Limits != "cgroup" {
		fmt.Fprintf(w, "limits     %s\n", r.Limits)
	}
	fmt.Fprintf(w, "\n✓ Image ready\n✓ Created sandbox %s\n", r.Name)
	if r.Clone != nil {
		fmt.Fprintf(w, "  Git daemon: %s\n  Remote: %s\n", r.GitURL(), r.RemoteName())
	}
	fmt.Fprintf(w, "\nTo connect to this sandbox, run:\n  sbx run --name %s\n", r.Name)
}

// imageName is what the sandbox was made from.
func imageName(r engine.Record) string { return cmp.Or(r.Template, engine.HostTemplate) }

func memoryText(mib int) string {
	if mib%1024 == 0 {
		return fmt.Sprintf("%d GiB", mib/1024)
	}
	return fmt.Sprintf("%d MiB", mib)
}
