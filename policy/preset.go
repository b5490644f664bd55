package policy

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
)

// Preset names a global starting point.
type Preset string

// The presets of sbx 0.47.
const (
	AllowAll Preset = "allow-all"
	Balanced Preset = "balanced"
	DenyAll  Preset = "deny-all"
)

// ErrPreset matches the error for an unknown preset.
var ErrPreset = errors.New("unknown preset")

// balancedJSON is data, read only by [Preset.Rules]. It is our own list, not sbx's, and has a version of its own.
// Hosts of package managers are not in it: which ones a team uses is for the team to say.
//
//go:embed presets/balanced.json
var balancedJSON []byte

type presetFile struct {
	Version string `json:"version"`
	Groups  []struct {
		Name      string     `json:"name"`
		Reason    string     `json:"reason"`
		Resources []Resource `json:"resources"`
	} `json:"groups"`
}

// ParsePreset returns the preset of that name. The error matches [ErrPreset].
func ParsePreset(name string) (Preset, error) {
	switch p := Preset(name); p {
	case AllowAll, Balanced, DenyAll:
		return p, nil
	}
	return "", fmt.Errorf("%w %q: choose allow-all, balanced or deny-all", ErrPreset, clip(name))
}

// Rules returns the network rules of the preset: none for deny-all, because what nothing allows is denied anyway.
func (p Preset) Rules() ([]Rule, error) {
	switch p {
	case DenyAll:
		return nil, nil
	case AllowAll:
		return []Rule{{
			ID: "default-allow-all", Name: "default-allow-all", Effect: Allow, Layer: "default",
			Resources: []Resource{{kind: kindAny}}, Reason: "preset allow-all",
		}}, nil
	case Balanced:
		file, err := readBalanced()
		if err != nil {
			return nil, err
		}
		var rules []Rule
		for _, g := range file.Groups {
			rules = append(rules, Rule{
				ID: g.Name, Name: g.Name, Effect: Allow, Layer: "default", Resources: g.Resources, Reason: g.Reason,
			})
		}
		return rules, nil
	}
	return nil, fmt.Errorf("%w %q", ErrPreset, clip(string(p)))
}

// Version returns the version of the preset's list, "" where there is no list.
func (p Preset) Version() (string, error) {
	if p != Balanced {
		return "", nil
	}
	file, err := readBalanced()
	return file.Version, err
}

func readBalanced() (presetFile, error) {
	var file presetFile
	if err := json.Unmarshal(balancedJSON, &file); err != nil {
		return presetFile{}, fmt.Errorf("balanced preset: %w", err)
	}
	return file, nil
}
