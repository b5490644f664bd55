package github

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// RequestKind names what an agent may ask for.
type RequestKind string

// The kinds of request.
const (
	RequestIssue       RequestKind = "issue"
	RequestComment     RequestKind = "comment"
	RequestPullRequest RequestKind = "pull_request"
	RequestLabels      RequestKind = "labels"
	RequestAssign      RequestKind = "assign"
	RequestReviewers   RequestKind = "reviewers"
	RequestReview      RequestKind = "review"
	RequestClose       RequestKind = "close"
)

// RequestKinds are all kinds, in the order of the table.
func RequestKinds() []RequestKind {
	var kinds []RequestKind
	for _, spec := range requestTable() {
		kinds = append(kinds, spec.kind)
	}
	return kinds
}

// Request is one GitHub write that an agent asks for: data, judged by the gate before anything is done.
type Request struct {
	Kind   RequestKind `json:"kind"`
	Title  string      `json:"title,omitempty"`
	Body   string      `json:"body,omitempty"`
	Number int         `json:"number,omitempty"` // 0: the run's own pull request, or the issue it works on
	Labels []string    `json:"labels,omitempty"`
	People []string    `json:"people,omitempty"` // logins
	Line   int         `json:"-"`                // where it stood, from 1
}

// requestField is one row of the table that makes schema, validator and prompt.
type requestField struct {
	name     string
	typ      string // string, integer or strings
	required bool
	limit    int // runes of a string, items of strings
	doc      string
	set      func(*Request, any)
}

type requestSpec struct {
	kind   RequestKind
	doc    string
	fields []requestField
}

// requestTable is the one place that says what a request may hold.
func requestTable() []requestSpec {
	title := requestField{"title", "string", true, MaxTitleRunes, "one line", func(r *Request, v any) { r.Title = v.(string) }}
	body := requestField{"body", "string", true, MaxBodyRunes, "Markdown", func(r *Request, v any) { r.Body = v.(string) }}
	number := requestField{"number", "integer", false, 0, "an issue or pull request of this repository; left out: this run's own", func(r *Request, v any) { r.Number = v.(int) }}
	labels := requestField{"labels", "strings", false, 10, "existing labels", func(r *Request, v any) { r.Labels = v.([]string) }}
	people := requestField{"people", "strings", true, 10, "logins", func(r *Request, v any) { r.People = v.([]string) }}
	issue := requestField{"number", "integer", false, 0, "an issue of this repository; left out: the one this run works on", number.set}
	pull := requestField{"number", "integer", false, 0, "a pull request of this repository; left out: this run's own", number.set}
	needed := labels
	needed.required = true
	return []requestSpec{
		{RequestPullRequest, "title and text of the pull request for the changes in the work tree; opened when the run is done", []requestField{title, body}},
		{RequestComment, "a comment", []requestField{body, number}},
		{RequestIssue, "a new issue, for something found that does not belong to this task", []requestField{title, body, labels}},
		{RequestLabels, "labels to add", []requestField{needed, number}},
		{RequestAssign, "people to assign to an issue", []requestField{people, issue}},
		{RequestReviewers, "people to ask for a review of this run's pull request", []requestField{people}},
		{RequestReview, "a review that only comments", []requestField{body, pull}},
		{RequestClose, "close an issue as done", []requestField{issue}},
	}
}

// RequestBounds bound what an agent may ask for. The zero RequestBounds allow nothing.
type RequestBounds struct {
	// Max is how many requests of each kind one run may make; a kind that is not in it may not be asked for.
	Max map[RequestKind]int
	// Numbers are the issues and pull requests that may be written to, beside the run's own.
	Numbers []int
	// Labels are those that may be set.
	Labels []string
	// People are the logins that may be assigned or asked for a review.
	People []string
	// TitlePrefix begins the title of every issue and pull request; it is put there if it is missing.
	TitlePrefix string
}

// DefaultRequestBounds is one pull request, one comment and one issue a run, on the run's own items and without labels.
func DefaultRequestBounds() RequestBounds {
	return RequestBounds{Max: map[RequestKind]int{RequestPullRequest: 1, RequestComment: 1, RequestIssue: 1}}
}

const (
	maxRequestLine  = 1 << 20
	maxRequestLines = 200
)

// RequestVerdict is what the gate says about one request. Request holds it with its text cleaned; it is the form that may be
// carried out if the verdict is Allow.
type RequestVerdict struct {
	Request Request `json:"request"`
	Line    int     `json:"line"`
	Verdict Verdict `json:"verdict"`
}

// ReadRequests reads an agent's outbox, one JSON object a line, and judges each one alone: what is wrong with one does not
// stop the others. Nothing is repaired but text, which is cleaned. It is pure but for the reading; the error is that of r alone.
func ReadRequests(r io.Reader, b Bounds, c Cleaning) ([]RequestVerdict, error) {
	var out []RequestVerdict
	count := map[RequestKind]int{}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 64<<10), maxRequestLine)
	for line := 1; scanner.Scan(); line++ {
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		v := &verdict{}
		if len(out) >= maxRequestLines {
			v.refuse(ReasonCount, "", fmt.Sprintf("more than %d lines; the rest was not read", maxRequestLines))
			return append(out, RequestVerdict{Line: line, Verdict: v.done()}), nil
		}
		req := parseRequest(v, text)
		req.Line = line
		req = checkRequest(v, b, c, req, count)
		out = append(out, RequestVerdict{req, line, v.done()})
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		v := &verdict{}
		v.refuse(ReasonField, "", fmt.Sprintf("a line of more than %d bytes; the rest was not read", maxRequestLine))
		return append(out, RequestVerdict{Verdict: v.done()}), nil
	}
	return out, scanner.Err()
}

// CheckRequests judges requests that are at hand as values, by the same rules.
func CheckRequests(b Bounds, c Cleaning, requests []Request) []RequestVerdict {
	out := make([]RequestVerdict, 0, len(requests))
	count := map[RequestKind]int{}
	for _, r := range requests {
		v := &verdict{}
		cleaned := checkRequest(v, b, c, r, count)
		out = append(out, RequestVerdict{cleaned, r.Line, v.done()})
	}
	return out
}

// parseRequest reads one line by the table.
func parseRequest(v *verdict, text []byte) Request {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil || raw == nil {
		v.refuse(ReasonField, "", "is no JSON object")
		return Request{}
	}
	if name, twice := namedTwice(text); twice {
		v.refuse(ReasonField, "", fmt.Sprintf("%q is there twice", oneLine(name, 40)))
		return Request{}
	}
	var req Request
	if json.Unmarshal(raw["kind"], &req.Kind) != nil {
		v.refuse(ReasonField, "", "kind is missing or no text")
		return Request{}
	}
	delete(raw, "kind")
	spec, ok := specOf(req.Kind)
	if !ok {
		v.refuse(ReasonKind, "", fmt.Sprintf("%q is no kind of request", oneLine(string(req.Kind), 40)))
		return Request{}
	}
	for _, f := range spec.fields {
		value, there := raw[f.name]
		delete(raw, f.name)
		if !there {
			continue
		}
		if x, err := decodeField(f, value); err != nil {
			v.refuse(ReasonField, "", f.name+" "+err.Error())
		} else {
			f.set(&req, x)
		}
	}
	for name := range raw {
		v.refuse(ReasonField, "", fmt.Sprintf("%q is no field of %s", oneLine(name, 40), req.Kind))
	}
	return req
}

// namedTwice finds a field that a JSON object has more than once: which of them counts would be for us to guess.
func namedTwice(object []byte) (name string, twice bool) {
	d := json.NewDecoder(bytes.NewReader(object))
	seen := map[string]bool{}
	for depth, key := 0, false; ; {
		token, err := d.Token()
		if err != nil { // the end: the whole has been read before
			return "", false
		}
		switch t := token.(type) {
		case json.Delim:
			if t == '{' || t == '[' {
				depth++
			} else {
				depth--
			}
			key = depth == 1
			continue
		case string:
			if depth == 1 && key {
				if seen[t] {
					return t, true
				}
				seen[t], key = true, false
				continue
			}
		}
		key = depth == 1
	}
}

func specOf(k RequestKind) (requestSpec, bool) {
	table := requestTable()
	i := slices.IndexFunc(table, func(s requestSpec) bool { return s.kind == k })
	if i < 0 {
		return requestSpec{}, false
	}
	return table[i], true
}

func decodeField(f requestField, raw json.RawMessage) (any, error) {
	switch f.typ {
	case "string":
		var s *string
		if json.Unmarshal(raw, &s) != nil || s == nil {
			return nil, errors.New("is no text")
		}
		return *s, nil
	case "integer":
		var n *int
		if json.Unmarshal(raw, &n) != nil || n == nil || *n < 1 || *n > 1<<30 {
			return nil, errors.New("is no positive whole number")
		}
		return *n, nil
	default:
		var l []string
		if json.Unmarshal(raw, &l) != nil || l == nil {
			return nil, errors.New("is no list of texts")
		}
		return l, nil
	}
}

// checkRequest judges a request and returns it cleaned. count goes up only for what passes.
func checkRequest(v *verdict, b Bounds, c Cleaning, r Request, count map[RequestKind]int) Request {
	spec, ok := specOf(r.Kind)
	if !ok {
		if len(v.reasons) == 0 {
			v.refuse(ReasonKind, "", fmt.Sprintf("%q is no kind of request", oneLine(string(r.Kind), 40)))
		}
		return r
	}
	limit, allowed := b.Requests.Max[r.Kind]
	if !allowed || limit <= 0 {
		v.refuse(ReasonKind, "", string(r.Kind)+" may not be asked for in this run")
	} else if count[r.Kind] >= limit {
		v.refuse(ReasonCount, "", fmt.Sprintf("more than %d of %s", limit, r.Kind))
	}
	// Secrets are looked for before cleaning, which could hide one in part, and after it.
	v.requestSecrets(b, r)
	titleLimit, bodyLimit := MaxTitleRunes, MaxBodyRunes
	if b.MaxTitle > 0 {
		titleLimit = min(titleLimit, b.MaxTitle)
	}
	if b.MaxBody > 0 {
		bodyLimit = min(bodyLimit, b.MaxBody)
	}
	prefix := b.Requests.TitlePrefix
	cleanTitle, cleanBody := c, c
	cleanTitle.MaxRunes, cleanBody.MaxRunes = titleLimit, bodyLimit
	if r.Title != "" {
		// Cleaned first: what looked like the prefix may be another text then.
		if r.Title = CleanTitle(r.Title, cleanTitle); !strings.HasPrefix(r.Title, prefix) {
			cleanTitle.MaxRunes = max(titleLimit-utf8.RuneCountInString(prefix), 1)
			r.Title = prefix + CleanTitle(r.Title, cleanTitle)
		}
	}
	if r.Body != "" {
		r.Body = CleanBody(r.Body, cleanBody)
	}
	v.requestSecrets(b, r)
	for _, f := range spec.fields {
		empty := false
		switch f.name {
		case "title":
			empty = strings.TrimSpace(strings.TrimPrefix(r.Title, prefix)) == ""
		case "body":
			empty = strings.TrimSpace(r.Body) == ""
		case "labels":
			empty = len(r.Labels) == 0
			if len(r.Labels) > f.limit {
				v.refuse(ReasonLabel, "", fmt.Sprintf("%d labels, allowed are %d", len(r.Labels), f.limit))
			}
		case "people":
			empty = len(r.People) == 0
			if len(r.People) > f.limit {
				v.refuse(ReasonPerson, "", fmt.Sprintf("%d people, allowed are %d", len(r.People), f.limit))
			}
		case "number":
			empty = r.Number == 0
		}
		if f.required && empty {
			v.refuse(ReasonField, "", f.name+" is missing or empty")
		}
	}
	for _, p := range r.People {
		if !slices.ContainsFunc(b.Requests.People, func(a string) bool { return strings.EqualFold(a, p) }) {
			v.refuse(ReasonPerson, "", fmt.Sprintf("%q may not be asked", oneLine(p, 60)))
		}
	}
	for _, l := range r.Labels {
		if !slices.ContainsFunc(b.Requests.Labels, func(a string) bool { return strings.EqualFold(a, l) }) {
			v.refuse(ReasonLabel, "", fmt.Sprintf("%q may not be set", oneLine(l, 60)))
		}
	}
	if r.Number != 0 && !slices.Contains(b.Requests.Numbers, r.Number) {
		v.refuse(ReasonTarget, "", fmt.Sprintf("#%d is not this run's", r.Number))
	}
	if len(v.reasons) == 0 {
		count[r.Kind]++
	}
	return r
}

func (v *verdict) requestSecrets(b Bounds, r Request) {
	for what, s := range map[string]string{"title": r.Title, "body": r.Body, "labels": strings.Join(r.Labels, "\n"), "people": strings.Join(r.People, "\n")} {
		if hit := findSecret(b.Secrets, []byte(s)); hit != "" {
			v.refuse(ReasonSecret, "", "the "+what+" holds "+hit)
		}
	}
}

// RequestSchema is the JSON Schema (2020-12) of one line of the outbox under these bounds.
func RequestSchema(b RequestBounds) []byte {
	var kinds []any
	for _, spec := range requestTable() {
		if b.Max[spec.kind] <= 0 {
			continue
		}
		props := map[string]any{"kind": map[string]any{"const": spec.kind}}
		required := []string{"kind"}
		for _, f := range spec.fields {
			p := map[string]any{"description": f.doc}
			switch f.typ {
			case "string":
				p["type"], p["minLength"], p["maxLength"] = "string", 1, f.limit
			case "integer":
				p["type"], p["minimum"] = "integer", 1
			default:
				items := map[string]any{"type": "string"}
				if allowed := map[string][]string{"labels": b.Labels, "people": b.People}[f.name]; len(allowed) > 0 {
					items["enum"] = allowed
				}
				p["type"], p["items"], p["maxItems"] = "array", items, f.limit
			}
			props[f.name] = p
			if f.required {
				required = append(required, f.name)
			}
		}
		kinds = append(kinds, map[string]any{"type": "object", "description": spec.doc, "properties": props, "required": required, "additionalProperties": false})
	}
	out, err := json.MarshalIndent(map[string]any{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "sbxpair request", "oneOf": kinds}, "", "  ")
	if err != nil {
		panic("github: the request table does not encode: " + err.Error()) // only literals go in
	}
	return out
}

// RequestPrompt tells an agent how to ask: outbox is the path of the file it appends to.
func RequestPrompt(b RequestBounds, outbox string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "You cannot reach GitHub. To ask for a write there, append one JSON object as one line to %s:\n", outbox)
	for _, spec := range requestTable() {
		n := b.Max[spec.kind]
		if n <= 0 {
			continue
		}
		fmt.Fprintf(&s, "- {\"kind\": %q", spec.kind)
		for _, f := range spec.fields {
			value := "\"…\""
			switch f.typ {
			case "integer":
				value = "1"
			case "strings":
				value = "[\"…\"]"
			}
			fmt.Fprintf(&s, ", %q: %s", f.name, value)
		}
		fmt.Fprintf(&s, "}: %s; at most %d.", spec.doc, n)
		for _, f := range spec.fields {
			fmt.Fprintf(&s, " %s: %s", f.name, f.doc)
			if !f.required {
				s.WriteString(" (optional)")
			}
			s.WriteString(".")
		}
		s.WriteString("\n")
	}
	s.WriteString("Each request is checked before it is carried out. Mentions, links to other sites and words that close issues are taken out of its text.\n")
	return s.String()
}

// Done is what carrying out one request gave.
type Done struct {
	Kind   RequestKind `json:"kind"`
	Number int         `json:"number"`
	URL    string      `json:"url,omitempty"`
	// Existed: an earlier try of the same run had done it.
	Existed bool `json:"existed,omitempty"`
	// Dropped are labels and people that GitHub left out.
	Dropped []string `json:"dropped,omitempty"`
}

// Own are the run's own items, the targets of requests that name none; 0 if there is none.
type Own struct {
	Pull, Issue int
}

// target is what a request is about.
func (o Own) target(r Request) int {
	switch {
	case r.Number != 0:
		return r.Number
	case r.Kind == RequestReviewers, r.Kind == RequestReview:
		return o.Pull
	case r.Kind == RequestAssign, r.Kind == RequestClose, o.Pull == 0:
		return o.Issue
	}
	return o.Pull
}

// Perform carries out a request that the gate allowed, as one write. index makes the request's marker, so that a second call finds
// the first one's work. A pull_request is not performed here: it is title and body of the run's Delivery.
func Perform(ctx context.Context, c *Client, repo Repo, run string, index int, own Own, v RequestVerdict) (Done, error) {
	if err := v.Verdict.Err(); err != nil {
		return Done{}, err
	}
	r, op := v.Request, Op{Run: run, Name: fmt.Sprintf("request-%d", index)}
	target := own.target(r)
	if target == 0 && r.Kind != RequestIssue {
		return Done{}, fmt.Errorf("%w: the run has nothing of its own that %s could be about", ErrOutOfBounds, r.Kind)
	}
	switch r.Kind {
	case RequestIssue:
		i, err := c.CreateIssue(ctx, repo, NewIssue{Title: r.Title, Body: r.Body, Labels: r.Labels, Op: op})
		return Done{r.Kind, i.Number, i.URL, i.Existed, i.Dropped}, err
	case RequestComment:
		x, err := c.Comment(ctx, repo, target, NewComment{Body: r.Body, Op: op})
		return Done{r.Kind, target, x.URL, x.Existed, nil}, err
	case RequestLabels:
		got, err := c.AddLabels(ctx, repo, target, r.Labels)
		return Done{r.Kind, target, "", false, missing(r.Labels, got)}, err
	case RequestAssign:
		dropped, err := c.Assign(ctx, repo, target, r.People)
		return Done{r.Kind, target, "", false, dropped}, err
	case RequestReviewers:
		p, err := c.RequestReviewers(ctx, repo, target, r.People, nil)
		return Done{r.Kind, target, p.URL, false, nil}, err
	case RequestReview:
		return Done{Kind: r.Kind, Number: target}, c.Review(ctx, repo, target, ReviewComment, r.Body, op)
	case RequestClose:
		i, err := c.CloseIssue(ctx, repo, target, true)
		return Done{r.Kind, target, i.URL, false, nil}, err
	}
	return Done{}, fmt.Errorf("%w: %s is not carried out as a request", ErrOutOfBounds, r.Kind)
}
