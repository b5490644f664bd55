package vault

import (
	"slices"

	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/secrets"
)

// Style is how a credential is written into a request.
type Style string

// The styles.
const (
	Bearer    Style = "bearer"         // Authorization: Bearer VALUE
	BasicGit  Style = "basic"          // Authorization: Basic of x-access-token:VALUE, as GitHub's git hosts want it
	APIKey    Style = "x-api-key"      // X-Api-Key: VALUE
	GoogleKey Style = "x-goog-api-key" // X-Goog-Api-Key: VALUE
)

// ProxyManaged is the placeholder of services that do not look at the shape of their key.
const ProxyManaged = "proxy-managed"

// A Service is a provider whose credential we know how to use.
type Service struct {
	Name        string
	Env         []string // variables of the host it is known by; the first is preset in sandboxes
	Hosts       []string // resources as in package policy
	Placeholder string
	style       Style
}

// Style returns how the service's credential is written on host.
func (s Service) Style(host policy.Host) Style {
	if s.Name == "github" && slices.Contains([]string{"github.com", "gist.github.com"}, host.String()) {
		return BasicGit
	}
	return s.style
}

// Services returns the built-in services (sbx 0.47). Beyond sbx's own table, github covers the hosts of Copilot's
// plans, which the API names as its endpoint (Copilot CLI 1.0.102).
func Services() []Service {
	return []Service{
		{"anthropic", []string{"ANTHROPIC_API_KEY"}, []string{"api.anthropic.com", "console.anthropic.com", "claude.ai", "mcp-proxy.anthropic.com"}, ProxyManaged, APIKey},
		{"cursor", []string{"CURSOR_API_KEY"}, []string{"api2.cursor.sh", "api3.cursor.sh", "repo42.cursor.sh", "cursor.com"}, ProxyManaged, Bearer},
		{"droid", []string{"FACTORY_API_KEY"}, []string{"api.factory.ai", "app.factory.ai", "relay.factory.ai"}, ProxyManaged, Bearer},
		{"github", []string{"GH_TOKEN", "GITHUB_TOKEN"}, []string{
			"api.github.com", "github.com", "raw.githubusercontent.com", "gist.github.com", "copilot.github.com", "api.githubcopilot.com",
			"api.individual.githubcopilot.com", "api.business.githubcopilot.com", "api.enterprise.githubcopilot.com",
		}, secrets.GitHubServicePlaceholder, Bearer},
		{"google", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, []string{"generativelanguage.googleapis.com", "oauth2.googleapis.com", "aiplatform.googleapis.com", "vertexai.googleapis.com"}, ProxyManaged, GoogleKey},
		{"groq", []string{"GROQ_API_KEY"}, []string{"api.groq.com"}, ProxyManaged, Bearer},
		{"mistral", []string{"MISTRAL_API_KEY"}, []string{"api.mistral.ai"}, ProxyManaged, Bearer},
		{"nebius", []string{"NEBIUS_API_KEY"}, []string{"api.studio.nebius.com", "api.tokenfactory.nebius.com"}, ProxyManaged, Bearer},
		{"openai", []string{"OPENAI_API_KEY"}, []string{"api.openai.com", "openai.com", "chatgpt.com", "www.chatgpt.com"}, ProxyManaged, Bearer},
		{"openrouter", []string{"OPENROUTER_API_KEY"}, []string{"openrouter.ai"}, ProxyManaged, Bearer},
		{"xai", []string{"XAI_API_KEY"}, []string{"api.x.ai"}, ProxyManaged, Bearer},
	}
}

// LookupService returns the built-in service of that name.
func LookupService(name string) (Service, bool) {
	for _, s := range Services() {
		if s.Name == name {
			return s, true
		}
	}
	return Service{}, false
}
