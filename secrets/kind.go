package secrets

import (
	"regexp"
	"slices"
	"strings"
)

// Kind is what a credential is by its shape. GitHub documents the prefixes of its tokens; other providers' are seen
// in their documentation.
type Kind string

const (
	KindFineGrained    Kind = "fine-grained"    // github_pat_…: fine-grained personal access token
	KindClassic        Kind = "classic"         // ghp_…: classic personal access token
	KindOAuth          Kind = "oauth"           // gho_…: OAuth app or gh login
	KindAppUser        Kind = "app-user"        // ghu_…: GitHub App acting for a user
	KindInstallation   Kind = "installation"    // ghs_…: GitHub App installation, Actions' GITHUB_TOKEN
	KindRefresh        Kind = "refresh"         // ghr_…: refresh token, no use as a credential
	KindAnthropic      Kind = "anthropic"       // sk-ant-…: API key
	KindAnthropicLogin Kind = "anthropic-login" // sk-ant-oat…: of a Claude login, for one program
	KindOpenAI         Kind = "openai"          // sk-…
	KindGoogle         Kind = "google"          // AIza…: Google API key
	KindPlaceholder    Kind = "placeholder"     // one of ours or sbx's: not a credential
	KindUnknown        Kind = "unknown"         // none of the above
)

// Classify tells the kind of v by its shape alone.
func Classify(v Value) Kind {
	s := v.Reveal()
	if IsPlaceholder(s) {
		return KindPlaceholder
	}
	for _, k := range []struct {
		prefix string
		kind   Kind
	}{
		{"github_pat_", KindFineGrained}, {"ghp_", KindClassic}, {"gho_", KindOAuth}, {"ghu_", KindAppUser},
		{"ghs_", KindInstallation}, {"ghr_", KindRefresh}, {"sk-ant-oat", KindAnthropicLogin}, {"sk-ant-", KindAnthropic}, {"sk-", KindOpenAI}, {"AIza", KindGoogle},
	} {
		if strings.HasPrefix(s, k.prefix) {
			return k.kind
		}
	}
	return KindUnknown
}

// Placeholders that a sandbox sees where a credential is expected.
const (
	// GitHubServicePlaceholder is what sbx 0.39 and later preset as GH_TOKEN.
	GitHubServicePlaceholder = "gho_sbxproxymanaged000000000000000000000"
	// GitHubPATPlaceholder has the shape of a fine-grained token: the Copilot CLI checks the shape before it
	// sends anything (Copilot CLI 1.0.102).
	GitHubPATPlaceholder = "github_pat_sbxproxymanaged0000000_00000000000000000000000000000000000000000000000000000000000"
)

// IsPlaceholder reports whether s is a text that stands for a credential: sbx's or ours.
func IsPlaceholder(s string) bool {
	return s == "proxy-managed" || strings.HasPrefix(s, "sbx-cs-") || strings.Contains(s, "sbxproxymanaged")
}

// A Finding is a stretch of text that has the shape of a credential.
type Finding struct {
	Kind       Kind
	Start, End int // byte offsets
}

type shape struct {
	kind Kind
	re   *regexp.Regexp
}

func shapes() []shape {
	compile := regexp.MustCompile
	return []shape{
		{KindFineGrained, compile(`github_pat_[A-Za-z0-9_]{22,}`)},
		// Newer installation tokens are three base64url parts joined by dots (gh-aw-firewall pull 3786).
		{KindInstallation, compile(`ghs_[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]+)*`)},
		{KindClassic, compile(`ghp_[A-Za-z0-9]{16,}`)},
		{KindOAuth, compile(`gho_[A-Za-z0-9]{16,}`)},
		{KindAppUser, compile(`ghu_[A-Za-z0-9]{16,}`)},
		{KindRefresh, compile(`ghr_[A-Za-z0-9]{16,}`)},
		{KindAnthropic, compile(`sk-ant-[A-Za-z0-9_-]{16,}`)},
		{KindOpenAI, compile(`sk-(?:proj-)?[A-Za-z0-9_-]{32,}`)},
		{"aws", compile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`)},
		{KindGoogle, compile(`\bAIza[A-Za-z0-9_-]{35}`)},
		{"slack", compile(`\bxox[abprs]-[A-Za-z0-9-]{10,}`)},
		{"private-key", compile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`)},
	}
}

// A Scanner finds texts that have the shape of a credential.
type Scanner struct{ shapes []shape }

// NewScanner returns a Scanner for the shapes of GitHub, Anthropic, OpenAI, AWS, Google and Slack credentials and
// of PEM private keys. It is safe for concurrent use.
func NewScanner() *Scanner { return &Scanner{shapes()} }

// Scan returns the findings in b in the order of the shapes, placeholders left out. Two shapes may find the same text.
func (s *Scanner) Scan(b []byte) []Finding {
	var found []Finding
	for _, shape := range s.shapes {
		for _, at := range shape.re.FindAllIndex(b, -1) {
			if !IsPlaceholder(string(b[at[0]:at[1]])) {
				found = append(found, Finding{shape.kind, at[0], at[1]})
			}
		}
	}
	return found
}

// urlPassword finds the password of an address: of a proxy, of a remote.
var urlPassword = regexp.MustCompile(`://[^\s/:@"']*:([^\s/"']+)@`)

// Mask returns s with everything masked that has the shape of a credential, and with the passwords of addresses: for text
// whose values nobody knows.
func (sc *Scanner) Mask(s string) string {
	return maskPasswords(sc.maskShapes(s))
}

func maskPasswords(s string) string {
	var out strings.Builder
	at := 0
	for _, m := range urlPassword.FindAllStringSubmatchIndex(s, -1) {
		if !IsPlaceholder(s[m[2]:m[3]]) {
			out.WriteString(s[at:m[2]] + Mask)
			at = m[3]
		}
	}
	return out.String() + s[at:]
}

func (sc *Scanner) maskShapes(s string) string {
	found := sc.Scan([]byte(s))
	slices.SortFunc(found, func(a, b Finding) int { return a.Start - b.Start })
	var out strings.Builder
	at := 0
	for _, f := range found {
		if f.Start >= at {
			out.WriteString(s[at:f.Start] + Mask)
		}
		at = max(at, f.End)
	}
	return out.String() + s[at:]
}
