// Package upstream says which proxy of the machine's own a connection has to take to leave it, as in a company's network.
package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// ErrInvalid matches the error of a proxy that is described wrongly. The error never holds the text, which may hold a
// password.
var ErrInvalid = errors.New("invalid proxy")

// Proxies are the proxies of a machine, in the form of the usual variables; empty ones are none. User and password may be
// part of an address.
type Proxies struct {
	HTTP    string // for requests without TLS
	HTTPS   string // for everything else
	NoProxy string // names, domains, addresses and ranges that are reached straight, with commas; "*" is all
}

// For returns the proxy to a host and port, nil for none. Loopback never goes through one.
func (p Proxies) For(host string, port uint16, secure bool) (*url.URL, error) {
	to, text := &url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}, p.HTTP
	if secure {
		to.Scheme, text = "https", p.HTTPS
	}
	if text == "" {
		return nil, nil
	}
	const some = "http://proxy.invalid" // whether, not which: what is malformed must not become an address of some kind
	choose := httpproxy.Config{HTTPProxy: some, HTTPSProxy: some, NoProxy: p.NoProxy}
	if u, err := choose.ProxyFunc()(to); err != nil || u == nil {
		return nil, err
	}
	return Parse(text)
}

// Parse reads the address of a proxy: http, https, socks5 or socks5h; without a scheme it is http. The error matches
// [ErrInvalid].
func Parse(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("%w: give its address as http://HOST:PORT", ErrInvalid)
	}
	if !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) {
		return nil, fmt.Errorf("%w: %q is not http, https or socks5", ErrInvalid, u.Scheme)
	}
	return u, nil
}
