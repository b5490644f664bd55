package github

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"sync"
)

// Bounds of a client's memory of answers.
const (
	maxCached     = 128
	maxCachedBody = 1 << 20 // bytes of one answer
	maxCachedSize = 8 << 20 // bytes of all
)

// answers remembers what GitHub answered to reads, by its ETag. A remembered answer is never used unasked: the next read of the
// same asks if it still holds, and GitHub does not count an answer of 304 against the rate limit (github/docs, best
// practices for the REST API).
type answers struct {
	mu     sync.Mutex
	byKey  map[string]remembered
	oldest []string // keys, least recently used first
	size   int
}

type remembered struct {
	header http.Header
	body   []byte
}

// key is "" for what is not remembered.
func (a *answers) key(req *http.Request) string {
	if req.Method != http.MethodGet {
		return ""
	}
	return req.URL.String() + "\n" + req.Header.Get("Accept")
}

// ask makes req conditional if an answer to the same is known.
func (a *answers) ask(req *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := a.key(req)
	known, ok := a.byKey[key]
	if !ok {
		req.Header.Del("If-None-Match") // of an attempt before
		return
	}
	req.Header.Set("If-None-Match", known.header.Get("ETag"))
	a.touch(key)
}

// take remembers a good answer, and puts the remembered one in the place of "not modified".
func (a *answers) take(req *http.Request, resp *http.Response, body []byte) *http.Response {
	key := a.key(req)
	if key == "" {
		return resp
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch resp.StatusCode {
	case http.StatusNotModified:
		known, ok := a.byKey[key]
		if !ok || req.Header.Get("If-None-Match") != known.header.Get("ETag") {
			return resp // forgotten meanwhile, or never asked for
		}
		again := *resp
		again.Status, again.StatusCode, again.Header = "200 OK", http.StatusOK, known.header.Clone()
		again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(known.body)), int64(len(known.body))
		return &again
	case http.StatusOK:
		if resp.Header.Get("ETag") == "" || len(body) > maxCachedBody {
			a.drop(key)
			return resp
		}
		a.put(key, remembered{resp.Header.Clone(), body})
	}
	return resp
}

func (a *answers) put(key string, r remembered) {
	a.drop(key)
	if a.byKey == nil {
		a.byKey = map[string]remembered{}
	}
	a.byKey[key], a.oldest, a.size = r, append(a.oldest, key), a.size+len(r.body)
	for len(a.oldest) > maxCached || a.size > maxCachedSize {
		a.drop(a.oldest[0])
	}
}

func (a *answers) drop(key string) {
	if known, ok := a.byKey[key]; ok {
		delete(a.byKey, key)
		a.size -= len(known.body)
		a.oldest = slices.DeleteFunc(a.oldest, func(k string) bool { return k == key })
	}
}

func (a *answers) touch(key string) {
	a.oldest = append(slices.DeleteFunc(a.oldest, func(k string) bool { return k == key }), key)
}
