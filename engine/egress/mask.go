package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/sbxpair/sbxpair/secrets"
)

// maskBody returns the body of an answer with the credentials of its request overwritten, should the server send them
// back: by as many asterisks, so that an announced length holds. It holds back no more than what may be the beginning of
// one. Compressed bodies pass as they are; they were not asked for.
func maskBody(resp *http.Response, used []secrets.Value) io.ReadCloser {
	if len(used) == 0 || resp.Body == nil || resp.Body == http.NoBody {
		return resp.Body
	}
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return resp.Body
	}
	m := &maskedBody{ReadCloser: resp.Body}
	for _, v := range used {
		raw := v.Reveal()
		quoted, _ := json.Marshal(raw) // a string always marshals
		for _, form := range []string{raw, string(quoted[1 : len(quoted)-1]), url.QueryEscape(raw), url.PathEscape(raw)} {
			if len(form) >= minMask && !m.has(form) {
				m.needles = append(m.needles, []byte(form))
				m.longest = max(m.longest, len(form))
			}
		}
	}
	if m.needles == nil {
		return resp.Body
	}
	return m
}

// minMask is the shortest value that is looked for: a shorter one is in many an innocent body.
const minMask = 8

type maskedBody struct {
	io.ReadCloser
	needles [][]byte
	longest int
	// in[from:] is ready to be read, but for the last held bytes, which may be the beginning of a needle.
	in         []byte
	from, held int
	err        error
}

func (m *maskedBody) has(form string) bool {
	for _, n := range m.needles {
		if string(n) == form {
			return true
		}
	}
	return false
}

func (m *maskedBody) Read(p []byte) (int, error) {
	for len(m.in)-m.held == m.from {
		if m.err != nil {
			return 0, m.err
		}
		m.fill(len(p))
	}
	n := copy(p, m.in[m.from:len(m.in)-m.held])
	m.from += n
	return n, nil
}

// fill reads the next piece behind what is held back, and masks.
func (m *maskedBody) fill(size int) {
	size = max(size, 4<<10) + m.longest
	if cap(m.in) < size {
		m.in = append(make([]byte, 0, size), m.in[len(m.in)-m.held:]...)
	} else {
		m.in = append(m.in[:0], m.in[len(m.in)-m.held:]...)
	}
	n, err := m.ReadCloser.Read(m.in[len(m.in):cap(m.in)])
	m.in = m.in[:len(m.in)+n]
	m.from, m.held, m.err = 0, 0, err
	for _, needle := range m.needles {
		for rest := m.in; ; {
			i := bytes.Index(rest, needle)
			if i < 0 {
				break
			}
			for j := range needle {
				rest[i+j] = '*'
			}
			rest = rest[i+len(needle):]
		}
	}
	if err == nil {
		m.held = m.beginning()
	} else if !errors.Is(err, io.EOF) {
		m.held = m.beginning() // a body that breaks off must not end with most of a value
		m.in = m.in[:len(m.in)-m.held]
		m.held = 0
	}
}

// beginning returns the length of the longest end of the piece that a needle begins with.
func (m *maskedBody) beginning() int {
	longest := 0
	for _, needle := range m.needles {
		tail := m.in[len(m.in)-min(len(needle)-1, len(m.in)):]
		for len(tail) > longest {
			if bytes.HasPrefix(needle, tail) {
				longest = len(tail)
				break
			}
			next := bytes.IndexByte(tail[1:], needle[0])
			if next < 0 {
				break
			}
			tail = tail[1+next:]
		}
	}
	return longest
}
