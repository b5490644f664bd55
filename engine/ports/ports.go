// Package ports publishes ports of a sandbox, which has no network of its own, on addresses of the host: the daemon listens,
// and for each connection asks process 1 of the sandbox, over a socket that they share, to dial inside.
//
// The sandbox's end is hostile: it can break its own published ports and nothing else.
package ports

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
)

// A Port is one published port, in the JSON of sbx 0.47's "ports --json".
type Port struct {
	HostIP      string `json:"host_ip"`
	HostPort    int    `json:"host_port"` // 0: any that is free
	SandboxPort int    `json:"sandbox_port"`
	Protocol    string `json:"protocol"` // tcp, tcp4, tcp6
}

// Host is the address on the host.
func (p Port) Host() string { return net.JoinHostPort(p.HostIP, strconv.Itoa(p.HostPort)) }

// String is the port as sbx tells of it: 127.0.0.1:18081 -> 8080/tcp4.
func (p Port) String() string { return fmt.Sprintf("%s -> %d/%s", p.Host(), p.SandboxPort, p.Protocol) }

// Short is the port as in sbx's ls: 127.0.0.1:18081->8080/tcp4.
func (p Port) Short() string { return fmt.Sprintf("%s->%d/%s", p.Host(), p.SandboxPort, p.Protocol) }

// Parse reads [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL], as sbx 0.47 does: without a protocol it is tcp4, or tcp6 for an
// IPv6 address; tcp without an address is one port of both families. Without an address it is a loopback one.
func Parse(spec string) ([]Port, error) {
	bad := func(why string) ([]Port, error) {
		return nil, fmt.Errorf("invalid port %q: %s; give [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL]", spec, why)
	}
	rest, protocol, _ := strings.Cut(spec, "/")
	i := strings.LastIndexByte(rest, ':')
	host := ""
	if i >= 0 {
		host, rest = rest[:i], rest[i+1:]
	}
	p := Port{Protocol: protocol}
	var ok bool
	if p.SandboxPort, ok = number(rest); !ok {
		return bad("the sandbox's port must be 1 to 65535")
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host[:i], "["), "]"))
		if err != nil || addr.Zone() != "" {
			return bad("the host's address must be an IP address")
		}
		if addr.Unmap().IsMulticast() || addr.Unmap() == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return bad("nobody can listen on a multicast or broadcast address")
		}
		p.HostIP, host = addr.Unmap().String(), host[i+1:]
	}
	if host != "" {
		if p.HostPort, ok = number(host); !ok {
			return bad("the host's port must be 1 to 65535")
		}
	}
	v6 := strings.Contains(p.HostIP, ":")
	p.Protocol = cmp.Or(p.Protocol, map[bool]string{false: "tcp4", true: "tcp6"}[v6])
	switch {
	case strings.HasPrefix(p.Protocol, "udp"):
		return bad("this engine publishes tcp only")
	case p.Protocol != "tcp" && p.Protocol != "tcp4" && p.Protocol != "tcp6":
		return bad("the protocol must be tcp, tcp4 or tcp6")
	case p.HostIP != "" && p.Protocol != "tcp" && v6 != (p.Protocol == "tcp6"):
		return bad("address and protocol are of two families")
	case p.HostIP != "":
		return []Port{p}, nil
	case p.Protocol == "tcp":
		six := p
		p.HostIP, six.HostIP = "127.0.0.1", "::1"
		return []Port{p, six}, nil
	case p.Protocol == "tcp6":
		p.HostIP = "::1"
		return []Port{p}, nil
	}
	p.HostIP = "127.0.0.1"
	return []Port{p}, nil
}

func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && n > 0 && text[0] != '+'
}

// Free finds a port that is free at each of the addresses. It may be taken by the time that it is used.
func Free(hosts ...string) (int, error) {
	var last error
	for range 20 {
		ln, err := net.Listen("tcp", net.JoinHostPort(hosts[0], "0"))
		if err != nil {
			return 0, err
		}
		port := ln.Addr().(*net.TCPAddr).Port
		free := true
		for _, h := range hosts[1:] {
			other, err := net.Listen("tcp", net.JoinHostPort(h, strconv.Itoa(port)))
			if err != nil {
				free, last = false, err
				break
			}
			other.Close()
		}
		ln.Close()
		if free {
			return port, nil
		}
	}
	return 0, last
}

// A Stream is a connection whose two directions end on their own.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// Join carries both directions between a and b until both have ended, and closes them. On an error both end at once, so
// that neither peer waits for the other.
func Join(a, b Stream) {
	defer a.Close()
	defer b.Close()
	var wg sync.WaitGroup
	wg.Go(func() { pipe(a, b) })
	pipe(b, a)
	wg.Wait()
}

func pipe(dst, src Stream) {
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		src.Close()
		return
	}
	dst.CloseWrite()
}
