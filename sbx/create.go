package sbx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EnvVar is one environment variable. Its value travels on the command line, where every user of the host can read it:
// never a credential.
type EnvVar struct{ Name, Value string }

// LocalOptions are what only sbx-local can do; any other engine refuses a CreateSpec that has them.
type LocalOptions struct {
	Resolve    map[string]string `json:"resolve,omitempty"`     // HOST[:PORT] to 127.0.0.1:PORT, for this sandbox's proxy
	UpstreamCA string            `json:"upstream_ca,omitempty"` // PEM file that the proxy trusts for those hosts
}

func (l LocalOptions) isZero() bool { return len(l.Resolve) == 0 && l.UpstreamCA == "" }

// CreateSpec describes a sandbox to be.
type CreateSpec struct {
	Name        string
	Agent       string      // built-in agent or kit reference; "" is "shell", which starts no agent
	Workspaces  []Workspace // the first is the primary and must be writable; none needs sbx 0.42
	CPUs        int         // 0: the engine's default
	MemoryMiB   int         // 0: the engine's default; at least 512
	Template    string      // image; "" is the agent's own
	Pull        string      // "always", "missing", "never"; "" is the engine's default. A local snapshot needs "never"
	Clone       bool        // work on a clone inside the sandbox (sbx 0.31)
	Env         []EnvVar    // sbx 0.39
	DenyNetwork []string    // hosts denied from the first moment on (sbx 0.38)
	Publish     []string    // [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTO]
	Kits        []string    // further kit references
	SkillsOff   bool        // keep the shared skill store away (sbx 0.37; left out for sbx-local, which has none)
	Local       LocalOptions
}

// Create makes a sandbox and reads back what can be seen of it: see [Client.VerifyCreated], [Client.VerifyDenied] and
// [Client.VerifyEnv]. A create that is cut off may still have
// made it: register the removal before the call. The error matches [ErrExists] if the name is taken, [ErrUnsupported] before
// anything runs if the engine cannot do what spec asks, [ErrInvalid] for a spec that no engine takes, [ErrNotApplied] if the
// sandbox is there and not as asked.
func (c *Client) Create(ctx context.Context, spec CreateSpec) (Sandbox, error) {
	return c.make(ctx, "create", spec, "create")
}

// Run creates the sandbox of spec, or takes up the one of that name, and sets it to stay alive when nobody is attached
// ("run -d"): a box made by Create alone is stopped 30 s after its last session ends (sbx 0.43).
//
// Everything but the name only counts when a sandbox is made; sbx says nothing if it ignores it. So a sandbox that is there
// has to be as spec asks, or the error matches [ErrNotApplied]; sizes, template, kits and clone mode cannot be seen, and are
// refused for one that is there before anything runs.
func (c *Client) Run(ctx context.Context, spec CreateSpec) (Sandbox, error) {
	const op = "run"
	if len(spec.Workspaces) == 0 {
		// Unlike create, run without a path mounts its own current directory.
		return Sandbox{}, invalid(op, "no workspace: run would mount the current directory; use Create and KeepAlive")
	}
	if _, _, err := c.createArgs(ctx, op, spec); err != nil {
		return Sandbox{}, err
	}
	if fixed := spec.fixed(); c.readBack && len(fixed) > 0 {
		switch _, err := c.Get(ctx, spec.Name); {
		case err == nil:
			return Sandbox{}, notApplied(op, fmt.Sprintf("sandbox %s was there before, and run changes nothing of its %s", spec.Name, strings.Join(fixed, ", ")))
		case !errors.Is(err, ErrNotFound):
			return Sandbox{}, err
		}
	}
	return c.make(ctx, op, spec, "run", "--detached")
}

// fixed names what spec asks for that is settled when a sandbox is made and that no reading shows.
func (s CreateSpec) fixed() (words []string) {
	for _, o := range []struct {
		word  string
		asked bool
	}{
		{"processors", s.CPUs > 0}, {"memory", s.MemoryMiB > 0}, {"template", s.Template != ""}, {"clone mode", s.Clone},
		{"kits", len(s.Kits) > 0}, {"overrides", !s.Local.isZero()},
	} {
		if o.asked {
			words = append(words, o.word)
		}
	}
	return words
}

func (c *Client) make(ctx context.Context, op string, spec CreateSpec, verb ...string) (Sandbox, error) {
	args, publish, err := c.createArgs(ctx, op, spec)
	if err != nil {
		return Sandbox{}, err
	}
	// What create prints is progress for people; the listing has the facts.
	if _, err := c.call(ctx, op, c.timeouts.Create, Cmd{Args: append(verb, args...)}); err != nil {
		return Sandbox{}, err
	}
	if err := c.publishAfter(ctx, spec.Name, publish); err != nil {
		return Sandbox{}, err
	}
	if !c.readBack {
		return Sandbox{Name: spec.Name, Agent: spec.agent(), Status: StatusUnknown}, nil
	}
	made, err := c.VerifyCreated(ctx, spec)
	if err != nil {
		return Sandbox{}, err
	}
	if err := c.VerifyDenied(ctx, spec); err != nil {
		return Sandbox{}, err
	}
	if err := c.VerifyEnv(ctx, spec); err != nil {
		return Sandbox{}, err
	}
	return made[0], nil
}

// KeepAlive sets an existing sandbox to stay alive when nobody is attached, and starts it if it is stopped. It reads back
// that the sandbox runs and is the one that the engine speaks of; the setting itself is shown nowhere.
func (c *Client) KeepAlive(ctx context.Context, name string) error {
	const op = "keep-alive"
	if err := checkNames(op, []string{name}); err != nil {
		return err
	}
	res, err := c.call(ctx, op, c.timeouts.Create, Cmd{Args: []string{"run", "--detached", "--name", name}})
	if err != nil || !c.readBack {
		return err
	}
	s, err := c.Get(ctx, name)
	switch {
	case errors.Is(err, ErrNotFound):
		return notApplied(op, fmt.Sprintf("sandbox %s is not in the listing", name))
	case err != nil:
		return err
	case s.Status != StatusRunning:
		return notApplied(op, fmt.Sprintf("sandbox %s is %s", name, s.state()))
	}
	for line := range strings.Lines(clean(res.Stdout)) {
		if id := strings.TrimSpace(line); s.ID != "" && uuid.MatchString(id) && id != s.ID {
			return notApplied(op, fmt.Sprintf("sandbox %s has the id %s, kept alive was %s", name, s.ID, id))
		}
	}
	return nil
}

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// publishAfter publishes what a create of an old version does not take. A port that this sandbox has already is fine: run
// may have taken up an existing sandbox.
func (c *Client) publishAfter(ctx context.Context, name string, specs []string) error {
	for _, spec := range specs {
		_, err := c.Publish(ctx, name, spec)
		if errors.Is(err, ErrConflict) {
			listed, listErr := c.Ports(ctx, name)
			if listErr == nil && slices.ContainsFunc(listed, func(p Port) bool { return p.is(spec, c.cloud) }) {
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s CreateSpec) agent() string {
	if s.Agent == "" {
		return "shell"
	}
	return s.Agent
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// createArgs checks spec against any engine and against the installed one, and gives the arguments behind the verb, and
// the ports that must be published afterwards because create does not take them yet.
func (c *Client) createArgs(ctx context.Context, op string, spec CreateSpec) (args, publish []string, err error) {
	if err := CheckName(spec.Name); err != nil {
		return nil, nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	if agent := spec.agent(); strings.HasPrefix(agent, "-") || strings.ContainsAny(agent, " \t\n") {
		return nil, nil, invalid(op, "agent %q", spec.Agent)
	}
	if spec.CPUs < 0 || spec.MemoryMiB < 0 || spec.MemoryMiB > 0 && spec.MemoryMiB < 512 {
		return nil, nil, invalid(op, "%d CPUs, %d MiB of memory: want none negative, and 0 or at least 512 MiB", spec.CPUs, spec.MemoryMiB)
	}
	if !slices.Contains([]string{"", "always", "missing", "never"}, spec.Pull) {
		return nil, nil, invalid(op, "pull %q: want always, missing or never", spec.Pull)
	}
	for _, port := range spec.Publish {
		if err := checkPortSpec(op, port); err != nil {
			return nil, nil, err
		}
	}
	var needed []Feature
	want := func(asked bool, f Feature) bool {
		if asked {
			needed = append(needed, f)
		}
		return asked
	}

	args = []string{"--name", spec.Name}
	if spec.CPUs > 0 {
		args = append(args, "--cpus", strconv.Itoa(spec.CPUs))
	}
	if spec.MemoryMiB > 0 {
		args = append(args, "--memory", strconv.Itoa(spec.MemoryMiB)+"m")
	}
	if spec.Template != "" {
		args = append(args, "--template="+spec.Template)
	}
	if spec.Pull != "" {
		args = append(args, "--pull", spec.Pull)
	}
	if spec.Clone {
		args = append(args, "--clone")
	}
	want(len(spec.Env) > 0, FeatureCreateEnv)
	for _, e := range spec.Env {
		if !envName.MatchString(e.Name) || strings.ContainsRune(e.Value, 0) {
			return nil, nil, invalid(op, "environment variable %q", e.Name)
		}
		args = append(args, "--env", e.Name+"="+e.Value)
	}
	want(len(spec.DenyNetwork) > 0, FeatureDenyNetwork)
	for _, host := range spec.DenyNetwork {
		if err := checkResource(op, host); err != nil {
			return nil, nil, err
		}
		args = append(args, "--deny-network", host)
	}
	for _, kit := range spec.Kits {
		args = append(args, "--kit="+kit)
	}
	if want(!spec.Local.isZero(), FeatureResolve) {
		for _, host := range sortedKeys(spec.Local.Resolve) {
			args = append(args, "--resolve", host+"="+spec.Local.Resolve[host])
		}
		if spec.Local.UpstreamCA != "" {
			args = append(args, "--upstream-ca="+spec.Local.UpstreamCA)
		}
	}
	want(len(spec.Workspaces) == 0, FeatureMountless)
	paths := []string{spec.agent()}
	for i, w := range spec.Workspaces {
		path, err := c.workspaceArg(op, i, w)
		if err != nil {
			return nil, nil, err
		}
		paths = append(paths, path)
	}
	if err := c.require(ctx, op, needed...); err != nil {
		return nil, nil, err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return nil, nil, err
	}
	if spec.SkillsOff && v.Has(FeatureSkillsOff) {
		args = append(args, "--skills", "off")
	}
	if v.Has(FeatureCreatePublish) {
		for _, port := range spec.Publish {
			args = append(args, "--publish", port)
		}
	} else {
		publish = spec.Publish
	}
	return append(args, paths...), publish, nil
}

// workspaceArg gives the argument for the i-th workspace. A missing directory is refused here: sbx asks whether to
// create it.
func (c *Client) workspaceArg(op string, i int, w Workspace) (string, error) {
	switch {
	case c.cloud:
		return "", invalid(op, "workspace %q: a hosted sandbox has no host workspace", w.Path)
	case !filepath.IsAbs(w.Path):
		return "", invalid(op, "workspace %q: want an absolute path", w.Path)
	case i == 0 && w.ReadOnly:
		return "", invalid(op, "workspace %q: the first one must be writable", w.Path)
	case strings.HasSuffix(w.Path, ":ro") || strings.HasSuffix(w.Path, ":readonly") || strings.ContainsAny(w.Path, "\n\x00"):
		return "", invalid(op, "workspace %q: the engine would misread this path", w.Path)
	}
	if _, err := os.Stat(w.Path); err != nil {
		return "", fmt.Errorf("sbx %s: workspace: %w", op, err)
	}
	if w.ReadOnly {
		return w.Path + ":ro", nil
	}
	return w.Path, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// VerifyCreated reads the listing once and checks that every sandbox of specs is there as asked: agent, workspaces and no others,
// published ports. Denied hosts are for [Client.VerifyDenied], variables for [Client.VerifyEnv]; sizes, template, kits, clone mode
// and which workspaces are read-only are shown nowhere. The result is in the order of specs. The error matches [ErrNotApplied]
// if something is not as asked, and says what.
func (c *Client) VerifyCreated(ctx context.Context, specs ...CreateSpec) ([]Sandbox, error) {
	const op = "create"
	all, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	made := make([]Sandbox, 0, len(specs))
	var missing []string
	for _, spec := range specs {
		i := slices.IndexFunc(all, func(s Sandbox) bool { return s.Name == spec.Name })
		if i < 0 {
			missing = append(missing, fmt.Sprintf("sandbox %s is not in the listing", spec.Name))
			continue
		}
		made = append(made, all[i])
		missing = append(missing, c.differs(spec, all[i])...)
	}
	if err := notApplied(op, missing...); err != nil {
		return nil, err
	}
	return made, nil
}

// differs says in what the listed sandbox is not as spec asks.
func (c *Client) differs(spec CreateSpec, s Sandbox) (missing []string) {
	differ := func(format string, args ...any) {
		missing = append(missing, "sandbox "+spec.Name+fmt.Sprintf(format, args...))
	}
	// A kit's reference need not be what a listing shows, and a kit's short name may be shown as its reference.
	if agent := spec.agent(); !strings.ContainsAny(agent+s.Agent, `./\:@`) && s.Agent != "" && s.Agent != agent {
		differ(" has agent %s, not %s", s.Agent, agent)
	}
	for i, w := range spec.Workspaces {
		switch at := slices.IndexFunc(s.Workspaces, func(have string) bool { return samePath(have, w.Path) }); {
		case at < 0 && i == 0 && len(s.Workspaces) > 0:
			differ(" has workspace %s, not %s", s.Workspaces[0], w.Path)
		case at < 0:
			differ(" has no workspace %s", w.Path)
		case i == 0 && at != 0:
			differ(" has %s for its primary workspace, not %s", s.Workspaces[0], w.Path)
		}
	}
	for _, have := range s.Workspaces {
		if !spec.SkillsOff && slices.Contains(strings.Split(filepath.ToSlash(have), "/"), "skills") {
			continue // the shared skill store, which nobody kept away
		}
		if !slices.ContainsFunc(spec.Workspaces, func(w Workspace) bool { return samePath(have, w.Path) }) {
			differ(" sees %s, which was not asked for", have)
		}
	}
	for _, port := range spec.Publish {
		if !slices.ContainsFunc(s.Ports, func(p Port) bool { return p.is(port, c.cloud) }) {
			differ(" does not publish %s", port)
		}
	}
	return missing
}

// VerifyDenied reads the rules once, if specs deny any hosts, and checks that each sandbox has a rule that denies each of its
// hosts. A version that keeps such rules out of its listing has to say so when it is asked about the host. The error matches
// [ErrNotApplied].
func (c *Client) VerifyDenied(ctx context.Context, specs ...CreateSpec) error {
	const op = "create"
	if !slices.ContainsFunc(specs, func(s CreateSpec) bool { return len(s.DenyNetwork) > 0 }) {
		return nil
	}
	listed, err := c.PolicyList(ctx, "")
	if err != nil {
		return err
	}
	var missing []string
	for _, spec := range specs {
		for _, host := range spec.DenyNetwork {
			if slices.ContainsFunc(listed, func(r Rule) bool { return r.shows(PolicyRule{Sandbox: spec.Name, Decision: Deny}, host) }) {
				continue
			}
			denied := false
			if !strings.ContainsAny(host, "*?[/") {
				verdict, err := c.PolicyCheck(ctx, spec.Name, host)
				if err != nil {
					return err
				}
				denied = !verdict.Allowed && verdict.Explicit
			}
			if !denied {
				missing = append(missing, fmt.Sprintf("sandbox %s has no rule that denies %s", spec.Name, host))
			}
		}
	}
	return notApplied(op, missing...)
}

// guestEnv prints the names of those NAME=value arguments that its environment has not, or has with another value.
const guestEnv = `for a do n=${a%%=*}; eval "have=\${$n+x\$$n}"; [ "$have" = "x${a#*=}" ] || echo "$n"; done`

// VerifyEnv looks once into each sandbox of specs that is to have variables in its environment, and checks that a command sees
// them. The error matches [ErrNotApplied].
func (c *Client) VerifyEnv(ctx context.Context, specs ...CreateSpec) error {
	const op = "create"
	var missing []string
	for _, spec := range specs {
		if len(spec.Env) == 0 {
			continue
		}
		argv := []string{"sh", "-c", guestEnv, "sbxpair-env"}
		for _, e := range spec.Env {
			argv = append(argv, e.Name+"="+e.Value)
		}
		res, err := c.Exec(ctx, spec.Name, ExecSpec{Argv: argv, Dir: "/", Timeout: verifyTimeout})
		if err != nil {
			return fmt.Errorf("sbx %s: look at the environment: %w", op, err)
		}
		if res.Code != 0 {
			return execProblem(op, "look at the environment", res)
		}
		for name := range strings.FieldsSeq(string(res.Stdout)) {
			missing = append(missing, fmt.Sprintf("sandbox %s has another %s in its environment, or none", spec.Name, tailText(name, 80)))
		}
	}
	return notApplied(op, missing...)
}
