package github

import (
	"strings"

	"golang.org/x/text/unicode/norm"
)

// fold makes names comparable: without case, composed, without what cannot be seen.
func fold(s string) string {
	s = strings.Map(func(r rune) rune {
		if invisible(r) {
			return -1
		}
		return r
	}, s)
	return strings.ToLower(norm.NFC.String(s))
}

// invisible reports characters without a shape of their own: zero width, directional, variation selectors, tags.
func invisible(r rune) bool {
	switch {
	case r == 0x00ad, r == 0x034f, r == 0x061c, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x180e, r == 0x3164, r == 0xfeff, r == 0xffa0:
		return true
	case r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r >= 0xfff9 && r <= 0xfffb:
		return true
	case r >= 0xe0000 && r <= 0xe0fff, r >= 0x180b && r <= 0x180d:
		return true
	}
	return false
}
