package github

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

var shaForm = regexp.MustCompile(`^[0-9a-f]{40}$`)

// validSHA reports whether s is a full commit id. GitHub has SHA-1 repositories only.
func validSHA(s string) bool { return shaForm.MatchString(s) }

// bundleHeader is what stands before the pack of a git bundle (gitformat-bundle, versions 2 and 3).
type bundleHeader struct {
	prerequisites []string // commits that have to be there already
	refs          map[string]string
	pack          int   // where the pack starts
	size          int64 // of the whole bundle
}

// maxBundleHeader bounds the header; one prerequisite and one ref are a few hundred bytes.
const maxBundleHeader = 64 << 10

// parseBundle reads a bundle's header, of which b has at least the first maxBundleHeader+4 bytes. It is strict: whatever it does not know is ErrBadBundle, because the sandbox gets only
// the pack, and what it should mean is decided here.
func parseBundle(b []byte) (bundleHeader, error) {
	bad := func(what string) (bundleHeader, error) {
		return bundleHeader{}, fmt.Errorf("%w: %s", ErrBadBundle, what)
	}
	h := bundleHeader{refs: map[string]string{}}
	rest := b[:min(len(b), maxBundleHeader)]
	next := func() (string, bool) {
		line, after, ok := bytes.Cut(rest, []byte{'\n'})
		if !ok {
			return "", false
		}
		h.pack += len(line) + 1
		rest = after
		return string(line), true
	}
	first, ok := next()
	if !ok || first != "# v2 git bundle" && first != "# v3 git bundle" {
		return bad("no git bundle of version 2 or 3")
	}
	for {
		line, ok := next()
		switch {
		case !ok:
			return bad("its header does not end")
		case line == "":
			if !bytes.HasPrefix(b[h.pack:], []byte("PACK")) {
				return bad("no pack after the header")
			}
			return h, nil
		case strings.HasPrefix(line, "@"):
			if first != "# v3 git bundle" || line != "@object-format=sha1" {
				return bad("unknown capability")
			}
		case strings.HasPrefix(line, "-"):
			sha, _, _ := strings.Cut(line[1:], " ")
			if !validSHA(sha) {
				return bad("a prerequisite is no commit id")
			}
			h.prerequisites = append(h.prerequisites, sha)
		default:
			sha, ref, ok := strings.Cut(line, " ")
			if !ok || !validSHA(sha) || ref == "" {
				return bad("a ref without commit id")
			}
			if _, twice := h.refs[ref]; twice {
				return bad("a ref twice")
			}
			h.refs[ref] = sha
		}
	}
}
