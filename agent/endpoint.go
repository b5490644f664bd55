package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Endpoint is a server that a CLI speaks to in place of its provider's own.
type Endpoint struct {
	Provider string // whose models they are: openai, anthropic or google
	// URL is the base address as the provider's clients want it: with /v1 for openai, without a version for the others.
	URL string
}

// ProviderEndpoint is the provider's own server, for a CLI that has to be told about it; nil for GitHub's, which Copilot knows.
func ProviderEndpoint(provider string) *Endpoint {
	switch provider {
	case "openai":
		return &Endpoint{provider, "https://api.openai.com/v1"}
	case "anthropic":
		return &Endpoint{provider, "https://api.anthropic.com"}
	}
	return nil
}

// Providers lists whose models the CLI can be pointed at by an [Endpoint].
func (a Adapter) Providers() []string { return a.endpoints }

// KeyEnv is the variable in which the CLI looks for its credential when it uses the provider's models; "" is the
// provider's usual one.
func (a Adapter) KeyEnv(provider string) string {
	if a.Name == "copilot" && provider != a.Credential.Provider {
		return copilotKey
	}
	return a.Credential.Env
}

// copilotKey holds the key of a provider that is not GitHub (copilot help providers, 1.0.102).
const copilotKey = "COPILOT_PROVIDER_API_KEY"

func (a Adapter) checkEndpoint(t Task) error {
	switch e := t.Endpoint; {
	case e == nil:
		return nil
	case !slices.Contains(a.endpoints, e.Provider):
		return fmt.Errorf("%w: %s cannot be pointed at a server for %q; it can for: %s", ErrTask, a.Name, e.Provider, strings.Join(a.endpoints, ", "))
	case strings.ContainsAny(e.URL, "\"\\ \n") || e.URL == "":
		return fmt.Errorf("%w: address %q", ErrTask, e.URL)
	case a.Name == "copilot" && t.Model == "":
		return fmt.Errorf("%w: Copilot with the models of %s has no default: name one (agent.model)", ErrTask, e.Provider)
	}
	return nil
}

// environment is what points a CLI that reads its endpoint from variables at e.
func (e *Endpoint) environment(adapter string) []string {
	if e == nil {
		return nil
	}
	switch adapter {
	case "copilot": // COPILOT_OFFLINE leaves GitHub's own services alone: there is no token for them
		return []string{"COPILOT_OFFLINE=true", "COPILOT_PROVIDER_TYPE=" + e.Provider, "COPILOT_PROVIDER_BASE_URL=" + e.URL}
	case "claude":
		return []string{"ANTHROPIC_BASE_URL=" + e.URL}
	case "gemini":
		return []string{"GOOGLE_GEMINI_BASE_URL=" + e.URL}
	}
	return nil
}

// codexFlags define a provider of our own: the built-in one cannot be given another address.
func (e *Endpoint) codexFlags(keyEnv string) []string {
	if e == nil {
		return nil
	}
	return []string{"-c", "model_provider=sbxpair", "-c", fmt.Sprintf(`model_providers.sbxpair={name="sbxpair",base_url=%q,env_key=%q,wire_api="responses"}`, e.URL, keyEnv)}
}

// versioned is the address with the API's version, which opencode's and pi's libraries want in every case.
func (e *Endpoint) versioned() string {
	switch e.Provider {
	case "anthropic":
		return e.URL + "/v1"
	case "google":
		return e.URL + "/v1beta"
	}
	return e.URL
}

// openCodeConfig is opencode's configuration: nothing shared, nothing updated, and the provider's address.
func openCodeConfig(e *Endpoint) (string, error) {
	config := map[string]any{"share": "disabled", "autoupdate": false}
	if e != nil {
		config["provider"] = map[string]any{e.Provider: map[string]any{"options": map[string]any{"baseURL": e.versioned()}}}
	}
	text, err := json.Marshal(config)
	return string(text), err
}

// piModels is pi's models.json with the provider's address in place of the built-in one (pi-mono, its page on models).
func piModels(e *Endpoint) (string, error) {
	url := e.versioned()
	if e.Provider == "anthropic" {
		url = e.URL // pi's library adds the version here
	}
	text, err := json.Marshal(map[string]any{"providers": map[string]any{e.Provider: map[string]any{"baseUrl": url}}})
	return string(text), err
}
