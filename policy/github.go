package policy

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// GitHub says where one GitHub is. The zero GitHub is nowhere; take [ParseGitHub].
type GitHub struct {
	Host    string // of the web and of git, with its port if it has one
	API     string // base URL of REST, with trailing slash
	Uploads string // base URL of uploads, with trailing slash
}

var gitHubHost = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?$`)

// ParseGitHub returns where the GitHub is whose host name a person wrote: "github.com", a GHE.com name such as
// "octo.ghe.com" (data residency; its API is api.octo.ghe.com), or the host of a GitHub Enterprise Server, whose API is
// under /api/v3 (github/docs, November 2026). An empty host means github.com. The error matches [ErrRole].
func ParseGitHub(host string) (GitHub, error) {
	host = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(host)), ".")
	switch {
	case host == "", host == "github.com", host == "www.github.com", host == "api.github.com":
		return GitHub{"github.com", "https://api.github.com/", "https://uploads.github.com/"}, nil
	case !gitHubHost.MatchString(host):
		return GitHub{}, fmt.Errorf("%w for GitHub host %q: it is no host name", ErrRole, clip(host))
	}
	if name, ok := strings.CutSuffix(host, ".ghe.com"); ok {
		name = strings.TrimPrefix(name, "api.")
		if strings.Contains(name, ".") {
			return GitHub{}, fmt.Errorf("%w for GitHub host %q: no GHE.com name: SUBDOMAIN.ghe.com", ErrRole, clip(host))
		}
		return GitHub{name + ".ghe.com", "https://api." + name + ".ghe.com/", "https://uploads." + name + ".ghe.com/"}, nil
	}
	return GitHub{host, "https://" + host + "/api/v3/", "https://" + host + "/api/uploads/"}, nil
}

// APIHost is the host of the REST API, with its port if it has one.
func (g GitHub) APIHost() string { return hostOfBase(g.API) }

// APIPath is the path below which the REST API stands, without a slash at its end: "" or "/api/v3".
func (g GitHub) APIPath() string {
	_, path, _ := strings.Cut(strings.TrimPrefix(g.API, "https://"), "/")
	return strings.TrimSuffix("/"+path, "/")
}

// UploadsHost is the host of uploads, with its port if it has one.
func (g GitHub) UploadsHost() string { return hostOfBase(g.Uploads) }

// Hosts are the hosts that work on a repository needs: REST and git. A GitHub Enterprise Server has one for both.
func (g GitHub) Hosts() []string {
	if g.APIHost() == g.Host {
		return []string{g.Host}
	}
	return []string{g.APIHost(), g.Host}
}

func hostOfBase(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Host
}
