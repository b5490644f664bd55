package github

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// Clock is what the client knows of time, so that tests need none.
type Clock struct {
	Now func() time.Time
	// Sleep waits for d or until ctx is done, and then returns its error.
	Sleep func(ctx context.Context, d time.Duration) error
	// Jitter returns a number in [0, 1).
	Jitter func() float64
}

// SystemClock is the real one.
func SystemClock() Clock {
	return Clock{
		Now: time.Now,
		Sleep: func(ctx context.Context, d time.Duration) error {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
		Jitter: rand.Float64,
	}
}

// Limits bound how a client repeats and paces requests.
type Limits struct {
	Attempts int           // of one request, the first included
	Backoff  time.Duration // first wait after a failure that may pass; doubles each time, plus or minus a quarter
	MaxWait  time.Duration // longest single wait for a rate limit; one that needs more is returned at once
	// WriteInterval is the least time between two writes, as GitHub asks of integrations (one second).
	WriteInterval time.Duration
}

// DefaultLimits are GitHub's own advice where it gives any.
func DefaultLimits() Limits {
	return Limits{Attempts: 4, Backoff: time.Second, MaxWait: 5 * time.Minute, WriteInterval: time.Second}
}

// secondaryWait is how long GitHub asks to wait after a secondary limit that gives no time (github/docs, rate limits
// for the REST API).
const secondaryWait = time.Minute

// Bounds of the bodies that are read into memory.
const (
	maxErrorBody = 1 << 20  // of an error's, which is read no further
	maxAnswer    = 32 << 20 // of an answer's
)

// wire is the http.RoundTripper between go-github and the transport. It makes typed errors of GitHub's, waits and
// repeats where that is safe, and paces writes.
//
// It sits below go-github for two reasons: v62 does not classify 429, and it keeps rate limits of its own that refuse
// requests by the real clock. So errors are made here, and the headers those are fed from are taken off.
type wire struct {
	next   http.RoundTripper
	auth   string
	agent  string
	clock  Clock
	limits Limits
	log    *slog.Logger

	mu        sync.Mutex
	lastWrite time.Time
	expires   time.Time // of the credential, as GitHub last said
	requests  int

	known answers
	turn  chan struct{} // one request at a time, as GitHub asks for writes
}

func reads(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// RoundTrip returns answers below 400 only; anything else is a typed error.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+w.auth)
	req.Header.Set("User-Agent", w.agent)
	if !strings.Contains(req.Header.Get("Accept"), "raw") {
		req.Header.Set("Accept", "application/vnd.github+json")
	}
	for attempt := 1; ; attempt++ {
		resp, err := w.once(req)
		if err == nil {
			return resp, nil
		}
		wait, again := w.again(req, err, attempt)
		if !again {
			return nil, err
		}
		if req.Body != nil && req.Body != http.NoBody {
			if req.GetBody == nil {
				return nil, err
			}
			body, berr := req.GetBody()
			if berr != nil {
				return nil, errors.Join(err, berr)
			}
			req.Body = body
		}
		w.log.Info("waiting for GitHub", "method", req.Method, "path", req.URL.Path, "wait", wait.Round(time.Millisecond), "attempt", attempt, "err", err)
		if serr := w.clock.Sleep(req.Context(), wait); serr != nil {
			return nil, errors.Join(serr, err)
		}
	}
}

// again decides whether a failed request is repeated, and after which wait. A write is repeated only where it is certain
// that nothing was done: a rate limit, or a failure before anything was sent.
func (w *wire) again(req *http.Request, err error, attempt int) (time.Duration, bool) {
	if attempt >= w.limits.Attempts || req.Context().Err() != nil {
		return 0, false
	}
	backoff := w.jitter(w.limits.Backoff << (attempt - 1))
	var limit *RateLimitError
	var network *NetworkError
	switch {
	case errors.Is(err, sbx.ErrNotFound): // a sandbox that was removed does not come back
		return 0, false
	case errors.As(err, &limit):
		wait := limit.RetryAfter
		if limit.Secondary && limit.Reset.IsZero() {
			wait = wait << (attempt - 1)
		}
		wait += time.Duration(float64(time.Second) * w.clock.Jitter())
		return wait, wait <= w.limits.MaxWait
	case errors.As(err, &network):
		return backoff, (reads(req.Method) || !network.Sent) && network.Trouble != TroubleTLS
	case errors.Is(err, ErrServer), errors.Is(err, ErrMalformed):
		return backoff, reads(req.Method)
	}
	return 0, false
}

func (w *wire) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + w.clock.Jitter()/2))
}

// once carries out a request. Its answer is read whole, so that one which is cut off in its body can be repeated too.
func (w *wire) once(req *http.Request) (*http.Response, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	if err := w.pace(req); err != nil {
		return nil, err
	}
	w.known.ask(req)
	resp, err := w.next.RoundTrip(req)
	if !reads(req.Method) {
		w.mu.Lock()
		w.lastWrite = w.clock.Now()
		w.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.requests++
	if t := expiry(resp.Header); !t.IsZero() {
		w.expires = t
	}
	w.mu.Unlock()
	if resp.StatusCode < 400 {
		for name := range resp.Header {
			if strings.HasPrefix(name, "X-Ratelimit-") || name == "Retry-After" {
				resp.Header.Del(name)
			}
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
		resp.Body.Close()
		switch {
		case err != nil:
			return nil, err
		case len(body) > maxAnswer:
			return nil, fmt.Errorf("answer of %s: %w of %d bytes", req.URL.Host, ErrTooLarge, maxAnswer)
		}
		if resp.StatusCode < 300 {
			if why := implausible(req, resp, body); why != "" {
				return nil, fmt.Errorf("answer of %s to %s %s: %w: %s", req.URL.Host, req.Method, oneLine(req.URL.Path, 200), ErrMalformed, why)
			}
		}
		resp.Body = io.NopCloser(bytes.NewReader(body))
		resp = w.known.take(req, resp, body)
		if resp.StatusCode == http.StatusNotModified {
			return nil, fmt.Errorf("%w: not modified, and nothing was known", ErrMalformed)
		}
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return nil, err
	}
	return nil, readError(req, resp, body, w.clock.Now())
}

// numberedThing is the path of what GitHub answers with an issue or a pull request, which has a number.
var numberedThing = regexp.MustCompile(`/(?:repos/[^/]+/[^/]+|repositories/[0-9]+)/(?:issues|pulls)(?:/[0-9]+(?:/assignees|/requested_reviewers)?)?$`)

// implausible says why an answer below 300 cannot be GitHub's: to a request of ours that is a list, or a thing that tells which one it
// is. An answer that says nothing, or something else, is no success.
func implausible(req *http.Request, resp *http.Response, body []byte) string {
	text := bytes.TrimSpace(body)
	switch {
	case req.Method == http.MethodHead, req.Method == http.MethodDelete && len(text) == 0:
		return ""
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated:
		return fmt.Sprintf("status %d", resp.StatusCode)
	case bytes.HasPrefix(text, []byte("[")):
		return ""
	case !bytes.HasPrefix(text, []byte("{")):
		return "it is no JSON object or list"
	}
	var thing struct {
		ID     json.Number `json:"id"`
		Number int         `json:"number"`
		SHA    string      `json:"sha"`
		Ref    string      `json:"ref"`
		Total  *int        `json:"total_count"`
	}
	if err := json.Unmarshal(text, &thing); err != nil {
		return oneLine(err.Error(), 200)
	}
	id, _ := thing.ID.Int64()
	switch {
	case numberedThing.MatchString(req.URL.Path) && thing.Number < 1:
		return "it has no number"
	case id < 1 && thing.Number < 1 && thing.SHA == "" && thing.Ref == "" && thing.Total == nil:
		return "it does not say what it is about"
	}
	return ""
}

// pace keeps writes apart.
func (w *wire) pace(req *http.Request) error {
	if reads(req.Method) || w.limits.WriteInterval <= 0 {
		return nil
	}
	w.mu.Lock()
	last := w.lastWrite
	w.mu.Unlock()
	if last.IsZero() {
		return nil
	}
	if wait := w.limits.WriteInterval - w.clock.Now().Sub(last); wait > 0 {
		return w.clock.Sleep(req.Context(), wait)
	}
	return nil
}

// readError makes the typed error of an answer with status 400 or more.
func readError(req *http.Request, resp *http.Response, body []byte, now time.Time) error {
	var doc struct {
		Message string            `json:"message"`
		Docs    string            `json:"documentation_url"`
		Errors  []json.RawMessage `json:"errors"`
	}
	decoded := json.Unmarshal(body, &doc) == nil
	if !decoded {
		// errors may be an object or a string; the message matters more.
		var brief struct {
			Message string `json:"message"`
			Docs    string `json:"documentation_url"`
		}
		decoded = json.Unmarshal(body, &brief) == nil
		doc.Message, doc.Docs = brief.Message, brief.Docs
	}
	if !decoded {
		doc.Message = string(body[:min(len(body), 4<<10)])
	}
	if limit := rateLimit(resp, doc.Message, doc.Docs, now); limit != nil {
		return limit
	}
	e := &APIError{
		Method: req.Method, Host: req.URL.Host, Path: oneLine(req.URL.Path, 200), Status: resp.StatusCode,
		Message: oneLine(doc.Message, 500), Request: oneLine(resp.Header.Get("X-GitHub-Request-Id"), 64),
		Expires: expiry(resp.Header), kind: kindOf(resp.StatusCode),
	}
	if e.Status == http.StatusForbidden {
		e.Needed = oneLine(resp.Header.Get("X-Accepted-GitHub-Permissions"), 200)
	}
	for _, raw := range doc.Errors[:min(len(doc.Errors), 20)] {
		var f FieldError
		if json.Unmarshal(raw, &f) != nil {
			var s string
			if json.Unmarshal(raw, &s) != nil {
				continue
			}
			f = FieldError{Message: s}
		}
		e.Fields = append(e.Fields, FieldError{oneLine(f.Resource, 60), oneLine(f.Field, 60), oneLine(f.Code, 60), oneLine(f.Message, 300)})
	}
	e.kind = refine(e)
	return e
}

// refine tells apart what shares a status. Status, field code and message are compared together, because GitHub's messages
// alone are prose (seen shapes: reference of November 2026).
func refine(e *APIError) error {
	says := func(s string) bool {
		if containsFold(e.Message, s) {
			return true
		}
		for _, f := range e.Fields {
			if containsFold(f.Message, s) {
				return true
			}
		}
		return false
	}
	if (e.Status == http.StatusConflict || e.Status == http.StatusUnprocessableEntity) && says("rule violations found") {
		return ErrPushRefused // push protection, of blobs and of files by the contents API
	}
	switch e.Status {
	case http.StatusConflict:
		if says("repository is empty") {
			return ErrEmptyRepository
		}
	case http.StatusForbidden:
		if says("archived") && says("read-only") {
			return ErrArchived
		}
	case http.StatusUnprocessableEntity:
		for _, f := range e.Fields {
			if f.Code == "already_exists" {
				return ErrExists
			}
		}
		switch {
		case says("already exists"):
			return ErrExists
		case says("No commits between"):
			return ErrNoChanges
		}
	}
	return e.kind
}

func containsFold(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}

// rateLimit tells a rate limit from other refusals: 403 and 429 alike, by header first and by text last.
func rateLimit(resp *http.Response, message, docs string, now time.Time) *RateLimitError {
	if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	h := resp.Header
	spent := h.Get("X-RateLimit-Remaining") == "0"
	retry, hasRetry := retryAfter(h.Get("Retry-After"), now)
	secondary := containsFold(message, "secondary rate limit") || containsFold(message, "abuse detection") ||
		strings.HasSuffix(docs, "secondary-rate-limits") || strings.HasSuffix(docs, "#abuse-rate-limits")
	primary := containsFold(message, "API rate limit exceeded")
	if resp.StatusCode == http.StatusForbidden && !spent && !secondary && !hasRetry && !primary {
		return nil
	}
	e := &RateLimitError{
		Status: resp.StatusCode, Secondary: secondary || !spent && !primary,
		Resource: oneLine(h.Get("X-RateLimit-Resource"), 40),
	}
	if s, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64); err == nil && s > 0 && (spent || !e.Secondary) {
		e.Reset = time.Unix(s, 0).UTC()
	}
	switch {
	case hasRetry:
		e.RetryAfter = retry
	case !e.Reset.IsZero():
		// A reset in the past is a clock that differs: a second, not at once.
		e.RetryAfter = max(min(e.Reset.Sub(now), math.MaxInt64/2)+time.Second, time.Second)
	default:
		e.RetryAfter = secondaryWait
	}
	return e
}

// retryAfter reads the header in both its forms.
func retryAfter(v string, now time.Time) (time.Duration, bool) {
	if v == "" {
		return 0, false
	}
	if s, err := strconv.ParseInt(strings.TrimSpace(v), 10, 32); err == nil {
		return time.Duration(max(s, 0)) * time.Second, true
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(t.Sub(now), 0), true
	}
	return 0, false
}

// expiry reads when the credential ends; GitHub writes "2026-12-01 10:00:00 UTC" or with an offset.
func expiry(h http.Header) time.Time {
	v := h.Get("GitHub-Authentication-Token-Expiration")
	for _, layout := range []string{"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700", time.RFC3339} {
		if t, err := time.Parse(layout, v); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}
