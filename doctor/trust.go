package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// A trustProbe lets one tool make a request that the engine's proxy answers under its own certificate. Tools keep their
// trusted certificates in different places, so that one that works says nothing of the next (microsandbox#767).
type trustProbe struct {
	name     string
	needed   bool // a run cannot do without the tool
	argv     []string
	distrust []string // what the tool says of a certificate that it does not trust
	remedy   string   // how the tool is told about one
}

func curlTrust(url string) trustProbe {
	return trustProbe{name: "curl", needed: true, remedy: "CURL_CA_BUNDLE or SSL_CERT_FILE in the template",
		argv:     []string{"curl", "-sS", "-o", "/dev/null", "-w", "answered %{http_code}", "--max-time", "20", "--proto", "=https", "-A", "sbxpair-doctor", url},
		distrust: []string{"(60)", "(77)", "(35)", "certificate"}}
}

// gitTrust asks for the branches of the repository, which pushes nothing.
func gitTrust(url string) trustProbe {
	return trustProbe{name: "git", needed: true, remedy: "GIT_SSL_CAINFO in the template: git's GnuTLS build ignores SSL_CERT_FILE",
		argv:     []string{"env", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "git", "ls-remote", "--heads", url},
		distrust: []string{"certificate", "SSL", "TLS"}}
}

// nodeScript fetches as agents do. Where fetch does not use the proxy (node before 22 and 24, or without
// NODE_USE_ENV_PROXY), it says so, and asks for the certificate through the proxy by hand.
const nodeScript = `
const url = new URL(process.argv[1]);
const said = e => (e && e.cause && (e.cause.code || e.cause.message)) || (e && (e.code || e.message)) || String(e);
fetch(url, {signal: AbortSignal.timeout(15000), headers: {'user-agent': 'sbxpair-doctor'}}).then(r => { console.log('answered ' + r.status); process.exit(0); }, e => {
  const first = said(e), proxy = process.env.HTTPS_PROXY || process.env.https_proxy;
  if (/CERT|SELF_SIGNED|ISSUER|certificate/i.test(first) || !proxy) { console.error(first); process.exit(1); }
  const via = new URL(proxy);
  require('http').request({host: via.hostname, port: via.port, method: 'CONNECT', path: url.hostname + ':443', headers: {host: url.hostname + ':443'}, timeout: 15000}).on('connect', (res, socket) => {
    const t = require('tls').connect({socket, servername: url.hostname}, () => { console.log('answered by hand; fetch: ' + first); process.exit(0); });
    t.on('error', e => { console.error(said(e)); process.exit(1); });
  }).on('error', e => { console.error(said(e)); process.exit(1); }).end();
});
`

func nodeTrust(url string) trustProbe {
	return trustProbe{name: "node", argv: []string{"node", "-e", nodeScript, url}, remedy: "NODE_EXTRA_CA_CERTS in the template",
		distrust: []string{"CERT", "SELF_SIGNED", "ISSUER", "certificate"}}
}

const pythonScript = `
import sys, urllib.request, urllib.error
try:
    print("answered", urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers={"User-Agent": "sbxpair-doctor"}), timeout=20).status)
except urllib.error.HTTPError as e:
    print("answered", e.code)
except Exception as e:
    print(e, file=sys.stderr)
    sys.exit(1)
`

func pythonTrust(url string) trustProbe {
	return trustProbe{name: "python3", argv: []string{"python3", "-c", pythonScript, url}, distrust: []string{"CERTIFICATE_VERIFY_FAILED", "certificate"},
		remedy: "SSL_CERT_FILE and REQUESTS_CA_BUNDLE in the template"}
}

// goTrust lets the go command ask a host that is blocked for a module: the block page comes under the proxy's certificate,
// nothing leaves, and nothing has to be compiled.
func goTrust() trustProbe {
	const script = `go=$(command -v go || ls /usr/local/go/bin/go 2>/dev/null) || { echo 'no go command' >&2; exit 127; }
dir=$(mktemp -d) && cd "$dir" && trap 'rm -rf "$dir"' EXIT || exit 1
GO111MODULE=on GOFLAGS=-mod=mod GOTOOLCHAIN=local GOPROXY=https://example.com GONOSUMDB='*' GOVCS='*:off' GOPATH="$dir" GOCACHE="$dir/c" GOENV=off "$go" list -m -versions example.com/doctor 2>&1
exit 0`
	return trustProbe{name: "go", argv: []string{"sh", "-c", script}, distrust: []string{"x509:", "certificate"}, remedy: "SSL_CERT_FILE in the template"}
}

func (s *scratch) trust(ctx context.Context, box *pair.Sandbox, p trustProbe) (Check, error) {
	res, err := s.run(ctx, box, command{Argv: p.argv})
	if err != nil && !errors.Is(err, sbx.ErrLaunch) {
		return Check{}, err
	}
	return p.judge(err != nil || res.Code == 127 || p.argv[0] == "env" && res.Code == 126, res.Code, string(res.Stdout), string(res.Stderr))
}

// judge reads what the tool said. An answer of any status came over TLS and so is trust.
func (p trustProbe) judge(absent bool, code int, stdout, stderr string) (Check, error) {
	text := oneLine(stdout + " " + stderr)
	distrusts := false
	for _, word := range p.distrust {
		distrusts = distrusts || strings.Contains(oneLine(stderr), word) || p.name == "go" && strings.Contains(text, word)
	}
	switch {
	case absent && p.needed:
		return Check{Verdict: Bad, Detail: p.name + " is not in the sandbox, and a run needs it", Remedy: "use a template that has " + p.name}, nil
	case absent:
		return Check{Verdict: OK, Detail: p.name + " is not in the sandbox"}, nil
	case distrusts && code != 0 || distrusts && p.name == "go":
		return Check{Verdict: Bad, Detail: fmt.Sprintf("%s does not trust the proxy's certificate: %.200s", p.name, text), Remedy: p.remedy}, nil
	case p.name == "go" && (strings.Contains(text, "403 Forbidden") || strings.Contains(text, "404 Not Found")):
		return Check{Verdict: OK, Detail: "trusted: the page of a blocked host came over TLS"}, nil
	case p.name == "node" && strings.HasPrefix(text, "answered by hand"):
		return Check{Verdict: Warn, Remedy: "node 24, or 22.21, with NODE_USE_ENV_PROXY=1; agent CLIs that bring their own proxy support do not need it",
			Detail: "trusted, but node's fetch goes around the proxy, where nothing answers (" + strings.TrimPrefix(text, "answered by hand; fetch: ") + ")"}, nil
	case code == 0 && strings.HasPrefix(text, "answered"):
		return Check{Verdict: OK, Detail: "trusted (" + text + ")"}, nil
	case p.name == "git" && (code == 0 || gitAnswered(text)):
		return Check{Verdict: OK, Detail: "trusted"}, nil
	}
	return Check{}, fmt.Errorf("%s gives no answer (exit %d): %.200s", p.name, code, text)
}

// gitAnswered recognises a refusal of the server's, which came over TLS (git 2.39, LC_ALL=C).
func gitAnswered(text string) bool {
	for _, said := range []string{"could not read Username", "Authentication failed", "returned error: 40", "not found"} {
		if strings.Contains(text, said) {
			return true
		}
	}
	return false
}
