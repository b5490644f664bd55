package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

var yamlUnknown = regexp.MustCompile(`line (\d+): field (\S+) not found in type`)

// nearest turns yaml's message about an unknown field into one that names the key that was probably meant.
func nearest(name string, err error) error {
	typeErr, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
	}
	known := map[string]any{}
	if flat, err := flatten(Default()); err == nil {
		known = flat
	}
	var names []string
	for key := range known {
		names = append(names, strings.Split(key, ".")...)
	}
	for _, line := range typeErr.Errors {
		if m := yamlUnknown.FindStringSubmatch(line); m != nil {
			return unknownKey(name+":"+m[1], m[2], names)
		}
	}
	return fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
}

func unknownKey(where, key string, known []string) error {
	slices.Sort(known)
	best, bestDistance := "", 2+len(key)/6
	for _, k := range known {
		if d := distance(strings.ToLower(key), strings.ToLower(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return fmt.Errorf("%w: %s: unknown key %q", ErrInvalid, where, key)
	}
	return fmt.Errorf("%w: %s: unknown key %q; did you mean %q?", ErrInvalid, where, key, best)
}

// distance is the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, cost)
		}
	}
	return row[len(b)]
}
