package sbx

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// This file reads the tables that sbx prints for people. They have changed layout several times, so a table is found by
// its header, cells are assigned by where they start, and what does not fit is an error rather than a guess.

// column is a column that a table may have, under any of its names.
type column struct {
	id    string
	names []string // upper case
	word  bool     // a cell never contains a space
}

// tableSpec describes one kind of table.
type tableSpec struct {
	columns []column
	must    []string // ids without which a line is not this table's header
	row     []string // ids that are filled in every row
	more    string   // id whose cells may go on in further rows
}

// table is a header and its rows.
type table struct {
	title string // the line above the header, if it was one; such as "CUSTOM SECRETS"
	ids   []string
	rows  []tableRow
}

// tableRow is one row: the cells of the columns that the header has.
type tableRow struct {
	cells []string
	index map[string]int // of a column's id in cells; the same for all rows of a table
	more  []string       // continuation rows of the column that may go on
}

func (r tableRow) text(id string) string {
	i, ok := r.index[id]
	if !ok || r.cells[i] == "-" { // "-" is sbx's blank
		return ""
	}
	return r.cells[i]
}

// list splits a cell at ", " and adds its continuation rows.
func (r tableRow) list(id string) []string {
	var out []string
	add := func(cell string) {
		for part := range strings.SplitSeq(cell, ", ") {
			if part = strings.TrimSuffix(strings.TrimSpace(part), ","); part != "" && part != "-" {
				out = append(out, part)
			}
		}
	}
	add(r.text(id))
	return out
}

// listMore is list for the column that may go on in further rows.
func (r tableRow) listMore(id string) []string {
	out := r.list(id)
	for _, line := range r.more {
		out = append(out, tableRow{cells: []string{line}, index: map[string]int{id: 0}}.list(id)...)
	}
	return out
}

// field is a stretch of a line between runs of two or more spaces. Positions count characters, as the programs that
// pad tables do; wide counts terminal cells instead, for those that pad by width.
type field struct {
	text       string
	start, end int
	wide       int
}

// fields splits a line and appends to out. A tab counts as two spaces. It stops where the fields are more than a table can
// have columns: no line of such is a header or a row.
func fields(out []field, line string) []field {
	pos, wide := 0, 0
	spaces := 2 // a line may start with a field
	open, begin, endByte := false, 0, 0
	for i := 0; i < len(line); {
		r, n := rune(line[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(line[i:])
		}
		if r == ' ' || r == '\t' || r == '\u00a0' {
			spaces++
			if r == '\t' {
				spaces++
			}
			if spaces >= 2 && open {
				out[len(out)-1].text = line[begin:endByte]
				open = false
			}
		} else {
			if !open {
				if len(out) > maxColumns {
					return out
				}
				out = append(out, field{start: pos, wide: wide})
				open, begin = true, i
			}
			spaces = 0
			endByte = i + n
			out[len(out)-1].end = pos + 1
		}
		i += n
		pos++
		if r < utf8.RuneSelf {
			wide++
		} else {
			wide += runeWidth(r)
		}
	}
	if open {
		out[len(out)-1].text = line[begin:endByte]
	}
	return out
}

// runeWidth is the number of terminal cells of r: two for East Asian wide characters and emoji, none for marks that
// combine.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case r <= 0x36f, r >= 0x200b && r <= 0x200f, r >= 0xfe00 && r <= 0xfe0f:
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6,
		r >= 0x1f300 && r <= 0x1f64f, r >= 0x1f900 && r <= 0x1f9ff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// header is a recognised header line.
type header struct {
	spec    tableSpec
	columns []headerColumn
	index   map[string]int // of a column's id
}

type headerColumn struct {
	column
	start int
}

// maxColumns bounds a header: sbx has at most 11, and the work on a row grows with the square of it.
const maxColumns = 24

func matchHeader(cells []field, specs []tableSpec) *header {
	if len(cells) < 2 || len(cells) > maxColumns || strings.ToUpper(cells[0].text) != cells[0].text {
		return nil
	}
next:
	for _, spec := range specs {
		h := &header{spec: spec, index: map[string]int{}}
		for _, cell := range cells {
			name := strings.ToUpper(cell.text)
			if name != cell.text {
				continue next // headers are upper case in every version
			}
			c := column{id: name}
			for _, known := range spec.columns {
				for _, alias := range known.names {
					if alias == name {
						c = known
					}
				}
			}
			if _, twice := h.index[c.id]; twice {
				continue next
			}
			h.index[c.id] = len(h.columns)
			h.columns = append(h.columns, headerColumn{c, cell.start})
		}
		for _, id := range spec.must {
			if _, found := h.index[id]; !found {
				continue next
			}
		}
		return h
	}
	return nil
}

// parseTables finds the tables of the given kinds in cleaned text. Lines that belong to none are returned as notes. It is
// linear in the text.
func parseTables(text string, specs ...tableSpec) (tables []table, notes []string, err error) {
	var h *header
	var buf []field
	title := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\n")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" {
			continue
		}
		row := fields(buf[:0], line)
		buf = row
		if next := matchHeader(row, specs); next != nil {
			h = next
			t := table{title: title}
			for _, c := range h.columns {
				t.ids = append(t.ids, c.id)
			}
			tables = append(tables, t)
			title = ""
			continue
		}
		if isTitle(trimmed) {
			title, h = trimmed, nil
			notes = append(notes, trimmed)
			continue
		}
		title = ""
		if spoils(trimmed) {
			return nil, notes, spoilt(trimmed)
		}
		if h == nil || isWarning(trimmed) || isPreamble(trimmed) {
			notes = append(notes, trimmed)
			continue
		}
		// A row of which a cell is too long may look like a sentence: it counts as one only if it is no row.
		likeProse := len(h.columns) >= 3 && len(row) == 1 && row[0].start < h.columns[1].start
		cells, ok := assign(row, h)
		if likeProse && isProse(trimmed, ok && filled(cells, h)) {
			notes = append(notes, trimmed)
			continue
		}
		if !ok {
			return nil, notes, malformed("a row of %d characters does not fit its header", len(line))
		}
		current := &tables[len(tables)-1]
		if cells[0] == "" && len(current.rows) > 0 && onlyContinues(cells, h) {
			last := &current.rows[len(current.rows)-1]
			last.more = append(last.more, cells[h.index[h.spec.more]])
			continue
		}
		if !filled(cells, h) {
			return nil, notes, malformed("a row has nothing under one of %q", h.spec.row)
		}
		current.rows = append(current.rows, tableRow{cells: cells, index: h.index})
	}
	return tables, notes, nil
}

// isTitle recognises a line that names the table below it: several upper-case words and nothing else.
func isTitle(line string) bool {
	if len(line) > 60 || !strings.Contains(line, " ") || strings.Contains(line, "  ") {
		return false
	}
	for i := range len(line) {
		if c := line[i]; c != ' ' && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// isProse recognises what is for people, of a line without columns: a box and what it tells; a sentence, which starts as one
// and has some words. Words that would fit the columns as well are a sentence only if they end as one.
func isProse(line string, fits bool) bool {
	if isBoxed(line) {
		return true
	}
	sentence := line[0] >= 'A' && line[0] <= 'Z' && strings.Count(line, " ") >= 2
	if fits {
		return sentence && strings.ContainsAny(line[len(line)-1:], ".!?:")
	}
	lower := strings.ToLower(line)
	return sentence || strings.Contains(lower, "update available") || strings.Contains(lower, " upgrade ")
}

// isBoxed reports whether a line starts with the frame of a box.
func isBoxed(line string) bool { return strings.TrimLeft(line, boxFrame) != line }

// filled reports whether the columns that no row leaves empty have something.
func filled(cells []string, h *header) bool {
	return !slices.ContainsFunc(h.spec.row, func(id string) bool {
		i, found := h.index[id]
		return !found || cells[i] == ""
	})
}

func onlyContinues(cells []string, h *header) bool {
	more, found := h.index[h.spec.more]
	if !found || cells[more] == "" {
		return false
	}
	for i, cell := range cells {
		if i != more && cell != "" {
			return false
		}
	}
	return true
}

// assign gives each field of a row to a column. A field that starts where a column does belongs to it. A cell that runs
// past the start of its neighbour moves the rest of the row to the right; then the moved starts count, and failing that
// the order.
func assign(row []field, h *header) ([]string, bool) {
	cells := make([]string, len(h.columns))
	for _, wide := range []bool{false, true} {
		if assignAligned(row, h, cells, wide) {
			return cells, true
		}
		clear(cells)
	}
	if assignShifted(row, h, cells) {
		return cells, true
	}
	clear(cells)
	split := splitWords(row, h)
	if len(split) != len(h.columns) {
		return nil, false
	}
	for i, f := range split {
		if !fits(f.text, h.columns[i]) {
			return nil, false
		}
		cells[i] = f.text
	}
	return cells, true
}

func fits(text string, c headerColumn) bool { return !c.word || !strings.ContainsAny(text, " \u00a0") }

// assignAligned succeeds if every field starts exactly at a column and ends before the next field's column.
func assignAligned(row []field, h *header, cells []string, wide bool) bool {
	j := 0
	for _, f := range row {
		start := f.start
		if wide {
			start = f.wide
		}
		for j < len(h.columns) && h.columns[j].start < start {
			j++
		}
		if j == len(h.columns) || h.columns[j].start != start || !fits(f.text, h.columns[j]) {
			return false
		}
		cells[j] = f.text
		j++
	}
	return true
}

// assignShifted follows rows in which a cell was too long for its column.
func assignShifted(row []field, h *header, cells []string) bool {
	row = splitWords(row, h)
	shift, j, prevEnd := 0, 0, 0
	for i, f := range row {
		k := j
		for k < len(h.columns) && h.columns[k].start+shift < f.start {
			k++
		}
		aligned := k < len(h.columns) && h.columns[k].start+shift == f.start
		if !aligned {
			// Only a cell that ran past its column's end may move what follows.
			if i == 0 || j >= len(h.columns) || prevEnd < h.columns[j].start+shift-1 {
				return false
			}
			k = j
			for try := j; try < len(h.columns); try++ {
				if restAligned(row[i:], h.columns[try:], f.start-h.columns[try].start) {
					k = try
					break
				}
			}
			shift = f.start - h.columns[k].start
		}
		if !fits(f.text, h.columns[k]) {
			return false
		}
		cells[k] = f.text
		j, prevEnd = k+1, f.end
	}
	return true
}

// restAligned reports whether all fields start at columns moved by shift.
func restAligned(row []field, columns []headerColumn, shift int) bool {
	j := 0
	for _, f := range row {
		for j < len(columns) && columns[j].start+shift < f.start {
			j++
		}
		if j == len(columns) || columns[j].start+shift != f.start || !fits(f.text, columns[j]) {
			return false
		}
		j++
	}
	return len(row) > 0
}

// splitWords splits fields at single spaces as long as they stand at columns that hold one word: an overlong cell may
// leave one space only before its neighbour.
func splitWords(row []field, h *header) []field {
	out := make([]field, 0, len(h.columns))
	for _, f := range row {
		for len(out) < len(h.columns) && h.columns[len(out)].word {
			word, rest, found := strings.Cut(f.text, " ")
			if !found {
				break
			}
			n := utf8.RuneCountInString(word)
			out = append(out, field{word, f.start, f.start + n, f.wide})
			f = field{rest, f.start + n + 1, f.end, f.wide + n + 1}
		}
		out = append(out, f)
	}
	return out
}
