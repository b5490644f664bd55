package github

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// maxConfigLine is the longest line that curl reads from a config document (100 KiB up to curl 8.2, tool_parsecfg.c).
const maxConfigLine = 100 << 10

// channelScript carries out requests on standard input until it ends, one at a time. A request is a line "ID CONFIG LENGTH" (an
// id and two lengths in bytes) and that many bytes of curl configuration. "sbxpair-go ID" says that curl starts. Then the request's
// body comes in pieces, each a line with its length and that many bytes, until LENGTH is reached; and meanwhile the answer goes
// out in pieces, each a line "sbxpair-data ID LENGTH" and that many bytes, until "sbxpair-end ID EXIT CONNECT ERR" and
// curl's standard error. Nothing is kept but the piece in hand, so each side goes at the pace of the other.
//
// Lengths and dd keep the two sides in step: the shell reads its line byte by byte from a pipe, as POSIX demands, and
// dd never reads ahead, which head and cat may; and dd reads its piece even where curl takes no more. A piece of the answer is what
// is there, or, once it comes fast, as much as fits. Everything variable is in the configuration, a file of 0600 in a
// private directory that goes with the script.
const channelScript = `set -u
umask 077
LC_ALL=C; export LC_ALL
for p in curl dd mktemp wc cat; do command -v "$p" >/dev/null 2>&1 || { echo "sbxpair: $p is missing" >&2; exit 127; }; done
d=$(mktemp -d "${TMPDIR:-/tmp}/sbxpair-http.XXXXXXXX") || exit 70
trap 'cd / && rm -rf "$d"' EXIT
trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 141' PIPE; trap 'exit 143' TERM
cd "$d" || exit 70
up() {
  while [ "$b" -gt 0 ] && read -r n; do
    case "$n" in ''|0*|*[!0-9]*) return;; esac
    dd bs="$n" count=1 iflag=fullblock 2>/dev/null
    b=$((b - n))
  done
}
down() {
  full=
  while :; do
    dd bs=1048576 count=1 $full of=piece 2>/dev/null || return 74
    [ -s piece ] || break
    n=$(($(wc -c <piece)))
    echo "sbxpair-data $id $n" && cat piece || return 141
    [ "$n" -lt 65536 ] || full=iflag=fullblock
  done
  x=126 w=0
  read -r x <exit; read -r w <connect
  case "$w" in ''|*[!0-9]*) w=0;; esac
  echo "sbxpair-end $id $x $w $(($(wc -c <err)))" && cat err || return 141
}
while IFS=' ' read -r id c b; do
  case "$id$c$b" in ''|*[!0-9]*) exit 65;; esac
  : >exit; : >connect; : >err
  dd bs="$c" count=1 iflag=fullblock of=config 2>/dev/null || exit 74
  [ "$(wc -c <config)" -eq "$c" ] || exit 65
  echo "sbxpair-go $id" || exit 141
  up | { curl -q --config config 3>&1 >connect 2>err; echo $? >exit; } | down || exit
done
`

// curlConfig writes the configuration for one request with a body of length bytes on curl's standard input. still bounds how long
// nothing may come or go, left the whole.
//
// The answer is written raw with its header, so that net/http parses exactly what came and sees where it was cut off.
func curlConfig(req *http.Request, length int64, still, left time.Duration, maxBody int64) ([]byte, error) {
	var b strings.Builder
	line := func(name, value string) error {
		q, err := quote(value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(name)+len(q)+4 > maxConfigLine {
			return fmt.Errorf("%s: %w", name, ErrTooLarge)
		}
		b.WriteString(name + " = " + q + "\n")
		return nil
	}
	header := func(name, value string) error {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("%w: header %s", ErrOutOfBounds, oneLine(name, 60))
		}
		if value == "" {
			return line("header", name+";") // a header without value; "Name:" would remove it
		}
		return line("header", name+": "+value)
	}
	u := *req.URL
	u.Fragment, u.RawFragment = "", ""
	if err := line("url", u.String()); err != nil {
		return nil, err
	}
	if !httpguts.ValidHeaderFieldName(req.Method) { // the form of a token, as a method is
		return nil, fmt.Errorf("%w: method", ErrOutOfBounds)
	}
	if req.Method == http.MethodHead {
		b.WriteString("head\n")
	} else if err := line("request", req.Method); err != nil {
		return nil, err
	}
	b.WriteString("include\nraw\nhttp1.1\nsilent\nshow-error\ngloboff\npath-as-is\nsuppress-connect-headers\n" +
		"output = \"/dev/fd/3\"\nwrite-out = \"%{http_connect}\\n\"\nproto = \"=https\"\nmax-redirs = 0\nconnect-timeout = 20\n")
	fmt.Fprintf(&b, "max-time = %s\nmax-filesize = %d\n", strconv.FormatFloat(max(left.Seconds(), 0.1), 'f', 3, 64), maxBody)
	fmt.Fprintf(&b, "speed-limit = 1\nspeed-time = %d\n", max(int(still.Seconds()), 1))
	switch {
	case length > 0:
		// From standard input curl would send it chunked, where an end that came early looks like the end.
		fmt.Fprintf(&b, "upload-file = \"-\"\nheader = \"Transfer-Encoding:\"\nheader = \"Content-Length: %d\"\n", length)
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		b.WriteString("data = \"\"\n") // so that its length is sent, which is 0
	}
	// curl would add these of its own accord: a wait for "100 Continue", a form's content type.
	b.WriteString("header = \"Expect:\"\n")
	for _, name := range []string{"Accept", "User-Agent", "Content-Type"} {
		if len(req.Header.Values(name)) == 0 {
			b.WriteString("header = \"" + name + ":\"\n")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(req.Header)) {
		switch http.CanonicalHeaderKey(name) {
		case "Accept-Encoding", "Content-Length", "Transfer-Encoding", "Connection", "Host", "Expect", "Te", "Trailer", "Upgrade",
			"Proxy-Authorization", "Proxy-Connection":
			continue // they belong to the connection, which is curl's
		}
		for _, value := range req.Header[name] {
			if err := header(name, value); err != nil {
				return nil, err
			}
		}
	}
	return []byte(b.String()), nil
}

// quote writes s as a quoted value of a curl config document. Inside the quotes curl knows \\ \" \t \n \r \v and
// drops any other backslash; NUL ends its string, so it is refused.
func quote(s string) (string, error) {
	if strings.ContainsRune(s, 0) {
		return "", fmt.Errorf("%w: a NUL byte", ErrOutOfBounds)
	}
	return `"` + quoter.Replace(s) + `"`, nil
}

var quoter = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`, "\n", `\n`, "\r", `\r`, "\v", `\v`)

// curlTrouble reads curl's exit code (curl's manual, EXIT CODES). sent is true where bytes of the request may have got
// through.
func curlTrouble(exit int) (t Trouble, sent bool) {
	switch exit {
	case 5, 6:
		return TroubleDNS, false
	case 7, 97:
		return TroubleConnect, false
	case 28:
		return TroubleTimeout, true // curl does not tell the connect timeout apart
	case 35, 51, 53, 54, 58, 59, 60, 64, 66, 77, 80, 82, 83, 90, 91, 98:
		return TroubleTLS, false
	case 8, 16, 18, 52, 55, 56, 61, 92:
		return TroubleBroken, true
	case 1, 2, 3, 26, 27, 43:
		return TroubleOther, false
	}
	return TroubleOther, true
}
