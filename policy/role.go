package policy

import (
	"errors"
	"fmt"
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
	Role  string // "agent copilot", "github"
	Needs []Need
}

// ForAgent returns what an agent CLI needs at least: its model and nothing else. The error matches [ErrRole].
//
// Source: hosts seen with the CLI behind a refusing proxy (Copilot CLI 1.0.102, Claude Code 2.1.332, Codex 0.171.0,
// Gemini CLI 0.61.0); for Copilot's plan hosts github/docs copilot-allowlist-reference.
func ForAgent(name string) (Profile, error) {
	p := Profile{Role: "agent " + name}
	switch name {
	case "copilot":
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
	case "claude":
		p.Needs = []Need{{Resource: "api.anthropic.com:443", Reason: "the model"}}
	case "codex":
		p.Needs = []Need{{Resource: "api.openai.com:443", Reason: "the model"}}
	case "gemini":
		p.Needs = []Need{{Resource: "generativelanguage.googleapis.com:443", Reason: "the model"}}
	case "opencode", "pi":
		// The provider is the user's choice; it comes from the configuration.
	default:
		return Profile{}, fmt.Errorf("%w for agent %q", ErrRole, clip(name))
	}
	return p, nil
}

// ForGitHub returns what work on one repository ("OWNER/NAME") needs. Host is the web host, such as "github.com" or a
// GitHub Enterprise one; "" is github.com. The error matches [ErrRole].
func ForGitHub(repo, host string) (Profile, error) {
	if host == "" {
		host = "github.com"
	}
	h, err := ParseHost(host)
	if err != nil || h.Addr().IsValid() {
		return Profile{}, fmt.Errorf("%w for GitHub host %q: not a host name", ErrRole, clip(host))
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}$`).MatchString(repo) ||
		strings.HasSuffix(repo, "/.") || strings.HasSuffix(repo, "/..") {
		return Profile{}, fmt.Errorf("%w for repository %q: want OWNER/NAME", ErrRole, clip(repo))
	}
	web := h.String()
	api, prefix := web, "/api/v3" // GitHub Enterprise Server
	switch {
	case web == "github.com":
		api, prefix = "api.github.com", ""
	case strings.HasSuffix(web, ".ghe.com"):
		api, prefix = "api."+web, ""
	}
	repo = strings.TrimSuffix(repo, ".git")
	return Profile{Role: "github", Needs: []Need{
		{Resource: api + ":443", Paths: []string{prefix + "/repos/" + repo + "/**"}, Reason: "issues, pull requests and comments of " + repo},
		{Resource: api + ":443", Methods: []string{"GET"}, Paths: []string{prefix + "/user", prefix + "/rate_limit"}, Reason: "whose token it is and what is left of its rate", Optional: true},
		{Resource: web + ":443", Paths: []string{"/" + repo + ".git/**"}, Reason: "git over HTTPS for " + repo},
	}}, nil
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
