package engine

import (
	"crypto/rand"
	"fmt"
	"regexp"
)

var idShape = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func validID(id string) bool { return idShape.MatchString(id) }

// newID returns a random (version 4) UUID.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails since Go 1.24
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
