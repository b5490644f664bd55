package github

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/sbxpair/sbxpair/policy"
)

// Endpoint says where one GitHub is. The zero Endpoint is not usable; take [DotCom] or [ParseEndpoint].
type Endpoint struct{ at policy.GitHub }

// DotCom is github.com.
func DotCom() Endpoint {
	at, _ := policy.ParseGitHub("") // which is never refused
	return Endpoint{at}
}

var hostForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?$`)

// ParseEndpoint returns the Endpoint of a GitHub host name as a person writes it; see [policy.ParseGitHub].
func ParseEndpoint(host string) (Endpoint, error) {
	at, err := policy.ParseGitHub(host)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%w: %w", ErrOutOfBounds, err)
	}
	return Endpoint{at}, nil
}

// Host is the name of the web and git host, with its port if it has one.
func (e Endpoint) Host() string { return e.at.Host }

// APIHost is the host of the REST API.
func (e Endpoint) APIHost() string { return e.at.APIHost() }

// API is the base URL of the REST API, with a slash at its end.
func (e Endpoint) API() string { return e.at.API }

// Hosts are the hosts that the github sandbox has to reach for everything this package does: git and REST. They are the same
// one name on a GitHub Enterprise Server. The policy of the sandbox is made from them.
func (e Endpoint) Hosts() []string { return e.at.Hosts() }

// CloneURL is the https URL of a repository for git. It never holds a credential.
func (e Endpoint) CloneURL(r Repo) string { return "https://" + e.at.Host + "/" + r.String() + ".git" }

// WebURL is the address of a repository for people.
func (e Endpoint) WebURL(r Repo) string { return "https://" + e.at.Host + "/" + r.String() }

func (e Endpoint) allows(host string) bool {
	return host != "" && (host == e.at.APIHost() || host == e.at.UploadsHost())
}

// Repo names a repository.
type Repo struct {
	Owner string `json:"owner"`
	Name  string `json:"name"`
}

var (
	ownerForm = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}|[A-Za-z0-9-]{0,30}_[A-Za-z0-9]{1,8})$`)
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

// ParseRepo reads "OWNER/NAME". It refuses names that GitHub cannot have, so that a Repo is safe in a URL and a path.
func ParseRepo(s string) (Repo, error) {
	owner, name, ok := strings.Cut(s, "/")
	name = strings.TrimSuffix(name, ".git")
	r := Repo{owner, name}
	if !ok || !r.valid() {
		return Repo{}, fmt.Errorf("%w: %q is no repository: OWNER/NAME", ErrOutOfBounds, oneLine(s, 80))
	}
	return r, nil
}

// ParseRemote reads a remote's URL as git has it (https, ssh or scp form) and returns its host and repository. User and
// password in the URL are dropped.
func ParseRemote(remote string) (host string, r Repo, err error) {
	s := strings.TrimSpace(remote)
	bad := fmt.Errorf("%w: the remote is no GitHub repository URL", ErrOutOfBounds)
	var path string
	if !strings.Contains(s, "://") {
		before, after, ok := strings.Cut(s, ":")
		if !ok || strings.Contains(before, "/") {
			return "", Repo{}, bad
		}
		host, path = before[strings.LastIndex(before, "@")+1:], after
	} else {
		u, perr := url.Parse(s)
		if perr != nil || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh" && u.Scheme != "git" {
			return "", Repo{}, bad
		}
		host, path = u.Host, u.Path
		if u.Scheme == "ssh" {
			host = u.Hostname()
		}
	}
	host = strings.ToLower(host)
	if !hostForm.MatchString(host) {
		return "", Repo{}, bad
	}
	r, err = ParseRepo(strings.Trim(path, "/"))
	if err != nil {
		return "", Repo{}, bad
	}
	return host, r, nil
}

func (r Repo) valid() bool {
	return ownerForm.MatchString(r.Owner) && nameForm.MatchString(r.Name) && r.Name != "." && r.Name != ".."
}

// String is OWNER/NAME.
func (r Repo) String() string { return r.Owner + "/" + r.Name }

// Equal compares as GitHub does: without case.
func (r Repo) Equal(o Repo) bool {
	return strings.EqualFold(r.Owner, o.Owner) && strings.EqualFold(r.Name, o.Name)
}
