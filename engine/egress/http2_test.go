package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// client2 is a client that speaks HTTP/2 where it can.
func (w *world) client2() *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca.CertPEM())
	c := w.clientTrusting(pool)
	c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	return c
}

func TestHTTP2(t *testing.T) {
	for _, upstream := range []string{"HTTP/2.0", "HTTP/1.1"} {
		t.Run(upstream, func(t *testing.T) {
			w := newWorld(t, policy.DenyAll)
			w.http1 = upstream == "HTTP/1.1"
			server := &saw{f: func(rw http.ResponseWriter, req *http.Request) {
				rw.Header().Set("X-Echo", req.Header.Get("Authorization"))
				rw.Header().Set("Trailer", "X-Sum")
				io.WriteString(rw, req.Proto)
				rw.Header().Set("X-Sum", "a "+req.Header.Get("Authorization"))
			}}
			w.tlsServer(server, "api.github.com", "other.test")
			w.rule(policy.Allow, "api.github.com:443", onPath("GET,POST", "/a/**"))
			w.service("github", canary)
			w.serve()
			c := w.client2()
			ask := func(method, path string, body io.Reader, header ...string) (*http.Response, string) {
				t.Helper()
				req, err := http.NewRequestWithContext(t.Context(), method, "https://api.github.com"+path, body)
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range header {
					k, v, _ := strings.Cut(h, ": ")
					req.Header.Add(k, v)
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp, string(b)
			}
			resp, body := ask("GET", "/a/x?q=1", nil, "TE: trailers")
			if resp.StatusCode != 200 || resp.Proto != "HTTP/2.0" || body != upstream {
				t.Fatalf("%d %s, the server got %q", resp.StatusCode, resp.Proto, body)
			}
			if got := server.last(); got.Header.Get("Authorization") != "Bearer "+canary || got.RequestURI != "/a/x?q=1" || got.Header.Get("Te") != "trailers" {
				t.Errorf("server got %s %v", got.RequestURI, got.Header)
			}
			if resp.Header.Get("X-Echo") != "Bearer ***" || resp.Trailer.Get("X-Sum") != "a Bearer ***" {
				t.Errorf("header %v, trailer %v", resp.Header, resp.Trailer)
			}
			blob := bytes.Repeat([]byte("0123456789abcdef\xff\x00"), 200_000)
			if resp, _ := ask("POST", "/a/up", bytes.NewReader(blob)); resp.StatusCode != 200 || server.lastBody() != string(blob) {
				t.Errorf("upload: %d, %d bytes of %d", resp.StatusCode, len(server.lastBody()), len(blob))
			}
			before := server.count()
			if resp, body := ask("GET", "/b", nil); resp.StatusCode != 403 || !strings.Contains(body, "Approval required") {
				t.Errorf("another path: %d %q", resp.StatusCode, body)
			}
			if resp, body := ask("GET", "/a/x", nil, "Authorization: Bearer someone-else"); resp.StatusCode != 403 || !strings.Contains(body, "Foreign credential") {
				t.Errorf("foreign credential: %d %q", resp.StatusCode, body)
			}
			if server.count() != before {
				t.Error("a refused request reached the server")
			}
			entries := w.entries(4)
			if e := entries[0]; !e.Allowed || e.Method != "GET" || e.Path != "/a/x" {
				t.Errorf("log %+v", e)
			}
			if e := entries[2]; e.Allowed || e.Path != "/b" {
				t.Errorf("log %+v", e)
			}
		})
	}
}

// A denied host answers a client of HTTP/2 with the page as well.
func TestHTTP2Denied(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.serve()
	resp, err := w.client2().Get("https://denied.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 403 || resp.ProtoMajor != 2 || !strings.HasPrefix(string(b), "Approval required for denied.test:443.") {
		t.Errorf("%s %s %q", resp.Proto, resp.Status, b)
	}
	w.entries(1)
}

// What a gRPC call needs: both directions at once, trailers, and an answer of trailers alone.
func TestGRPCStreams(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		if req.URL.Path == "/fails" {
			rw.Header().Set("Grpc-Status", "12") // in the only header there is
			return
		}
		rw.Header().Set("Trailer", "Grpc-Status")
		rw.WriteHeader(200)
		rw.(http.Flusher).Flush()
		in := bufio.NewReader(req.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			fmt.Fprintf(rw, "got %s", line)
			rw.(http.Flusher).Flush()
		}
		rw.Header().Set("Grpc-Status", "0")
	}), "api.openai.com")
	w.rule(policy.Allow, "api.openai.com")
	w.service("openai", "sk-canary-0123456789")
	w.serve()
	c := w.client2()
	pr, pw := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "https://api.openai.com/talk", pr)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Te", "trailers")
	resp, err := c.Do(req) // the header of the answer comes before anything was sent
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out := bufio.NewReader(resp.Body)
	for i := range 5 {
		fmt.Fprintf(pw, "%d\n", i)
		if line, err := out.ReadString('\n'); line != fmt.Sprintf("got %d\n", i) {
			t.Fatalf("%q %v", line, err)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(out); len(rest) != 0 || err != nil || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%q %v, trailer %v", rest, err, resp.Trailer)
	}
	resp, err = c.Get("https://api.openai.com/fails")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Header.Get("Grpc-Status") != "12" || resp.ContentLength != 0 {
		t.Errorf("trailers alone: %v, length %d", resp.Header, resp.ContentLength)
	}
}

// A hundred requests share one connection; one that ends early does not take the others along.
func TestHTTP2Many(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	slow := make(chan struct{})
	server := &saw{f: func(rw http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/half":
			io.WriteString(rw, "half")
			rw.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/gone":
			rw.(http.Flusher).Flush()
			<-req.Context().Done()
			close(slow)
		default:
			io.WriteString(rw, req.URL.Path)
		}
	}}
	w.tlsServer(server, "api.github.com")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	c := w.client2()
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", "https://api.github.com/gone", nil)
	gone, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			path := fmt.Sprintf("/%d", i)
			if code, body, _ := w.get(c, "https://api.github.com"+path); code != 200 || body != path {
				t.Errorf("%d %q", code, body)
			}
		})
	}
	half, err := c.Get("https://api.github.com/half")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(half.Body); err == nil {
		t.Errorf("half an answer looks whole: %q", b)
	}
	half.Body.Close()
	cancel()
	gone.Body.Close()
	select {
	case <-slow:
	case <-time.After(10 * time.Second):
		t.Error("the server still works for a client that has gone")
	}
	wg.Wait()
	w.entries(102)
}

// Both protocols are offered, and a client that knows neither name gets HTTP/1.1.
func TestProtocolsOffered(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.serve()
	for _, tt := range []struct {
		offer []string
		want  string
	}{{nil, ""}, {[]string{"http/1.1"}, "http/1.1"}, {[]string{"h2"}, "h2"}, {[]string{"http/1.1", "h2"}, "h2"}} {
		c, br, _ := w.connect("a.test:443")
		tc := tls.Client(bufferedConn{c, br}, &tls.Config{ServerName: "a.test", InsecureSkipVerify: true, NextProtos: tt.offer})
		if err := tc.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("%v: %v", tt.offer, err)
		}
		if got := tc.ConnectionState().NegotiatedProtocol; got != tt.want {
			t.Errorf("%v: %q", tt.offer, got)
		}
	}
}

// A value in a body is overwritten wherever it is cut, and nothing else is changed or held back.
func TestMaskedBody(t *testing.T) {
	const value = "s3cr3t/value+0123456789"
	bodies := map[string]string{
		"alone":      value,
		"inside":     "before " + value + " after",
		"twice":      value + value + "s3cr3t/valu",
		"near":       "s3cr3t/s3cr3t/valuX" + value + "s",
		"quoted":     `{"key":"` + value + `"}`,
		"encoded":    "a=s3cr3t%2Fvalue%2B0123456789&b=1",
		"none":       strings.Repeat("s3cr3t/value+012345678\n", 1000),
		"empty":      "",
		"only begin": "s3cr3t/value",
	}
	for name, body := range bodies {
		want := strings.ReplaceAll(strings.ReplaceAll(body, value, strings.Repeat("*", len(value))), "s3cr3t%2Fvalue%2B0123456789", strings.Repeat("*", 27))
		for _, piece := range []int{1, 3, 7, 64 << 10} {
			resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(&pieces{[]byte(body), piece})}
			got, err := io.ReadAll(maskBody(resp, []secrets.Value{secrets.New(value)}))
			if err != nil || string(got) != want {
				t.Errorf("%s in pieces of %d: %q %v, want %q", name, piece, got, err, want)
			}
		}
	}
	broken := &http.Response{Header: http.Header{}, Body: io.NopCloser(io.MultiReader(strings.NewReader("ab s3cr3t/value+01234"), failing{}))}
	if got, err := io.ReadAll(maskBody(broken, []secrets.Value{secrets.New(value)})); string(got) != "ab " || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body that breaks off: %q %v", got, err)
	}
	packed := &http.Response{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: io.NopCloser(strings.NewReader(value))}
	if got, _ := io.ReadAll(maskBody(packed, []secrets.Value{secrets.New(value)})); string(got) != value {
		t.Errorf("compressed: %q", got)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// pieces gives what is left, so many bytes at a time.
type pieces struct {
	left []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[:min(p.size, len(p.left))])
	p.left = p.left[n:]
	return n, nil
}

func FuzzMaskedBody(f *testing.F) {
	f.Add("secret-0", "xxsecret-0yy", 3)
	f.Add("aaaaaaaaab", "aaaaaaaaaaaab", 1)
	f.Fuzz(func(t *testing.T, value, body string, size int) {
		if len(value) < minMask || size < 1 || len(value)+len(body) > 1<<12 {
			return
		}
		resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(&pieces{[]byte(body), size})}
		got, err := io.ReadAll(maskBody(resp, []secrets.Value{secrets.New(value)}))
		if err != nil || len(got) != len(body) || bytes.Contains(got, []byte(strings.TrimSuffix(value, "\n"))) && !strings.Contains(value, "*") {
			t.Fatalf("%q in %q by %d: %q %v", value, body, size, got, err)
		}
	})
}
