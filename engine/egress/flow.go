package egress

import (
	"context"
	"net"
	"time"

	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/policy"
)

// watchEvery is how soon a changed rule ends what it no longer allows.
const watchEvery = 500 * time.Millisecond

// A flow is something open that was allowed when it began: a tunnel, or a request whose answer is on its way.
type flow struct {
	target target
	asked  policy.Request // with the address, once there is a connection; under the session's lock
	tunnel bool
	end    func()
}

// begin puts a flow into the books; the func takes it out again.
func (s *session) begin(f *flow) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows[f] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.flows, f)
	}
}

// reached notes the address at the other end of a flow's connection, so that a rule about it that comes later ends the
// flow. What stays on this machine, and what goes by an upstream proxy, has none that counts.
func (s *session) reached(f *flow, c net.Conn) {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if up, err := s.upstreamOf(f.target, true); !ok || s.staysHere(f.target) || err != nil || up != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.asked.Addr = tcp.AddrPort().Addr().WithZone("").Unmap()
}

// watchRules ends the flows that the rules of now would not let begin, and the tunnels to hosts that a credential has
// been bound to since.
func (s *session) watchRules(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var rules *policy.Set
	var bindings []vault.Binding
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		set, err := s.rules.Set(s.sandbox)
		if err != nil {
			set = nil // denies everything
		}
		bound, err := s.vault.Bindings(s.sandbox)
		if err != nil {
			continue // new requests are refused; what is open holds no more than it did
		}
		same := rules == set && len(bindings) == len(bound) && (len(bound) == 0 || &bindings[0] == &bound[0])
		rules, bindings = set, bound
		if same {
			continue
		}
		for _, f := range s.openFlows() {
			s.mu.Lock()
			asked := f.asked
			s.mu.Unlock()
			d := set.Decide(asked)
			if !d.Allowed || f.tunnel && (d.Inspect || covered(bound, f.target)) {
				d.Reason = "Open connection ended: " + d.Reason
				if d.Allowed {
					d.Allowed, d.Reason = false, "Open tunnel ended: its host is looked into now"
				}
				s.record(f.target, entryOf(d))
				f.end()
			}
		}
	}
}

func (s *session) openFlows() []*flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*flow
	for f := range s.flows {
		out = append(out, f)
	}
	return out
}

func covered(bindings []vault.Binding, t target) bool {
	for _, b := range bindings {
		if b.Covers(t.rule, t.port) {
			return true
		}
	}
	return false
}
