package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A State is where one engine keeps everything: the state folder, which outlives a boot, and the runtime folder, which
// holds sockets under a path short enough for them. Engines with different state folders know nothing of each other.
type State struct {
	Dir     string // absolute, 0700
	Runtime string // absolute, 0700, short
}

// maxSocketPath is the longest path a unix socket may have on Linux, without the final zero byte.
const maxSocketPath = 107

// longestSocket is the longest path below a runtime folder: gVisor's own socket in its folder for a sandbox.
const longestSocket = len("/00000000-0000-0000-0000-000000000000.runsc/runsc-00000000-0000.sock")

// OpenState makes the folder of the state at dir; the runtime folder comes with the daemon and goes with it. It is one that
// somebody uses already (a job must find the daemon of a login session, whose environment differs), or else "run" in the
// state folder, which outlives logins, where a socket's path allows that; else a folder under userRuntime (XDG_RUNTIME_DIR) if
// that is ours and short enough, else under /tmp. An existing folder that belongs to someone else is refused.
func OpenState(dir, userRuntime string) (*State, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	if err := ownDir(dir); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	if strings.ContainsAny(dir, ":,") { // gVisor takes the path within a list
		return nil, fmt.Errorf("state folder %s: a path with a colon or a comma cannot be used; choose another by SBX_LOCAL_STATE or XDG_STATE_HOME", dir)
	}
	if run, err := os.Readlink(runtimeLink(dir)); err == nil && notLink(run) == nil && isOurs(run) {
		return &State{Dir: dir, Runtime: run}, nil // where those are who run, whatever this process's environment says
	}
	if own := filepath.Join(dir, "run"); len(own)+longestSocket <= maxSocketPath && takesSockets(dir) {
		return &State{Dir: dir, Runtime: own}, nil
	}
	sum := sha256.Sum256([]byte(dir))
	leaf := hex.EncodeToString(sum[:4])
	var errs []error
	for _, base := range runtimeBases(userRuntime) {
		run := filepath.Join(base, leaf)
		if len(run)+longestSocket > maxSocketPath {
			continue
		}
		err := errors.Join(notLink(base), ownDir(base))
		if err == nil {
			return &State{Dir: dir, Runtime: run}, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no folder for sockets: %w", errors.Join(errs...))
}

// runtimeLink leads to the runtime folder in use.
func runtimeLink(dir string) string { return filepath.Join(dir, "runtime") }

// makeRuntime makes the runtime folder.
func (s *State) makeRuntime() error {
	if err := errors.Join(notLink(s.Runtime), ownDir(s.Runtime)); err != nil {
		return err
	}
	link := runtimeLink(s.Dir)
	if to, err := os.Readlink(link); err == nil && to == s.Runtime {
		return nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(s.Runtime, link); err != nil && !errors.Is(err, os.ErrExist) { // another was as fast
		return err
	}
	return nil
}

// dropRuntime removes the runtime folder if nothing is in it.
func (s *State) dropRuntime() {
	if os.Remove(s.Runtime) == nil {
		os.Remove(runtimeLink(s.Dir))
	}
}

// takesSockets reports whether the file system of dir holds sockets; some of those that are shared or encrypted do not.
func takesSockets(dir string) bool {
	l, err := net.Listen("unix", filepath.Join(dir, fmt.Sprintf(".probe-%d.sock", os.Getpid())))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func isOurs(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir() && ownedByUs(fi) && fi.Mode().Perm()&0o077 == 0
}

func runtimeBases(userRuntime string) []string {
	var bases []string
	if fi, err := os.Stat(userRuntime); userRuntime != "" && err == nil && fi.IsDir() && ownedByUs(fi) {
		bases = append(bases, filepath.Join(userRuntime, "sbx-local"))
	}
	return append(bases, fmt.Sprintf("/tmp/sbx-local-%d", os.Getuid()))
}

// notLink refuses a link where a folder in a place that others write to is expected.
func notLink(path string) error {
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("%s is a link", path)
	}
	return nil
}

// ownDir makes dir with mode 0700, or checks that it is a folder of ours that nobody else may enter.
func ownDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	fi, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !fi.IsDir():
		return fmt.Errorf("%s is not a folder", dir)
	case !ownedByUs(fi):
		return fmt.Errorf("%s belongs to another user", dir)
	case fi.Mode().Perm()&0o077 != 0:
		return os.Chmod(dir, 0o700)
	}
	return nil
}

func ownedByUs(fi os.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Getuid()
}

// PolicyDir is the folder of rules and of the log of decisions.
func (s *State) PolicyDir() string { return filepath.Join(s.Dir, "policy") }

// SecretsDir is the folder of the secret store.
func (s *State) SecretsDir() string { return filepath.Join(s.Dir, "secrets") }

// CADir is the folder of the proxy's certificate authority.
func (s *State) CADir() string { return filepath.Join(s.Dir, "ca") }

// DaemonSocket is the daemon's socket.
func (s *State) DaemonSocket() string { return filepath.Join(s.Runtime, "sandboxd.sock") }

// DaemonLog is the daemon's log: JSON lines, bounded.
func (s *State) DaemonLog() string { return filepath.Join(s.Dir, "sandboxd", "daemon.log") }

func (s *State) daemonLock() string { return filepath.Join(s.Dir, "sandboxd", "daemon.lock") }

// SandboxDir is the folder of the named sandbox: its record, root file system and disk.
func (s *State) SandboxDir(name string) string { return filepath.Join(s.sandboxes(), name) }

func (s *State) sandboxes() string { return filepath.Join(s.Dir, "sandboxes") }

// ProxyDir is the one folder of the host that a sandbox shares with the daemon: it holds the proxy's socket and that of
// the published ports.
func (s *State) ProxyDir(id string) string { return filepath.Join(s.Runtime, id) }

func (s *State) proxySocket(id string) string { return filepath.Join(s.ProxyDir(id), "proxy.sock") }

func (s *State) portsSocket(id string) string { return filepath.Join(s.ProxyDir(id), "ports.sock") }
