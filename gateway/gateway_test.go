package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sbxpair/sbxpair/gateway"
	"github.com/sbxpair/sbxpair/prices"
	"github.com/sbxpair/sbxpair/secrets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const providerKey = "sk-proj-canarycanarycanarycanary0123456789"

// world is a gateway in front of a provider that the test plays.
type world struct {
	*gateway.Gateway
	t      *testing.T
	ledger *gateway.Ledger
	path   string
	access gateway.Access
	mu     sync.Mutex
	seen   []*http.Request
	bodies []string
}

func newWorld(t *testing.T, grant gateway.Grant, change func(*gateway.Options), answer http.HandlerFunc) *world {
	t.Helper()
	w := &world{t: t, path: filepath.Join(t.TempDir(), "state", "ledger.jsonl")}
	provider := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		w.seen, w.bodies = append(w.seen, r), append(w.bodies, string(body))
		w.mu.Unlock()
		answer(rw, r)
	}))
	t.Cleanup(provider.Close)
	var err error
	if w.ledger, err = gateway.OpenLedger(w.path); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	table, err := prices.Parse(strings.NewReader(`{"version":"test","models":{"m-1":{"input":10,"cached":1,"output":100}}}`))
	if err != nil {
		t.Fatal(err)
	}
	o := gateway.Options{Upstreams: map[gateway.API]gateway.Upstream{}, Prices: table, Ledger: w.ledger, Batch: "night", Transport: transport}
	for _, api := range gateway.APIs() {
		o.Upstreams[api] = gateway.Upstream{URL: provider.URL, Key: secrets.New(providerKey)}
	}
	if change != nil {
		change(&o)
	}
	if w.Gateway, err = gateway.Serve(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if grant.Run == "" {
		grant.Run = "run1"
	}
	if grant.APIs == nil {
		grant.APIs = gateway.APIs()
	}
	if w.access, err = w.Register(grant, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	return w
}

// ask makes a call as a client of the API does and returns status and body.
func (w *world) ask(api gateway.API, method, path, body string, change func(*http.Request)) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.access.URLs[api]+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	switch api {
	case gateway.OpenAI:
		req.Header.Set("Authorization", "Bearer "+w.access.Key.Reveal())
	case gateway.Anthropic:
		req.Header.Set("X-Api-Key", w.access.Key.Reveal())
	case gateway.Google:
		req.Header.Set("X-Goog-Api-Key", w.access.Key.Reveal())
	}
	if change != nil {
		change(req)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, string(text) + "!" + err.Error()
	}
	return res.StatusCode, string(text)
}

// entries are the lines of calls that have ended.
func (w *world) entries() []gateway.Entry {
	w.t.Helper()
	ended, _ := w.lines()
	return ended
}

// settled are the lines of all calls, once none is under way: the last piece of an answer comes before its line.
func (w *world) settled() []gateway.Entry {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		ended, begun := w.lines()
		if begun <= 0 {
			return ended
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d calls are still under way", begun)
		}
	}
}

// lines reads the ledger: the lines of calls that have ended, and counts the calls that have begun and not ended.
func (w *world) lines() (ended []gateway.Entry, begun int) {
	w.t.Helper()
	open := map[string]bool{}
	for line := range strings.Lines(read(w.t, w.path)) {
		var e gateway.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			w.t.Fatalf("ledger line %q: %v", line, err)
		}
		if e.UnderWay {
			open[e.Call] = true
			continue
		}
		delete(open, e.Call)
		ended = append(ended, e)
	}
	return ended, len(open)
}

func events(lines ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, line := range lines {
			fmt.Fprintf(w, "event: x\ndata: %s\n\n", line)
		}
	}
}

func whole(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body)
	}
}

// Every wire format is counted, as a whole and as a stream, and paid by the table; the provider gets its own key in its own
// header and nothing of the run's.
func TestFormats(t *testing.T) {
	for name, tt := range map[string]struct {
		api        gateway.API
		path, body string
		answer     http.HandlerFunc
		want       gateway.Usage
		header     string
	}{
		"chat": {gateway.OpenAI, "/chat/completions", `{"model":"m-1"}`,
			whole(`{"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":40}}}`), gateway.Usage{Input: 100, Cached: 40, Output: 7}, "Authorization"},
		"chat stream": {gateway.OpenAI, "/chat/completions", `{"model":"m-1","stream":true}`,
			events(`{"choices":[{}],"usage":null}`, `{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7}}`, `[DONE]`), gateway.Usage{Input: 100, Output: 7}, "Authorization"},
		"responses": {gateway.OpenAI, "/responses", `{"model":"m-1"}`,
			whole(`{"usage":{"input_tokens":100,"output_tokens":7,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":9}}}`), gateway.Usage{Input: 100, Cached: 4, Written: 9, Output: 7}, "Authorization"},
		"responses stream": {gateway.OpenAI, "/responses", `{"model":"m-1","stream":true}`,
			events(`{"type":"response.created","response":{"usage":null}}`, `{"type":"response.completed","response":{"usage":{"input_tokens":100,"output_tokens":7}}}`), gateway.Usage{Input: 100, Output: 7}, "Authorization"},
		"messages": {gateway.Anthropic, "/v1/messages?beta=true", `{"model":"m-1"}`,
			whole(`{"usage":{"input_tokens":50,"cache_creation_input_tokens":10,"cache_read_input_tokens":40,"output_tokens":7}}`), gateway.Usage{Input: 100, Cached: 40, Written: 10, Output: 7}, "X-Api-Key"},
		"messages in iterations": {gateway.Anthropic, "/v1/messages", `{"model":"m-1"}`,
			whole(`{"usage":{"input_tokens":20,"output_tokens":1,"iterations":[{"type":"compaction","input_tokens":80,"output_tokens":6},{"type":"message","input_tokens":20,"output_tokens":1}]}}`), gateway.Usage{Input: 100, Output: 7}, "X-Api-Key"},
		"messages stream": {gateway.Anthropic, "/v1/messages", `{"model":"m-1","stream":true}`,
			events(`{"type":"message_start","message":{"usage":{"input_tokens":60,"cache_read_input_tokens":40,"output_tokens":1}}}`, `{"type":"message_delta","usage":{"output_tokens":7}}`), gateway.Usage{Input: 100, Cached: 40, Output: 7}, "X-Api-Key"},
		"gemini": {gateway.Google, "/v1beta/models/m-1:generateContent", `{}`,
			whole(`{"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":3,"thoughtsTokenCount":4,"cachedContentTokenCount":10}}`), gateway.Usage{Input: 100, Cached: 10, Output: 7}, "X-Goog-Api-Key"},
		"gemini stream": {gateway.Google, "/v1beta/models/m-1:streamGenerateContent?alt=sse", `{}`,
			events(`{"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":2}}`, `{"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":7}}`), gateway.Usage{Input: 100, Output: 7}, "X-Goog-Api-Key"},
		"gemini list": {gateway.Google, "/v1beta/models/m-1:streamGenerateContent", `{}`,
			whole(`[{"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":2}},{"usageMetadata":{"promptTokenCount":100,"candidatesTokenCount":7}}]`), gateway.Usage{Input: 100, Output: 7}, "X-Goog-Api-Key"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, gateway.Grant{}, nil, tt.answer)
			if status, body := w.ask(tt.api, "POST", tt.path, tt.body, func(r *http.Request) {
				r.Header.Set("Cookie", "a=b")
				r.Header.Set("Anthropic-Version", "2023-06-01")
			}); status != 200 || !strings.Contains(strings.ToLower(body), "usage") {
				t.Fatalf("%d: %s", status, body)
			}
			list := w.settled()
			if len(list) != 1 || list[0].Usage != tt.want || list[0].Run != "run1" || list[0].Model != "m-1" || list[0].Batch != "night" || list[0].Status != 200 {
				t.Fatalf("ledger: %+v", list)
			}
			usd := (float64(tt.want.Input-tt.want.Cached)*10 + float64(tt.want.Cached) + float64(tt.want.Output)*100) / 1e6
			if spent, capped, err := w.Spent("run1"); err != nil || capped != "" || spent.Calls != 1 || abs(spent.USD-usd) > 1e-12 || spent.Input != tt.want.Input {
				t.Errorf("spent %+v (%v dollars wanted), %q, %v", spent, usd, capped, err)
			}
			got := w.seen[0]
			all := fmt.Sprint(got.Header, got.URL)
			if strings.TrimPrefix(got.Header.Get(tt.header), "Bearer ") != providerKey || strings.Contains(all, w.access.Key.Reveal()) || got.Header.Get("Cookie") != "" || got.Header.Get("Anthropic-Version") == "" {
				t.Errorf("the provider gets %s", all)
			}
			if strings.Contains(tt.path, "chat") && strings.Contains(tt.body, "stream") && !strings.Contains(w.bodies[0], `"include_usage":true`) {
				t.Errorf("the provider is not asked to count: %s", w.bodies[0])
			}
		})
	}
}

func abs(f float64) float64 { return max(f, -f) }

// What a run may not do, and who is not a run.
func TestRefusals(t *testing.T) {
	w := newWorld(t, gateway.Grant{APIs: []gateway.API{gateway.OpenAI}, Models: []string{"m-1"}}, nil, whole(`{}`))
	if _, err := w.Register(gateway.Grant{Run: "run1", APIs: []gateway.API{gateway.OpenAI}}, "x"); !errors.Is(err, gateway.ErrRegistered) {
		t.Errorf("a run began anew: %v", err)
	}
	for name, tt := range map[string]struct {
		method, path, body string
		change             func(*http.Request)
		status             int
		text               string
	}{
		"no key":             {"POST", "/responses", `{"model":"m-1"}`, func(r *http.Request) { r.Header.Del("Authorization") }, 401, "not that of a run"},
		"the provider's key": {"POST", "/responses", `{"model":"m-1"}`, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+providerKey) }, 401, "not that of a run"},
		"another host":       {"POST", "/responses", `{"model":"m-1"}`, func(r *http.Request) { r.Host = "evil.example:80" }, 421, "evil.example"},
		"host without port":  {"POST", "/responses", `{"model":"m-1"}`, func(r *http.Request) { r.Host = "localhost" }, 421, "not the host"},
		"another API":        {"POST", "", `{"model":"m-1"}`, func(r *http.Request) { r.URL.Path = "/anthropic/v1/messages" }, 403, "may not use anthropic"},
		"no such API":        {"POST", "", `{"model":"m-1"}`, func(r *http.Request) { r.URL.Path = "/bedrock/v1/messages" }, 404, "no such API"},
		"files":              {"POST", "/files", `{}`, nil, 403, "not among the calls"},
		"method":             {"DELETE", "/models/m-1", ``, nil, 403, "not among the calls"},
		"escaped path":       {"GET", "/models%2f..%2ffiles", ``, nil, 403, "not among the calls"},
		"websocket": {"GET", "/models", ``, func(r *http.Request) {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
		}, 403, "not among the calls"},
		"model":          {"POST", "/responses", `{"model":"m-2"}`, nil, 400, "may not use the model"},
		"model twice":    {"POST", "/responses", `{"model":"m-1","model":"m-2"}`, nil, 400, "may not use the model"},
		"no model":       {"POST", "/responses", `{}`, nil, 400, "names no model"},
		"no JSON":        {"POST", "/responses", `model: m-1`, nil, 400, "not a JSON object"},
		"a list":         {"POST", "/responses", `[]`, nil, 400, "not a JSON object"},
		"null":           {"POST", "/responses", `null`, nil, 400, "not a JSON object"},
		"background":     {"POST", "/responses", `{"model":"m-1","background":true}`, nil, 400, "background"},
		"priority":       {"POST", "/responses", `{"model":"m-1","service_tier":"priority"}`, nil, 400, "priority"},
		"stream options": {"POST", "/chat/completions", `{"model":"m-1","stream":true,"stream_options":[]}`, nil, 400, "stream_options"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := w.ask(gateway.OpenAI, tt.method, tt.path, tt.body, tt.change)
			if status != tt.status || !strings.Contains(body, tt.text) || strings.Contains(body, providerKey) {
				t.Errorf("%d: %s", status, body)
			}
		})
	}
	if len(w.seen) != 0 {
		t.Errorf("%d calls went through", len(w.seen))
	}
	w.Revoke("run1")
	if status, _ := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil); status != 401 {
		t.Errorf("a key that was revoked: %d", status)
	}
}

// Tools that the provider runs are taken out; the client's own stay.
func TestProvidersTools(t *testing.T) {
	w := newWorld(t, gateway.Grant{}, nil, whole(`{}`))
	for _, tt := range []struct {
		api              gateway.API
		path, body, want string
	}{
		{gateway.OpenAI, "/responses", `{"model":"m-1","tools":[{"type":"function","name":"f"},{"type":"web_search"},{"type":"mcp","server_url":"https://x"},{"type":"local_shell"}]}`, `{"model":"m-1","store":false,"tools":[{"name":"f","type":"function"},{"type":"local_shell"}]}`},
		{gateway.Anthropic, "/v1/messages", `{"model":"m-1","mcp_servers":[{}],"tools":[{"name":"Bash"},{"type":"bash_20250124"},{"type":"web_fetch_20250910"},{"type":"code_execution_20250825"}]}`, `{"model":"m-1","tools":[{"name":"Bash"},{"type":"bash_20250124"}]}`},
		{gateway.Google, "/v1beta/models/m-1:generateContent", `{"tools":[{"functionDeclarations":[]},{"googleSearch":{}},{"urlContext":{}}]}`, `{"tools":[{"functionDeclarations":[]}]}`},
	} {
		if status, body := w.ask(tt.api, "POST", tt.path, tt.body, nil); status != 200 {
			t.Fatalf("%d: %s", status, body)
		}
		if got := w.bodies[len(w.bodies)-1]; got != tt.want {
			t.Errorf("%s goes out as\n%s, want\n%s", tt.api, got, tt.want)
		}
	}
}

// Caps hold for a run, for a batch over several runs and processes, in tokens and in money, and the answer says which.
func TestCaps(t *testing.T) {
	answer := whole(`{"usage":{"input_tokens":1000,"output_tokens":100}}`) // 0.02 dollars
	ask := func(w *world) (int, string) {
		return w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil)
	}
	until := func(w *world) (through int, body string) {
		for range 20 {
			status := 0
			if status, body = ask(w); status != 200 {
				return through, fmt.Sprint(status, " ", body)
			}
			through++
		}
		return through, body
	}
	for name, tt := range map[string]struct {
		grant  gateway.Caps
		batch  gateway.Caps
		calls  int
		answer string
	}{
		"tokens":        {gateway.Caps{Tokens: 3000}, gateway.Caps{}, 3, "400 "},
		"money":         {gateway.Caps{USD: 0.05}, gateway.Caps{}, 3, "the run's cap of 0.05 dollars is reached: 0.06"},
		"batch, tokens": {gateway.Caps{}, gateway.Caps{Tokens: 2000}, 2, "the batch's cap of 2000 tokens is reached: 2200"},
		"batch, money":  {gateway.Caps{USD: 9}, gateway.Caps{USD: 0.01}, 1, "the batch's cap of 0.01 dollars"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, gateway.Grant{Caps: tt.grant}, func(o *gateway.Options) { o.BatchCaps = tt.batch }, answer)
			calls, body := until(w)
			if calls != tt.calls || !strings.Contains(body, tt.answer) {
				t.Errorf("%d calls, then %s", calls, body)
			}
			spent, capped, err := w.Spent("run1")
			if err != nil || !strings.Contains(body, capped) || capped == "" || spent.Calls != calls {
				t.Errorf("%+v, %q, %v", spent, capped, err)
			}
			last := w.settled()[calls]
			if last.Refused != capped || last.Status != 0 {
				t.Errorf("ledger: %+v", last)
			}
			// A new key for the run, as after a crash, does not begin at zero.
			w.Revoke("run1")
			if w.access, err = w.Register(gateway.Grant{Run: "run1", APIs: gateway.APIs(), Caps: tt.grant}, "127.0.0.1"); err != nil {
				t.Fatal(err)
			}
			if status, _ := ask(w); status != 400 {
				t.Errorf("after a new key: %d", status)
			}
		})
	}
	t.Run("another process of the batch", func(t *testing.T) {
		w := newWorld(t, gateway.Grant{}, func(o *gateway.Options) { o.BatchCaps.Tokens = 2000 }, answer)
		other, err := gateway.OpenLedger(w.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Append(gateway.Entry{Run: "run2", Batch: "night", Usage: gateway.Usage{Input: 2000}}); err != nil {
			t.Fatal(err)
		}
		if err := other.Append(gateway.Entry{Run: "run3", Batch: "day", Usage: gateway.Usage{Input: 2000}}); err != nil {
			t.Fatal(err)
		}
		if status, body := ask(w); status != 400 || !strings.Contains(body, "2000 tokens is reached: 2000") {
			t.Errorf("%d: %s", status, body)
		}
	})
	t.Run("a model without a price, and no cap on money", func(t *testing.T) {
		w := newWorld(t, gateway.Grant{}, nil, answer)
		w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-9"}`, nil)
		if spent, _, err := w.Spent("run1"); err != nil || spent.Calls != 1 || strings.Join(spent.Unpriced, " ") != "m-9" {
			t.Errorf("looks as if it was for nothing: %+v, %v", spent, err)
		}
	})
	t.Run("a model without a price", func(t *testing.T) {
		w := newWorld(t, gateway.Grant{Caps: gateway.Caps{USD: 1}}, nil, answer)
		if status, body := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-9"}`, nil); status != 400 || !strings.Contains(body, "no price for the model") {
			t.Errorf("%d: %s", status, body)
		}
	})
}

// Many calls at once do not pass a cap together, nor more than are allowed at once.
func TestManyAtOnce(t *testing.T) {
	var under, most atomic.Int32
	gate := make(chan struct{})
	w := newWorld(t, gateway.Grant{}, nil, func(rw http.ResponseWriter, _ *http.Request) {
		most.Store(max(most.Load(), under.Add(1)))
		<-gate
		under.Add(-1)
		io.WriteString(rw, `{"usage":{"input_tokens":10,"output_tokens":1}}`)
	})
	var answers [3 * gateway.MaxCalls]int
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i], _ = w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil) })
	}
	deadline := time.Now().Add(10 * time.Second)
	for under.Load() < gateway.MaxCalls && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	close(gate)
	wg.Wait()
	count := map[int]int{}
	for _, status := range answers {
		count[status]++
	}
	if most.Load() > gateway.MaxCalls || count[200] < gateway.MaxCalls || count[200]+count[429] != len(answers) {
		t.Errorf("%v, %d at once", count, most.Load())
	}
	if spent, _, err := w.Spent("run1"); err != nil || spent.Calls != count[200] || spent.Input != int64(10*count[200]) {
		t.Errorf("%+v, %v", spent, err)
	}
}

// An answer comes through piece by piece, and one that is cut off, by either side, is paid for and is not taken for whole.
func TestStreaming(t *testing.T) {
	next := make(chan string)
	w := newWorld(t, gateway.Grant{}, func(o *gateway.Options) { o.Linger = 10 * time.Millisecond }, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for line := range next {
			if line == "cut" {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprintf(rw, "data: %s\n\n", line)
			rw.(http.Flusher).Flush()
		}
	})
	open := func(ctx context.Context) (*bufio.Reader, io.Closer) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "POST", w.access.URLs[gateway.Anthropic]+"/v1/messages", strings.NewReader(`{"model":"m-1","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", w.access.Key.Reveal())
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return bufio.NewReader(res.Body), res.Body
	}
	start := `{"type":"message_start","message":{"usage":{"input_tokens":60,"output_tokens":1}}}`
	entry := func(n int) gateway.Entry {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if list := w.entries(); len(list) == n {
				return list[n-1]
			}
		}
		t.Fatalf("no line %d in the ledger", n)
		return gateway.Entry{}
	}

	go func() { next <- start }()
	r, body := open(t.Context())
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "message_start") {
		t.Fatalf("%q, %v", line, err) // before the provider has said more
	}
	next <- "cut"
	if _, err := io.ReadAll(r); err == nil {
		t.Error("a stream that was cut off reads as whole")
	}
	body.Close()
	if e := entry(1); !e.Estimated || e.Input != 60 || e.Output < 10 || e.USD == 0 {
		t.Errorf("cut off by the provider: %+v", e)
	}

	ctx, cancel := context.WithCancel(t.Context())
	go func() { next <- start }()
	r, body = open(ctx)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel() // hanging up before the bill comes
	body.Close()
	for done := false; !done; {
		select {
		case next <- `{"type":"ping"}`:
		default:
			done = len(w.entries()) == 2
		}
	}
	if e := entry(2); !e.Estimated || e.Input != 60 || e.Output < 10 {
		t.Errorf("cut off by the client: %+v", e)
	}
	close(next)
}

// A provider that shows the key it was given, that redirects, that is not there, and one that answers with an error.
func TestProvidersFaults(t *testing.T) {
	w := newWorld(t, gateway.Grant{}, nil, func(rw http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("User-Agent") {
		case "echo":
			rw.WriteHeader(401)
			fmt.Fprintf(rw, `{"error":"bad key %s"}`, r.Header.Get("Authorization"))
		case "redirect":
			http.Redirect(rw, r, "http://127.0.0.1:1/steal", http.StatusTemporaryRedirect)
		case "limit":
			rw.Header().Set("Retry-After", "7")
			rw.Header().Set("Set-Cookie", "a=b")
			rw.WriteHeader(429)
		}
	})
	as := func(agent string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("User-Agent", agent) }
	}
	if status, body := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, as("echo")); status != 401 || strings.Contains(body, "canary") {
		t.Errorf("%d: %s", status, body)
	}
	if status, _ := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, as("redirect")); status != 307 && status != 0 || len(w.seen) != 2 {
		t.Errorf("redirect: %d, %d calls", status, len(w.seen))
	}
	if status, _ := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, as("limit")); status != 429 {
		t.Errorf("limit: %d", status)
	}
	if spent, _, err := w.Spent("run1"); err != nil || spent.USD != 0 || spent.Input != 0 {
		t.Errorf("errors were paid for: %+v, %v", spent, err)
	}
	gone := newWorld(t, gateway.Grant{}, func(o *gateway.Options) {
		o.Upstreams[gateway.OpenAI] = gateway.Upstream{URL: "http://127.0.0.1:1", Key: secrets.New(providerKey)}
	}, whole(``))
	if status, body := gone.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil); status != 502 || !strings.Contains(body, "openai gives no answer") {
		t.Errorf("%d: %s", status, body)
	}
	if e := gone.settled()[0]; !e.Estimated || e.Status != 0 {
		t.Errorf("%+v", e)
	}
}

// No call goes through that cannot be written down.
func TestLedgerFails(t *testing.T) {
	w := newWorld(t, gateway.Grant{}, nil, whole(`{"usage":{"input_tokens":1,"output_tokens":1}}`))
	block(t, w.path)
	if status, body := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil); status != 400 || !strings.Contains(body, "ledger") {
		t.Errorf("%d: %s", status, body)
	}
	if len(w.seen) != 0 {
		t.Error("the call went through")
	}
}

// A line that a crash cut off is ended, and does not spoil the next one.
func TestLedgerAfterCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	write(t, path, `{"run":"a","input":5}`+"\n"+`{"run":"a","inp`)
	l, err := gateway.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(gateway.Entry{Run: "a", Usage: gateway.Usage{Input: 7}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if spent, _, err := l.Sum("a", ""); err != nil || spent.Input != 12 || spent.Calls != 2 {
			t.Errorf("%+v, %v", spent, err)
		}
		if l, err = gateway.OpenLedger(path); err != nil {
			t.Fatal(err)
		}
	}
	if lines := bytes.Count([]byte(read(t, path)), []byte("\n")); lines != 3 {
		t.Errorf("%d lines", lines)
	}
}

func TestUpstreams(t *testing.T) {
	l, err := gateway.OpenLedger(filepath.Join(t.TempDir(), "l"))
	if err != nil {
		t.Fatal(err)
	}
	for raw, ok := range map[string]bool{
		"": true, "https://models.corp.example/openai": true, "http://127.0.0.1:8080": true, "http://[::1]:8080": true,
		"http://models.corp.example": false, "ftp://127.0.0.1": false, "https://user:pw@x.example": false, "https://": false, "https://x.example/?a=b": false, "\x00": false,
	} {
		g, err := gateway.Serve(t.Context(), gateway.Options{Ledger: l, Upstreams: map[gateway.API]gateway.Upstream{gateway.OpenAI: {URL: raw, Key: secrets.New(providerKey)}}})
		if (err == nil) != ok || err != nil && (!errors.Is(err, gateway.ErrInvalid) || strings.Contains(err.Error(), providerKey)) {
			t.Errorf("%q: %v", raw, err)
		}
		if g != nil {
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	for name, o := range map[string]gateway.Options{
		"no ledger": {}, "no key": {Ledger: l, Upstreams: map[gateway.API]gateway.Upstream{gateway.OpenAI: {}}}, "no such API": {Ledger: l, Upstreams: map[gateway.API]gateway.Upstream{"x": {Key: secrets.New(providerKey)}}},
	} {
		if _, err := gateway.Serve(t.Context(), o); !errors.Is(err, gateway.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzUsage: whatever a provider sends, nothing breaks, and nothing is counted below zero, nor so high that the sum of many runs over.
func FuzzUsage(f *testing.F) {
	for _, seed := range []string{
		`{"usage":{"prompt_tokens":100,"completion_tokens":7}}`, `{"usage":{"input_tokens":-5,"output_tokens":9223372036854775807}}`,
		`[{"usageMetadata":{"promptTokenCount":1e3}}]`, "data: {\n\ndata: [DONE]\n", `{"message":{"usage":null},"response":[]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		for _, api := range gateway.APIs() {
			for _, streams := range []bool{false, true} {
				if u := gateway.Count(api, streams, answer); min(u.Input, u.Output, u.Cached, u.Written) < 0 || max(u.Input, u.Output, u.Cached, u.Written) > 1<<52 {
					t.Errorf("%s: %+v", api, u)
				}
			}
		}
	})
}
