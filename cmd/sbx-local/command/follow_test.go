package command

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/settings"
	"github.com/sbxpair/sbxpair/engine/upstream"
)

// policy log --follow prints one sandbox's decisions as they are made, as text or as JSON, and ends when it is told to.
func TestPolicyLogFollow(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		c := newCLI(t)
		state := filepath.Join(c.dir, "state")
		log := rules.OpenLog(filepath.Join(state, "policy"))
		defer log.Close()
		args := []string{"policy", "log", "demo", "--follow"}
		if asJSON {
			args = append(args, "--json")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		out, in := io.Pipe()
		code := make(chan int, 1)
		go func() { // ends with ctx
			code <- Run(ctx, Environment{Args: args, Stdin: strings.NewReader(""), Stdout: in, Stderr: io.Discard, Version: "test",
				Getenv: func(k string) string { return map[string]string{"SBX_LOCAL_STATE": state}[k] }})
			in.Close()
		}()
		lines := make(chan string, 100)
		go func() { // ends with out
			for s := bufio.NewScanner(out); s.Scan(); {
				lines <- s.Text()
			}
			close(lines)
		}()
		deadline := time.Now().Add(10 * time.Second)
		for len(lines) == 0 { // until the follower has begun
			if time.Now().After(deadline) {
				t.Fatal("nothing is printed")
			}
			for _, box := range []string{"other", "demo"} {
				if err := log.Append(rules.Entry{Sandbox: box, Host: box + ".test:443", Type: rules.Bypass, Allowed: true, Reason: "why"}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		line := <-lines
		var e rules.Entry
		switch {
		case asJSON && (json.Unmarshal([]byte(line), &e) != nil || e.Host != "demo.test:443"),
			!asJSON && !strings.HasSuffix(line, "   demo   allowed   demo.test:443   forward-bypass   why"):
			t.Errorf("line %q", line)
		}
		cancel(&SignalError{Signal: 2})
		if got := <-code; got != 130 {
			t.Errorf("exit %d, want 130", got)
		}
	}
}

// Which proxy is on the way, in sbx's order, and a setting acts at once.
func TestUpstreamOrder(t *testing.T) {
	s := settings.Open(t.TempDir())
	for _, tt := range []struct {
		env  map[string]string
		set  [][2]string
		want upstream.Proxies
	}{
		{nil, nil, upstream.Proxies{}},
		{map[string]string{"https_proxy": "http://a:1", "NO_PROXY": "x"}, nil, upstream.Proxies{HTTPS: "http://a:1", NoProxy: "x"}},
		{map[string]string{"HTTP_PROXY": "http://a:1", "HTTPS_PROXY": "http://b:1"}, nil, upstream.Proxies{HTTP: "http://a:1", HTTPS: "http://b:1"}},
		{map[string]string{"HTTPS_PROXY": "http://b:1", "NO_PROXY": "x"}, [][2]string{{"proxy", "http://c:1"}}, upstream.Proxies{HTTP: "http://c:1", HTTPS: "http://c:1"}},
		{nil, [][2]string{{"proxy.sandbox", "socks5://d:1"}, {"no_proxy", "y"}}, upstream.Proxies{HTTP: "socks5://d:1", HTTPS: "socks5://d:1", NoProxy: "y"}},
		{map[string]string{"DOCKER_SANDBOXES_PROXY": "http://e:1", "DOCKER_SANDBOXES_NO_PROXY": "z"}, nil, upstream.Proxies{HTTP: "http://e:1", HTTPS: "http://e:1", NoProxy: "z"}},
	} {
		for _, kv := range tt.set {
			if _, err := s.Set(t.Context(), kv[0], kv[1]); err != nil {
				t.Fatal(err)
			}
		}
		a := &app{Environment: Environment{Getenv: func(k string) string { return tt.env[k] }}}
		if got, err := a.upstream(s)(); err != nil || got != tt.want {
			t.Errorf("%v: %+v, %v; want %+v", tt.env, got, err, tt.want)
		}
	}
}
