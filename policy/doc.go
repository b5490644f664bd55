// Package policy says what a network rule means: which hosts, addresses, ports, methods and paths it covers, how
// several rules combine, what the presets hold, and which rules a role needs at least.
//
// Everything here is a value or a pure function; nothing is read, dialled or printed. The local engine decides with
// it, "policy check" explains with it and the plan is linted with it, so that a rule means one thing everywhere.
//
// # Resources
//
//	example.com          this name only, every port
//	example.com:443      this name on one port
//	*.example.com        exactly one label in front; not example.com itself
//	**.example.com       one or more labels in front; not example.com itself
//	api?.example.com     ? and [12] and * inside a label that has at least two plain labels behind it
//	192.0.2.10:1234      an address; [fd00::1]:22 for IPv6
//	10.0.0.0/8:443       a range, with or without a port; [fd00::/8]:443 for IPv6
//	localhost:8080       a port of the host's loopback, which the sandbox reaches as host.docker.internal:8080
//	**                   every name and every public address
//
// Names are compared in one canonical form: lower case, no root dot, IDNA ASCII. Addresses likewise: 192.0.2.1 and
// ::ffff:192.0.2.1 are the same.
//
// # Combination
//
// A deny that matches wins over every allow, whatever the scope. What no allow matches is denied. A rule with methods
// or paths decides single requests; it opens a connection to its host only as far as those requests go. Loopback,
// link-local, private, shared (CGNAT) and metadata addresses are reached only by a rule that names the address or its
// range, also when an allowed name resolves to one.
//
// Source: the resource language and "deny wins" are those of sbx 0.47. Stricter than sbx: a range that is denied is
// denied too when an allowed name resolves into it, and ** does not open private addresses.
package policy
