package github

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// This file is the only reader of git's prose (git 2.39, LC_ALL=C) and of what GitHub's git server says through it.

// ErrBaseMissing is the kind of a base commit that GitHub does not have: the work started from a commit that was never pushed.
var ErrBaseMissing = fmt.Errorf("%w: GitHub does not have the commit the work started from", ErrBadBundle)

var (
	httpStatus   = regexp.MustCompile(`(?:returned error: |HTTP |error: RPC failed; HTTP )([1-5][0-9][0-9])`)
	workflowFile = regexp.MustCompile("workflow `([^`]{1,300})`")
	bigFile      = regexp.MustCompile(`File (\S{1,300}) is [0-9.]+ [MG]B`)
)

// gitFailure makes the typed error of a script that did not end with 0.
func gitFailure(res gitResult, d Delivery, host string) error {
	detail := lastWords(res.stderr)
	switch res.code {
	case 126, 127:
		return fmt.Errorf("%w: git: %s", ErrTool, detail)
	case 42:
		return fmt.Errorf("%w: its objects do not pass git's checks: %s", ErrBadBundle, detail)
	case 43:
		return fmt.Errorf("%w: its history does not lead from the base to the head: %s", ErrBadBundle, detail)
	case 46:
		_, at, _ := strings.Cut(strings.TrimSpace(string(res.out)), "sbxpair-remote ")
		return &BranchMovedError{Branch: d.Branch, Remote: oneLine(at, 40)}
	case 47:
		if _, at, ok := strings.Cut(strings.TrimSpace(string(res.out)), "sbxpair-remote "); ok {
			return &BranchMovedError{Branch: d.BaseBranch, Remote: oneLine(at, 40)}
		}
		if e := refusedRef(string(res.out), res.stderr, "refs/heads/"+d.BaseBranch); e != nil {
			return e
		}
	case 44:
		if e := refusedRef(string(res.out), res.stderr, "refs/heads/"+d.Branch); e != nil {
			return e
		}
	}
	if e := remoteFailure(res.stderr, host); e != nil {
		return e
	}
	if detail == "" {
		detail = oneLine(string(res.out), 300)
	}
	return fmt.Errorf("git in the sandbox ended with %d: %s", res.code, detail)
}

// remoteFailure reads why git did not get through.
func remoteFailure(stderr, host string) error {
	says := func(parts ...string) bool {
		for _, p := range parts {
			if containsFold(stderr, p) {
				return true
			}
		}
		return false
	}
	detail := lastWords(stderr)
	// A page of the sandbox's proxy is text/plain, which git shows as words of the remote.
	for line := range strings.Lines(stderr) {
		if first, ok := blockLine(strings.TrimPrefix(strings.TrimSpace(line), "remote: ")); ok {
			return &BlockedError{Host: host, Detail: first}
		}
	}
	if says("CONNECT tunnel failed, response 403", "Received HTTP code 403 from proxy after CONNECT") {
		return &BlockedError{Host: host, Detail: detail}
	}
	network := func(t Trouble) error { return &NetworkError{Trouble: t, Host: host, Detail: detail, Sent: true} }
	switch {
	case says("not our ref", "couldn't find remote ref", "Could not find remote branch"):
		return fmt.Errorf("%w: %s", ErrBaseMissing, detail)
	case says("could not read Username", "could not read Password", "Authentication failed", "Invalid username or password"):
		return fmt.Errorf("git at %s: %w: %s", host, ErrUnauthorized, detail)
	case says("Repository not found", "' not found"):
		return fmt.Errorf("git at %s: %w: %s", host, ErrNotFound, detail)
	case says("archived so it is read-only", "was archived"):
		return fmt.Errorf("git at %s: %w", host, ErrArchived)
	case says("Could not resolve host", "Could not resolve proxy"):
		return network(TroubleDNS)
	case says("SSL certificate", "certificate verif", "server certificate", "SSL_ERROR", "gnutls_handshake"):
		return network(TroubleTLS)
	case says("Operation too slow", "timed out", "Timeout"):
		return network(TroubleTimeout)
	case says("Failed to connect", "Connection refused", "Couldn't connect", "Could not connect"):
		return network(TroubleConnect)
	}
	if m := httpStatus.FindStringSubmatch(stderr); m != nil {
		status, _ := strconv.Atoi(m[1])
		e := &APIError{Method: "git", Host: host, Status: status, Message: detail, kind: kindOf(status)}
		switch {
		case status == 403:
			e.Needed = "contents=write"
		case status == 429:
			e.kind = ErrServer // wait and try again
		}
		return e
	}
	if says("unexpected disconnect", "early EOF", "hung up", "RPC failed", "Empty reply", "Connection reset", "Recv failure", "unable to access") {
		return network(TroubleBroken)
	}
	return nil
}

// refusedRef reads the "!" line of a push report and what the remote said about it.
func refusedRef(report, stderr, ref string) error {
	for line := range strings.Lines(report) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) < 3 || f[0] != "!" || !strings.HasSuffix(f[1], ":"+ref) {
			continue
		}
		e := &PushError{Ref: strings.TrimPrefix(ref, "refs/heads/"), Reason: oneLine(f[2], 300), Detail: remoteWords(stderr)}
		all := f[2] + "\n" + stderr
		if m := workflowFile.FindStringSubmatch(all); m != nil || containsFold(all, "without `workflow") || containsFold(all, "workflows` permission") {
			e.Needed, e.kind = "workflows=write", ErrForbidden
			if m != nil {
				e.Files = []string{oneLine(m[1], 300)}
			}
		}
		for _, m := range bigFile.FindAllStringSubmatch(all, 10) {
			e.Files = append(e.Files, oneLine(m[1], 300))
		}
		return e
	}
	return nil
}

// remoteWords joins what the remote said, without its decoration.
func remoteWords(stderr string) string {
	var words []string
	for line := range strings.Lines(stderr) {
		if w, ok := strings.CutPrefix(strings.TrimSpace(line), "remote:"); ok {
			if w = strings.Trim(w, " -—=*\t"); w != "" {
				words = append(words, w)
			}
		}
	}
	return oneLine(strings.Join(words, " "), 600)
}

// lastWords picks the lines that say why git failed.
func lastWords(stderr string) string {
	var words []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		for _, p := range []string{"fatal:", "error:", "remote:", "sbxpair:"} {
			if strings.HasPrefix(line, p) {
				words = append(words, line)
				break
			}
		}
	}
	if len(words) == 0 {
		return oneLine(stderr, 300)
	}
	return oneLine(strings.Join(words, "; "), 400)
}
