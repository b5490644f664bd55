package sbx

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestPlainListing: what engines print is read in the fast way; what is not plain is not.
func TestPlainListing(t *testing.T) {
	for _, name := range []string{"ls-0.47.json", "ls-empty.json"} {
		text, err := os.ReadFile(filepath.Join("../fixtures/sbx", name))
		if err != nil {
			t.Fatal(err)
		}
		if _, plain := plainListing(text); !plain {
			t.Errorf("%s is not plain", name)
		}
	}
	for _, text := range []string{
		``, `{}`, `[]`, `{"sandboxes":null}`, "{\"sandboxes\":[]}\x00", `{"sandboxes":[null]}`, `{"sandboxes":[]} x`, `{"sandboxes":[{"name":"a"},]}`, `{"sandboxes":[{"name":"a",}]}`,
		`{"sandboxes":[{"name":"a\u0062"}]}`, `{"sandboxes":[{"name":"ä"}]}`, `{"sandboxes":[{"name":"a","name":"b"}]}`, `{"sandboxes":[{"Name":"a"}]}`,
		`{"sandboxes":[{"name":"a","new":1}]}`, `{"sandboxes":[{"name":"a","ports":[{"host_port":1.5}]}]}`, `{"sandboxes":[{"name":"a","ports":[{"host_port":01}]}]}`,
		`{"sandboxes":[{"name":"a","ports":[{"host_port":1e3}]}]}`, `{"sandboxes":[{"name":"a","created_at":5}]}`, `{"sandboxes":[{"name":"a"}`, `{"sandboxes":[{"name":"a`,
	} {
		if list, plain := plainListing([]byte(text)); plain {
			t.Errorf("%s was read: %+v", text, list)
		}
	}
}

// FuzzListing holds the fast reader against encoding/json: what it takes, both read alike.
func FuzzListing(f *testing.F) {
	f.Add(manyItems(3))
	f.Add([]byte(`{"sandboxes": [ {"name":"a","id":"b","agent":"c","status":"Running","workspaces":["/a","/b"],"ports":[{"host_ip":"::1","host_port":80,"sandbox_port":9,"protocol":"tcp"}],"created_at":"2026-10-08T09:12:44+02:00","last_used_at":"x","socket_path":"/s"}, {} ] }` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fast, plain := plainListing(data)
		if !plain {
			return
		}
		slow, err := decodeListing(data)
		if err != nil || !reflect.DeepEqual(fast, slow) {
			t.Errorf("%q:\nfast %+v\nslow %+v, %v", data, fast, slow, err)
		}
		if len(fast) > strings.Count(string(data), "{") {
			t.Errorf("%d rows", len(fast))
		}
	})
}
