package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// Engine is what provisioning needs of an engine's client. Changes are made without a read after each; the Verify
// methods read once for all of them.
type Engine interface {
	Create(ctx context.Context, spec sbx.CreateSpec) (sbx.Sandbox, error)
	PolicyInit(ctx context.Context, preset sbx.Preset) error
	PolicyAllow(ctx context.Context, rule sbx.PolicyRule) ([]string, error)
	PolicyDeny(ctx context.Context, rule sbx.PolicyRule) ([]string, error)
	SecretSet(ctx context.Context, s sbx.ServiceSecret) error
	SecretSetCustom(ctx context.Context, s sbx.CustomSecret) (string, error)
	SecretList(ctx context.Context) ([]sbx.Secret, error)
	VerifyCreated(ctx context.Context, specs ...sbx.CreateSpec) ([]sbx.Sandbox, error)
	PolicyList(ctx context.Context, sandbox string) ([]sbx.Rule, error)
	VerifyRules(ctx context.Context, rules ...sbx.PolicyRule) error
	VerifySecrets(ctx context.Context, want ...sbx.Secret) error
}

// Report says what Apply did.
type Report struct {
	Calls []events.EngineCall // of the engine, in the order in which they ended
	Notes []string            // what a person should know about the pair
}

// Apply makes the pair of the plan: both sandboxes at once, their rules in one call each, their secrets, and then one
// read of each kind that checks all of it. p must have been acquired, so that whatever comes to exist is on record;
// Apply removes nothing itself, the release of p does.
//
// The error matches [ErrRefused] if a global secret or a rule of the engine would break the split.
func Apply(ctx context.Context, engine Engine, p *pair.Pair, plan Plan, creds Credentials) (Report, error) {
	a := &apply{engine: engine, pair: p, plan: plan}
	err := a.do(ctx, creds)
	return Report{a.calls, a.notes}, err
}

// Calls lists the engine calls that Apply will make for the plan, in the words of a [Report]: those of one group at the same time.
func (p Plan) Calls() [][]string {
	var groups [][]string
	if p.Agent.Secret.Strategy == PlainEnv {
		groups = append(groups, []string{"secret ls"})
	}
	if p.Engine.PolicyUnset {
		groups = append(groups, []string{"policy init"})
	}
	create, give := []string{}, []string{}
	for _, s := range p.Specs() {
		create = append(create, "create "+string(s.Role))
		for _, r := range policyRules(s) {
			give = append(give, fmt.Sprintf("policy %s %s", r.Decision, s.Role))
		}
		if s.Secret.Strategy == PlainEnv {
			give = append(give, "exec "+string(s.Role))
		} else {
			give = append(give, "secret set "+string(s.Role))
		}
	}
	return append(groups, create, give, []string{"ls", "policy ls", "secret ls"})
}

type apply struct {
	engine Engine
	pair   *pair.Pair
	plan   Plan

	mu    sync.Mutex
	calls []events.EngineCall
	notes []string

	shadowed []string // global services that a worthless secret of each sandbox takes the place of
}

func (a *apply) note(texts ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notes = append(a.notes, texts...)
}

// call makes one engine call and notes it.
func (a *apply) call(op string, do func() error) error {
	start := time.Now()
	err := do()
	code := 0
	if exit, ok := errors.AsType[*sbx.ExitError](err); ok {
		code = exit.Code
	} else if err != nil {
		code = -1
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, events.EngineCall{Op: op, Took: time.Since(start), Code: code})
	return err
}

func (a *apply) do(ctx context.Context, creds Credentials) error {
	if a.plan.Agent.Secret.Strategy == PlainEnv { // the value goes in: what would go over it is looked for first
		var listed []sbx.Secret
		err := a.call("secret ls", func() (err error) { listed, err = a.engine.SecretList(ctx); return err })
		if err == nil {
			err = a.globals(listed)
		}
		if err != nil {
			return err
		}
	}
	if a.pair.Booted {
		err := a.bind(ctx, creds)
		if !errors.Is(err, sbx.ErrNotFound) && !errors.Is(err, sbx.ErrNotApplied) {
			return err
		}
		// The pooled sandboxes are gone, or not what they were: a restart of the machine or the daemon does that.
		a.note("the pair from the pool could not be used, and was made anew: " + err.Error())
		if err := a.pair.Clear(ctx); err != nil {
			return err
		}
	}
	if a.plan.Engine.PolicyUnset {
		if err := a.initPolicy(ctx); err != nil {
			return err
		}
	}
	if a.plan.Agent.Secret.Strategy == PlainEnv {
		a.note("agent.strategy is plain-env: the agent's credential itself goes into its sandbox, where everything can read it")
	}
	var makes []func(context.Context) error
	for _, spec := range a.plan.Specs() {
		makes = append(makes, func(ctx context.Context) error {
			if err := a.create(ctx, spec); err != nil {
				return err
			}
			return a.give(ctx, spec, creds)
		})
	}
	if err := both(ctx, makes...); err != nil {
		return err
	}
	return a.readBack(ctx)
}

// bind gives a pair from the pool its rules and secrets, all at once, and reads them back.
func (a *apply) bind(ctx context.Context, creds Credentials) error {
	var steps []func(context.Context) error
	for _, spec := range a.plan.Specs() {
		steps = append(steps, func(ctx context.Context) error { return a.give(ctx, spec, creds) })
	}
	if err := both(ctx, steps...); err != nil {
		return err
	}
	return a.readBack(ctx)
}

// both runs the steps at the same time; the first failure cancels the others, and all have ended when it returns.
func both(ctx context.Context, steps ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, step := range steps {
		wg.Go(func() {
			if errs[i] = pair.Caught(func() error { return step(ctx) }); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	first := context.Cause(ctx)
	for _, err := range errs {
		// An error that only says that the other step failed adds nothing.
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return first
}

func (a *apply) spec(s Spec) sbx.CreateSpec {
	return sbx.CreateSpec{
		Name: s.Name, Workspaces: s.Workspaces, CPUs: s.CPUs, MemoryMiB: s.MemoryMiB, Template: s.Template, SkillsOff: true,
		Local: a.plan.Local, DenyNetwork: s.KitDenied,
	}
}

func (a *apply) create(ctx context.Context, s Spec) error {
	err := a.call("create "+string(s.Role), func() error { _, err := a.engine.Create(ctx, a.spec(s)); return err })
	if err != nil {
		return fmt.Errorf("create the %s sandbox: %w", s.Role, err)
	}
	return nil
}

// give gives a sandbox its rules and its secret, all at the same time.
func (a *apply) give(ctx context.Context, s Spec, creds Credentials) error {
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return a.credential(ctx, s, creds.of(s.Role)) },
	}
	for _, rule := range policyRules(s) {
		steps = append(steps, func(ctx context.Context) error { return a.rule(ctx, s, rule) })
	}
	return both(ctx, steps...)
}

// initPolicy sets up the policy of our own engine, once. Nothing is narrower than deny-all, so this takes nothing from
// anybody. With sbx the choice is the user's.
func (a *apply) initPolicy(ctx context.Context) error {
	err := a.call("policy init", func() error { return a.engine.PolicyInit(ctx, sbx.PresetDenyAll) })
	if errors.Is(err, sbx.ErrExists) { // another run was first
		return nil
	}
	return err
}

func (a *apply) rule(ctx context.Context, s Spec, rule sbx.PolicyRule) error {
	do := a.engine.PolicyAllow
	if rule.Decision == sbx.Deny {
		do = a.engine.PolicyDeny
	}
	err := a.call(fmt.Sprintf("policy %s %s", rule.Decision, s.Role), func() error { _, err := do(ctx, rule); return err })
	if err != nil {
		return fmt.Errorf("network rules of the %s sandbox: %w", s.Role, err)
	}
	return nil
}

// policyRules are the engine's rules of a spec: one call for all hosts that are denied, one for all that are allowed,
// and one for each path. An empty list makes no rule: an empty allow list allows nothing.
func policyRules(s Spec) []sbx.PolicyRule {
	var out []sbx.PolicyRule
	for _, list := range []struct {
		decision sbx.Decision
		rules    []Rule
	}{{sbx.Deny, s.Deny}, {sbx.Allow, s.Allow}} {
		hosts := sbx.PolicyRule{Sandbox: s.Name, Decision: list.decision}
		for _, r := range list.rules {
			if r.Path == "" && len(r.Methods) == 0 {
				hosts.Resources = append(hosts.Resources, r.Resource)
				continue
			}
			out = append(out, sbx.PolicyRule{Sandbox: s.Name, Decision: list.decision, Resources: []string{r.Resource}, Methods: r.Methods, Path: r.Path})
		}
		if len(hosts.Resources) > 0 {
			out = append(out, hosts)
		}
	}
	return out
}

// readBack checks with one read of each kind that everything took effect: exit 0 is no proof. Nothing has run in the sandboxes yet, so
// that what the engine brings beside ours is early enough looked at here.
func (a *apply) readBack(ctx context.Context) error {
	var rules []sbx.PolicyRule
	var want []sbx.Secret
	var specs []sbx.CreateSpec
	for _, s := range a.plan.Specs() {
		specs = append(specs, a.spec(s))
		rules = append(rules, policyRules(s)...)
		want = append(want, s.listedSecrets(nil)...)
	}
	return both(ctx,
		func(ctx context.Context) error {
			return a.call("ls", func() error { _, err := a.engine.VerifyCreated(ctx, specs...); return err })
		},
		func(ctx context.Context) error {
			return a.checkRules(ctx, rules)
		},
		func(ctx context.Context) error {
			return a.checkSecrets(ctx, want)
		},
	)
}
