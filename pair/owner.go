package pair

import (
	"os"
)

// Owner identifies the process that owns a lease. A process id alone is not enough: ids are reused, and a state
// folder can be shared between hosts and survives reboots.
type Owner struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // the process's start time as the system tells it; empty where it cannot
	Boot  string `json:"boot"`  // id of the system's boot; empty where there is none
	Host  string `json:"host"`
	// Machine tells machines apart that have one name and share a state folder; empty where there is no such id.
	Machine string `json:"machine,omitempty"`
	Space   string `json:"space,omitempty"` // the process-id namespace, where there is one: containers share host and boot
}

// Verdict says whether an owner lives.
type Verdict string

// The three answers about an owner.
const (
	Alive   Verdict = "alive"
	Dead    Verdict = "dead"
	Unknown Verdict = "unknown" // another host's or container's process, or no permission to look
)

// Self returns the Owner that this process is.
func Self() Owner {
	host, _ := os.Hostname() // an empty name still compares equal on this host
	pid := os.Getpid()
	start, _ := processStart(pid)
	return Owner{PID: pid, Start: start, Boot: bootID(), Host: host, Machine: machineID(), Space: pidSpace()}
}

// Check tells whether o lives. A zombie counts as dead.
func (o Owner) Check() Verdict {
	switch {
	case !o.here():
		return Unknown
	case o.Boot != bootID():
		return Dead
	case o.Space != "" && o.Space != pidSpace():
		return Unknown
	}
	start, state := processStart(o.PID)
	switch {
	case state == processGone:
		return Dead
	case state == processUnknown:
		return Unknown
	case o.Start != "" && start != o.Start:
		return Dead // the id was given to another process
	}
	return Alive
}

// here reports whether o's machine is this one, as far as can be told: the same boot, whatever it is called (a laptop's name follows
// the network that it is in), or the same name, unless two machines have it.
func (o Owner) here() bool {
	if o.Boot != "" && o.Boot == bootID() {
		return true
	}
	host, _ := os.Hostname()
	machine := machineID()
	return o.Host == host && (o.Machine == "" || machine == "" || o.Machine == machine)
}

type processState int

const (
	processThere processState = iota
	processGone               // also a zombie: it owns nothing any more
	processUnknown
)
