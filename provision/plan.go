package provision

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// ErrRefused matches the error of a plan that would break a rule of the house.
var ErrRefused = errors.New("refused")

// Strategy is how a credential reaches its host.
type Strategy string

// The strategies, best first.
const (
	// Service is one of the engine's built-in secrets, scoped to the sandbox, its value by standard input.
	Service Strategy = "service"
	// Custom is a secret with a placeholder of our own, bound to hosts that we name. The value comes from a 0600
	// file that the engine reads by a command (sbx 0.42): earlier versions take it on argv only.
	Custom Strategy = "custom"
	// PlainEnv puts the value itself into a file of the sandbox, and with it into the environment of what is started
	// there. Everything that runs inside can read it. It is chosen by configuration only, never instead of another.
	PlainEnv Strategy = "plain-env"
)

// Rule is one network rule of a plan.
type Rule struct {
	Resource string   `json:"resource"`
	Methods  []string `json:"methods,omitempty"` // of HTTP; empty: all
	Path     string   `json:"path,omitempty"`    // pattern; empty: the rule is about the whole host
	Layer    string   `json:"layer"`             // who asks for it: LayerProfile and the others
	Reason   string   `json:"reason"`
}

// The layers of a plan's rules. Deny wins over all of them.
const (
	LayerProfile = "profile"       // what the role cannot do without
	LayerAllow   = "network.allow" // the operator's, for the agent sandbox
	LayerDeny    = "network.deny"  // the operator's, for both
	LayerKit     = "kit"           // denies what the engine's kit opens
	LayerGrant   = "grant"         // given while the pair is in place
	LayerEngine  = "engine"        // the engine's own: its preset, an organisation's, a kit's
	LayerShut    = "shut"          // denies what those open
)

// Binding ties a credential to a sandbox. It holds no value.
type Binding struct {
	Strategy    Strategy `json:"strategy"`
	Service     string   `json:"service,omitempty"` // of a service secret
	Hosts       []string `json:"hosts"`             // where the value goes
	Env         string   `json:"env"`               // the variable that holds the placeholder inside
	Placeholder string   `json:"placeholder"`
	Header      string   `json:"header"`          // in which requests carry it
	Check       string   `json:"check,omitempty"` // URL that answers 2xx to it and costs nothing
}

// RequestHeader is the line in which a request carries the placeholder.
func (b Binding) RequestHeader() string {
	if b.Header == "Authorization" {
		return "Authorization: Bearer " + b.Placeholder
	}
	return b.Header + ": " + b.Placeholder
}

// Environment is what a process in the sandbox needs to find its credential's placeholder, as NAME=value. Under
// [PlainEnv] it holds nothing: the value comes by [Spec.Launch].
func (s Spec) Environment() []string {
	if s.Secret.Strategy == PlainEnv {
		return nil
	}
	return []string{s.Secret.Env + "=" + s.Secret.Placeholder}
}

// plainFile holds the value of a [PlainEnv] credential inside: in the home of sbx's user, since nothing else both belongs
// to that user and outlives a stop. It goes with the sandbox.
const plainFile = "/home/agent/.sbxpair/credential"

// Launch is what has to stand before the command line of a process that needs the credential: nothing, except under
// [PlainEnv].
func (s Spec) Launch() []string {
	if s.Secret.Strategy != PlainEnv {
		return nil
	}
	return []string{"sh", "-c", `v=$1; shift; export "$v=$(cat ` + plainFile + `)" && exec "$@"`, "sh", s.Secret.Env}
}

// Spec is the description of one sandbox.
type Spec struct {
	Role       pair.Role       `json:"role"`
	Name       string          `json:"name"`
	Workspaces []sbx.Workspace `json:"workspaces"`
	CPUs       int             `json:"cpus,omitempty"`
	MemoryMiB  int             `json:"memory_mib,omitempty"`
	Template   string          `json:"template,omitempty"`
	Allow      []Rule          `json:"allow"`
	Deny       []Rule          `json:"deny,omitempty"`
	// KitDenied are hosts that the engine would open by itself, denied from the sandbox's first moment on.
	KitDenied []string `json:"kit_denied,omitempty"`
	Secret    Binding  `json:"secret"`
	// Setup is what [SetUp] does in the sandbox.
	Setup config.RoleSetup `json:"setup,omitzero"`
}

// Plan is the complete description of a pair. Equal inputs give equal plans.
type Plan struct {
	Run    pair.RunID       `json:"run"`
	Engine pair.EngineRef   `json:"engine"`
	Agent  Spec             `json:"agent"`
	GitHub Spec             `json:"github"`
	Local  sbx.LocalOptions `json:"local,omitzero"`
	Repo   string           `json:"repository"`
	Fork   string           `json:"fork,omitempty"` // OWNER/NAME where branches are pushed; empty: to Repo
	Host   string           `json:"github_host"`
	// Issues says whether the token is to write issues; empty: the run has nothing to do with them.
	Issues Use `json:"issues,omitempty"`
	// Only is the one role that is made, for work that needs no other; empty is both.
	Only pair.Role `json:"only,omitempty"`
}

// Use is how much a run depends on what a token may do.
type Use string

// The uses. Without what is wanted, a run goes on and says what it cannot do; without what is needed, it ends before it begins.
const (
	Wanted Use = "wanted"
	Needed Use = "needed"
)

// Specs are the sandboxes that are made.
func (p Plan) Specs() []Spec {
	switch p.Only {
	case pair.RoleAgent:
		return []Spec{p.Agent}
	case pair.RoleGitHub:
		return []Spec{p.GitHub}
	}
	return []Spec{p.Agent, p.GitHub}
}

// Input is what a plan follows from.
type Input struct {
	Run       pair.RunID
	Engine    pair.EngineRef
	Repo      string // OWNER/NAME
	Fork      string // OWNER/NAME where branches are pushed instead; empty: to Repo
	Host      string // of GitHub
	Issues    Use    // of GitHub
	Hands     bool   // a person will use the pair: it also gets what a run can do without
	Only      pair.Role
	Agent     string   // name of the agent adapter
	Provider  string   // whose models it uses, as policy.ForAgent knows them; "" is its own
	Gateway   *Through // the agent reaches its model by way of it; nil: it does so itself
	AgentEnv  string   // the variable in which the agent CLI looks for its credential; "" is the provider's
	Workspace sbx.Workspace
	Mounts    []sbx.Workspace
	// Empty is an empty folder for the github sandbox, for engines that cannot do without a workspace (sbx below 0.42).
	Empty         string
	AgentStrategy Strategy // empty: the best
	Paths         bool     // the engine has rules for HTTP methods and paths: use them
	DenyAtCreate  bool     // the engine takes denied hosts when it makes a sandbox
	Allow, Deny   []string // the operator's; Allow is for the agent only
	CPUs          int
	MemoryMiB     int
	Template      string
	Local         sbx.LocalOptions
	Setup         config.Setup
}

// New computes the plan. It has no side effects. The error matches [ErrRefused] if what is asked for would break the
// split, and says which part.
func New(in Input) (Plan, error) {
	agentProfile, err := policy.ForAgent(in.Agent, in.Provider)
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	provider, known := secrets.LookupProvider(agentProfile.Service)
	if !known {
		return Plan{}, fmt.Errorf("%w: no credential of %q can be bound", ErrRefused, agentProfile.Service)
	}
	if in.Gateway != nil {
		agentProfile = policy.ForGateway(in.Gateway.Port)
	}
	at, err := policy.ParseGitHub(in.Host)
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	githubProfile, err := policy.ForGitHub(in.Repo, in.Host)
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if in.Fork != "" {
		fork, err := policy.ForGitHub(in.Fork, in.Host)
		if err != nil {
			return Plan{}, fmt.Errorf("%w: github.fork: %w", ErrRefused, err)
		}
		githubProfile.Needs = append(githubProfile.Needs, fork.Needs...)
	}
	deny, err := resources(in.Deny, LayerDeny)
	if err != nil {
		return Plan{}, err
	}
	if in.Hands {
		for i := range githubProfile.Needs {
			githubProfile.Needs[i].Optional = false
		}
	}
	agentRules, err := rules(agentProfile, in.Paths, in.Allow, deny)
	if err != nil {
		return Plan{}, err
	}
	githubRules, err := rules(githubProfile, in.Paths, nil, deny)
	if err != nil {
		return Plan{}, err
	}
	if wide, own := crosses(agentRules, at, agentProfile.Bound()); wide != "" {
		return Plan{}, fmt.Errorf("%w: %q would let the agent sandbox reach %s, which belongs to the github sandbox; take it out of network.allow", ErrRefused, wide, own)
	}
	bound := slices.DeleteFunc(agentProfile.Bound(), func(host string) bool { return covering(agentRules, host) == "" })
	if in.Gateway != nil {
		bound = []string{fmt.Sprintf("%s:%d", policy.Localhost, in.Gateway.Port)}
		if len(agentRules) == 0 {
			bound = nil
		}
	}
	if len(bound) == 0 {
		return Plan{}, fmt.Errorf("%w: network.deny leaves the agent no host to use its credential on", ErrRefused)
	}
	for _, host := range at.Hosts() {
		if covering(githubRules, host) == "" {
			return Plan{}, fmt.Errorf("%w: network.deny takes %s from the github sandbox, which cannot work without it", ErrRefused, host)
		}
	}
	agentKit, agentDeny := kitDenied(in, agentRules, deny)
	githubKit, githubDeny := kitDenied(in, githubRules, deny)
	var none []sbx.Workspace
	if in.Empty != "" {
		none = []sbx.Workspace{{Path: in.Empty}}
	}
	return Plan{
		Run: in.Run, Engine: in.Engine, Repo: in.Repo, Fork: in.Fork, Host: at.Host, Local: in.Local, Issues: in.Issues, Only: in.Only,
		Agent: Spec{
			Role: pair.RoleAgent, Name: in.Run.Name(pair.RoleAgent),
			Workspaces: append([]sbx.Workspace{in.Workspace}, in.Mounts...), Setup: in.Setup.Agent,
			CPUs: in.CPUs, MemoryMiB: in.MemoryMiB, Template: in.Template,
			Allow: agentRules, Deny: agentDeny, KitDenied: agentKit, Secret: agentBinding(in, provider, bound),
		},
		GitHub: Spec{
			Role: pair.RoleGitHub, Name: in.Run.Name(pair.RoleGitHub), Workspaces: none, Setup: in.Setup.GitHub, CPUs: in.CPUs, MemoryMiB: in.MemoryMiB, Template: in.Template,
			Allow: githubRules, Deny: githubDeny, KitDenied: githubKit,
			Secret: githubBinding(in, at),
		},
	}, nil
}

// githubBinding gives the github sandbox GH_TOKEN. The engine's github service goes to github.com's hosts alone; for
// another GitHub the token is bound to that one by name. The placeholder is the same: nothing looks at its shape.
func githubBinding(in Input, at policy.GitHub) Binding {
	b := Binding{Service, "github", at.Hosts(), "GH_TOKEN", secrets.GitHubServicePlaceholder, "Authorization", at.API + "repos/" + in.Repo}
	if at.Host != "github.com" {
		b.Strategy, b.Service = Custom, ""
	}
	return b
}

// kitDenied returns what is denied of what the engine opens by itself: at once where it can, else by a rule.
func kitDenied(in Input, allow, deny []Rule) (atOnce []string, rules []Rule) {
	rules = deny
	for _, host := range kitOpens(in.Engine.Kind) {
		switch {
		case covering(allow, host) != "": // the operator wants it
		case in.DenyAtCreate:
			atOnce = append(atOnce, host)
		default:
			rules = append(slices.Clone(rules), Rule{Resource: host, Layer: LayerKit, Reason: "the engine's kit opens it"})
		}
	}
	return atOnce, rules
}

// crosses returns the rule of the agent that reaches a host of the github sandbox, and that host. Hosts to which the
// agent's own credential is bound are its own.
func crosses(list []Rule, at policy.GitHub, bound []string) (resource, host string) {
	for _, own := range append(at.Hosts(), "any."+at.Host) { // the last one stands for the host's other names
		if wide := covering(list, own); wide != "" && !slices.Contains(bound, own) {
			return wide, own
		}
	}
	return "", ""
}

// agentBinding gives the agent its credential. For Copilot the built-in github service holds the token too: scoped to
// the agent sandbox it also shadows a global one. The placeholder has the shape of a real credential, since some CLIs
// look at that before they send anything.
func agentBinding(in Input, p secrets.Provider, hosts []string) Binding {
	b := Binding{Service, p.Name, hosts, in.AgentEnv, p.Placeholder, p.Header, p.Check}
	if b.Env == "" {
		b.Env = p.Env
	}
	if in.Gateway != nil {
		// The run's key for the gateway: worthless elsewhere, and outside all the same.
		b.Header, b.Check = p.Header, p.CheckAt(in.Gateway.URL)
	}
	switch {
	case in.AgentStrategy == PlainEnv && in.Gateway == nil:
		b.Strategy, b.Service, b.Placeholder = PlainEnv, "", ""
	case in.AgentStrategy == Custom, in.Gateway != nil:
		b.Strategy, b.Service = Custom, ""
		// The run id makes the placeholder unique, so that a leftover of another run is never taken for ours.
		own := string(in.Run)[5:]
		b.Placeholder = strings.Replace(p.Placeholder, "sbxproxymanaged"+strings.Repeat("0", len(own)), "sbxproxymanaged"+own, 1)
	}
	return b
}

// rules joins what a role needs with what the operator allows, without what the operator denies: a seeded list must
// not win over a deny (sbxloop changelog, field report R036).
func rules(profile policy.Profile, paths bool, allow []string, deny []Rule) ([]Rule, error) {
	list, err := needs(profile, paths)
	if err != nil {
		return nil, err
	}
	own, err := resources(allow, LayerAllow)
	if err != nil {
		return nil, err
	}
	var out []Rule
	for _, rule := range append(list, own...) {
		denied := covering(deny, hostPart(rule.Resource)) != ""
		known := slices.ContainsFunc(out, func(r Rule) bool { return r.Resource == rule.Resource && r.Path == rule.Path })
		if !denied && !known {
			out = append(out, rule)
		}
	}
	return out, nil
}

// needs are the rules of a profile: for hosts, or, where the engine can tell requests apart, for methods and paths as
// far as a need names them. What a role can do without is left out.
func needs(profile policy.Profile, paths bool) ([]Rule, error) {
	if !paths {
		hosts, err := profile.Hosts()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		var list []Rule
		for _, r := range hosts {
			list = append(list, Rule{Resource: r.Resources[0].String(), Layer: LayerProfile, Reason: r.Reason})
		}
		return list, nil
	}
	var list []Rule
	for _, need := range profile.Needs {
		if need.Optional {
			continue
		}
		parsed, err := policy.ParseResource(need.Resource)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		rule := Rule{Resource: parsed.String(), Methods: need.Methods, Layer: LayerProfile, Reason: need.Reason}
		if len(need.Paths) == 0 {
			list = append(list, rule)
		}
		for _, path := range need.Paths {
			rule.Path = path
			list = append(list, rule)
		}
	}
	return list, nil
}

// resources parses what an operator wrote, and refuses what is too wide to be meant.
func resources(list []string, layer string) ([]Rule, error) {
	var out []Rule
	for _, text := range list {
		parsed, err := policy.ParseResource(text)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrRefused, layer, err)
		}
		if wide := parsed.Wide(); wide != "" && layer != LayerDeny {
			return nil, fmt.Errorf("%w: %s: %q is too wide: %s", ErrRefused, layer, text, wide)
		}
		out = append(out, Rule{Resource: parsed.String(), Layer: layer, Reason: "the operator asks for it"})
	}
	return out, nil
}

// covering returns the first resource of list that covers host on port 443, or nothing.
func covering(list []Rule, host string) string {
	h, err := policy.ParseHost(host)
	if err != nil {
		return ""
	}
	for _, rule := range list {
		if res, err := policy.ParseResource(rule.Resource); err == nil && res.Covers(h, 443) {
			return rule.Resource
		}
	}
	return ""
}

func hostPart(resource string) string {
	if host, _, err := net.SplitHostPort(resource); err == nil {
		return host
	}
	return resource
}
