package github

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sbxpair/sbxpair/sbx"
)

// FuzzClean pins what holds for any text: it fits, it is stable, and nothing of what it takes out is left outside code.
// (Built against a real Markdown renderer over a million random texts; the finds are rows of TestCleanBody.)
func FuzzClean(f *testing.F) {
	for _, s := range []string{
		"@user", "`@user", "```\n@user", "  ~~~\n```\n  ~~~\n@user\n```", "<b>\n`@user`", "| a |\n|---|\n| ` | @user ` |", "\\`@user`", "&\\#64;user",
		"[x](\n//evil.test)", "https\\://evil.test", "www.www.evil.test", "fixes\n#1", "_fixes #1_", "other/repo#2", "<a@user>>", "<!-<!-- -->-", "\x1b[3\x1b[1mm",
	} {
		f.Add(s)
	}
	f.Fuzz(cleanHolds)
}

// cleanHolds is what has to be true of any text that was cleaned.
func cleanHolds(t *testing.T, s string) {
	t.Helper()
	body, title := CleanBody(s, testCleaning), CleanTitle(s, testCleaning)
	for _, out := range []struct {
		got, again string
		limit      int
	}{{body, CleanBody(body, testCleaning), MaxBodyRunes}, {title, CleanTitle(title, testCleaning), MaxTitleRunes}} {
		if out.again != out.got {
			t.Errorf("%q: not idempotent: %q, then %q", s, out.got, out.again)
		}
		if !utf8.ValidString(out.got) || utf8.RuneCountInString(out.got) > out.limit || strings.ContainsFunc(out.got, invisible) || strings.ContainsAny(out.got, "\x00\x1b\r") {
			t.Errorf("%q: %q is not fit to be shown", s, out.got)
		}
		if strings.Contains(out.got, "<!--") {
			t.Errorf("%q: %q", s, out.got)
		}
	}
	lines, open := outsideCode(body)
	inTitle, _ := outsideCode(title)
	for _, line := range append(lines, inTitle...) {
		if hit := active.FindString(line); hit != "" && !strings.Contains(hit, "@friend") {
			t.Errorf("%q: %q acts outside code: %q", s, hit, body+" / "+title)
		}
	}
	if strings.Contains(title, "\n") {
		t.Errorf("%q: a title of two lines: %q", s, title)
	}
	if open {
		t.Errorf("%q: a fence is left open: %q", s, body)
	}
}

// active is what nothing that was cleaned may hold outside code.
var active = regexp.MustCompile(`(?i)(?:^|[^A-Za-z0-9])@[A-Za-z0-9][A-Za-z0-9-]*|(?:^|[^A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)[\s:]*(?:#|GH-)[0-9]+` +
	`|\b(?:http|ftp|ssh|git)://|(?:^|[^A-Za-z0-9])javascript:|<!--|https://(?:[^/\s]*\.)?evil\.test|\]\(\s*[/\\]{2}[^\s)/\\]`)

// outsideCode is the text of Markdown without its fenced blocks and code spans, by line; open says that the last block does not end.
func outsideCode(body string) (lines []string, open bool) {
	fence := ""
	for line := range strings.SplitSeq(body, "\n") {
		mark := strings.TrimLeft(line, " ")
		run := len(mark) - len(strings.TrimLeft(mark, "`"))
		if run == 0 {
			run = len(mark) - len(strings.TrimLeft(mark, "~"))
		}
		if len(line)-len(mark) > 3 {
			run = 0
		}
		switch {
		case fence != "":
			if run >= len(fence) && strings.Trim(mark, fence[:1]) == "" {
				fence = ""
			}
			continue
		case run >= 3 && (mark[0] == '~' || !strings.Contains(mark[run:], "`")):
			fence = mark[:run]
			continue
		}
		text := ""
		for line != "" {
			before, after, ok := strings.Cut(line, "`")
			if text += before; !ok {
				break
			}
			text += "\x01"
			n := 1 + len(after) - len(strings.TrimLeft(after, "`"))
			rest := strings.TrimLeft(after, "`")
			line = rest
			for at := 0; at < len(rest); {
				i := strings.IndexByte(rest[at:], '`')
				if i < 0 {
					break
				}
				at += i
				k := len(rest[at:]) - len(strings.TrimLeft(rest[at:], "`"))
				if at += k; k == n {
					line = rest[at:]
					break
				}
			}
		}
		lines = append(lines, text)
	}
	return lines, fence != ""
}

// FuzzCurlConfig pins that curl reads a quoted value as it was, and nothing after it, for any text. curl itself is the judge: it writes
// the value back by --write-out.
func FuzzCurlConfig(f *testing.F) {
	for _, s := range []string{"", "a", `"`, `\`, `\"`, "a\nurl = \"https://evil.test\"", "\r\n\t\v", `\n`, "é\xff", "%{url}", "#", "-K x", strings.Repeat("x", 1000)} {
		f.Add(s)
	}
	curl, err := exec.LookPath("curl")
	if err != nil {
		f.Skip("curl is missing")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, s string) {
		q, err := quote(s)
		if err != nil {
			if !strings.ContainsRune(s, 0) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if strings.ContainsAny(q, "\n\r") {
			t.Fatalf("%q: quoted over lines: %q", s, q)
		}
		if len(s) > 450 { // curl cuts what it writes as source
			return
		}
		// A data value that begins with @ names a file; ours is always that file, so the text goes behind a letter here.
		qx, err := quote("x" + s)
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(dir, "out")
		os.Remove(out)
		config := "url = \"file:///dev/null\"\nlibcurl = \"" + out + "\"\ndata-raw = " + qx + "\n"
		cmd := exec.CommandContext(t.Context(), curl, "-q", "--config", "-", "--proto", "=file")
		cmd.Stdin = strings.NewReader(config)
		cmd.Run() // the file scheme takes no data; what was read is in the libcurl source that it writes
		src, err := os.ReadFile(out)
		if err != nil {
			t.Skip("this curl writes no libcurl source")
		}
		_, rest, ok := strings.Cut(string(src), "CURLOPT_POSTFIELDS, \"")
		got, _, ok2 := strings.Cut(rest, "\");\n")
		if !ok || !ok2 || cUnquote(got) != "x"+s {
			t.Errorf("%q: curl read %q", s, got)
		}
	})
}

// cUnquote reads a C string as curl's --libcurl writes it.
func cUnquote(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'x':
			if i+2 < len(s) {
				b.WriteByte(unhex(s[i+1])<<4 | unhex(s[i+2]))
				i += 2
			}
		default:
			if c := s[i]; c >= '0' && c <= '7' && i+2 < len(s) { // three octal digits
				b.WriteByte((c-'0')<<6 | (s[i+1]-'0')<<3 | (s[i+2] - '0'))
				i += 2
				break
			}
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func unhex(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	}
	return c - '0'
}

// printer is a sandbox whose channel prints what it is told to, whatever it is asked.
type printer []byte

func (p printer) Exec(_ context.Context, spec sbx.ExecSpec) (sbx.ExecResult, error) {
	go io.Copy(io.Discard, spec.Stdin)
	_, err := spec.Stdout.Write(p)
	return sbx.ExecResult{}, err
}

// FuzzChannel pins that whatever a sandbox prints gives a whole answer or an error of a kind, and never a body over the limit.
func FuzzChannel(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nuntil the end", "", "junk",
		strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 65), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore",
		"HTTP/1.1 403 No\r\nContent-Type: text/plain\r\n\r\nBlocked by policy",
	} {
		for _, end := range []string{"sbxpair-end 1 0 200 0\n", "sbxpair-end 1 18 0 3\nbad", "sbxpair-end 2 0 0 0\n", ""} {
			f.Add(fmt.Appendf(nil, "Sandbox started\nsbxpair-go 1\nsbxpair-data 1 %d\n%s%s", len(s), s, end))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		tr := NewTransport(printer(raw), DotCom())
		tr.MaxBody = 64
		defer tr.Close()
		var body []byte
		resp, err := tr.RoundTrip(request(t, "GET", "https://api.github.com/", nil))
		if err == nil {
			body, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrNetwork) && !errors.Is(err, ErrTool) && !errors.Is(err, ErrBlockedByPolicy) {
				t.Errorf("%q: error %v of no kind", raw, err)
			}
			return
		}
		if len(body) > 64 || resp.StatusCode < 200 || !bytes.Contains(raw, []byte("sbxpair-end")) {
			t.Errorf("%q: %d %q", raw, resp.StatusCode, body)
		}
	})
}

// FuzzParseBundle pins that only a header that is understood whole gives a pack.
func FuzzParseBundle(f *testing.F) {
	sha := strings.Repeat("a", 40)
	for _, s := range []string{
		"# v2 git bundle\n-" + sha + " base\n" + sha + " refs/heads/x\n\nPACK", "# v3 git bundle\n@object-format=sha1\n" + sha + " refs/heads/x\n\nPACK",
		"# v3 git bundle\n@filter=blob:none\n" + sha + " refs/heads/x\n\nPACK", "# v2 git bundle\n" + sha + " refs/heads/x\n", "# v2 git bundle\n\nPAC", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := parseBundle(raw)
		if err != nil {
			if !errors.Is(err, ErrBadBundle) {
				t.Errorf("%q: error %v", raw, err)
			}
			return
		}
		if h.pack >= len(raw) || !bytes.HasPrefix(raw[h.pack:], []byte("PACK")) {
			t.Errorf("%q: pack at %d", raw, h.pack)
		}
	})
}
