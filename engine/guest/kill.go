package guest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killPasses bounds the search: a tree that forks faster than we kill is left to the sandbox's end.
const killPasses = 50

// killTree kills the processes that an exec started: root, all its descendants, whatever shares a session with one of
// them, and whatever carries the exec's mark. It looks again until a pass finds nothing new alive. root is 0 where nobody
// knows it: then the mark alone leads to them.
func killTree(proc, mark string, root int) error {
	self := os.Getpid()
	known := map[int]bool{root: true}
	for range killPasses {
		procs, err := readProcs(proc, mark)
		if err != nil {
			return err
		}
		grow(procs, known)
		alive := 0
		for _, p := range procs {
			if p.pid == self || p.pid == 1 || !known[p.pid] || p.zombie {
				continue
			}
			alive++
			if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		if alive == 0 {
			return nil
		}
		time.Sleep(2 * time.Millisecond)
	}
	return errors.New("guest: processes keep appearing")
}

type process struct {
	pid, parent, session int
	zombie, marked       bool
}

// grow adds to known what belongs to it, until nothing is added. Parent 0 is nobody's: every program that was started from
// outside has it, those of other execs too.
func grow(procs []process, known map[int]bool) {
	sessions := map[int]bool{}
	child := func(p process) bool { return p.parent > 0 && known[p.parent] }
	for grew := true; grew; {
		grew = false
		for _, p := range procs {
			if p.pid == 1 || p.pid == os.Getpid() {
				continue
			}
			if !known[p.pid] && (p.marked || child(p) || sessions[p.session]) {
				known[p.pid] = true
			}
			if known[p.pid] && !sessions[p.session] {
				sessions[p.session] = true
				grew = true
			}
		}
		for _, p := range procs {
			if p.pid != 1 && p.pid != os.Getpid() && !known[p.pid] && (child(p) || sessions[p.session]) {
				known[p.pid], grew = true, true
			}
		}
	}
}

func readProcs(proc, mark string) ([]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	want := []byte(Mark + "=" + mark + "\x00")
	var procs []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil {
			continue // gone meanwhile
		}
		p, ok := parseStat(pid, string(stat))
		if !ok {
			continue
		}
		env, err := os.ReadFile(filepath.Join(proc, e.Name(), "environ"))
		p.marked = err == nil && mark != "" && bytes.Contains(append(append([]byte{0}, env...), 0), append([]byte{0}, want...))
		procs = append(procs, p)
	}
	return procs, nil
}

// parseStat reads /proc/PID/stat: "pid (name) state ppid pgrp session …", where the name may hold anything.
func parseStat(pid int, stat string) (process, bool) {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return process{}, false
	}
	f := strings.Fields(stat[i+1:])
	if len(f) < 4 {
		return process{}, false
	}
	parent, err1 := strconv.Atoi(f[1])
	session, err2 := strconv.Atoi(f[3])
	return process{pid: pid, parent: parent, session: session, zombie: f[0] == "Z"}, err1 == nil && err2 == nil
}
