package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/secrets"
)

// maxBody bounds a question, in bytes: the providers' own bound. The largest contexts of today's models take half of it.
const maxBody = 32 << 20

// readTime bounds the time that a question takes to arrive, and each piece of an answer to be taken.
const readTime = 2 * time.Minute

// ServeHTTP answers one call.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	closed := g.closed
	if !closed {
		g.calls.Add(1)
	}
	g.mu.Unlock()
	if closed {
		panic(http.ErrAbortHandler)
	}
	defer g.calls.Done()
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime)) // a server has one always
	prefix, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	path = "/" + path
	api := API(prefix)
	s, known := speechOf(api)
	if !known || g.upstream[api] == nil {
		http.Error(w, "sbxpair gateway: there is no such API here\n", http.StatusNotFound)
		return
	}
	refuse := func(status int, format string, args ...any) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Sbxpair-Refused", "true")
		if status == http.StatusBadRequest {
			w.Header().Set("X-Should-Retry", "false") // which the SDKs of OpenAI and Anthropic heed
		}
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(s.fault(status, "sbxpair gateway: "+fmt.Sprintf(format, args...)))
	}
	if !g.here(r.Host) { // a page in somebody's browser, say
		refuse(http.StatusMisdirectedRequest, "this is not the host %q", r.Host)
		return
	}
	run := g.known(presented(r.Header))
	endpoint, served := s.find(r.Method, path)
	switch {
	case run == nil:
		refuse(http.StatusUnauthorized, "the key is not that of a run")
	case !slices.Contains(run.APIs, api):
		refuse(http.StatusForbidden, "the run may not use %s", api)
	case !served || r.URL.RawPath != "" || r.Header.Get("Upgrade") != "":
		refuse(http.StatusForbidden, "%s %s is not among the calls that a run may make", r.Method, path)
	default:
		select {
		case run.calls <- struct{}{}:
			defer func() { <-run.calls }()
			g.pass(w, r, &exchange{run: run, api: api, speech: s, call: endpoint, path: path, refuse: refuse})
		default:
			refuse(http.StatusTooManyRequests, "the run has %d calls under way already", MaxCalls)
		}
	}
}

// here reports whether a request was meant for this server by name.
func (g *Gateway) here(host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil || port != fmt.Sprint(g.Port()) {
		return false
	}
	return slices.Contains([]string{"host.docker.internal", "localhost", "127.0.0.1", "gateway.docker.internal"}, strings.ToLower(name))
}

func (g *Gateway) known(key secrets.Value) *grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	var found *grant
	for _, r := range g.runs {
		if r.key.Equal(key) {
			found = r
		}
	}
	return found
}

// exchange is one call on its way.
type exchange struct {
	run    *grant
	api    API
	speech speech
	call   call
	path   string
	refuse func(status int, format string, args ...any)
	model  string
}

// maxRefusals is how many refused calls of a run are written down: an agent that asks for ever fills no disk.
const maxRefusals = 100

// pass checks a call against models and caps, sends it on, hands the answer back as it comes, and writes the ledger.
func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, x *exchange) {
	begun := time.Now()
	entry := Entry{At: begun.UTC(), Call: rand.Text(), Batch: g.o.Batch, Run: x.run.Run, API: x.api}
	reject := func(why string) {
		entry.Refused, entry.TookMS = why, time.Since(begun).Milliseconds()
		if x.run.refused.Add(1) <= maxRefusals {
			if err := g.o.Ledger.Append(entry); err != nil {
				g.o.Log.Warn("gateway", "err", err)
			}
		}
		x.refuse(http.StatusBadRequest, "%s", why) // clients try 429 and 5xx again for minutes, and take 401 and 403 for a bad key
	}
	var body []byte
	streams := false
	if r.Method == http.MethodPost {
		var err error
		if body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
			x.refuse(http.StatusRequestEntityTooLarge, "the question cannot be read, or is larger than %d bytes", maxBody)
			return
		}
		if body, streams, err = g.read(x, r.URL.Query(), body); err != nil {
			reject(err.Error())
			return
		}
		entry.Model = x.model
	}
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Time{}) // what is left to come is the client's hanging up
	if x.call.usage != nil {
		if why := g.admit(x, entry, int64(len(body))); why != "" {
			reject(why)
			return
		}
	}
	ctx, cancel := context.WithTimeout(g.ctx, g.o.Limit)
	defer cancel()
	// Whoever hangs up when the answer is there, and the bill is not, gets the bill all the same.
	defer context.AfterFunc(r.Context(), func() { time.AfterFunc(g.o.Linger, cancel) })()
	done := func(sent, received int64, whole bool) error {
		entry.TookMS = time.Since(begun).Milliseconds()
		if x.call.usage != nil && entry.Status < 300 {
			entry.Usage.final = entry.Usage.final && whole
			entry.Usage.guess(sent, received)
		} else {
			entry.Usage = Usage{} // an error is not paid for, whatever it tells
		}
		usd, priced := g.cost(x.model, entry.Usage)
		entry.USD, entry.Unpriced = usd, !priced && entry.Input+entry.Output > 0
		err := g.o.Ledger.Append(entry)
		if err != nil {
			g.o.Log.Warn("gateway", "err", err) // the line before the call stands
		}
		return err
	}
	res, err := g.o.Transport.RoundTrip(g.request(ctx, r, x, body))
	if err == nil {
		if err = readable(res); err != nil {
			res.Body.Close()
		}
	}
	if err != nil {
		done(int64(len(body)), 0, false) // it may have arrived
		x.refuse(http.StatusBadGateway, "%s gives no answer: %s", x.api, g.redact.String(err.Error()))
		return
	}
	defer res.Body.Close()
	entry.Status = res.StatusCode
	for _, name := range []string{"Content-Type", "Retry-After", "Request-Id", "X-Request-Id", "X-Should-Retry"} {
		if v := res.Header.Get(name); v != "" {
			w.Header().Set(name, g.redact.String(v))
		}
	}
	m := &meter{read: x.call.usage, streams: streams && strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"), usage: &entry.Usage}
	w.WriteHeader(res.StatusCode)
	to := &client{w: w, control: control}
	mask := g.redact.Writer(to)
	received, err := io.Copy(io.MultiWriter(mask, m), res.Body)
	err = errors.Join(err, mask.Close())
	m.end()
	// Cut off there, so cut off here; nor must a client take for whole what is not on the books.
	if errors.Join(done(int64(len(body)), received, err == nil), err, to.gone) != nil {
		panic(http.ErrAbortHandler)
	}
}

// read takes a question apart, and returns it as it goes out, and whether its answer is to be a stream.
func (g *Gateway) read(x *exchange, query url.Values, body []byte) (out []byte, streams bool, err error) {
	g.reading.Lock() // several large ones at once would take all memory
	defer g.reading.Unlock()
	q := question{speech: x.speech, path: x.path}
	if json.Unmarshal(body, &q.fields) != nil || q.fields == nil {
		return nil, false, errors.New("the question is not a JSON object")
	}
	if x.call.usage != nil {
		name := x.call.model(x.path, q.fields)
		if !modelName.MatchString(name) {
			return nil, false, errors.New("the question names no model")
		}
		x.model, streams = name, x.call.stream(query, q.fields)
	}
	out, err = q.countable(streams)
	return out, streams, err
}

// readable says why an answer cannot be passed on: it is no answer, or nobody can count in it.
func readable(res *http.Response) error {
	if res.StatusCode < 200 || res.StatusCode > 599 {
		return fmt.Errorf("its answer has the status %d", res.StatusCode)
	}
	if coding := res.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return fmt.Errorf("its answer is packed (%q), which nobody asked for", coding)
	}
	return nil
}

// modelName is what a model can be called. What fits goes into the ledger.
var modelName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$`)

// admit says why a call may not be made, or writes down that it is under way, with what it is guessed to cost at least, so
// that many at once do not pass a cap together.
func (g *Gateway) admit(x *exchange, entry Entry, size int64) string {
	if len(x.run.Models) > 0 && !slices.Contains(x.run.Models, x.model) {
		return fmt.Sprintf("the run may not use the model %q; its models: %s", x.model, strings.Join(x.run.Models, ", "))
	}
	entry.UnderWay = true
	entry.Usage.guess(size, 0)
	priced := false
	if entry.USD, priced = g.cost(x.model, entry.Usage); !priced && (x.run.Caps.USD > 0 || g.o.BatchCaps.USD > 0) {
		return fmt.Sprintf("there is a cap on money and no price for the model %q in the table %s; add one (prices)", x.model, g.o.Prices.Version)
	}
	why := ""
	err := g.o.Ledger.Begin(entry, func(ofRun, ofBatch Spent) bool {
		why = cmp.Or(met("the run's", x.run.Caps, ofRun), met("the batch's", g.o.BatchCaps, ofBatch))
		return why == ""
	})
	switch {
	case err != nil:
		return err.Error()
	case why != "":
		g.mu.Lock()
		defer g.mu.Unlock()
		g.capped[x.run.Run] = why
	}
	return why
}

// met says which cap is reached by what is spent and what is under way.
func met(whose string, c Caps, spent Spent) string {
	tokens := spent.Input + spent.Output
	switch {
	case c.Tokens > 0 && tokens >= c.Tokens:
		return fmt.Sprintf("%s cap of %d tokens is reached: %d", whose, c.Tokens, tokens)
	case c.USD > 0 && spent.USD >= c.USD:
		return fmt.Sprintf("%s cap of %.2f dollars is reached: %.2f", whose, c.USD, spent.USD)
	}
	return ""
}

func (g *Gateway) cost(model string, u Usage) (usd float64, known bool) {
	return g.o.Prices.Cost(model, prices.Tokens{Input: u.Input, Cached: u.Cached, Written: u.Written, Hour: u.hour, Output: u.Output})
}

// request is the call as the provider gets it: the provider's key, and of the client's headers those that say something
// about the question. Neither cookies nor the run's own key go out, nor a key for idempotency, for which the transport would
// send a question twice by itself.
func (g *Gateway) request(ctx context.Context, r *http.Request, x *exchange, body []byte) *http.Request {
	up := *g.upstream[x.api]
	up.Path += x.path
	query, asked := url.Values{}, r.URL.Query()
	for _, name := range []string{"alt", "beta", "pageSize", "pageToken", "limit", "after_id"} {
		if asked.Has(name) {
			query.Set(name, asked.Get(name))
		}
	}
	up.RawQuery = query.Encode()
	out := (&http.Request{
		Method: r.Method, URL: &up, Host: up.Host, Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		GetBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil },
	}).WithContext(ctx)
	if len(body) == 0 {
		out.Body = http.NoBody
	}
	for name, values := range r.Header {
		if slices.Contains([]string{"Accept", "Content-Type", "User-Agent", "Anthropic-Version", "Anthropic-Beta", "Openai-Beta"}, name) {
			out.Header[name] = values
		}
	}
	out.Header.Set(x.speech.header, x.speech.scheme+g.o.Upstreams[x.api].Key.Reveal())
	return out
}
