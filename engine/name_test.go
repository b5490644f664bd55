package engine_test

import (
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/engine"
)

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"demo": true, "a1": true, "9x": true, "a.b-c": true, "Demo": true, strings.Repeat("a", 63): true,
		"": false, "a": false, "-ab": false, ".ab": false, "ab-": false, "ab.": false, "a_b": false, "a+b": false, "a/b": false, "..": false,
		"a b": false, "ab\n": false, "default": false, "--all": false, strings.Repeat("a", 64): false, "ä1": false,
	} {
		if err := engine.CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v, want ok %v", name, err, ok)
		}
	}
}
