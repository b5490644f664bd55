package sbx

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Port is a port of a sandbox that is published on the host.
type Port struct {
	HostIP      string `json:"host_ip"`
	HostPort    int    `json:"host_port"`
	SandboxPort int    `json:"sandbox_port"`
	Protocol    string `json:"protocol"` // "tcp", "tcp4", "tcp6", "udp", "udp4", "udp6"
}

// String gives the form of sbx's listings, such as "127.0.0.1:8080->3000/tcp".
func (p Port) String() string {
	host := p.HostIP
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("%s:%d->%d/%s", host, p.HostPort, p.SandboxPort, p.Protocol)
}

var portCell = regexp.MustCompile(`^(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):(\d{1,5})\s*->\s*(\d{1,5})/((?:tcp|udp)[46]?)$`)

func parsePort(s string) (Port, bool) {
	m := portCell.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return Port{}, false
	}
	ip := m[1] + m[2]
	if _, err := netip.ParseAddr(ip); err != nil {
		return Port{}, false
	}
	hostPort, _ := strconv.Atoi(m[3])
	sandboxPort, _ := strconv.Atoi(m[4])
	if !portNumber(hostPort) || !portNumber(sandboxPort) {
		return Port{}, false
	}
	return Port{ip, hostPort, sandboxPort, m[5]}, true
}

func portNumber(n int) bool { return n > 0 && n <= 65535 }

// parsePortsCell reads the PORTS cell of a listing.
func parsePortsCell(cell string) ([]Port, error) {
	var ports []Port
	for part := range strings.SplitSeq(cell, ",") {
		if part = strings.TrimSpace(part); part == "" || part == "-" {
			continue
		}
		p, ok := parsePort(part)
		if !ok {
			return nil, malformed("published port %q", tailText(part, 80))
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// Ports lists the published ports of a sandbox.
func (c *Client) Ports(ctx context.Context, sandbox string) ([]Port, error) {
	const op = "ports"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return nil, err
	}
	out, err := c.read(ctx, op, "ports", sandbox)
	if err != nil {
		return nil, err
	}
	ports, err := ParsePorts(out)
	if err != nil {
		return nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	return ports, nil
}

// ParsePorts reads the output of "sbx ports", JSON or text.
func ParsePorts(out []byte) ([]Port, error) {
	ports := []Port{}
	if looksJSON(out) {
		var doc []portJSON
		if err := decodeJSON(out, "", &doc); err != nil {
			return nil, err
		}
		if doc == nil {
			return nil, malformed("null for a list of ports")
		}
		for _, p := range doc {
			if !portNumber(p.HostPort) || !portNumber(p.SandboxPort) || p.Protocol == "" {
				return nil, malformed("published port %s", p.port())
			}
			ports = append(ports, p.port())
		}
		return ports, nil
	}
	spec := tableSpec{
		columns: []column{
			{id: "ip", names: []string{"HOST IP"}, word: true}, {id: "host", names: []string{"HOST PORT"}, word: true},
			{id: "sandbox", names: []string{"SANDBOX PORT"}, word: true}, {id: "protocol", names: []string{"PROTOCOL"}, word: true},
		},
		must: []string{"ip", "host", "sandbox", "protocol"},
		row:  []string{"ip", "host", "sandbox", "protocol"},
	}
	tables, notes, err := parseTables(clean(out), spec)
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 && !anyLine(notes, func(l string) bool { return strings.HasPrefix(l, "No published ports") }) {
		return nil, malformed("no port listing in %d bytes", len(out))
	}
	for _, t := range tables {
		for _, row := range t.rows {
			ip := row.text("ip")
			if strings.Contains(ip, ":") {
				ip = "[" + strings.Trim(ip, "[]") + "]"
			}
			p, ok := parsePort(fmt.Sprintf("%s:%s->%s/%s", ip, row.text("host"), row.text("sandbox"), row.text("protocol")))
			if !ok {
				return nil, malformed("a row of the port listing")
			}
			ports = append(ports, p)
		}
	}
	return ports, nil
}

var portSpec = regexp.MustCompile(`^(?:(?:(?:[0-9.]+|\[[0-9A-Fa-f:]+\]):)?\d{1,5}:)?\d{1,5}(?:/(?:tcp|udp)[46]?)?$`)

// Publish publishes a port and returns what became of it, one entry for each address family. spec is
// [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTO]. It starts a stopped sandbox (sbx 0.42). The error matches [ErrConflict] if
// the host port is taken.
func (c *Client) Publish(ctx context.Context, sandbox, spec string) ([]Port, error) {
	const op = "ports publish"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return nil, err
	}
	if !portSpec.MatchString(spec) {
		return nil, invalid(op, "port %q: want [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTO]", spec)
	}
	res, err := c.change(ctx, op, "ports", sandbox, "--publish", spec)
	if err != nil {
		return nil, err
	}
	var ports []Port
	for line := range strings.Lines(clean(res.Stdout)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Published "); ok {
			p, ok := parsePort(strings.ReplaceAll(rest, " -> ", "->"))
			if !ok {
				return nil, fmt.Errorf("sbx %s: %w", op, malformed("published port %q", tailText(rest, 80)))
			}
			ports = append(ports, p)
		}
	}
	if !c.readBack {
		return ports, nil
	}
	listed, err := c.Ports(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		if !containsPort(listed, p) {
			return nil, &NotAppliedError{Op: op, Missing: []string{p.String() + " is not in the listing"}}
		}
	}
	if len(ports) == 0 { // the wording changed: the listing decides
		for _, p := range listed {
			if p.is(spec) {
				ports = append(ports, p)
			}
		}
		if len(ports) == 0 {
			return nil, &NotAppliedError{Op: op, Missing: []string{spec + " is not in the listing"}}
		}
	}
	return ports, nil
}

// is reports whether p is what a caller asked for with spec.
func (p Port) is(spec string) bool {
	spec, _, _ = strings.Cut(spec, "/")
	parts := strings.Split(spec, ":")
	if parts[len(parts)-1] != strconv.Itoa(p.SandboxPort) {
		return false
	}
	return len(parts) == 1 || parts[len(parts)-2] == strconv.Itoa(p.HostPort)
}

func containsPort(list []Port, p Port) bool {
	for _, q := range list {
		if q.HostIP == p.HostIP && q.HostPort == p.HostPort && q.SandboxPort == p.SandboxPort {
			return true
		}
	}
	return false
}

// Unpublish takes a published port back. That it was not published is success.
func (c *Client) Unpublish(ctx context.Context, sandbox string, p Port) error {
	const op = "ports unpublish"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return err
	}
	host := ""
	if p.HostIP != "" {
		host = p.HostIP + ":"
		if strings.Contains(p.HostIP, ":") {
			host = "[" + p.HostIP + "]:"
		}
	}
	spec := fmt.Sprintf("%s%d:%d", host, p.HostPort, p.SandboxPort)
	if p.Protocol != "" {
		spec += "/" + p.Protocol
	}
	_, err := c.change(ctx, op, "ports", sandbox, "--unpublish", spec)
	if !c.readBack {
		return err
	}
	listed, listErr := c.Ports(ctx, sandbox)
	switch {
	case listErr != nil && err != nil:
		return err
	case listErr != nil:
		return listErr
	case containsPort(listed, p):
		if err != nil {
			return err
		}
		return &NotAppliedError{Op: op, Missing: []string{p.String() + " is still published"}}
	}
	return nil
}
