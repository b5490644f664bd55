package vault

// Masked stands for a value in listings. Unlike sbx, which shows both ends of the value, nothing of it is shown.
const Masked = "******...******"

// ServiceView is a service secret in "secret ls --json".
type ServiceView struct {
	Scope  string `json:"scope"`
	Type   string `json:"type"`
	Name   string `json:"name"`
	Secret string `json:"secret"`
}

// CustomView is a custom secret in "secret ls --json".
type CustomView struct {
	Scope       string   `json:"scope"`
	Targets     []string `json:"targets"`
	Env         string   `json:"env"`
	Placeholder string   `json:"placeholder"`
	Secret      string   `json:"secret"`
}

// Listing is the document of "secret ls --json".
type Listing struct {
	Secrets []ServiceView `json:"secrets"`
	Custom  []CustomView  `json:"custom_secrets"`
}

// Filter chooses secrets of a listing. The zero Filter chooses all.
type Filter struct {
	Scope   *string // exactly this scope; "" is the global one
	Service string  // this service only, and no custom secret
}

// List returns the secrets that f chooses, without their values.
func (s *Store) List(f Filter) (Listing, error) {
	l := Listing{Secrets: []ServiceView{}, Custom: []CustomView{}}
	d, err := s.read()
	if err != nil {
		return l, err
	}
	scope := func(name string) string {
		if name == "" {
			return "global"
		}
		return name
	}
	for _, row := range d.Services {
		if f.Scope != nil && *f.Scope != row.Scope || f.Service != "" && f.Service != row.Service {
			continue
		}
		l.Secrets = append(l.Secrets, ServiceView{scope(row.Scope), "service", row.Service, row.shown()})
	}
	for _, row := range d.Custom {
		if f.Scope != nil && *f.Scope != row.Scope || f.Service != "" {
			continue
		}
		v := CustomView{scope(row.Scope), []string{}, row.Env, row.Placeholder, row.shown()}
		for _, h := range row.Hosts {
			v.Targets = append(v.Targets, h.String())
		}
		l.Custom = append(l.Custom, v)
	}
	return l, nil
}

func (v storedValue) shown() string {
	switch {
	case v.Ref != "":
		return "(ref)"
	case v.Command != "":
		return "(command)"
	case v.Item != "":
		return "(keyring)"
	}
	return Masked
}
