package gateway

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/secrets"
)

// API is the way in which a provider's models are spoken to. It is the first part of the path of a request to the gateway.
type API string

// The APIs.
const (
	OpenAI    API = "openai"    // chat completions and Responses
	Anthropic API = "anthropic" // Messages
	Google    API = "google"    // generateContent
)

// APIs lists them.
func APIs() []API { return []API{OpenAI, Anthropic, Google} }

// speech is what the gateway knows of an API.
type speech struct {
	upstream string // of the provider
	header   string // in which the provider wants its key
	scheme   string // before the key in that header
	// base is added to the gateway's address to make what a client takes for the provider's.
	base string
	// ours reports a tool that the client runs itself.
	ours func(tool map[string]json.RawMessage) bool
	// calls are the endpoints that a run needs, and no others: nothing that stores, lists or deletes, nothing that goes on
	// in the provider's background, where it is not counted.
	calls []call
	// fault is an error in the API's own form, which its clients show.
	fault func(status int, message string) any
}

// call is one endpoint. One without a reader of its usage costs nothing.
type call struct {
	method string
	path   *regexp.Regexp
	usage  func(event []byte, into *Usage) // reads a whole answer, or one event of a stream
	model  func(path string, body map[string]json.RawMessage) string
	stream func(query url.Values, body map[string]json.RawMessage) bool
}

func speechOf(api API) (speech, bool) {
	switch api {
	case OpenAI:
		return speech{
			upstream: "https://api.openai.com", header: "Authorization", scheme: "Bearer ", base: "/openai/v1", ours: openaiTool,
			calls: []call{
				{http.MethodPost, regexp.MustCompile(`^/v1/chat/completions$`), chatUsage, modelInBody, streamInBody},
				{http.MethodPost, regexp.MustCompile(`^/v1/responses$`), responsesUsage, modelInBody, streamInBody},
				{http.MethodGet, regexp.MustCompile(`^/v1/models(/[A-Za-z0-9._:-]+)?$`), nil, nil, nil},
			},
			fault: func(status int, message string) any {
				return map[string]any{"error": map[string]any{"message": message, "type": "sbxpair_gateway", "code": status, "param": nil}}
			},
		}, true
	case Anthropic:
		return speech{
			upstream: "https://api.anthropic.com", header: "X-Api-Key", base: "/anthropic", ours: anthropicTool,
			calls: []call{
				{http.MethodPost, regexp.MustCompile(`^/v1/messages$`), messagesUsage, modelInBody, streamInBody},
				{http.MethodPost, regexp.MustCompile(`^/v1/messages/count_tokens$`), nil, nil, nil},
				{http.MethodGet, regexp.MustCompile(`^/v1/models(/[A-Za-z0-9._:-]+)?$`), nil, nil, nil},
				{http.MethodHead, regexp.MustCompile(`^/$`), nil, nil, nil}, // Claude Code asks whether anybody is there
			},
			fault: func(_ int, message string) any {
				return map[string]any{"type": "error", "error": map[string]any{"type": "invalid_request_error", "message": message}}
			},
		}, true
	case Google:
		return speech{
			upstream: "https://generativelanguage.googleapis.com", header: "X-Goog-Api-Key", base: "/google", ours: googleTool,
			calls: []call{
				{http.MethodPost, regexp.MustCompile(`^/v1(beta)?/models/[A-Za-z0-9._-]+:(generateContent|streamGenerateContent)$`), geminiUsage, modelInPath,
					func(query url.Values, _ map[string]json.RawMessage) bool { return query.Get("alt") == "sse" }},
				{http.MethodPost, regexp.MustCompile(`^/v1(beta)?/models/[A-Za-z0-9._-]+:countTokens$`), nil, nil, nil},
				{http.MethodGet, regexp.MustCompile(`^/v1(beta)?/models(/[A-Za-z0-9._-]+)?$`), nil, nil, nil},
			},
			fault: func(status int, message string) any {
				return map[string]any{"error": map[string]any{"code": status, "message": message, "status": "FAILED_PRECONDITION"}}
			},
		}, true
	}
	return speech{}, false
}

func (s speech) find(method, path string) (call, bool) {
	for _, c := range s.calls {
		if c.method == method && c.path.MatchString(path) {
			return c, true
		}
	}
	return call{}, false
}

// presented returns the key that a client sends, in any of the headers in which one of the APIs wants it.
func presented(h http.Header) secrets.Value {
	if scheme, key, found := strings.Cut(h.Get("Authorization"), " "); found && strings.EqualFold(scheme, "bearer") {
		return secrets.New(strings.TrimSpace(key))
	}
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if key := h.Get(name); key != "" {
			return secrets.New(key)
		}
	}
	return secrets.Value{}
}

func modelInBody(_ string, body map[string]json.RawMessage) string {
	var name string
	if json.Unmarshal(body["model"], &name) != nil {
		return ""
	}
	return name
}

func modelInPath(path string, _ map[string]json.RawMessage) string {
	_, rest, _ := strings.Cut(path, "/models/")
	name, _, _ := strings.Cut(rest, ":")
	return name
}

func streamInBody(_ url.Values, body map[string]json.RawMessage) bool {
	return string(body["stream"]) == "true"
}

func textOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}

// openaiTool: of the Responses tools these run at the client; web_search, file_search, code_interpreter, mcp and
// image_generation run at the provider.
func openaiTool(tool map[string]json.RawMessage) bool {
	return slices.Contains([]string{"function", "custom", "local_shell", "shell", "apply_patch"}, textOf(tool["type"]))
}

// anthropicTool: tools of the client's own have no type or "custom"; bash, text_editor, computer and memory are forms of
// Anthropic's that the client carries out. web_search, web_fetch, code_execution and the rest run at the provider.
func anthropicTool(tool map[string]json.RawMessage) bool {
	kind := textOf(tool["type"])
	name, _, _ := strings.Cut(kind, "_2") // bash_20250124
	return kind == "" || slices.Contains([]string{"custom", "bash", "text_editor", "computer", "memory"}, name)
}

// googleTool: functionDeclarations are the client's; googleSearch, urlContext and codeExecution are not.
func googleTool(tool map[string]json.RawMessage) bool {
	for name := range tool {
		if name != "functionDeclarations" && name != "function_declarations" {
			return false
		}
	}
	return true
}
