package rules

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/engine/statefile"
)

// ProxyType says how a connection went through the proxy (sbx 0.47).
type ProxyType string

// The types.
const (
	Forward ProxyType = "forward"        // looked into, or denied
	Bypass  ProxyType = "forward-bypass" // tunnelled untouched
)

// An Entry is one decision of the proxy.
type Entry struct {
	Time     time.Time `json:"time"` // UTC; zero: now
	Sandbox  string    `json:"sandbox"`
	Host     string    `json:"host"` // canonical, with port
	HostType string    `json:"host_type,omitempty"`
	Type     ProxyType `json:"type"`
	Allowed  bool      `json:"allowed"`
	Kind     string    `json:"kind,omitempty"` // policy.Kind, or "credential", "protocol", "dial"
	Rule     string    `json:"rule,omitempty"` // label of the deciding rule
	Reason   string    `json:"reason"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"` // without query
	// Count and Since are more than one decision put together; see Log.
	Count int       `json:"count,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// A Log is the file of decisions. Append is for the daemon alone; any process may read. When the file grows past its
// limit, decisions of the same kind are put together into one line with a count, so that an agent that hammers on one
// host does not push the others out; if that is not enough the oldest go.
type Log struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// LogLimit bounds the file, in bytes.
const LogLimit = 8 << 20

// OpenLog returns the log in dir. Nothing is made before the first Append.
func OpenLog(dir string) *Log {
	return &Log{path: filepath.Join(dir, "policy-log.jsonl"), limit: LogLimit}
}

// Append writes one decision. Control characters never reach the file raw, whatever the fields hold.
func (l *Log) Append(e Entry) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC()
	for _, field := range []*string{&e.Sandbox, &e.Host, &e.Rule, &e.Reason, &e.Method, &e.Path} {
		*field = printable(*field)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("policy log: %w", err)
	}
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.open(); err != nil {
		return fmt.Errorf("policy log: %w", err)
	}
	if l.size+int64(len(line)) > l.limit {
		if err := l.compact(); err != nil {
			return fmt.Errorf("policy log: %w", err)
		}
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	if err != nil {
		return fmt.Errorf("policy log: %w", err)
	}
	return nil
}

// Close closes the file. A later Append opens it again.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// Reset removes the log.
func (l *Log) Reset() error {
	err := l.Close()
	if rm := os.Remove(l.path); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}

// Entries returns what the log holds, oldest first, and how many lines could not be read (a crash can cut the last one).
func (l *Log) Entries() (entries []Entry, unreadable int, err error) {
	f, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("policy log: %w", err)
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) { // no line of ours: whatever wrote it, the others still count
			_, err = in.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return entries, unreadable, fmt.Errorf("policy log: %w", err)
		}
		if len(line) > 0 {
			var e Entry
			if long || json.Unmarshal(line, &e) != nil || e.Host == "" {
				unreadable++
			} else {
				entries = append(entries, e)
			}
		}
		if err != nil {
			return entries, unreadable, nil
		}
	}
}

// maxLine is the longest line that is read, in bytes; the fields of one of ours are cut to much less.
const maxLine = 64 << 10

func (l *Log) open() error {
	if l.file != nil {
		// Another process may have reset the log.
		if _, err := os.Stat(l.path); err == nil {
			return nil
		}
		l.file.Close()
		l.file = nil
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size = f, info.Size()
	// A crash can leave half a line; end it, so that the next one is whole.
	if l.size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, l.size-1); err == nil && last[0] != '\n' {
			n, _ := f.Write([]byte{'\n'})
			l.size += int64(n)
		}
	}
	return nil
}

// compact puts equal decisions together and, if the rest is still over half the limit, drops the oldest.
func (l *Log) compact() error {
	entries, _, err := l.Entries()
	if err != nil {
		return err
	}
	merged := merge(entries)
	var lines [][]byte
	total := int64(0)
	for _, e := range slices.Backward(merged) {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		total += int64(len(line)) + 1
		if total > l.limit/2 {
			break
		}
		lines = append(lines, line)
	}
	slices.Reverse(lines)
	data := bytes.Join(lines, []byte{'\n'})
	if len(data) > 0 {
		data = append(data, '\n')
	}
	if err := statefile.Replace(l.path, data, 0o600); err != nil {
		return err
	}
	l.file.Close()
	l.file = nil
	return l.open()
}

// merge puts entries together that differ only in time, method and path; the order is that of the last of each.
func merge(entries []Entry) []Entry {
	type key struct {
		sandbox, host, rule, reason, kind string
		proxy                             ProxyType
		allowed                           bool
	}
	at := map[key]*Entry{}
	var order []*Entry
	for _, e := range entries {
		k := key{e.Sandbox, e.Host, e.Rule, e.Reason, e.Kind, e.Type, e.Allowed}
		if e.Count == 0 {
			e.Count = 1
		}
		if e.Since.IsZero() {
			e.Since = e.Time
		}
		have := at[k]
		if have == nil {
			at[k] = &e
			order = append(order, &e)
			continue
		}
		have.Count += e.Count
		if e.Since.Before(have.Since) {
			have.Since = e.Since
		}
		if e.Time.After(have.Time) {
			have.Time, have.Method, have.Path = e.Time, e.Method, e.Path
		}
	}
	out := make([]Entry, 0, len(order))
	for _, e := range order {
		out = append(out, *e)
	}
	slices.SortStableFunc(out, func(a, b Entry) int { return a.Time.Compare(b.Time) })
	return out
}

// HostRow is one line of "policy log": every decision of one kind about one host in one sandbox.
type HostRow struct {
	Host       string    `json:"host"`
	VMName     string    `json:"vm_name"`
	ProxyType  ProxyType `json:"proxy_type"`
	Rule       string    `json:"rule"`
	LastSeen   time.Time `json:"last_seen"`
	Since      time.Time `json:"since"`
	CountSince int       `json:"count_since"`
	Reason     string    `json:"reason,omitempty"`
}

// LogView is the document of "policy log --json".
type LogView struct {
	Blocked []HostRow `json:"blocked_hosts"`
	Allowed []HostRow `json:"allowed_hosts"`
}

// View returns the log put together as sbx 0.47 shows it, newest first: for one sandbox, or for all with "". A limit
// above 0 bounds each of the two lists.
func (l *Log) View(sandbox string, limit int) (LogView, error) {
	entries, _, err := l.Entries()
	if err != nil {
		return LogView{}, err
	}
	v := LogView{Blocked: []HostRow{}, Allowed: []HostRow{}}
	for _, e := range slices.Backward(merge(entries)) {
		if sandbox != "" && e.Sandbox != sandbox {
			continue
		}
		row := HostRow{
			Host: e.Host, VMName: e.Sandbox, ProxyType: e.Type, Rule: e.RuleText(), LastSeen: e.Time.Truncate(time.Second),
			Since: e.Since.Truncate(time.Second), CountSince: e.Count, Reason: e.Reason,
		}
		list := &v.Blocked
		if e.Allowed {
			list = &v.Allowed
		}
		if limit <= 0 || len(*list) < limit {
			*list = append(*list, row)
		}
	}
	return v, nil
}

// RuleText is the rule as sbx words it: prose for a denial, the label for an allowance.
func (e Entry) RuleText() string {
	hostType := e.HostType
	if hostType == "" {
		hostType = "net:domain"
	}
	op := fmt.Sprintf("op(action=net:connect:tcp, resource=%s:%s)", hostType, e.Host)
	switch {
	case e.Allowed:
		return e.Rule
	case e.Rule != "":
		return fmt.Sprintf("denied: rule %q matched %s", e.Rule, op)
	case e.Kind == "" || e.Kind == "implicit":
		return "no applicable policies for " + op
	}
	return fmt.Sprintf("denied: %s check for %s", e.Kind, op)
}

// Write prints the view as "policy log" does; times are local and have no year, as in sbx.
func (v LogView) Write(w io.Writer, local *time.Location) error {
	if len(v.Blocked)+len(v.Allowed) == 0 {
		_, err := fmt.Fprintln(w, "No policy log entries found")
		return err
	}
	var b strings.Builder
	section := func(title string, rows []HostRow) {
		if len(rows) == 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(title + "\n")
		table := [][]string{{"SANDBOX", "TYPE", "HOST", "PROXY", "RULE", "REASON", "LAST SEEN", "COUNT"}}
		for _, r := range rows {
			table = append(table, []string{
				r.VMName, "network", r.Host, string(r.ProxyType), r.Rule, r.Reason,
				r.LastSeen.In(local).Format("15:04:05 02-Jan"), fmt.Sprint(r.CountSince),
			})
		}
		b.WriteString(Table(table))
	}
	section("Blocked requests:", v.Blocked)
	section("Allowed requests:", v.Allowed)
	_, err := io.WriteString(w, b.String())
	return err
}

// Table lays out rows in columns three spaces apart, the first row being the header, as sbx does.
func Table(rows [][]string) string {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", width[i]-len([]rune(cell))+3))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// printable replaces what could move a cursor, break a line or hide text when someone reads the log.
func printable(s string) string {
	const limit = 512
	out := strings.Map(func(r rune) rune {
		switch {
		case r < ' ' || r >= 0x7f && r < 0xa0, r == '\u2028', r == '\u2029', r >= 0x200b && r <= 0x200f,
			r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0xfeff, r == 0xfffd:
			return '?'
		}
		return r
	}, s)
	if len(out) > limit {
		out = strings.ToValidUTF8(out[:limit], "") + "..."
	}
	return out
}
