package egress

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"
)

// errHead matches a request that is not read any further: its framing or form is not what it must be.
var errHead = errors.New("bad request")

// A headError says what is wrong with a request's line or header, and the status to answer with.
type headError struct {
	status int
	why    string
}

func (e *headError) Error() string { return errHead.Error() + ": " + e.why }
func (e *headError) Unwrap() error { return errHead }

func badHead(why string) error { return &headError{http.StatusBadRequest, why} }

// readRequest reads the next request's line and header; its body, if any, is still in br. The bytes are checked
// before they are parsed, because net/http mends what two readers could understand differently. It also forgets the
// Host header where the request's target has a host; hostHeader is that header, "" if there is none.
func readRequest(c net.Conn, br *bufio.Reader) (req *http.Request, hostHeader string, err error) {
	c.SetReadDeadline(time.Now().Add(idleTimeout))
	if _, err := br.Peek(1); err != nil {
		return nil, "", err
	}
	c.SetReadDeadline(time.Now().Add(headTimeout))
	head, err := peekHead(br)
	if err != nil {
		return nil, "", err
	}
	hostHeader, err = checkHead(head)
	if err != nil {
		return nil, "", err
	}
	req, err = http.ReadRequest(br)
	if err != nil {
		return nil, "", badHead("request cannot be parsed")
	}
	return req, hostHeader, c.SetReadDeadline(time.Time{})
}

// peekHead waits until br holds a whole header and returns it, its empty line included.
func peekHead(br *bufio.Reader) ([]byte, error) {
	for {
		head, err := br.Peek(br.Buffered())
		if err != nil {
			return nil, err
		}
		if end := bytes.Index(head, []byte("\r\n\r\n")); end >= 0 {
			return head[:end+4], nil
		}
		// Told apart early: a reader that accepts bare line ends would see the end here.
		if bytes.Contains(head, []byte("\n\n")) || bytes.Contains(head, []byte("\n\r\n")) {
			return nil, badHead("line ends must be CR LF")
		}
		if len(head) >= maxHead {
			return nil, &headError{http.StatusRequestHeaderFieldsTooLarge, "header is too large"}
		}
		if _, err := br.Peek(len(head) + 1); err != nil {
			return nil, err
		}
	}
}

// checkHead refuses what RFC 9112 lets a proxy refuse and what has been used to smuggle a second request. It returns
// the Host header.
func checkHead(head []byte) (host string, err error) {
	lines := strings.Split(string(head[:len(head)-4]), "\r\n")
	method, rest, ok := strings.Cut(lines[0], " ")
	uri, version, ok2 := strings.Cut(rest, " ")
	switch {
	case !ok || !ok2 || method == "" || uri == "":
		return "", badHead("request line")
	case version != "HTTP/1.1" && version != "HTTP/1.0":
		return "", &headError{http.StatusHTTPVersionNotSupported, "HTTP version"}
	case !isToken(method):
		return "", badHead("method")
	}
	if !isTarget(uri) {
		return "", badHead("character in the request target")
	}
	count := map[string]int{}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) { // a folded line begins with a space, and a name may not end with one
			return "", badHead("header line")
		}
		for i := range len(value) {
			if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
				return "", badHead("control character in a header")
			}
		}
		name, value = strings.ToLower(name), strings.Trim(value, " \t")
		count[name]++
		switch name {
		case "host":
			host = value
		case "content-length":
			if value == "" || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
				return "", badHead("Content-Length")
			}
		case "transfer-encoding":
			if !strings.EqualFold(value, "chunked") {
				return "", &headError{http.StatusNotImplemented, "only the chunked transfer coding is known"}
			}
		}
	}
	switch {
	case count["host"] > 1, count["host"] == 0 && version == "HTTP/1.1" && method != http.MethodConnect:
		return "", badHead("exactly one Host header is needed")
	case count["content-length"] > 1 || count["transfer-encoding"] > 1:
		return "", badHead("repeated framing header")
	case count["content-length"] > 0 && count["transfer-encoding"] > 0:
		return "", badHead("both Content-Length and Transfer-Encoding")
	case count["transfer-encoding"] > 0 && version == "HTTP/1.0":
		return "", badHead("Transfer-Encoding in HTTP/1.0")
	}
	return host, nil
}

// isTarget reports whether a request target is made of characters that every reader takes alike.
func isTarget(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return true
}

// cleanHop removes the headers that belong to one hop: the listed ones and those that Connection names.
func cleanHop(h http.Header) {
	for _, v := range h.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			if name = strings.TrimSpace(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range []string{
		"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade",
	} {
		h.Del(name)
	}
}

// upgradeOf returns the protocol a message wants to change to, "" for none.
func upgradeOf(h http.Header) string {
	for _, v := range h.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(name), "upgrade") {
				return h.Get("Upgrade")
			}
		}
	}
	return ""
}
