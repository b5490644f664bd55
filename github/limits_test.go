package github

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// TestLimits: each form in which GitHub tells a limit is waited out, for as long as it says and no longer than is allowed, by a read
// and by a write alike; and what is waited between failures grows, with jitter, and ends.
func TestLimits(t *testing.T) {
	begin := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var answers []func(http.ResponseWriter)
	asked := 0
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("X-GitHub-Request-Id", "1:2")
		if asked++; asked <= len(answers) {
			answers[asked-1](rw)
			return
		}
		if r.Method == http.MethodPost {
			rw.WriteHeader(http.StatusCreated)
		}
		io.WriteString(rw, `{"number":7}`)
	}))
	limit := func(status int, body string, header ...string) func(http.ResponseWriter) {
		return func(rw http.ResponseWriter) {
			for i := 0; i < len(header); i += 2 {
				rw.Header().Set(header[i], header[i+1])
			}
			rw.WriteHeader(status)
			fmt.Fprintf(rw, `{"message":%q}`, body)
		}
	}
	reset := func(d time.Duration) string { return fmt.Sprint(begin.Add(d).Unix()) }
	const primary, secondary = "API rate limit exceeded for user ID 1.", "You have exceeded a secondary rate limit."
	type answer = func(http.ResponseWriter)
	for _, tt := range []struct {
		name    string
		answers []answer
		wait    time.Duration // and half a second of jitter for each limit, which is what the test's clock gives
		want    error
	}{
		{"primary, 403", []answer{limit(403, primary, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(time.Minute))}, 61 * time.Second, nil},
		{"primary, 429", []answer{limit(429, primary, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(time.Minute))}, 61 * time.Second, nil},
		{"primary, with a reset in the past", []answer{limit(403, primary, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(-time.Hour))}, time.Second, nil},
		{"primary, longer than is waited", []answer{limit(429, primary, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(time.Hour))}, 0, ErrRateLimited},
		{"primary, with a reset beyond all time", []answer{limit(429, primary, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "9000000000000000000")}, 0, ErrRateLimited},
		{"secondary, of a day", []answer{limit(403, secondary, "Retry-After", "86400")}, 0, ErrRateLimited},
		{"secondary, 403, in seconds", []answer{limit(403, secondary, "Retry-After", "30")}, 30 * time.Second, nil},
		{"secondary, 429, in seconds", []answer{limit(429, secondary, "Retry-After", "30")}, 30 * time.Second, nil},
		{"secondary, 429, as a date", []answer{limit(429, secondary, "Retry-After", begin.Add(40*time.Second).Format(http.TimeFormat))}, 40 * time.Second, nil},
		{"secondary, 403, told in words alone", []answer{limit(403, secondary)}, time.Minute, nil},
		{"secondary twice, told in words alone", []answer{limit(429, secondary), limit(429, secondary)}, 3 * time.Minute, nil},
		{"secondary without end", []answer{limit(429, secondary, "Retry-After", "1"), limit(429, secondary, "Retry-After", "1"), limit(429, secondary, "Retry-After", "1"), limit(429, secondary, "Retry-After", "1"), limit(429, secondary, "Retry-After", "1")}, 7 * time.Second, ErrRateLimited},
		{"forbidden is no limit", []answer{limit(403, "Resource not accessible", "X-RateLimit-Remaining", "9")}, 0, ErrForbidden},
	} {
		for method, call := range map[string]func(*Client) error{
			"GET":  func(c *Client) error { _, err := c.GetIssue(t.Context(), repoApp, 7); return err },
			"POST": func(c *Client) error { _, err := c.CreateIssue(t.Context(), repoApp, NewIssue{Title: "t"}); return err },
		} {
			t.Run(tt.name+", "+method, func(t *testing.T) {
				clock := &testClock{now: begin}
				c := NewClient(w, DotCom(), WithClock(clock.clock()), WithLimits(Limits{Attempts: 4, Backoff: time.Second, MaxWait: 5 * time.Minute}))
				defer c.Close()
				asked, answers = 0, tt.answers
				err := call(c)
				slept := clock.total() - time.Duration(len(clock.slept))*time.Second/2
				if !errors.Is(err, tt.want) || slept != tt.wait {
					t.Errorf("%v after %s, want %v after %s", err, slept, tt.want, tt.wait)
				}
			})
		}
	}
	t.Run("backoff", func(t *testing.T) {
		for _, j := range []struct {
			jitter float64
			total  time.Duration
		}{{0, 5250 * time.Millisecond}, {0.5, 7 * time.Second}} { // 1, 2 and 4 seconds, less a quarter at most
			clock := &testClock{now: begin}
			with := clock.clock()
			with.Jitter = func() float64 { return j.jitter }
			c := NewClient(w, DotCom(), WithClock(with))
			asked, answers = 0, []answer{limit(502, ""), limit(502, ""), limit(502, ""), limit(502, "")}
			if _, err := c.GetIssue(t.Context(), repoApp, 7); !errors.Is(err, ErrServer) || clock.total() != j.total || asked != 4 {
				t.Errorf("%v after %s and %d requests", err, clock.total(), asked)
			}
			c.Close()
		}
	})
}
