package egress

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/policy"
)

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

// R167: an event arrives while the server has not ended its answer, intercepted and in a tunnel alike.
func TestEventStream(t *testing.T) {
	for _, bound := range []bool{true, false} {
		t.Run(fmt.Sprintf("bound=%t", bound), func(t *testing.T) {
			w := newWorld(t, policy.DenyAll)
			next := make(chan string)
			w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				for event := range next {
					fmt.Fprintf(rw, "data: %s\n\n", event)
					rw.(http.Flusher).Flush()
				}
			}), "api.openai.com")
			w.rule(policy.Allow, "api.openai.com")
			if bound {
				w.service("openai", "sk-canary-0123456789")
			}
			w.serve()
			c := w.client()
			if !bound {
				c = w.clientTrusting(w.config.Roots)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "GET", "https://api.openai.com/", nil)
			go func() { next <- "0" }()
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			br := bufio.NewReader(resp.Body)
			for i := range 3 {
				line, err := br.ReadString('\n')
				if want := fmt.Sprintf("data: %d\n", i); line != want {
					t.Fatalf("%q %v, want %q", line, err, want)
				}
				br.ReadString('\n')
				if i < 2 {
					next <- fmt.Sprint(i + 1) // only now: the one before had to come through
				}
			}
			close(next)
			if rest, err := io.ReadAll(br); len(rest) != 0 || err != nil {
				t.Errorf("%q %v", rest, err)
			}
		})
	}
}

// The server sees the first piece of a chunked body before the client has sent the second.
func TestRequestStreams(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	seen := make(chan string, 1)
	w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		buf := make([]byte, 5)
		io.ReadFull(req.Body, buf)
		seen <- string(buf)
		rest, _ := io.ReadAll(req.Body)
		rw.Write(rest)
	}), "api.github.com")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	pr, pw := io.Pipe()
	go func() {
		io.WriteString(pw, "first")
		select {
		case got := <-seen:
			io.WriteString(pw, "then "+got)
		case <-time.After(10 * time.Second):
		}
		pw.Close()
	}()
	if code, body, _ := w.do(w.client(), "POST", "https://api.github.com/", pr); code != 200 || body != "then first" {
		t.Errorf("%d %q", code, body)
	}
}

func TestExpectContinue(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.plainServer(&saw{f: func(rw http.ResponseWriter, req *http.Request) { io.WriteString(rw, "done") }}, "a.test")
	w.rule(policy.Allow, "a.test")
	w.serve()
	c, err := w.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	br := bufio.NewReader(c)
	io.WriteString(c, "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	if line, err := br.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	br.ReadString('\n')
	io.WriteString(c, "body")
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v %v", resp, err)
	}
	resp.Body.Close()
	// A refusal comes instead of the 100, so that the body is never sent.
	io.WriteString(c, "POST http://b.test/ HTTP/1.1\r\nHost: b.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	if line, err := br.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 403 ") {
		t.Errorf("%q %v", line, err)
	}
}

// An answer that comes before the body has been read is passed on, and the connection is closed after it.
func TestEarlyAnswer(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.plainServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("Connection", "close")
		http.Error(rw, "too large", http.StatusRequestEntityTooLarge)
	}), "a.test")
	w.rule(policy.Allow, "a.test")
	w.serve()
	c, err := w.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10000000\r\n\r\nstart")
	b, err := io.ReadAll(c)
	if !strings.HasPrefix(string(b), "HTTP/1.1 413 ") || !strings.Contains(string(b), "Connection: close") || err != nil {
		t.Errorf("%q %v", b, err)
	}
}

// When the client hangs up, the server's side is cancelled.
func TestClientGone(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	started, gone := make(chan struct{}), make(chan struct{})
	w.plainServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		close(started)
		<-req.Context().Done()
		close(gone)
	}), "a.test")
	w.rule(policy.Allow, "a.test")
	w.serve()
	c, err := w.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
	<-started
	c.Close()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the server still waits")
	}
}

// A server that breaks off in the middle is not made to look complete.
func TestTruncatedAnswer(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	w.plainServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		io.WriteString(rw, "half")
		rw.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}), "a.test")
	w.rule(policy.Allow, "a.test")
	w.serve()
	resp, err := w.client().Get("http://a.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q %v", b, err)
	}
}

func TestWebSocket(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	var auth string
	w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		auth = req.Header.Get("Authorization")
		if req.Header.Get("Upgrade") != "websocket" {
			http.Error(rw, "no upgrade", 400)
			return
		}
		conn, brw, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nhello")
		buf := make([]byte, 4)
		io.ReadFull(brw, buf)
		fmt.Fprintf(conn, "got %s", buf)
	}), "api.openai.com")
	w.rule(policy.Allow, "api.openai.com")
	w.service("openai", "sk-canary-0123456789")
	w.serve()
	tc, err := w.connectTLS("api.openai.com:443", "api.openai.com")
	if err != nil {
		t.Fatal(err)
	}
	defer tc.Close()
	io.WriteString(tc, "GET /ws HTTP/1.1\r\nHost: api.openai.com\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n")
	br := bufio.NewReader(tc)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "websocket" || resp.Header.Get("Sec-WebSocket-Accept") != "x" {
		t.Fatalf("%+v %v", resp, err)
	}
	io.WriteString(tc, "ping")
	if b, err := io.ReadAll(br); string(b) != "hellogot ping" {
		t.Errorf("%q %v", b, err)
	}
	if auth != "Bearer sk-canary-0123456789" {
		t.Errorf("Authorization %q", auth)
	}
}

func TestManyRequestsOnOneConnection(t *testing.T) {
	w := newWorld(t, policy.DenyAll)
	server := &saw{}
	w.tlsServer(server, "api.github.com")
	w.rule(policy.Allow, "api.github.com")
	w.service("github", canary)
	w.serve()
	c := w.client()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 25 {
				body := strings.Repeat("x", i*100)
				if code, got, _ := w.do(c, "POST", "https://api.github.com/", strings.NewReader(body)); code != 200 || got != "hello from api.github.com" {
					t.Errorf("%d %q", code, got)
				}
			}
		})
	}
	wg.Wait()
	if server.count() != 200 {
		t.Errorf("%d requests", server.count())
	}
	w.entries(200)
}

// A real git clones and pushes through the proxy, without a credential in its world, with a body that it sends chunked.
func TestGitPush(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("git is not installed")
	}
	core, err := exec.Command(git, "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, policy.DenyAll)
	root := t.TempDir()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+canary))
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(core)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x", "GIT_CONFIG_NOSYSTEM=1"},
	}
	var mu sync.Mutex
	chunked, denied := 0, 0
	w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		mu.Lock()
		if req.ContentLength < 0 {
			chunked++
		}
		mu.Unlock()
		if req.Header.Get("Authorization") != want {
			mu.Lock()
			denied++
			mu.Unlock()
			rw.Header().Set("WWW-Authenticate", "Basic realm=git")
			http.Error(rw, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(rw, req)
	}), "github.com")
	w.rule(policy.Allow, "github.com:443", onPath("GET,POST", "/octo/demo.git/**"))
	w.service("github", canary)
	w.serve()
	home, caFile := t.TempDir(), filepath.Join(t.TempDir(), "ca.pem")
	if err := writeFile(caFile, string(w.ca.CertPEM())); err != nil {
		t.Fatal(err)
	}
	proxy := forwarder(t, w)
	run := func(dir string, args ...string) (string, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, git, args...)
		cmd.Dir = dir
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_SSL_CAINFO=" + caFile,
			"https_proxy=http://" + proxy, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@a", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@a",
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(dir string, args ...string) {
		t.Helper()
		if out, err := run(dir, args...); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	must(root, "init", "-q", "--bare", "-b", "main", "octo/demo.git")
	must(root, "init", "-q", "--bare", "-b", "main", "octo/other.git")
	work := t.TempDir()
	must(work, "init", "-q", "-b", "main")
	blob := make([]byte, 3<<20)
	rand.Read(blob)
	if err := writeFile(filepath.Join(work, "blob"), string(blob)); err != nil {
		t.Fatal(err)
	}
	must(work, "add", "blob")
	must(work, "commit", "-q", "-m", "one")
	must(work, "push", "-q", "https://github.com/octo/demo.git", "main")
	if out, err := run(work, "push", "https://github.com/octo/other.git", "main"); err == nil || !strings.Contains(out, "403") {
		t.Errorf("push to another repository: %v\n%s", err, out)
	}
	clone := t.TempDir()
	must(clone, "clone", "-q", "https://github.com/octo/demo.git", "c")
	got, err := os.ReadFile(filepath.Join(clone, "c", "blob"))
	if err != nil || string(got) != string(blob) {
		t.Errorf("clone differs: %v", err)
	}
	if mu.Lock(); chunked == 0 || denied != 0 {
		t.Errorf("%d chunked requests, %d without the credential", chunked, denied)
	}
	mu.Unlock()
}
