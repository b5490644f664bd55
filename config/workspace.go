package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var lineRanges = regexp.MustCompile(`^(.+):([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)$`)

// ParseRemoval reads an entry of Workspace.Remove: a path, and the line ranges to take out of it; none means all of it.
func ParseRemoval(entry string) (path string, lines [][2]int, err error) {
	m := lineRanges.FindStringSubmatch(entry)
	if m == nil {
		return entry, nil, nil
	}
	for part := range strings.SplitSeq(m[2], ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return "", nil, fmt.Errorf("%q: %w", entry, err)
		}
		to, err := strconv.Atoi(last)
		if err != nil {
			return "", nil, fmt.Errorf("%q: %w", entry, err)
		}
		if from < 1 || to < from {
			return "", nil, fmt.Errorf("%q: lines %s are no range", entry, part)
		}
		lines = append(lines, [2]int{from, to})
	}
	return m[1], lines, nil
}

func (w Workspace) check(bad func(key, format string, args ...any)) {
	switch w.Mode {
	case "clone", "in-place", "empty":
		if len(w.Remove) > 0 || len(w.Write) > 0 || w.Patch != "" || len(w.Hooks) > 0 || w.Origin {
			bad("workspace", "remove, write, patch, hooks and origin are for the mode tracked, not %s", w.Mode)
		}
	case "tracked":
	default:
		bad("workspace.mode", "%q is not one of clone, tracked, in-place, empty", w.Mode)
	}
	for _, entry := range w.Remove {
		if _, _, err := ParseRemoval(entry); err != nil {
			bad("workspace.remove", "%v", err)
		}
	}
}
