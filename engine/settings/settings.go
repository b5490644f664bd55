// Package settings keeps what a user may change about the engine of one state folder, in one file there. Each process reads
// it again when it changed, so that a setting acts at once in a running daemon.
package settings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sbxpair/sbxpair/engine/statefile"
	"github.com/sbxpair/sbxpair/engine/upstream"
)

// Errors that callers tell apart.
var (
	ErrUnknown = errors.New("unknown setting")
	ErrValue   = errors.New("invalid value")
)

// A Setting is one setting, in the JSON of sbx 0.47's "settings get --json".
type Setting struct {
	Key             string `json:"key"`
	Value           any    `json:"value"` // bool, int or string
	Type            string `json:"type"`
	Source          string `json:"source"` // default, user
	Default         any    `json:"default"`
	EnvVar          string `json:"env_var"`
	Description     string `json:"description"`
	RequiresRestart bool   `json:"requires_restart"`
	FeatureFlag     bool   `json:"feature_flag"`
}

// Keys.
const (
	keyAutoStop = "autostop.graceSeconds"
	keyDisk     = "limits.diskGiB"
	keyPids     = "limits.pids"
	keyUDP      = "feature.udp-egress"
	keySSHAgent = "ssh.agentForwardingEnabled"
	keyProxy    = "proxy"
	keyNoProxy  = "no_proxy"
	keyBoxProxy = "proxy.sandbox" // sbx 0.47 tells the sandboxes' traffic from the daemon's; here there is only the former
	keyBoxNo    = "no_proxy.sandbox"
	keySecrets  = "secrets.store"
)

// Defaults and bounds.
const (
	defaultDisk = 20 // GiB, as sbx's root disk
	defaultPids = 8192
	minPids     = 64
	maxGrace    = 7 * 24 * 3600 // seconds
	maxDisk     = 16 << 10
	maxPids     = 4 << 20
)

type definition struct {
	Setting
	min, max int
	fixed    string // why it has one value only
}

func definitions() []definition {
	number := func(key string, def, min, max int, description string) definition {
		return definition{Setting{Key: key, Type: "int", Default: def, Description: description}, min, max, ""}
	}
	text := func(key, def, env, description string) definition {
		return definition{Setting{Key: key, Type: "string", Default: def, EnvVar: env, Description: description}, 0, 0, ""}
	}
	return []definition{
		text(keyProxy, "", "", "Proxy that this machine needs to reach the world (http, https or socks5 address)"),
		text(keyNoProxy, "", "", "Names, domains, addresses and ranges reached without it, with commas"),
		text(keyBoxProxy, "", "DOCKER_SANDBOXES_PROXY", "The same for the traffic of sandboxes, which is all there is here"),
		text(keyBoxNo, "", "DOCKER_SANDBOXES_NO_PROXY", "Names, domains, addresses and ranges reached without that, with commas"),
		text(keySecrets, inFile, "", "Where secrets that are set from now on are kept: file (0600) or keyring (the system's)"),
		number(keyAutoStop, 0, 0, maxGrace, "Stop a sandbox so many seconds after its last session ended (0: never)"),
		{Setting{Key: keyUDP, Type: "bool", Default: false, Description: "Allow UDP egress by policy", RequiresRestart: true, FeatureFlag: true}, 0, 0, "a sandbox of this engine has no way out but its HTTP proxy"},
		number(keyDisk, defaultDisk, 1, maxDisk, "Most GiB that a sandbox may hold outside its workspaces, from its next start"),
		number(keyPids, defaultPids, minPids, maxPids, "Most threads on the host for one sandbox, from its next start"),
		{Setting{Key: keySSHAgent, Type: "bool", Default: false, Description: "Forward the host SSH agent into sandboxes", RequiresRestart: true}, 0, 0, "this engine never forwards the SSH agent"},
	}
}

// A Store is the settings of one state folder. It is safe for concurrent use.
type Store struct {
	file *statefile.File[map[string]string]
}

// Open returns the settings in dir; nothing is read yet.
func Open(dir string) *Store {
	return &Store{statefile.New[map[string]string](filepath.Join(dir, "settings.json"), 0o600)}
}

// List returns all settings, by key.
func (s *Store) List() ([]Setting, error) {
	values, err := s.file.Read()
	if err != nil {
		return nil, err
	}
	var out []Setting
	for _, d := range definitions() {
		d.Value, d.Source = d.Default, "default"
		if text, ok := (*values)[d.Key]; ok {
			if d.Value, err = d.parse(text); err != nil {
				return nil, fmt.Errorf("%s: %w", s.file.Path(), err)
			}
			d.Source = "user"
		}
		out = append(out, d.Setting)
	}
	slices.SortFunc(out, func(a, b Setting) int { return cmp.Compare(a.Key, b.Key) })
	return out, nil
}

// Get returns one setting; the error matches ErrUnknown.
func (s *Store) Get(key string) (Setting, error) {
	list, err := s.List()
	if err != nil {
		return Setting{}, err
	}
	for _, one := range list {
		if one.Key == key {
			return one, nil
		}
	}
	return Setting{}, fmt.Errorf("%w %q", ErrUnknown, key)
}

// Set changes a setting. The error matches ErrUnknown or ErrValue where that is the reason.
func (s *Store) Set(ctx context.Context, key, text string) (Setting, error) {
	for _, d := range definitions() {
		if d.Key != key {
			continue
		}
		if _, err := d.parse(text); err != nil {
			return Setting{}, err
		}
		err := s.file.Update(ctx, func(values *map[string]string) error {
			if *values == nil {
				*values = map[string]string{}
			}
			(*values)[key] = text
			return nil
		})
		if err != nil {
			return Setting{}, err
		}
	}
	return s.Get(key)
}

// Unset brings a setting's default back. The error matches ErrUnknown.
func (s *Store) Unset(ctx context.Context, key string) (Setting, error) {
	if _, err := s.Get(key); err != nil {
		return Setting{}, err
	}
	if err := s.file.Update(ctx, func(values *map[string]string) error {
		delete(*values, key)
		return nil
	}); err != nil {
		return Setting{}, err
	}
	return s.Get(key)
}

func (d definition) parse(text string) (any, error) {
	if d.Type == "string" {
		return d.parseText(text)
	}
	if d.Type == "bool" {
		v, err := strconv.ParseBool(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w %q for %s: give true or false", ErrValue, text, d.Key)
		case v != d.Default && d.fixed != "":
			return nil, fmt.Errorf("%w %q for %s: %s", ErrValue, text, d.Key, d.fixed)
		}
		return v, nil
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < d.min || v > d.max {
		return nil, fmt.Errorf("%w %q for %s: give a number from %d to %d", ErrValue, text, d.Key, d.min, d.max)
	}
	return v, nil
}

// The places for secrets.
const (
	inFile    = "file"
	inKeyring = "keyring"
)

// parseText returns a text as it is shown: of a proxy's password, nothing.
func (d definition) parseText(text string) (any, error) {
	if d.Key == keySecrets {
		if text != inFile && text != inKeyring {
			return nil, fmt.Errorf("%w %q for %s: give %s or %s", ErrValue, text, d.Key, inFile, inKeyring)
		}
		return text, nil
	}
	if strings.HasPrefix(d.Key, keyNoProxy) {
		if strings.ContainsFunc(text, unicode.IsControl) {
			return nil, fmt.Errorf("%w for %s: control character", ErrValue, d.Key)
		}
		return text, nil
	}
	u, err := upstream.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w for %s: %w", ErrValue, d.Key, err)
	}
	return u.Redacted(), nil
}

// Proxies are the proxies that were set for the traffic of sandboxes; the zero value if none were.
func (s *Store) Proxies() (upstream.Proxies, error) {
	if _, err := s.List(); err != nil {
		return upstream.Proxies{}, err
	}
	values, err := s.file.Read()
	if err != nil {
		return upstream.Proxies{}, err
	}
	v := *values
	proxy := cmp.Or(v[keyBoxProxy], v[keyProxy])
	return upstream.Proxies{HTTP: proxy, HTTPS: proxy, NoProxy: cmp.Or(v[keyBoxNo], v[keyNoProxy])}, nil
}

// Keyring reports whether secrets are to be kept in the system's keyring.
func (s *Store) Keyring() (bool, error) {
	one, err := s.Get(keySecrets)
	return one.Value == inKeyring, err
}

func (s *Store) number(key string) (int, error) {
	one, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	return one.Value.(int), nil
}

// AutoStop is how long a sandbox without a session stays; 0: for ever.
func (s *Store) AutoStop() (time.Duration, error) {
	n, err := s.number(keyAutoStop)
	return time.Duration(n) * time.Second, err
}

// DiskGiB is the most that a sandbox may hold outside its workspaces.
func (s *Store) DiskGiB() (int, error) { return s.number(keyDisk) }

// Pids is the most threads on the host for one sandbox.
func (s *Store) Pids() (int, error) { return s.number(keyPids) }
