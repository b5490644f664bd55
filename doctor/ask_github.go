package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// expirySoon is when an end of the token is worth a word.
const expirySoon = 7 * 24 * time.Hour

// askGitHub asks with the token of the github sandbox, from inside it, and only what changes nothing.
func (s *scratch) askGitHub(ctx context.Context) []Check {
	box := s.pair.GitHub
	endpoint, err := github.ParseEndpoint(s.Config.GitHub.Host)
	repo, repoErr := github.ParseRepo(s.plan.Repo)
	if err = errors.Join(err, repoErr); err != nil {
		c := undecided(err)
		c.ID = "github.login"
		return []Check{c}
	}
	who := &identity{}
	client := github.NewClient(box, endpoint, github.WithVersion(s.Version), github.WithLimits(github.Limits{Attempts: 2, Backoff: time.Second, MaxWait: 5 * time.Second}))
	defer client.Close()
	type question struct {
		id string
		do func(context.Context) (Check, error)
	}
	login := s.question(ctx, "github.login", func(ctx context.Context) (Check, error) { return who.ask(ctx, box, endpoint, repo) })
	checks := []Check{
		login,
		s.question(ctx, "clock.github", func(ctx context.Context) (Check, error) { return s.clock(ctx, box) }),
		s.question(ctx, "trust.git", func(ctx context.Context) (Check, error) { return s.trust(ctx, box, gitTrust(endpoint.CloneURL(repo))) }),
	}
	for _, q := range []question{
		{"github.expiry", func(context.Context) (Check, error) { return who.expiry(time.Now()) }},
		{"github.scopes", func(context.Context) (Check, error) { return who.scopes(secrets.Classify(s.creds.GitHub)) }},
		{"github.repository", func(ctx context.Context) (Check, error) { return repository(ctx, client, repo) }},
		{"github.push", func(ctx context.Context) (Check, error) { return s.push(ctx, endpoint, repo) }},
		{"github.issues", func(ctx context.Context) (Check, error) {
			_, err := client.ListIssues(ctx, repo, github.IssueFilter{Limit: 1})
			return permission("Issues", err)
		}},
		{"github.pulls", func(ctx context.Context) (Check, error) {
			_, err := client.ListPullRequests(ctx, repo, github.PullFilter{Limit: 1})
			c, err := permission("Pull requests", err)
			return s.pulls(c), err
		}},
	} {
		if login.Verdict == Unknown { // nor would these be answered: each would wait as long
			checks = append(checks, Check{ID: q.id, Verdict: Unknown, Detail: "not asked (see github.login)", Because: "github.login"})
			continue
		}
		checks = append(checks, s.question(ctx, q.id, q.do))
	}
	return checks
}

// identity is what GitHub tells of a token beside any answer.
type identity struct {
	asked  bool
	header http.Header
}

// ask asks GitHub whose token it is, and where the rules of the sandbox do not let that through, for the repository: both
// answers carry the headers that tell of the token.
func (i *identity) ask(ctx context.Context, box *pair.Sandbox, endpoint github.Endpoint, repo github.Repo) (Check, error) {
	transport := github.NewTransport(box, endpoint)
	transport.MaxBody = 1 << 20
	defer transport.Close()
	get := func(path string) (*http.Response, []byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint.API()+strings.TrimPrefix(path, "/"), nil)
		if err != nil {
			return nil, nil, err
		}
		req.Header.Set("Authorization", "Bearer "+secrets.GitHubServicePlaceholder)
		req.Header.Set("Accept", "application/vnd.github+json")
		req.Header.Set("User-Agent", "sbxpair-doctor")
		res, err := transport.RoundTrip(req)
		if err != nil {
			return nil, nil, err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body) // up to MaxBody
		return res, body, err
	}
	path := "/user"
	res, body, err := get(path)
	if errors.Is(err, github.ErrBlockedByPolicy) {
		path = "/repos/" + repo.String()
		res, body, err = get(path)
	}
	switch {
	case errors.Is(err, github.ErrBlockedByPolicy):
		return Check{Verdict: Bad, Detail: oneLine(err.Error()), Remedy: "take the host out of network.deny"}, nil
	case err != nil:
		return Check{}, err
	case res.StatusCode == http.StatusUnauthorized:
		return Check{Verdict: Bad, Detail: "GitHub is up and refuses the token (401): expired, revoked, or not put in by the engine", Remedy: "make a new token: docs/how-to/tokens.md"}, nil
	case res.StatusCode >= 500:
		return Check{}, fmt.Errorf("GET %s answers %d", path, res.StatusCode)
	}
	i.asked, i.header = true, res.Header
	var user struct{ Login string }
	if path == "/user" && res.StatusCode == http.StatusOK && json.Unmarshal(body, &user) == nil && user.Login != "" {
		return Check{Verdict: OK, Detail: "accepted; it is " + user.Login + "'s"}, nil
	}
	return Check{Verdict: OK, Detail: "accepted"}, nil
}

var errNotAsked = errors.New("GitHub did not accept the token (see github.login)")

func (i *identity) expiry(now time.Time) (Check, error) {
	if !i.asked {
		return Check{}, errNotAsked
	}
	text := i.header.Get("Github-Authentication-Token-Expiration")
	if text == "" {
		return Check{Verdict: Warn, Detail: "the token has no end", Remedy: "give tokens an end: docs/how-to/tokens.md"}, nil
	}
	var ends time.Time
	var err error
	for _, layout := range []string{"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700", time.RFC3339} { // GitHub has sent the first two
		if ends, err = time.Parse(layout, text); err == nil {
			break
		}
	}
	if err != nil {
		return Check{}, fmt.Errorf("GitHub's expiry %.60q is not a time", text)
	}
	left := ends.Sub(now)
	c := Check{Verdict: OK, Detail: fmt.Sprintf("until %s (%d days)", ends.UTC().Format(time.DateOnly), int(left.Hours()/24))}
	switch {
	case left <= 0:
		c.Verdict, c.Detail, c.Remedy = Bad, "the token ended on "+ends.UTC().Format(time.DateOnly), "make a new token: docs/how-to/tokens.md"
	case left < expirySoon:
		c.Verdict, c.Remedy = Warn, "make a new token soon: docs/how-to/tokens.md"
	}
	return c, nil
}

// scopes judges a classic token by the header in which GitHub lists its scopes. Other tokens have permissions instead.
func (i *identity) scopes(kind secrets.Kind) (Check, error) {
	if !i.asked {
		return Check{}, errNotAsked
	}
	scopes := strings.FieldsFunc(i.header.Get("X-Oauth-Scopes"), func(r rune) bool { return r == ',' || r == ' ' })
	if len(scopes) == 0 {
		return Check{Verdict: OK, Detail: fmt.Sprintf("none listed (%s token: it has permissions for chosen repositories)", kind)}, nil
	}
	var wide []string
	for _, scope := range scopes {
		if scope != "repo" && scope != "public_repo" && scope != "read:user" && scope != "user:email" {
			wide = append(wide, scope)
		}
	}
	c := Check{Verdict: Warn, Detail: "classic, for every repository of its owner: " + strings.Join(scopes, ", "), Remedy: "make a fine-grained token for the one repository: docs/how-to/tokens.md"}
	if len(wide) > 0 {
		c.Detail += "; a run needs none of: " + strings.Join(wide, ", ")
	}
	return c, nil
}

func repository(ctx context.Context, client *github.Client, repo github.Repo) (Check, error) {
	info, err := client.Repository(ctx, repo)
	switch {
	case errors.Is(err, github.ErrNotFound):
		return Check{Verdict: Bad, Detail: fmt.Sprintf("%s does not exist for this token", repo), Remedy: "check the name, and that the token was made for this repository: docs/how-to/tokens.md"}, nil
	case errors.Is(err, github.ErrForbidden):
		return permission("Metadata", err)
	case errors.Is(err, github.ErrBlockedByPolicy):
		return Check{Verdict: Bad, Detail: oneLine(err.Error()), Remedy: "take the host out of network.deny"}, nil
	case err != nil:
		return Check{}, err
	case info.Archived:
		return Check{Verdict: Bad, Detail: fmt.Sprintf("%s is archived: nothing can be pushed", info.Repo), Remedy: "unarchive it, or name another with --repo"}, nil
	}
	c := Check{Verdict: OK, Detail: fmt.Sprintf("%s, default branch %s", info.Repo, info.DefaultBranch)}
	if info.Repo != repo {
		c.Verdict, c.Detail, c.Remedy = Warn, fmt.Sprintf("%s is called %s now", repo, info.Repo), "name it so: --repo "+info.Repo.String()
	}
	if info.CanAdmin {
		c.Verdict, c.Detail, c.Remedy = Warn, c.Detail+"; the token's owner is an administrator of it", "a token without Administration permission cannot use that: docs/how-to/tokens.md"
	}
	return c, nil
}

// push asks git's server for what it tells before a push. The server judges the token as for a push; nothing is sent.
func (s *scratch) push(ctx context.Context, endpoint github.Endpoint, repo github.Repo) (Check, error) {
	res, err := s.run(ctx, s.pair.GitHub, command{
		Argv: []string{"sh", "-c", `curl -sS --max-time 20 --proto =https --max-redirs 0 -A git/sbxpair-doctor -u "x-access-token:$SBXPAIR_PROBE_TOKEN" -o /dev/null -w '%{http_code}' "$1"`, "sh",
			endpoint.CloneURL(repo) + "/info/refs?service=git-receive-pack"},
		Env: []sbx.EnvVar{{Name: "SBXPAIR_PROBE_TOKEN", Value: s.plan.GitHub.Secret.Placeholder}},
	})
	if err != nil {
		return Check{}, err
	}
	status, _ := strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
	switch {
	case status == http.StatusOK:
		return Check{Verdict: OK, Detail: "git's server would take a push (nothing was sent)"}, nil
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound:
		return Check{Verdict: Bad, Detail: fmt.Sprintf("git's server would refuse a push (%d)", status), Remedy: "give the token \"Contents: read and write\" for this repository: docs/how-to/tokens.md"}, nil
	case status == 0:
		return Check{}, fmt.Errorf("curl ends with %d: %s", res.Code, oneLine(string(res.Stderr)))
	}
	return Check{}, fmt.Errorf("git's server answers %d", status)
}

// pulls adds to what was found about reading pull requests what the proof found about opening them: it asks for one that
// cannot be.
func (s *scratch) pulls(read Check) Check {
	for _, p := range s.asked {
		switch {
		case p.Needed != provision.MayPull || p.Role != string(pair.RoleGitHub) || read.Verdict != OK:
		case p.Passed:
			read.Detail = "may be read and opened (asked for one that cannot be: nothing was made)"
		default:
			return Check{Verdict: Bad, Detail: "may be read and not opened: " + p.Got, Remedy: fmt.Sprintf("give the token %q for this repository: sbxpair credential link", p.Needed)}
		}
	}
	return read
}

// permission reads the answer to a request that only reads.
func permission(name string, err error) (Check, error) {
	if err == nil {
		return Check{Verdict: OK, Detail: "may be read; whether they may be written is not asked, since that would write"}, nil
	}
	if !errors.Is(err, github.ErrForbidden) && !errors.Is(err, github.ErrNotFound) {
		return Check{}, err
	}
	c := Check{Verdict: Bad, Detail: "the token lacks the permission", Remedy: fmt.Sprintf("give the token \"%s: read and write\" for this repository: docs/how-to/tokens.md", name)}
	if api, ok := errors.AsType[*github.APIError](err); ok && api.Needed != "" {
		c.Detail += ": GitHub asks for " + api.Needed
	}
	return c, nil
}
