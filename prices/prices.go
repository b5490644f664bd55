// Package prices says what a model's tokens cost. The table is a file with a version, built in, and can be replaced by a
// file of the user's: prices change more often than programs.
//
// The package is a leaf: the loop bounds a run with it, and whoever sits between agent and provider can bill with it.
package prices

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// ErrInvalid matches the error of a table that cannot be used.
var ErrInvalid = errors.New("invalid price table")

// Price is in US dollars for a million tokens.
type Price struct {
	Input  float64 `json:"input"`
	Cached float64 `json:"cached"` // of input that came from the provider's cache
	Output float64 `json:"output"`
	// Written is of input that the provider writes into its cache for minutes; 0 is that of other input. What it keeps for an
	// hour costs [hour] times as much.
	Written float64 `json:"written,omitempty"`
}

// hour is what keeping input for an hour costs beside keeping it for five minutes: twice the price of input, not 1.25 times.
// Anthropic alone offers it.
const hour = 1.6

// Model is the price of one model. Above, if there is one, holds for calls with more input than its Tokens.
type Model struct {
	Price
	Above *struct {
		Tokens int64 `json:"tokens"`
		Price
	} `json:"above,omitempty"`
}

// Table holds prices by a model's name.
type Table struct {
	Version string           `json:"version"`
	Sources []string         `json:"sources,omitempty"`
	Unit    string           `json:"unit,omitempty"`
	Models  map[string]Model `json:"models"`

	byName map[string]Model // by folded name
}

//go:embed prices.json
var builtin []byte

// Builtin returns the table that comes with the program.
func Builtin() Table {
	t, err := Parse(bytes.NewReader(builtin))
	if err != nil {
		panic(err) // the embedded file is wrong; a test reads it
	}
	return t
}

// maxTable bounds a file of prices, in bytes.
const maxTable = 1 << 20

// Load reads the table in a file; "" is the built-in one. The error matches [ErrInvalid].
func Load(path string) (Table, error) {
	if path == "" {
		return Builtin(), nil
	}
	file, err := os.Open(path)
	if err != nil {
		return Table{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	defer file.Close()
	t, err := Parse(io.LimitReader(file, maxTable))
	if err != nil {
		return Table{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Parse reads a table. Unknown keys, negative prices, a missing version and names that mean the same are errors.
func Parse(r io.Reader) (Table, error) {
	var t Table
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		return Table{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if t.Version == "" || len(t.Models) == 0 {
		return Table{}, fmt.Errorf("%w: it has no version or no models", ErrInvalid)
	}
	t.byName = make(map[string]Model, len(t.Models))
	for name, m := range t.Models {
		for _, p := range m.all() {
			if p.Input < 0 || p.Cached < 0 || p.Output < 0 || p.Written < 0 {
				return Table{}, fmt.Errorf("%w: %s has a negative price", ErrInvalid, name)
			}
		}
		if _, double := t.byName[fold(name)]; double || fold(name) == "" {
			return Table{}, fmt.Errorf("%w: %q is empty or stands there twice", ErrInvalid, name)
		}
		t.byName[fold(name)] = m
	}
	return t, nil
}

func (m Model) all() []Price {
	if m.Above == nil {
		return []Price{m.Price}
	}
	return []Price{m.Price, m.Above.Price}
}

// Tokens is what calls of one model used. Input counts the tokens from the cache and those written into it too.
type Tokens struct {
	Input, Cached, Output int64
	Written, Hour         int64 // into the cache; of these, for an hour
	Calls                 int   // over which they are spread; 0 is taken for 1
}

// Cost returns what the tokens cost in US dollars, and whether the model's price is known at all. A name is taken with or
// without its provider ("openai/gpt-5.4"), a date ("-20251001", "-2026-03-05") or "-latest" at its end, and with a dash for
// a dot; nothing else is guessed: a model that is not in the table may cost ten times what its cousin does.
func (t Table) Cost(model string, u Tokens) (usd float64, known bool) {
	m, known := t.byName[fold(model)]
	if !known {
		return 0, false
	}
	p := m.Price
	if m.Above != nil && u.Input/int64(max(1, u.Calls)) > m.Above.Tokens {
		p = m.Above.Price
	}
	cached := min(max(0, u.Cached), u.Input)
	written := min(max(0, u.Written), u.Input-cached)
	long := min(max(0, u.Hour), written)
	perWritten := cmp.Or(p.Written, p.Input)
	return (float64(u.Input-cached-written)*p.Input + float64(cached)*p.Cached + float64(written-long)*perWritten + float64(long)*perWritten*hour +
		float64(u.Output)*p.Output) / 1e6, true
}

var dated = regexp.MustCompile(`-(\d{8}|\d{4}-\d{2}-\d{2}|latest|preview)$`)

// fold brings the spellings of a model's name together.
func fold(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	name = name[strings.LastIndexByte(name, '/')+1:]
	name = dated.ReplaceAllString(name, "")
	return strings.ReplaceAll(name, ".", "-")
}
