package pair

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Role is what a sandbox of a pair is for; it decides credential, policy and mounts.
type Role string

// The two roles of a pair.
const (
	RoleAgent  Role = "agent"  // runs the agent CLI; holds the model credential only
	RoleGitHub Role = "github" // acts on GitHub; holds GH_TOKEN only, mounts nothing of the agent's
)

// RunID identifies a run: twelve lower-case base32 characters that sort by start time.
type RunID string

// idPattern is the form of a RunID; names are recognised as ours by it.
const idPattern = `[a-z2-7]{12}`

// NewRunID returns an id for a run that starts at now.
func NewRunID(now time.Time) RunID {
	var raw [8]byte // 7.5 bytes are used: 35 bits of seconds, 25 of chance
	binary.BigEndian.PutUint64(raw[:], uint64(now.Unix())<<29)
	var chance [4]byte
	rand.Read(chance[:]) // never fails since Go 1.24
	low := binary.BigEndian.Uint64(raw[:]) | uint64(binary.BigEndian.Uint32(chance[:]))>>3
	binary.BigEndian.PutUint64(raw[:], low)
	// base32's own alphabet puts letters before digits, which does not sort; this one does.
	return RunID(base32.NewEncoding("234567abcdefghijklmnopqrstuvwxyz").WithPadding(base32.NoPadding).EncodeToString(raw[:])[:12])
}

var runID = regexp.MustCompile(`^` + idPattern + `$`)

// ParseRunID checks the form of an id that a person typed.
func ParseRunID(s string) (RunID, error) {
	if !runID.MatchString(s) {
		return "", fmt.Errorf("%q is not a run id (twelve characters a-z, 2-7; see: sbxpair ls)", s)
	}
	return RunID(s), nil
}

// Name returns the name of the run's sandbox of the given role. It fits sbx's rules: at most 63 characters, letters,
// digits and dashes (sbx 0.43).
func (id RunID) Name(role Role) string { return "sbxpair-" + string(id) + "-" + string(role) }

// Names returns the names of both sandboxes of the run.
func (id RunID) Names() []string { return []string{id.Name(RoleAgent), id.Name(RoleGitHub)} }

var ourName = regexp.MustCompile(`^sbxpair-(` + idPattern + `)-(agent|github)$`)

// ParseName tells which run and role a sandbox name of ours belongs to.
func ParseName(name string) (RunID, Role, bool) {
	m := ourName.FindStringSubmatch(strings.TrimSpace(name))
	if m == nil {
		return "", "", false
	}
	return RunID(m[1]), Role(m[2]), true
}
