package sbx

import (
	"path/filepath"
	"strings"
)

// samePath compares a path of the engine's with one of ours; the engine may have resolved links (/tmp on macOS) or
// speak of /c/x where the host says C:\x.
func samePath(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) || guestPath(b) == a {
		return true
	}
	resolved, err := filepath.EvalSymlinks(b)
	return err == nil && (filepath.Clean(a) == resolved || guestPath(resolved) == a)
}

// guestPath gives the path at which a sandbox sees a host path: the same, but C:\x is /c/x (sbx on Windows).
func guestPath(host string) string {
	if len(host) >= 2 && host[1] == ':' && (host[0]|0x20) >= 'a' && (host[0]|0x20) <= 'z' {
		return "/" + string(host[0]|0x20) + strings.ReplaceAll(host[2:], `\`, "/")
	}
	return host
}

// GuestPath gives the path at which a sandbox sees a workspace's host path: the same path, except that on Windows C:\x
// is seen as /c/x.
func GuestPath(host string) string { return guestPath(host) }
