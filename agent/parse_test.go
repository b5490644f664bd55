package agent_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/agent"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestRecorded reads what real CLIs wrote. The golden file shows each event on a line.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 15 {
		t.Fatalf("recordings: %d, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			adapter, _, _ := strings.Cut(filepath.Base(name), "-")
			a, ok := agent.Lookup(adapter)
			if !ok {
				t.Fatalf("no adapter %q", adapter)
			}
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			enc := json.NewEncoder(&got)
			enc.SetEscapeHTML(false)
			p := a.NewParser()
			for line := range bytes.Lines(data) {
				for _, e := range p.Line(line) {
					if err := enc.Encode(compact(e)); err != nil {
						t.Fatal(err)
					}
				}
			}
			golden := strings.TrimSuffix(name, ".jsonl") + ".events"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("got\n%s\nwant\n%s", got.Bytes(), want)
			}
		})
	}
}

// compact drops what is zero.
func compact(e agent.Event) map[string]any {
	data, _ := json.Marshal(e)
	var m map[string]any
	json.Unmarshal(data, &m)
	for k, v := range m {
		if v == nil || v == "" || v == false || v == float64(0) {
			delete(m, k)
		}
	}
	if u, ok := m["Usage"].(map[string]any); ok {
		for k, v := range u {
			if v == nil || v == float64(0) {
				delete(u, k)
			}
		}
	}
	return m
}
