package egress

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/secrets"
)

// credentialHeaders are the headers that services take a credential from. Proxy-Authorization is not among them: it is
// for us and goes no further.
func credentialHeaders() []string {
	return []string{"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Private-Token", "X-Auth-Token"}
}

// credentialParams are the query parameters that services take, or took, a credential from.
func credentialParams() []string {
	return []string{"access_token", "private_token", "api_key", "key"}
}

// sessionCookies log a browser in to GitHub.
func sessionCookies() []string {
	return []string{"user_session", "__Host-user_session_same_site"}
}

func credentialRefusal(reason string) *refusal {
	return &refusal{http.StatusForbidden, "credential", reason}
}

// inject puts credentials into the header of a request and returns those it put in. It refuses what must not go out:
// a placeholder that nothing replaces here, someone else's credential on a bound host, a credential without TLS.
// No refusal holds a value.
func (s *session) inject(ctx context.Context, t target, secure bool, u *url.URL, h http.Header) ([]secrets.Value, error) {
	all, err := s.vault.Bindings(s.sandbox)
	if err != nil {
		s.logger.Error("secrets cannot be read", "sandbox", s.sandbox, "err", err)
		return nil, &refusal{http.StatusBadGateway, "credential", "Secrets cannot be read"}
	}
	in := injection{header: h, secure: secure || s.staysHere(t), replaced: map[string]bool{}}
	var service *vault.Binding
	bound := false
	for i, b := range all {
		if !b.Covers(t.rule, t.port) {
			continue
		}
		bound = true
		if b.Service == "" {
			in.custom = append(in.custom, b)
		} else if service == nil {
			service = &all[i]
		}
	}
	// Of two placeholders that begin alike the longer is meant.
	slices.SortStableFunc(in.custom, func(a, b vault.Binding) int { return len(b.Placeholder) - len(a.Placeholder) })
	if err := in.replaceCustom(ctx); err != nil {
		return nil, err
	}
	if bound {
		if err := in.checkOthers(u, service); err != nil {
			return nil, err
		}
	}
	if service != nil {
		if err := in.writeService(ctx, t, *service, all); err != nil {
			return nil, err
		}
	} else if bound {
		if err := in.checkForeign(nil); err != nil {
			return nil, err
		}
	}
	known, err := s.vault.Placeholders()
	if err != nil {
		return nil, &refusal{http.StatusBadGateway, "credential", "Secrets cannot be read"}
	}
	if err := in.checkLeft(u, known); err != nil {
		return nil, err
	}
	return in.used, nil
}

// An injection is the work on one request.
type injection struct {
	header   http.Header
	secure   bool
	custom   []vault.Binding // bound here, longest placeholder first
	replaced map[string]bool // headers that got a value
	used     []secrets.Value
}

func (in *injection) value(ctx context.Context, b vault.Binding) (secrets.Value, error) {
	if !in.secure {
		return secrets.Value{}, credentialRefusal("Credential of " + b.Name + " is not sent without TLS")
	}
	v, err := b.Value(ctx)
	if err != nil {
		return secrets.Value{}, &refusal{http.StatusBadGateway, "credential", "Credential of " + b.Name + " cannot be fetched"}
	}
	for i := range len(v.Reveal()) {
		if c := v.Reveal()[i]; c < ' ' || c == 0x7f {
			return secrets.Value{}, &refusal{http.StatusBadGateway, "credential", "Credential of " + b.Name + " holds control characters and cannot be sent in a header"}
		}
	}
	in.used = append(in.used, v)
	return v, nil
}

// replaceCustom replaces placeholders in every header, inside Basic credentials too.
func (in *injection) replaceCustom(ctx context.Context) error {
	for _, b := range in.custom {
		for name, values := range in.header {
			for i, text := range values {
				decoded, basic := decodeBasic(name, text)
				switch {
				case strings.Contains(text, b.Placeholder):
					v, err := in.value(ctx, b)
					if err != nil {
						return err
					}
					values[i] = strings.ReplaceAll(text, b.Placeholder, v.Reveal())
				case basic && strings.Contains(decoded, b.Placeholder):
					v, err := in.value(ctx, b)
					if err != nil {
						return err
					}
					values[i] = in.encode(strings.ReplaceAll(decoded, b.Placeholder, v.Reveal()))
				default:
					continue
				}
				in.replaced[name] = true
			}
		}
	}
	return nil
}

// writeService writes the service's credential over a placeholder, or into a request without one.
func (in *injection) writeService(ctx context.Context, t target, b vault.Binding, all []vault.Binding) error {
	have := false
	for _, name := range credentialHeaders() {
		values := in.header[name]
		switch {
		case len(values) == 0:
			continue
		case len(values) > 1:
			return credentialRefusal("Repeated " + name + " header")
		case in.replaced[name]:
			have = true
			continue
		case strings.TrimSpace(values[0]) == "":
			in.header.Del(name)
			continue
		}
		if !isServicePlaceholder(credentialOf(name, values[0]), all) {
			continue // checkForeign and checkLeft judge it
		}
		v, err := in.value(ctx, b)
		if err != nil {
			return err
		}
		in.writeCredential(name, values[0], b.Style(t.host), v)
		in.replaced[name], have = true, true
	}
	if err := in.checkForeign(&b); err != nil {
		return err
	}
	if have || !in.secure {
		return nil
	}
	v, err := in.value(ctx, b)
	if err != nil {
		return err
	}
	style := b.Style(t.host)
	name := headerOf(style)
	in.writeCredential(name, "", style, v)
	in.replaced[name] = true
	return nil
}

func headerOf(style vault.Style) string {
	switch style {
	case vault.APIKey:
		return "X-Api-Key"
	case vault.GoogleKey:
		return "X-Goog-Api-Key"
	case vault.Bearer, vault.BasicGit:
	}
	return "Authorization"
}

// writeCredential keeps the form that the client chose (Bearer, bearer, token, x-api-key), except where the host takes
// Basic, or where the client chose Basic and the host does not.
func (in *injection) writeCredential(name, was string, style vault.Style, v secrets.Value) {
	h, value := in.header, v.Reveal()
	if name != "Authorization" {
		h.Set(name, value)
		return
	}
	scheme, _, _ := strings.Cut(strings.TrimSpace(was), " ")
	if style == vault.BasicGit {
		h.Set(name, in.encode("x-access-token:"+value))
		return
	}
	if strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "token") {
		h.Set(name, scheme+" "+value)
		return
	}
	h.Set(name, "Bearer "+value)
}

// checkForeign refuses credentials that are neither placeholders nor ours. A real value of ours, which a sandbox does
// not have, is foreign as well: it would mean that the split has failed.
func (in *injection) checkForeign(service *vault.Binding) error {
	for _, name := range credentialHeaders() {
		if len(in.header[name]) > 1 {
			return credentialRefusal("Repeated " + name + " header")
		}
		for _, text := range in.header[name] {
			if in.replaced[name] || strings.TrimSpace(text) == "" {
				continue
			}
			if secrets.IsPlaceholder(credentialOf(name, text)) {
				return credentialRefusal("Unknown placeholder in the " + name + " header")
			}
			whose := "bound to a custom secret"
			if service != nil {
				whose = "bound to " + service.Name
			}
			return credentialRefusal("Foreign credential in the " + name + " header; this host is " + whose)
		}
	}
	return nil
}

// checkOthers refuses credentials of someone else outside the headers that we write.
func (in *injection) checkOthers(u *url.URL, service *vault.Binding) error {
	query := u.Query()
	for _, name := range credentialParams() {
		if query.Has(name) && (name != "key" || service != nil && service.Service == "google") {
			return credentialRefusal("Credential in the query (" + name + ")")
		}
	}
	if service != nil && service.Service == "github" {
		for _, line := range in.header["Cookie"] {
			for _, name := range sessionCookies() {
				if strings.Contains(line, name+"=") {
					return credentialRefusal("Foreign credential in a cookie")
				}
			}
		}
	}
	return nil
}

// checkLeft refuses a request that still holds a placeholder: it would reach the server as it is (OpenShell#2162).
func (in *injection) checkLeft(u *url.URL, known []string) error {
	marked := func(text string) bool { return isMarked(text, known) }
	for name, values := range in.header {
		if marked(strings.ToLower(name)) {
			return credentialRefusal("Placeholder as the name of a header; only values are filled in")
		}
		for _, text := range values {
			decoded, _ := decodeBasic(name, text)
			if marked(text) || marked(decoded) {
				return credentialRefusal("Placeholder in the " + name + " header is not bound to this host")
			}
			if slices.Contains(credentialHeaders(), name) && !in.replaced[name] && secrets.IsPlaceholder(credentialOf(name, text)) {
				return credentialRefusal("Placeholder in the " + name + " header is not bound to this host")
			}
		}
	}
	query, err := url.QueryUnescape(u.RawQuery)
	if marked(u.RequestURI()) || marked(u.Path) || err == nil && marked(query) {
		return credentialRefusal("Placeholder in the URL; only headers are filled in")
	}
	return nil
}

// isServicePlaceholder reports whether a credential stands for a service's: a placeholder, and not a custom secret's.
func isServicePlaceholder(credential string, all []vault.Binding) bool {
	return secrets.IsPlaceholder(credential) && !strings.HasPrefix(credential, "sbx-cs-") &&
		!slices.ContainsFunc(all, func(b vault.Binding) bool { return b.Placeholder != "" && b.Placeholder == credential })
}

// credentialOf takes the credential out of a header: what follows the scheme, and of Basic the password, or the user
// name where there is no password.
func credentialOf(name, text string) string {
	text = strings.TrimSpace(text)
	if name != "Authorization" {
		return text
	}
	if pair, ok := decodeBasic(name, text); ok {
		user, password, _ := strings.Cut(pair, ":")
		if password == "" || password == "x-oauth-basic" {
			return user
		}
		return password
	}
	if _, credential, ok := strings.Cut(text, " "); ok {
		return strings.TrimSpace(credential)
	}
	return text
}

func decodeBasic(name, text string) (pair string, ok bool) {
	if name != "Authorization" {
		return "", false
	}
	scheme, encoded, _ := strings.Cut(strings.TrimSpace(text), " ")
	if !strings.EqualFold(scheme, "basic") {
		return "", false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return "", false
	}
	return string(b), true
}

// encode makes a Basic credential, which is as secret as the value in it.
func (in *injection) encode(pair string) string {
	text := base64.StdEncoding.EncodeToString([]byte(pair))
	in.used = append(in.used, secrets.New(text))
	return "Basic " + text
}

// mask takes credentials out of the header of an answer, should a server echo them there. A name that holds one, in whatever
// case it arrived, goes with its line.
func (s *session) mask(h http.Header, used []secrets.Value) {
	for _, v := range used {
		r := s.redactor(v)
		secret := strings.ToLower(v.Reveal())
		for name, values := range h {
			if len(secret) >= minMask && strings.Contains(strings.ToLower(name), secret) {
				delete(h, name)
				continue
			}
			for i, text := range values {
				values[i] = r.String(text)
			}
		}
	}
}

// redactor keeps one redactor for each value: making one costs more than using it.
func (s *session) redactor(v secrets.Value) *secrets.Redactor {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.masks[v.Reveal()]; r != nil {
		return r
	}
	if len(s.masks) >= 64 {
		clear(s.masks)
	}
	r := secrets.NewRedactor(v)
	s.masks[v.Reveal()] = r
	return r
}
