package github

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kinds of failure. Match them with errors.Is.
var (
	// ErrUnauthorized: GitHub refused the credential itself (401): expired, revoked or never put in.
	ErrUnauthorized = errors.New("GitHub refused the credential")
	// ErrForbidden: the credential is alive but may not do this (403).
	ErrForbidden = errors.New("GitHub denied the permission")
	// ErrNotFound: no such thing, or none that the credential can see (404, 410); GitHub does not tell them apart.
	ErrNotFound = errors.New("not found on GitHub")
	// ErrValidation: GitHub did not accept the content (400, 422).
	ErrValidation = errors.New("GitHub did not accept the request")
	// ErrConflict: the state on GitHub is another than the request assumed (409).
	ErrConflict = errors.New("GitHub reports a conflict")
	// ErrExists: the thing to be created is there already.
	ErrExists = errors.New("exists on GitHub already")
	// ErrRateLimited matches every RateLimitError.
	ErrRateLimited = errors.New("GitHub rate limit")
	// ErrServer: GitHub failed (5xx).
	ErrServer = errors.New("GitHub failed")
	// ErrMalformed: an answer that cannot be GitHub's, or was cut off.
	ErrMalformed = errors.New("unexpected answer")
	// ErrTooLarge: a request or an answer over the transport's limit.
	ErrTooLarge = errors.New("over the size limit")
	// ErrNetwork matches every NetworkError.
	ErrNetwork = errors.New("GitHub cannot be reached from the sandbox")
	// ErrBlockedByPolicy matches every BlockedError.
	ErrBlockedByPolicy = errors.New("blocked by the sandbox's network policy")
	// ErrOutOfBounds: a request to a host, repository, branch or text that the bounds do not allow; nothing was sent.
	ErrOutOfBounds = errors.New("outside the bounds")
	// ErrNoChanges: there is nothing to deliver.
	ErrNoChanges = errors.New("no changes to deliver")
	// ErrEmptyRepository: the repository has no commit yet, so a pull request has no base.
	ErrEmptyRepository = errors.New("the repository is empty")
	// ErrArchived: the repository is read-only.
	ErrArchived = errors.New("the repository is archived")
	// ErrBadBundle: the bundle is not one commit range on top of the stated base.
	ErrBadBundle = errors.New("the bundle cannot be delivered")
	// ErrBranchMoved: the branch on GitHub holds commits that this run did not put there.
	ErrBranchMoved = errors.New("the branch holds commits of somebody else")
	// ErrPullClosed: somebody closed the run's pull request, and that is not undone.
	ErrPullClosed = errors.New("somebody closed the pull request")
	// ErrPushRefused: GitHub refused the push by a rule of the repository (protection, push protection, file size).
	ErrPushRefused = errors.New("GitHub refused the push")
	// ErrTool: a program that the sandbox needs (sh, curl, git) is missing or too old.
	ErrTool = errors.New("the github sandbox lacks a program")
)

// FieldError is one entry of GitHub's validation errors.
type FieldError struct {
	Resource string `json:"resource,omitempty"`
	Field    string `json:"field,omitempty"`
	Code     string `json:"code,omitempty"` // missing, missing_field, invalid, already_exists, unprocessable, custom
	Message  string `json:"message,omitempty"`
}

// APIError is an answer of GitHub's with a status of 4xx or 5xx that is no rate limit. It matches one of the kinds above.
type APIError struct {
	Method  string
	Path    string // of the URL, without query
	Host    string
	Status  int
	Message string // GitHub's own, one line, bounded
	Fields  []FieldError
	// Needed is the X-Accepted-GitHub-Permissions header of a 403, such as "contents=write; workflows=write"; empty if GitHub sent none.
	Needed string
	// Expires is the credential's expiry as GitHub states it; zero if it did not.
	Expires time.Time
	Request string // X-GitHub-Request-Id, for GitHub's support
	kind    error
}

func (e *APIError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s%s: %d", e.Method, e.Host, e.Path, e.Status)
	if e.Message != "" {
		fmt.Fprintf(&b, " %s", e.Message)
	}
	for _, f := range e.Fields {
		fmt.Fprintf(&b, "; %s", f)
	}
	if e.Needed != "" {
		fmt.Fprintf(&b, " (needs %s)", e.Needed)
	}
	return b.String()
}

func (e *APIError) Unwrap() error { return e.kind }

func (f FieldError) String() string {
	return strings.Join(strings.Fields(strings.Join([]string{f.Resource, f.Field, f.Code, f.Message}, " ")), " ")
}

// RateLimitError is GitHub's primary or secondary rate limit, told by 403 or by 429 (go-github v62 classifies only 403).
// Nothing was done by the request that met it.
type RateLimitError struct {
	Secondary  bool
	RetryAfter time.Duration // from now; never negative
	Reset      time.Time     // zero if GitHub gave none
	Status     int
	Resource   string // X-RateLimit-Resource
}

func (e *RateLimitError) Error() string {
	which := "primary"
	if e.Secondary {
		which = "secondary"
	}
	return fmt.Sprintf("GitHub's %s rate limit (%d): again in %s", which, e.Status, e.RetryAfter.Round(time.Second))
}

func (e *RateLimitError) Unwrap() error { return ErrRateLimited }

// Trouble says where the way to GitHub broke.
type Trouble string

// Where a NetworkError broke.
const (
	TroubleDNS     Trouble = "dns"     // the name did not resolve
	TroubleConnect Trouble = "connect" // refused or unreachable, the proxy included
	TroubleTLS     Trouble = "tls"     // handshake or certificate
	TroubleTimeout Trouble = "timeout"
	TroubleBroken  Trouble = "broken"  // the connection ended in the middle
	TroubleSandbox Trouble = "sandbox" // the exec itself ended: sandbox stopped, channel lost
	TroubleOther   Trouble = "other"
)

// NetworkError is a request that got no answer.
type NetworkError struct {
	Trouble Trouble
	Host    string
	Exit    int    // curl's exit code; 0 if curl did not end
	Detail  string // one line, bounded
	// Sent: the request may have reached GitHub and may have been carried out there.
	Sent bool
	err  error
}

func (e *NetworkError) Error() string {
	s := fmt.Sprintf("reach %s from the sandbox: %s", e.Host, e.Trouble)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Sent {
		s += " (the request may have been carried out)"
	}
	return s
}

func (e *NetworkError) Unwrap() []error {
	if e.err != nil {
		return []error{ErrNetwork, e.err}
	}
	return []error{ErrNetwork}
}

// BlockedError is a page of the sandbox's own proxy in the place of an answer: the policy of the sandbox does not let
// the request out. GitHub never saw it.
type BlockedError struct {
	Host   string
	Detail string // the page's first line
	// Redirected: GitHub sent the request on to there, as it does for what was renamed or transferred.
	Redirected bool
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("%s is blocked by the sandbox's network policy: %s", e.Host, e.Detail)
}

func (e *BlockedError) Unwrap() error { return ErrBlockedByPolicy }

// BranchMovedError tells which commit stands on the branch. It matches ErrBranchMoved.
type BranchMovedError struct {
	Branch string
	Remote string // commit id; empty if the branch could not be read
}

func (e *BranchMovedError) Error() string {
	return fmt.Sprintf("branch %s stands at %s, which this run did not put there", e.Branch, e.Remote)
}

func (e *BranchMovedError) Unwrap() error { return ErrBranchMoved }

// PushError is a push that the remote refused for the reason it gave. It matches ErrPushRefused, and ErrForbidden too if a
// permission was missing.
type PushError struct {
	Ref    string
	Reason string   // git's short reason, such as "pre-receive hook declined"
	Detail string   // the remote's own words, bounded
	Needed string   // missing permission in GitHub's form, if known
	Files  []string // files the remote named, if any
	kind   error
}

func (e *PushError) Error() string {
	s := fmt.Sprintf("push %s: %s", e.Ref, e.Reason)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Needed != "" {
		s += " (needs " + e.Needed + ")"
	}
	return s
}

func (e *PushError) Unwrap() []error {
	if e.kind != nil {
		return []error{ErrPushRefused, e.kind}
	}
	return []error{ErrPushRefused}
}

// kindOf maps a status to its kind.
func kindOf(status int) error {
	switch {
	case status == http.StatusUnauthorized:
		return ErrUnauthorized
	case status == http.StatusForbidden, status == http.StatusUnavailableForLegalReasons:
		return ErrForbidden
	case status == http.StatusNotFound, status == http.StatusGone:
		return ErrNotFound
	case status == http.StatusConflict:
		return ErrConflict
	case status == http.StatusBadRequest, status == http.StatusUnprocessableEntity:
		return ErrValidation
	case status >= 500:
		return ErrServer
	}
	return ErrMalformed
}

// oneLine makes foreign text fit for an error: one line, no control characters, valid UTF-8, at most limit bytes.
func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:max(cut, 0)] + "…"
}
