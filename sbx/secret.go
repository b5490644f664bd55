package sbx

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/secrets"
)

// SecretType tells the engine's kinds of secrets apart.
type SecretType string

// The kinds of secrets.
const (
	SecretService  SecretType = "service"  // bound to a service's hosts by the engine
	SecretCustom   SecretType = "custom"   // replaces a placeholder in headers to the hosts given with it
	SecretRegistry SecretType = "registry" // for pulling images
)

// HostScope is the scope of registry credentials that no sandbox gets.
const HostScope = "(host only)"

// Secret is a row of the engine's listing. It never holds any part of the value: the listing shows a prefix and a suffix,
// which are dropped where they are read.
type Secret struct {
	Type        SecretType `json:"type"`
	Sandbox     string     `json:"sandbox,omitempty"` // "" is global: every sandbox has it. HostScope is none
	Name        string     `json:"name,omitempty"`    // service or registry host
	Env         string     `json:"env,omitempty"`     // custom: variable that holds the placeholder
	Hosts       []string   `json:"hosts,omitempty"`   // custom
	Placeholder string     `json:"placeholder,omitempty"`
}

// Global reports whether every sandbox is given the secret.
func (s Secret) Global() bool { return s.Sandbox == "" }

// ServiceSecret is a credential for a service that the engine knows, such as "github" or "anthropic". It has exactly one source:
// Value, which the engine keeps, or Command or Ref, which the engine resolves itself when it needs the value.
type ServiceSecret struct {
	Service string
	Sandbox string // "" is global: every sandbox is given it
	Value   secrets.Value
	Command string // prints the value; the engine runs it, from 0.46 in an empty directory: absolute paths (sbx 0.42)
	Ref     string // reference such as op://vault/item/field (sbx 0.42)
	Refresh string // of Command and Ref: "on-demand" or a duration; "" is the engine's default
	NoCheck bool   // skip the engine's own verification against the service
}

var serviceName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// SecretSet stores a service's credential, over one that is there, and reads back that it is listed. A value travels on
// standard input, as it is, without a line end. It acts on running sandboxes at once; that a *changed* value is in use
// cannot be read back (sbx-releases#477): probe it from inside.
func (c *Client) SecretSet(ctx context.Context, secret ServiceSecret) error {
	const op = "secret set"
	if !serviceName.MatchString(secret.Service) {
		return invalid(op, "service %q", secret.Service)
	}
	dynamic := secret.Command != "" || secret.Ref != ""
	switch {
	case !dynamic && secret.Value.IsZero():
		return invalid(op, "value for service %s is empty", secret.Service)
	case dynamic && (!secret.Value.IsZero() || secret.Command != "" && secret.Ref != ""):
		return invalid(op, "want exactly one of a value, a command and a reference for service %s", secret.Service)
	case !dynamic && secret.Refresh != "":
		return invalid(op, "a value that is kept is not refreshed; give a command or a reference")
	}
	if err := checkHelper(op, secret.Command); err != nil {
		return err
	}
	if dynamic {
		if err := c.require(ctx, op, FeatureSecretSource); err != nil {
			return err
		}
	}
	args, err := c.secretScope(ctx, op, secret.Sandbox, []string{"secret", "set"}, []string{secret.Service})
	if err != nil {
		return err
	}
	args = append(args, sourceFlags(secret.Command, secret.Ref, secret.Refresh)...)
	// Without --force an existing one is kept, with exit 0 (measured on 0.38).
	args = append(args, "--force")
	if secret.NoCheck {
		args = append(args, "--no-verify")
	}
	cmd := Cmd{Args: args}
	if !dynamic {
		cmd.Stdin, cmd.Redact = stdinOf(secret.Value), []secrets.Value{secret.Value}
	}
	if _, err := c.call(ctx, op, c.timeouts.Change, cmd); err != nil {
		return err
	}
	if !c.readBack {
		return nil
	}
	return c.VerifySecrets(ctx, Secret{Type: SecretService, Sandbox: secret.Sandbox, Name: secret.Service})
}

// secretScope puts the scope where the version wants it: a flag from 0.38 on, a positional before.
func (c *Client) secretScope(ctx context.Context, op, sandbox string, verb, rest []string) ([]string, error) {
	if sandbox != "" {
		if err := checkNames(op, []string{sandbox}); err != nil {
			return nil, err
		}
	}
	byFlag, err := c.has(ctx, FeatureGlobalSecrets)
	if err != nil {
		return nil, err
	}
	args := slices.Clone(verb)
	switch {
	case byFlag && sandbox != "":
		args = append(args, "--sandbox", sandbox)
	case !byFlag && sandbox != "":
		args = append(args, sandbox)
	case !byFlag:
		args = append(args, "--global")
	}
	return append(args, rest...), nil
}

// CustomSecret makes the engine put a value in the place of a placeholder, in headers of requests to some hosts. The
// value comes from a command or a reference that the engine itself resolves: sbx takes none on standard input, and a value
// on the command line could be read by everyone on the host.
type CustomSecret struct {
	Sandbox     string   // "" is global
	Env         string   // variable that holds the placeholder in sandboxes created after this
	Placeholder string   // "{rand}" in it is replaced by the engine; "" lets the engine choose
	Hosts       []string // exact names or wildcards
	Command     string   // prints the value; the engine runs it, from 0.46 in an empty directory: absolute paths (sbx 0.42)
	Ref         string   // reference such as op://vault/item/field (sbx 0.42)
	Refresh     string   // "on-demand" or a duration; "" is the engine's default
	NoCheck     bool     // do not resolve it now
}

var savedCustom = regexp.MustCompile(`(?m)^Saved custom secret placeholder "([^"]+)"`)

// SecretSetCustom stores a custom secret and returns its placeholder. The error matches [ErrExists] if the variable has one
// in this scope with another placeholder: remove that one, or use its placeholder, which makes the call an update.
func (c *Client) SecretSetCustom(ctx context.Context, secret CustomSecret) (placeholder string, err error) {
	const op = "secret set-custom"
	if len(secret.Hosts) == 0 {
		return "", invalid(op, "no host")
	}
	if secret.Env != "" && !envName.MatchString(secret.Env) {
		return "", invalid(op, "variable %q", secret.Env)
	}
	if (secret.Command == "") == (secret.Ref == "") {
		return "", invalid(op, "want exactly one of a command and a reference")
	}
	if err := checkHelper(op, secret.Command); err != nil {
		return "", err
	}
	// It is replaced wherever it occurs in a header: a short one would match by accident.
	if p := strings.ReplaceAll(secret.Placeholder, "{rand}", "1234567890123456"); p != "" && (len(p) < 12 || strings.ContainsAny(p, " \t\r\n\"")) {
		return "", invalid(op, "placeholder %q: want at least 12 characters without white space", secret.Placeholder)
	}
	if err := c.require(ctx, op, FeatureSecretSource); err != nil {
		return "", err
	}
	args := []string{"secret", "set-custom"}
	if secret.Sandbox != "" {
		if err := checkNames(op, []string{secret.Sandbox}); err != nil {
			return "", err
		}
		args = append(args, "--sandbox", secret.Sandbox)
	}
	for _, host := range secret.Hosts {
		if err := checkResource(op, host); err != nil {
			return "", err
		}
		args = append(args, "--host", host)
	}
	for _, flag := range []struct{ name, value string }{{"--env", secret.Env}, {"--placeholder", secret.Placeholder}} {
		if flag.value != "" {
			args = append(args, flag.name+"="+flag.value)
		}
	}
	args = append(args, sourceFlags(secret.Command, secret.Ref, secret.Refresh)...)
	if secret.NoCheck {
		args = append(args, "--no-verify")
	}
	res, err := c.change(ctx, op, args...)
	if err != nil {
		return "", err
	}
	m := savedCustom.FindStringSubmatch(clean(res.Stdout))
	switch {
	case m != nil:
		placeholder = m[1]
	case secret.Placeholder != "" && !strings.Contains(secret.Placeholder, "{rand}"):
		placeholder = secret.Placeholder
	default:
		return "", fmt.Errorf("sbx %s: %w", op, malformedIn(res.Stdout, "no placeholder"))
	}
	if !c.readBack {
		return placeholder, nil
	}
	return placeholder, c.VerifySecrets(ctx, Secret{
		Type: SecretCustom, Sandbox: secret.Sandbox, Env: secret.Env, Hosts: secret.Hosts, Placeholder: placeholder,
	})
}

// RegistryCredential is a login for an image registry.
type RegistryCredential struct {
	Host         string
	Username     string
	Value        secrets.Value
	Sandbox      string // that sandbox only
	AllSandboxes bool   // every sandbox created from now on; without it and without Sandbox: the host's pulls only
}

// SecretSetRegistry stores a login for an image registry (sbx 0.38).
func (c *Client) SecretSetRegistry(ctx context.Context, cred RegistryCredential) error {
	const op = "secret set --registry"
	if err := checkResource(op, cred.Host); err != nil {
		return err
	}
	if cred.Value.IsZero() {
		return invalid(op, "value for registry %s is empty", cred.Host)
	}
	if cred.Sandbox != "" && cred.AllSandboxes {
		return invalid(op, "want one sandbox or all, not both")
	}
	if err := c.require(ctx, op, FeatureRegistryScope); err != nil {
		return err
	}
	args := []string{"secret", "set", "--registry", cred.Host, "--password-stdin", "--force"}
	if cred.Username != "" {
		args = append(args, "--username="+cred.Username)
	}
	want := Secret{Type: SecretRegistry, Sandbox: HostScope, Name: cred.Host}
	switch {
	case cred.Sandbox != "":
		if err := checkNames(op, []string{cred.Sandbox}); err != nil {
			return err
		}
		args, want.Sandbox = append(args, "--sandbox", cred.Sandbox), cred.Sandbox
	case cred.AllSandboxes:
		args, want.Sandbox = append(args, "--all-sandboxes"), ""
	}
	_, err := c.call(ctx, op, c.timeouts.Change, Cmd{Args: args, Stdin: stdinOf(cred.Value), Redact: []secrets.Value{cred.Value}})
	if err != nil {
		return err
	}
	if !c.readBack {
		return nil
	}
	return c.VerifySecrets(ctx, want)
}

// VerifySecrets reads the listing once and checks that each secret is there: service by name and scope, custom by
// placeholder, scope and hosts, those and no others. Values cannot be checked. The error matches [ErrNotApplied].
func (c *Client) VerifySecrets(ctx context.Context, want ...Secret) error {
	listed, err := c.SecretList(ctx)
	if err != nil {
		return err
	}
	return CheckSecrets(listed, want...)
}

// CheckSecrets is [Client.VerifySecrets] for a listing that was read already.
func CheckSecrets(listed []Secret, want ...Secret) error {
	var missing []string
	for _, w := range want {
		if !slices.ContainsFunc(listed, w.listedAs) {
			missing = append(missing, fmt.Sprintf("%s secret %s (%s) is not in the listing", w.Type, w.label(), scopeText(w.Sandbox)))
		}
	}
	return notApplied("secret ls", missing...)
}

func (s Secret) label() string {
	if s.Name != "" {
		return s.Name
	}
	if s.Env != "" {
		return s.Env
	}
	return s.Placeholder
}

// listedAs reports whether the listed row is what s asks for.
func (s Secret) listedAs(row Secret) bool {
	if row.Type != s.Type || row.Sandbox != s.Sandbox {
		return false
	}
	if s.Type != SecretCustom {
		return row.Name == s.Name
	}
	if s.Placeholder != "" && row.Placeholder != s.Placeholder || s.Env != "" && row.Env != s.Env {
		return false
	}
	if len(s.Hosts) == 0 {
		return true
	}
	// Those and no others: what is bound to one more host is sent there.
	within := func(hosts, list []string) bool {
		return !slices.ContainsFunc(hosts, func(host string) bool {
			return !slices.ContainsFunc(list, func(have string) bool { return sameResource(have, host) })
		})
	}
	return within(s.Hosts, row.Hosts) && within(row.Hosts, s.Hosts)
}

// SecretList lists the secrets of every scope.
func (c *Client) SecretList(ctx context.Context) ([]Secret, error) {
	const op = "secret ls"
	args := []string{"secret", "ls"}
	asJSON, err := c.has(ctx, FeatureSecretJSON)
	if err != nil {
		return nil, err
	}
	if asJSON {
		args = append(args, "--json")
	}
	out, err := c.query(ctx, op, args...)
	if err != nil {
		return nil, err
	}
	list, err := ParseSecrets(out)
	if err != nil {
		return nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	return list, nil
}

// ParseSecrets reads the output of "sbx secret ls", JSON or text.
func ParseSecrets(out []byte) ([]Secret, error) { return showing(out, readSecrets, checkSecrets) }

func readSecrets(out []byte) ([]Secret, error) {
	list := []Secret{}
	add := func(s Secret, scope string) error {
		switch scope {
		case "", "global", "(global)", "_":
		case HostScope, "host", "host only", "(host)":
			s.Sandbox = HostScope
		default:
			scope = strings.TrimPrefix(scope, "sandbox:")
			if checkOldName(scope) != nil {
				return malformed("secret with scope %q", tailText(scope, 80))
			}
			s.Sandbox = scope
		}
		if s.Name == "" && s.Placeholder == "" && s.Env == "" {
			return malformed("secret without a name")
		}
		list = append(list, s)
		return nil
	}
	if looksJSON(out) {
		return parseSecretsJSON(out, add, &list)
	}
	service := tableSpec{
		columns: []column{
			{id: "scope", names: []string{"SCOPE"}}, {id: "type", names: []string{"TYPE"}, word: true},
			{id: "name", names: []string{"NAME", "SERVICE"}, word: true}, {id: "secret", names: []string{"SECRET", "VALUE"}},
		},
		must: []string{"scope", "type", "name"},
		row:  []string{"scope", "name"},
	}
	custom := tableSpec{
		columns: []column{
			{id: "scope", names: []string{"SCOPE"}}, {id: "hosts", names: []string{"TARGETS", "TARGET", "HOSTS", "HOST"}},
			{id: "env", names: []string{"ENV"}, word: true}, {id: "placeholder", names: []string{"PLACEHOLDER"}, word: true},
			{id: "secret", names: []string{"SECRET", "VALUE"}},
		},
		must: []string{"scope", "hosts", "placeholder"},
		row:  []string{"scope", "placeholder"},
		more: "hosts",
	}
	tables, notes, err := parseTables(clean(out), service, custom)
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 && !anyLine(notes, func(l string) bool { return strings.HasPrefix(l, "No secrets found") }) {
		return nil, malformed("no secret listing")
	}
	for _, t := range tables {
		isCustom := slices.Contains(t.ids, "placeholder")
		for _, row := range t.rows {
			s := Secret{Type: SecretCustom, Env: row.text("env"), Hosts: row.listMore("hosts"), Placeholder: row.text("placeholder")}
			if !isCustom {
				s = Secret{Type: SecretType(strings.ToLower(row.text("type"))), Name: row.text("name")}
			}
			if err := add(s, row.text("scope")); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

func parseSecretsJSON(out []byte, add func(Secret, string) error, list *[]Secret) ([]Secret, error) {
	var doc struct {
		Secrets []struct {
			Scope   string `json:"scope"`
			Type    string `json:"type"`
			Name    string `json:"name"`
			Service string `json:"service"`
		} `json:"secrets"`
		Custom []struct {
			Scope       string   `json:"scope"`
			Targets     []string `json:"targets"`
			Env         string   `json:"env"`
			Placeholder string   `json:"placeholder"`
		} `json:"custom_secrets"`
	}
	var keys map[string]any
	if err := decodeJSON(out, "secrets|custom_secrets", &keys); err != nil {
		return nil, err
	}
	// One of the two lists may be left out. A list that we do not know, or that is null, may hold what binds every sandbox.
	known := 0
	for key, value := range keys {
		_, isList := value.([]any)
		switch isKnown := key == "secrets" || key == "custom_secrets"; {
		case isKnown && isList:
			known++
		case isKnown || isList:
			return nil, malformed("JSON document is no secret listing that we know: %q", tailText(key, 40))
		}
	}
	if known == 0 {
		return nil, malformed("JSON document is no secret listing")
	}
	if err := decodeJSON(out, "secrets|custom_secrets", &doc); err != nil {
		return nil, err
	}
	for _, row := range doc.Secrets {
		s := Secret{Type: SecretType(strings.ToLower(row.Type)), Name: row.Name}
		if s.Name == "" {
			s.Name = row.Service
		}
		if s.Type == "" {
			s.Type = SecretService
		}
		if err := add(s, row.Scope); err != nil {
			return nil, err
		}
	}
	for _, row := range doc.Custom {
		if err := add(Secret{Type: SecretCustom, Env: row.Env, Hosts: row.Targets, Placeholder: row.Placeholder}, row.Scope); err != nil {
			return nil, err
		}
	}
	return *list, nil
}

// SecretRemove removes secrets and reads back that they are gone. s is a row of the listing, or as much of it as names
// the secret: type, scope and name, or for a custom one its scope and placeholder. That it was gone before is success.
func (c *Client) SecretRemove(ctx context.Context, s Secret) error {
	const op = "secret rm"
	if s.Type == "" {
		s.Type = SecretService
	}
	var verb, rest []string
	switch {
	case s.Type == SecretCustom:
		if s.Placeholder == "" || strings.HasPrefix(s.Placeholder, "-") {
			return invalid(op, "a custom secret is removed by its placeholder")
		}
		rest = []string{"--placeholder", s.Placeholder}
	case s.Type == SecretRegistry:
		if err := checkResource(op, s.Name); err != nil {
			return err
		}
		rest = []string{"--registry", s.Name}
	case serviceName.MatchString(s.Name):
		rest = []string{s.Name}
	default:
		return invalid(op, "service %q", s.Name)
	}
	verb = []string{"secret", "rm"}
	scope := s.Sandbox
	if s.Type == SecretRegistry {
		if err := c.require(ctx, op, FeatureRegistryScope); err != nil {
			return err
		}
		switch scope {
		case HostScope:
			scope = ""
		case "":
			rest = append(rest, "--all-sandboxes")
		}
	}
	args, err := c.secretScope(ctx, op, scope, verb, rest)
	if err != nil {
		return err
	}
	_, err = c.change(ctx, op, append(args, "--force")...)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if !c.readBack {
		return nil
	}
	listed, err := c.SecretList(ctx)
	if err != nil {
		return err
	}
	key := Secret{Type: s.Type, Sandbox: s.Sandbox, Name: s.Name}
	if s.Type == SecretCustom { // whatever else s says of it
		key = Secret{Type: s.Type, Sandbox: s.Sandbox, Placeholder: s.Placeholder}
	}
	if slices.ContainsFunc(listed, key.listedAs) {
		return notApplied(op, fmt.Sprintf("%s secret %s (%s) is still there", s.Type, s.label(), scopeText(s.Sandbox)))
	}
	return nil
}

// SecretImport stores credentials that the host's environment of the *engine's command* holds, as global secrets, over those
// that are there. Since a Client passes no credential on in the environment, it finds something only with [WithAddedEnv]. A
// global secret is given to every sandbox. service "" is all that are found. With dryRun nothing is stored. message is what the
// engine says of it. The error matches [ErrNotApplied] if nothing was found, or if the service named is not listed afterwards.
func (c *Client) SecretImport(ctx context.Context, service string, dryRun bool) (message string, err error) {
	const op = "secret import"
	args := []string{"secret", "import"}
	if service != "" {
		if !serviceName.MatchString(service) {
			return "", invalid(op, "service %q", service)
		}
		args = append(args, service)
	} else {
		args = append(args, "--all")
	}
	if dryRun {
		args = append(args, "--dry-run")
	} else {
		args = append(args, "--force")
	}
	res, err := c.change(ctx, op, args...)
	if err != nil {
		return "", err
	}
	message = tailText(c.text(res), maxErrorText)
	switch {
	case dryRun || !c.readBack:
		return message, nil
	case strings.Contains(message, "No credential env vars detected"): // exit 0 (measured on 0.47)
		return message, notApplied(op, "the engine's command found no credential in its environment")
	case service != "":
		return message, c.VerifySecrets(ctx, Secret{Type: SecretService, Name: service})
	}
	listed, err := c.SecretList(ctx)
	if err != nil {
		return message, err
	}
	if !slices.ContainsFunc(listed, func(s Secret) bool { return s.Type == SecretService && s.Global() }) {
		return message, notApplied(op, "no global secret is in the listing")
	}
	return message, nil
}

// checkHelper refuses a helper command that the engine would look for in another folder than the caller.
func checkHelper(op, command string) error {
	if word, _, _ := strings.Cut(strings.Trim(command, ` "'`), " "); strings.ContainsAny(word, `/\`) && !rooted(word) {
		return invalid(op, "command %q: want an absolute path, since the engine runs it in a folder of its own (sbx 0.46)", word)
	}
	return nil
}

// sourceFlags says where the engine is to get a value from.
func sourceFlags(command, ref, refresh string) (flags []string) {
	for _, flag := range []struct{ name, value string }{{"--command", command}, {"--ref", ref}, {"--refresh", refresh}} {
		if flag.value != "" {
			flags = append(flags, flag.name+"="+flag.value)
		}
	}
	return flags
}

// rooted reports whether path is absolute on any platform.
func rooted(path string) bool {
	return path[0] == '/' || path[0] == '\\' || len(path) > 2 && path[1] == ':' && (path[2] == '/' || path[2] == '\\')
}
