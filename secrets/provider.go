package secrets

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// A Provider is whom a model credential is for, and how requests to it carry the credential.
type Provider struct {
	Name        string // of the engine's built-in service (sbx 0.35 to 0.47)
	Env         string // variable in which people and programs keep the credential
	Header      string // that carries it; with Authorization as a Bearer token
	Placeholder string // what a sandbox sees; shaped so that CLIs which look at the shape accept it
	Check       string // URL that answers 2xx to a good credential and costs nothing
	kinds       []Kind
	link        string
}

// CheckAt is Check at another server of the provider's API: below the path that its address has, where the version of the API
// stands once.
func (p Provider) CheckAt(server string) string {
	at, err := url.Parse(server)
	check, checkErr := url.Parse(p.Check)
	if err != nil || checkErr != nil {
		return ""
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(check.Path, "/"), "/")
	at.Path = strings.TrimSuffix(strings.TrimSuffix(at.Path, "/"), "/"+version) + check.Path
	return at.String()
}

// Link is the address where a credential for the provider is made.
func (p Provider) Link() string { return p.link }

// RepositoryLink is the address where a fine-grained token for work on one repository of host is made, with name,
// expiry, owner and permissions filled in. The repository itself has to be chosen there: the page takes none by its address.
// The parameters are those of links in public documentation, gh-aw's among it (September and October 2026).
func RepositoryLink(host, repo string) string {
	owner, _, _ := strings.Cut(repo, "/")
	q := url.Values{"name": {"sbxpair " + repo}, "description": {"sbxpair: push branches, open pull requests, comment on " + repo}, "target_name": {owner},
		"expires_in": {"30"}, "contents": {"write"}, "pull_requests": {"write"}, "issues": {"write"}}
	return "https://" + host + "/settings/personal-access-tokens/new?" + q.Encode()
}

// LookupProvider returns the provider of that name.
func LookupProvider(name string) (Provider, bool) {
	for _, p := range Providers() {
		if p.Name == name {
			return p, true
		}
	}
	return Provider{}, false
}

// Providers returns those whose credentials can be bound to an agent sandbox. Headers are those that the CLIs were seen
// to send (Copilot CLI 1.0.102, Claude Code 2.1.332, Codex 0.171.0, Gemini CLI 0.61.0); the lists of models are the
// cheapest requests that the providers document.
func Providers() []Provider {
	return []Provider{
		{"github", "COPILOT_GITHUB_TOKEN", "Authorization", GitHubPATPlaceholder, "https://api.github.com/copilot_internal/user",
			[]Kind{KindFineGrained, KindOAuth, KindAppUser, KindInstallation},
			"https://github.com/settings/personal-access-tokens/new?" + url.Values{"name": {"sbxpair agent"}, "description": {"sbxpair: model requests of the Copilot CLI, nothing else"},
				"expires_in": {"30"}, "user_copilot_requests": {"read"}}.Encode()},
		{"anthropic", "ANTHROPIC_API_KEY", "x-api-key", "sk-ant-sbxproxymanaged0000000000000000", "https://api.anthropic.com/v1/models",
			[]Kind{KindAnthropic}, "https://console.anthropic.com/settings/keys"},
		{"openai", "OPENAI_API_KEY", "Authorization", "sk-proj-sbxproxymanaged0000000000000000", "https://api.openai.com/v1/models",
			[]Kind{KindOpenAI}, "https://platform.openai.com/api-keys"},
		{"google", "GEMINI_API_KEY", "x-goog-api-key", "AIzaSysbxproxymanaged000000000000000000", "https://generativelanguage.googleapis.com/v1beta/models",
			[]Kind{KindGoogle, KindUnknown}, "https://aistudio.google.com/apikey"}, // newer keys have other shapes
	}
}

// CheckToken refuses a credential that by its shape alone cannot work with the provider. what names it in the error,
// which matches [ErrUnfit] and never holds the value.
func (p Provider) CheckToken(v Value, what string) error {
	if err := checkText(v, what); err != nil {
		return err
	}
	kind := Classify(v)
	switch {
	case slices.Contains(p.kinds, kind):
		return nil
	case kind == KindClassic:
		return unfit(what, "is a classic personal access token (ghp_…), which the Copilot CLI refuses; make a fine-grained one with the account permission \"Copilot Requests\"")
	case kind == KindAnthropicLogin && p.Name == "anthropic":
		return unfit(what, "is the token of a Claude login (sk-ant-oat…), which goes into another header than the engine's %s secret writes; use an API key", p.Name)
	case kind == KindUnknown:
		return unfit(what, "does not have the shape of a credential for %s", p.Name)
	}
	return unfit(what, "is a %s credential, which is of no use with %s", kind, p.Name)
}

func unfit(what, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrUnfit, what, fmt.Sprintf(format, args...))
}
