package policy

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
)

// ErrRole matches the errors of [ForAgent] and [ForGitHub].
var ErrRole = errors.New("no rule set")

// A Need is one thing a role has to reach, with its reason. Methods and paths narrow it on engines that can.
type Need struct {
	Resource string
	Methods  []string
	Paths    []string
	Reason   string
	Optional bool // the role works without it, slower or with less
}

// A Profile is the least that a role needs.
type Profile struct {
	Role    string // "agent copilot", "github"
	Service string // the engine's built-in service whose credential goes to the needed hosts
	Needs   []Need
}

// Bound are the hosts to which the role's credential goes: those that it cannot do without.
func (p Profile) Bound() []string {
	var hosts []string
	for _, n := range p.Needs {
		host, _, err := net.SplitHostPort(n.Resource)
		if err != nil {
			host = n.Resource
		}
		if !n.Optional && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// ForAgent returns what an agent CLI needs at least: its model and nothing else. provider is the service whose models it
// uses, by the name that the engine's built-in secret has; "" is the CLI's own. The error matches [ErrRole].
//
// Source: hosts seen with the CLI behind a refusing proxy (Copilot CLI 1.0.102, Claude Code 2.1.332, Codex 0.171.0,
// Gemini CLI 0.61.0, opencode 1.18.33, pi 1.6.0); for Copilot's plan hosts github/docs copilot-allowlist-reference.
func ForAgent(name, provider string) (Profile, error) {
	// What a CLI speaks: with nothing configured the first one.
	speaks, known := map[string][]string{
		"copilot": {"github", "openai", "anthropic"}, "claude": {"anthropic"}, "codex": {"openai"}, "gemini": {"google"},
		"opencode": {"", "anthropic", "openai", "google"}, "pi": {"", "anthropic", "openai", "google"},
		"command": {"", "github", "anthropic", "openai", "google"},
	}[name]
	if !known {
		return Profile{}, fmt.Errorf("%w for agent %q", ErrRole, clip(name))
	}
	if provider == "" {
		provider = speaks[0]
	}
	if provider == "" {
		return Profile{}, fmt.Errorf("%w for agent %q: it has no provider of its own; name one of %s", ErrRole, name, strings.Join(speaks[1:], ", "))
	}
	if !slices.Contains(speaks, provider) {
		return Profile{}, fmt.Errorf("%w for agent %q with provider %q; it can use %s", ErrRole, name, clip(provider), strings.Join(slices.DeleteFunc(speaks, func(s string) bool { return s == "" }), ", "))
	}
	p := Profile{Role: "agent " + name, Service: provider}
	switch provider {
	case "github":
		p.Needs = []Need{
			// One pattern for /copilot_internal/… and /copilot/…: each rule costs a call of the engine.
			{Resource: "api.github.com:443", Paths: []string{"/copilot*/**"},
				Reason: "Copilot CLI asks who the token belongs to and which plan it has"},
			{Resource: "api.github.com:443", Methods: []string{"GET"},
				Paths: []string{"/repos/github/copilot-cli/releases"}, Reason: "release check, which --no-auto-update turns off", Optional: true},
			{Resource: "api.githubcopilot.com:443", Reason: "the model"},
			{Resource: "api.individual.githubcopilot.com:443", Reason: "the model, on an individual plan"},
			{Resource: "api.business.githubcopilot.com:443", Reason: "the model, on a business plan"},
			{Resource: "api.enterprise.githubcopilot.com:443", Reason: "the model, on an enterprise plan"},
		}
	case "anthropic":
		p.Needs = []Need{{Resource: "api.anthropic.com:443", Reason: "the model"}}
	case "openai":
		p.Needs = []Need{{Resource: "api.openai.com:443", Reason: "the model"}}
	case "google":
		p.Needs = []Need{{Resource: "generativelanguage.googleapis.com:443", Reason: "the model"}}
	}
	return p, nil
}

// ForGateway returns what an agent needs that reaches its model by way of a gateway on the host's loopback: that port.
func ForGateway(port int) Profile {
	return Profile{Role: "agent", Needs: []Need{{Resource: fmt.Sprintf("%s:%d", Localhost, port), Reason: "the model, by way of the gateway on this host"}}}
}

// ForGitHub returns what work on one repository ("OWNER/NAME") needs. Host is as for [ParseGitHub]. The error matches
// [ErrRole].
func ForGitHub(repo, host string) (Profile, error) {
	at, err := ParseGitHub(host)
	if err != nil {
		return Profile{}, err
	}
	if h, err := ParseHost(at.Host); err == nil && h.Addr().IsValid() {
		return Profile{}, fmt.Errorf("%w for GitHub host %q: it is an address, not a name", ErrRole, clip(host))
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}$`).MatchString(repo) ||
		strings.HasSuffix(repo, "/.") || strings.HasSuffix(repo, "/..") {
		return Profile{}, fmt.Errorf("%w for repository %q: want OWNER/NAME", ErrRole, clip(repo))
	}
	repo = strings.TrimSuffix(repo, ".git")
	api, prefix := withPort(at.APIHost()), at.APIPath()
	return Profile{Role: "github", Service: "github", Needs: []Need{
		{Resource: api, Paths: []string{prefix + "/repos/" + repo + "/**"}, Reason: "issues, pull requests and comments of " + repo},
		{Resource: api, Methods: []string{"GET"}, Paths: []string{prefix + "/user"}, Reason: "whose token it is"},
		{Resource: api, Methods: []string{"GET"}, Paths: []string{prefix + "/search/issues"}, Reason: "a person's search", Optional: true},
		{Resource: api, Methods: []string{"GET"}, Paths: []string{prefix + "/rate_limit"}, Reason: "what is left of the token's rate", Optional: true},
		{Resource: withPort(at.Host), Paths: []string{"/" + repo + ".git/**"}, Reason: "git over HTTPS for " + repo},
	}}, nil
}

// withPort adds the port of HTTPS where none is named.
func withPort(host string) string {
	if strings.Contains(host, ":") {
		return host
	}
	return host + ":443"
}

// Hosts returns one allow rule for each host, for engines that know hosts only. Reasons of several needs are joined.
func (p Profile) Hosts() ([]Rule, error) {
	var rules []Rule
	for _, n := range p.Needs {
		res, err := ParseResource(n.Resource)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(rules, func(r Rule) bool { return r.Resources[0] == res }); i >= 0 {
			rules[i].Reason += "; " + n.Reason
			continue
		}
		rules = append(rules, Rule{Effect: Allow, Resources: []Resource{res}, Layer: "profile", Reason: n.Reason})
	}
	return rules, nil
}

// Requests returns one allow rule for each need with its methods and paths, for engines that have them.
func (p Profile) Requests() ([]Rule, error) {
	var rules []Rule
	for _, n := range p.Needs {
		res, err := ParseResource(n.Resource)
		if err != nil {
			return nil, err
		}
		r := Rule{Effect: Allow, Resources: []Resource{res}, Methods: n.Methods, Layer: "profile", Reason: n.Reason}
		for _, text := range n.Paths {
			pat, err := ParsePathPattern(text)
			if err != nil {
				return nil, err
			}
			r.Paths = append(r.Paths, pat)
		}
		rules = append(rules, r)
	}
	return rules, nil
}
