package sbx

import (
	"regexp"
	"slices"
	"strings"
)

// This file is the one reader of the engine's prose. Each wording has a fixture or a test with the place where it was
// seen. Matching ignores case; a text that nothing here knows (translated, new, empty) has no kind.

// phrase is a wording and what it stands for.
type phrase struct {
	all   []string // lower case; every one must occur in one line
	kinds []error
}

// phrases are tried in order: the more special first.
func phrases() []phrase {
	of := func(kinds ...error) func(all ...string) phrase {
		return func(all ...string) phrase { return phrase{all, kinds} }
	}
	expired, signedOut := of(ErrSessionExpired, ErrNotSignedIn), of(ErrNotSignedIn)
	noPolicy, exists, leaked := of(ErrPolicyUninitialised), of(ErrExists), of(ErrNameLeaked, ErrExists)
	conflict, keyring, daemon := of(ErrConflict), of(ErrKeyring), of(ErrDaemon)
	mismatch, engine, flag, missing := of(ErrVersionMismatch), of(ErrEngine), of(ErrRefusedFlag), of(ErrNotFound)
	return []phrase{
		expired("docker session has expired"), expired("no valid user session"), expired("docker session could not be refreshed"),
		signedOut("not authenticated to docker"), signedOut("auth login failed"), signedOut("hub token is invalid"),
		noPolicy("network policy has not been initialized"), noPolicy("412 precondition failed"),
		exists("network policy is already initialized"), exists("default policy is already set"),
		of(ErrMountDenied)("mount policy denied"),
		of(ErrDiskFull, ErrPullFailed)("pull failed for image", "no space left"),
		of(ErrPullFailed)("pull failed for image"), of(ErrPullFailed)("failed to pull"), of(ErrPullFailed)("pull access denied"),
		signedOut("401 unauthorized"), // behind the pull: a registry says it too
		of(ErrDiskFull)("no space left"), of(ErrDiskFull)("disk quota exceeded"), of(ErrDiskFull)("not enough space on the disk"),
		leaked("container create:", "already exists"),
		of(ErrSecretStore)("list custom secrets:", "not found"),
		keyring("org.freedesktop.secrets"), keyring("secret service"), keyring("keychain"), keyring("keyring"),
		keyring("prompt dismissed"), keyring("dbus"), keyring("credential manager"),
		exists("sandbox already exists"), exists("custom secret env", "already exists"), exists("409 conflict"),
		conflict("is already published"), conflict("conflicts with existing"), conflict("ambiguous policy or rule selector"),
		conflict("must be stopped before"), conflict("cannot save a running sandbox"),
		mismatch("has been updated and needs to restart"), mismatch("created by a newer version"),
		daemon("ensure daemon:"), daemon("daemon failed to start"), daemon("context deadline exceeded"),
		daemon("client.timeout exceeded"), daemon("connection refused"), daemon("daemon is not running"),
		daemon("daemon not running"), daemon("cannot connect to", "daemon"), daemon("sandboxd.sock", "no such file"),
		daemon("sandboxd.sock", "permission denied"), daemon("//./pipe/", "cannot find the file"), daemon(`\\.\pipe\`, "cannot find the file"),
		// It went away in the middle of a request.
		daemon("http://", ": eof"), daemon("http://", "connection reset by peer"), daemon("http://", "broken pipe"),
		daemon("502 bad gateway"), daemon("503 service unavailable"), daemon("504 gateway timeout"),
		engine("failed to start runtime"), engine("backend unavailable"), engine("500 internal server error"),
		flag("unknown flag"), flag("unknown shorthand flag"), flag("unknown command"), flag("is no longer supported"),
		flag("is not supported for exec"), flag("is no longer positional"),
		of(ErrNotRunning)("sandbox", "is not running"),
		missing("sandbox '", "' not found"), missing("sandbox \"", "\" not found"), missing("no sandbox named"),
		missing("rule not found"), missing("no scoped policy found"), missing("404 not found"),
		missing("no such template"), missing("template", "not found"), missing("unknown setting"),
	}
}

// classify gives the kinds that an engine's error text stands for, or none. args are those of the call: what a user named
// says nothing of the reason, so a phrase that lies within one of them, or within a name in quotes, does not count.
func classify(text string, args []string) []error {
	table, own := phrases(), ownWords(args)
	lines := make([]said, 0, 8)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !isWarning(line) && !isPreamble(line) {
			lower := strings.ToLower(line)
			lines = append(lines, said{lower, namesIn(lower, own)})
		}
	}
	// A phrase early in the table beats one further down, on whatever line it stands.
	for _, p := range table {
		for _, line := range lines {
			if line.hasAll(p.all) {
				return p.kinds
			}
		}
	}
	return nil
}

// said is a line, in lower case, and where names stand in it.
type said struct {
	line  string
	names [][2]int
}

func (s said) hasAll(parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !s.has(part) })
}

// has reports whether part occurs, and not just within a name.
func (s said) has(part string) bool {
	for from := 0; ; {
		at := strings.Index(s.line[from:], part)
		if at < 0 {
			return false
		}
		at += from
		if !slices.ContainsFunc(s.names, func(n [2]int) bool { return n[0] <= at && at+len(part) <= n[1] }) {
			return true
		}
		from = at + 1
	}
}

// ownWords gives what a user named in a call, in lower case: its arguments but for the verb, and the parts of
// NAME=value and SANDBOX:/path.
func ownWords(args []string) []string {
	verb := strings.Split(Recording{Args: args}.Verb(), "-")
	var own []string
	for _, arg := range args {
		if arg = strings.ToLower(arg); slices.Contains(verb, arg) || slices.Contains(own, arg) {
			continue
		}
		own = append(own, arg)
		for _, sep := range []string{"=", ":"} {
			if left, right, cut := strings.Cut(arg, sep); cut {
				own = append(own, left, right)
			}
		}
	}
	return slices.DeleteFunc(own, func(word string) bool { return word == "" })
}

// quoted finds one word in quotes.
var quoted = regexp.MustCompile("'[^\\s'\"`]+'|\"[^\\s'\"`]+\"|`[^\\s'\"`]+`")

// namesIn finds where a line has one of the words, or a word in quotes. An address of the engine itself is no name.
func namesIn(line string, own []string) (names [][2]int) {
	for _, at := range quoted.FindAllStringIndex(line, -1) {
		if word := line[at[0]+1 : at[1]-1]; !isEngineAddress(word) {
			names = append(names, [2]int{at[0] + 1, at[1] - 1})
		}
	}
	for _, word := range own {
		for from := 0; ; {
			at := strings.Index(line[from:], word)
			if at < 0 {
				break
			}
			from += at + len(word)
			names = append(names, [2]int{from - len(word), from})
		}
	}
	return names
}

func isEngineAddress(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "//./pipe/") || strings.HasPrefix(word, `\\.\pipe\`) ||
		strings.HasSuffix(word, "/sandboxd.sock") || strings.HasPrefix(word, "org.freedesktop.")
}

// tailText keeps the last limit bytes of s, from the start of a character on.
func tailText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	s = s[len(s)-limit:]
	for len(s) > 0 && s[0]&0xc0 == 0x80 {
		s = s[1:]
	}
	return "…" + s
}
