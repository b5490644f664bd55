package sbx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Status is what an engine says about a sandbox.
type Status string

// The known states. An engine's other words become StatusUnknown, with the word kept in [Sandbox.RawStatus].
const (
	StatusRunning Status = "running"
	StatusStopped Status = "stopped"
	StatusUnknown Status = "unknown"
)

func parseStatus(raw string) Status {
	switch s := Status(strings.ToLower(strings.TrimSpace(raw))); s {
	case StatusRunning, StatusStopped:
		return s
	}
	return StatusUnknown
}

// Sandbox is one row of the engine's listing.
type Sandbox struct {
	Name       string    `json:"name"`
	ID         string    `json:"id,omitempty"` // UUID; empty from a text listing
	Agent      string    `json:"agent"`
	Status     Status    `json:"status"`
	RawStatus  string    `json:"raw_status,omitempty"` // the engine's word, where Status is StatusUnknown
	Workspaces []string  `json:"workspaces,omitempty"`
	Ports      []Port    `json:"ports,omitempty"`
	Created    time.Time `json:"created,omitzero"`   // UTC; zero if not told
	LastUsed   time.Time `json:"last_used,omitzero"` // UTC; zero if not told (sbx 0.43)
}

// Workspace is a host path that a sandbox sees at the same path.
type Workspace struct {
	Path     string `json:"path"` // absolute
	ReadOnly bool   `json:"read_only"`
}

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

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,61}[A-Za-z0-9]$`)

// CheckName reports whether name is one that every supported engine takes for a sandbox: 2 to 63 letters, digits, dots
// and dashes, starting and ending with a letter or digit, and not "default" (sbx 0.43). The error matches [ErrInvalid].
func CheckName(name string) error {
	if !validName.MatchString(name) || name == "default" {
		return fmt.Errorf("%w: sandbox name %q: want 2 to 63 letters, digits, dots or dashes, letter or digit at both ends, not \"default\"", ErrInvalid, name)
	}
	return nil
}

func checkNames(op string, names []string) error {
	if len(names) == 0 {
		return invalid(op, "no sandbox named")
	}
	for _, name := range names {
		if err := checkOldName(name); err != nil {
			return fmt.Errorf("sbx %s: %w", op, err)
		}
	}
	return nil
}

// checkOldName accepts what a listing may show, also from versions with other rules, as long as it cannot be read as a
// flag or a path.
func checkOldName(name string) error {
	// Wider than CheckName: older versions allowed "_" and "+" and no length limit.
	ok := name != "" && len(name) <= 255
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = letter || i > 0 && (c == '.' || c == '_' || c == '+' || c == '-')
	}
	if !ok {
		return fmt.Errorf("%w: sandbox name %q", ErrInvalid, tailText(name, 300))
	}
	return nil
}

// Create makes a sandbox and reads it back from the listing. A create that is cut off may still have made it: register
// the removal before the call. The error matches [ErrExists] if the name is taken, [ErrUnsupported] before anything
// runs if the engine cannot do what spec asks, [ErrInvalid] for a spec that no engine takes.
func (c *Client) Create(ctx context.Context, spec CreateSpec) (Sandbox, error) {
	const op = "create"
	args, publish, err := c.createArgs(ctx, op, spec)
	if err != nil {
		return Sandbox{}, err
	}
	// What create prints is progress for people; the listing has the facts.
	if _, err := c.call(ctx, op, c.timeouts.Create, Cmd{Args: append([]string{"create"}, args...)}); err != nil {
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
	return made[0], nil
}

// Run creates the sandbox of spec, or takes up the one of that name, and sets it to stay alive when nobody is attached
// ("run -d"): a box made by Create alone is stopped 30 s after its last session ends (sbx 0.43).
func (c *Client) Run(ctx context.Context, spec CreateSpec) (Sandbox, error) {
	const op = "run"
	args, publish, err := c.createArgs(ctx, op, spec)
	if err != nil {
		return Sandbox{}, err
	}
	if len(spec.Workspaces) == 0 {
		// Unlike create, run without a path mounts its own current directory.
		return Sandbox{}, invalid(op, "no workspace: run would mount the current directory; use Create and KeepAlive")
	}
	if _, err := c.call(ctx, op, c.timeouts.Create, Cmd{Args: append([]string{"run", "--detached"}, args...)}); err != nil {
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
	return made[0], nil
}

// KeepAlive sets an existing sandbox to stay alive when nobody is attached, and starts it if it is stopped.
func (c *Client) KeepAlive(ctx context.Context, name string) error {
	const op = "keep-alive"
	if err := checkNames(op, []string{name}); err != nil {
		return err
	}
	_, err := c.call(ctx, op, c.timeouts.Create, Cmd{Args: []string{"run", "--detached", "--name", name}})
	return err
}

// publishAfter publishes what a create of an old version does not take. A port that this sandbox has already is fine: run
// may have taken up an existing sandbox.
func (c *Client) publishAfter(ctx context.Context, name string, specs []string) error {
	for _, spec := range specs {
		_, err := c.Publish(ctx, name, spec)
		if errors.Is(err, ErrConflict) {
			listed, listErr := c.Ports(ctx, name)
			if listErr == nil && slices.ContainsFunc(listed, func(p Port) bool { return p.is(spec) }) {
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
	var needed []Feature
	want := func(asked bool, f Feature) bool {
		if asked {
			needed = append(needed, f)
		}
		return asked
	}

	want(c.cloud, FeatureCloud)
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
	if spec.SkillsOff && v.Has(FeatureSkillsOff) && !v.IsLocal() {
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

// VerifyCreated reads the listing once and checks that every sandbox of specs is there with its primary workspace.
// The result is in the order of specs. The error matches [ErrNotApplied] if one is not.
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
		switch {
		case i < 0:
			missing = append(missing, fmt.Sprintf("sandbox %s is not in the listing", spec.Name))
		case len(spec.Workspaces) > 0 && len(all[i].Workspaces) > 0 && !samePath(all[i].Workspaces[0], spec.Workspaces[0].Path):
			missing = append(missing, fmt.Sprintf("sandbox %s has workspace %s, not %s", spec.Name, all[i].Workspaces[0], spec.Workspaces[0].Path))
		default:
			made = append(made, all[i])
		}
	}
	if missing != nil {
		return nil, &NotAppliedError{Op: op, Missing: missing}
	}
	return made, nil
}

// samePath compares a path of the engine's with one of ours; the engine may have resolved links (/tmp on macOS) or
// speak of /c/x where the host says C:\x.
func samePath(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) || guestPath(b) == a {
		return true
	}
	resolved, err := filepath.EvalSymlinks(b)
	return err == nil && (filepath.Clean(a) == resolved || guestPath(resolved) == a)
}

// guestPath gives the path at which a sandbox sees a host path: the same, but C:\x is /c/x (sbx on Windows).
func guestPath(host string) string {
	if len(host) >= 2 && host[1] == ':' && (host[0]|0x20) >= 'a' && (host[0]|0x20) <= 'z' {
		return "/" + string(host[0]|0x20) + strings.ReplaceAll(host[2:], `\`, "/")
	}
	return host
}

// GuestPath gives the path at which a sandbox sees a workspace's host path: the same path, except that on Windows C:\x
// is seen as /c/x.
func GuestPath(host string) string { return guestPath(host) }

// List returns all sandboxes of the engine, other tools' included. An empty list with a nil error does not prove that
// there are none: an engine whose runtime is broken also prints one (measured on 0.38 and 0.45).
func (c *Client) List(ctx context.Context) ([]Sandbox, error) {
	const op = "ls"
	res, err := c.call(ctx, op, c.timeouts.Query, Cmd{Args: []string{"ls", "--json"}, MaxCapture: maxListing})
	if err != nil {
		return nil, err
	}
	list, err := ParseSandboxes(res.Stdout)
	if err != nil {
		return nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	return list, nil
}

// Get returns the listing's row of one sandbox. The error matches [ErrNotFound] if there is none.
func (c *Client) Get(ctx context.Context, name string) (Sandbox, error) {
	all, err := c.List(ctx)
	if err != nil {
		return Sandbox{}, err
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return Sandbox{}, fmt.Errorf("sbx ls: sandbox %q %w", name, ErrNotFound)
}

// ParseSandboxes reads the output of "sbx ls", JSON or text, of every version from 0.23 on.
func ParseSandboxes(out []byte) ([]Sandbox, error) {
	if looksJSON(out) {
		return parseSandboxesJSON(out)
	}
	return parseSandboxesText(out)
}

type portJSON struct {
	HostIP      string `json:"host_ip"`
	HostPort    int    `json:"host_port"`
	SandboxPort int    `json:"sandbox_port"`
	Protocol    string `json:"protocol"`
}

func (p portJSON) port() Port { return Port{p.HostIP, p.HostPort, p.SandboxPort, p.Protocol} }

func parseSandboxesJSON(out []byte) ([]Sandbox, error) {
	list, plain := plainListing(out)
	if !plain {
		var err error
		if list, err = decodeListing(out); err != nil {
			return nil, err
		}
	}
	for i := range list {
		if checkOldName(list[i].Name) != nil {
			return nil, malformed("listing has a sandbox named %q", tailText(list[i].Name, 80))
		}
	}
	return list, nil
}

// decodeListing reads the JSON of "sbx ls" in whatever form.
func decodeListing(out []byte) ([]Sandbox, error) {
	var doc struct {
		Sandboxes []struct {
			Name       string     `json:"name"`
			ID         string     `json:"id"`
			Agent      string     `json:"agent"`
			Status     string     `json:"status"`
			Workspaces []string   `json:"workspaces"`
			Ports      []portJSON `json:"ports"`
			CreatedAt  looseTime  `json:"created_at"`
			LastUsedAt looseTime  `json:"last_used_at"`
		} `json:"sandboxes"`
	}
	if err := decodeJSON(out, "sandboxes", &doc); err != nil {
		return nil, err
	}
	list := make([]Sandbox, 0, len(doc.Sandboxes))
	for _, row := range doc.Sandboxes {
		s := Sandbox{
			Name: row.Name, ID: row.ID, Agent: row.Agent, Status: parseStatus(row.Status), Workspaces: row.Workspaces,
			Created: row.CreatedAt.Time, LastUsed: row.LastUsedAt.Time,
		}
		if s.Status == StatusUnknown {
			s.RawStatus = row.Status
		}
		for _, p := range row.Ports {
			s.Ports = append(s.Ports, p.port())
		}
		list = append(list, s)
	}
	return list, nil
}

// looseTime is a time that may be absent, empty or in a form we do not know; it is then zero.
type looseTime struct{ time.Time }

// UnmarshalJSON never fails: a time is never worth a listing.
func (t *looseTime) UnmarshalJSON(b []byte) error {
	if parsed, err := time.Parse(time.RFC3339Nano, string(bytes.Trim(b, `"`))); err == nil {
		t.Time = parsed.UTC()
	}
	return nil
}

func sandboxTable() tableSpec {
	return tableSpec{
		columns: []column{
			{id: "name", names: []string{"SANDBOX", "NAME"}, word: true},
			{id: "agent", names: []string{"AGENT"}, word: true},
			{id: "status", names: []string{"STATUS", "STATE"}, word: true},
			{id: "ports", names: []string{"PORTS"}},
			{id: "workspace", names: []string{"WORKSPACE", "WORKSPACES"}},
		},
		must: []string{"name", "status"},
		row:  []string{"name", "status"},
	}
}

func parseSandboxesText(out []byte) ([]Sandbox, error) {
	text := clean(out)
	tables, notes, err := parseTables(text, sandboxTable())
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 {
		if anyLine(notes, func(line string) bool { return strings.HasPrefix(line, "No sandboxes found") }) {
			return []Sandbox{}, nil
		}
		return nil, malformed("no sandbox listing in %d bytes", len(out))
	}
	list := []Sandbox{}
	for _, t := range tables {
		list = slices.Grow(list, len(t.rows))
		for _, row := range t.rows {
			name := row.text("name")
			if checkOldName(name) != nil {
				return nil, malformed("listing has a sandbox named %q", tailText(name, 80))
			}
			s := Sandbox{Name: name, Agent: row.text("agent"), Status: parseStatus(row.text("status"))}
			if s.Status == StatusUnknown {
				s.RawStatus = row.text("status")
			}
			if s.Ports, err = parsePortsCell(row.text("ports")); err != nil {
				return nil, err
			}
			for _, w := range row.list("workspace") {
				s.Workspaces = append(s.Workspaces, strings.TrimSuffix(w, ":ro"))
			}
			list = append(list, s)
		}
	}
	return list, nil
}

func anyLine(lines []string, match func(string) bool) bool { return slices.ContainsFunc(lines, match) }

// Stop stops sandboxes; their disks stay. The error matches [ErrNotFound] if one does not exist.
func (c *Client) Stop(ctx context.Context, names ...string) error {
	const op = "stop"
	if err := checkNames(op, names); err != nil {
		return err
	}
	if _, err := c.call(ctx, op, c.timeouts.Stop, Cmd{Args: append([]string{"stop"}, names...)}); err != nil {
		return err
	}
	if !c.readBack {
		return nil
	}
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	var missing []string
	for _, s := range all {
		if slices.Contains(names, s.Name) && s.Status == StatusRunning {
			missing = append(missing, fmt.Sprintf("sandbox %s still runs", s.Name))
		}
	}
	if missing != nil {
		return &NotAppliedError{Op: op, Missing: missing}
	}
	return nil
}

// Remove deletes sandboxes with their disks, scoped rules and (from sbx 0.42) scoped secrets, running or not, and reads
// back that they are gone. That one was gone before is success.
func (c *Client) Remove(ctx context.Context, names ...string) error {
	const op = "rm"
	if err := checkNames(op, names); err != nil {
		return err
	}
	err := c.remove(ctx, names)
	if errors.Is(err, ErrNotFound) && len(names) > 1 {
		// What a batch does behind a name that it does not find is not established: one by one then.
		err = nil
		for _, name := range names {
			if oneErr := c.remove(ctx, []string{name}); oneErr != nil && !errors.Is(oneErr, ErrNotFound) {
				err = errors.Join(err, oneErr)
			}
		}
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if !c.readBack {
		return nil
	}
	return c.VerifyRemoved(ctx, names...)
}

func (c *Client) remove(ctx context.Context, names []string) error {
	_, err := c.call(ctx, "rm", c.timeouts.Remove, Cmd{Args: append([]string{"rm", "--force"}, names...)})
	return err
}

// VerifyRemoved reads the listing once and checks that none of the names is in it. The error matches [ErrNotApplied] if
// one is.
func (c *Client) VerifyRemoved(ctx context.Context, names ...string) error {
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	var missing []string
	for _, s := range all {
		if slices.Contains(names, s.Name) {
			missing = append(missing, fmt.Sprintf("sandbox %s is still there (%s)", s.Name, s.Status))
		}
	}
	if missing != nil {
		return &NotAppliedError{Op: "rm", Missing: missing}
	}
	return nil
}

// PruneSpec selects what Prune removes: stopped sandboxes only, whoever made them.
type PruneSpec struct {
	Until  string // only those stopped before: RFC 3339, unix seconds or a Go duration (sbx 0.43); "" is all stopped ones
	DryRun bool
}

// PruneReport says what was or would be removed.
type PruneReport struct {
	Removed []string // names; with DryRun: what would be
	Skipped []string // names whose stop time is unknown
}

// Prune removes stopped sandboxes of the whole engine, those of other tools included.
func (c *Client) Prune(ctx context.Context, spec PruneSpec) (PruneReport, error) {
	const op = "prune"
	var filter []string
	if spec.Until != "" {
		if err := c.require(ctx, op, FeaturePruneUntil); err != nil {
			return PruneReport{}, err
		}
		filter = []string{"--filter", "until=" + spec.Until}
	}
	res, err := c.call(ctx, op, c.timeouts.Query, Cmd{Args: append([]string{"prune", "--dry-run", "--json"}, filter...)})
	if err != nil {
		return PruneReport{}, err
	}
	report, err := parsePrune(res.Stdout)
	if err != nil || spec.DryRun || len(report.Removed) == 0 {
		return report, err
	}
	if _, err := c.call(ctx, op, c.timeouts.Remove, Cmd{Args: append([]string{"prune", "--force"}, filter...)}); err != nil {
		return PruneReport{}, err
	}
	if c.readBack {
		return report, c.VerifyRemoved(ctx, report.Removed...)
	}
	return report, nil
}

func parsePrune(out []byte) (PruneReport, error) {
	type item struct {
		Name string `json:"name"`
	}
	var doc struct {
		WouldRemove []item `json:"would_remove"`
		Skipped     []item `json:"skipped_unknown_stop"`
	}
	if err := decodeJSON(out, "would_remove", &doc); err != nil {
		return PruneReport{}, fmt.Errorf("sbx prune: %w", err)
	}
	var report PruneReport
	for _, i := range doc.WouldRemove {
		if checkOldName(i.Name) != nil {
			return PruneReport{}, fmt.Errorf("sbx prune: %w", malformed("sandbox named %q", i.Name))
		}
		report.Removed = append(report.Removed, i.Name)
	}
	for _, i := range doc.Skipped {
		report.Skipped = append(report.Skipped, i.Name)
	}
	return report, nil
}

// Inspection is what an engine tells of one sandbox. Fields that a version leaves out are empty.
type Inspection struct {
	Name          string             `json:"name"`
	Agent         string             `json:"agent,omitempty"`
	State         Status             `json:"state,omitempty"`
	Image         string             `json:"image,omitempty"`
	ImageDigest   string             `json:"image_digest,omitempty"`
	Workspace     string             `json:"workspace,omitempty"`
	NetworkScope  string             `json:"network_scope,omitempty"` // of the policy in force, such as "global"
	Secrets       []InspectionSecret `json:"secrets,omitempty"`
	Ports         []Port             `json:"ports,omitempty"`
	Sessions      int                `json:"sessions"`
	DaemonVersion Semver             `json:"daemon_version,omitzero"`
}

// InspectionSecret names a secret that a sandbox is bound to.
type InspectionSecret struct {
	Name   string `json:"name"`
	Source string `json:"source"` // such as "custom"
}

// Inspect describes one sandbox (sbx 0.35). The error matches [ErrNotFound] if there is none.
func (c *Client) Inspect(ctx context.Context, name string) (Inspection, error) {
	const op = "inspect"
	if err := checkNames(op, []string{name}); err != nil {
		return Inspection{}, err
	}
	out, err := c.read(ctx, op, "inspect", name)
	if err != nil {
		return Inspection{}, err
	}
	in, err := ParseInspection(out)
	if err == nil && in.Name != name {
		err = malformed("asked for %q, got %q", name, in.Name)
	}
	if err != nil {
		return Inspection{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return in, nil
}

// ParseInspection reads the output of "sbx inspect", JSON or text.
func ParseInspection(out []byte) (Inspection, error) {
	if looksJSON(out) {
		return parseInspectionJSON(out)
	}
	in := Inspection{}
	for line := range strings.Lines(clean(out)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			in.Name = value
		case "Agent":
			in.Agent = value
		case "State":
			word, _, _ := strings.Cut(value, " ")
			in.State = parseStatus(word)
		case "Image":
			in.Image = value
		case "Image digest":
			in.ImageDigest = value
		case "Workspace":
			in.Workspace = value
		case "Network Policy":
			in.NetworkScope, _, _ = strings.Cut(value, " ")
		case "Secrets":
			for part := range strings.SplitSeq(value, ",") {
				name, source, _ := strings.Cut(strings.TrimSpace(part), " ")
				if name != "" && name != "none" {
					in.Secrets = append(in.Secrets, InspectionSecret{name, strings.Trim(source, "()")})
				}
			}
		case "Ports":
			if value == "none published" {
				continue
			}
			ports, err := parsePortsCell(value)
			if err != nil {
				return Inspection{}, err
			}
			in.Ports = ports
		case "Sessions":
			in.Sessions, _ = strconv.Atoi(value)
		case "Daemon":
			in.DaemonVersion = ParseSemver(value)
		}
	}
	if checkOldName(in.Name) != nil {
		return Inspection{}, malformed("no description of a sandbox in %d bytes", len(out))
	}
	return in, nil
}

func parseInspectionJSON(out []byte) (Inspection, error) {
	var doc struct {
		Name          string `json:"name"`
		Agent         string `json:"agent"`
		State         string `json:"state"`
		Status        string `json:"status"`
		Image         string `json:"image"`
		ImageDigest   string `json:"image_digest"`
		Workspace     string `json:"workspace"`
		NetworkPolicy struct {
			Scope string `json:"scope"`
		} `json:"network_policy"`
		Secrets       []InspectionSecret `json:"secrets"`
		Ports         []string           `json:"ports"`
		Sessions      int                `json:"sessions"`
		DaemonVersion string             `json:"daemon_version"`
	}
	if err := decodeJSON(out, "name", &doc); err != nil {
		return Inspection{}, err
	}
	if checkOldName(doc.Name) != nil {
		return Inspection{}, malformed("sandbox named %q", doc.Name)
	}
	if doc.State == "" {
		doc.State = doc.Status
	}
	in := Inspection{
		Name: doc.Name, Agent: doc.Agent, State: parseStatus(doc.State), Image: doc.Image, ImageDigest: doc.ImageDigest,
		Workspace: doc.Workspace, NetworkScope: doc.NetworkPolicy.Scope, Secrets: doc.Secrets, Sessions: doc.Sessions,
	}
	if doc.DaemonVersion != "" {
		in.DaemonVersion = ParseSemver(doc.DaemonVersion)
	}
	for _, cell := range doc.Ports {
		ports, err := parsePortsCell(cell)
		if err != nil {
			return Inspection{}, err
		}
		in.Ports = append(in.Ports, ports...)
	}
	return in, nil
}
