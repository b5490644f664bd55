package sbx

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Setting is one of the engine's settings.
type Setting struct {
	Key             string `json:"key"`
	Value           any    `json:"value"` // bool, float64, string, or a JSON value
	Type            string `json:"type"`
	Source          string `json:"source"` // "default", "user", or the environment, which outranks it
	Default         any    `json:"default,omitempty"`
	EnvVar          string `json:"env_var,omitempty"`
	Description     string `json:"description,omitempty"`
	RequiresRestart bool   `json:"requires_restart,omitempty"`

	raw json.RawMessage // Value as the engine wrote it
}

// UnmarshalJSON reads the engine's record.
func (s *Setting) UnmarshalJSON(b []byte) error {
	type plain Setting
	var doc struct {
		plain
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	*s = Setting(doc.plain)
	s.raw = doc.Value
	if len(doc.Value) == 0 {
		return nil
	}
	return json.Unmarshal(doc.Value, &s.Value)
}

var settingKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,127}$`)

// Setting reads one setting.
func (c *Client) Setting(ctx context.Context, key string) (Setting, error) {
	const op = "settings get"
	if !settingKey.MatchString(key) {
		return Setting{}, invalid(op, "key %q", key)
	}
	out, err := c.query(ctx, op, "settings", "get", key, "--json")
	if err != nil {
		return Setting{}, err
	}
	s, err := showing(out, func(out []byte) (s Setting, err error) {
		err = decodeJSON(out, "key", &s)
		return s, err
	}, func(s Setting) error {
		if s.Key != key {
			return malformed("asked for %q, got %q", key, tailText(s.Key, 80))
		}
		return checkSettings([]Setting{s})
	})
	if err != nil {
		return Setting{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return s, nil
}

// Settings lists the engine's settings.
func (c *Client) Settings(ctx context.Context) ([]Setting, error) {
	const op = "settings list"
	out, err := c.read(ctx, op, "settings", "list")
	if err != nil {
		return nil, err
	}
	list, err := ParseSettings(out)
	if err != nil {
		return nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	return list, nil
}

// ParseSettings reads the output of "sbx settings list", text, or JSON as an array or under "settings".
func ParseSettings(out []byte) ([]Setting, error) { return showing(out, readSettings, checkSettings) }

func readSettings(out []byte) ([]Setting, error) {
	if looksJSON(out) {
		var list []Setting
		if decodeJSON(out, "[]", &list) != nil {
			var doc struct {
				Settings []Setting `json:"settings"`
			}
			if err := decodeJSON(out, "settings", &doc); err != nil {
				return nil, err
			}
			list = doc.Settings
		}
		return list, nil
	}
	spec := tableSpec{
		columns: []column{
			{id: "key", names: []string{"KEY"}, word: true}, {id: "value", names: []string{"VALUE"}},
			{id: "type", names: []string{"TYPE"}, word: true}, {id: "source", names: []string{"SOURCE"}},
			{id: "description", names: []string{"DESCRIPTION"}}, {id: "restart", names: []string{"RESTART"}, word: true},
		},
		must: []string{"key", "value", "type"},
		row:  []string{"key", "type"},
	}
	tables, _, err := parseTables(clean(out), spec)
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 {
		return nil, malformed("no settings")
	}
	list := []Setting{}
	for _, t := range tables {
		for _, row := range t.rows {
			s := Setting{
				Key: row.text("key"), Type: row.text("type"), Source: row.text("source"),
				Description: row.text("description"), RequiresRestart: row.text("restart") == "yes",
			}
			s.Value = settingValue(s.Type, row.text("value"))
			list = append(list, s)
		}
	}
	return list, nil
}

func settingValue(typ, text string) any {
	switch typ {
	case "bool":
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case "int", "float":
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return f
		}
	}
	return text
}

// SetSetting changes a setting and reads it back. value is in the form of the setting's type: true or false, a number, text, or
// JSON. It acts within seconds, or after a daemon restart, as the returned record says.
func (c *Client) SetSetting(ctx context.Context, key, value string) (Setting, error) {
	const op = "settings set"
	if !settingKey.MatchString(key) || value == "" || strings.ContainsRune(value, 0) {
		return Setting{}, invalid(op, "key %q, value %q", key, value)
	}
	args := []string{"settings", "set", key, value}
	if strings.HasPrefix(value, "-") {
		args = []string{"settings", "set", "--", key, value}
	}
	if _, err := c.change(ctx, op, args...); err != nil {
		return Setting{}, err
	}
	s, err := c.Setting(ctx, key)
	if err != nil || !c.readBack || s.holds(value) {
		return s, err
	}
	return s, notApplied(op, fmt.Sprintf("%s is %s (source %s)", key, s.raw, s.Source))
}

// holds reports whether the setting has the value that text stands for.
func (s Setting) holds(text string) bool {
	switch v := s.Value.(type) {
	case nil:
		return false
	case string:
		return v == text
	case bool:
		want, err := strconv.ParseBool(text)
		return err == nil && v == want
	case float64:
		// Not as float64: a number of many digits is not the one next to it.
		have, haveOK := number(string(s.raw))
		want, wantOK := number(text)
		return haveOK && wantOK && have.Cmp(want) == 0
	}
	var want any
	return json.Unmarshal([]byte(text), &want) == nil && reflect.DeepEqual(s.Value, want)
}

var numberForm = regexp.MustCompile(`^[+-]?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?$`)

func number(text string) (*big.Rat, bool) {
	if !numberForm.MatchString(text) {
		return nil, false
	}
	return new(big.Rat).SetString(text)
}

// UnsetSetting takes a setting back to its default, and reads back that it has it.
func (c *Client) UnsetSetting(ctx context.Context, key string) error {
	const op = "settings unset"
	if !settingKey.MatchString(key) {
		return invalid(op, "key %q", key)
	}
	if _, err := c.change(ctx, op, "settings", "unset", key); err != nil || !c.readBack {
		return err
	}
	s, err := c.Setting(ctx, key)
	if err != nil || s.Source == "default" || s.Default != nil && reflect.DeepEqual(s.Value, s.Default) {
		return err
	}
	return notApplied(op, fmt.Sprintf("%s is %s (source %s)", key, s.raw, s.Source))
}
