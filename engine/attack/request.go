package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func hostAttempts() []attempt {
	head := func(text string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) {
			return a.inside(ctx, "api.github.com:443", "api.github.com", text+"\r\n\r\n")
		}
	}
	list := []attempt{
		{name: "sni-intercepted", what: "a TLS server name that is not the CONNECT target, on an intercepted host", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.inside(ctx, "api.github.com:443", "evil.test", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		}, host: "api.github.com:443", reason: "TLS server name does not match"},
		{name: "sni-tunnel", from: "tunnel", what: "the same on a tunnelled host", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.inside(ctx, "open.test:443", "evil.test", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		}, host: "open.test:443", reason: "TLS server name does not match"},
		{name: "sni-split", from: "tunnel", what: "the same with the hello in many small pieces", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.splitHello(ctx, "open.test:443", "evil.test")
		}, host: "open.test:443", reason: "TLS server name does not match"},
		{name: "front-host-header", what: "domain fronting: a Host header that is not the CONNECT target", try: head("GET / HTTP/1.1\r\nHost: evil.test"), host: "api.github.com:443", reason: "Host header does not match"},
		{name: "front-absolute", what: "domain fronting by an absolute request target", try: head("GET https://evil.test/ HTTP/1.1\r\nHost: api.github.com"), host: "api.github.com:443", reason: "Host header does not match"},
		{name: "front-port", what: "another port in the Host header", try: head("GET / HTTP/1.1\r\nHost: api.github.com:8443"), host: "api.github.com:443", reason: "Host header does not match"},
		{name: "front-plain", what: "a plain request in proxy form whose Host header is another", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.raw(ctx, "GET http://open.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		}, host: "open.test:80", reason: "Host header does not match"},
		{name: "front-http2", what: "an :authority of HTTP/2 that is not the CONNECT target", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.http2(ctx, hpack.HeaderField{Name: ":authority", Value: "evil.test"})
		}, host: "api.github.com:443", reason: "Host header does not match"},
		{name: "front-http2-host", what: "a Host header beside another :authority in HTTP/2", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.http2(ctx, hpack.HeaderField{Name: ":authority", Value: "api.github.com"}, hpack.HeaderField{Name: "host", Value: "evil.test"})
		}, host: "api.github.com:443", reason: "authority host mismatch"},
		{name: "connect-http2", what: "CONNECT over HTTP/2 inside CONNECT, and the form of it that opens a web socket", try: func(ctx context.Context, a *attacker) (string, error) {
			return all(
				func() (string, error) {
					return a.http2Fields(ctx, []hpack.HeaderField{{Name: ":method", Value: "CONNECT"}, {Name: ":protocol", Value: "websocket"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "evil.test"}})
				},
				func() (string, error) {
					return a.http2Fields(ctx, []hpack.HeaderField{{Name: ":method", Value: "CONNECT"}, {Name: ":authority", Value: "evil.test:443"}})
				},
			)
		}, host: "api.github.com:443", reason: "CONNECT inside CONNECT"},
		{name: "http2-pseudo-header", what: "a second :authority or :path over HTTP/2, one behind the header, one that is not known", try: func(ctx context.Context, a *attacker) (string, error) {
			ours := hpack.HeaderField{Name: ":authority", Value: "api.github.com"}
			return all(
				func() (string, error) {
					return a.http2(ctx, ours, hpack.HeaderField{Name: ":authority", Value: "evil.test"})
				},
				func() (string, error) {
					return a.http2(ctx, ours, hpack.HeaderField{Name: ":path", Value: "/smuggled"})
				},
				func() (string, error) {
					return a.http2(ctx, ours, hpack.HeaderField{Name: "x-a", Value: "b"}, hpack.HeaderField{Name: ":path", Value: "/smuggled"})
				},
				func() (string, error) {
					return a.http2(ctx, ours, hpack.HeaderField{Name: ":host", Value: "evil.test"})
				},
			)
		}},
		{name: "other-scheme", what: "a request for http inside TLS", try: head("GET http://api.github.com/ HTTP/1.1\r\nHost: api.github.com"), host: "api.github.com:443", reason: "Scheme of the request does not match"},
		{name: "upgrade-http2", what: "an upgrade to HTTP/2 in clear text, behind which requests would go by unseen: only the first request passes", try: func(ctx context.Context, a *attacker) (string, error) {
			answer, err := a.exchange(ctx, "GET http://open.test/ HTTP/1.1\r\nHost: open.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			if err != nil {
				return err.Error(), nil
			}
			if strings.Contains(answer, "101 ") || !strings.Contains(answer, "HTTP/1.1 505 ") {
				return "", fmt.Errorf("answer %q", answer)
			}
			return "505 for what follows", nil
		}, host: "gateway.docker.internal:3128", reason: "HTTP version"},
		{name: "look-alike", what: "names that begin or end as an allowed one", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"evil-api.github.com", "api.github.com.evil.test", "apiXgithub.com", "x.api.github.com", "github.com.evil.test", "api.github.co"}, func(host string) (string, error) {
				return a.denied(ctx, "GET", "https://"+host+"/")
			})
		}, host: "api.github.com.evil.test:443", reason: denied},
		{name: "idn-look-alike", what: "letters of other alphabets that look like an allowed name, and full-width ones that turn into it", try: func(ctx context.Context, a *attacker) (string, error) {
			return all(
				func() (string, error) {
					return a.raw(ctx, "CONNECT api.github。com:443 HTTP/1.1\r\nHost: api.github.com\r\n\r\n")
				},
				func() (string, error) {
					return each([]string{"аpi.github.com", "api.gιthub.com", "xn--pi-7kc.github.com"}, func(host string) (string, error) {
						return a.denied(ctx, "GET", "https://"+host+"/")
					})
				},
			)
		}, host: "xn--pi-7kc.github.com:443", reason: denied},
		{name: "denied-spelled", what: "a denied name with a root dot, in capitals, as an international name", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"bad.test.", "BAD.test", "ｂａｄ.test", "bad%2etest"}, func(host string) (string, error) {
				return a.raw(ctx, "GET http://"+host+"/ HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
			})
		}, host: "bad.test:80", reason: "Denied by"},
		{name: "user-in-target", what: "an allowed name as the user of a denied host", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"http://open.test@evil.test/", "http://open.test:80@evil.test/", "http://evil.test\\@open.test/", "http://evil.test#@open.test/", "http://evil.test?@open.test/"}, func(target string) (string, error) {
				return a.raw(ctx, "GET "+target+" HTTP/1.1\r\nHost: open.test\r\nConnection: close\r\n\r\n")
			})
		}, host: "gateway.docker.internal:3128", reason: "User name in the request target"},
		{name: "strange-scheme", what: "ftp, file, gopher and unix targets", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"ftp://open.test/", "file:///etc/passwd", "gopher://open.test/1", "unix:///run/docker.sock", "javascript:1"}, func(target string) (string, error) {
				return a.raw(ctx, "GET "+target+" HTTP/1.1\r\nHost: open.test\r\nConnection: close\r\n\r\n")
			})
		}, host: "gateway.docker.internal:3128", reason: "Only http and https"},
	}
	return grouped(groupHosts, list)
}

// splitHello sends a TLS hello a few bytes at a time, inside a CONNECT.
func (a *attacker) splitHello(ctx context.Context, target, name string) (string, error) {
	c, err := a.connect(ctx, target)
	if err != nil {
		return err.Error(), nil
	}
	defer c.Close()
	hello := clientHello(ctx, name)
	for len(hello) > 0 {
		n := min(7, len(hello))
		if _, err := c.Write(hello[:n]); err != nil {
			return err.Error(), nil
		}
		hello = hello[n:]
		time.Sleep(time.Millisecond) // so that the pieces are not joined on the way
	}
	answer, err := drain(c)
	if err != nil {
		return err.Error(), nil
	}
	return "", fmt.Errorf("%d bytes came back", len(answer))
}

// http2 sends one request over HTTP/2 inside TLS and wants a refusal.
func (a *attacker) http2(ctx context.Context, fields ...hpack.HeaderField) (string, error) {
	return a.http2Fields(ctx, append([]hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}}, fields...))
}

// http2Fields is http2 without a field of its own.
func (a *attacker) http2Fields(ctx context.Context, fields []hpack.HeaderField) (string, error) {
	c, err := a.secure(ctx, "api.github.com:443", "api.github.com", "h2")
	if err != nil {
		return err.Error(), nil
	}
	defer c.Close()
	if c.ConnectionState().NegotiatedProtocol != "h2" {
		return "", fmt.Errorf("HTTP/2 is not spoken, so nothing is shown")
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range fields {
		enc.WriteField(f)
	}
	io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fr.WriteSettings()
	fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return err.Error(), nil
		}
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			return f.ErrCode.String(), nil
		case *http2.GoAwayFrame:
			return f.ErrCode.String(), nil
		case *http2.MetaHeadersFrame:
			status := 0
			fmt.Sscanf(f.PseudoValue("status"), "%d", &status)
			return refusedPage(status, "")
		}
	}
}

// http2Flood sends frames of one kind until the proxy ends the connection, as it must unless it may just be slow.
func (a *attacker) http2Flood(ctx context.Context, slow bool, send func(fr *http2.Framer, id uint32, head []byte) error) (string, error) {
	c, err := a.secure(ctx, "api.github.com:443", "api.github.com", "h2")
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(4 * time.Second))
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", "/flood"}, {":authority", "api.github.com"}} {
		enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	fr.WriteSettings()
	ended := make(chan string, 1)
	go func() { // ends with the connection
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				ended <- err.Error()
				return
			}
			if away, ok := f.(*http2.GoAwayFrame); ok {
				ended <- away.ErrCode.String()
				return
			}
		}
	}()
	for n := range uint32(100_000) {
		select {
		case why := <-ended:
			return fmt.Sprintf("%s after %d", why, n), nil
		default:
		}
		if err := send(fr, 2*n+1, block.Bytes()); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && !slow {
				return "", fmt.Errorf("%w after %d", err, n)
			}
			return fmt.Sprintf("%v after %d", err, n), nil
		}
	}
	return "", errors.New("100,000 of them were taken")
}

func framingAttempts() []attempt {
	const head = "POST http://open.test/ HTTP/1.1\r\nHost: open.test\r\n"
	const hidden = "GET http://open.test/smuggled HTTP/1.1\r\nHost: open.test\r\n\r\n"
	send := func(text string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) { return a.raw(ctx, text) }
	}
	bad := func(name, what, reason, text string) attempt {
		return attempt{name: name, what: what, try: send(text), host: "gateway.docker.internal:3128", reason: reason}
	}
	list := []attempt{
		bad("length-and-chunked", "a length and chunks", "both Content-Length and Transfer-Encoding", head+"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden),
		bad("chunked-and-length", "chunks and a length", "both Content-Length and Transfer-Encoding", head+"Transfer-Encoding: chunked\r\nContent-Length: 300\r\n\r\n0\r\n\r\n"+hidden),
		bad("two-lengths", "two lengths, alike or not", "repeated framing header", head+"Content-Length: 0\r\nContent-Length: 60\r\n\r\n"+hidden),
		bad("length-list", "a list of lengths", "Content-Length", head+"Content-Length: 0, 60\r\n\r\n"+hidden),
		bad("length-spelled", "a length with a sign", "Content-Length", head+"Content-Length: +0\r\n\r\n"+hidden),
		bad("coding-hidden", "a transfer coding that some read and some do not", "only the chunked transfer coding", head+"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"+hidden),
		bad("coding-control", "a control character before the coding", "control character", head+"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"+hidden),
		bad("space-before-colon", "a space between a header's name and its colon", "header line", head+"Content-Length : 60\r\n\r\n"+hidden),
		bad("folded-header", "a header that goes on in the next line", "header line", head+"X-A: b\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden),
		bad("bare-line-feed", "lines that end with a line feed alone", "line ends must be CR LF", "GET http://open.test/ HTTP/1.1\nHost: open.test\n\n"),
		bad("header-line-feed", "a line feed inside a header", "control character", head+"X-A: b\nContent-Length: 60\r\n\r\n"+hidden),
		bad("header-return", "a carriage return inside a header", "control character", head+"X-A: b\rContent-Length: 60\r\n\r\n"+hidden),
		bad("header-nul", "a zero byte inside a header", "control character", head+"X-A: b\x00\r\n\r\n"+hidden),
		bad("two-hosts", "two Host headers", "exactly one Host header", "GET http://open.test/ HTTP/1.1\r\nHost: open.test\r\nHost: evil.test\r\n\r\n"),
		bad("old-chunked", "chunks in HTTP/1.0", "Transfer-Encoding in HTTP/1.0", "POST http://open.test/ HTTP/1.0\r\nHost: open.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden),
		bad("http2-preface", "HTTP/2 on the proxy's port", "HTTP version", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		bad("header-flood", "a header without an end", "header is too large", head+"X-A: "+strings.Repeat("a", 64<<10)+"\r\n\r\n"),
		{name: "chunk-extension", what: "a chunk whose size line ends in two ways", try: func(ctx context.Context, a *attacker) (string, error) {
			return onlyFirst(a.exchange(ctx, head+"Transfer-Encoding: chunked\r\n\r\n3;\n\r\nabc\r\n0\r\n\r\n"+hidden))
		}, host: "open.test:80", reason: "Malformed request: body"},
		{name: "chunk-size", what: "a chunk's size with a sign, spaces, and too many digits", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"-3", "+3", "0x3", "3 3", "00000000000000000000003"}, func(size string) (string, error) {
				return onlyFirst(a.exchange(ctx, head+"Transfer-Encoding: chunked\r\n\r\n"+size+"\r\nabc\r\n0\r\n\r\n"+hidden))
			})
		}, host: "open.test:80", reason: "Malformed request: body"},
		{name: "pipelined-denied", what: "a denied request right behind an allowed one", try: func(ctx context.Context, a *attacker) (string, error) {
			answer, err := a.exchange(ctx, "GET http://open.test/first HTTP/1.1\r\nHost: open.test\r\n\r\nGET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n")
			if err != nil {
				return "", err
			}
			first, second, ok := strings.Cut(answer, "SERVER open.test /first")
			if !ok || strings.Contains(first+second, "SERVER") || !strings.Contains(second, "HTTP/1.1 403 ") {
				return "", fmt.Errorf("answers %q", answer)
			}
			return "the second is 403", nil
		}, host: "evil.test:80", reason: denied},
		{name: "body-as-request", what: "a request in the body of a denied one", try: send("POST http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 60\r\n\r\n" + hidden), host: "evil.test:80", reason: denied},
		{name: "http2-header-lines", what: "line ends in a header of HTTP/2, which would be a new line in HTTP/1", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.http2(ctx, hpack.HeaderField{Name: ":authority", Value: "api.github.com"}, hpack.HeaderField{Name: "x-a", Value: "b\r\nX-Smuggled: 1"})
		}},
		{name: "http2-hop-header", what: "framing headers of HTTP/1 inside HTTP/2", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.http2(ctx, hpack.HeaderField{Name: ":authority", Value: "api.github.com"}, hpack.HeaderField{Name: "transfer-encoding", Value: "chunked"})
		}},
	}
	return grouped(groupFraming, list)
}

// onlyFirst wants what follows a broken request not to be answered.
func onlyFirst(answer string, err error) (string, error) {
	switch {
	case err != nil:
		return err.Error(), nil
	case strings.Contains(answer, "/smuggled"):
		return "", fmt.Errorf("answers %q", answer)
	}
	return strings.TrimSpace(strings.SplitN(answer, "\r\n", 2)[0]) + ", and closed", nil
}

func pathAttempts() []attempt {
	ask := func(method, path string) (string, func(context.Context, *attacker) (string, error)) {
		return method + " " + path, func(ctx context.Context, a *attacker) (string, error) {
			return a.inside(ctx, "paths.test:443", "paths.test", method+" "+path+" HTTP/1.1\r\nHost: paths.test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		}
	}
	one := func(name, what, reason, method, path string) attempt {
		_, try := ask(method, path)
		return attempt{name: name, what: what, try: try, host: "paths.test:443", reason: reason}
	}
	const none = "No allow rule covers"
	list := []attempt{
		one("path-other", "a path outside the rule", none, "GET", "/repos/b"),
		one("path-dots", "dot segments", none, "GET", "/repos/a/../b"),
		one("path-encoded-dots", "encoded dot segments", none, "GET", "/repos/a/%2e%2E/b"),
		one("path-encoded-slash", "an encoded slash", "path cannot be decided", "GET", "/repos/a%2f..%2fb"),
		one("path-double-encoding", "a path encoded twice", "path cannot be decided", "GET", "/repos/a/%252e%252e/b"),
		one("path-backslash", "backslashes", "", "GET", "/repos/a\\..\\..\\b"),
		one("path-parameter", "parameters of a segment", "", "GET", "/repos/a/..;/b"),
		one("path-nul", "an encoded zero byte", "path cannot be decided", "GET", "/repos/a/%00/../b"),
		one("path-empty-segment", "empty segments", none, "GET", "//repos/b/a/"),
		one("path-case", "other case", none, "GET", "/REPOS/a/x"),
		one("method-other", "a method outside the rule", none, "POST", "/repos/a/x"),
		one("method-case", "the method in lower case, and one that is not known", none, "get", "/repos/a/x"),
		one("options-star", "OPTIONS *", "", "OPTIONS", "*"),
		{name: "method-header", what: "a header that asks the server for another method or path than the request's line", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"X-HTTP-Method-Override: DELETE", "X_Http_Method: PUT", "X-Original-URL: /repos/b", "X-Rewrite-URL: /repos/b"}, func(header string) (string, error) {
				return a.denied(ctx, "GET", "https://paths.test/repos/a/x", header)
			})
		}, host: "paths.test:443", reason: "asks for something else"},
		{name: "path-http2", what: "dot segments over HTTP/2", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.denied(ctx, "GET", "https://paths.test/repos/a/%2e%2e/b")
		}, host: "paths.test:443", reason: none},
		{name: "path-plain", what: "the host without TLS, on the port of TLS", try: func(ctx context.Context, a *attacker) (string, error) {
			c, err := a.connect(ctx, "paths.test:443")
			if err != nil {
				return err.Error(), nil
			}
			defer c.Close()
			io.WriteString(c, "GET /repos/b HTTP/1.1\r\nHost: paths.test:443\r\nConnection: close\r\n\r\n")
			answer, err := drain(c)
			if err != nil {
				return err.Error(), nil
			}
			status := 0
			fmt.Sscanf(answer, "HTTP/1.1 %d", &status)
			return refusedPage(status, answer)
		}, host: "paths.test:443", reason: none},
	}
	return grouped(groupPaths, list)
}
