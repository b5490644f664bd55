package sbx

import (
	"bytes"
	"strings"
)

// IsBlockPage reports whether an answer seen inside a sandbox is the page by which an engine's proxy says that policy
// blocks the host: status 403 with one of the known openings (sbx 0.33 to 0.47), whatever host was asked.
func IsBlockPage(status int, body []byte) bool {
	if status != 403 {
		return false
	}
	body = bytes.TrimLeft(body, "\r\n\t ")
	for _, opening := range []string{"Blocked by network policy", "Blocked by local rule", "Blocked by org policy", "Approval required for "} {
		if bytes.HasPrefix(body, []byte(opening)) {
			return true
		}
	}
	return false
}

// IsBlockedConnection reports whether a failure of curl inside a sandbox is how a block looks without a page: the name
// is not resolved (exit 6; sbx 0.33, sbx-releases#611), the proxy refuses the tunnel (56 or 97 with "CONNECT"), or the
// connection is closed without an answer (52, transparent proxy).
func IsBlockedConnection(curlExit int, stderr string) bool {
	switch curlExit {
	case 6, 52:
		return true
	case 56, 97:
		return strings.Contains(stderr, "CONNECT") && strings.Contains(stderr, "403")
	}
	return false
}
