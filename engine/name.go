package engine

import "regexp"

var nameShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)

// CheckName reports whether a sandbox may have the name, by the rules of sbx 0.43 and later.
func CheckName(name string) error {
	reason := ""
	switch {
	case len(name) < 2:
		reason = "must have at least 2 characters"
	case len(name) > 63:
		reason = "must have at most 63 characters"
	case !nameShape.MatchString(name):
		reason = "must start with a letter or digit and hold only letters, digits, '-' and '.'"
	case name[len(name)-1] == '-' || name[len(name)-1] == '.':
		reason = "must not end in '-' or '.'"
	case name == "default":
		reason = "is reserved"
	default:
		return nil
	}
	return &NameError{name, reason}
}
