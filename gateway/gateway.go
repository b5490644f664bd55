// Package gateway stands on the host between agent sandboxes and the providers of models. It holds the provider's key, so
// that no sandbox, no engine and no proxy does; lets a run speak to the endpoints of its own models and to nothing else;
// passes answers on as they come; counts tokens and money call by call; and stops a run, or a batch of runs, at its cap.
//
// A run is known by a key of its own, which the gateway makes ([Gateway.Register]) and which is worth nothing elsewhere: a
// run cannot spend under another one's name, nor begin anew at zero, since what it has spent stands in the [Ledger]. The
// sandbox reaches the gateway as host.docker.internal, by one rule for one port of the host's loopback.
package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/secrets"
)

// Caps bound what is spent. Zero is no bound. A call that is under way when a cap is reached is answered to its end: what is
// spent can be above a cap by what a run's calls cost that were under way, of which there are at most [MaxCalls].
type Caps struct {
	Tokens int64
	USD    float64
}

// MaxCalls is how many calls of one run may be under way at once. One more waits for none and is refused.
const MaxCalls = 8

// Upstream is where an API's calls go.
type Upstream struct {
	URL string // https, or http on a loopback address; "" is the provider's own
	Key secrets.Value
}

// Options say how a gateway works.
type Options struct {
	Upstreams map[API]Upstream // an API that is not in it is not served
	Prices    prices.Table
	Ledger    *Ledger
	Batch     string // name of the batch in the ledger
	BatchCaps Caps
	Transport http.RoundTripper                     // to the providers; nil is one of the gateway's own
	Proxy     func(*http.Request) (*url.URL, error) // for that one; nil is none
	Log       *slog.Logger                          // nil is silent
	Limit     time.Duration                         // of one call, from its first byte to its last; 0 is 30 minutes
}

// Grant is what one run may do.
type Grant struct {
	Run  string
	APIs []API
	Caps Caps
	// Models that may be called, by the names that the provider gives them. None is any model of the provider's.
	Models []string
}

// Access is what a sandbox needs to use the gateway.
type Access struct {
	Key  secrets.Value  // takes the place of the provider's key
	URLs map[API]string // base addresses, as a client of the API wants them
}

// Errors.
var (
	ErrInvalid    = errors.New("invalid gateway")
	ErrRegistered = errors.New("the run is known to the gateway already")
)

// Gateway serves runs until it is closed.
type Gateway struct {
	o        Options
	upstream map[API]*url.URL
	redact   *secrets.Redactor
	server   *http.Server
	listener net.Listener
	done     chan struct{} // closed when the server has ended

	mu     sync.Mutex
	runs   []*grant
	capped map[string]string // run: the cap that it has met
}

type grant struct {
	Grant
	key   secrets.Value
	calls chan struct{} // a token for each call under way
	// reserved is what the calls under way are guessed to cost at least, so that many at once do not pass a cap together.
	reserved Spent
}

// Serve starts a gateway on a free port of the loopback address. It ends with [Gateway.Close], or when ctx does.
func Serve(ctx context.Context, o Options) (*Gateway, error) {
	if o.Ledger == nil {
		return nil, fmt.Errorf("%w: no ledger", ErrInvalid)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Limit <= 0 {
		o.Limit = 30 * time.Minute
	}
	if o.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy, t.DisableCompression, t.ResponseHeaderTimeout = o.Proxy, true, 10*time.Minute
		o.Transport = t
		context.AfterFunc(ctx, t.CloseIdleConnections)
	}
	g := &Gateway{o: o, upstream: map[API]*url.URL{}, done: make(chan struct{}), capped: map[string]string{}}
	var keys []secrets.Value
	for api, up := range o.Upstreams {
		u, err := checkUpstream(api, up)
		if err != nil {
			return nil, err
		}
		g.upstream[api] = u
		keys = append(keys, up.Key)
	}
	g.redact = secrets.NewRedactor(keys...)
	var err error
	if g.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	g.server = &http.Server{
		Handler: g, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(g.done)
		defer cancel()
		if err := g.server.Serve(g.listener); !errors.Is(err, http.ErrServerClosed) {
			o.Log.Warn("gateway ended", "err", err)
		}
	}()
	context.AfterFunc(ctx, func() { g.server.Close() })
	return g, nil
}

// checkUpstream holds that a key goes out encrypted, or does not leave the machine.
func checkUpstream(api API, up Upstream) (*url.URL, error) {
	s, known := speechOf(api)
	if !known {
		return nil, fmt.Errorf("%w: no API is called %q", ErrInvalid, api)
	}
	if up.Key.IsZero() {
		return nil, fmt.Errorf("%w: %s has no key", ErrInvalid, api)
	}
	raw := up.URL
	if raw == "" {
		raw = s.upstream
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%w: upstream of %s: %q is not an address of a server", ErrInvalid, api, raw)
	}
	ip := net.ParseIP(u.Hostname())
	if loopback := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme != "https" && !(u.Scheme == "http" && loopback) {
		return nil, fmt.Errorf("%w: upstream of %s: %q: the key would go out in the clear; want https", ErrInvalid, api, raw)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

// Port is the port on the host's loopback.
func (g *Gateway) Port() int { return g.listener.Addr().(*net.TCPAddr).Port }

// Register makes a run known and returns what its sandbox needs. A run that has spent something before, in this process or
// in another, goes on from there. The error matches [ErrRegistered] if it is known already, and [ErrInvalid] for an API
// that the gateway has no key for.
func (g *Gateway) Register(want Grant, host string) (Access, error) {
	if want.Run == "" || len(want.APIs) == 0 {
		return Access{}, fmt.Errorf("%w: a grant names a run and an API", ErrInvalid)
	}
	secret := make([]byte, 24)
	rand.Read(secret) // never fails
	r := &grant{Grant: want, key: secrets.New("sbxpair-gateway-" + hex.EncodeToString(secret)), calls: make(chan struct{}, MaxCalls)}
	access := Access{Key: r.key, URLs: map[API]string{}}
	for _, api := range want.APIs {
		s, _ := speechOf(api)
		if g.upstream[api] == nil {
			return Access{}, fmt.Errorf("%w: there is no key for %s", ErrInvalid, api)
		}
		access.URLs[api] = fmt.Sprintf("http://%s:%d%s", host, g.Port(), s.base)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.runs {
		if other.Run == want.Run {
			return Access{}, fmt.Errorf("%w: %s", ErrRegistered, want.Run)
		}
	}
	g.runs = append(g.runs, r)
	return access, nil
}

// Revoke makes the key of a run worthless. What the run has spent stays on the ledger.
func (g *Gateway) Revoke(run string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, r := range g.runs {
		if r.Run == run {
			g.runs = append(g.runs[:i:i], g.runs[i+1:]...)
			return
		}
	}
}

// Spent returns what the run has spent by now, and the cap that has stopped it, or "".
func (g *Gateway) Spent(run string) (spent Spent, capped string, err error) {
	spent, _, err = g.o.Ledger.Sum(run, g.o.Batch)
	g.mu.Lock()
	defer g.mu.Unlock()
	return spent, g.capped[run], err
}

// Close ends the calls that are under way and the server. It returns when nothing of it runs any more, or ctx ends.
func (g *Gateway) Close(ctx context.Context) error {
	err := g.server.Close()
	select {
	case <-g.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxBody bounds a question, in bytes. The largest contexts of today's models take a quarter of it.
const maxBody = 64 << 20

// ServeHTTP answers one call.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	guess  Spent // reserved
}

// pass checks a call against models and caps, sends it on, hands the answer back as it comes, and writes the ledger.
func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, x *exchange) {
	begun := time.Now()
	entry := Entry{At: begun.UTC(), Batch: g.o.Batch, Run: x.run.Run, API: x.api}
	reject := func(status int, why string) {
		entry.Refused, entry.TookMS = why, time.Since(begun).Milliseconds()
		if err := g.o.Ledger.Append(entry); err != nil {
			g.o.Log.Warn("gateway", "err", err)
		}
		x.refuse(status, "%s", why)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		x.refuse(http.StatusRequestEntityTooLarge, "the question cannot be read, or is larger than %d bytes", maxBody)
		return
	}
	streams := false
	if x.call.usage != nil {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
			reject(http.StatusBadRequest, "the question is not a JSON object")
			return
		}
		x.model = x.call.model(x.path, fields)
		entry.Model = x.model
		streams = x.call.stream(r.URL.Query(), fields)
		if body, err = countable(x, fields, streams); err != nil {
			reject(http.StatusBadRequest, err.Error())
			return
		}
		if why := g.admit(x, int64(len(body))); why != "" {
			reject(http.StatusBadRequest, why) // clients try 429 and 5xx again for minutes, and take 401 and 403 for a bad key
			return
		}
		defer g.release(x)
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.o.Limit)
	defer cancel()
	res, err := g.o.Transport.RoundTrip(g.request(ctx, r, x, body))
	if err != nil {
		text := g.redact.String(err.Error())
		entry.TookMS = time.Since(begun).Milliseconds()
		if x.call.usage != nil { // it may have arrived all the same
			entry.Usage.guess(int64(len(body)), 0)
			entry.USD, _ = g.cost(x.model, entry.Usage)
		}
		if err := g.o.Ledger.Append(entry); err != nil {
			g.o.Log.Warn("gateway", "err", err)
		}
		x.refuse(http.StatusBadGateway, "%s gives no answer: %s", x.api, text)
		return
	}
	defer res.Body.Close()
	entry.Status = res.StatusCode
	for _, name := range []string{"Content-Type", "Retry-After", "Request-Id", "X-Request-Id", "X-Should-Retry"} {
		if v := res.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	m := &meter{read: x.call.usage, streams: streams && strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"), usage: &entry.Usage}
	w.WriteHeader(res.StatusCode)
	mask := g.redact.Writer(flusher{w})
	received, copyErr := io.Copy(io.MultiWriter(mask, m), res.Body)
	copyErr = errors.Join(copyErr, mask.Close())
	m.end()
	entry.TookMS = time.Since(begun).Milliseconds()
	if x.call.usage != nil && res.StatusCode < 300 {
		entry.Usage.final = entry.Usage.final && copyErr == nil
		entry.Usage.guess(int64(len(body)), received)
		entry.USD, _ = g.cost(x.model, entry.Usage)
	}
	if err := g.o.Ledger.Append(entry); err != nil {
		g.o.Log.Warn("gateway", "err", err)
		panic(http.ErrAbortHandler) // the client must not take for whole what is not on the books
	}
	if copyErr != nil {
		panic(http.ErrAbortHandler) // cut off there, so cut off here
	}
}

// countable returns the question as it goes out. What would not be counted is refused, or taken out: tools that the
// provider runs itself cost by the use, and reach a network that no policy of ours is about. A provider that counts only
// when it is told to is told.
func countable(x *exchange, fields map[string]json.RawMessage, streams bool) ([]byte, error) {
	switch {
	case string(fields["background"]) == "true":
		return nil, errors.New("answers in the background are not counted, and not allowed")
	case textOf(fields["service_tier"]) == "priority":
		return nil, errors.New("the priority tier has prices of its own, and is not allowed")
	}
	delete(fields, "mcp_servers") // of Anthropic's: the provider calls them
	var tools []map[string]json.RawMessage
	if raw, given := fields["tools"]; given && json.Unmarshal(raw, &tools) == nil {
		kept := make([]map[string]json.RawMessage, 0, len(tools))
		for _, tool := range tools {
			if x.speech.ours(tool) {
				kept = append(kept, tool)
			}
		}
		var err error
		if len(kept) < len(tools) {
			if fields["tools"], err = json.Marshal(kept); err != nil {
				return nil, err
			}
		}
	}
	if x.path == "/v1/chat/completions" && streams {
		options := map[string]json.RawMessage{}
		if raw := fields["stream_options"]; len(raw) > 0 && json.Unmarshal(raw, &options) != nil {
			return nil, errors.New("stream_options is not an object")
		}
		if options == nil { // null
			options = map[string]json.RawMessage{}
		}
		options["include_usage"] = json.RawMessage("true")
		var err error
		if fields["stream_options"], err = json.Marshal(options); err != nil {
			return nil, err
		}
	}
	// Written anew in any case: a key that stands there twice means one thing to us and another to the provider.
	return json.Marshal(fields)
}

// admit says why a call may not be made, or reserves what it is guessed to cost.
func (g *Gateway) admit(x *exchange, size int64) string {
	if x.model == "" {
		return "the question names no model"
	}
	if len(x.run.Models) > 0 && !slices.Contains(x.run.Models, x.model) {
		return fmt.Sprintf("the run may not use the model %q; its models: %s", x.model, strings.Join(x.run.Models, ", "))
	}
	guess := Usage{Input: size / bytesPerToken}
	usd, priced := g.cost(x.model, guess)
	if !priced && (x.run.Caps.USD > 0 || g.o.BatchCaps.USD > 0) {
		return fmt.Sprintf("there is a cap on money and no price for the model %q in the table %s; add one (prices)", x.model, g.o.Prices.Version)
	}
	ofRun, ofBatch, err := g.o.Ledger.Sum(x.run.Run, g.o.Batch)
	if err != nil {
		return err.Error()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	underWay := Spent{}
	for _, r := range g.runs {
		underWay.Input += r.reserved.Input
		underWay.USD += r.reserved.USD
	}
	why := met("the run's", x.run.Caps, ofRun, x.run.reserved)
	if why == "" {
		why = met("the batch's", g.o.BatchCaps, ofBatch, underWay)
	}
	if why != "" {
		g.capped[x.run.Run] = why
		return why
	}
	x.guess = Spent{Input: guess.Input, USD: usd}
	x.run.reserved.Input += x.guess.Input
	x.run.reserved.USD += x.guess.USD
	return ""
}

func (g *Gateway) release(x *exchange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x.run.reserved.Input -= x.guess.Input
	x.run.reserved.USD -= x.guess.USD
}

// met says which cap is reached by what is spent and what is under way.
func met(whose string, c Caps, spent, underWay Spent) string {
	tokens, usd := spent.Input+spent.Output+underWay.Input, spent.USD+underWay.USD
	switch {
	case c.Tokens > 0 && tokens >= c.Tokens:
		return fmt.Sprintf("%s cap of %d tokens is reached: %d", whose, c.Tokens, tokens)
	case c.USD > 0 && usd >= c.USD:
		return fmt.Sprintf("%s cap of %.2f dollars is reached: %.2f", whose, c.USD, usd)
	}
	return ""
}

func (g *Gateway) cost(model string, u Usage) (usd float64, known bool) {
	return g.o.Prices.Cost(model, prices.Tokens{Input: u.Input, Cached: u.Cached, Output: u.Output})
}

// request is the call as the provider gets it: the provider's key, and of the client's headers those that say something
// about the question. Neither cookies nor the run's own key go out.
func (g *Gateway) request(ctx context.Context, r *http.Request, x *exchange, body []byte) *http.Request {
	up := *g.upstream[x.api]
	up.Path += x.path
	query := url.Values{}
	for _, name := range []string{"alt", "beta", "pageSize", "pageToken", "limit", "after_id"} {
		if v, ok := r.URL.Query()[name]; ok {
			query[name] = v
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
		if slices.Contains([]string{"Accept", "Content-Type", "User-Agent", "Anthropic-Version", "Anthropic-Beta", "Openai-Beta", "Idempotency-Key"}, name) {
			out.Header[name] = values
		}
	}
	out.Header.Set(x.speech.header, x.speech.scheme+g.o.Upstreams[x.api].Key.Reveal())
	return out
}

// flusher hands each piece on at once: an answer is read while it is written.
type flusher struct{ w http.ResponseWriter }

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if flush, ok := f.w.(http.Flusher); ok {
		flush.Flush()
	}
	return n, err
}

// maxEvent bounds one event of a stream, and a whole answer, as far as they are read for their usage.
const maxEvent = 16 << 20

// meter reads the usage off an answer that passes by.
type meter struct {
	read    func(event []byte, into *Usage)
	streams bool
	usage   *Usage
	held    []byte
	lost    bool // the line under way was too long
}

func (m *meter) Write(p []byte) (int, error) {
	if m.read == nil {
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		line, after, ended := rest, []byte(nil), false
		if m.streams {
			if at := bytes.IndexByte(rest, '\n'); at >= 0 {
				line, after, ended = rest[:at], rest[at+1:], true
			}
		}
		if m.lost = m.lost || len(m.held)+len(line) > maxEvent; m.lost {
			m.held = nil
		} else {
			m.held = append(m.held, line...)
		}
		if ended {
			m.event()
		}
		rest = after
	}
	return len(p), nil
}

// event reads a line that is whole.
func (m *meter) event() {
	if data, is := bytes.CutPrefix(m.held, []byte("data:")); is && !m.lost {
		m.read(bytes.TrimSpace(data), m.usage)
	}
	m.held, m.lost = m.held[:0], false
}

func (m *meter) end() {
	switch {
	case m.read == nil:
	case m.streams:
		m.event()
	case !m.lost:
		m.read(m.held, m.usage)
	}
}
