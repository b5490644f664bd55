package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// minRedact is the shortest text that a Redactor masks. Below it a mask would hit innocent words: an empty or
// one-letter secret would turn every line into asterisks (k6 issue 5577).
const minRedact = 6

// A Redactor masks credential values in text, in the forms that encoders give them: raw, JSON-escaped, base64 and
// base64url at any alignment (so also inside an encoded "user:token"), hex and percent-encoded. Values shorter than
// six bytes are ignored. The zero Redactor and a nil one mask nothing. It is safe for concurrent use.
type Redactor struct {
	byFirst [256][][]byte // needles by their first byte, longest first
}

// NewRedactor returns a Redactor for the given values; absent ones are skipped.
func NewRedactor(values ...Value) *Redactor {
	r := &Redactor{}
	seen := map[string]bool{}
	for _, v := range values {
		for _, form := range forms(v.Reveal()) {
			if len(form) < minRedact || seen[form] {
				continue
			}
			seen[form] = true
			r.byFirst[form[0]] = append(r.byFirst[form[0]], []byte(form))
		}
	}
	for _, list := range r.byFirst {
		slices.SortFunc(list, func(a, b []byte) int { return len(b) - len(a) })
	}
	return r
}

// forms lists the texts in which s can show up.
func forms(s string) []string {
	if len(s) < minRedact {
		return nil
	}
	var everyLower, everyUpper strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&everyLower, "%%%02x", s[i])
		fmt.Fprintf(&everyUpper, "%%%02X", s[i])
	}
	quoted, _ := json.Marshal(s) // a string always marshals
	out := []string{
		s, string(quoted[1 : len(quoted)-1]),
		hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s))),
		url.QueryEscape(s), url.PathEscape(s), everyLower.String(), everyUpper.String(),
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			// The characters that do not depend on what stands before or behind the value in the encoded text.
			text := enc.EncodeToString(append(make([]byte, shift), s...))
			text = text[(shift*8+5)/6 : (shift+len(s))*8/6]
			out = append(out, text)
		}
	}
	return out
}

// String returns s with every known value masked.
func (r *Redactor) String(s string) string {
	out, _ := r.mask(nil, []byte(s), true)
	return string(out)
}

// Bytes returns a masked copy of b.
func (r *Redactor) Bytes(b []byte) []byte {
	out, _ := r.mask(nil, b, true)
	return out
}

// Contains reports whether b holds a known value in any form.
func (r *Redactor) Contains(b []byte) bool { return !bytes.Equal(r.Bytes(b), b) }

// mask appends in with its values masked to out. Unless final, it stops before a tail that may be the start of a
// value, and returns that tail.
func (r *Redactor) mask(out, in []byte, final bool) (masked, tail []byte) {
	if r == nil {
		return append(out, in...), nil
	}
	start := 0 // in[start:i] is to be copied as it is
	for i := 0; i < len(in); {
		list := r.byFirst[in[i]]
		if list == nil {
			i++
			continue
		}
		n, partial := match(list, in[i:])
		switch {
		case partial && !final:
			return append(out, in[start:i]...), in[i:]
		case n > 0:
			out = append(append(out, in[start:i]...), Mask...)
			i += n
			start = i
		default:
			i++
		}
	}
	return append(out, in[start:]...), nil
}

// match returns the length of the longest needle that in starts with, and whether a needle longer than that could
// still match once more of in is known.
func match(needles [][]byte, in []byte) (n int, partial bool) {
	for _, needle := range needles {
		if len(needle) > len(in) {
			partial = partial || bytes.HasPrefix(needle, in)
		} else if bytes.HasPrefix(in, needle) {
			return len(needle), partial
		}
	}
	return 0, partial
}

// Writer returns a writer that passes masked text on to w. It holds back only a tail that may be the start of a
// value, so that a value which arrives one byte at a time is masked too; Close passes the tail on. It is safe for
// concurrent use.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser { return &redactWriter{r: r, w: w} }

type redactWriter struct {
	mu   sync.Mutex
	r    *Redactor
	w    io.Writer
	tail []byte
}

func (rw *redactWriter) Write(p []byte) (int, error) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	in := append(rw.tail, p...)
	out, tail := rw.r.mask(nil, in, false)
	rw.tail = bytes.Clone(tail)
	if len(out) > 0 {
		if _, err := rw.w.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (rw *redactWriter) Close() error {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	out, _ := rw.r.mask(nil, rw.tail, true)
	rw.tail = nil
	if len(out) == 0 {
		return nil
	}
	_, err := rw.w.Write(out)
	return err
}
