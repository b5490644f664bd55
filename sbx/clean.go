package sbx

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean removes what terminals need and parsers do not: escape sequences, carriage returns, other control
// characters, a byte order mark. Invalid UTF-8 becomes the replacement character. Output that was asked for as data
// has come with all of these (claude-code#60269).
func clean(in []byte) string {
	in = bytes.TrimPrefix(in, []byte("\xef\xbb\xbf"))
	plain := true
	for _, c := range in {
		if c != '\n' && (c < 0x20 && c != '\t' || c >= 0x7f) {
			plain = false
			break
		}
	}
	if plain {
		return string(in)
	}
	var b strings.Builder
	b.Grow(len(in))
	for i := 0; i < len(in); {
		c := in[i]
		switch {
		case c == 0x1b:
			i += escapeLen(in[i:])
		case c == '\n' || c == '\t' || c >= 0x20 && c < 0x7f:
			b.WriteByte(c)
			i++
		case c < 0x20 || c == 0x7f:
			i++
		default:
			r, n := utf8.DecodeRune(in[i:])
			// Format characters (zero width, direction marks) would make two names look alike.
			if !unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Cc, r) {
				b.WriteRune(r)
			}
			i += n
		}
	}
	return b.String()
}

// maxEscape bounds the search for the end of a control string, so that garbage stays linear.
const maxEscape = 4096

// escapeLen returns the length of the escape sequence at the start of in, which begins with ESC.
func escapeLen(in []byte) int {
	if len(in) < 2 {
		return 1
	}
	switch in[1] {
	case '[': // CSI: parameters and intermediates, then one final byte
		i := 2
		for ; i < len(in) && i < 64; i++ {
			if in[i] >= 0x40 && in[i] <= 0x7e {
				return i + 1
			}
			if in[i] < 0x20 || in[i] > 0x3f {
				break
			}
		}
		return i
	case ']', 'P', '^', '_': // OSC and other strings: up to BEL or ESC \
		i := 2
		for ; i < len(in) && i < maxEscape; i++ {
			if in[i] == 0x07 {
				return i + 1
			}
			if in[i] == 0x1b {
				if i+1 < len(in) && in[i+1] == '\\' {
					return i + 2
				}
				return i
			}
			if in[i] == '\n' {
				break
			}
		}
		return i
	case '(', ')', '*', '+', '#', ' ':
		return min(3, len(in))
	}
	return 2
}

// trimError returns the message of an engine's error text: warnings before it and advice after it cut off, the prefix
// (which changed its case with every other version) removed.
func trimError(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || isWarning(line) || isPreamble(line) {
			continue
		}
		return strings.TrimSpace(cutErrorPrefix(line))
	}
	return ""
}

func hasErrorPrefix(line string) bool { return cutErrorPrefix(line) != line }

func cutErrorPrefix(line string) string {
	const prefix = "error:"
	if len(line) >= len(prefix) && strings.EqualFold(line[:len(prefix)], prefix) {
		return line[len(prefix):]
	}
	return line
}

// isWarning recognises lines that accompany success as well as failure (sbx-releases#402, sbx-go-sdk 828c32f).
func isWarning(line string) bool {
	lower := strings.ToLower(line[:min(len(line), 12)])
	return strings.HasPrefix(lower, "warn:") || strings.HasPrefix(lower, "warning:") ||
		strings.HasPrefix(lower, "note:") || strings.HasPrefix(lower, "deprecated:")
}

// saysIncomplete recognises an error or a warning that says of the output beside it that it is not everything.
func saysIncomplete(line string) bool {
	if !hasErrorPrefix(line) && !isWarning(line) {
		return false
	}
	lower := strings.ToLower(line)
	return slices.ContainsFunc([]string{"incomplete", "not complete", "partial", "truncated", "not all "}, func(word string) bool {
		return strings.Contains(lower, word)
	})
}

// spoils reports whether a line within what a verb printed makes it no answer. sbx reports its failures behind a prefix.
func spoils(line string) bool { return hasErrorPrefix(line) || saysIncomplete(line) }

// firstSpoiling gives the first such line of text, or "".
func firstSpoiling(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); spoils(line) {
			return line
		}
	}
	return ""
}

func spoilt(line string) error {
	return malformed("an error within the output: %s", tailText(line, 200))
}

// isPreamble recognises what a verb prints when it had to start the daemon first (sbx-releases#347).
func isPreamble(line string) bool {
	return line == "Starting sandboxd daemon..." ||
		strings.HasPrefix(line, "Daemon started (PID: ") ||
		strings.HasPrefix(line, "Logs: ") && strings.HasSuffix(line, "daemon.log") ||
		strings.HasPrefix(line, "No keychain detected")
}
