package workspace

import (
	"bufio"
	"bytes"
	"path"
	"strings"
	"testing"
)

// FuzzHeader: whatever the sandbox sends, what is read stays bounded and says nothing in our name.
func FuzzHeader(f *testing.F) {
	f.Add([]byte("sbxpair-end-state 1\nkind commits\nbase a\nsize 5\nignored 2\nignored-path \"a\\303\\251\"\nnote nested 3\nother 2 refs/heads/x\nlarge 5 x\npushed 1 " + strings.Repeat("a", 40) + " refs/heads/x\nend\n"))
	f.Add([]byte("junk\nsbxpair-end-state 1\nnote \x1b[31m\nend\n# v2 git bundle\n-" + strings.Repeat("b", 40) + " x\n" + strings.Repeat("c", 40) + " refs/sbxpair/head\n\nPACK"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bufio.NewReaderSize(bytes.NewReader(data), 64<<10)
		h, err := readHeader(in)
		if err != nil {
			return
		}
		if len(h.notes) > 20 || len(h.ignoredPaths) > 50 || len(h.largest) > 10 || len(h.pushed) > 50 {
			t.Errorf("unbounded: %+v", h)
		}
		for _, n := range h.notes {
			if strings.ContainsAny(n, "\x1b\n\r\x00") {
				t.Errorf("note %q", n)
			}
		}
		if b, err := readBundleHeader(in); err == nil && !isOID(b.head) {
			t.Errorf("bundle head %q", b.head)
		}
	})
}

// FuzzEscapes: a link that passes stays inside when it is followed step by step.
func FuzzEscapes(f *testing.F) {
	f.Add("a/l", "../b", "b", "c")
	f.Add("a/b/x", "../..", "a/b/y", "x/../..")
	f.Add("l", "l", "m", "/etc")
	f.Fuzz(func(t *testing.T, p1, t1, p2, t2 string) {
		links := map[string]string{p1: t1, p2: t2}
		for p := range links {
			if badPath(p) != "" || path.Clean(p) != p || escapes(links, p) != "" {
				continue
			}
			if strings.HasPrefix(links[p], "/") {
				t.Errorf("%q -> %q passes", p, links[p])
			}
			// Without another link on the way, plain path arithmetic has to agree.
			if len(links) == 1 || !strings.Contains("/"+links[p]+"/", "/"+path.Base(p1)+"/") && !strings.Contains("/"+links[p]+"/", "/"+path.Base(p2)+"/") {
				if at := path.Join(path.Dir(p), links[p]); at == ".." || strings.HasPrefix(at, "../") {
					t.Errorf("%q -> %q leads to %q", p, links[p], at)
				}
			}
		}
	})
}

// FuzzParsers: output of git that is not what we expect gives an error, not a panic.
func FuzzParsers(f *testing.F) {
	f.Add([]byte(":100644 100644 " + strings.Repeat("a", 40) + " " + strings.Repeat("b", 40) + " M\x00a.txt\x001\t2\ta.txt\x00"))
	f.Add([]byte(":100644 100644 a b R100\x00a\x00b\x001\t2\t\x00a\x00b\x00"))
	f.Add([]byte("tree x\nparent y\nauthor a <b> 1 +0000\n\nsubject\n\nbody"))
	f.Fuzz(func(t *testing.T, data []byte) {
		files, _, err := parseDiff(fields(data))
		if err != nil && files != nil {
			t.Error("files beside an error")
		}
		if c, err := parseCommit(data); err == nil && strings.ToValidUTF8(c.Subject+c.Body+c.AuthorName, "") != c.Subject+c.Body+c.AuthorName {
			t.Errorf("%+v", c)
		}
	})
}
