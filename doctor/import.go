package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// Errors of [Import], which writes nothing then.
var (
	ErrCredentialInside = errors.New("a recording holds what looks like a credential")
	ErrImport           = errors.New("cannot be imported") // the folders are not what they have to be
)

// Mine is what of this machine must not stand in a fixture. Empty fields are left out.
type Mine struct {
	Home string // folder
	Host string // name
}

// Imported says what became of recorded calls.
type Imported struct {
	Version string   `json:"version"` // of the engine, as the recording tells it
	Files   []string `json:"files"`
	Index   string   `json:"index"`   // file with a line for each, in the form of fixtures/sbx/README.md
	Skipped int      `json:"skipped"` // calls whose output is a guest's, or that told nothing new
}

// Import turns the recorded engine calls in dir (SBXPAIR_RECORD) into fixtures in out, an empty or new folder: one file for
// each different answer, without what names machines, users, sandboxes, repositories and their hosts, and an index beside
// them. Equal names stay equal, and tables keep their columns. What ran inside sandboxes is left out: it is not the
// engine's and may be anything. The error matches [ErrCredentialInside] if a shape of a credential is still in the
// recordings, and [ErrImport] if dir holds no recordings or out is not empty.
func Import(dir, out string, mine Mine) (Imported, error) {
	recordings, err := sbx.ReadRecordings(dir)
	if err != nil {
		return Imported{}, fmt.Errorf("%s %w: %w", dir, ErrImport, err)
	}
	if err := refuseCredentials(dir); err != nil {
		return Imported{}, err
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return Imported{}, fmt.Errorf("%s %w: %s is not empty", dir, ErrImport, out)
	}
	im := &importer{version: "unknown", neutral: newNeutral(mine, recordings)}
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
		return Imported{}, fmt.Errorf("%s %w: there is no output of the engine's own in it", dir, ErrImport)
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
	files, err := sbx.RecordingFiles(dir)
	if err != nil {
		return err
	}
	scanner := secrets.NewScanner()
	for _, name := range files {
		file := filepath.Join(dir, name)
		if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("%s %w: not a plain file", filepath.Base(file), ErrImport)
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
	verb := r.Verb()
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
	data := []byte(im.neutral.text(verb, text))
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
	call := fmt.Sprintf("sbx %s (exit %d)", strings.ReplaceAll(verb, "-", " "), r.Code)
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
