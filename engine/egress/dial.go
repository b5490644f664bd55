package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sbxpair/sbxpair/policy"
)

// A target is where a client wants to go.
type target struct {
	host policy.Host // as the client names it, canonical
	port uint16
	rule policy.Host // as rules name it: the host's loopback is "localhost" there
}

// isSelf reports whether the target is the proxy itself.
func (t target) isSelf() bool { return t.host.String() == Gateway }

// isSandboxLocal reports whether the name means the sandbox itself; it must not become the host's loopback by the way.
func (t target) isSandboxLocal() bool { return t.host.String() == policy.Localhost }

// isHostLoopback reports whether the target is a port of the host's loopback.
func (t target) isHostLoopback() bool { return t.host.String() == policy.HostAlias }

func (s *session) target(host policy.Host, port uint16) target {
	t := target{host, port, host}
	if t.isHostLoopback() {
		t.rule, _ = policy.ParseHost(policy.Localhost) // a constant name
	}
	return t
}

// overrideOf returns the loopback address that stands in for the target.
func (s *session) overrideOf(t target) (netip.AddrPort, bool) {
	if a, ok := s.overrides[t.host.Join(t.port)]; ok {
		return a, true
	}
	a, ok := s.overrides[t.host.String()]
	return a, ok
}

// staysHere reports whether a connection to the target never leaves the machine, so that it may carry credentials without TLS.
func (s *session) staysHere(t target) bool {
	_, overridden := s.overrideOf(t)
	return overridden || t.isHostLoopback()
}

// A deniedError is the refusal of every address of a target.
type deniedError struct{ decision policy.Decision }

func (e *deniedError) Error() string { return e.decision.Reason }

// dial connects to a target whose name was allowed, by the machine's own proxy if one is on the way. The error is a
// [*deniedError] if the target's addresses are refused.
func (s *session) dial(ctx context.Context, t target) (net.Conn, error) {
	up, err := s.upstreamOf(t, true)
	if err != nil {
		return nil, err
	}
	if up == nil {
		return s.dialStraight(ctx, t)
	}
	if err := s.vouch(ctx, t); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return up.dial(ctx, t, s.roots)
}

// dialStraight is dial without that. The name is resolved once here; each address is decided on, and an address that
// passed is the one dialled.
func (s *session) dialStraight(ctx context.Context, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if a, ok := s.overrideOf(t); ok {
		return dialAddr(ctx, a)
	}
	if t.isHostLoopback() {
		return dialAddr(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), t.port))
	}
	passed, err := s.addresses(ctx, t)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, a := range passed {
		// Leave time for the addresses after this one.
		each, stop := context.WithTimeout(ctx, dialTimeout/time.Duration(min(len(passed)-i, 3)))
		c, err := dialAddr(each, netip.AddrPortFrom(a, t.port))
		stop()
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// addresses looks a target up and returns the addresses that the rules let pass, at least one; a [*deniedError] if they
// refuse them all.
func (s *session) addresses(ctx context.Context, t target) ([]netip.Addr, error) {
	addrs := []netip.Addr{t.host.Addr()}
	if !t.host.Addr().IsValid() {
		var err error
		// The root dot keeps search domains out: what was decided on is what is looked up.
		addrs, err = s.resolver.LookupNetIP(ctx, "ip", t.host.String()+".")
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", t.host, cause(ctx, err))
		}
	}
	var passed []netip.Addr
	var refused policy.Decision
	for _, a := range addrs {
		a = a.WithZone("").Unmap()
		if d := s.decide(policy.Request{Host: t.rule, Port: t.port, Addr: a}); d.Allowed {
			passed = append(passed, a)
		} else {
			refused = d
		}
	}
	switch {
	case len(addrs) == 0:
		return nil, fmt.Errorf("look up %s: no address", t.host)
	case len(passed) == 0:
		return nil, &deniedError{refused}
	}
	return passed, nil
}

func dialAddr(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{KeepAlive: 30 * time.Second}
	c, err := d.DialContext(ctx, "tcp", a.String())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", a, cause(ctx, err))
	}
	return c, nil
}

// cause prefers the deadline to the error it provoked.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}
