package policy

import "net/netip"

// special lists the ranges that are reached only by a rule that names them. Order matters: the first match names it.
// Source: IANA special-purpose address registries; metadata addresses as the clouds publish them.
func special() []struct {
	prefix string
	class  string
} {
	return []struct {
		prefix string
		class  string
	}{
		{"169.254.169.254/32", "metadata"},
		{"169.254.170.2/32", "metadata"},
		{"fd00:ec2::254/128", "metadata"},
		{"100.100.100.200/32", "metadata"},
		{"168.63.129.16/32", "metadata"},
		{"192.0.0.192/32", "metadata"},
		{"127.0.0.0/8", "loopback"},
		{"::1/128", "loopback"},
		{"169.254.0.0/16", "link-local"},
		{"fe80::/10", "link-local"},
		{"0.0.0.0/8", "unspecified"},
		{"::/128", "unspecified"},
		{"10.0.0.0/8", "private"},
		{"172.16.0.0/12", "private"},
		{"192.168.0.0/16", "private"},
		{"fc00::/7", "private"},
		{"fec0::/10", "private"},
		{"100.64.0.0/10", "shared (CGNAT)"},
		{"192.0.0.0/24", "reserved"},
		{"192.0.2.0/24", "documentation"},
		{"198.51.100.0/24", "documentation"},
		{"203.0.113.0/24", "documentation"},
		{"2001:db8::/32", "documentation"},
		{"3fff::/20", "documentation"},
		{"198.18.0.0/15", "benchmarking"},
		{"224.0.0.0/4", "multicast"},
		{"ff00::/8", "multicast"},
		{"240.0.0.0/4", "reserved"},
		{"::/96", "IPv4-compatible"},
		{"64:ff9b::/96", "NAT64"},
		{"64:ff9b:1::/48", "NAT64"},
		{"2002::/16", "6to4"},
		{"2001::/32", "Teredo"},
		{"100::/64", "discard"},
		{"5f00::/16", "reserved"},
	}
}

// An AddrTable classifies addresses. Make one with [NewAddrTable]; it is safe for concurrent use.
type AddrTable struct {
	rows []addrRow
}

type addrRow struct {
	prefix netip.Prefix
	class  string
}

// NewAddrTable returns the table of special addresses.
func NewAddrTable() *AddrTable {
	var t AddrTable
	for _, row := range special() {
		t.rows = append(t.rows, addrRow{netip.MustParsePrefix(row.prefix), row.class})
	}
	return &t
}

// Class returns what kind of special address a is ("loopback", "private", ...), or "" for an ordinary public one.
// Addresses that carry an IPv4 address inside (mapped, NAT64, 6to4) are special whatever they carry.
func (t *AddrTable) Class(a netip.Addr) string {
	a = a.WithZone("").Unmap()
	for _, row := range t.rows {
		if row.prefix.Contains(a) {
			return row.class
		}
	}
	return ""
}

// unreachable returns why no rule can open a, or "".
func unreachable(a netip.Addr) string {
	switch a = a.Unmap(); {
	case a.IsLoopback():
		return "loopback"
	case a.IsLinkLocalUnicast():
		return "link-local"
	case a.IsUnspecified():
		return "unspecified"
	case a.IsMulticast():
		return "multicast"
	}
	return ""
}
