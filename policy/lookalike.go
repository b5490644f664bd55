package policy

import (
	"strings"
	"unicode"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
	"golang.org/x/text/unicode/norm"
)

// knownHosts are the hosts that roles need, whose names are worth imitating.
func knownHosts() []string {
	hosts := []string{"github.com", "api.github.com"}
	for agent, provider := range map[string]string{"copilot": "", "claude": "", "codex": "", "gemini": ""} {
		if p, err := ForAgent(agent, provider); err == nil {
			hosts = append(hosts, p.Bound()...)
		}
	}
	return hosts
}

// looksLike returns the known host that r reads like although it belongs to another registered domain, or "".
func (r Resource) looksLike(known []string) string {
	name := r.name
	if r.kind != kindExact && r.kind != kindPattern {
		return ""
	}
	for strings.HasPrefix(name, "*") || strings.HasPrefix(name, "?") || strings.HasPrefix(name, "[") {
		var found bool
		if _, name, found = strings.Cut(name, "."); !found {
			return ""
		}
	}
	own := registered(name)
	for _, host := range known { // one of theirs is like nobody else's
		if registered(host) == own {
			return ""
		}
	}
	for _, host := range known {
		theirs := registered(host)
		switch {
		case strings.HasPrefix(name, theirs+"."), strings.Contains(name, "."+theirs+"."):
			return host // github.com.elsewhere.test
		case strings.HasSuffix(own, theirs), strings.HasSuffix(own, "-"+theirs):
			return host // evilgithub.com
		case near(skeleton(own), skeleton(theirs)):
			return host
		}
	}
	return ""
}

// registered is the part of a name that somebody has registered.
func registered(name string) string {
	if domain, err := publicsuffix.EffectiveTLDPlusOne(name); err == nil {
		return domain
	}
	return name
}

// skeleton maps letters that look alike to one of them. It need not be complete: names that are near are found too.
func skeleton(domain string) string {
	if decoded, err := idna.ToUnicode(domain); err == nil {
		domain = decoded
	}
	pairs := strings.NewReplacer("rn", "m", "vv", "w", "0", "o", "1", "l", "i", "l", "|", "l", "а", "a", "е", "e", "о", "o", "р", "p",
		"с", "c", "х", "x", "у", "y", "і", "l", "ӏ", "l", "ո", "n", "ɡ", "g", "ɩ", "l", "ı", "l", "ο", "o", "ν", "v", "α", "a", "ц", "u", "տ", "s")
	return pairs.Replace(strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) { // accents
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKD.String(domain)))
}

// near reports whether one letter added, left out or changed, or two that changed places, make one of the other.
func near(a, b string) bool {
	x, y := []rune(a), []rune(b)
	if len(x) > len(y) {
		x, y = y, x
	}
	if len(y)-len(x) > 1 {
		return false
	}
	i := 0
	for i < len(x) && x[i] == y[i] {
		i++
	}
	if len(x) < len(y) {
		return string(x[i:]) == string(y[i+1:])
	}
	if i >= len(x)-1 || string(x[i+1:]) == string(y[i+1:]) {
		return true
	}
	return x[i] == y[i+1] && x[i+1] == y[i] && string(x[i+2:]) == string(y[i+2:])
}
