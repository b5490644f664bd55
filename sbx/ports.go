package sbx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
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
func ParsePorts(out []byte) ([]Port, error) { return showing(out, readPorts, checkPorts) }

func readPorts(out []byte) ([]Port, error) {
	ports := []Port{}
	if looksJSON(out) {
		var doc []portJSON
		if err := decodeJSON(out, "[]", &doc); err != nil {
			return nil, err
		}
		for _, p := range doc {
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
		return nil, malformed("no port listing")
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

var portSpec = regexp.MustCompile(`^(?:(?:([0-9.]+|\[[0-9A-Fa-f:]+\]):)?(\d{1,5}):)?(\d{1,5})(?:/((?:tcp|udp)[46]?))?$`)

// Publish publishes a port and returns what became of it, one entry for each address family. spec is
// [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTO]. It starts a stopped sandbox (sbx 0.42). The error matches [ErrConflict] if
// the host port is taken, [ErrNotApplied] if what was published is not what was asked for: another port, address or
// protocol, or without an address in spec one that other machines reach.
func (c *Client) Publish(ctx context.Context, sandbox, spec string) ([]Port, error) {
	const op = "ports publish"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return nil, err
	}
	if err := checkPortSpec(op, spec); err != nil {
		return nil, err
	}
	res, err := c.change(ctx, op, "ports", sandbox, "--publish", spec)
	if err != nil {
		return nil, err
	}
	var ports []Port
	var wrong []string
	for line := range strings.Lines(clean(res.Stdout)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Published "); ok {
			p, ok := parsePort(strings.ReplaceAll(rest, " -> ", "->"))
			if !ok {
				return nil, fmt.Errorf("sbx %s: %w", op, malformedIn(res.Stdout, "published port %q", tailText(rest, 80)))
			}
			if !p.is(spec, c.cloud) {
				wrong = append(wrong, fmt.Sprintf("asked for %s, published was %s", spec, p))
			}
			ports = append(ports, p)
		}
	}
	if wrong != nil || !c.readBack {
		return ports, notApplied(op, wrong...)
	}
	listed, err := c.Ports(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		if !slices.ContainsFunc(listed, p.same) {
			wrong = append(wrong, p.String()+" is not in the listing")
		}
	}
	if len(ports) == 0 { // the wording changed: the listing decides
		for _, p := range listed {
			if p.is(spec, c.cloud) {
				ports = append(ports, p)
			}
		}
		if len(ports) == 0 {
			wrong = append(wrong, spec+" is not in the listing")
		}
	}
	return ports, notApplied(op, wrong...)
}

func checkPortSpec(op, spec string) error {
	ok := false
	if m := portSpec.FindStringSubmatch(spec); m != nil {
		host, _ := strconv.Atoi(m[2])
		inner, _ := strconv.Atoi(m[3])
		_, ipErr := netip.ParseAddr(strings.Trim(m[1], "[]"))
		ok = portNumber(inner) && (m[2] == "" || portNumber(host)) && (m[1] == "" || ipErr == nil)
	}
	if !ok {
		return invalid(op, "port %q: want [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTO]", spec)
	}
	return nil
}

// is reports whether p is what a caller asked for with spec. Without an address in spec it has to be one of this machine's
// alone, which sbx keeps to; hosted sandboxes publish elsewhere.
func (p Port) is(spec string, hosted bool) bool {
	m := portSpec.FindStringSubmatch(spec)
	if m == nil || m[3] != strconv.Itoa(p.SandboxPort) || m[2] != "" && m[2] != strconv.Itoa(p.HostPort) {
		return false
	}
	have, err := netip.ParseAddr(p.HostIP)
	switch {
	case !protocolIs(p.Protocol, cmp.Or(m[4], "tcp")):
		return false
	case m[1] == "":
		return hosted || err == nil && have.IsLoopback()
	}
	want, wantErr := netip.ParseAddr(strings.Trim(m[1], "[]"))
	return err == nil && wantErr == nil && have.Unmap() == want.Unmap()
}

// protocolIs reports whether have is what want asks for: "tcp" is both families, "tcp4" one.
func protocolIs(have, want string) bool {
	return have == want || strings.TrimRight(have, "46") == want
}

// same reports whether q is p as a listing shows it: an address or protocol that p leaves out is any, and a version may have
// narrowed the protocol to the family.
func (p Port) same(q Port) bool {
	if p.HostPort != q.HostPort || p.SandboxPort != q.SandboxPort {
		return false
	}
	if p.Protocol != "" && !protocolIs(q.Protocol, p.Protocol) && !protocolIs(p.Protocol, q.Protocol) {
		return false
	}
	if p.HostIP == "" || p.HostIP == q.HostIP {
		return true
	}
	a, aErr := netip.ParseAddr(p.HostIP)
	b, bErr := netip.ParseAddr(q.HostIP)
	return aErr == nil && bErr == nil && a.Unmap() == b.Unmap()
}

// Unpublish takes a published port back; without HostIP or Protocol, on every address and for every protocol that has these
// numbers. That it was not published is success. The error matches [ErrNotApplied] if it is still there.
func (c *Client) Unpublish(ctx context.Context, sandbox string, p Port) error {
	const op = "ports unpublish"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return err
	}
	if _, err := netip.ParseAddr(p.HostIP); p.HostIP != "" && err != nil || !portNumber(p.HostPort) || !portNumber(p.SandboxPort) {
		return invalid(op, "port %s: want a host and a sandbox port, and an IP address or none", p)
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
	if err := checkPortSpec(op, spec); err != nil {
		return err
	}
	_, err := c.change(ctx, op, "ports", sandbox, "--unpublish", spec)
	if !c.readBack {
		return err
	}
	listed, listErr := c.Ports(ctx, sandbox)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	var left []string
	for _, q := range listed {
		if p.same(q) {
			left = append(left, q.String()+" is still published")
		}
	}
	if len(left) > 0 && err != nil {
		return err
	}
	if errors.Is(err, ErrPrompt) {
		return err
	}
	return notApplied(op, left...)
}
