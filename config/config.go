// Package config is sbxpair's configuration: one struct, where its values come from, and what is wrong with them.
//
// The layers, strongest first: flags, environment (SBXPAIR_*), the repository's .sbxpair.yaml (which may only
// narrow), the user's config.yaml, defaults. [Load] merges them and remembers the source of each value.
package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// ErrInvalid matches every error that says the configuration is wrong.
var ErrInvalid = errors.New("invalid configuration")

// Config is everything that a run can be told.
type Config struct {
	Engine    Engine    `yaml:"engine" json:"engine"`
	Sandbox   Sandbox   `yaml:"sandbox" json:"sandbox"`
	Agent     Agent     `yaml:"agent" json:"agent"`
	GitHub    GitHub    `yaml:"github" json:"github"`
	Workspace Workspace `yaml:"workspace" json:"workspace"`
	Phases    []string  `yaml:"phases" json:"phases"` // what a run does between proof and gate, in this order: of plan, execute, verify, review
	Verify    []string  `yaml:"verify" json:"verify"` // shell commands, run in the agent sandbox
	Detect    bool      `yaml:"detect" json:"detect"` // without verify commands, find out how the repository is tested (Makefile, package.json, go.mod, …)
	// VerifyIn is delivered (a fresh checkout of what would be delivered) or workspace (the agent's own folder).
	VerifyIn string   `yaml:"verifyIn" json:"verifyIn"`
	Network  Network  `yaml:"network" json:"network"`
	Gate     Gate     `yaml:"gate" json:"gate"`
	Requests Requests `yaml:"requests" json:"requests"`
	Limits   Limits   `yaml:"limits" json:"limits"`
	Gateway  Gateway  `yaml:"gateway" json:"gateway"`
	Pool     Pool     `yaml:"pool" json:"pool"`
	Setup    Setup    `yaml:"setup" json:"setup"`
	Prices   string   `yaml:"prices" json:"prices"` // file with a table of prices, in place of the built-in one
	Local    Local    `yaml:"local" json:"local"`
}

// Engine chooses the program that makes sandboxes.
type Engine struct {
	Kind    string `yaml:"kind" json:"kind"`       // auto, sbx or local
	Path    string `yaml:"path" json:"path"`       // of the program; empty: found
	AppName string `yaml:"appName" json:"appName"` // separate engine state (sbx --app-name); empty: the engine's own
}

// Sandbox sizes each machine of a pair; zero values leave it to the engine.
type Sandbox struct {
	CPUs      int    `yaml:"cpus" json:"cpus"`           // of each machine; 0 leaves it to the engine
	MemoryMiB int    `yaml:"memoryMiB" json:"memoryMiB"` // of each machine; at least 512, 0 leaves it to the engine
	Template  string `yaml:"template" json:"template"`   // image of both machines; empty is the engine's own
}

// Agent says which agent CLI runs, and how.
type Agent struct {
	Name     string         `yaml:"name" json:"name"`         // the agent CLI: copilot, claude, codex, gemini, opencode, pi, or command: any program
	Provider string         `yaml:"provider" json:"provider"` // whose models it uses: github, anthropic, openai or google; empty: the CLI's own
	Command  []string       `yaml:"command" json:"command"`   // replaces the adapter's program and leading arguments; of the agent command, all there is: it reads the prompt on standard input
	Args     []string       `yaml:"args" json:"args"`         // added to the adapter's
	Model    string         `yaml:"model" json:"model"`       // model that the agent asks for; empty is its own choice
	Effort   string         `yaml:"effort" json:"effort"`     // how hard the model is to think, in the CLI's own words (low, medium, high, …), where the CLI has such a setting
	Mounts   []Mount        `yaml:"mounts" json:"mounts"`     // host folders that the agent sandbox sees at the same path: a list of {path, readOnly}
	Token    secrets.Source `yaml:"token" json:"token"`       // where the model credential comes from: one of {env}, {file} (mode 0600), {command} (a list), {keyring} (SERVICE/ACCOUNT) or {gh} (a host, for gh auth token); by default the provider's usual variable
	Strategy string         `yaml:"strategy" json:"strategy"` // auto, service, custom, or plain-env, which puts the credential itself into the sandbox
}

// ModelProvider is whose credential the agent needs. The error matches [policy.ErrRole].
func (a Agent) ModelProvider() (secrets.Provider, error) {
	profile, err := policy.ForAgent(a.Name, a.Provider)
	if err != nil {
		return secrets.Provider{}, err
	}
	p, known := secrets.LookupProvider(profile.Service)
	if !known {
		return secrets.Provider{}, fmt.Errorf("%w: no credential of %q can be bound", policy.ErrRole, profile.Service)
	}
	return p, nil
}

// Mount is a host folder that the agent sandbox sees at the same path.
type Mount struct {
	Path     string `yaml:"path" json:"path"`
	ReadOnly bool   `yaml:"readOnly" json:"readOnly"`
}

// Workspace says what of the checkout the agent gets. All but Mode and LFS is for the mode tracked.
type Workspace struct {
	Mode   string            `yaml:"mode" json:"mode"`     // clone (its committed state, on a branch of its own), tracked (its files alone, no history; nothing is delivered), in-place (the checkout itself), or empty
	LFS    bool              `yaml:"lfs" json:"lfs"`       // go on although files are in Git LFS: the agent sees their pointers
	Remove []string          `yaml:"remove" json:"remove"` // files that the agent does not get, or lines of them: AGENTS.md, README.md:3-7,12
	Write  map[string]string `yaml:"write" json:"write"`   // path in the repository to a file of yours that stands there instead, or as well
	Patch  string            `yaml:"patch" json:"patch"`   // file with a patch in git's format, applied before the agent starts
	Hooks  map[string]string `yaml:"hooks" json:"hooks"`   // name of a git hook to a file with its script; they run in the sandbox only
	Origin bool              `yaml:"origin" json:"origin"` // a bare repository in the sandbox as "origin", so that pushes are seen
}

// GitHub says where results go.
type GitHub struct {
	Host         string `yaml:"host" json:"host"`                 // of GitHub: github.com, a GHE.com name, or an Enterprise Server
	Repo         string `yaml:"repo" json:"repo"`                 // OWNER/NAME; empty: from the checkout's origin
	Base         string `yaml:"base" json:"base"`                 // branch; empty: the checkout's
	BranchPrefix string `yaml:"branchPrefix" json:"branchPrefix"` // branches of runs begin with it
	Draft        bool   `yaml:"draft" json:"draft"`               // open pull requests as drafts
	// Pull requests are opened ready for review where the repository has no drafts.
	DraftOptional bool           `yaml:"draftOptional" json:"draftOptional"`
	Fork          string         `yaml:"fork" json:"fork"`               // OWNER/NAME of a fork that branches are pushed to; empty: to the repository itself
	Way           string         `yaml:"way" json:"way"`                 // git or api: how a commit gets to GitHub; api is for small changes
	InitEmpty     bool           `yaml:"initEmpty" json:"initEmpty"`     // a repository without any commit gets the checkout's history as its base branch
	TitlePrefix   string         `yaml:"titlePrefix" json:"titlePrefix"` // begins the titles of pull requests and issues; put there if it is missing
	Labels        []string       `yaml:"labels" json:"labels"`           // put on the pull request
	Reviewers     []string       `yaml:"reviewers" json:"reviewers"`     // logins that are asked to review the pull request
	Closes        bool           `yaml:"closes" json:"closes"`           // merging the pull request of run --issue closes the issue; otherwise it is only named
	Progress      bool           `yaml:"progress" json:"progress"`       // run --issue tells on the issue how far it is, in one comment
	Check         string         `yaml:"check" json:"check"`             // name of a check that the delivered commit gets; empty: none
	Artifacts     []string       `yaml:"artifacts" json:"artifacts"`     // what of the run's record is kept on a branch of its own: events, transcripts
	Token         secrets.Source `yaml:"token" json:"token"`             // where GH_TOKEN comes from; like agent.token
	Strategy      string         `yaml:"strategy" json:"strategy"`       // auto or service
}

// Network adds to or takes from what a role may reach by default. Deny wins over everything.
type Network struct {
	Allow []string `yaml:"allow" json:"allow"` // for the agent sandbox only
	Deny  []string `yaml:"deny" json:"deny"`   // for both
	Rules string   `yaml:"rules" json:"rules"` // auto, paths or hosts: whether rules name HTTP paths; auto does where the engine can
}

// Gate bounds what may be delivered.
type Gate struct {
	MaxFiles    int      `yaml:"maxFiles" json:"maxFiles"`       // changed files; more is refused
	MaxPatchKiB int      `yaml:"maxPatchKiB" json:"maxPatchKiB"` // size of the patch; more is refused
	Protected   []string `yaml:"protected" json:"protected"`     // paths beside the built-in ones
	ProtectMode string   `yaml:"protectMode" json:"protectMode"` // block, ask or allow: what to do with changes of protected paths; ask is for run --approve, and block elsewhere
	Only        []string `yaml:"only" json:"only"`               // if not empty, no other paths may change
	Executables string   `yaml:"executables" json:"executables"` // block, ask or allow: files that become executable
	Links       string   `yaml:"links" json:"links"`             // block, ask or allow: symbolic links
	Submodules  string   `yaml:"submodules" json:"submodules"`   // block, ask or allow
}

// Requests bounds what the agent may ask for on GitHub: how often each kind, and about what.
type Requests struct {
	PullRequest int      `yaml:"pullRequest" json:"pullRequest"` // title and text of the pull request
	Comment     int      `yaml:"comment" json:"comment"`         // comments
	Issue       int      `yaml:"issue" json:"issue"`             // new issues
	Labels      int      `yaml:"labels" json:"labels"`           // putting labels on
	Assign      int      `yaml:"assign" json:"assign"`           // assigning people
	Reviewers   int      `yaml:"reviewers" json:"reviewers"`     // asking people for a review
	Review      int      `yaml:"review" json:"review"`           // reviews that only comment
	Close       int      `yaml:"close" json:"close"`             // closing issues
	AllowLabels []string `yaml:"allowLabels" json:"allowLabels"` // labels that may be set
	AllowPeople []string `yaml:"allowPeople" json:"allowPeople"` // logins that may be assigned, or asked for a review
	AllowItems  []int    `yaml:"allowItems" json:"allowItems"`   // issues and pull requests beside the run's own
}

// Limits bounds a run. Zero means no limit, but for Revisions.
type Limits struct {
	Run       Duration `yaml:"run" json:"run"`             // the whole run, without its release
	Plan      Duration `yaml:"plan" json:"plan"`           // the session that plans
	Execute   Duration `yaml:"execute" json:"execute"`     // each session that works
	Review    Duration `yaml:"review" json:"review"`       // each session that reviews
	Idle      Duration `yaml:"idle" json:"idle"`           // the agent's silence
	Verify    Duration `yaml:"verify" json:"verify"`       // each verify command
	Release   Duration `yaml:"release" json:"release"`     // the whole clean-up
	Revisions int      `yaml:"revisions" json:"revisions"` // further attempts after verify or review rejected one; 0 is none
	Turns     int      `yaml:"turns" json:"turns"`         // of the agent, in all sessions of a run
	Tokens    int      `yaml:"tokens" json:"tokens"`       // in and out, in all sessions of a run
	Cost      float64  `yaml:"cost" json:"cost"`           // US dollars, in all sessions of a run
	Call      Duration `yaml:"call" json:"call"`           // one call of the engine's command, but not of a command in a sandbox; 0 leaves it to the verb (75 s to 15 min)
	MemoryMiB int      `yaml:"memoryMiB" json:"memoryMiB"` // that the pairs of this host may have together; 0 is four fifths of the host's
	Queue     Duration `yaml:"queue" json:"queue"`         // how long a run waits for memory that other pairs have
	Records   Duration `yaml:"records" json:"records"`     // how long prune leaves the record of a run that is over; 0 is for ever
}

// Gateway is the model gateway on this host, which holds the provider's key in place of the engine, and counts what a run
// spends call by call. Limits.Tokens and Limits.Cost are the run's caps.
type Gateway struct {
	Enabled     bool     `yaml:"enabled" json:"enabled"`         // the agent reaches its model by way of it
	Upstream    string   `yaml:"upstream" json:"upstream"`       // address of the provider's API; empty: its own
	Models      []string `yaml:"models" json:"models"`           // that may be called; none: any
	Ledger      string   `yaml:"ledger" json:"ledger"`           // file with a line for each call; empty: ledger.jsonl in sbxpair's state
	Batch       string   `yaml:"batch" json:"batch"`             // name under which several runs have a cap together
	BatchTokens int      `yaml:"batchTokens" json:"batchTokens"` // in and out, of all runs of the batch; 0 is no cap
	BatchCost   float64  `yaml:"batchCost" json:"batchCost"`     // US dollars, of all runs of the batch; 0 is no cap
}

// Setup is what is done in each sandbox once its pair is proven, before any work.
type Setup struct {
	Agent  RoleSetup `yaml:"agent" json:"agent"`
	GitHub RoleSetup `yaml:"github" json:"github"`
}

// RoleSetup is the setup of one sandbox.
type RoleSetup struct {
	Toolchains []string    `yaml:"toolchains" json:"toolchains,omitempty"` // host folders whose programs (in bin, if there is one) are callable by name; the agent sandbox mounts them read-only, the other gets a copy
	Files      []SetupFile `yaml:"files" json:"files,omitempty"`           // copied in: a list of {from, to}, both absolute; one that holds a credential is refused
	Commands   []string    `yaml:"commands" json:"commands,omitempty"`     // shell commands, run in order as the sandbox's user; one that fails ends the run
}

// SetupFile is a file or folder of the host and where it goes.
type SetupFile struct {
	From string `yaml:"from" json:"from"`
	To   string `yaml:"to" json:"to"`
}

// Pool is about pairs that are booted ahead of time, without a credential, for runs to claim.
type Pool struct {
	Size   int      `yaml:"size" json:"size"`     // pairs that wait; 0 is no pool, at most 16
	MaxAge Duration `yaml:"maxAge" json:"maxAge"` // of a pair that waits; older ones are removed by the next fill or prune
}

// Local is for the local engine only; with sbx it is an error to set it.
type Local struct {
	// Resolve sends HOST[:PORT] to a loopback address instead of the network, for stand-ins and tests.
	Resolve map[string]string `yaml:"resolve" json:"resolve"`
	// UpstreamCA is a PEM file of authorities trusted for the hosts of Resolve only.
	UpstreamCA string `yaml:"upstreamCA" json:"upstreamCA"`
}

// Duration is a time.Duration written as Go writes it: 90s, 10m, 1h30m.
type Duration time.Duration

// UnmarshalText parses a Go duration; negative ones are refused.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration such as 90s, 10m or 1h30m (0 for no limit)", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the duration as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Default returns the built-in values.
func Default() Config {
	return Config{
		Engine:    Engine{Kind: "auto"},
		Agent:     Agent{Name: "copilot", Strategy: "auto", Token: secrets.Source{Env: "COPILOT_GITHUB_TOKEN"}},
		GitHub:    GitHub{Host: "github.com", BranchPrefix: "sbxpair/", Draft: true, Way: "git", Closes: true, Progress: true, Strategy: "auto", Token: secrets.Source{Env: "GH_TOKEN"}},
		Network:   Network{Rules: "auto"},
		Phases:    Phases(),
		Detect:    true,
		VerifyIn:  "delivered",
		Workspace: Workspace{Mode: "clone"},
		Gate:      Gate{MaxFiles: 100, MaxPatchKiB: 1024, ProtectMode: "block", Executables: "ask", Links: "block", Submodules: "block"},
		Requests:  Requests{PullRequest: 1, Comment: 1, Issue: 1},
		Limits: Limits{
			Run: Duration(time.Hour), Plan: Duration(10 * time.Minute), Execute: Duration(30 * time.Minute), Review: Duration(10 * time.Minute),
			Idle: Duration(10 * time.Minute), Verify: Duration(10 * time.Minute), Release: Duration(2 * time.Minute), Revisions: 2,
			Records: Duration(30 * 24 * time.Hour), Queue: Duration(time.Hour),
		},
		Pool: Pool{MaxAge: Duration(4 * time.Hour)},
	}
}

// maxPool bounds what waits without a use.
const maxPool = 16

// Validate reports everything that is wrong with c, one error a line; it matches [ErrInvalid].
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	oneOf := func(key, got string, allowed ...string) {
		for _, a := range allowed {
			if got == a {
				return
			}
		}
		bad(key, "%q is not one of %s", got, strings.Join(allowed, ", "))
	}
	oneOf("engine.kind", c.Engine.Kind, "auto", "sbx", "local")
	if _, err := c.Agent.ModelProvider(); err != nil {
		key := "agent.provider"
		if c.Agent.Provider == "" {
			key = "agent.name"
		}
		bad(key, "%v", err)
	}
	if c.Agent.Name == "command" && len(c.Agent.Command) == 0 {
		bad("agent.command", "the agent command needs a program")
	}
	c.Workspace.check(bad)
	oneOf("agent.strategy", c.Agent.Strategy, "auto", "service", "custom", "plain-env")
	oneOf("github.strategy", c.GitHub.Strategy, "auto", "service")
	oneOf("verifyIn", c.VerifyIn, "delivered", "workspace")
	oneOf("network.rules", c.Network.Rules, "auto", "paths", "hosts")
	for _, policy := range [][2]string{
		{"gate.protectMode", c.Gate.ProtectMode}, {"gate.executables", c.Gate.Executables}, {"gate.links", c.Gate.Links}, {"gate.submodules", c.Gate.Submodules},
	} {
		oneOf(policy[0], policy[1], "block", "ask", "allow")
	}
	oneOf("github.way", c.GitHub.Way, "git", "api")
	for _, name := range c.GitHub.Artifacts {
		oneOf("github.artifacts", name, "events", "transcripts")
	}
	if c.GitHub.Fork != "" && !repoName.MatchString(c.GitHub.Fork) {
		bad("github.fork", "%q is not OWNER/NAME", c.GitHub.Fork)
	}
	if len([]rune(c.GitHub.TitlePrefix)) > 50 {
		bad("github.titlePrefix", "it has more than 50 characters")
	}
	for _, n := range append([]int{c.Requests.PullRequest, c.Requests.Comment, c.Requests.Issue, c.Requests.Labels, c.Requests.Assign, c.Requests.Reviewers,
		c.Requests.Review, c.Requests.Close}, c.Requests.AllowItems...) {
		if n < 0 {
			bad("requests", "%d is negative", n)
		}
	}
	if err := checkPhases(c.Phases); err != nil {
		bad("phases", "%v", err)
	}
	if l := c.Limits; l.Revisions < 0 || l.Turns < 0 || l.Tokens < 0 || l.Cost < 0 {
		bad("limits", "revisions, turns, tokens and cost cannot be negative")
	}
	if g := c.Gateway; g.BatchTokens < 0 || g.BatchCost < 0 {
		bad("gateway", "batchTokens and batchCost cannot be negative")
	}
	if provider, err := c.Agent.ModelProvider(); c.Gateway.Enabled && err == nil && provider.Name == "github" {
		bad("gateway.enabled", "Copilot's own models are reached with GitHub's token alone; name another provider's (agent.provider: openai or anthropic), or do without the gateway")
	}
	if c.Gateway.Enabled && c.Agent.Strategy == "service" {
		bad("agent.strategy", "a gateway's key is no built-in service of an engine; use auto")
	}
	for key, source := range map[string]secrets.Source{"agent.token": c.Agent.Token, "github.token": c.GitHub.Token} {
		if err := source.Check(); err != nil {
			bad(key, "%v", err)
		}
	}
	if c.GitHub.Repo != "" && !repoName.MatchString(c.GitHub.Repo) {
		bad("github.repo", "%q is not OWNER/NAME", c.GitHub.Repo)
	}
	if !hostName.MatchString(c.GitHub.Host) {
		bad("github.host", "%q is not a host name", c.GitHub.Host)
	}
	if !branchPrefix.MatchString(c.GitHub.BranchPrefix) {
		bad("github.branchPrefix", "%q must be letters, digits, '-', '_' and '/', and end with '/'", c.GitHub.BranchPrefix)
	}
	for _, m := range c.Agent.Mounts {
		if !filepath.IsAbs(m.Path) {
			bad("agent.mounts", "%q is not an absolute path", m.Path)
		}
	}
	if c.Gate.MaxFiles < 1 || c.Gate.MaxPatchKiB < 1 {
		bad("gate", "maxFiles %d and maxPatchKiB %d must be at least 1", c.Gate.MaxFiles, c.Gate.MaxPatchKiB)
	}
	if c.Sandbox.CPUs < 0 || c.Sandbox.MemoryMiB < 0 {
		bad("sandbox", "sizes cannot be negative")
	}
	for role, setup := range map[string]RoleSetup{"setup.agent": c.Setup.Agent, "setup.github": c.Setup.GitHub} {
		for _, dir := range setup.Toolchains {
			if !filepath.IsAbs(dir) {
				bad(role+".toolchains", "%q is not an absolute path", dir)
			}
		}
		for _, f := range setup.Files {
			if !filepath.IsAbs(f.From) || !strings.HasPrefix(f.To, "/") {
				bad(role+".files", "%q to %q: both must be absolute", f.From, f.To)
			}
		}
	}
	if c.Pool.Size < 0 || c.Pool.Size > maxPool {
		bad("pool.size", "%d is not between 0 and %d", c.Pool.Size, maxPool)
	}
	if c.Pool.Size > 0 && c.Pool.MaxAge == 0 {
		bad("pool.maxAge", "a pair cannot wait for ever")
	}
	if m := c.Sandbox.MemoryMiB; m > 0 && m < 512 {
		bad("sandbox.memoryMiB", "%d is below 512, the least that sbx accepts", m)
	}
	for _, list := range []struct {
		key       string
		resources []string
	}{{"network.allow", c.Network.Allow}, {"network.deny", c.Network.Deny}} {
		for _, res := range list.resources {
			parsed, err := policy.ParseResource(res)
			if err == nil && list.key == "network.allow" {
				err = parsed.Openable()
			}
			if err != nil {
				bad(list.key, "%v", err)
			}
		}
	}
	for host, target := range c.Local.Resolve {
		ip, _, err := net.SplitHostPort(target)
		if err != nil || !net.ParseIP(ip).IsLoopback() {
			bad("local.resolve", "%s: %q is not a loopback address with a port, such as 127.0.0.1:8443", host, target)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalid, errors.Join(errs...))
}

// Phases are those that a run can be told to go through, in their usual order.
func Phases() []string { return []string{"plan", "execute", "verify", "review"} }

// checkPhases refuses an order that makes no sense: a plan comes before the work, a judgement after it.
func checkPhases(list []string) error {
	work := slices.Index(list, "execute")
	if work < 0 {
		return errors.New("execute is missing")
	}
	for i, phase := range list {
		switch {
		case !slices.Contains(Phases(), phase):
			return fmt.Errorf("%q is not one of %s", phase, strings.Join(Phases(), ", "))
		case slices.Index(list, phase) != i:
			return fmt.Errorf("%s stands twice", phase)
		case phase == "plan" && i > work:
			return errors.New("plan comes before execute")
		case (phase == "verify" || phase == "review") && i < work:
			return fmt.Errorf("%s comes after execute", phase)
		}
	}
	return nil
}

var (
	repoName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+$`)
	hostName     = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	branchPrefix = regexp.MustCompile(`^([A-Za-z0-9_-]+/)+$`)
)
