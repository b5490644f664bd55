package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// The proxy as a sandbox sees it.
const proxyAddr = "127.0.0.1:3128"

// unreached returns the refusal of a connection that must not come about.
func unreached(ctx context.Context, network, addr string) (string, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, network, addr)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("not refused, only unanswered: %w", err) // something left, if only a packet
	case err != nil:
		return err.Error(), nil
	}
	defer c.Close()
	return "", fmt.Errorf("connected to %s %s", network, addr)
}

// all tries several ways; each must be refused.
func all(ways ...func() (string, error)) (string, error) {
	var last string
	for i, way := range ways {
		refused, err := way()
		if err != nil {
			return "", fmt.Errorf("way %d: %w", i+1, err)
		}
		last = refused
	}
	return last, nil
}

// each tries the same with several inputs.
func each(inputs []string, try func(string) (string, error)) (string, error) {
	var last string
	for _, in := range inputs {
		refused, err := try(in)
		if err != nil {
			return "", fmt.Errorf("%q: %w", in, err)
		}
		last = refused
	}
	return last, nil
}

// get asks through the proxy as a well-behaved program does.
func (a *attacker) get(ctx context.Context, method, target string, header ...string) (*http.Response, string, error) {
	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxyAddr}), ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, "", err
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// denied asks for a page and wants a refusal of the proxy's own, not an answer.
func (a *attacker) denied(ctx context.Context, method, target string, header ...string) (string, error) {
	resp, body, err := a.get(ctx, method, target, header...)
	switch {
	case ctx.Err() != nil:
		return "", err // a refusal does not keep anybody waiting
	case err != nil:
		return err.Error(), nil
	}
	return refusedPage(resp.StatusCode, body)
}

func refusedPage(status int, body string) (string, error) {
	if strings.Contains(body, "SERVER") || status < 400 {
		return "", fmt.Errorf("status %d: %.200s", status, body)
	}
	return fmt.Sprintf("%d %.300s", status, strings.TrimSpace(body)), nil
}

// raw sends bytes to the proxy and wants nothing but refusals back.
func (a *attacker) raw(ctx context.Context, text string) (string, error) {
	answer, err := a.exchange(ctx, text)
	if err != nil {
		return err.Error(), nil
	}
	status := 0
	fmt.Sscanf(answer, "HTTP/1.1 %d", &status)
	return refusedPage(status, answer)
}

// exchange sends bytes to the proxy and returns what comes back until it closes or falls silent.
func (a *attacker) exchange(ctx context.Context, text string) (string, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", proxyAddr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	return drain(c)
}

// drain reads until the end, or until nothing has come for a moment after something had.
func drain(c net.Conn) (string, error) {
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			if b.Len() > 0 {
				return b.String(), nil
			}
			return "", err
		}
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	}
}

// connect opens a CONNECT and returns the connection behind it.
func (a *attacker) connect(ctx context.Context, target string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", proxyAddr)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	if err != nil {
		c.Close()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		c.Close()
		return nil, errors.New(resp.Status)
	}
	return readAhead{c, br}, nil
}

// A readAhead is a connection some of whose bytes are in a reader already.
type readAhead struct {
	net.Conn
	br *bufio.Reader
}

func (r readAhead) Read(p []byte) (int, error) { return r.br.Read(p) }

// secure opens TLS to a server name inside a CONNECT to target.
func (a *attacker) secure(ctx context.Context, target, name string, protocols ...string) (*tls.Conn, error) {
	c, err := a.connect(ctx, target)
	if err != nil {
		return nil, err
	}
	tc := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: protocols})
	if err := tc.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return tc, nil
}

// inside sends bytes inside TLS inside a CONNECT and wants refusals only.
func (a *attacker) inside(ctx context.Context, target, name, text string) (string, error) {
	c, err := a.secure(ctx, target, name, "http/1.1")
	if err != nil {
		return err.Error(), nil
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error(), nil
	}
	answer, err := drain(c)
	if err != nil {
		return err.Error(), nil
	}
	status := 0
	fmt.Sscanf(answer, "HTTP/1.1 %d", &status)
	return refusedPage(status, answer)
}

// clientHello returns the first bytes of a TLS connection.
func clientHello(ctx context.Context, name string) []byte {
	ours, theirs := net.Pipe()
	defer ours.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	go func() { // ends when the pipe is closed
		defer theirs.Close()
		tls.Client(theirs, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(ctx)
	}()
	buf := make([]byte, 16<<10)
	n, _ := ours.Read(buf)
	return buf[:n]
}

// flood opens connections until one is turned away, and says so; the test then asks from another sandbox.
func (a *attacker) flood(ctx context.Context) (string, error) {
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	var d net.Dialer
	for n := range 4096 {
		c, err := d.DialContext(ctx, "tcp", proxyAddr)
		if err != nil {
			return fmt.Sprintf("%v after %d connections", err, n), nil
		}
		open = append(open, c)
		if n%128 != 127 {
			continue
		}
		answer, err := a.exchange(ctx, "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n")
		if err != nil || strings.HasPrefix(answer, "HTTP/1.1 503 ") {
			return fmt.Sprintf("%.12s %v after about %d connections", answer, err, n), nil
		}
	}
	return "", errors.New("4,096 connections")
}

// crowd asks for answers that do not come, over a few connections, until one request is turned away.
func (a *attacker) crowd(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const conns, streams = 5, 120
	answers := make(chan string, conns*streams)
	for range conns {
		tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxyAddr}), ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		ask := func(path string) string {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.github.com"+path, nil)
			if err != nil {
				return err.Error()
			}
			resp, err := tr.RoundTrip(req)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			return fmt.Sprintf("%d %.100s", resp.StatusCode, body)
		}
		if first := ask("/"); !strings.HasPrefix(first, "200 ") { // the connection that the rest shares
			return first, nil
		}
		for range streams {
			go func() { answers <- ask("/wait") }() // ends with ctx
		}
	}
	for {
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%d requests are under way", conns*streams)
		case answer := <-answers:
			if strings.HasPrefix(answer, "503 ") {
				return answer, nil
			}
		}
	}
}
