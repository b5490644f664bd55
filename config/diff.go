package config

import (
	"encoding/json"
	"maps"
	"slices"
)

// A Change is a key whose values in two configurations differ. Both are written as JSON.
type Change struct{ Key, A, B string }

// Diff lists the keys in which a and b differ, in order.
func Diff(a, b Config) ([]Change, error) {
	left, err := flatten(a)
	if err != nil {
		return nil, err
	}
	right, err := flatten(b)
	if err != nil {
		return nil, err
	}
	var list []Change
	for _, key := range slices.Sorted(maps.Keys(left)) {
		x, err := json.Marshal(left[key])
		if err != nil {
			return nil, err
		}
		y, err := json.Marshal(right[key])
		if err != nil {
			return nil, err
		}
		if string(x) != string(y) {
			list = append(list, Change{key, string(x), string(y)})
		}
	}
	return list, nil
}
