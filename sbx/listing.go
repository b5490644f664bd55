package sbx

import (
	"bytes"
	"strconv"
	"time"
)

// plainReader reads a JSON document in the form in which engines print it, in one pass and without reflection: known keys,
// strings of printable ASCII without escapes, whole numbers. It gives up on anything else, which encoding/json then reads;
// so it never decides that something is wrong. What it takes means the same to both (FuzzListing).
type plainReader struct {
	rest []byte
	bad  bool
}

func (r *plainReader) space() {
	for len(r.rest) > 0 && (r.rest[0] == ' ' || r.rest[0] == '\n' || r.rest[0] == '\t' || r.rest[0] == '\r') {
		r.rest = r.rest[1:]
	}
}

// next takes c, if c is what comes.
func (r *plainReader) next(c byte) bool {
	r.space()
	if len(r.rest) == 0 || r.rest[0] != c {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

func (r *plainReader) want(c byte) {
	if !r.next(c) {
		r.bad = true
	}
}

// text reads a string; the result is part of the document.
func (r *plainReader) text() []byte {
	r.want('"')
	if r.bad {
		return nil
	}
	end := bytes.IndexByte(r.rest, '"')
	if end < 0 {
		r.bad = true
		return nil
	}
	s := r.rest[:end]
	for _, c := range s {
		if c < 0x20 || c >= 0x7f || c == '\\' {
			r.bad = true
			return nil
		}
	}
	r.rest = r.rest[end+1:]
	return s
}

func (r *plainReader) number() int {
	r.space()
	n := 0
	for n < len(r.rest) && n < 9 && r.rest[n] >= '0' && r.rest[n] <= '9' {
		n++
	}
	v, err := strconv.Atoi(string(r.rest[:n]))
	if err != nil || n > 1 && r.rest[0] == '0' || n < len(r.rest) && (r.rest[n] == '.' || r.rest[n]|0x20 == 'e' || r.rest[n] >= '0' && r.rest[n] <= '9') {
		r.bad = true
	}
	r.rest = r.rest[n:]
	return v
}

// items reads an array.
func (r *plainReader) items(item func()) {
	r.want('[')
	if r.next(']') {
		return
	}
	for !r.bad {
		item()
		if !r.next(',') {
			r.want(']')
			return
		}
	}
}

// members reads an object; member reads the value of key and gives the key's number, or 0 if it does not know it. It gives up on a key that comes twice, or that the caller does not know.
func (r *plainReader) members(member func(key []byte) (number uint)) {
	r.want('{')
	if r.next('}') {
		return
	}
	seen := uint(0)
	for !r.bad {
		key := r.text()
		r.want(':')
		if r.bad {
			return
		}
		bit := uint(1) << member(key)
		if bit == 1 || seen&bit != 0 {
			r.bad = true
			return
		}
		seen |= bit
		if !r.next(',') {
			r.want('}')
			return
		}
	}
}

// plainListing reads the JSON of "sbx ls" if it has the plain form.
func plainListing(out []byte) (list []Sandbox, ok bool) {
	r := &plainReader{rest: out}
	// A guess at the number of items saves the copies of a growing list; it is bounded, since the text may be anything.
	list = make([]Sandbox, 0, min(bytes.Count(out, []byte{'{'}), len(out)/64, 1<<14))
	found := false
	words := map[string]string{}
	word := func() string { // the same few for all rows
		b := r.text()
		s, known := words[string(b)]
		if !known {
			s = string(b)
			words[s] = s
		}
		return s
	}
	moment := func() (t time.Time) {
		if parsed, err := time.Parse(time.RFC3339Nano, string(r.text())); err == nil {
			t = parsed.UTC()
		}
		return t
	}
	r.members(func(key []byte) uint {
		if string(key) != "sandboxes" {
			return 0
		}
		found = true
		r.items(func() {
			list = append(list, Sandbox{})
			r.sandbox(&list[len(list)-1], word, moment)
		})
		return 1
	})
	r.space()
	return list, found && !r.bad && len(r.rest) == 0
}

func (r *plainReader) sandbox(s *Sandbox, word func() string, moment func() time.Time) {
	status := ""
	r.members(func(key []byte) uint {
		switch string(key) {
		case "name":
			s.Name = string(r.text())
			return 1
		case "id":
			s.ID = string(r.text())
			return 2
		case "agent":
			s.Agent = word()
			return 3
		case "status":
			status = word()
			return 4
		case "workspaces":
			s.Workspaces = []string{}
			r.items(func() { s.Workspaces = append(s.Workspaces, string(r.text())) })
			return 5
		case "ports":
			r.items(func() { s.Ports = append(s.Ports, r.port()) })
			return 6
		case "created_at":
			s.Created = moment()
			return 7
		case "last_used_at":
			s.LastUsed = moment()
			return 8
		case "socket_path": // 0.23 to 0.34
			r.text()
			return 9
		}
		return 0
	})
	if s.Status = parseStatus(status); s.Status == StatusUnknown {
		s.RawStatus = status
	}
}

func (r *plainReader) port() (p Port) {
	r.members(func(key []byte) uint {
		switch string(key) {
		case "host_ip":
			p.HostIP = string(r.text())
			return 1
		case "host_port":
			p.HostPort = r.number()
			return 2
		case "sandbox_port":
			p.SandboxPort = r.number()
			return 3
		case "protocol":
			p.Protocol = string(r.text())
			return 4
		}
		return 0
	})
	return p
}
