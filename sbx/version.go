package sbx

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Semver is a version number. Raw keeps the engine's own spelling, which need not be a number ("dev", a nightly stamp).
type Semver struct {
	Major, Minor, Patch int
	Pre                 string // pre-release part without its dash, such as "rc3"
	Raw                 string
}

// IsZero reports whether nothing is known, not even a text.
func (v Semver) IsZero() bool { return v == Semver{} }

// Known reports whether v is a number that can be compared.
func (v Semver) Known() bool { return v.Major != 0 || v.Minor != 0 || v.Patch != 0 }

// String gives the number without a leading v, or the engine's own spelling if it is none.
func (v Semver) String() string {
	if !v.Known() {
		return v.Raw
	}
	s := fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Pre != "" {
		s += "-" + v.Pre
	}
	return s
}

// Compare orders by number (0.9 is older than 0.33); a pre-release comes before its release.
func (v Semver) Compare(o Semver) int {
	byNumber := cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.Patch, o.Patch))
	switch {
	case byNumber != 0:
		return byNumber
	case v.Pre == o.Pre:
		return 0
	case v.Pre == "":
		return 1
	case o.Pre == "":
		return -1
	}
	return comparePre(v.Pre, o.Pre)
}

// comparePre orders pre-releases by their letters and numbers: rc9 comes before rc10.
func comparePre(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x > 0 && y > 0 {
			m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
			if c := cmp.Or(cmp.Compare(len(m), len(n)), strings.Compare(m, n)); c != 0 {
				return c
			}
			a, b = a[x:], b[y:]
			continue
		}
		if c := cmp.Compare(a[0], b[0]); c != 0 {
			return c
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits counts the digits at the start of s.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// atLeast reports whether v has what came with major.minor. A pre-release has what its release has.
func (v Semver) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Engine names, as in [Version].
const (
	EngineSbx   = "sbx"       // Docker Sandboxes
	EngineLocal = "sbx-local" // our own
)

// Version says which engine answers, and in which version.
type Version struct {
	Engine        string // EngineSbx or EngineLocal
	EngineVersion string // sbx-local's own version; Client is then the sbx version whose command line it speaks
	Isolation     string // what sbx-local isolates with, such as "gvisor/systrap (rootless)"; "microvm" for sbx
	Client        Semver // the command; not Known for a development build
	Server        Semver // the daemon; zero if it does not run or was not told
	ServerState   string // "running", "stopped"; "" if not told
}

// Newest is the newest sbx version whose output this package has seen.
func Newest() Semver { return Semver{Minor: 47, Raw: "v0.47.0"} }

// Oldest is the oldest sbx version that this package drives.
func Oldest() Semver { return Semver{Minor: 35, Raw: "v0.35.0"} }

// IsLocal reports whether the engine is sbx-local.
func (v Version) IsLocal() bool { return v.Engine == EngineLocal }

// Mismatch reports that the command and its running daemon are of different versions: the engine will ask to restart,
// which stops every sandbox (sbx-releases#381).
func (v Version) Mismatch() bool {
	return v.Client.Known() && v.Server.Known() && v.Client.Compare(v.Server) != 0
}

// Untested reports that the version is newer than what this package has seen, or not a number. It is then driven like
// the newest one.
func (v Version) Untested() bool {
	return !v.Client.Known() || v.Client.atLeast(Newest().Major, Newest().Minor+1)
}

// String gives engine and version, such as "sbx 0.47.0".
func (v Version) String() string {
	if v.Engine == "" {
		return ""
	}
	if v.IsLocal() && v.EngineVersion != "" {
		return fmt.Sprintf("%s %s (speaks sbx %s)", v.Engine, v.EngineVersion, v.Client)
	}
	return v.Engine + " " + v.Client.String()
}

// semverText matches a word that is a version number: the patch part may be missing ("0.47"), and a pre-release, a build or
// a distribution's own number may follow.
var semverText = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?(?:\.\d+)*(?:[-~]([0-9A-Za-z][0-9A-Za-z.~-]*))?(?:[+_][0-9A-Za-z.+_~-]*)?$`)

// ParseSemver reads the first version number in s. Without one, the result holds s as Raw and is not Known.
func ParseSemver(s string) Semver {
	var first string
	for word := range strings.FieldsSeq(s) {
		if first == "" {
			first = word
		}
		word = strings.Trim(word, `,;()"'`)
		m := semverText.FindStringSubmatch(word)
		if m == nil {
			continue
		}
		num := func(i int) int {
			n, _ := strconv.Atoi(m[i]) // at most six digits, or empty
			return n
		}
		return Semver{num(1), num(2), num(3), m[4], word}
	}
	return Semver{Raw: first}
}

// ParseVersion reads the output of "sbx version", text or JSON, of every version: one line since 0.32, two before
// and with a mismatch, JSON from 0.42. The error matches [ErrForeignTool] if it is none of these shapes.
func ParseVersion(out []byte) (Version, error) {
	if looksJSON(out) {
		return parseVersionJSON(out)
	}
	v := Version{Engine: EngineSbx, Isolation: "microvm"}
	seen, both := false, false
	for line := range strings.Lines(clean(out)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		switch strings.ToLower(key) {
		case "sbx version", "client version", "sbx-local version":
			v.Client, seen = ParseSemver(value), true
			both = both || !strings.HasPrefix(strings.ToLower(key), "client")
			if strings.HasPrefix(strings.ToLower(key), EngineLocal) {
				v.Engine = EngineLocal
			}
		case "server version":
			both = true
			if value = strings.TrimSpace(value); strings.HasPrefix(value, "Unavailable") {
				v.ServerState = "stopped"
			} else {
				v.Server, v.ServerState = ParseSemver(value), "running"
			}
		}
	}
	if !seen || !both { // other tools have a "Client Version"
		return Version{}, notVersion(out)
	}
	return v, nil
}

func notVersion(out []byte) error {
	return fmt.Errorf("%w: its version output has none of the known shapes: %s", ErrForeignTool, excerpt(out))
}

func parseVersionJSON(out []byte) (Version, error) {
	var doc struct {
		Client *struct {
			Version       string `json:"version"`
			Engine        string `json:"engine"`
			EngineVersion string `json:"engine_version"`
			Isolation     string `json:"isolation"`
		} `json:"client"`
		Server *struct {
			State   string `json:"state"`
			Version string `json:"version"`
		} `json:"server"`
	}
	if decodeJSON(out, "client", &doc) != nil || doc.Client == nil || doc.Client.Version == "" {
		return Version{}, notVersion(out)
	}
	v := Version{
		Engine: doc.Client.Engine, EngineVersion: doc.Client.EngineVersion, Isolation: doc.Client.Isolation,
		Client: ParseSemver(doc.Client.Version),
	}
	switch v.Engine {
	case "":
		v.Engine = EngineSbx
	case EngineSbx, EngineLocal:
	default:
		return Version{}, notVersion(out)
	}
	tidy(&v.EngineVersion, &v.Isolation)
	if v.Isolation == "" && v.Engine == EngineSbx {
		v.Isolation = "microvm"
	}
	if doc.Server != nil {
		v.ServerState = strings.ToLower(doc.Server.State)
		if doc.Server.Version != "" {
			v.Server = ParseSemver(doc.Server.Version)
		}
	}
	return v, nil
}
