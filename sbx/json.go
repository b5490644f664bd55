package sbx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// decodeJSON finds the document that a verb printed and decodes it. Prose may come before it (the daemon being started,
// sbx-releases#347), and behind it that an update is available (sbxflow#75), each on lines of its own; any other text behind
// it is an error that gives its length and not its content. The document must be an object that has the key, or one of
// several written "a|b", with a value that is not null: no version is known to print null for "none" (fixtures/sbx). Key "[]"
// wants a list of objects. A key that comes twice in one object is an error: nobody knows which counts. So is a document, or
// a line before or behind it, that tells of an error: it is then not all of the answer.
func decodeJSON(out []byte, key string, into any) error {
	doc, err := findJSON(out, key)
	if err != nil {
		return err
	}
	key, failure := unsoundKey(doc)
	switch {
	case key != "" && failure:
		return malformed("JSON document says of itself %q", tailText(key, 80))
	case key != "":
		return malformed("JSON document has %q twice in one object", tailText(key, 80))
	}
	if err := json.Unmarshal(doc, into); err != nil {
		return malformed("JSON document: %v", err)
	}
	return nil
}

// findJSON gives the document of the kind that decodeJSON describes.
func findJSON(out []byte, key string) (json.RawMessage, error) {
	text := out
	if bytes.IndexByte(out, 0x1b) >= 0 || bytes.IndexByte(out, '\r') >= 0 || bytes.HasPrefix(out, []byte("\xef\xbb\xbf")) {
		text = []byte(clean(out))
	}
	if whole := bytes.TrimSpace(text); opensJSON(whole) && json.Valid(whole) { // the usual case
		if !isKind(whole, key) {
			return nil, wrongKind(key)
		}
		return whole, nil
	}
	// Each try reads until the text is no document any more. Garbage must not make that more than a few times the whole.
	effort := 4*len(text) + 64<<10
	other := false // a document of another kind was seen
	for rest := text; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte{'\n'})
		if said := string(bytes.TrimSpace(line[:min(len(line), maxPreambleLine)])); spoils(said) {
			return nil, spoilt(said)
		}
		if !opensJSON(bytes.TrimSpace(line)) {
			rest = after
			continue
		}
		if effort < 0 {
			return nil, malformed("too much that looks like the start of a JSON document and is none")
		}
		doc, read := leadingJSON(rest)
		effort -= read
		if doc == nil { // prose that starts as a document does
			rest = after
			continue
		}
		behind := bytes.TrimSpace(rest[len(doc):])
		if !isKind(doc, key) {
			other = true
			_, rest, _ = bytes.Cut(rest[len(doc):], []byte{'\n'})
			continue
		}
		if len(behind) > 0 && (!isTrailingNotice(string(behind)) || looksJSON(behind)) {
			return nil, &MalformedError{fmt.Sprintf("%d bytes of text behind the JSON document", len(behind)), excerpt(doc)}
		}
		return doc, nil
	}
	if other {
		return nil, wrongKind(key)
	}
	return nil, malformed("no JSON document")
}

const boxFrame = "│┃╭╮╰╯┌┐└┘─━═╔╗╚╝║"

// isTrailingNotice recognises what sbx may add once a day behind its output: that an update is available. The notice is
// boxed in some versions.
func isTrailingNotice(tail string) bool {
	if firstSpoiling(tail) != "" {
		return false
	}
	for line := range strings.Lines(tail) {
		line = strings.ToLower(strings.Trim(line, " \t\r\n|*-+="+boxFrame))
		if line == "" {
			continue
		}
		return strings.Contains(line, "update available") || strings.Contains(line, "new version") ||
			strings.Contains(line, "upgrade") || isWarning(line)
	}
	return true
}

func wrongKind(key string) error {
	if key == "[]" {
		return malformed("JSON document is no list of objects")
	}
	return malformed("JSON document is not an object with %q, or that is null", key)
}

// leadingJSON gives the document at the start of text, or nil, and how much was read to find out.
func leadingJSON(text []byte) (doc json.RawMessage, read int) {
	dec := json.NewDecoder(bytes.NewReader(text))
	err := dec.Decode(&doc)
	if err == nil {
		end := int(dec.InputOffset())
		return text[:end:end], end
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return nil, int(syntax.Offset)
	}
	return nil, len(text)
}

// opensJSON reports whether text starts as an object or a list of objects does: "[1] 4242" of a shell and "[WARN] x" of a
// log do not.
func opensJSON(text []byte) bool {
	if len(text) == 0 || text[0] != '{' && text[0] != '[' {
		return false
	}
	rest := bytes.TrimLeft(text[1:], " \t\r\n")
	if len(rest) == 0 {
		return true
	}
	if text[0] == '[' {
		return rest[0] == '{' || rest[0] == ']'
	}
	return rest[0] == '"' || rest[0] == '}'
}

// isKind reports whether a valid document is what decodeJSON wants for key.
func isKind(doc json.RawMessage, key string) bool {
	if key != "[]" {
		return slices.ContainsFunc(strings.Split(key, "|"), func(key string) bool { return hasKey(doc, key) })
	}
	var items []json.RawMessage
	if json.Unmarshal(doc, &items) != nil {
		return false
	}
	return !slices.ContainsFunc(items, func(item json.RawMessage) bool { return item[0] != '{' })
}

// hasKey reports whether doc is an object that has the key, and not with null. It reads no further than that.
func hasKey(doc json.RawMessage, key string) bool {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return false
		}
		if t == key {
			value, err := dec.Token()
			return err == nil && value != nil
		}
		var skip json.RawMessage
		if dec.Decode(&skip) != nil {
			return false
		}
	}
	return false
}

// unsoundKey gives a key that comes twice in one object of a valid document, or "". encoding/json would take the last and
// mix objects, and tells upper from lower case only where both are there. failure: it is a key of the document itself
// instead, by which that says that it is not all of the answer.
func unsoundKey(doc json.RawMessage) (key string, failure bool) {
	type frame struct {
		object bool
		keys   [][]byte
		more   map[string]bool // in place of keys, once they are many
	}
	const few = 16
	var stack []frame
	isKey := false // a string that comes now is a key
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '{', '[':
			stack = append(stack, frame{object: doc[i] == '{'})
			isKey = doc[i] == '{'
		case '}', ']':
			stack = stack[:len(stack)-1]
			isKey = false
		case ',':
			isKey = len(stack) > 0 && stack[len(stack)-1].object
		case ':':
			isKey = false
		case '"':
			end := i + 1
			for doc[end] != '"' {
				if doc[end] == '\\' {
					end++
				}
				end++
			}
			if isKey {
				name := doc[i+1 : end]
				if bytes.IndexByte(name, '\\') >= 0 {
					var plain string
					if json.Unmarshal(doc[i:end+1], &plain) == nil {
						name = []byte(plain)
					}
				}
				if len(stack) == 1 && isFailureKey(name) && saysSomething(doc[end+1:]) {
					return string(name), true
				}
				top := &stack[len(stack)-1]
				for _, have := range top.keys {
					if len(have) == len(name) && bytes.EqualFold(have, name) {
						return string(name), false
					}
				}
				switch {
				case top.more == nil && len(top.keys) < few:
					top.keys = append(top.keys, name)
				case top.more == nil:
					top.more = map[string]bool{}
					fallthrough
				default:
					folded := string(bytes.ToLower(name))
					if top.more[folded] {
						return string(name), false
					}
					top.more[folded] = true
				}
			}
			i = end
		}
	}
	return "", false
}

// isFailureKey: no version is known to have one of these in a document that is whole (fixtures/sbx).
func isFailureKey(key []byte) bool {
	switch strings.ToLower(string(key)) {
	case "error", "errors", "incomplete", "partial", "truncated":
		return true
	}
	return false
}

// saysSomething looks at the value behind a key: null, false and nothing say nothing.
func saysSomething(behind []byte) bool {
	value := bytes.TrimLeft(behind, " \t\r\n:")
	if len(value) > 1 && (value[0] == '[' || value[0] == '{') {
		next := bytes.TrimLeft(value[1:], " \t\r\n")
		return next[0] != ']' && next[0] != '}'
	}
	return !slices.ContainsFunc([]string{"null", "false", `""`}, func(nothing string) bool { return bytes.HasPrefix(value, []byte(nothing)) })
}

// looksJSON reports whether some line of out starts as a document does. Text that goes on like a table does not.
func looksJSON(out []byte) bool {
	for line := range bytes.Lines(out) {
		if bytes.IndexByte(line[:min(len(line), maxPreambleLine)], 0x1b) >= 0 || line[0] == 0xef {
			line = []byte(clean(line[:min(len(line), maxPreambleLine)]))
		}
		if opensJSON(bytes.TrimSpace(line)) {
			return true
		}
	}
	return false
}
