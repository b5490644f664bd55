package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

// client takes an answer. Each piece goes on at once: an answer is read while it is written. When nobody takes it any more,
// the rest is read for its usage all the same.
type client struct {
	w       io.Writer
	control *http.ResponseController
	gone    error
}

func (c *client) Write(p []byte) (int, error) {
	if c.gone == nil {
		c.control.SetWriteDeadline(time.Now().Add(readTime))
		_, err := c.w.Write(p)
		c.gone = errors.Join(err, c.control.Flush())
	}
	return len(p), nil
}

// maxEvent bounds one event of a stream, and a whole answer, as far as they are read for their usage.
const maxEvent = 16 << 20

// meter reads the usage off an answer that passes by.
type meter struct {
	read    func(event []byte, into *Usage)
	streams bool
	usage   *Usage
	held    []byte
	lost    bool // the line under way was too long
}

func (m *meter) Write(p []byte) (int, error) {
	if m.read == nil {
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		line, after, ended := rest, []byte(nil), false
		if m.streams {
			if at := bytes.IndexByte(rest, '\n'); at >= 0 {
				line, after, ended = rest[:at], rest[at+1:], true
			}
		}
		if m.lost = m.lost || len(m.held)+len(line) > maxEvent; m.lost {
			m.held = nil
		} else {
			m.held = append(m.held, line...)
		}
		if ended {
			m.event()
		}
		rest = after
	}
	return len(p), nil
}

// event reads a line that is whole.
func (m *meter) event() {
	if data, is := bytes.CutPrefix(m.held, []byte("data:")); is && !m.lost {
		m.read(bytes.TrimSpace(data), m.usage)
	}
	m.held, m.lost = m.held[:0], false
}

func (m *meter) end() {
	switch {
	case m.read == nil:
	case m.streams:
		m.event()
	case !m.lost:
		m.read(m.held, m.usage)
	}
}
