package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"gopkg.in/yaml.v3"

	"github.com/sbxpair/sbxpair/secrets"
)

// RepositoryFile is the name of the file in a repository that may narrow a run.
const RepositoryFile = ".sbxpair.yaml"

// A Layer is one source of values, by dotted key.
type Layer struct {
	Name   string         // for people: "flag", "environment", a file's path
	Values map[string]any // dotted key to a YAML value
}

// Loaded is a merged configuration and where each value came from.
type Loaded struct {
	Config Config
	Source map[string]string // dotted key to the name of its layer; "default" where nothing set it
}

// Load merges layers, weakest first, over the defaults and validates the result. The error matches [ErrInvalid].
func Load(layers ...Layer) (Loaded, error) {
	loaded, err := Merge(layers...)
	if err != nil {
		return Loaded{}, err
	}
	return loaded, loaded.Config.Validate()
}

// Merge is Load without the validation of the result: for some of the layers, of which others may yet mend what is wrong.
func Merge(layers ...Layer) (Loaded, error) {
	loaded, err := over(Default(), layers...)
	if err != nil {
		return Loaded{}, err
	}
	if p, err := loaded.Config.Agent.ModelProvider(); err == nil && loaded.Source["agent.token"] == "default" {
		loaded.Config.Agent.Token = secrets.Source{Env: p.Env}
	}
	return loaded, nil
}

// over puts layers over c; what none of them sets has the source "default".
func over(c Config, layers ...Layer) (Loaded, error) {
	base, err := flatten(c)
	if err != nil {
		return Loaded{}, err
	}
	source := map[string]string{}
	for key := range base {
		source[key] = "default"
	}
	for _, layer := range layers {
		for _, key := range slices.Sorted(maps.Keys(layer.Values)) {
			if _, known := base[key]; !known {
				return Loaded{}, unknownKey(layer.Name, key, slices.Collect(maps.Keys(base)))
			}
			base[key], source[key] = layer.Values[key], layer.Name
		}
	}
	var loaded Loaded
	if err := eachAlone(base, source); err != nil {
		return Loaded{}, err
	}
	text, err := yaml.Marshal(nest(base))
	if err != nil {
		return Loaded{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := yaml.Unmarshal(text, &loaded.Config); err != nil {
		return Loaded{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	loaded.Source = source
	return loaded, nil
}

// eachAlone decodes every value that some layer set by itself, so that a wrong one is named with its key and layer.
func eachAlone(values map[string]any, source map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if source[key] == "default" {
			continue
		}
		text, err := yaml.Marshal(nest(map[string]any{key: values[key]}))
		if err == nil {
			err = yaml.Unmarshal(text, new(Config))
		}
		if err != nil {
			return fmt.Errorf("%w: %s (%s): %w", ErrInvalid, key, source[key], err)
		}
	}
	return nil
}

// Entry is one value of the configuration and where it came from.
type Entry struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Source string `json:"source"`
}

// Entries lists the values by key.
func (l Loaded) Entries() []Entry {
	values, err := flatten(l.Config)
	if err != nil {
		return nil // a Config that was loaded is one that marshals
	}
	var list []Entry
	for _, key := range slices.Sorted(maps.Keys(values)) {
		list = append(list, Entry{key, values[key], l.Source[key]})
	}
	return list
}

// From lists the keys whose values came from the layer of that name, in order.
func (l Loaded) From(layer string) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(l.Source)) {
		if l.Source[key] == layer {
			keys = append(keys, key)
		}
	}
	return keys
}

// File reads a YAML file as a layer. A file that is not there is an empty layer unless required.
func File(path string, required bool) (Layer, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && !required {
		return Layer{Name: path}, nil
	}
	if err != nil {
		return Layer{}, fmt.Errorf("%w: read configuration: %w", ErrInvalid, err)
	}
	return parse(path, text)
}

func parse(name string, text []byte) (Layer, error) {
	// Decoding into the struct first gives yaml's own messages, with line numbers, for unknown keys and wrong types.
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	cfg := Default()
	if err := dec.Decode(&cfg); err != nil && len(bytes.TrimSpace(text)) > 0 {
		return Layer{}, nearest(name, err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return Layer{}, fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
	}
	values := map[string]any{}
	flattenInto(values, "", tree, reflect.TypeFor[Config]())
	return Layer{name, values}, nil
}

// maxRepositoryFile bounds the repository's file, which a stranger may have written.
const maxRepositoryFile = 64 << 10

// readRepository reads the repository's file if there is one. Only a plain file counts: a link could lead to a device
// without end, or to a file of the user's.
func readRepository(dir string) ([]byte, error) {
	path := filepath.Join(dir, RepositoryFile)
	info, err := os.Lstat(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil, nil
		}
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRepositoryFile {
		return nil, fmt.Errorf("it is not a plain file of at most %d bytes", maxRepositoryFile)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if opened, err := file.Stat(); err != nil || !os.SameFile(info, opened) {
		return nil, errors.New("it changed while it was read")
	}
	return io.ReadAll(io.LimitReader(file, maxRepositoryFile))
}

// Repository reads the file of the repository in dir; there need be none. It may narrow a run and never widen it: only
// verify commands (which run inside the sandbox) where nobody else set them, denied hosts, protected paths and lower limits.
func Repository(dir string, under Config) (Layer, error) {
	text, err := readRepository(dir)
	if err != nil {
		return Layer{}, fmt.Errorf("%w: read %s: %w", ErrInvalid, RepositoryFile, err)
	}
	layer, err := parse(RepositoryFile, text)
	if err != nil {
		return Layer{}, err
	}
	own, err := flatten(under)
	if err != nil {
		return Layer{}, err
	}
	refuse := func(key, why string) error {
		return fmt.Errorf("%w: %s: %s %s; set it in your own configuration", ErrInvalid, RepositoryFile, key, why)
	}
	for key, value := range layer.Values {
		switch key {
		case "verify":
			if len(under.Verify) > 0 {
				delete(layer.Values, key)
			}
		case "network.deny", "gate.protected":
			layer.Values[key] = append(slices.Clone(asList(own[key])), asList(value)...)
		case "gate.maxFiles", "gate.maxPatchKiB":
			n, ok := value.(int)
			if limit, _ := own[key].(int); !ok || n <= 0 || (limit > 0 && n > limit) {
				return Layer{}, refuse(key, fmt.Sprintf("may only be lowered (here %v, at most %v)", value, own[key]))
			}
		default:
			return Layer{}, refuse(key, "cannot be set by a repository")
		}
	}
	return layer, nil
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// Environment returns the layer of the SBXPAIR_* variables: SBXPAIR_ENGINE_KIND sets engine.kind. Lists are
// separated by commas. environ is as os.Environ returns it. An unknown name is an error, so that a typo does not pass silently; names
// in reserved are left to others.
func Environment(environ []string, reserved ...string) (Layer, error) {
	base, err := flatten(Default())
	if err != nil {
		return Layer{}, err
	}
	byName := map[string]string{}
	for key := range base {
		byName["SBXPAIR_"+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))] = key
	}
	values := map[string]any{}
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "SBXPAIR_") || slices.Contains(reserved, name) {
			continue
		}
		key, known := byName[name]
		if !known {
			return Layer{}, unknownKey("environment", name, slices.Collect(maps.Keys(byName)))
		}
		values[key] = fromText(base[key], text)
	}
	return Layer{"environment", values}, nil
}

// fromText reads text as the type that like has.
func fromText(like any, text string) any {
	switch like.(type) {
	case []any:
		var list []any
		for part := range strings.SplitSeq(text, ",") {
			switch part = strings.TrimSpace(part); {
			case part == "":
			case digits(part):
				n, _ := strconv.Atoi(part) // a list of texts takes it as text
				list = append(list, n)
			default:
				list = append(list, part)
			}
		}
		return list
	case bool:
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case int, float64:
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return f
		}
	}
	return text
}

// digits reports whether s is a number as a person writes one.
func digits(s string) bool {
	return s != "" && len(s) < 10 && strings.Trim(s, "0123456789") == "" && (s == "0" || s[0] != '0')
}

// WithLimits returns c with other limits, by the name below "limits" to the value as a variable of the environment has it.
// The error matches [ErrInvalid].
func (c Config) WithLimits(limits map[string]string) (Config, error) {
	own, err := flatten(c)
	if err != nil {
		return c, err
	}
	layer := Layer{Name: "limits", Values: map[string]any{}}
	for name, text := range limits {
		layer.Values["limits."+name] = fromText(own["limits."+name], text)
	}
	with, err := over(c, layer)
	if err != nil {
		return c, err
	}
	return with.Config, with.Config.Validate()
}

// flatten returns the leaves of c by dotted key, as YAML sees them.
func flatten(c Config) (map[string]any, error) {
	text, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	values := map[string]any{}
	flattenInto(values, "", tree, reflect.TypeFor[Config]())
	return values, nil
}

// flattenInto walks tree along the struct type t: a struct's fields are keys of their own, everything else is a value. A credential source is one
// value, so that a file from one layer never mixes with a variable from another.
func flattenInto(values map[string]any, prefix string, tree map[string]any, t reflect.Type) {
	for key, v := range tree {
		ft, ok := fieldType(t, key)
		sub, isMap := v.(map[string]any)
		if ok && isMap && ft.Kind() == reflect.Struct && ft.PkgPath() == t.PkgPath() {
			flattenInto(values, prefix+key+".", sub, ft)
			continue
		}
		values[prefix+key] = v
	}
}

func fieldType(t reflect.Type, key string) (reflect.Type, bool) {
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name == key {
			return f.Type, true
		}
	}
	return nil, false
}

func nest(values map[string]any) map[string]any {
	tree := map[string]any{}
	for key, v := range values {
		parts := strings.Split(key, ".")
		at := tree
		for _, part := range parts[:len(parts)-1] {
			sub, ok := at[part].(map[string]any)
			if !ok {
				sub = map[string]any{}
				at[part] = sub
			}
			at = sub
		}
		at[parts[len(parts)-1]] = v
	}
	return tree
}
