package doctor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// memoryLife is how long deep verdicts are taken for true: tokens expire and permissions change without our being told.
const memoryLife = 12 * time.Hour

// remembered is what the deep checks found with one version of one engine, under one set of settings.
type remembered struct {
	Engine   string    `json:"engine"` // such as "sbx 0.47.0"
	Kind     string    `json:"kind"`
	Program  string    `json:"program"`  // size and time of the engine's file: development builds share one version
	Settings string    `json:"settings"` // digest of what the verdicts depend on
	At       time.Time `json:"at"`
	Checks   []Check   `json:"checks"` // without those that could not be made
}

// Drift is a check that came out otherwise with another version of the engine.
type Drift struct {
	ID     string  `json:"id"`
	Before Verdict `json:"before"`
	Now    Verdict `json:"now"`
	Engine string  `json:"engine"` // the other version
	Detail string  `json:"detail"` // what was found then
}

// settings is a digest of everything beside the engine's version that a deep verdict depends on, the tokens included: a
// digest tells nothing about values that are random.
func (e *examination) settings(repo string) string {
	c := e.Config
	text, err := json.Marshal([]any{c.Engine.AppName, c.Sandbox, c.Agent, c.GitHub, c.Network, c.Local, repo})
	if err != nil {
		return "" // configuration is plain data
	}
	sum := sha256.New()
	sum.Write(text)
	sum.Write([]byte("\x00" + e.creds.Agent.Reveal() + "\x00" + e.creds.GitHub.Reveal()))
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// engineName is the engine with everything of its version that may change how it behaves.
func engineName(v sbx.Version) string {
	return strings.TrimSpace(v.String() + " " + v.Isolation)
}

// programStamp tells one build of an engine from the next.
func programStamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
}

func memoryDir(state string) string { return filepath.Join(state, "doctor") }

// What is remembered.
const (
	subjectDeep        = "deep"
	subjectConformance = "conformance"
)

// recall reads what earlier examinations of the subject under these settings found with this kind of engine, newest first.
// What cannot be read is not remembered.
func recall(state, subject, kind, settings string) []remembered {
	files, err := filepath.Glob(filepath.Join(memoryDir(state), subject+"-"+settings+"-*.json"))
	if err != nil {
		return nil
	}
	var list []remembered
	for _, file := range files {
		var r remembered
		text, err := os.ReadFile(file)
		if err == nil && json.Unmarshal(text, &r) == nil && r.Kind == kind && r.Settings == settings {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b remembered) int { return b.At.Compare(a.At) })
	return list
}

// remember keeps the verdicts of an examination. Unknown ones are not kept, so that they are asked again; nor is the
// whole then taken for an answer.
func remember(state, subject string, r remembered) error {
	dir := memoryDir(state)
	r.Checks = slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.Verdict == Unknown })
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name := sha256.Sum256([]byte(r.Engine))
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%s-%x.json", subject, r.Settings, r.Kind, name[:6]))
	file, err := os.CreateTemp(dir, "."+subject+"-*")
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}

// stands reports whether r can be given as an answer now: young, complete, and nothing in it that its reader would mend
// and then ask about again.
func (r remembered) stands(now time.Time) bool {
	age := now.Sub(r.At)
	if age < 0 || age > memoryLife {
		return false
	}
	for _, about := range Catalogue() {
		i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.ID == about.ID })
		if about.Deep && (i < 0 || r.Checks[i].Verdict == Bad) {
			return false
		}
	}
	return true
}

// drift compares verdicts with those of the last other version.
func drift(now []Check, engine string, earlier []remembered) []Drift {
	i := slices.IndexFunc(earlier, func(r remembered) bool { return r.Engine != engine })
	if i < 0 {
		return nil
	}
	var list []Drift
	for _, c := range now {
		if c.Verdict == Unknown {
			continue // nothing is concluded from a check that could not be made
		}
		for _, old := range earlier[i].Checks {
			if old.ID == c.ID && old.Verdict != c.Verdict {
				list = append(list, Drift{c.ID, old.Verdict, c.Verdict, earlier[i].Engine, old.Detail})
			}
		}
	}
	return list
}
