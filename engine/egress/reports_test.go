package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/policy"
)

// TestFieldReports has one subtest for each public report of the category proxy, and of secrets where the proxy is
// meant, that can be provoked here. Not here, with the reason:
//
//	R165 the variables of a sandbox are the engine's; R172 is about reports, which the tool makes;
//	R174 there is one way out, so that there is nothing to go around; R176, R177 no nested containers, no SOCKS for clients.
func TestFieldReports(t *testing.T) {
	t.Run("R063", TestChangesActAtOnce)
	t.Run("R164", func(t *testing.T) {
		// Allowed, SSH is carried as it is; denied, it ends at once instead of hanging.
		w := newWorld(t, policy.DenyAll)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err == nil {
				io.WriteString(c, "SSH-2.0-x\r\n")
				c.Close()
			}
		}()
		w.sandbox.Resolve["github.com:22"] = l.Addr().String()
		w.rule(policy.Allow, "github.com:22")
		w.serve()
		_, br, _ := w.connect("github.com:22")
		if line, err := br.ReadString('\n'); line != "SSH-2.0-x\r\n" {
			t.Errorf("%q %v", line, err)
		}
		t.Run("denied", TestDeniedSSH)
	})
	t.Run("R166", func(t *testing.T) {
		// The name of the authority says whose certificate it is.
		w := newWorld(t, policy.DenyAll)
		w.serve()
		tc, err := w.connectTLS("a.test:443", "a.test")
		if err != nil {
			t.Fatal(err)
		}
		defer tc.Close()
		if issuer := tc.ConnectionState().PeerCertificates[0].Issuer.CommonName; issuer != "sbx-local proxy CA" {
			t.Errorf("issuer %q", issuer)
		}
	})
	t.Run("R167", TestEventStream)
	t.Run("R168", func(t *testing.T) {
		w := newWorld(t, policy.DenyAll)
		w.http1 = true
		proxy, third := &saw{}, &saw{}
		w.plainServer(proxy, "proxy.test:3142")
		w.plainServer(third, "deb.test:3142", "deb.test:80")
		w.rule(policy.Allow, "proxy.test:3142", onPath("GET", "/**"))
		w.rule(policy.Allow, "deb.test")
		w.serve()
		c, br, status := w.connect("proxy.test:3142")
		if !strings.Contains(status, "200") {
			t.Fatal(status)
		}
		io.WriteString(c, "GET http://deb.test/x HTTP/1.1\r\nHost: deb.test\r\n\r\n")
		if line, err := br.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 403 ") || third.count()+proxy.count() != 0 {
			t.Errorf("%q %v, %d %d", line, err, third.count(), proxy.count())
		}
	})
	t.Run("R169", func(t *testing.T) {
		t.Run("works", TestUpstream)
		t.Run("fails", TestUpstreamBroken)
		w := newWorld(t, policy.DenyAll)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w.sandbox.Resolve["a.test"] = l.Addr().String()
		l.Close() // nobody answers there
		w.rule(policy.Allow, "a.test")
		w.rule(policy.Allow, "nowhere.test")
		w.serve()
		for i, target := range []string{"http://a.test/", "https://a.test/", "http://nowhere.test/"} {
			code, body, _ := w.get(w.client(), target)
			if code == 200 || !strings.Contains(body, "Bad Gateway") && !strings.Contains(body, "cannot reach") {
				t.Errorf("%s: %d %q", target, code, body)
			}
			if e := w.entries(i + 1)[i]; e.Kind != "dial" || !strings.Contains(e.Reason, "not reached: ") {
				t.Errorf("%s: log %+v", target, e)
			}
		}
	})
	t.Run("R170", TestFronting)
	t.Run("R171", func(t *testing.T) {
		w := newWorld(t, policy.DenyAll)
		w.serve()
		for _, target := range []string{"http://canary.bad.test/", "https://canary.bad.test/"} {
			w.get(w.client(), target)
		}
		if asked := w.names.questions(); len(asked) != 0 {
			t.Errorf("looked up %v", asked)
		}
	})
	t.Run("R173", TestPathRules)
	t.Run("R175", TestBodiesPassUnchanged)
	t.Run("R186", TestPathRules)
	t.Run("R187", TestProxyToItself)
	t.Run("R188", func(t *testing.T) {
		w := newWorld(t, policy.DenyAll)
		if testing.Short() {
			t.Skip("waits for a name server that does not answer")
		}
		// A black hole as the first name server, then one that answers.
		hole, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer hole.Close()
		var asked atomic.Int64
		w.config.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if asked.Add(1) == 1 {
				c, err := net.Dial("udp", hole.LocalAddr().String())
				if err == nil {
					c.SetDeadline(time.Now().Add(50 * time.Millisecond))
				}
				return deadlined{c}, err
			}
			return nil, errors.New("asked the second")
		}}
		w.rule(policy.Allow, "a.test")
		w.serve()
		start := time.Now()
		if code, body, _ := w.get(w.client(), "http://a.test/"); code != 502 || time.Since(start) > 8*time.Second || asked.Load() < 2 {
			t.Errorf("%d %q after %v, %d servers asked", code, body, time.Since(start), asked.Load())
		}
	})
	t.Run("R189", func(t *testing.T) {
		w := newWorld(t, policy.DenyAll)
		w.tlsServer(&saw{}, "api.github.com")
		w.rule(policy.Allow, "api.github.com")
		w.service("github", canary)
		w.serve()
		c, br, _ := w.connect("api.github.com:443")
		pinned := tls.Client(bufferedConn{c, br}, &tls.Config{ServerName: "api.github.com"}) // trusts the system's roots only
		if err := pinned.HandshakeContext(t.Context()); err == nil {
			t.Fatal("trusts the proxy")
		}
		if e := w.entries(1)[0]; e.Kind != "tls" || !strings.Contains(e.Reason, "refused the proxy's certificate") {
			t.Errorf("log %+v", e)
		}
	})
}

// A deadlined connection keeps the deadline it has: the resolver's own would be five seconds.
type deadlined struct{ net.Conn }

func (deadlined) SetDeadline(time.Time) error { return nil }
