package sbx

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// question is a question that the engine is known to ask.
type question struct {
	re     *regexp.Regexp
	remedy string // ${1} is the first group, {command} the command that asked
	kinds  []error
}

// questions gives the list; it is compiled when it is first needed, which is when something looks like a question.
var questions = sync.OnceValue(func() []question {
	q := func(re, remedy string, kinds ...error) question {
		return question{regexp.MustCompile(`(?i)` + re), remedy, kinds}
	}
	return []question{
		q(`Remove sandbox '([^']*)'\?.*\(y/N\):?`, "to remove it, run: sbx rm --force ${1}"),
		q(`Restart now\? \(y/N\):?`, "to restart the daemon, which stops all sandboxes, run: sbx daemon restart", ErrVersionMismatch),
		q(`selected workspace does not exist\. Would you like to create it\? \(y/N\):?`, "create the workspace directory first"),
		q(`Delete selected secret\? \(y/N\):?`, "to remove it, run: {command} --force"),
		q(`.*overwrite.*\((?:y/N|Y/n)\):?`, "to overwrite it, run: {command} --force"),
		q(`Sandbox (\S+) is running and must be stopped.*\(y/N\):?`, "stop it first: sbx stop ${1}", ErrConflict),
		q(`You are not authenticated to Docker\. Starting the sign-in flow`, "sign in: sbx login", ErrNotSignedIn),
		q(`Your one-time device confirmation code is`, "sign in: sbx login", ErrNotSignedIn),
		q(`Waiting for authentication`, "sign in: sbx login", ErrNotSignedIn),
		q(`(?:choose|select).*(?:network )?policy.*[:?]\s*$`, "choose a preset: sbx policy init balanced", ErrPolicyUninitialised),
		q(`import.*(?:secret|credential|environment).*\(y/N\):?`, "answer it once by hand: sbx setup"),
		q(`kit.*credential.*\((?:y/N|Y/n)\):?`, "answer it once by hand, in a terminal: {command}"),
		q(`Enter secret:`, "give the value by a command: sbx secret set-custom --command"),
		q(`.*(?:\(y/N\)|\(Y/n\)|\[y/N\]|\[Y/n\]):?`, "run it by hand, in a terminal: {command}"),
		q(`^(?:error: *)?(?:(?:the )?(?:user|operation)(?: was)? )?(?:cancell?ed|aborted)(?: operation| by (?:the )?user)?[.!]?$`, "run it by hand, in a terminal: {command}"),
	}
})

// maxPromptText bounds the text that is searched for a question; one is never far from the end of a stream.
const maxPromptText = 16 << 10

// mayAsk reports whether a line, in lower case, is worth a closer look.
func mayAsk(line string) bool {
	return slices.ContainsFunc([]string{
		"y/n", "cancel", "abort", "policy", "enter secret", "sign-in flow", "confirmation code", "waiting for authentication",
	}, func(part string) bool { return strings.Contains(line, part) })
}

// findPrompt looks for a question of the engine in what it said, or for the trace of one that closed standard input answered.
// args are those of the call, for the command to run by hand.
func (c *Client) findPrompt(op, text string, args []string) *PromptError {
	if len(text) > maxPromptText {
		text = text[len(text)-maxPromptText:]
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); mayAsk(strings.ToLower(line)) {
			lines = append(lines, line)
		}
	}
	if lines == nil {
		return nil
	}
	for _, q := range questions() {
		for _, line := range lines {
			at := q.re.FindStringSubmatchIndex(line)
			if at == nil {
				continue
			}
			remedy := string(q.re.ExpandString(nil, q.remedy, line, at))
			remedy = strings.Replace(remedy, "{command} --force", byHand(args, "--force"), 1)
			remedy = strings.Replace(remedy, "{command}", byHand(args), 1)
			return &PromptError{Op: op, Question: tailText(line[at[0]:at[1]], 200), Remedy: c.maskShapes(remedy), kinds: q.kinds}
		}
	}
	return nil
}

// unanswered recognises a question that the engine asked although it then exited with 0: nothing was done (measured on 0.38
// for secret set and secret rm). A document in full on standard output is an answer, and is not searched.
func (c *Client) unanswered(op string, res Result, args []string) error {
	if looksJSON(res.Stdout) {
		res.Stdout = nil
	}
	near := func(b []byte) bool { return mayAsk(strings.ToLower(string(b[max(0, len(b)-maxPromptText):]))) }
	if !near(res.Stderr) && !near(res.Stdout) { // the usual case
		return nil
	}
	text := c.text(res)
	if strings.Contains(text, "Signed in as ") { // somebody did answer, in a browser
		return nil
	}
	if prompt := c.findPrompt(op, text, args); prompt != nil {
		return prompt
	}
	return nil
}

// byHand writes the command that asked, for a POSIX shell, with a flag more if it has it not. Arguments hold no credentials.
func byHand(args []string, flags ...string) string {
	words := []string{"sbx"}
	for _, arg := range args {
		if arg == "" || strings.Trim(arg, shellSafe) != "" {
			arg = shellQuote([]string{arg})
		}
		words = append(words, arg)
	}
	for _, flag := range flags {
		if !slices.Contains(args, flag) && !slices.Contains(args, flag[1:3]) {
			words = append(words, flag)
		}
	}
	return strings.Join(words, " ")
}

// shellSafe are characters that need no quotes in a shell.
const shellSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,"
