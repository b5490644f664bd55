package sbx

import (
	"regexp"
	"strings"
	"sync"
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
		of(ErrPullFailed)("pull failed for image"),
		signedOut("401 unauthorized"), // behind the pull: a registry says it too
		of(ErrDiskFull)("no space left"), of(ErrDiskFull)("disk quota exceeded"),
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
		engine("failed to start runtime"), engine("backend unavailable"), engine("500 internal server error"),
		flag("unknown flag"), flag("unknown shorthand flag"), flag("unknown command"), flag("is no longer supported"),
		flag("is not supported for exec"), flag("is no longer positional"),
		of(ErrNotRunning)("sandbox", "is not running"),
		missing("sandbox '", "' not found"), missing("sandbox \"", "\" not found"), missing("no sandbox named"),
		missing("rule not found"), missing("no scoped policy found"), missing("404 not found"),
		missing("no such template"), missing("template", "not found"), missing("unknown setting"),
	}
}

// classify gives the kinds that an engine's error text stands for, or none.
func classify(text string) []error {
	table := phrases()
	lines := make([]string, 0, 8)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !isWarning(line) && !isPreamble(line) {
			lines = append(lines, strings.ToLower(line))
		}
	}
	// A phrase early in the table beats one further down, on whatever line it stands.
	for _, p := range table {
		for _, line := range lines {
			if containsAll(line, p.all) {
				return p.kinds
			}
		}
	}
	return nil
}

func containsAll(line string, all []string) bool {
	for _, part := range all {
		if !strings.Contains(line, part) {
			return false
		}
	}
	return true
}

// question is a question that the engine is known to ask.
type question struct {
	re     *regexp.Regexp
	remedy string // ${1} is the first group
	kinds  []error
}

// questions gives the list; it is compiled when it is first needed, which is after a failure.
var questions = sync.OnceValue(func() []question {
	q := func(re, remedy string, kinds ...error) question {
		return question{regexp.MustCompile(`(?i)` + re), remedy, kinds}
	}
	return []question{
		q(`Remove sandbox '([^']*)'\?.*\(y/N\):?`, "to remove it, run: sbx rm --force ${1}"),
		q(`Restart now\? \(y/N\):?`, "to restart the daemon, which stops all sandboxes, run: sbx daemon restart", ErrVersionMismatch),
		q(`selected workspace does not exist\. Would you like to create it\? \(y/N\):?`, "create the workspace directory first"),
		q(`Delete selected secret\? \(y/N\):?`, "to remove it, run: sbx secret rm -f with the same arguments"),
		q(`.*overwrite.*\((?:y/N|Y/n)\):?`, "to overwrite it, run the same command with --force"),
		q(`Sandbox (\S+) is running and must be stopped.*\(y/N\):?`, "stop it first: sbx stop ${1}", ErrConflict),
		q(`You are not authenticated to Docker\. Starting the sign-in flow`, "sign in: sbx login", ErrNotSignedIn),
		q(`Your one-time device confirmation code is`, "sign in: sbx login", ErrNotSignedIn),
		q(`Waiting for authentication`, "sign in: sbx login", ErrNotSignedIn),
		q(`(?:choose|select).*(?:network )?policy.*[:?]\s*$`, "choose a preset: sbx policy init balanced", ErrPolicyUninitialised),
		q(`import.*(?:secret|credential|environment).*\(y/N\):?`, "answer it once by hand: sbx setup"),
		q(`kit.*credential.*\((?:y/N|Y/n)\):?`, "answer it once by hand: sbx run with the same kit, in a terminal"),
		q(`Enter secret:`, "give the value by a command: sbx secret set-custom --command"),
		q(`.*(?:\(y/N\)|\(Y/n\)|\[y/N\]|\[Y/n\]):?`, "run the same command by hand in a terminal"),
	}
})

// maxPromptText bounds the text that is searched for a question; one is never far from the end of a stream.
const maxPromptText = 16 << 10

// findPrompt looks for a question of the engine in its output.
func findPrompt(op, text string) *PromptError {
	if len(text) > maxPromptText {
		text = text[len(text)-maxPromptText:]
	}
	if !strings.ContainsAny(text, "?:([") {
		return nil
	}
	for _, q := range questions() {
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			at := q.re.FindStringSubmatchIndex(line)
			if at == nil {
				continue
			}
			remedy := string(q.re.ExpandString(nil, q.remedy, line, at))
			return &PromptError{Op: op, Question: tailText(line[at[0]:at[1]], 200), Remedy: remedy, kinds: q.kinds}
		}
	}
	return nil
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
