package secrets

import (
	"fmt"
	"slices"
)

// A Provider is whom a model credential is for, and how requests to it carry the credential.
type Provider struct {
	Name        string // of the engine's built-in service (sbx 0.35 to 0.47)
	Env         string // variable in which people and programs keep the credential
	Header      string // that carries it; with Authorization as a Bearer token
	Placeholder string // what a sandbox sees; shaped so that CLIs which look at the shape accept it
	Check       string // URL that answers 2xx to a good credential and costs nothing
	kinds       []Kind
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
			[]Kind{KindFineGrained, KindOAuth, KindAppUser, KindInstallation}},
		{"anthropic", "ANTHROPIC_API_KEY", "x-api-key", "sk-ant-sbxproxymanaged0000000000000000", "https://api.anthropic.com/v1/models",
			[]Kind{KindAnthropic}},
		{"openai", "OPENAI_API_KEY", "Authorization", "sk-proj-sbxproxymanaged0000000000000000", "https://api.openai.com/v1/models",
			[]Kind{KindOpenAI}},
		{"google", "GEMINI_API_KEY", "x-goog-api-key", "AIzaSysbxproxymanaged000000000000000000", "https://generativelanguage.googleapis.com/v1beta/models",
			[]Kind{KindGoogle, KindUnknown}}, // newer keys have other shapes
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
