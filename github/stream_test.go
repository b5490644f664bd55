package github

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

const streamSize = 32 << 20 // more than all that lies between reader and writer can hold

// pattern is a stream of n bytes, the same each time, in which no piece is like the one before.
func pattern(n int64) io.Reader { return io.LimitReader(&repeated{block: block()}, n) }

var block = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20+7)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

type repeated struct {
	block []byte
	at    int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.block[r.at:])
	r.at = (r.at + n) % len(r.block)
	return n, nil
}

// tally counts what goes through it.
type tally struct {
	n atomic.Int64
	r io.Reader
	w io.Writer
}

func (t *tally) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n.Add(int64(n))
	return n, err
}

func (t *tally) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.n.Add(int64(n))
	return n, err
}

func sum(r io.Reader) string {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// TestTransportStreams: bodies go through as they come, at the pace of the slower side, and one that stands still is in nobody's way.
func TestTransportStreams(t *testing.T) {
	down := &tally{}
	goOn, half := make(chan struct{}), make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/down":
			down.w = rw
			rw.Header().Set("Content-Length", fmt.Sprint(streamSize))
			io.Copy(down, pattern(streamSize))
		case "/up":
			<-goOn
			fmt.Fprint(rw, sum(r.Body))
		case "/half":
			if _, err := io.CopyN(io.Discard, r.Body, 1<<20); err == nil {
				close(half)
			}
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(rw, n, err)
		case "/sink":
			io.Copy(io.Discard, r.Body)
			io.WriteString(rw, "ok")
		case "/refuse":
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
		default:
			io.WriteString(rw, "ok")
		}
	}))
	tr := newTestTransport(t, w)
	whole := sum(pattern(streamSize))
	post := func(path string, body io.Reader, length int64) *http.Request {
		req := request(t, "POST", "https://api.github.com"+path, []byte("x"))
		req.Body, req.ContentLength = io.NopCloser(body), length
		return req
	}
	small := func() {
		t.Helper()
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/", nil))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != "ok" || err != nil {
			t.Errorf("%q %v", got, err)
		}
	}
	t.Run("a slow reader", func(t *testing.T) {
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/down", nil))
		if err != nil {
			t.Fatal(err)
		}
		small()
		small()
		if n := down.n.Load(); n == streamSize {
			t.Error("the server is through, and nobody read")
		}
		if got := sum(resp.Body); got != whole {
			t.Errorf("what came is not what was sent: %s", got)
		}
		small()
		if n := w.execs.Load(); n != 2 {
			t.Errorf("%d execs, want one for each that was used at the same time", n)
		}
	})
	t.Run("a slow server", func(t *testing.T) {
		up := &tally{r: pattern(streamSize)}
		got := make(chan string)
		go func() {
			resp, err := tr.RoundTrip(post("/up", up, streamSize))
			if err != nil {
				got <- err.Error()
				return
			}
			body, _ := io.ReadAll(resp.Body)
			got <- string(body)
		}()
		waitFor(t, func() bool { return up.n.Load() > 0 })
		small()
		if n := up.n.Load(); n == streamSize {
			t.Error("all was taken, and the server did not read")
		}
		close(goOn)
		if s := <-got; s != whole {
			t.Errorf("what came is not what was sent: %s", s)
		}
	})
	t.Run("the first half arrives before there is a second", func(t *testing.T) {
		r, body := io.Pipe()
		go func() {
			io.Copy(body, pattern(2<<20))
			<-half
			io.Copy(body, pattern(1<<20))
		}()
		resp, err := tr.RoundTrip(post("/half", r, 3<<20))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(resp.Body); string(got) != fmt.Sprint(2<<20, nil) {
			t.Errorf("the server saw %s", got)
		}
	})
	t.Run("an answer before the request is through", func(t *testing.T) {
		resp, err := tr.RoundTrip(post("/refuse", pattern(streamSize), streamSize))
		if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Fatalf("%v %v", resp, err)
		}
		resp.Body.Close()
		small()
	})
	t.Run("a body that breaks off", func(t *testing.T) {
		for name, r := range map[string]io.Reader{"with an error": io.MultiReader(pattern(2<<20), iotest.ErrReader(errors.New("disk gone"))), "too early": pattern(2 << 20)} {
			_, err := tr.RoundTrip(post("/sink", r, 3<<20))
			if err == nil || !strings.Contains(err.Error(), "2097152 of 3145728 bytes") {
				t.Errorf("%s: %v", name, err)
			}
		}
		small()
	})
	t.Run("given up", func(t *testing.T) {
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/down", nil))
		if err != nil {
			t.Fatal(err)
		}
		io.CopyN(io.Discard, resp.Body, 1<<20)
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
			t.Error("a closed body can be read")
		}
		small()
	})
	t.Run("cancelled in the middle", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/down", nil).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		small()
	})
	t.Run("the sandbox goes away in the middle", func(t *testing.T) {
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/down", nil))
		if err != nil {
			t.Fatal(err)
		}
		w.killRunning()
		var n *NetworkError
		if _, err := io.Copy(io.Discard, resp.Body); !errors.As(err, &n) || n.Trouble != TroubleSandbox || !n.Sent {
			t.Errorf("error %v", err)
		}
		small()
	})
	t.Run("all together", func(t *testing.T) {
		tr := newTestTransport(t, w)
		tr.MaxTotal = 1 << 20
		if resp, err := tr.RoundTrip(post("/sink", pattern(1<<20), 1<<20)); err != nil {
			t.Error(err)
		} else if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, ErrTooLarge) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("closed while an answer is read", func(t *testing.T) {
		tr := NewTransport(w, DotCom())
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/down", nil))
		if err != nil {
			t.Fatal(err)
		}
		tr.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("read to its end")
		}
		if _, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/", nil)); err == nil {
			t.Error("a closed transport works")
		}
	})
	t.Run("a length that is not told", func(t *testing.T) {
		if _, err := tr.RoundTrip(post("/", bytes.NewReader([]byte("x")), -1)); !errors.Is(err, ErrOutOfBounds) {
			t.Errorf("error %v", err)
		}
	})
	tr.Close()
	waitFor(t, func() bool { return w.live.Load() == 0 })
}
