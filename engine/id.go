package engine

import (
	"regexp"
)

var idShape = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func validID(id string) bool { return idShape.MatchString(id) }
