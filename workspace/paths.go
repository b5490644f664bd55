package workspace

import (
	"path"
	"strings"
	"unicode/utf8"
)

// maxLink is the longest target of a symbolic link, PATH_MAX on Linux.
const maxLink = 4096

// badPath says why a path of an end state is refused, or "". It repeats git's own checks (verify_path, fsck) so that a
// later reader on any file system is safe: the user may fetch the branch on macOS or Windows.
func badPath(p string) string {
	switch {
	case p == "":
		return "empty name"
	case len(p) > 4096:
		return "name too long"
	case !utf8.ValidString(p):
		return "name is not UTF-8"
	case strings.HasPrefix(p, "/"):
		return "absolute"
	}
	// Windows takes the backslash for a separator, so `a\.git\config` is a path into .git there.
	for part := range strings.FieldsFuncSeq(strings.ReplaceAll(p, `\`, "/"), func(r rune) bool { return r == '/' }) {
		switch {
		case part == "." || part == "..":
			return "dot folder"
		case dotGit(part):
			return "names .git, or something a file system takes for it"
		}
	}
	if strings.Contains(p, "//") || strings.HasSuffix(p, "/") {
		return "empty folder name"
	}
	return ""
}

// dotGit reports whether a file system could open .git under this name: HFS+ ignores some characters and case, NTFS
// ignores trailing dots and spaces, has streams after a colon, and a short name git~1 (CVE-2014-9390, CVE-2019-1352).
func dotGit(name string) bool {
	name = strings.Map(func(r rune) rune {
		if r >= 0x200c && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x206a && r <= 0x206f || r == 0xfeff {
			return -1
		}
		return r
	}, name)
	name, _, _ = strings.Cut(name, ":")
	name = strings.ToLower(strings.TrimRight(name, ". "))
	return name == ".git" || name == "git~1"
}

// escapes says why the link at p is refused, given all links of the tree, or "". Targets are resolved as the kernel would,
// through other links: a purely textual check takes "x/../.." for a step up of one when x leads elsewhere. A link to
// something that does not exist is fine as long as it stays inside.
func escapes(links map[string]string, p string) string {
	const outside, git = "link leads out of the repository", "link leads into .git"
	at := path.Dir(p) // folder we stand in, "." is the top
	rest := strings.Split(links[p], "/")
	if strings.HasPrefix(links[p], "/") {
		return outside
	}
	for steps := 0; len(rest) > 0; steps++ {
		part := rest[0]
		rest = rest[1:]
		if steps > 1000 {
			return "links in a circle"
		}
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			if at == "." {
				return outside
			}
			at = path.Dir(at)
			continue
		case dotGit(part):
			return git
		}
		next := path.Join(at, part)
		target, isLink := links[next]
		switch {
		case !isLink:
			at = next
		case strings.HasPrefix(target, "/"):
			return outside
		default:
			rest = append(strings.Split(target, "/"), rest...)
		}
	}
	return ""
}
