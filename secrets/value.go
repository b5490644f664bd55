package secrets

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Mask is what a Value prints as, and what a Redactor puts in its place.
const Mask = "***"

// Value is a credential. The zero Value means "absent". It prints as [Mask] under every verb, in JSON, text
// and slog output; [Value.Reveal] is the only way to the text.
//
// It holds a pointer because fmt prints unexported fields of a surrounding struct by reflection, without asking
// their methods: a pointer prints as an address there, a string would print as itself.
type Value struct{ text *string }

// New returns the Value of s with one trailing line end removed (CR LF or LF), as files and commands print one.
// An empty s gives the zero Value: an empty credential is an absent one.
func New(s string) Value {
	s = strings.TrimSuffix(s, "\n")
	s = strings.TrimSuffix(s, "\r")
	if s == "" {
		return Value{}
	}
	return Value{&s}
}

// Reveal returns the text. Callers write it to a process's standard input, a 0600 file or an outgoing header, and nowhere else.
func (v Value) Reveal() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

// IsZero reports whether there is no value.
func (v Value) IsZero() bool { return v.text == nil }

// Equal reports whether both hold the same text, in constant time for equal lengths.
func (v Value) Equal(o Value) bool {
	return subtle.ConstantTimeCompare([]byte(v.Reveal()), []byte(o.Reveal())) == 1
}

// Reader returns the text as it is, with no line end added: some stores keep one.
func (v Value) Reader() io.Reader { return strings.NewReader(v.Reveal()) }

// String returns [Mask], or nothing for the zero Value.
func (v Value) String() string {
	if v.IsZero() {
		return ""
	}
	return Mask
}

// Format prints [Mask] under every verb: String alone would leak under %x and %d.
func (v Value) Format(f fmt.State, _ rune) { io.WriteString(f, v.String()) }

// GoString returns [Mask].
func (v Value) GoString() string { return v.String() }

// LogValue returns [Mask] for slog.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalText returns [Mask], for JSON, YAML and friends.
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
