package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/sbx"
)

// maxGrants bounds how much a run may grow while it is in place: whoever needs more wants another configuration.
const maxGrants = 32

// GrantEngine is what grants need of an engine's client. Each change is read back.
type GrantEngine interface {
	PolicyList(ctx context.Context, sandbox string) ([]sbx.Rule, error)
	PolicyAllow(ctx context.Context, rule sbx.PolicyRule) ([]string, error)
	PolicyRemove(ctx context.Context, ref sbx.RuleRef) error
}

// Changes is the record of what was changed in a pair while it was in place: hosts opened to the agent sandbox and closed
// again, credentials replaced. It is a file of its own beside the run's log, since other processes than the run's write it.
type Changes struct {
	path string
	run  pair.RunID
}

// ChangesIn returns the record in a run's folder. Nothing is made before the first grant.
func ChangesIn(dir string, run pair.RunID) Changes {
	return Changes{filepath.Join(dir, "changes.jsonl"), run}
}

// Events returns what was changed, oldest first: [events.Granted], [events.Revoked] and [events.Rotated].
func (g Changes) Events() ([]events.Payload, error) {
	list, err := events.ReadFile(g.path)
	if err != nil {
		return nil, fmt.Errorf("read grants: %w", err)
	}
	var out []events.Payload
	for _, e := range list {
		var err error
		switch e.Type {
		case (events.Granted{}).Kind():
			var p events.Granted
			err = json.Unmarshal(e.Data, &p)
			out = append(out, p)
		case (events.Revoked{}).Kind():
			var p events.Revoked
			err = json.Unmarshal(e.Data, &p)
			out = append(out, p)
		case (events.Rotated{}).Kind():
			var p events.Rotated
			err = json.Unmarshal(e.Data, &p)
			out = append(out, p)
		}
		if err != nil {
			return nil, fmt.Errorf("read grants: %w", err)
		}
	}
	return out, nil
}

// Current lists the hosts that are granted now.
func (g Changes) Current() ([]string, error) {
	list, err := g.Events()
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, e := range list {
		switch e := e.(type) {
		case events.Granted:
			hosts = append(hosts, e.Hosts...)
		case events.Revoked:
			hosts = slices.DeleteFunc(hosts, func(h string) bool { return slices.Contains(e.Hosts, h) })
		}
	}
	return hosts, nil
}

// Plan returns the plan as it is with the current grants.
func (g Changes) Plan(p Plan) (Plan, error) {
	hosts, err := g.Current()
	if err != nil || len(hosts) == 0 {
		return p, err
	}
	p, _, err = p.Grant(hosts)
	return p, err
}

// Give opens hosts to the agent sandbox of a pair that is in place, within the plan's bounds, and returns what was new.
// It is on record before it is done. The error matches [ErrRefused] if the bounds do not allow it.
func (g Changes) Give(ctx context.Context, engine GrantEngine, p Plan, hosts []string) (given []string, err error) {
	err = g.inTurn(ctx, func() error { given, err = g.give(ctx, engine, p, hosts); return err })
	return given, err
}

// inTurn calls do while no other process changes the same pair: a host is closed again as the record says, whoever asked for it.
func (g Changes) inTurn(ctx context.Context, do func() error) error {
	lock := flock.New(g.path + ".turn")
	wait, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	if _, err := lock.TryLockContext(wait, 10*time.Millisecond); err != nil {
		return fmt.Errorf("change the pair: another process is at it: %w", err)
	}
	return errors.Join(do(), lock.Unlock())
}

// Bounds of a change.
const (
	turnTimeout = 2 * time.Minute  // of the wait for another process's
	undoTimeout = 30 * time.Second // of taking back what an engine half took
)

func (g Changes) give(ctx context.Context, engine GrantEngine, p Plan, hosts []string) ([]string, error) {
	p, err := g.Plan(p)
	if err != nil {
		return nil, err
	}
	_, fresh, err := p.Grant(hosts)
	if err != nil || len(fresh) == 0 {
		return []string{}, err
	}
	now, err := g.Current()
	if err != nil {
		return nil, err
	}
	if n := len(now) + len(fresh); n > maxGrants {
		return nil, fmt.Errorf("%w: %d grants are more than the %d that one run may have; put the hosts into network.allow", ErrRefused, n, maxGrants)
	}
	listed, err := engine.PolicyList(ctx, "")
	if err != nil {
		return nil, err
	}
	var given []string
	for _, r := range fresh {
		if by := p.Agent.deniedBy(listed, r.Resource); by != "" {
			return nil, fmt.Errorf("%w: the engine's rule %s denies %s to the agent sandbox, and wins over a grant; for the next run, put it into network.allow", ErrRefused, by, r.Resource)
		}
		given = append(given, r.Resource)
	}
	if err := g.note(events.Granted{Role: string(pair.RoleAgent), Hosts: given}); err != nil {
		return nil, err
	}
	for i, r := range given {
		_, err := engine.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: p.Agent.Name, Decision: sbx.Allow, Resources: []string{r}})
		if err != nil { // one rule each, so that each can be taken back
			err = fmt.Errorf("grant %s: %w", r, err)
			after, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			closed := given[i:] // a call that failed may have opened it all the same
			if undo := closeHost(after, engine, p, r); undo != nil {
				closed = given[i+1:]
				err = errors.Join(err, fmt.Errorf("it may be open (run: sbxpair revoke %s %s): %w", g.run, r, undo))
			}
			if len(closed) > 0 {
				err = errors.Join(err, g.note(events.Revoked{Role: string(pair.RoleAgent), Hosts: closed, Reason: "the engine did not take it"}))
			}
			return given[:i], err
		}
	}
	return given, nil
}

// Named returns those of the current grants that are named; none named are all.
func (g Changes) Named(hosts []string) ([]string, error) {
	now, err := g.Current()
	if err != nil {
		return nil, err
	}
	asked, err := resources(hosts, LayerGrant)
	if err != nil {
		return nil, err
	}
	taken := now
	if len(asked) > 0 {
		taken = nil
	}
	for _, r := range asked {
		if !slices.Contains(now, r.Resource) {
			return nil, fmt.Errorf("%w: %s is not granted; granted are: %v", ErrRefused, r.Resource, now)
		}
		taken = append(taken, r.Resource)
	}
	return append([]string{}, taken...), nil
}

// Take closes granted hosts again; none named are all. It is on record once it is done.
func (g Changes) Take(ctx context.Context, engine GrantEngine, p Plan, hosts []string) (taken []string, err error) {
	err = g.inTurn(ctx, func() error { taken, err = g.take(ctx, engine, p, hosts); return err })
	return taken, err
}

func (g Changes) take(ctx context.Context, engine GrantEngine, p Plan, hosts []string) ([]string, error) {
	taken, err := g.Named(hosts)
	if err != nil {
		return nil, err
	}
	done := []string{}
	for _, r := range taken {
		if err := closeHost(ctx, engine, p, r); err != nil {
			return done, fmt.Errorf("revoke %s: %w", r, err)
		}
		if err := g.note(events.Revoked{Role: string(pair.RoleAgent), Hosts: []string{r}}); err != nil {
			return done, err
		}
		done = append(done, r)
	}
	return done, nil
}

// closeHost removes the rule of one grant. One that is gone already, by hand or because its process was killed before it
// was made, is closed.
func closeHost(ctx context.Context, engine GrantEngine, p Plan, resource string) error {
	err := engine.PolicyRemove(ctx, sbx.RuleRef{Sandbox: p.Agent.Name, Resources: []string{resource}})
	if errors.Is(err, sbx.ErrNotFound) {
		return nil
	}
	return err
}

// deniedBy names the engine's rule that denies all of a resource to the sandbox, or nothing.
func (s Spec) deniedBy(listed []sbx.Rule, resource string) string {
	res, err := policy.ParseResource(resource)
	if err != nil {
		return ""
	}
	for _, r := range listed {
		if r.Decision != sbx.Deny || !concerns(r, s) || len(r.Methods)+len(r.HTTPTargets) > 0 || isFallback(r) {
			continue
		}
		for _, text := range r.Resources {
			if denied, err := policy.ParseResource(text); err == nil && denied.Includes(res) {
				return ruleName(r)
			}
		}
	}
	return ""
}

func (g Changes) note(p events.Payload) error {
	return events.Append(g.path, string(g.run), func(b []byte) []byte { return b }, p) // hosts are no secrets
}

// Forget removes the record: the pair that it was about is gone.
func (g Changes) Forget() error {
	if err := os.Remove(g.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget grants: %w", err)
	}
	return nil
}
