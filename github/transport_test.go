package github

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

func newTestTransport(t *testing.T, r Runner) *Transport {
	t.Helper()
	tr := NewTransport(r, DotCom())
	t.Cleanup(func() { tr.Close() })
	return tr
}

// echo answers with what it received.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Method", r.Method)
	w.Header().Set("X-Uri", r.RequestURI)
	w.Header().Set("X-Te", strings.Join(r.TransferEncoding, ","))
	w.Header().Set("X-Length", fmt.Sprint(r.ContentLength))
	w.Header().Set("X-Sum", fmt.Sprintf("%x", sha256.Sum256(body)))
	w.Header().Set("X-Headers", fmt.Sprintf("%q", r.Header))
	w.Write(body)
}

func request(t *testing.T, method, url string, body []byte) *http.Request {
	t.Helper()
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestTransportCarriesRequestsExactly(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo))
	tr := newTestTransport(t, w)
	binary := bytes.Repeat([]byte{0, 1, 2, '\n', '"', '\\', 0xff, '@'}, 200_000) // 1.6 MB
	for _, tt := range []struct {
		name, method, url string
		body              []byte
	}{
		{"get", "GET", "https://api.github.com/repos/a/b?x=%20y&z=%22", nil},
		{"dots and globs stay", "GET", "https://api.github.com/a/../b/[1-3]/{x,y}/%2e%2e/", nil},
		{"post json", "POST", "https://api.github.com/x", []byte(`{"body":"@file \"quoted\" \\n $HOME $(id) ` + "`id`" + ` \u0000"}`)},
		{"post nothing", "POST", "https://api.github.com/x", nil},
		{"post one NUL", "POST", "https://api.github.com/x", []byte{0}},
		{"post binary", "POST", "https://api.github.com/x", binary},
		{"post that starts with @", "PATCH", "https://api.github.com/x", []byte("@/etc/passwd")},
		{"delete", "DELETE", "https://api.github.com/x", nil},
		{"head", "HEAD", "https://api.github.com/x", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := request(t, tt.method, tt.url, tt.body)
			req.Header.Set("X-Odd", `a "b" \c $HOME 'd' ü`)
			req.Header["X-Twice"] = []string{"1", "2"}
			req.Header.Set("X-Empty", "")
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if tt.method != "HEAD" && !bytes.Equal(got, tt.body) {
				t.Errorf("body came back as %d bytes, sent %d", len(got), len(tt.body))
			}
			want := map[string]string{
				"X-Method": tt.method, "X-Te": "", "X-Uri": req.URL.RequestURI(),
				"X-Length": fmt.Sprint(len(tt.body)), "X-Sum": fmt.Sprintf("%x", sha256.Sum256(tt.body)),
			}
			for k, v := range want {
				if resp.Header.Get(k) != v {
					t.Errorf("%s: server saw %q, want %q", k, resp.Header.Get(k), v)
				}
			}
			for _, h := range []string{`"X-Odd":["a \"b\" \\c $HOME 'd' ü"]`, `"X-Twice":["1" "2"]`, `"X-Empty":[""]`} {
				if !strings.Contains(strings.ReplaceAll(resp.Header.Get("X-Headers"), "\u00fc", "ü"), strings.Replace(h, ":[", `:[`, 1)) {
					t.Errorf("headers %s lack %s", resp.Header.Get("X-Headers"), h)
				}
			}
			for _, h := range []string{"Expect", "Content-Type", "User-Agent", "Accept", "Proxy-Connection"} {
				if strings.Contains(resp.Header.Get("X-Headers"), `"`+h+`"`) {
					t.Errorf("curl added %s: %s", h, resp.Header.Get("X-Headers"))
				}
			}
		})
	}
	if n := w.execs.Load(); n != 1 {
		t.Errorf("%d execs, want all requests over 1", n)
	}
	for _, argv := range w.argvs {
		if len(argv) != 3 || argv[2] != channelScript {
			t.Errorf("argv is not the constant script: %q", argv)
		}
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	if n := w.live.Load(); n != 0 {
		t.Errorf("%d execs left after Close", n)
	}
	if left := glob(t, w, "sbxpair-http.*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// glob lists what is in the sandbox's temporary directory.
func glob(t *testing.T, w *world, pattern string) []string {
	t.Helper()
	for _, e := range w.env {
		if dir, ok := strings.CutPrefix(e, "TMPDIR="); ok {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
	}
	return nil
}

func TestTransportRefusesBeforeAnyExec(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo))
	tr := newTestTransport(t, w)
	tr.MaxBody = 1 << 10
	with := func(f func(*http.Request)) *http.Request {
		r := request(t, "GET", "https://api.github.com/", nil)
		f(r)
		return r
	}
	for name, tt := range map[string]struct {
		req  *http.Request
		want error
	}{
		"plain http":       {request(t, "GET", "http://api.github.com/", nil), ErrOutOfBounds},
		"other host":       {request(t, "GET", "https://api.github.com.attacker.test/", nil), ErrOutOfBounds},
		"git host":         {request(t, "GET", "https://github.com/", nil), ErrOutOfBounds},
		"other port":       {request(t, "GET", "https://api.github.com:8443/", nil), ErrOutOfBounds},
		"user in url":      {request(t, "GET", "https://a:b@api.github.com/", nil), ErrOutOfBounds},
		"host header":      {with(func(r *http.Request) { r.Host = "evil.test" }), ErrOutOfBounds},
		"header injection": {with(func(r *http.Request) { r.Header["X-A"] = []string{"a\r\nX-B: b"} }), ErrOutOfBounds},
		"header name":      {with(func(r *http.Request) { r.Header["@/etc/passwd"] = []string{"a"} }), ErrOutOfBounds},
		"method":           {with(func(r *http.Request) { r.Method = "GET\nurl" }), ErrOutOfBounds},
		"large body":       {request(t, "POST", "https://api.github.com/", make([]byte, 1025)), ErrTooLarge},
		"get with body":    {request(t, "GET", "https://api.github.com/", []byte("x")), ErrOutOfBounds},
		"long line": {with(func(r *http.Request) {
			r.URL = &url.URL{Scheme: "https", Host: "api.github.com", Path: "/" + strings.Repeat("x", maxConfigLine)}
		}), ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tr.RoundTrip(tt.req); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
	if n := w.execs.Load(); n != 0 {
		t.Errorf("%d execs, want none", n)
	}
}

func TestTransportErrors(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/cut-length":
			rw.Header().Set("Content-Length", "100")
			io.WriteString(rw, "short")
			panic(http.ErrAbortHandler)
		case "/cut-chunked":
			io.WriteString(rw, strings.Repeat("x", 9000))
			rw.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/large":
			io.Copy(rw, io.LimitReader(zeros{}, 200<<10))
		case "/large-length":
			rw.Header().Set("Content-Length", fmt.Sprint(200<<10))
			io.Copy(rw, io.LimitReader(zeros{}, 200<<10))
		case "/hang":
			<-release
		case "/redirect":
			http.Redirect(rw, r, "https://evil.test/", http.StatusMovedPermanently)
		case "/chunked":
			for i := range 50 {
				fmt.Fprintf(rw, "part %d\n", i)
				rw.(http.Flusher).Flush()
			}
		case "/empty":
			rw.WriteHeader(http.StatusNoContent)
		case "/drop":
			c, _, _ := rw.(http.Hijacker).Hijack()
			c.Close()
		case "/403":
			rw.Header().Set("Content-Type", "application/json")
			rw.Header().Set("X-GitHub-Request-Id", "1:2")
			rw.WriteHeader(403)
			io.WriteString(rw, `{"message":"Blocked by admin"}`)
		}
	}))
	t.Cleanup(func() { close(release) }) // before the server's own clean-up, which waits for its handlers
	tr := newTestTransport(t, w)
	tr.MaxBody, tr.RequestTimeout = 100<<10, 2*time.Second
	get := func(path string) (*http.Response, error) {
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com"+path, nil))
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body = io.NopCloser(bytes.NewReader(body))
		return resp, err
	}
	network := func(trouble Trouble, sent bool) func(*http.Response, error) string {
		return func(_ *http.Response, err error) string {
			var n *NetworkError
			if !errors.As(err, &n) || !errors.Is(err, ErrNetwork) || n.Trouble != trouble || n.Sent != sent {
				return fmt.Sprintf("error %#v, want network %s sent=%t", err, trouble, sent)
			}
			return ""
		}
	}
	is := func(want error) func(*http.Response, error) string {
		return func(_ *http.Response, err error) string {
			if !errors.Is(err, want) {
				return fmt.Sprintf("error %v, want %v", err, want)
			}
			return ""
		}
	}
	status := func(code int, body string) func(*http.Response, error) string {
		return func(r *http.Response, err error) string {
			if err != nil {
				return err.Error()
			}
			got, err := io.ReadAll(r.Body)
			if r.StatusCode != code || err != nil || !strings.HasPrefix(string(got), body) {
				return fmt.Sprintf("%d %q %v, want %d %q", r.StatusCode, got, err, code, body)
			}
			return ""
		}
	}
	page := func(text string) func() {
		return func() { w.blocked.Store("api.github.com", text) }
	}
	blocked := func(detail string) func(*http.Response, error) string {
		return func(_ *http.Response, err error) string {
			var b *BlockedError
			if !errors.As(err, &b) || !errors.Is(err, ErrBlockedByPolicy) || errors.Is(err, ErrForbidden) || !strings.HasPrefix(b.Detail, detail) {
				return fmt.Sprintf("error %v, want blocked %q", err, detail)
			}
			return ""
		}
	}
	for _, tt := range []struct {
		name, path string
		before     func()
		check      func(*http.Response, error) string
	}{
		{"body shorter than its length", "/cut-length", nil, network(TroubleBroken, true)},
		{"chunked body without end", "/cut-chunked", nil, network(TroubleBroken, true)},
		{"chunked body over the limit", "/large", nil, is(ErrTooLarge)},
		{"long body over the limit", "/large-length", nil, is(ErrTooLarge)},
		{"time-out in the sandbox", "/hang", nil, network(TroubleTimeout, true)},
		{"redirect is an answer", "/redirect", nil, status(301, "")},
		{"chunked", "/chunked", nil, status(200, "part 0\npart 1\n")},
		{"no content", "/empty", nil, status(204, "")},
		{"connection dropped", "/drop", nil, network(TroubleBroken, true)},
		{"a 403 of GitHub's is an answer", "/403", nil, status(403, `{"message":"Blocked by admin"}`)},
		{"blocked, implicit, 0.47", "/x", page("Approval required for api.github.com:443.\n\nReview and respond with:\n  sbx policy approval ls"), blocked("Approval required for api.github.com:443.")},
		{"blocked, detail", "/x", page("Blocked by network policy: domain api.github.com:443\n  rule: x"), blocked("Blocked by network policy: domain")},
		{"blocked, org", "/x", page("Blocked by org policy\n"), blocked("Blocked by org policy")},
		{"CONNECT refused", "/x", func() { w.refused.Store("api.github.com", true) }, blocked("")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.before != nil {
				tt.before()
				t.Cleanup(func() { w.blocked.Clear(); w.refused.Clear() })
			}
			if bad := tt.check(get(tt.path)); bad != "" {
				t.Error(bad)
			}
		})
	}
	t.Run("unknown CA", func(t *testing.T) {
		r := &hostRunner{}
		for _, e := range w.env {
			if !strings.Contains(e, "CA") && !strings.HasPrefix(e, "SSL_CERT") {
				r.env = append(r.env, e)
			}
		}
		tr := newTestTransport(t, r)
		if bad := network(TroubleTLS, false)(tr.RoundTrip(request(t, "GET", "https://api.github.com/x", nil))); bad != "" {
			t.Error(bad)
		}
	})
	t.Run("proxy gone", func(t *testing.T) {
		r := &hostRunner{env: append([]string{"https_proxy=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1"}, w.env[:3]...)}
		tr := newTestTransport(t, r)
		if bad := network(TroubleConnect, false)(tr.RoundTrip(request(t, "GET", "https://api.github.com/x", nil))); bad != "" {
			t.Error(bad)
		}
	})
	t.Run("no curl", func(t *testing.T) {
		bin := t.TempDir()
		for _, p := range []string{"dd", "mktemp", "wc", "rm", "cat"} {
			path, err := exec.LookPath(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(bin, p)); err != nil {
				t.Fatal(err)
			}
		}
		tr := newTestTransport(t, &hostRunner{env: []string{"PATH=" + bin, "TMPDIR=" + t.TempDir()}})
		if _, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/x", nil)); !errors.Is(err, ErrTool) || !strings.Contains(err.Error(), "curl") {
			t.Errorf("error %v, want ErrTool that names curl", err)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTransportSurvivesALostSandbox(t *testing.T) {
	var calls atomic.Int64
	inside := make(chan struct{}, 1)
	release := make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.URL.Path == "/hang" {
			inside <- struct{}{}
			<-release
		}
	}))
	t.Cleanup(func() { close(release) })
	tr := newTestTransport(t, w)
	do := func(method, path string) error {
		_, err := tr.RoundTrip(request(t, method, "https://api.github.com"+path, nil))
		return err
	}
	if err := do("POST", "/1"); err != nil {
		t.Fatal(err)
	}
	w.killRunning()
	waitFor(t, func() bool { return w.live.Load() == 0 })
	if err := do("POST", "/2"); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	if calls.Load() != 2 || w.execs.Load() != 2 {
		t.Fatalf("%d calls over %d execs, want 2 over 2", calls.Load(), w.execs.Load())
	}
	// Killed while GitHub works on it: reported as sent, and not repeated.
	go func() { <-inside; w.killRunning() }()
	var n *NetworkError
	if err := do("POST", "/hang"); !errors.As(err, &n) || n.Trouble != TroubleSandbox || !n.Sent {
		t.Errorf("error %v, want a lost answer", err)
	}
	if calls.Load() != 3 {
		t.Errorf("%d calls, want 3: a started request is never repeated", calls.Load())
	}
	w.mu.Lock()
	w.fail = errors.New("no such sandbox")
	w.mu.Unlock()
	if err := do("GET", "/4"); err != nil {
		t.Errorf("one failed exec before the request started: %v", err)
	}
}

func TestTransportCancel(t *testing.T) {
	inside := make(chan struct{}, 1)
	release := make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			inside <- struct{}{}
			<-release
		}
	}))
	t.Cleanup(func() { close(release) })
	tr := newTestTransport(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-inside; cancel() }()
	start := time.Now()
	_, err := tr.RoundTrip(request(t, "POST", "https://api.github.com/hang", nil).WithContext(ctx))
	var n *NetworkError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &n) || !n.Sent {
		t.Errorf("error %v, want cancelled and sent", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
	waitFor(t, func() bool { return w.live.Load() == 0 })
	if _, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/", nil)); err != nil {
		t.Errorf("after a cancel: %v", err)
	}
}

// removed is a sandbox that is not there any more.
type removed struct{ execs atomic.Int64 }

func (r *removed) Exec(context.Context, sbx.ExecSpec) (sbx.ExecResult, error) {
	r.execs.Add(1)
	return sbx.ExecResult{}, fmt.Errorf("exec in %q: %w", "box", sbx.ErrNotFound)
}

// A sandbox that was removed is not asked again: it does not come back, and its absence is not GitHub's 404.
func TestSandboxIsRemoved(t *testing.T) {
	var box removed
	_, err := NewClient(&box, DotCom(), WithClock((&testClock{now: time.Now()}).clock())).WhoAmI(t.Context())
	if !errors.Is(err, sbx.ErrNotFound) || errors.Is(err, ErrNotFound) {
		t.Errorf("error %v", err)
	}
	if n := box.execs.Load(); n != 2 { // an exec that ended before the request began gives its place to one more
		t.Errorf("%d execs", n)
	}
}

func TestTransportIdle(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo))
	tr := newTestTransport(t, w)
	tr.IdleTimeout = 10 * time.Millisecond
	for range 2 {
		if _, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/", nil)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return w.live.Load() == 0 })
	}
	if n := w.execs.Load(); n != 2 {
		t.Errorf("%d execs, want 2", n)
	}
}

// waitFor polls cond for up to ten seconds.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited ten seconds in vain")
		}
	}
}
