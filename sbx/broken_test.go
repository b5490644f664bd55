package sbx_test

import (
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
)

// TestBrokenAnswers: what holds null or nothing where an answer belongs is no answer, and never "none", "denied" or "all
// well". No version is known to print null for an empty list.
func TestBrokenAnswers(t *testing.T) {
	parse := map[string]func([]byte) error{
		"sandboxes":  func(b []byte) error { _, err := sbx.ParseSandboxes(b); return err },
		"rules":      func(b []byte) error { _, err := sbx.ParseRules(b); return err },
		"verdict":    func(b []byte) error { _, err := sbx.ParseVerdict(b); return err },
		"policy log": func(b []byte) error { _, err := sbx.ParsePolicyLog(b); return err },
		"secrets":    func(b []byte) error { _, err := sbx.ParseSecrets(b); return err },
		"ports":      func(b []byte) error { _, err := sbx.ParsePorts(b); return err },
		"templates":  func(b []byte) error { _, err := sbx.ParseTemplates(b); return err },
		"settings":   func(b []byte) error { _, err := sbx.ParseSettings(b); return err },
		"diagnosis":  func(b []byte) error { _, err := sbx.ParseDiagnosis(b); return err },
		"daemon":     func(b []byte) error { _, err := sbx.ParseDaemonState(b); return err },
		"inspection": func(b []byte) error { _, err := sbx.ParseInspection(b); return err },
	}
	for what, texts := range map[string][]string{
		"sandboxes":  {`{"sandboxes":null}`, `{"sandboxes":[null]}`, `{"sandboxes":[],"sandboxes":null}`, `{"boxes":[]}`},
		"rules":      {`{"rules":null}`, `{"rules":[null]}`, `{"rules":[{"id":"1","decision":"allow","resource_type":"network","resources":null}]}`, `{"rules":[{"id":"1","decision":"allow","resources":["a"]}]}`},
		"verdict":    {`{"allowed":null,"target":"a:443"}`, `{"target":"a:443"}`, `{"allowed":"yes"}`, `{"allowed":false,"allowed":null}`},
		"policy log": {`{"blocked_hosts":null,"allowed_hosts":[]}`, `{"blocked_hosts":[],"allowed_hosts":null}`, `{"blocked_hosts":[]}`, `{"allowed_hosts":[]}`, `{"blocked_hosts":[null],"allowed_hosts":[]}`},
		"secrets": {`{"secrets":null}`, `{"secrets":null,"custom_secrets":[]}`, `{"secrets":[],"custom_secrets":null}`, `{"custom_secrets":[],"global_secrets":[{"name":"github"}]}`,
			`{"secrets":{}}`, `{"secrets":[null]}`},
		"ports":      {`[null]`, `[{}]`, `[{"host_port":0,"sandbox_port":80,"protocol":"tcp"}]`, `{"ports":null}`, "null"},
		"templates":  {`{"images":null}`, `{"images":[null]}`},
		"settings":   {`{"settings":null}`, `[null]`},
		"diagnosis":  {`{"checks":null}`, `{"checks":[]}`, `{"checks":[null]}`, `{"checks":[{"name":"Daemon"}]}`, `{"checks":[{"name":"Daemon","status":"splendid"}]}`},
		"daemon":     {`{"status":null}`, `{"status":""}`},
		"inspection": {`{"name":null}`, `{"name":""}`},
	} {
		for _, text := range texts {
			t.Run(what+" "+text, func(t *testing.T) { wantKinds(t, parse[what]([]byte(text)), sbx.ErrMalformed) })
		}
	}
	// One of the two lists of secrets alone is an answer; so is a list that says of itself that it has none.
	for _, text := range []string{`{"secrets":[]}`, `{"custom_secrets":[]}`, `{"secrets":[],"custom_secrets":[],"note":"x"}`} {
		ok(t, parse["secrets"]([]byte(text)))
	}
}
