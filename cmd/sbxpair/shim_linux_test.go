package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
)

// A shim stands where the engine's program is looked for. It counts the calls, lets one of them go wrong, and hands the
// others on: to sbx-local, or to the fake sbx, whose sandboxes then are the host itself, so that a whole run can go through.
type shim struct {
	dir string // of shim.json, calls.log, and the fake's state

	Real  string   `json:"real"`  // program of sbx-local; empty: the fake
	Guest []string `json:"guest"` // environment of commands in the fake's sandboxes
	Fault string   `json:"fault"` // one of faults, or empty
	Call  int      `json:"call"`  // the call that it befalls
}

// seenCall is one line of the shim's log.
type seenCall struct {
	N    int       `json:"n"`
	Time time.Time `json:"time"`
	Op   string    `json:"op"` // the verb
}

// asEngine makes the test binary the engine that it was started as, if it was.
func asEngine() {
	if filepath.Base(os.Args[0]) != "sbx" {
		return
	}
	s, err := readShim(filepath.Dir(os.Args[0]))
	if err != nil {
		fmt.Fprintln(os.Stderr, "shim:", err)
		os.Exit(99)
	}
	os.Exit(s.run(os.Args[1:]))
}

func readShim(dir string) (*shim, error) {
	s := &shim{dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, "shim.json"))
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	return s, err
}

// write makes the shim act as s says from the next call on, which is the first.
func (s *shim) write() error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	os.Remove(filepath.Join(s.dir, "calls.log"))
	return os.WriteFile(filepath.Join(s.dir, "shim.json"), text, 0o600)
}

// calls returns what was called since write.
func (s *shim) calls() ([]seenCall, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, "calls.log"))
	if err != nil {
		return nil, err
	}
	var list []seenCall
	for line := range bytes.Lines(text) {
		var c seenCall
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// count notes a call and returns its number.
func (s *shim) count(args []string) (int, error) {
	lock := flock.New(filepath.Join(s.dir, "lock"))
	if err := lock.Lock(); err != nil {
		return 0, err
	}
	defer lock.Unlock()
	path := filepath.Join(s.dir, "calls.log")
	have, _ := os.ReadFile(path)
	call := seenCall{bytes.Count(have, []byte("\n")) + 1, time.Now().UTC(), opOf(args)}
	line, err := json.Marshal(call)
	if err != nil {
		return 0, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	_, err = file.Write(append(line, '\n'))
	return call.N, errors.Join(err, file.Close())
}

// opOf names a call by its verbs: "create", "policy allow".
func opOf(args []string) string {
	var words []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") || len(words) == 2 {
			break
		}
		words = append(words, a)
	}
	if len(words) == 2 && !slices.Contains([]string{"policy", "secret", "daemon", "settings", "template"}, words[0]) {
		words = words[:1]
	}
	return strings.Join(words, " ")
}

const faultText = "ERROR: request failed: 500 Internal Server Error: backend unavailable\n"

func (s *shim) run(args []string) int {
	if os.Getenv("SHIM_PASS") != "" { // half called us: it is counted
		return s.pass(args)
	}
	n, err := s.count(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "shim:", err)
		return 99
	}
	if n != s.Call {
		return s.pass(args)
	}
	switch s.Fault {
	case "error":
		fmt.Fprint(os.Stderr, faultText)
		return 1
	case "done, then error":
		s.half(args, io.Discard)
		fmt.Fprint(os.Stderr, faultText)
		return 1
	case "partial output":
		var out bytes.Buffer
		code := s.half(args, &out)
		os.Stdout.Write(out.Bytes()[:out.Len()/2])
		return code
	case "hang":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
		select {
		case <-stop:
		case <-time.After(2 * time.Minute): // nothing is left of a test that failed
		}
		return 130
	case "SIGINT", "SIGTERM", "SIGHUP", "SIGKILL":
		sig := map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP, "SIGKILL": syscall.SIGKILL}[s.Fault]
		syscall.Kill(os.Getppid(), sig)
	case "daemon killed":
		if s.Real == "" {
			fmt.Fprint(os.Stderr, "ERROR: ensure daemon: daemon failed to start properly within 1m0s, check logs at: /var/log/daemon.log\n")
			return 1
		}
		for _, pid := range daemonsOf(os.Getenv("XDG_STATE_HOME")) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return s.pass(args)
}

// daemonsOf lists the daemons of sbx-local whose state is in the folder.
func daemonsOf(state string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var pids []int
	for _, file := range files {
		cmdline, _ := os.ReadFile(file)
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if bytes.Contains(cmdline, []byte("sbx-local\x00daemon")) && bytes.Contains(environ, []byte("XDG_STATE_HOME="+state)) {
			var pid int
			fmt.Sscanf(file, "/proc/%d/cmdline", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// half makes the call with its output in the shim's hands.
func (s *shim) half(args []string, out io.Writer) int {
	self, err := os.Executable()
	if err != nil {
		return 99
	}
	cmd := exec.Command(self, args...)
	cmd.Args[0] = os.Args[0]
	if s.Real != "" {
		cmd = exec.Command(s.Real, args...)
	} else {
		cmd.Env = append(os.Environ(), "SHIM_PASS=1")
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, os.Stderr
	cmd.Run()
	return cmd.ProcessState.ExitCode()
}

// pass hands the call on.
func (s *shim) pass(args []string) int {
	if s.Real != "" {
		err := syscall.Exec(s.Real, append([]string{s.Real}, args...), os.Environ())
		fmt.Fprintln(os.Stderr, "shim:", err)
		return 99
	}
	if args[0] == "exec" {
		return s.exec(args[1:])
	}
	return fake.Run(args, os.Stdin, os.Stdout, os.Stderr, append(os.Environ(), "FAKESBX_STATE="+s.dir))
}

// exec runs a command of a sandbox of the fake on the host.
func (s *shim) exec(args []string) int {
	var dir string
	var env []string
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		flag, value, inline := strings.Cut(args[0], "=")
		args = args[1:]
		if !inline && slices.Contains([]string{"-e", "--env", "-w", "--workdir", "-u", "--user"}, flag) {
			value, args = args[0], args[1:]
		}
		switch flag {
		case "-e", "--env":
			env = append(env, value)
		case "-w", "--workdir":
			dir = value
		}
	}
	box := args[0]
	if args = args[1:]; args[0] == "--" {
		args = args[1:]
	}
	state, err := fake.ReadState(s.dir)
	if err != nil {
		return 99
	}
	there := false
	for _, b := range state.Sandboxes {
		there = there || b.Name == box
	}
	if !there {
		return fake.Run(append([]string{"exec", box}, args...), os.Stdin, os.Stdout, os.Stderr, append(os.Environ(), "FAKESBX_STATE="+s.dir))
	}
	if i := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, "-A sbxpair-proof") }); i >= 0 && i+2 <= len(args) {
		return proved(args[i+2:])
	}
	if slices.Contains(args, "sbxpair-quiesce") { // the host is no sandbox: what runs on it is not the agent's
		return 0
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return 127
	}
	if dir != "" {
		if err := os.Chdir(dir); err != nil {
			return 126
		}
	}
	err = syscall.Exec(program, args, slices.Concat(s.Guest, []string{"SANDBOX_NAME=" + box}, env))
	fmt.Fprintln(os.Stderr, "shim:", err)
	return 126
}

// proved answers the questions of the proof as a pair does that is as planned.
func proved(args []string) int {
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for ; len(args) > 2; args = args[3:] { // name, address, body
		status, body := "403", "Blocked by network policy: no matching allow rule\n"
		switch name := args[0]; {
		case strings.Contains(name, "accept"), name == "may push":
			status, body = "200", ""
		case strings.HasPrefix(name, "may "):
			status, body = "422", `{"message":"Validation Failed"}`
		case strings.Contains(name, "refuses"):
			body = `{"message":"Resource not accessible by personal access token"}`
		}
		fmt.Printf("%s\t0\t%s\t%s\t\t\n", args[0], status, encode(body))
	}
	fmt.Print("-- ssh\n-- disk\n-- environ\nPATH=/usr/bin\n\n-- end\n")
	return 0
}
