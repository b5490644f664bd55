package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/gateway"
)

const ended = `{"usage":{"input_tokens":1000,"output_tokens":100,"prompt_tokens":1000,"completion_tokens":100}}` // 0.02 dollars

// What a question must not ask for: prices that are not in the table, things that the provider keeps for all who use its key,
// and things that it would fetch, from wherever the agent says.
func TestQuestions(t *testing.T) {
	w := newWorld(t, gateway.Grant{}, nil, whole(ended))
	responses, chat, messages, gemini := "/responses", "/chat/completions", "/v1/messages", "/v1beta/models/m-1:generateContent"
	api := map[string]gateway.API{responses: gateway.OpenAI, chat: gateway.OpenAI, messages: gateway.Anthropic, gemini: gateway.Google,
		"/v1/messages/count_tokens": gateway.Anthropic, "/v1beta/models/m-1:countTokens": gateway.Google}
	for _, tt := range []struct{ path, fields, refusal string }{
		{responses, `"service_tier":"fast"`, "prices of its own"},
		{responses, `"service_tier":["default"]`, "prices of its own"},
		{gemini, `"serviceTier":"priority"`, "prices of its own"},
		{messages, `"speed":"fast"`, "prices of its own"},
		{messages, `"inference_geo":"us"`, "prices of its own"},
		{responses, `"previous_response_id":"resp_1"`, "what the provider keeps"},
		{responses, `"conversation":{"id":"conv_1"}`, "what the provider keeps"},
		{responses, `"prompt":{"id":"pmpt_1"}`, "what the provider keeps"},
		{responses, `"input":[{"type":"item_reference","id":"msg_1"}]`, "item_reference"},
		{messages, `"container":"c_1"`, "what the provider keeps"},
		{gemini, `"cachedContent":"cachedContents/1"`, "what the provider keeps"},
		{responses, `"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x.example/secret"}]}]`, "image_url"},
		{responses, `"input":[{"role":"user","content":[{"type":"input_file","file\u005furl":"https://x.example/secret"}]}]`, "file_url"},
		{chat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x.example/secret"}}]}]`, "image_url"},
		{chat, `"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"file-1"}}]}]`, "file_id"},
		{messages, `"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"https://x.example"}}]}]}]`, "source of the type url"},
		{"/v1/messages/count_tokens", `"messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"https://x.example"}}]}]`, "source of the type url"},
		{gemini, `"contents":[{"parts":[{"fileData":{"fileUri":"https://x.example/secret"}}]}]`, "fileUri"},
		{"/v1beta/models/m-1:countTokens", `"generateContentRequest":{"contents":[{"parts":[{"file_data":{"file_uri":"https://x.example/secret"}}]}]}`, "file_uri"},
		{gemini, `"tools":{"googleSearch":{}}`, "tools is not a list"},
		{messages, `"tools":"web_search"`, "tools is not a list"},
		{chat, `"model":"` + strings.Repeat("m", 1<<20) + `"`, "names no model"},
		{chat, `"model":" m-1\n"`, "names no model"},

		{chat, `"service_tier":null,"tools":null,"stream_options":null,"web_search_options":{},"store":true`, ""},
		{responses, `"service_tier":"flex","store":true,"previous_response_id":null`, ""},
		{messages, `"speed":"standard","messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"image_url":"https://x.example"}}]}]`, ""},
		{chat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]`, ""},
		{gemini, `"contents":[{"parts":[{"functionCall":{"name":"f","args":{"fileUri":"https://x.example"}}}]}]`, ""},
	} {
		status, body := w.ask(api[tt.path], "POST", tt.path, `{"model":"m-1",`+tt.fields+`}`, nil)
		if tt.refusal == "" && status != 200 || tt.refusal != "" && (status != 400 || !strings.Contains(body, tt.refusal)) {
			t.Errorf("%s %.200s: %d %.300s", tt.path, tt.fields, status, body)
		}
	}
	if len(w.bodies) != 5 {
		t.Errorf("%d calls went out", len(w.bodies))
	}
	for _, body := range w.bodies {
		if strings.Contains(body, "web_search") || strings.Contains(body, `"store":true`) || strings.Contains(body, "null") && strings.Contains(body, "stream_options") && !strings.Contains(body, `"stream_options":null`) {
			t.Errorf("out goes %s", body)
		}
	}
}

// What cannot be said with a client of HTTP: none of it gets past, and a question without need of a body has none.
func TestRawRequests(t *testing.T) {
	w := newWorld(t, gateway.Grant{APIs: []gateway.API{gateway.OpenAI}}, nil, whole(`{}`))
	host, key := fmt.Sprintf("127.0.0.1:%d", w.Port()), w.access.Key.Reveal()
	for request, want := range map[string]string{
		"GET //openai/v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n":                                                                                                                          "404",
		"GET /openai/v1/models/../files HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n":                                                                                                                  "403",
		"GET /openai/v1/models/%2e%2e/files HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n":                                                                                                              "403",
		"GET /openai//v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n":                                                                                                                          "403",
		"GET http://evil.example/openai/v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n":                                                                                                        "421",
		"GET /openai/v1/models HTTP/1.0\r\nAuthorization: Bearer {key}\r\n":                                                                                                                                           "421",
		"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n":                                                                                                                      "404",
		"TRACE /openai/v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n":                                                                                                                         "403",
		"GET /openai/v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer " + providerKey + "\r\nAuthorization: Bearer {key}\r\n":                                                                              "401",
		"GET /openai/v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {key}\r\n":                                                                                                                            "401",
		"POST /openai/v1/responses HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n":                                                           "400",
		"POST /openai/v1/responses HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Length: 5\r\nContent-Length: 6\r\n":                                                                             "400",
		"GET /openai/v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nX-Filler: " + strings.Repeat("x", 100<<10) + "\r\n":                                                                         "431",
		"GET /openai/v1/models?key=x&limit=1&limit=2 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nX-Api-Key: x\r\nX-Http-Method-Override: DELETE\r\nConnection: Authorization\r\nContent-Length: 0\r\n": "200",
	} {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		go io.WriteString(conn, strings.NewReplacer("{host}", host, "{key}", key).Replace(request)+"\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		if _, status, _ := strings.Cut(line, " "); err != nil || !strings.HasPrefix(status, want) {
			t.Errorf("%.120q: %q, %v; want %s", request, line, err, want)
		}
		conn.Close()
	}
	if status, body := w.ask(gateway.OpenAI, "GET", "/models", strings.Repeat("x", 1000), nil); status != 200 {
		t.Errorf("a body that is not needed: %d %s", status, body)
	}
	for i, r := range w.seen {
		if r.URL.RawQuery != "" && r.URL.RawQuery != "limit=1" || r.Method != "GET" || r.Header.Get("X-Http-Method-Override") != "" || w.bodies[i] != "" {
			t.Errorf("the provider gets %s %s %v %q", r.Method, r.URL, r.Header, w.bodies[i])
		}
	}
	if len(w.seen) != 2 {
		t.Errorf("%d calls went through", len(w.seen))
	}
}

// An answer's head shows the key no more than its body does; what is no answer, or one that nobody can count in, is none.
func TestProvidersHeads(t *testing.T) {
	w := newWorld(t, gateway.Grant{}, nil, func(rw http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("User-Agent") {
		case "echo":
			rw.Header().Set("X-Request-Id", "for "+r.Header.Get("Authorization"))
			rw.Header().Set("Retry-After", providerKey)
			io.WriteString(rw, ended)
		case "packed":
			rw.Header().Set("Content-Encoding", "gzip")
			io.WriteString(rw, "\x1f\x8b")
		case "status":
			rw.WriteHeader(900)
		}
	})
	heads := ""
	for agent, want := range map[string]int{"echo": 200, "packed": 502, "status": 502} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", w.access.URLs[gateway.OpenAI]+"/responses", strings.NewReader(`{"model":"m-1"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.access.Key.Reveal())
		req.Header.Set("User-Agent", agent)
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		heads += fmt.Sprint(res.Header)
		if res.StatusCode != want {
			t.Errorf("%s: %d", agent, res.StatusCode)
		}
	}
	if strings.Contains(heads, "canary") || !strings.Contains(heads, "X-Request-Id") {
		t.Errorf("the key is shown: %s", heads)
	}
	if list := w.settled(); len(list) != 3 || list[0].Input == 0 || list[1].Input == 0 || list[2].Input == 0 {
		t.Errorf("not counted: %+v", list)
	}
}

// slow is a provider that keeps a stream open: what is sent on next it says, and an empty text ends it.
func slow(next <-chan string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case line := <-next:
				if line == "" {
					return
				}
				fmt.Fprintf(rw, "data: %s\n\n", line)
				rw.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
}

// begin makes a call and reads its first line.
func (w *world) begin(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", w.access.URLs[gateway.OpenAI]+"/chat/completions", strings.NewReader(`{"model":"m-1","stream":true}`))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+w.access.Key.Reveal())
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err == nil {
		_, err = bufio.NewReader(res.Body).ReadString('\n')
	}
	return res, err
}

// Whoever has the answer and hangs up before the bill is billed all the same: a model's thoughts are not among what was sent.
func TestHangUpBeforeTheBill(t *testing.T) {
	next := make(chan string, 1)
	w := newWorld(t, gateway.Grant{}, func(o *gateway.Options) { o.Linger = time.Minute }, slow(next))
	ctx, cancel := context.WithCancel(t.Context())
	next <- `{"choices":[{"delta":{"content":"all of it"},"finish_reason":"stop"}]}`
	res, err := w.begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	res.Body.Close()
	next <- `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":50000}}`
	next <- ""
	for deadline := time.Now().Add(10 * time.Second); len(w.entries()) == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if list := w.settled(); len(list) != 1 || list[0].Output != 50000 || list[0].Estimated {
		t.Errorf("%+v", list)
	}
}

// What is under way counts from its beginning: for another process of the batch, after a crash, and when the gateway ends,
// which it does not before all is on the books.
func TestUnderWay(t *testing.T) {
	next := make(chan string, 1)
	caps := func(o *gateway.Options) { o.BatchCaps.Tokens = 10 }
	w := newWorld(t, gateway.Grant{}, caps, slow(next))
	next <- `{"choices":[{"delta":{"content":"` + strings.Repeat("x", 300) + `"}}]}`
	res, err := w.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()

	book, err := gateway.OpenLedger(w.path) // as another process does, also after this one was killed
	if err != nil {
		t.Fatal(err)
	}
	if _, batch, err := book.Sum("run2", "night"); err != nil || batch.Input < 10 || batch.Calls != 1 {
		t.Errorf("another process sees %+v, %v", batch, err)
	}
	if spent, _, err := w.Spent("run1"); err != nil || spent.Calls != 0 {
		t.Errorf("spent, before the end: %+v, %v", spent, err) // or the call would be cut off for a guess
	}
	if status, body := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil); status != 400 || !strings.Contains(body, "cap of 10 tokens") {
		t.Errorf("a second call: %d %s", status, body)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	list := w.entries()
	if last := list[len(list)-1]; len(list) != 2 || !last.Estimated || last.Output < 100 || last.Status != 200 {
		t.Errorf("after the end: %+v", list)
	}
	if _, batch, err := book.Sum("run1", "night"); err != nil || batch.Calls != 1 || batch.Output < 100 {
		t.Errorf("after the end: %+v, %v", batch, err)
	}
}

// A ledger that fails in the middle of a call: its client must not take the answer for whole, and no other call is made. One
// that was cut short has forgotten what was spent.
func TestLedgerFailsInTheMiddle(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"gone":      func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"cut short": func(path string) error { return os.Truncate(path, 0) },
		"a pipe's":  func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/dev/full", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := ""
			w := newWorld(t, gateway.Grant{}, nil, func(rw http.ResponseWriter, _ *http.Request) {
				if err := harm(path); err != nil {
					t.Error(err)
				}
				io.WriteString(rw, ended)
			})
			path = w.path
			if status, body := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil); status == 200 && !strings.Contains(body, "!") {
				t.Errorf("a whole answer: %d %s", status, body)
			}
			if status, body := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil); status != 400 || !strings.Contains(body, "ledger") || len(w.seen) != 1 {
				t.Errorf("%d %s, %d calls", status, body, len(w.seen))
			}
		})
	}
}

// An agent that asks for ever for what it does not get fills no disk.
func TestRefusalsAreBounded(t *testing.T) {
	w := newWorld(t, gateway.Grant{Models: []string{"m-1"}}, nil, whole(ended))
	for range 150 {
		w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-2"}`, nil)
	}
	if list := w.settled(); len(list) != 100 {
		t.Errorf("%d lines", len(list))
	}
	if status, _ := w.ask(gateway.OpenAI, "POST", "/responses", `{"model":"m-1"}`, nil); status != 200 || len(w.settled()) != 101 {
		t.Errorf("a call that is allowed: %d, %d lines", status, len(w.settled()))
	}
}
