package egress

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"

	"github.com/sbxpair/sbxpair/policy"
)

// The pairs direct/tunnel/intercepted are the same exchange; their ratio is the proxy's cost.
func BenchmarkLatency(b *testing.B) { benchmark(b, 64) }

func BenchmarkThroughput(b *testing.B) { benchmark(b, 64<<20) }

func benchmark(b *testing.B, size int) {
	payload := make([]byte, size)
	for _, mode := range []string{"direct", "tunnel", "intercepted"} {
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
			}
			w.serve()
			b.SetBytes(int64(size))
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
			c.CloseIdleConnections()
		})
	}
}
