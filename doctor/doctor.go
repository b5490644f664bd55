// Package doctor answers, before a run, whether a run would start: engine, policy, secrets, tokens, leftovers. Each
// check has an id, one of four verdicts, and what to do.
//
// These checks look from outside and make no sandbox: they are called shallow, and a shallow green does not promise that
// a model accepts a token (sbx-releases#595). That is what a run's own proof is for.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

// ErrRed matches the error of a report with a bad check.
var ErrRed = errors.New("a check is red")

// Verdict is what a check found.
type Verdict string

// The verdicts. Unknown is neither green nor red: the check itself could not be made.
const (
	OK      Verdict = "ok"
	Warn    Verdict = "warn"
	Bad     Verdict = "bad"
	Unknown Verdict = "unknown"
)

// Check is one answer.
type Check struct {
	ID      string  `json:"id"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Remedy  string  `json:"remedy,omitempty"`
}

// Report is the answers in the order of the questions.
type Report struct {
	Depth  string  `json:"depth"` // "shallow": nothing was asked from inside a sandbox
	Checks []Check `json:"checks"`
}

// Err is nil unless a check is bad; it then matches [ErrRed] and names them.
func (r Report) Err() error {
	var bad []string
	for _, c := range r.Checks {
		if c.Verdict == Bad {
			bad = append(bad, c.ID)
		}
	}
	if bad == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrRed, strings.Join(bad, ", "))
}

// Options is what Examine looks at.
type Options struct {
	Config config.Config
	Locate sbx.LocateOptions
	Store  *pair.Store
	Lookup func(string) (string, bool)
}

// Examine makes every check. It changes nothing, and goes on after a bad one.
func Examine(ctx context.Context, o Options) Report {
	e := &examination{}
	e.tokens(ctx, o)
	e.program("git", "sbxpair copies the checkout with it")
	engine, err := sbx.Locate(ctx, o.Locate)
	if err != nil {
		e.add(Check{"engine", Bad, err.Error(), sbx.Hint(err)})
		return Report{"shallow", e.checks}
	}
	e.engine(engine)
	client := engine.Client()
	e.policy(ctx, client, engine)
	e.globals(ctx, client)
	e.sshAgent(ctx, client, engine)
	e.leftovers(ctx, client, engine, o)
	return Report{"shallow", e.checks}
}

type examination struct{ checks []Check }

func (e *examination) add(c Check) { e.checks = append(e.checks, c) }

// undecided notes that a check could not be made, with the reason.
func (e *examination) undecided(id string, err error) {
	e.add(Check{id, Unknown, "could not check: " + err.Error(), sbx.Hint(err)})
}

func (e *examination) tokens(ctx context.Context, o Options) {
	_, err := provision.ResolveCredentials(ctx, o.Config.Agent.Token, o.Config.GitHub.Token, o.Lookup)
	if err != nil {
		e.add(Check{"tokens", Bad, strings.ReplaceAll(err.Error(), "\n", "; "), "sbxpair config show; docs/how-to/tokens.md"})
		return
	}
	e.add(Check{"tokens", OK, "both are there, differ, and have the right shape", ""})
}

func (e *examination) program(name, why string) {
	path, err := exec.LookPath(name)
	if err != nil {
		e.add(Check{name, Bad, "not found: " + why, "install " + name})
		return
	}
	e.add(Check{name, OK, path, ""})
}

func (e *examination) engine(engine sbx.Engine) {
	detail := engine.Reason
	if engine.Version.Isolation != "" {
		detail += "; isolation: " + engine.Version.Isolation
	}
	e.add(Check{"engine", OK, detail, ""})
	for _, r := range engine.Rejected {
		e.add(Check{"engine " + r.Kind, Warn, "not taken: " + r.Err.Error(), r.Remedy})
	}
	if engine.Version.Mismatch() {
		e.add(Check{"engine versions", Warn, fmt.Sprintf("command %s, daemon %s", engine.Version.Client, engine.Version.Server),
			"restart the daemon when nothing runs: sbx daemon restart"})
	}
}

func (e *examination) policy(ctx context.Context, client *sbx.Client, engine sbx.Engine) {
	rules, err := client.PolicyList(ctx, "")
	switch {
	case errors.Is(err, sbx.ErrPolicyUninitialised) && engine.Kind == sbx.EngineLocal:
		e.add(Check{"policy", OK, "not set up yet; the first run sets it to deny-all", ""})
		return
	case errors.Is(err, sbx.ErrPolicyUninitialised):
		e.add(Check{"policy", Bad, "the engine's network policy is not set up", "sbx policy init deny-all"})
		return
	case err != nil:
		e.undecided("policy", err)
		return
	}
	var wide []string
	for _, r := range rules {
		if r.Sandbox == "" && r.Decision == sbx.Allow && !r.Inactive && strings.HasPrefix(r.ResourceType, "network") {
			wide = append(wide, r.Resources...)
		}
	}
	if len(wide) > 0 {
		shown := wide[:min(len(wide), 3)]
		e.add(Check{"policy", Warn, fmt.Sprintf("global rules open %d resources to every sandbox (%s, …); a run that can reach a host it must not is refused", len(wide), strings.Join(shown, ", ")),
			"a preset of deny-all is the right one for pairs"})
		return
	}
	e.add(Check{"policy", OK, "nothing is open to every sandbox", ""})
}

func (e *examination) globals(ctx context.Context, client *sbx.Client) {
	list, err := client.SecretList(ctx)
	if err != nil {
		e.undecided("global secrets", err)
		return
	}
	list = slices.DeleteFunc(list, func(s sbx.Secret) bool { return !s.Global() || s.Type == sbx.SecretRegistry })
	var names []string
	bad := false
	for _, s := range list {
		names = append(names, strings.TrimSpace(string(s.Type)+" "+s.Name+s.Env))
		// A global github secret is shadowed by the pair's own scoped ones; any other would reach both sandboxes.
		bad = bad || s.Type != sbx.SecretService || s.Name != "github"
	}
	switch {
	case bad:
		e.add(Check{"global secrets", Bad, "every sandbox is given: " + strings.Join(names, ", ") + "; that breaks the split", "scope them to the sandboxes that need them: sbx secret set --sandbox NAME …"})
	case len(names) > 0:
		e.add(Check{"global secrets", Warn, strings.Join(names, ", ") + " is global; a pair's own scoped secrets stand in its place", ""})
	default:
		e.add(Check{"global secrets", OK, "none", ""})
	}
}

func (e *examination) sshAgent(ctx context.Context, client *sbx.Client, engine sbx.Engine) {
	const id = "ssh agent"
	if engine.Kind == sbx.EngineLocal {
		e.add(Check{id, OK, "the local engine forwards none", ""})
		return
	}
	s, err := client.Setting(ctx, "ssh.agentForwardingEnabled")
	switch {
	case err != nil:
		e.undecided(id, err)
	case s.Value == "false":
		e.add(Check{id, OK, "forwarding is off", ""})
	default:
		e.add(Check{id, Warn, "the engine forwards the SSH agent of whoever started its daemon or a sandbox; a run is refused if keys show up inside",
			"sbx settings set ssh.agentForwardingEnabled false && sbx daemon restart"})
	}
}

func (e *examination) leftovers(ctx context.Context, client *sbx.Client, engine sbx.Engine, o Options) {
	found, err := pair.FindLeftovers(ctx, client, o.Store, pair.EngineRef{Kind: engine.Kind, AppName: o.Config.Engine.AppName})
	switch {
	case err != nil:
		e.undecided("leftovers", err)
	case len(found) > 0:
		e.add(Check{"leftovers", Warn, fmt.Sprintf("%d runs left something behind", len(found)), "sbxpair prune"})
	default:
		e.add(Check{"leftovers", OK, "none", ""})
	}
}
