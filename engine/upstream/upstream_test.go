package upstream

import (
	"errors"
	"strings"
	"testing"
)

func TestFor(t *testing.T) {
	p := Proxies{HTTP: "plain.corp:3128", HTTPS: "https://me:s3cret@secure.corp", NoProxy: ".intern.test,10.0.0.0/8,exact.test:8443"}
	for _, tt := range []struct {
		host   string
		port   uint16
		secure bool
		want   string
	}{
		{"a.test", 80, false, "http://plain.corp:3128"},
		{"a.test", 443, true, "https://me:s3cret@secure.corp"},
		{"fd00::1", 443, true, "https://me:s3cret@secure.corp"},
		{"x.intern.test", 443, true, ""},
		{"10.1.2.3", 80, false, ""},
		{"exact.test", 8443, true, ""},
		{"exact.test", 443, true, "https://me:s3cret@secure.corp"},
		{"127.0.0.1", 80, false, ""},
		{"localhost", 443, true, ""},
	} {
		u, err := p.For(tt.host, tt.port, tt.secure)
		got := ""
		if u != nil {
			got = u.String()
		}
		if err != nil || got != tt.want {
			t.Errorf("%s:%d: %q, %v; want %q", tt.host, tt.port, got, err, tt.want)
		}
	}
	if u, err := (Proxies{HTTP: "http://p.test"}).For("a.test", 443, true); u != nil || err != nil {
		t.Errorf("no proxy for TLS: %v, %v", u, err)
	}
	for _, text := range []string{"http://:s3cret@", "ftp://s3cret.test", "http://[s3cret", "://s3cret", "http://"} {
		if _, err := (Proxies{HTTPS: text}).For("a.test", 443, true); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
