package github

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"

	"github.com/sbxpair/sbxpair/secrets"
)

// Client is a typed GitHub client whose requests leave from inside the github sandbox. It is safe for concurrent use; one
// request is on its way at a time. Close it when done.
//
// A create with an [Op] is idempotent: it looks for what an earlier call made before it creates, and again when an
// answer was lost.
type Client struct {
	gh        *gh.Client
	wire      *wire
	transport *Transport
	endpoint  Endpoint
	clock     Clock
	log       *slog.Logger
}

type settings struct {
	version, placeholder string
	clock                Clock
	limits               Limits
	log                  *slog.Logger
	via                  http.RoundTripper
}

// Option changes a default of NewClient.
type Option func(*settings)

// WithVersion names our version in the User-Agent.
func WithVersion(v string) Option { return func(s *settings) { s.version = v } }

// WithPlaceholder sets the text that stands for the credential in requests; the engine's proxy replaces it. The default is
// that of a service secret.
func WithPlaceholder(p string) Option { return func(s *settings) { s.placeholder = p } }

// WithClock replaces the system's clock.
func WithClock(c Clock) Option { return func(s *settings) { s.clock = c } }

// WithLimits replaces DefaultLimits.
func WithLimits(l Limits) Option { return func(s *settings) { s.limits = l } }

// WithLogger gets a line for every wait. The default is silent.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// NewClient returns a Client for one GitHub, whose requests r carries.
func NewClient(r Runner, e Endpoint, opts ...Option) *Client {
	s := settings{version: "dev", placeholder: secrets.GitHubServicePlaceholder, clock: SystemClock(), limits: DefaultLimits(), log: slog.New(slog.DiscardHandler)}
	for _, o := range opts {
		o(&s)
	}
	c := &Client{transport: NewTransport(r, e), endpoint: e, clock: s.clock, log: s.log}
	c.wire = &wire{next: c.transport, auth: s.placeholder, agent: "sbxpair/" + s.version, clock: s.clock, limits: s.limits, log: s.log, turn: make(chan struct{}, 1)}
	c.gh = gh.NewClient(&http.Client{Transport: c.wire, CheckRedirect: sameHost})
	c.gh.BaseURL, c.gh.UploadURL = mustURL(e.at.API), mustURL(e.at.Uploads)
	return c
}

// mustURL parses a URL that Endpoint made.
func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic("github: an Endpoint with a bad URL: " + s)
	}
	return u
}

// sameHost follows the redirects of a rename or transfer, and none that leaves the host or would make a read of a write.
func sameHost(req *http.Request, via []*http.Request) error {
	if req.Method != via[0].Method {
		return fmt.Errorf("%w: %s of %s was answered with a redirect that is no write: nothing was done", ErrOutOfBounds, via[0].Method, oneLine(via[0].URL.Path, 200))
	}
	if len(via) >= 3 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != "https" {
		return fmt.Errorf("%w: redirect to %s", ErrOutOfBounds, oneLine(req.URL.Host, 80))
	}
	return nil
}

// Close ends the channel into the sandbox. The Client cannot be used after it.
func (c *Client) Close() error { return c.transport.Close() }

// gitAuth is the header that git sends, with the placeholder in it; empty on github.com, where the engine's own service puts the
// credential in unasked (sbx 0.35 to 0.47 and sbx-local). Elsewhere the token is a custom secret, which goes where its placeholder
// stands; git wants it as a password.
func (c *Client) gitAuth() string {
	if c.endpoint == DotCom() {
		return ""
	}
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+c.wire.auth))
}

// Endpoint is the GitHub this client speaks to.
func (c *Client) Endpoint() Endpoint { return c.endpoint }

// Requests is how many requests were answered so far.
func (c *Client) Requests() int {
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	return c.wire.requests
}

// Expires is when the credential ends, as GitHub last said; zero if it did not.
func (c *Client) Expires() time.Time {
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	return c.wire.expires
}

// Op names one write of a run. It goes into the text as a hidden marker, by which a second call finds the first one's work.
// The zero Op leaves no marker, and the write is then not idempotent.
type Op struct {
	Run  string // run id
	Name string // unique in the run, such as "pull-request" or "comment"
}

// Marker is the hidden line, or "" for the zero Op.
func (o Op) Marker() string {
	if o.Run == "" {
		return ""
	}
	return fmt.Sprintf("<!-- sbxpair:run=%s op=%s -->", plain(o.Run), plain(o.Name))
}

// plain keeps the letters that can stand in a marker.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '_'
	}, s)
}

// mark puts the marker under a body that leaves room for it.
func (o Op) mark(body string) string {
	m := o.Marker()
	if m == "" {
		return body
	}
	body = strings.TrimRight(body, "\n")
	if body == "" {
		return m
	}
	return body + "\n\n" + m
}

// in reports whether the body carries this marker.
func (o Op) in(body string) bool { m := o.Marker(); return m != "" && strings.Contains(body, m) }

// unwrap takes net/http's and go-github's wrapping off, so that an error says one thing once, and makes the typed error of what is
// no answer of GitHub's.
func unwrap(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	var odd *gh.ErrorResponse // of an answer below 400: what is above has an error of our own
	var accepted *gh.AcceptedError
	if errors.As(err, &syntax) || errors.As(err, &typ) || errors.As(err, &odd) || errors.As(err, &accepted) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s", ErrMalformed, oneLine(err.Error(), 300))
	}
	return err
}

func fail(what string, err error) error { return fmt.Errorf("%s: %w", what, unwrap(err)) }

// lost reports whether err leaves open if the write was carried out.
func lost(err error) bool {
	var n *NetworkError
	return errors.As(err, &n) && n.Sent || errors.Is(err, ErrServer) || errors.Is(err, ErrMalformed)
}

// pages calls next with page numbers until there are no more or it stops. More than limit pages are an error that matches
// ErrTooLarge: a part must not pass for all.
func pages(limit int, next func(page int) (*gh.Response, bool, error)) error {
	for page, n := 1, 0; page != 0; n++ {
		if n == limit {
			return fmt.Errorf("list: %w of %d pages", ErrTooLarge, limit)
		}
		resp, stop, err := next(page)
		if err != nil || stop {
			return err
		}
		if resp.NextPage != 0 && resp.NextPage <= page {
			return fmt.Errorf("list: %w: the page after %d is %d", ErrMalformed, page, resp.NextPage)
		}
		page = resp.NextPage
	}
	return nil
}

// create runs a create that find can recognise: it looks first, creates, and looks again if the answer was lost.
func create[T any](ctx context.Context, c *Client, op Op, find func(context.Context) (T, bool, error), make func(context.Context) (T, error)) (got T, existed bool, err error) {
	if op.Marker() != "" {
		got, ok, err := find(ctx)
		if err != nil || ok {
			return got, ok, err
		}
	}
	got, err = make(ctx)
	if err == nil || op.Marker() == "" || !lost(err) && !errors.Is(err, ErrExists) {
		return got, false, err
	}
	// What was made may not be listed yet: look a few times before it is made again.
	for try := range 3 {
		found, ok, ferr := find(ctx)
		if ferr != nil {
			return got, false, errors.Join(err, ferr)
		}
		if ok {
			return found, true, nil
		}
		if serr := c.clock.Sleep(ctx, c.wire.jitter(c.wire.limits.Backoff<<try)); serr != nil {
			return got, false, errors.Join(serr, err)
		}
	}
	if errors.Is(err, ErrExists) {
		return got, false, err
	}
	got, err = make(ctx)
	return got, false, err
}
