package provision

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// Rules are the spec's rules as package policy decides by them. A rule's ID is its text.
func (s Spec) Rules() ([]policy.Rule, error) {
	var out []policy.Rule
	for _, list := range []struct {
		effect policy.Effect
		rules  []Rule
	}{{policy.Deny, s.Deny}, {policy.Allow, s.Allow}} {
		for _, r := range list.rules {
			rule, err := r.rule(list.effect)
			if err != nil {
				return nil, err
			}
			out = append(out, rule)
		}
	}
	return out, nil
}

func (r Rule) rule(effect policy.Effect) (policy.Rule, error) {
	res, err := policy.ParseResource(r.Resource)
	if err != nil {
		return policy.Rule{}, err
	}
	out := policy.Rule{ID: r.String(), Effect: effect, Resources: []policy.Resource{res}, Methods: r.Methods, Layer: r.Layer, Reason: r.Reason}
	if r.Path != "" {
		pattern, err := policy.ParsePathPattern(r.Path)
		if err != nil {
			return policy.Rule{}, err
		}
		out.Paths = []policy.PathPattern{pattern}
	}
	return out, nil
}

// String is the rule in one line, without its reason.
func (r Rule) String() string {
	return strings.TrimSpace(strings.Join(r.Methods, ",") + " " + r.Resource + r.Path)
}

// An Explanation says what a role's rules do with one request, and why.
type Explanation struct {
	Role    pair.Role `json:"role"`
	Allowed bool      `json:"allowed"`
	Rule    string    `json:"rule,omitempty"`  // that decides; empty: none does, and what nothing allows is denied
	Layer   string    `json:"layer,omitempty"` // of that rule
	Reason  string    `json:"reason"`          // why the rule is there
	Detail  string    `json:"detail"`          // how the decision came about
	Hint    string    `json:"hint,omitempty"`  // what would change a denial
	// Partly says that the connection is allowed for some requests only: give a method and a path to ask about one.
	Partly bool `json:"partly,omitempty"`
}

// Explain decides a request to target (HOST or HOST:PORT; without a port it is 443) for both roles. An empty method
// asks whether a connection can be made at all. It is pure. listed are the engine's rules as it lists them: its own decide beside
// the plan's, as they would in a run, or do in the one whose plan this is. Nil leaves them out.
func (p Plan) Explain(listed []sbx.Rule, target, method, path string) ([]Explanation, error) {
	q, err := request(target, method, path)
	if err != nil {
		return nil, err
	}
	var out []Explanation
	for _, s := range []Spec{p.Agent, p.GitHub} {
		rules, err := s.Rules()
		if err != nil {
			return nil, err
		}
		theirs, fallback, refused := p.engineRules(s, listed)
		rules = append(rules, theirs...)
		d := policy.NewSet(rules).Decide(q)
		e := Explanation{Role: s.Role, Allowed: d.Allowed, Rule: strings.TrimPrefix(d.Rule, d.Layer+":"), Layer: d.Layer, Detail: d.Reason, Hint: d.Hint,
			Partly: d.Allowed && d.Inspect && method == "", Reason: "no rule covers it, and what nothing allows is denied"}
		if d.Kind == policy.Implicit && fallback != "" {
			e.Rule, e.Layer = fallback, LayerEngine
		}
		if refused != nil {
			e.Hint = "no run can be made on this engine: " + refused.Error()
		}
		for _, r := range rules {
			if r.Label() == d.Rule {
				e.Reason = r.Reason
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// engineRules are the rules that the engine itself brings to a role's sandbox, and what a run adds against them; then its fallback,
// by name, and why no run can be made beside them, if none can.
func (p Plan) engineRules(s Spec, listed []sbx.Rule) (theirs []policy.Rule, fallback string, refused error) {
	more, refused := p.foreign(s, listed)
	for _, resource := range more.deny {
		rule, err := Rule{Resource: resource, Layer: LayerShut, Reason: "the engine's own rules open it, and a run denies it for that"}.rule(policy.Deny)
		if err == nil { // it was parsed before
			theirs = append(theirs, rule)
		}
	}
	for _, r := range listed {
		scoped := r.Sandbox == s.Name && r.Source != "kit" && r.Source != "org"
		switch {
		case !concerns(r, s), scoped && r.Decision != sbx.Deny:
			continue
		case isFallback(r):
			fallback = ruleName(r)
			continue
		}
		rule := policy.Rule{ID: ruleName(r), Effect: policy.Effect(r.Decision), Methods: r.Methods, Layer: LayerEngine, Reason: "the engine brings it"}
		if scoped {
			rule.Layer, rule.Reason = LayerShut, "the engine's own rules open it, and the run denies it for that"
		}
		resources := r.Resources
		for _, t := range r.HTTPTargets {
			resources = append(slices.Clone(resources), t.Host)
			if pattern, err := policy.ParsePathPattern(t.Path); err == nil {
				rule.Paths = append(rule.Paths, pattern)
			}
		}
		for _, text := range resources {
			if res, err := readResource(text); err == nil { // else no run can be made, which is said
				rule.Resources = append(rule.Resources, res)
			}
		}
		for _, protocol := range r.Protocols {
			rule.Protocols = append(rule.Protocols, policy.Protocol(protocol))
		}
		theirs = append(theirs, rule)
	}
	return theirs, fallback, refused
}

func request(target, method, path string) (policy.Request, error) {
	h, port, err := policy.ParseHostPort(target, 443)
	if err != nil {
		return policy.Request{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	q := policy.Request{Host: h, Port: port, Method: strings.ToUpper(method)}
	if method != "" {
		if q.Path, err = policy.ParsePath(path); err != nil {
			return policy.Request{}, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	return q, nil
}

// A RoleFinding is something wrong with the rules of one role.
type RoleFinding struct {
	Role  pair.Role `json:"role"`
	Layer string    `json:"layer"` // of the rule
	policy.Finding
}

// Lint looks for rules that are too wide, can never act, are decided by another rule, or read like a host that they are
// not. It takes what [New] would refuse as a finding.
func Lint(in Input) ([]RoleFinding, error) {
	agentProfile, err := policy.ForAgent(in.Agent, in.Provider)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	githubProfile, err := policy.ForGitHub(in.Repo, in.Host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	var found []RoleFinding
	for _, role := range []struct {
		role    pair.Role
		profile policy.Profile
		allow   []string
	}{{pair.RoleAgent, agentProfile, in.Allow}, {pair.RoleGitHub, githubProfile, nil}} {
		list, err := needs(role.profile, in.Paths)
		if err != nil {
			return nil, err
		}
		var rules []policy.Rule
		for _, r := range list {
			rule, err := r.rule(policy.Allow)
			if err != nil {
				return nil, err
			}
			rules = append(rules, rule)
		}
		for _, own := range []struct {
			layer  string
			effect policy.Effect
			list   []string
		}{{LayerAllow, policy.Allow, role.allow}, {LayerDeny, policy.Deny, in.Deny}} {
			for _, text := range own.list {
				rule, err := Rule{Resource: text, Layer: own.layer}.rule(own.effect)
				if err != nil {
					return nil, fmt.Errorf("%w: %s: %w", ErrRefused, own.layer, err)
				}
				rules = append(rules, rule)
			}
		}
		for _, f := range policy.Lint(rules) {
			layer, _, _ := strings.Cut(f.Rule, ":")
			f.Rule = strings.TrimPrefix(f.Rule, layer+":")
			found = append(found, RoleFinding{role.role, layer, f})
		}
	}
	return found, nil
}

// Grant returns the plan with further hosts for the agent sandbox, and the rules for those that are new. The operator's
// bounds hold: what network.deny covers, what is too wide and what belongs to the github sandbox is refused by name,
// with an error that matches [ErrRefused].
func (p Plan) Grant(hosts []string) (Plan, []Rule, error) {
	asked, err := resources(hosts, LayerGrant)
	if err != nil {
		return Plan{}, nil, err
	}
	var fresh []Rule
	for _, r := range asked {
		res, err := policy.ParseResource(r.Resource)
		if err != nil {
			return Plan{}, nil, err
		}
		if err := res.Openable(); err != nil {
			return Plan{}, nil, fmt.Errorf("%w: %s: %w", ErrRefused, LayerGrant, err)
		}
		if denied := denies(p.Agent.Deny, res); denied != "" {
			return Plan{}, nil, fmt.Errorf("%w: %s is denied by %s (network.deny), which no grant opens", ErrRefused, r.Resource, denied)
		}
		known := slices.ContainsFunc(append(slices.Clone(p.Agent.Allow), fresh...), func(o Rule) bool { return o.Resource == r.Resource && o.Path == "" })
		if !known {
			fresh = append(fresh, r)
		}
	}
	if wide, own := crosses(fresh, p.gitHub(), nil); wide != "" {
		return Plan{}, nil, fmt.Errorf("%w: %q would let the agent sandbox reach %s, which belongs to the github sandbox", ErrRefused, wide, own)
	}
	p.Agent.Allow = append(slices.Clone(p.Agent.Allow), fresh...)
	return p, fresh, nil
}

// denies returns the deny rule that covers all of res, or nothing.
func denies(list []Rule, res policy.Resource) string {
	for _, r := range list {
		if d, err := policy.ParseResource(r.Resource); err == nil && d.Includes(res) {
			return r.Resource
		}
	}
	return ""
}

// A Lesson is what the blocked hosts of a run teach: the smallest addition to network.allow that would have let them
// through, and what is not to be allowed.
type Lesson struct {
	Allow  []string   `json:"allow"` // to be added to network.allow
	Learnt []Learnt   `json:"learnt"`
	Replay []Replayed `json:"replay"` // the run's log against the plan with the addition
}

// Learnt is what is proposed for one blocked host, and the evidence.
type Learnt struct {
	events.Blocked
	Proposed string `json:"proposed,omitempty"` // resource to allow; empty: none
	Because  string `json:"because"`
}

// Replayed is one blocked host and what the new rules do with it.
type Replayed struct {
	Role    pair.Role `json:"role"`
	Host    string    `json:"host"`
	Allowed bool      `json:"allowed"`
	Rule    string    `json:"rule,omitempty"`
}

// Learn proposes rules from what a run's log says was blocked. It is pure. Each host that is proposed is proposed by
// itself, on the port that was asked for: a wildcard would open what nobody asked for.
func (p Plan) Learn(blocked []events.Blocked) (Lesson, error) {
	lesson := Lesson{Allow: []string{}, Learnt: []Learnt{}, Replay: []Replayed{}}
	with := p
	scan := secrets.NewScanner()
	for _, b := range blocked {
		l := Learnt{Blocked: b}
		resource := b.Host
		l.Host = scan.Mask(b.Host) // a name can carry what the agent knows: under plain-env its own credential
		if _, _, err := net.SplitHostPort(resource); err != nil {
			resource += ":443" // the engine names hosts without a port where it refused the name itself
		}
		switch {
		case l.Host != b.Host:
			l.Because = "the name holds what has the shape of a credential"
		case b.Role != string(pair.RoleAgent):
			l.Because = "the github sandbox reaches its repository and nothing else, whatever the configuration says"
		case bootNoise(resource):
			l.Because = "the sandbox's own system asks for it when it starts; the agent does not need it"
		case covering(p.Agent.Allow, hostPart(resource)) != "":
			l.Because = "the host is allowed, and single requests to it were refused: " + b.Reason
		case len(lesson.Allow) == maxLearnt:
			l.Because = fmt.Sprintf("%d hosts are proposed already, and nobody judges more at a time", maxLearnt)
		default:
			next, fresh, err := with.Grant([]string{resource})
			switch {
			case err != nil:
				l.Because = strings.TrimPrefix(err.Error(), ErrRefused.Error()+": ")
			case len(fresh) == 0:
				l.Because = "proposed already"
			default:
				with = next
				l.Proposed, l.Because = fresh[0].Resource, fmt.Sprintf("asked for %s: %s", times(b.Count), b.Reason)
				lesson.Allow = append(lesson.Allow, l.Proposed)
			}
		}
		lesson.Learnt = append(lesson.Learnt, l)
	}
	sets := map[string]*policy.Set{}
	for _, spec := range []Spec{with.Agent, with.GitHub} {
		rules, err := spec.Rules()
		if err != nil {
			return Lesson{}, err
		}
		sets[string(spec.Role)] = policy.NewSet(rules)
	}
	for i, b := range blocked {
		set := sets[b.Role]
		if set == nil {
			continue
		}
		again := Replayed{Role: pair.Role(b.Role), Host: lesson.Learnt[i].Host}
		if q, err := request(b.Host, "", ""); err == nil { // what is no host name stays blocked
			d := set.Decide(q)
			again.Allowed, again.Rule = d.Allowed, strings.TrimPrefix(d.Rule, d.Layer+":")
		}
		lesson.Replay = append(lesson.Replay, again)
	}
	return lesson, nil
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// maxLearnt bounds what a lesson proposes: the names come from the agent.
const maxLearnt = 100

// bootNoise reports whether a fresh sandbox asks for it by itself (sbx 0.39 and 0.47).
func bootNoise(resource string) bool {
	return slices.Contains([]string{"archive.ubuntu.com:80", "security.ubuntu.com:80", "ports.ubuntu.com:80", "download.docker.com:443"}, resource)
}
