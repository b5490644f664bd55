package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/sbxpair/sbxpair/engine/ports"
)

// A PortError is a port that could not be published.
type PortError struct {
	Port   ports.Port
	Reason string
}

func (e *PortError) Error() string { return "publish port: " + e.Reason }

// Publish publishes ports of a running sandbox, now and after every start. It returns them with the host ports that were
// free where none was given. The error is a *PortError if one cannot be had; none of them is then.
func (e *Engine) Publish(ctx context.Context, name string, want []ports.Port) ([]ports.Port, error) {
	var added []ports.Port
	err := e.changePorts(ctx, name, func(r *Record) error {
		var err error
		if added, err = e.allot(*r, want); err != nil {
			return err
		}
		r.Ports = append(r.Ports, added...)
		return nil
	})
	return added, err
}

// Unpublish takes back published ports: those at the host ports of the given ones, and of their sandbox ports and
// addresses where more than that is given. It returns what it took back.
func (e *Engine) Unpublish(ctx context.Context, name string, match func(ports.Port) bool) ([]ports.Port, error) {
	var removed []ports.Port
	err := e.changePorts(ctx, name, func(r *Record) error {
		removed = nil
		r.Ports = slices.DeleteFunc(slices.Clone(r.Ports), func(p ports.Port) bool {
			if match(p) {
				removed = append(removed, p)
				return true
			}
			return false
		})
		return nil
	})
	return removed, err
}

func (e *Engine) changePorts(ctx context.Context, name string, change func(*Record) error) error {
	unlock, err := e.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := e.load(name)
	if err != nil {
		return err
	}
	old := r.Ports
	if err := change(&r); err != nil {
		return err
	}
	s, err := e.Session(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := errors.Join(e.save(r), s.Sync(ctx)); err != nil {
		return err
	}
	added := slices.DeleteFunc(slices.Clone(r.Ports), func(p ports.Port) bool { return slices.Contains(old, p) })
	if err := e.published(ctx, r, added); err != nil {
		r.Ports = old
		ctx := context.WithoutCancel(ctx)
		return errors.Join(err, e.save(r), s.Sync(ctx))
	}
	return nil
}

// allot gives each wanted port a host port, and refuses one that a running sandbox has.
func (e *Engine) allot(r Record, want []ports.Port) ([]ports.Port, error) {
	list, err := e.List()
	if err != nil {
		return nil, err
	}
	taken := slices.Clone(r.Ports)
	for _, other := range list {
		if other.ID != r.ID && other.Status == Running && !other.Lost() {
			taken = append(taken, other.Ports...)
		}
	}
	var out []ports.Port
	for i := 0; i < len(want); i++ {
		p := want[i]
		if p.HostPort == 0 {
			// A pair of both families shares one port.
			group := []string{p.HostIP}
			for j := i + 1; j < len(want) && want[j].HostPort == 0 && want[j].SandboxPort == p.SandboxPort && want[j].Protocol == p.Protocol && want[j].HostIP != p.HostIP; j++ {
				group = append(group, want[j].HostIP)
			}
			port, err := ports.Free(group...)
			if err != nil {
				return nil, &PortError{p, err.Error()}
			}
			for k, host := range group {
				q := want[i+k]
				q.HostIP, q.HostPort = host, port
				out, taken = append(out, q), append(taken, q)
			}
			i += len(group) - 1
			continue
		}
		if slices.ContainsFunc(taken, func(t ports.Port) bool { return t.HostIP == p.HostIP && t.HostPort == p.HostPort }) {
			return nil, &PortError{p, fmt.Sprintf("port %s/%s is already published", p.Host(), p.Protocol)}
		}
		out, taken = append(out, p), append(taken, p)
	}
	return out, nil
}

// published asks the daemon whether the ports are; the error is a *PortError of the first that is not.
func (e *Engine) published(ctx context.Context, r Record, list []ports.Port) error {
	if len(list) == 0 {
		return nil
	}
	failed := map[string]string{}
	if err := e.request(ctx, http.MethodGet, "/ports?sandbox="+url.QueryEscape(r.ID), &failed); err != nil {
		return err
	}
	for _, p := range list {
		if reason, ok := failed[p.String()]; ok {
			return &PortError{p, reason}
		}
	}
	return nil
}
