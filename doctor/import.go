package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// ErrCredentialInside matches the error of an import that found something shaped like a credential. Nothing is written then.
var ErrCredentialInside = errors.New("a recording holds what looks like a credential")

// Imported says what became of recorded calls.
type Imported struct {
	Version string   `json:"version"` // of the engine, as the recording tells it
	Files   []string `json:"files"`
	Index   string   `json:"index"`   // file with a line for each, in the form of fixtures/sbx/README.md
	Skipped int      `json:"skipped"` // calls whose output is a guest's, or that told nothing new
}

// Import turns the recorded engine calls in dir (SBXPAIR_RECORD) into fixtures in out, an empty or new folder: one file for
// each different answer, without anything that names this machine, its user or their sandboxes, and an index beside them.
// What ran inside sandboxes is left out: it is not the engine's and may be anything. The error matches
// [ErrCredentialInside] if a shape of a credential is still in the recordings.
func Import(dir, out, home string) (Imported, error) {
	recordings, err := sbx.ReadRecordings(dir)
	if err != nil {
		return Imported{}, err
	}
	if err := refuseCredentials(dir); err != nil {
		return Imported{}, err
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return Imported{}, fmt.Errorf("%s is not empty", out)
	}
	im := &importer{version: "unknown", neutral: newNeutral(home, recordings)}
	for _, r := range recordings {
		if v, err := sbx.ParseVersion([]byte(r.Stdout)); err == nil && slices.Contains(r.Args, "version") && v.Client.Known() {
			im.version = v.Client.String()
			if v.IsLocal() {
				im.version = "local-" + im.version
			}
			break
		}
	}
	for _, r := range recordings {
		im.add(r)
	}
	if len(im.files) == 0 {
		return Imported{}, fmt.Errorf("there is no output of the engine's own in %s", dir)
	}
	// The neutral forms are looked at once more: what was split or masked before must not add up to something now.
	for _, f := range im.files {
		if found := secrets.NewScanner().Scan(f.data); len(found) > 0 {
			return Imported{}, fmt.Errorf("%w: %s (%s)", ErrCredentialInside, f.name, found[0].Kind)
		}
	}
	return im.write(out)
}

// refuseCredentials looks at the files as they are, whatever the recorder has masked.
func refuseCredentials(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	scanner := secrets.NewScanner()
	for _, file := range files {
		if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a plain file", filepath.Base(file))
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if found := scanner.Scan(text); len(found) > 0 {
			return fmt.Errorf("%w: %s (%s); delete that file, or what is in it", ErrCredentialInside, filepath.Base(file), found[0].Kind)
		}
	}
	return nil
}

type importer struct {
	version string
	neutral *neutral
	files   []fixture
	skipped int
}

type fixture struct {
	name, call, stream string
	data               []byte
}

func (im *importer) add(r sbx.Recording) {
	verb := verbOf(r.Args)
	guest := verb == "exec" || verb == "run" || verb == "shell"
	stream, text := "stdout", r.Stdout
	if r.Code != 0 && strings.TrimSpace(r.Stderr) != "" && !json.Valid([]byte(r.Stdout)) {
		stream, text = "stderr", r.Stderr
	}
	launch := guest && (r.Code == 126 || r.Code == 127) && strings.HasPrefix(r.Stdout, "OCI runtime exec failed")
	refused := guest && r.Code == 1 && r.Stdout == "" && strings.HasPrefix(strings.ToLower(r.Stderr), "error:")
	if r.Binary || r.Truncated || r.Killed || r.Error != "" || strings.TrimSpace(text) == "" || guest && !launch && !refused {
		im.skipped++
		return
	}
	data := []byte(im.neutral.text(text))
	name := verb
	if r.Code != 0 {
		name = "error-" + verb
	}
	if launch {
		name = "exec-launch-failure-stdout"
	}
	ext := ".txt"
	if json.Valid(data) {
		ext = ".json"
	}
	base := name + "-" + im.version
	n := 1
	for _, f := range im.files {
		if bytes.Equal(f.data, data) && strings.HasPrefix(f.name, base) {
			im.skipped++
			return
		}
		if strings.HasPrefix(f.name, base) && strings.HasSuffix(f.name, ext) {
			n++
		}
	}
	if n > 1 {
		base = fmt.Sprintf("%s-%d", base, n)
	}
	// The verb alone: arguments hold names, paths, hosts and the values of variables.
	call := fmt.Sprintf("sbx %s (exit %d)", verbOf(r.Args), r.Code)
	im.files = append(im.files, fixture{base + ext, call, stream, data})
}

func (im *importer) write(out string) (Imported, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return Imported{}, err
	}
	done := Imported{Version: im.version, Index: filepath.Join(out, "INDEX.md"), Skipped: im.skipped}
	slices.SortFunc(im.files, func(a, b fixture) int { return strings.Compare(a.name, b.name) })
	var index strings.Builder
	index.WriteString("| File | sbx version | Public source | Status |\n|---|---|---|---|\n")
	for _, f := range im.files {
		if err := os.WriteFile(filepath.Join(out, f.name), f.data, 0o644); err != nil {
			return Imported{}, err
		}
		done.Files = append(done.Files, f.name)
		fmt.Fprintf(&index, "| %s | %s | recorded: %s, %s | shape seen |\n", f.name, im.version, strings.ReplaceAll(f.call, "|", `\|`), f.stream)
	}
	return done, os.WriteFile(done.Index, []byte(index.String()), 0o644)
}

// verbOf names the verb of a call, with its second word where the first alone says little.
func verbOf(args []string) string {
	var words []string
	for _, arg := range args {
		switch {
		case strings.HasPrefix(arg, "-"):
			if len(words) > 0 {
				return strings.Join(words, "-")
			}
		case strings.Trim(arg, "abcdefghijklmnopqrstuvwxyz-") != "":
			return strings.Join(words, "-")
		default:
			words = append(words, arg)
			two := slices.Contains([]string{"policy", "secret", "daemon", "template", "settings", "kit", "mcp"}, words[0])
			if len(words) == 2 || !two {
				return strings.Join(words, "-")
			}
		}
	}
	if len(words) == 0 {
		return "call"
	}
	return strings.Join(words, "-")
}

// neutral takes out of texts what is somebody's: names of sandboxes and users, folders, ids, hosts' names, parts of
// secrets. Equal ones stay equal.
type neutral struct {
	pairs []string // old, new, …
	ids   map[string]string
}

var (
	uuids    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	masked   = regexp.MustCompile(`[A-Za-z0-9_-]*\*{4,}[.*]*[A-Za-z0-9_-]*`) // as secret ls shows values: with their first and last letters
	emails   = regexp.MustCompile(`[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+`)
	signedIn = regexp.MustCompile(`(username: |Signed in as )[^\]\s]+`)
	homes    = regexp.MustCompile(`(/home/|/Users/|(?i:[a-z]:\\+Users\\+))[^/\\\s"':]+`)
	tmps     = regexp.MustCompile(`(/private)?(/var/folders|/tmp)/[^\s"':,]+`)
	boxes    = regexp.MustCompile(`sbxpair-[a-z2-7]{12}-(agent|github)`)
)

func newNeutral(home string, recordings []sbx.Recording) *neutral {
	n := &neutral{ids: map[string]string{}}
	if home != "" && home != "/" {
		n.pairs = append(n.pairs, home, "/home/dev")
	}
	// Names of sandboxes, as the listings tell them.
	seen := 0
	for _, r := range recordings {
		if verbOf(r.Args) != "ls" {
			continue
		}
		list, err := sbx.ParseSandboxes([]byte(r.Stdout))
		if err != nil {
			continue
		}
		for _, b := range list {
			if len(b.Name) > 2 && !slices.Contains(n.pairs, b.Name) && !boxes.MatchString(b.Name) {
				seen++
				n.pairs = append(n.pairs, b.Name, fmt.Sprintf("demo-%d", seen))
			}
			for _, w := range b.Workspaces {
				if !slices.Contains(n.pairs, w) && len(w) > 3 {
					n.pairs = append(n.pairs, w, "/home/dev/project")
				}
			}
		}
	}
	return n
}

func (n *neutral) text(s string) string {
	s = boxes.ReplaceAllString(s, "demo-$1")
	s = masked.ReplaceAllString(s, "****")
	s = emails.ReplaceAllString(s, "dev@example.com")
	s = signedIn.ReplaceAllString(s, "${1}dev")
	s = replaceLongestFirst(s, n.pairs)
	s = tmps.ReplaceAllString(s, "/tmp/work")
	s = homes.ReplaceAllString(s, "${1}dev")
	return uuids.ReplaceAllStringFunc(s, func(id string) string {
		if _, known := n.ids[id]; !known {
			n.ids[id] = fmt.Sprintf("c0ffee00-1111-4222-8333-%012d", len(n.ids)+1)
		}
		return n.ids[id]
	})
}

func replaceLongestFirst(s string, pairs []string) string {
	type pair struct{ from, to string }
	var list []pair
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, pair{pairs[i], pairs[i+1]})
	}
	slices.SortStableFunc(list, func(a, b pair) int { return len(b.from) - len(a.from) })
	for _, p := range list {
		s = strings.ReplaceAll(s, p.from, p.to)
	}
	return s
}
