package sbx

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxJSONTries bounds how many lines that look like the start of a document are tried.
const maxJSONTries = 8

// firstJSON finds the JSON document that a verb printed. Text may come before it (the daemon being started,
// sbx-releases#347) and an update notice behind it (sbxflow#75); the lines before are returned as notes. Any other text
// behind it is an error that gives its length and not its content.
func firstJSON(out []byte) (doc json.RawMessage, notes []string, err error) {
	text := out
	if bytes.IndexByte(out, 0x1b) >= 0 || bytes.IndexByte(out, '\r') >= 0 || bytes.HasPrefix(out, []byte("\xef\xbb\xbf")) {
		text = []byte(clean(out))
	}
	if whole := bytes.TrimSpace(text); len(whole) > 0 && (whole[0] == '{' || whole[0] == '[') && json.Valid(whole) {
		return whole, nil, nil // nothing but the document: the usual case, without a copy
	}
	tries := 0
	for rest := text; len(rest) > 0 && tries < maxJSONTries; {
		line, after, _ := bytes.Cut(rest, []byte{'\n'})
		trimmed := bytes.TrimSpace(line)
		if len(trimmed) == 0 || trimmed[0] != '{' && trimmed[0] != '[' {
			if len(trimmed) > 0 {
				notes = append(notes, string(trimmed))
			}
			rest = after
			continue
		}
		tries++
		dec := json.NewDecoder(bytes.NewReader(rest))
		if dec.Decode(&doc) != nil {
			notes = append(notes, string(trimmed))
			rest = after
			continue
		}
		tail := bytes.TrimSpace(rest[dec.InputOffset():])
		if len(tail) > 0 && !isTrailingNotice(string(tail)) {
			return nil, notes, malformed("%d bytes of text behind the JSON document", len(tail))
		}
		return doc, notes, nil
	}
	return nil, notes, malformed("no JSON document in %d bytes", len(out))
}

// isTrailingNotice recognises what sbx may add once a day behind its output: that an update is available. The notice is
// boxed in some versions.
func isTrailingNotice(tail string) bool {
	for line := range strings.Lines(tail) {
		line = strings.ToLower(strings.Trim(line, " \t\r\n│┃|╭╮╰╯┌┐└┘─━═╔╗╚╝║*-+="))
		if line == "" {
			continue
		}
		return strings.Contains(line, "update available") || strings.Contains(line, "new version") ||
			strings.Contains(line, "upgrade") || isWarning(line)
	}
	return true
}

// decodeJSON finds the document in out and decodes it. The document must be an object that has the key with a value that is
// not null: no version is known to print null for "none" (fixtures/sbx). Key "" means that any object or array will do.
func decodeJSON(out []byte, key string, into any) error {
	// Nothing but the document is the usual case; then Unmarshal's own check is the only one. It leaves into alone if the
	// text is no document.
	if whole := bytes.TrimSpace(out); len(whole) > 0 && (whole[0] == '{' || whole[0] == '[') && json.Unmarshal(whole, into) == nil {
		if key != "" && !hasKey(whole, key) {
			return malformed("JSON document is not an object with %q, or that is null", key)
		}
		return nil
	}
	doc, _, err := firstJSON(out)
	if err != nil {
		return err
	}
	if key != "" && !hasKey(doc, key) {
		return malformed("JSON document is not an object with %q, or that is null", key)
	}
	if err := json.Unmarshal(doc, into); err != nil {
		return malformed("JSON document: %v", err)
	}
	return nil
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

// looksJSON reports whether a document starts on some line of out that nothing but known text precedes.
func looksJSON(out []byte) bool {
	for raw := range bytes.Lines(out) {
		line := strings.TrimSpace(clean(raw[:min(len(raw), maxPreambleLine)]))
		if line == "" || isPreamble(line) || isWarning(line) {
			continue
		}
		return line[0] == '{' || line[0] == '['
	}
	return false
}
