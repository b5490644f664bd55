package guest_test

import (
	"io"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/guest"
)

func TestTail(t *testing.T) {
	for _, tt := range []struct {
		limit int
		write []string
		want  string
	}{
		{5, []string{"abc"}, "abc"},
		{5, []string{"abc", "def"}, "bcdef"},
		{5, []string{strings.Repeat("x", 100) + "12345"}, "12345"},
		{5, []string{"12", strings.Repeat("y", 7), "ab"}, "yyyab"},
		{0, []string{"abc"}, ""},
		{3, []string{"ab\u00e9f"}, "\u00e9f"},
		{2, []string{"a\u00e9f"}, "f"}, // half a letter is none
		{9, []string{"a\xffb"}, "a\uFFFDb"},
	} {
		tail := &guest.Tail{Limit: tt.limit}
		for _, s := range tt.write {
			if n, err := io.WriteString(tail, s); n != len(s) || err != nil {
				t.Errorf("Write(%q) = %d, %v", s, n, err)
			}
		}
		if got := tail.String(); got != tt.want {
			t.Errorf("%q kept in %d: %q, want %q", tt.write, tt.limit, got, tt.want)
		}
	}
}
