package workspace

import (
	"net/url"
	"strings"
)

// Origin is the repository on a GitHub-like server that a checkout was cloned from. The zero Origin means none.
type Origin struct {
	Host  string // lower case, without port or user
	Owner string
	Name  string // without .git
}

// Slug returns "OWNER/NAME", or "" for the zero Origin.
func (o Origin) Slug() string {
	if o == (Origin{}) {
		return ""
	}
	return o.Owner + "/" + o.Name
}

// ParseOrigin reads a remote's URL in any of git's spellings: https, ssh, git and scp-like (git@host:owner/name.git). It
// reports false for local paths and for anything whose path is not exactly OWNER/NAME. Credentials in the URL are dropped.
func ParseOrigin(remote string) (Origin, bool) {
	var host, path string
	if scheme, _, ok := strings.Cut(remote, "://"); ok {
		u, err := url.Parse(remote)
		if err != nil {
			return Origin{}, false
		}
		switch strings.ToLower(scheme) {
		case "https", "http", "ssh", "git", "git+ssh":
		default:
			return Origin{}, false
		}
		host, path = u.Hostname(), u.Path
	} else {
		before, after, ok := strings.Cut(remote, ":")
		if !ok || strings.Contains(before, "/") {
			return Origin{}, false
		}
		if i := strings.LastIndex(before, "@"); i >= 0 {
			before = before[i+1:]
		}
		host, path = before, after
	}
	owner, name, ok := strings.Cut(strings.Trim(path, "/"), "/")
	name = strings.TrimSuffix(name, ".git")
	if !ok || !slugPart(owner) || !slugPart(name) || len(host) < 2 || strings.ContainsAny(host, " \t\r\n") {
		return Origin{}, false
	}
	return Origin{Host: strings.ToLower(host), Owner: owner, Name: name}, true
}

// slugPart reports whether s can be an owner or repository name on GitHub.
func slugPart(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > 100 || strings.HasPrefix(s, "-") {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	}) < 0
}
