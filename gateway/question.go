package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// question is what a client asks of a model.
type question struct {
	speech speech
	path   string
	fields map[string]json.RawMessage
}

// Fields of a question that its way out depends on, in whatever API. Two spellings are both Google's.
var (
	// tiers have prices of their own, but for these values.
	tiers = map[string][]string{
		"service_tier": {"auto", "default", "flex", "standard", "standard_only"}, "serviceTier": {"standard", "flex"},
		"speed": {"standard"}, "inference_geo": {"global"},
	}
	// kept refer to what the provider keeps, for all who use its key: the other runs' conversations, files and caches.
	kept = []string{"previous_response_id", "conversation", "prompt", "container", "cachedContent", "cached_content"}
	// elsewhere are things that the provider does by itself, with other servers: they are taken out, as its tools are.
	elsewhere = []string{"mcp_servers", "web_search_options"}
	// contents hold what the model reads.
	contents = []string{"messages", "input", "contents", "system", "systemInstruction", "system_instruction", "instructions", "prediction",
		"generateContentRequest", "generate_content_request"}
	// foreign are parts of contents in the form of the client's own tools, where a word means what they take it for.
	foreign = []string{"input", "args", "response", "arguments"}
	// outside are parts of contents that stand for something which is not in the question.
	outside = []string{"image_url", "file_url", "file_id", "fileUri", "file_uri"}
)

// countable returns the question as it goes out. What would not be counted, or lets the provider reach into what is none of the
// run's, is refused or taken out: tools that the provider runs itself, for instance, cost by the use, and reach a network that
// no policy of ours is about. A provider that counts only when it is told to is told.
func (q question) countable(streams bool) ([]byte, error) {
	if string(q.fields["background"]) == "true" {
		return nil, errors.New("answers in the background are not counted, and not allowed")
	}
	for name, values := range tiers {
		if raw, asked := q.set(name); asked && !slices.Contains(values, textOf(raw)) {
			return nil, fmt.Errorf("%s %s has prices of its own, and is not allowed", name, short(raw))
		}
	}
	for _, name := range kept {
		if _, asked := q.set(name); asked {
			return nil, fmt.Errorf("%s refers to what the provider keeps, where all who use its key meet, and is not allowed: put all of it into the question", name)
		}
	}
	for _, name := range elsewhere {
		delete(q.fields, name)
	}
	for _, name := range contents {
		if raw, asked := q.set(name); asked {
			what, err := refers(json.NewDecoder(bytes.NewReader(raw)), "", "")
			if err != nil {
				return nil, err
			}
			if what != "" {
				return nil, fmt.Errorf("%s makes the provider fetch something, and is not allowed: put it into the question", what)
			}
		}
	}
	if err := errors.Join(q.tools(), q.usage(streams)); err != nil {
		return nil, err
	}
	switch q.path {
	case "/v1/responses":
		q.fields["store"] = json.RawMessage("false") // or it would be kept, for all who use the key
	case "/v1/chat/completions":
		delete(q.fields, "store")
	}
	// Written anew in any case: a key that stands there twice means one thing to us and another to the provider.
	return json.Marshal(q.fields)
}

// set returns a field that is there and not null.
func (q question) set(name string) (json.RawMessage, bool) {
	raw, given := q.fields[name]
	return raw, given && string(raw) != "null"
}

// tools takes out those that the client does not run itself.
func (q question) tools() error {
	raw, given := q.set("tools")
	if !given {
		return nil
	}
	var tools []map[string]json.RawMessage
	if json.Unmarshal(raw, &tools) != nil { // a single one, say, which lenient providers take for a list
		return errors.New("tools is not a list of objects")
	}
	own := slices.DeleteFunc(slices.Clone(tools), func(tool map[string]json.RawMessage) bool { return !q.speech.ours(tool) })
	if len(own) == len(tools) {
		return nil
	}
	var err error
	q.fields["tools"], err = json.Marshal(own)
	return err
}

// usage asks for the usage of a stream.
func (q question) usage(streams bool) error {
	if q.path != "/v1/chat/completions" || !streams {
		return nil
	}
	options := map[string]json.RawMessage{}
	if raw, given := q.set("stream_options"); given && json.Unmarshal(raw, &options) != nil {
		return errors.New("stream_options is not an object")
	}
	options["include_usage"] = json.RawMessage("true")
	var err error
	q.fields["stream_options"], err = json.Marshal(options)
	return err
}

// refers names what in the next value, which stands under name in an object under at, is not in the question itself, or
// nothing. It keeps nothing of what it reads: a question of many small pieces would take a hundred times its size.
func refers(d *json.Decoder, at, name string) (string, error) {
	token, err := d.Token()
	if err != nil {
		return "", err
	}
	if text, is := token.(string); is {
		what := name
		if name == "url" { // image_url: {url: …}
			what = at
		}
		switch {
		case slices.Contains(outside, what) && text != "" && !strings.HasPrefix(text, "data:"):
			return what, nil
		case name == "type" && at == "source" && (text == "url" || text == "file"):
			return "a source of the type " + text, nil
		case name == "type" && text == "item_reference":
			return text, nil
		}
	}
	list := json.Delim('[')
	if token != list && token != json.Delim('{') {
		return "", nil
	}
	for d.More() {
		in, key := at, name
		if token != list {
			t, err := d.Token()
			if err != nil {
				return "", err
			}
			in, key = name, t.(string)
		}
		if slices.Contains(foreign, key) && token != list {
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return "", err
			}
			continue
		}
		if what, err := refers(d, in, key); what != "" || err != nil {
			return what, err
		}
	}
	_, err = d.Token() // its end
	return "", err
}

// short is a value of a client's in a message to it.
func short(raw json.RawMessage) string {
	if len(raw) > 40 {
		return string(raw[:40]) + "…"
	}
	return string(raw)
}
