package command

import (
	"context"
	"fmt"
	"strings"
)

// readEnv joins variables of files and flags, flags last. As in docker, NAME alone takes the caller's value, if there is one.
func readEnv(ctx context.Context, a *app, flags, files []string) ([]string, error) {
	var out []string
	add := func(item string) error {
		name, _, ok := strings.Cut(item, "=")
		if name == "" || strings.Contains(item, "\x00") || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("invalid environment variable %q", name)
		}
		if !ok {
			value := a.Getenv(name)
			if value == "" {
				return nil
			}
			item = name + "=" + value
		}
		out = append(out, item)
		return nil
	}
	for _, path := range files {
		data, err := a.readFile(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			line = strings.TrimRight(strings.TrimLeft(line, " \t"), "\r\n")
			if line == "" || line[0] == '#' {
				continue
			}
			if err := add(line); err != nil {
				return nil, fmt.Errorf("--env-file %s: %w", path, err)
			}
		}
	}
	for _, item := range flags {
		if err := add(item); err != nil {
			return nil, err
		}
	}
	return out, nil
}
