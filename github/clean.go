package github

import (
	"fmt"
	"html"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Cleaning is what text of an agent's may keep. The zero Cleaning keeps no link, no mention and no reference to another repository.
type Cleaning struct {
	// Domains may be linked to, with all below them.
	Domains []string
	// Repos may be referred to as OWNER/NAME#1. A plain #1 is always the repository the text stands in.
	Repos []Repo
	// Mentions are the names (or ORG/TEAM) that may be notified, without @.
	Mentions []string
	// MaxRunes bounds the result; 0 is GitHub's limit for a body or a title.
	MaxRunes int
}

// DefaultCleaning keeps links to the GitHub in question and its documentation, and references to the run's repository.
func DefaultCleaning(e Endpoint, repo Repo) Cleaning {
	domains := []string{strings.Split(e.Host(), ":")[0]}
	if e == DotCom() {
		domains = append(domains, "githubusercontent.com")
	}
	return Cleaning{Domains: domains, Repos: []Repo{repo}}
}

// maxRawRunes is how much of a text is looked at at all.
const maxRawRunes = 524_288

// CleanBody makes an agent's text fit for an issue, a pull request or a comment: it notifies nobody, closes nothing, gives no command
// to a bot, hides nothing, links only where c allows it, and fits GitHub's limit, cut at a letter's boundary with a note.
// It changes nothing in text that it made. The run's own marker and links are added after it.
//
// Code is left alone where GitHub's Markdown is certain to read it as code: fenced blocks that begin at the left edge, and spans
// that open and close on one line. Anything in doubt counts as text: backticks without a partner become apostrophes, so that what
// is code here is code there.
func CleanBody(s string, c Cleaning) string {
	limit := c.MaxRunes
	if limit <= 0 {
		limit = MaxBodyRunes
	}
	return fit(s, limit, func(s string, cut int) string {
		out := c.body(s)
		if cut > 0 {
			out = strings.TrimRight(out, "\n ") + fmt.Sprintf("\n\n(cut: %d characters left out)", cut)
			out = strings.TrimLeft(out, "\n")
		}
		return out
	})
}

// CleanTitle does the same for a title: one line, no formatting, and the words that close an issue lose the issue's sign, since a title
// becomes a commit message when a pull request is squashed.
func CleanTitle(s string, c Cleaning) string {
	limit := c.MaxRunes
	if limit <= 0 {
		limit = MaxTitleRunes
	}
	return fit(s, limit, func(s string, cut int) string {
		out := c.title(s)
		if cut > 0 {
			out = strings.TrimRight(out, " …") + "…"
		}
		return out
	})
}

// ReadableText makes a text of GitHub's fit to be given to an agent as its task: what a person who reads the page does not see is
// not in it (comments, invisible letters, controls), and it has at most limit characters, cut at a letter's boundary with a note.
// Links, mentions and Markdown stay: it is read, not posted.
func ReadableText(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if n := utf8.RuneCountInString(s); n > maxRawRunes {
		s = prefix(s, maxRawRunes)
	}
	for before := ""; s != before; {
		before = s
		s = ansi.ReplaceAllString(strings.ReplaceAll(s, "\r\n", "\n"), "")
		s = strings.Map(func(r rune) rune {
			if r != '\n' && r != '\t' && unicode.IsControl(r) || invisible(r) {
				return -1
			}
			return r
		}, s)
		s = comment.ReplaceAllString(s, "")
	}
	s = strings.TrimSpace(s)
	if n := utf8.RuneCountInString(s); n > limit {
		s = strings.TrimSpace(prefix(s, limit)) + fmt.Sprintf("\n\n(cut: the text has %d characters)", n)
	}
	return s
}

// fit calls make with as much of s as gives a result of at most limit runes. The input is cut, not the result: a cut
// result could open what was closed.
func fit(s string, limit int, make func(s string, cut int) string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	total := utf8.RuneCountInString(s)
	keep := min(total, maxRawRunes)
	last, step := 0, 0
	for {
		part := s
		if keep < total {
			part = prefix(s, keep)
		}
		left := total - utf8.RuneCountInString(part)
		out := make(part, left)
		size := utf8.RuneCountInString(out)
		switch {
		case size <= limit:
			return out
		case keep == 0:
			return prefix(out, limit)
		case size >= last && last > 0: // what was cut had been taken out anyway: take larger steps
			step *= 2
		default: // cleaning adds here and takes out there: the smaller step of the two that could do
			step = min(size-limit+64, keep-keep*limit/size+64)
		}
		last = size
		keep = max(0, min(keep, utf8.RuneCountInString(part))-step)
	}
}

// prefix returns the longest start of s of at most n runes that does not end inside a letter as people see it.
func prefix(s string, n int) string {
	if n <= 0 {
		return ""
	}
	end, runes := 0, 0
	for i := range s {
		if runes == n {
			end = i
			break
		}
		runes++
	}
	if runes < n || end == 0 {
		return s
	}
	// Only the last stretch can hold the letter that is cut: look at it from a place that is surely a boundary.
	from := strings.LastIndexAny(s[:end], " \n\t")
	from = max(from, end-256, 0)
	for from > 0 && !utf8.RuneStart(s[from]) {
		from--
	}
	rest, state, at, last := s[from:], -1, from, from
	for at < end && rest != "" {
		var cluster string
		cluster, rest, _, state = uniseg.FirstGraphemeClusterInString(rest, state)
		last, at = at, at+len(cluster)
	}
	if at > end {
		if last == 0 || last == from && from < end-200 {
			return s[:end] // one letter longer than the limit
		}
		return s[:last]
	}
	return s[:end]
}

// ---- characters

var (
	ansi    = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_]|[ -/]+[0-~])|\u009b[0-?]*[ -/]*[@-~]")
	comment = regexp.MustCompile(`(?s)<!--.*?(?:--!?>|$)`)
)

// characters makes one form of what can be written in many: composed, no entities, no full width, nothing invisible, no
// controls, no HTML comments; repeated until nothing changes, so that no layer hides another.
func characters(s string) string {
	for range 24 {
		before := s
		s = ansi.ReplaceAllString(s, "")
		s = html.UnescapeString(s)
		last := rune(0)
		s = strings.Map(func(r rune) rune {
			joined := last
			last = r
			switch {
			case r == joiner && joined < 0x2190: // it belongs between pictures only
				return -1
			case (r == asText || r == asPicture) && !(joined >= 0xa9 && joined != asText && joined != asPicture || strings.ContainsRune("#*0123456789", joined)):
				return -1 // alone or in rows they are no letters, but could be bits
			case r >= 0xff01 && r <= 0xff5e: // full width
				return r - 0xff01 + '!'
			case r == '\n', r == '\t':
				return r
			case r == '\r', r < 0x20, r >= 0x7f && r < 0xa0, invisible(r), r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe:
				return -1
			}
			return r
		}, strings.ReplaceAll(s, "\r\n", "\n"))
		s = norm.NFC.String(strings.ToValidUTF8(s, "\ufffd"))
		s = comment.ReplaceAllString(s, "")
		if s == before {
			return s
		}
	}
	// Two dozen layers are an attack, not text.
	s = strings.NewReplacer("&", "", "<!--", "", "\x1b", "").Replace(s)
	return strings.ReplaceAll(s, "<!--", "")
}

// fold makes names comparable: without case in any alphabet, composed, without what cannot be seen.
func fold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	s = strings.Map(func(r rune) rune {
		if invisible(r) || r == joiner || r == asText || r == asPicture {
			return -1
		}
		return r
	}, s)
	return norm.NFC.String(cases.Fold().String(norm.NFC.String(s)))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// Characters that have no shape of their own and change that of a picture.
const (
	joiner    = 0x200d
	asText    = 0xfe0e
	asPicture = 0xfe0f
)

// invisible reports characters without a shape of their own: zero width, directional, fillers, selectors, tags. Those that belong to
// pictures are not among them.
func invisible(r rune) bool {
	switch {
	case r < 0xad, r == joiner, r == asText, r == asPicture:
		return false
	case r == 0x2028, r == 0x2029:
		return true
	}
	return unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r) ||
		unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || unicode.Is(unicode.Variation_Selector, r) || r >= 0xe0000 && r <= 0xe0fff
}

// ---- structure

func (c Cleaning) body(s string) string {
	s = characters(s)
	tables := slices.ContainsFunc(strings.Split(s, "\n"), tableRule)
	var out []string
	fence := "" // the open fence, "" outside
	pending := false
	for line := range strings.SplitSeq(s, "\n") {
		line = strings.TrimRight(line, " \t")
		if fence != "" {
			if closesFence(line, fence) {
				line, fence = fence, ""
			}
			out = append(out, line)
			continue
		}
		// A fence indented by up to three spaces may belong to a list item and end with it; at the left edge it stands for itself.
		if t := strings.TrimLeft(line, " "); len(line)-len(t) <= 3 && opensFence(t) != "" {
			line = t
		}
		if f := opensFence(line); f != "" {
			// A blank line ends whatever block stands before: inside one, this would not be a fence.
			if n := len(out); n > 0 && out[n-1] != "" {
				out = append(out, "")
			}
			fence, pending = f, false
			out = append(out, line)
			continue
		}
		line, pending = c.line(line, tables, pending)
		out = append(out, line)
	}
	if fence != "" {
		out = append(out, fence)
	}
	return strings.Trim(strings.Join(out, "\n"), "\n")
}

// tableRule reports a line that makes a table of what stands around it: there, a | ends a cell even inside backticks.
func tableRule(line string) bool {
	return strings.Contains(line, "-") && strings.Trim(line, "-:| \t>*+0123456789.)") == ""
}

// opensFence returns the fence that a line opens at the left edge.
func opensFence(line string) string {
	for _, mark := range []string{"`", "~"} {
		n := len(line) - len(strings.TrimLeft(line, mark))
		if n >= 3 && (mark == "~" || !strings.Contains(line[n:], "`")) {
			return line[:n]
		}
	}
	return ""
}

func closesFence(line, fence string) bool {
	t := strings.TrimLeft(line, " ")
	return len(line)-len(t) <= 3 && len(t) >= len(fence) && strings.Trim(t, fence[:1]) == ""
}

// ---- lines

// line cleans one line outside fences. pending says that the line before ended with a closing word. What is taken out can bring together what
// stood around it, so it is done until nothing changes.
func (c Cleaning) line(line string, tables, pending bool) (string, bool) {
	closing := closingEnd.MatchString(line)
	for range 16 {
		next := c.once(line, tables, pending)
		if next == line {
			break
		}
		line, pending = next, false
	}
	return line, closing
}

func (c Cleaning) once(line string, tables, pending bool) string {
	var out strings.Builder
	pieces := spans(line, tables)
	for i, p := range pieces {
		if p.code {
			join(&out, p.text)
			continue
		}
		c.text(&out, p.text, i == 0, pending && i == 0)
	}
	cleaned := strings.TrimRight(out.String(), " \t")
	if loneTag.MatchString(cleaned) {
		// Alone on a line, a tag opens a block in which backticks mean nothing.
		cleaned = strings.NewReplacer("<", "(", ">", ")").Replace(cleaned)
	}
	return cleaned
}

type piece struct {
	text string
	code bool // with its backticks
}

// spans splits a line into code spans and text. Runs of backticks without a partner on the line become apostrophes, so
// that no other way of reading pairs them otherwise.
func spans(line string, tables bool) []piece {
	var out []piece
	text := func(s string) {
		if s == "" {
			return
		}
		if n := len(out); n > 0 && !out[n-1].code {
			out[n-1].text += s
			return
		}
		out = append(out, piece{text: s})
	}
	for line != "" {
		i := strings.IndexByte(line, '`')
		if i < 0 {
			text(line)
			break
		}
		// A backslash before a backtick would take it away.
		text(strings.TrimRight(line[:i], `\`))
		line = line[i:]
		n := len(line) - len(strings.TrimLeft(line, "`"))
		end := partner(line[n:], n)
		if end < 0 || tables && strings.Contains(line[n:n+end], "|") || strings.TrimSpace(line[n:n+end]) == "" {
			text(strings.Repeat("'", n))
			line = line[n:]
			continue
		}
		if len(out) > 0 && !out[len(out)-1].code && openTarget.MatchString(out[len(out)-1].text) {
			text(strings.ReplaceAll(line[:n+end+n], "`", "'"))
			line = line[n+end+n:]
			continue
		}
		out = append(out, piece{line[:n+end+n], true})
		line = line[n+end+n:]
	}
	return out
}

// openTarget is the end of a text in which a link's target has begun: there, backticks are part of the target.
var openTarget = regexp.MustCompile(`(?i)(?:\]\(\s*<?|\]:\s*<?|^\s*<?)(?:(?:https?|ftp):[/\\]*|[/\\]{2,})$`)

// partner finds the next run of exactly n backticks.
func partner(s string, n int) int {
	for at := 0; ; {
		i := strings.IndexByte(s[at:], '`')
		if i < 0 {
			return -1
		}
		at += i
		run := len(s[at:]) - len(strings.TrimLeft(s[at:], "`"))
		if run == n {
			return at
		}
		at += run
	}
}

// join appends a piece of code, with a space where its backticks would grow together with others.
func join(out *strings.Builder, code string) {
	if s := out.String(); strings.HasSuffix(s, "`") || strings.HasSuffix(s, `\`) {
		out.WriteByte(' ')
	}
	out.WriteString(code)
}

const issueRef = `(?:[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+#[0-9]+|#[0-9]+|GH-[0-9]+|https?:[/\\]+[^\s<>()'"]+/(?:issues|pull|discussions)/[0-9]+)`

var (
	escapes    = regexp.MustCompile(`\\+([@#/:<&'])`)
	entity     = regexp.MustCompile(`&\\+#`)
	mailLink   = regexp.MustCompile(`<([^\s<>]*@[^\s<>]*)>`)
	tag        = regexp.MustCompile(`<[/!?]?[A-Za-z!?/\[][^<>]*>?`)
	keptTag    = regexp.MustCompile(`(?i)^<(/?)(b|br|del|em|i|ins|kbd|s|strong|sub|sup)\s*/?>$`)
	loneTag    = regexp.MustCompile(`(?i)^(?:\[\^[^\]]*\]:)?[\s>*+\-0-9.)\[\]x]*</?[a-z]+>[\s]*$`)
	closingEnd = regexp.MustCompile(`(?i)(?:^|[^A-Za-z])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)[\s:*_~\[(]*$`)
	leadingRef = regexp.MustCompile(`(?i)^[\s>*_~\[(]*` + issueRef)

	// One pass over the text; the first alternative that matches at a place wins.
	patterns = regexp.MustCompile(`(?i)` +
		`(?P<closing>(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b[\s:*_~\[(]*` + issueRef + `)` +
		`|(?P<url>[a-z][a-z0-9+.\-]*:[/\\]+[^\s<>'"` + "`" + `)\]|]*|(?:javascript|vbscript):[^\s<>'")\]|]*|(?:data|mailto|file|blob|about|tel|sms):[^\s<>'")\]|]+|www\.[^\s<>'")\]|]+)` +
		`|(?P<relative>(?:^|[\s(<:>])[/\\]{2,}[^\s)]+)` +
		`|(?P<ref>[A-Za-z0-9][A-Za-z0-9\-]*/[A-Za-z0-9._\-]+(?:#[0-9]+|@[0-9a-f]{7,40}\b))` +
		`|(?P<mention>@[A-Za-z0-9][A-Za-z0-9\-]*(?:/[A-Za-z0-9._\-]+)?)`)

	bareScheme = regexp.MustCompile(`^[A-Za-z]+:(?:[^/\\]|$)`)
	command    = regexp.MustCompile(`^(\s*)(/[A-Za-z][A-Za-z0-9_-]*)`)
)

// text cleans text between code. first: it begins its line. closing: the line before ended with a closing word.
func (c Cleaning) text(out *strings.Builder, s string, first, closing bool) {
	s = entity.ReplaceAllString(s, "& #") // not to be one once the backslash is gone
	s = escapes.ReplaceAllString(s, "$1")
	for round, before := 0, ""; s != before; round++ {
		before, s = s, c.tags(mailLink.ReplaceAllString(s, "($1)"))
		if round == 16 { // brackets in brackets in brackets
			s = strings.NewReplacer("<", "(", ">", ")").Replace(s)
		}
	}
	if first {
		if m := command.FindStringSubmatch(s); m != nil {
			out.WriteString(m[1])
			quoteCode(out, m[2])
			s = s[len(m[0]):]
		} else if m := leadingRef.FindString(s); closing && m != "" {
			out.WriteString(`'` + strings.ReplaceAll(m, "#", "") + `'`)
			s = s[len(m):]
		}
	}
	if !strings.ContainsAny(s, "@:#/\\") && !containsFold(s, "www.") && !containsFold(s, "gh-") {
		out.WriteString(s) // nothing below can match
		return
	}
	names := patterns.SubexpNames()
	for s != "" {
		m := patterns.FindStringSubmatchIndex(s)
		if m == nil {
			out.WriteString(s)
			return
		}
		out.WriteString(s[:m[0]])
		hit, kind := s[m[0]:m[1]], ""
		inWord := false
		if prev := out.String(); prev != "" {
			inWord = alphanumeric(prev[len(prev)-1])
		}
		for i := 1; i < len(names); i++ {
			if m[2*i] >= 0 && names[i] != "" {
				kind = names[i]
				break
			}
		}
		next := s[m[1]:]
		switch kind {
		case "closing":
			if inWord {
				hit, next = s[m[0]:m[0]+1], s[m[0]+1:]
				out.WriteString(hit)
				break
			}
			quoteCode(out, hit)
		case "url":
			if inWord && bareScheme.MatchString(hit) { // of "profile:x", the end is no scheme
				hit, next = s[m[0]:m[0]+1], s[m[0]+1:]
				out.WriteString(hit)
				break
			}
			hit, next = trimURL(hit, next)
			c.url(out, hit)
		case "relative":
			if i := strings.IndexAny(hit, `/\`); i > 0 {
				out.WriteString(hit[:i])
			}
			out.WriteString("(redacted)")
		case "ref":
			c.reference(out, hit)
		case "mention":
			switch {
			case inWord: // an address, but what follows may be a reference
				hit, next = "@", s[m[0]+1:]
				out.WriteString(hit)
			case c.mayMention(hit[1:]):
				out.WriteString(hit)
			default:
				quoteCode(out, hit)
			}
		}
		s = next
	}
}

func alphanumeric(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// quoteCode puts s in backticks.
func quoteCode(out *strings.Builder, s string) { join(out, "`"+s+"`") }

// tags keeps a short list of inline formatting, without attributes, and writes any other tag in parentheses.
func (c Cleaning) tags(s string) string {
	s = tag.ReplaceAllStringFunc(s, func(t string) string {
		if m := keptTag.FindStringSubmatch(t); m != nil {
			return "<" + m[1] + strings.ToLower(m[2]) + ">"
		}
		if inner, ok := strings.CutSuffix(t[1:], ">"); ok {
			return "(" + inner + ")"
		}
		return "< " + t[1:] // it could go on in the next line
	})
	return s
}

// trimURL gives trailing punctuation back to the sentence.
func trimURL(u, next string) (string, string) {
	end := len(strings.TrimRight(u, ".,;:!?*_~"))
	return u[:end], u[end:] + next
}

var urlParts = regexp.MustCompile(`(?i)^(?:([a-z][a-z0-9+.\-]*):)?[/\\]*([^/\\?#]*)(.*)$`)

// url writes a link that may stay as it is, and of any other only its host.
func (c Cleaning) url(out *strings.Builder, u string) {
	m := urlParts.FindStringSubmatch(u)
	if m == nil {
		out.WriteString("(redacted)")
		return
	}
	scheme, authority := strings.ToLower(m[1]), strings.ToLower(m[2])
	host := authority[strings.LastIndex(authority, "@")+1:]
	host, _, _ = strings.Cut(host, ":")
	host = strings.TrimSuffix(host, ".")
	clean := strings.HasPrefix(u, "https://") || strings.HasPrefix(u, "HTTPS://")
	if scheme == "https" && clean && !strings.Contains(authority, "@") && hostForm.MatchString(host) && c.mayLink(host) && !strings.ContainsAny(u, "\\@") {
		c.link(out, u, m[3])
		return
	}
	host = strings.TrimLeft(strings.TrimPrefix(host, "www."), ".-")
	if scheme != "" && !strings.HasPrefix(u[len(scheme):], ":/") || !hostForm.MatchString(host) || !strings.Contains(host, ".") || strings.Contains(host, "www.") {
		out.WriteString("(redacted)")
		return
	}
	out.WriteString("(" + host + "/redacted)")
}

func (c Cleaning) mayLink(host string) bool {
	return slices.ContainsFunc(c.Domains, func(d string) bool {
		d = strings.ToLower(d)
		return d != "" && (host == d || strings.HasSuffix(host, "."+d))
	})
}

var itemPath = regexp.MustCompile(`(?i)^/([A-Za-z0-9][A-Za-z0-9-]*)/([A-Za-z0-9._-]+)/(?:issues|pull|discussions|commit)/`)

// link writes a link that is allowed; one to an item of another repository would leave a reference there, so it becomes code.
func (c Cleaning) link(out *strings.Builder, u, rest string) {
	if m := itemPath.FindStringSubmatch(rest); m != nil && !c.mayRefer(Repo{m[1], m[2]}) {
		quoteCode(out, u)
		return
	}
	out.WriteString(u)
}

func (c Cleaning) mayRefer(r Repo) bool { return slices.ContainsFunc(c.Repos, r.Equal) }

func (c Cleaning) reference(out *strings.Builder, ref string) {
	i := strings.IndexAny(ref, "#@")
	owner, name, _ := strings.Cut(ref[:i], "/")
	if c.mayRefer(Repo{owner, name}) {
		out.WriteString(ref)
		return
	}
	quoteCode(out, ref)
}

func (c Cleaning) mayMention(name string) bool {
	return slices.ContainsFunc(c.Mentions, func(m string) bool { return strings.EqualFold(strings.TrimPrefix(m, "@"), name) })
}

var closingInTitle = regexp.MustCompile(`(?i)((?:^|[^A-Za-z])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?))([\s:]*)((?:[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+)?#|GH-)([0-9]+)`)

func (c Cleaning) title(s string) string {
	s = strings.Join(strings.Fields(characters(s)), " ")
	line, _ := c.line(openTitle(s), false, false)
	return strings.Join(strings.Fields(openTitle(line)), " ")
}

// openTitle takes the issue's sign away after closing words, one of which may hide behind another.
func openTitle(s string) string {
	for range 100 {
		next := closingInTitle.ReplaceAllString(s, "$1$2$4")
		if next == s {
			break
		}
		s = next
	}
	return s
}
