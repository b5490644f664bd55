package egress

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/policy"
)

// The pairs direct/tunnel/intercepted are the same exchange; their ratio is the proxy's cost.
func BenchmarkLatency(b *testing.B) { benchmark(b, 64) }

func BenchmarkThroughput(b *testing.B) { benchmark(b, 64<<20) }

func benchmark(b *testing.B, size int) {
	payload := make([]byte, size)
	for _, mode := range []string{"direct", "tunnel", "intercepted", "intercepted-h2"} {
		b.Run(mode, func(b *testing.B) {
			w := newWorld(b, policy.DenyAll)
			srv := w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.Write(payload) }), "api.github.com")
			w.rule(policy.Allow, "api.github.com")
			c := w.clientTrusting(w.config.Roots)
			target := "https://api.github.com/"
			switch mode {
			case "direct":
				c = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.config.Roots, ServerName: "api.github.com"}}}
				target = srv.URL
			case "intercepted":
				w.service("github", canary)
				c = w.client()
			case "intercepted-h2":
				w.service("github", canary)
				c = w.client2()
			}
			w.serve()
			b.SetBytes(int64(size))
			before := cpu(b)
			for b.Loop() {
				resp, err := c.Get(target)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(size) {
					b.Fatal(n, err)
				}
				resp.Body.Close()
			}
			b.ReportMetric((cpu(b)-before)/float64(b.N)*1e6, "cpu-µs/op")
			c.CloseIdleConnections()
		})
	}
}

// BenchmarkTunnel moves bytes through a CONNECT with nothing else at the ends, so that what is left is the proxy and the
// sockets. It reports the processor's time a gigabyte costs the whole process, ends included.
func BenchmarkTunnel(b *testing.B) {
	const size = 256 << 20
	for _, direction := range []string{"down", "up"} {
		b.Run(direction, func(b *testing.B) {
			w := newWorld(b, policy.DenyAll)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			send := func(c net.Conn) {
				buf := make([]byte, 256<<10)
				for range size / len(buf) {
					if _, err := c.Write(buf); err != nil {
						return
					}
				}
				closeWrite(c)
			}
			take := func(c net.Conn) {
				buf := make([]byte, 256<<10)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			}
			here, there := take, send
			if direction == "up" {
				here, there = send, take
			}
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() { there(c); c.Close() }()
				}
			}()
			w.sandbox.Resolve["bytes.test:9"] = l.Addr().String()
			w.rule(policy.Allow, "bytes.test:9")
			w.serve()
			b.SetBytes(size)
			before := cpu(b)
			for b.Loop() {
				c, br, status := w.connect("bytes.test:9")
				if br.Buffered() > 0 {
					br.Discard(br.Buffered())
				}
				if status != "HTTP/1.1 200 OK" {
					b.Fatal(status)
				}
				here(c)
				if direction == "up" {
					take(c) // until the other end has it all
				}
				c.Close()
			}
			b.ReportMetric((cpu(b)-before)/float64(b.N)/size*(1<<30), "cpu-s/GiB")
		})
	}
}

// cpu is the processor's time of this process, in seconds.
func cpu(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}
