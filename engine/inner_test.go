package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestWorkspaceRefused(t *testing.T) {
	home := t.TempDir()
	project := filepath.Join(home, "project")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(project, "notes.txt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sneaky := filepath.Join(project, "etc")
	if err := os.Symlink("/etc", sneaky); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(home, "work", "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	e := &Engine{State: &State{Dir: state, Runtime: "/tmp/sbx-local-test-runtime"}, Home: home}
	for path, ok := range map[string]bool{
		project: true,
		"/":     false, "/etc": false, "/etc/ssl": false, "/usr/share": false, "/proc/self": false, "/dev": false, "/root": false, "/home": false, "/var": false,
		"/tmp": false, home: false, filepath.Dir(home): false, state: false, filepath.Dir(state): false, filepath.Join(state, "x"): false,
		sneaky: false, file: false, filepath.Join(home, "missing"): false,
	} {
		_, err := e.checkWorkspaces([]Workspace{{Path: path}})
		if (err == nil) != ok {
			t.Errorf("workspace %s: error %v, want ok %v", path, err, ok)
		}
		if _, typed := errors.AsType[*WorkspaceError](err); err != nil && !typed {
			t.Errorf("workspace %s: error %T, want *WorkspaceError", path, err)
		}
	}
	if _, err := e.checkWorkspaces([]Workspace{{Path: project, ReadOnly: true}}); err == nil {
		t.Error("a read-only primary workspace was accepted")
	}
	got, err := e.checkWorkspaces([]Workspace{{Path: project}, {Path: file, ReadOnly: true}})
	if err != nil || !got[1].File {
		t.Errorf("a read-only file beside the primary: %v, %v", got, err)
	}
	if _, err := e.checkWorkspaces([]Workspace{{Path: project}, {Path: project}}); err == nil {
		t.Error("the same workspace twice was accepted")
	}
}

func TestParseWorkspace(t *testing.T) {
	for arg, want := range map[string]Workspace{
		"/a/b": {Path: "/a/b"}, "/a/b:ro": {Path: "/a/b", ReadOnly: true}, "/a/b:readonly": {Path: "/a/b", ReadOnly: true},
		".": {Path: "/cwd"}, "x/../y/": {Path: "/cwd/y"}, "/a:b": {Path: "/a:b"},
	} {
		if got := ParseWorkspace(arg, "/cwd"); got != want {
			t.Errorf("ParseWorkspace(%q) = %+v, want %+v", arg, got, want)
		}
	}
}

// The disk holds nothing of the host's users, and every folder comes before what is in it.
func TestDiskArchive(t *testing.T) {
	e := &Engine{State: &State{Dir: t.TempDir(), Runtime: t.TempDir()}}
	r := Record{Name: "demo", ID: uuid.NewString()}
	if err := os.MkdirAll(e.State.SandboxDir("demo"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := e.writeDisk(r, []byte("PROXY CA\n"), nil); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(e.upperTar("demo"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	var order []string
	for tr := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if dir := filepath.Dir(strings.TrimSuffix(h.Name, "/")); h.Name != "./" && !slices.Contains(order, "./"+strings.TrimPrefix(dir+"/", "./")) {
			t.Errorf("%s comes before its folder", h.Name)
		}
		order = append(order, h.Name)
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
	hostPasswd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	if got := files["./etc/passwd"]; !strings.HasPrefix(got, "agent:x:0:0:agent:/home/agent:") || got == string(hostPasswd) {
		t.Errorf("passwd = %q", got)
	}
	if got := files["./etc/hosts"]; !strings.Contains(got, "127.0.0.1\tgateway.docker.internal host.docker.internal") {
		t.Errorf("hosts = %q", got)
	}
	if got, ok := files["./etc/resolv.conf"]; !ok || got != "" {
		t.Errorf("resolv.conf = %q, %v; want an empty file", got, ok)
	}
	if !strings.HasSuffix(files["./etc/ssl/certs/ca-certificates.crt"], "PROXY CA\n") {
		t.Error("the bundle lacks the proxy's certificate")
	}
	for name := range files {
		for _, bad := range []string{"ssh", "gshadow", "machine-id", "sudoers", "krb5", "ssl/private"} {
			if strings.Contains(name, bad) {
				t.Errorf("%s is on the disk", name)
			}
		}
	}
}

// What an image says of links is never followed on the host, not even on the way to a mount point.
func TestImageBinds(t *testing.T) {
	img, root, host := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{"usr/bin", "srv/a/b", "srv/c", "proc/x"} {
		if err := os.MkdirAll(filepath.Join(img, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Symlink(host, filepath.Join(img, "data")), os.Symlink(host, filepath.Join(img, "srv/a/x")), os.Symlink("usr/bin", filepath.Join(img, "bin")),
		os.WriteFile(filepath.Join(img, "init"), nil, 0o755), os.WriteFile(filepath.Join(img, "srv/f"), nil, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	mounts := []specs.Mount{{Destination: "/data/project"}, {Destination: "/srv/a/x/y"}}
	for _, m := range mounts {
		if err := mountPoint(filepath.Join(root, m.Destination), false); err != nil {
			t.Fatal(err)
		}
	}
	binds, err := imageBinds(img, root, mounts)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range binds {
		got = append(got, strings.TrimPrefix(b.Source, img)+" "+strings.TrimPrefix(b.Target, root))
	}
	slices.Sort(got)
	if want := []string{"/init /init", "/srv/a/b /srv/a/b", "/srv/c /srv/c", "/srv/f /srv/f", "/usr /usr"}; !slices.Equal(got, want) {
		t.Errorf("binds %q, want %q", got, want)
	}
	for _, dir := range []string{"data", "data/project", "srv/a/x"} {
		if fi, err := os.Lstat(filepath.Join(root, dir)); err != nil || !fi.IsDir() {
			t.Errorf("%s is no folder of the skeleton: %v", dir, err)
		}
	}
	if left, err := os.ReadDir(host); err != nil || len(left) > 0 {
		t.Errorf("written on the host: %v, %v", left, err)
	}
}

func TestNamespaceError(t *testing.T) {
	for setting, want := range map[string]string{
		"/proc/sys/user/max_user_namespaces=0":                     "max_user_namespaces",
		"/proc/sys/kernel/unprivileged_userns_clone=0":             "unprivileged_userns_clone",
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns=1": "AppArmor",
		"/proc/sys/kernel/nothing=1":                               "operation not permitted",
	} {
		name, value, _ := strings.Cut(setting, "=")
		err := namespaceError("operation not permitted", func(path string) string {
			if path == name {
				return value
			}
			return ""
		})
		iso, ok := errors.AsType[*IsolationError](err)
		if !ok || !strings.Contains(iso.Cause, want) || iso.Remedy == "" {
			t.Errorf("%s: %v, want a cause with %q and a remedy", setting, err, want)
		}
	}
}

// Both versions of cgroups, on trees of files: what is asked of the kernel, what is said when it refuses, and that nothing
// is left.
func TestCgroups(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string // "/" at the end: a folder
		want  string
		left  string // in cgroup.subtree_control
	}{
		"v1":                   {map[string]string{"cpu/": "", "memory/": "", "pids/": ""}, "cgroup", ""},
		"v1 without pids":      {map[string]string{"cpu/": "", "memory/": ""}, "none: this machine has no cgroup controller for pids", ""},
		"v1, not ours":         {map[string]string{"cpu/": "", "memory/": "", "pids": ""}, "none: cgroups are not writable for this user", ""},
		"v2":                   {map[string]string{"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.subtree_control": ""}, "cgroup", "+cpuset +cpu +io +memory +pids"},
		"v2 without memory":    {map[string]string{"cgroup.controllers": "cpu pids\n", "cgroup.subtree_control": ""}, "none: this machine has no cgroup controller for memory", ""},
		"v2, not handed down":  {map[string]string{"cgroup.controllers": "cpu memory pids\n", "cgroup.subtree_control/": ""}, "none: cgroup controllers cannot be handed down (is a directory)", ""},
		"nothing at the place": {map[string]string{}, "none: this machine has no cgroup controller for cpu", ""},
	} {
		root := t.TempDir()
		for path, text := range tt.files {
			full := filepath.Join(root, path)
			make := func() error { return os.WriteFile(full, []byte(text), 0o644) }
			if strings.HasSuffix(path, "/") {
				make = func() error { return os.Mkdir(full, 0o755) }
			}
			if err := make(); err != nil {
				t.Fatal(err)
			}
		}
		if got := tryCgroups(root); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if data, _ := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); string(data) != tt.left {
			t.Errorf("%s: %q was written, want %q", name, data, tt.left)
		}
		if left, _ := filepath.Glob(root + "/*/*"); len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
		// What gVisor makes of the sandbox's path in either version, and what it leaves when it is killed.
		r := Record{ID: uuid.NewString(), Limits: limitsCgroup}
		groups := []string{root + cgroupPath(r), root + "/memory" + cgroupPath(r), root + "/pids" + cgroupPath(r)}
		for _, g := range groups {
			os.MkdirAll(g, 0o755) // where a file is in the way there is nothing to remove
		}
		if err := removeCgroups(t.Context(), root, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, g := range groups {
			if fi, err := os.Lstat(g); err == nil && fi.IsDir() {
				t.Errorf("%s: %s is left", name, g)
			}
		}
	}
	r := Record{MemoryMiB: 512, CPUs: 2, Pids: 100}
	if got := resources(r, 0); *got.Memory.Limit != 512<<20 || got.Pids.Limit != 100 || *got.CPU.Quota != 200_000 || *got.CPU.Period != 100_000 {
		t.Errorf("resources of %+v: %+v", r, got)
	}
	if got := *resources(r, 100<<20).Memory.Limit; got != 812<<20 { // a disk is held in memory while it is read in
		t.Errorf("with a disk of 100 MiB: %d MiB, want 812", got>>20)
	}
	if got, most := *resources(r, 1<<50).Memory.Limit, int64(512+hostMemoryMiB()/2)<<20; got > most+1<<20 {
		t.Errorf("with a disk of a PiB: %d, want at most %d", got, most)
	}
	limit := filepath.Join(t.TempDir(), "memory", cgroupPath(r), "memory.limit_in_bytes")
	if err := errors.Join(os.MkdirAll(filepath.Dir(limit), 0o755), os.WriteFile(limit, []byte("1048576\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	r.Limits = limitsCgroup
	takeBack := lendMemory(filepath.Dir(filepath.Dir(filepath.Dir(limit))), r)
	lent, _ := os.ReadFile(limit)
	takeBack()
	if back, err := os.ReadFile(limit); err != nil || string(back) != "1048576\n" || len(lent) <= len("1048576") {
		t.Errorf("lent %s, then back to %s (%v)", lent, back, err)
	}
}

func TestLaunchFailure(t *testing.T) {
	const prefix = "OCI runtime exec failed: exec failed: unable to start container process: "
	for _, tt := range []struct{ words, name, want string }{
		{`error finding executable "no-such-program" in PATH [/bin]: no such file or directory`, "no-such-program", prefix + `exec: "no-such-program": executable file not found in $PATH`},
		{`failed to load /x/y: no such file or directory`, "/x/y", prefix + `exec: "/x/y": stat /x/y: no such file or directory`},
		{`failed to find initial working directory "/gone": no such file or directory`, "ls", prefix + `chdir to cwd ("/gone") set in config.json failed: no such file or directory`},
		{`failed to load /etc/passwd: permission denied`, "/etc/passwd", prefix + `exec: "/etc/passwd": permission denied`},
	} {
		err := launchFailure(tt.words, tt.name, "/gone")
		if launch, ok := errors.AsType[*LaunchError](err); !ok || launch.Text != tt.want {
			t.Errorf("launchFailure(%q) = %v, want %q", tt.words, err, tt.want)
		}
	}
}

func TestMergeEnv(t *testing.T) {
	got := mergeEnv([]string{"A=1", "B=2"}, []string{"A=3"}, []string{"C=4", "B="})
	if want := []string{"A=3", "B=", "C=4"}; !slices.Equal(got, want) {
		t.Errorf("mergeEnv = %q, want %q", got, want)
	}
}

// short is a folder with a path short enough for those of sockets.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Where paths are short enough, sockets are in the state folder: a login session's own folder ends with the session.
func TestStateRuntimeOutlivesLogins(t *testing.T) {
	dir := short(t)
	st, err := OpenState(dir, short(t))
	if err != nil || st.Runtime != filepath.Join(dir, "run") {
		t.Errorf("%+v, %v; want run in the state folder", st, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A runtime folder in use is found by a process with another environment; one that is gone is not.
func TestStateRuntimeInUse(t *testing.T) {
	dir, session := filepath.Join(t.TempDir(), strings.Repeat("long", 10)), short(t)
	first, err := OpenState(dir, session)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.makeRuntime(); err != nil {
		t.Fatal(err)
	}
	if job, err := OpenState(dir, ""); err != nil || job.Runtime != first.Runtime || !strings.HasPrefix(job.Runtime, session) {
		t.Errorf("a job has %+v, %v; want %s", job, err, first.Runtime)
	}
	first.dropRuntime()
	job, err := OpenState(dir, "")
	if err != nil || strings.HasPrefix(job.Runtime, session) {
		t.Fatalf("after its end: %+v, %v", job, err)
	}
	t.Cleanup(func() { os.Remove(job.Runtime) })
	if err := job.makeRuntime(); err != nil {
		t.Fatal(err)
	}
	if again, err := OpenState(dir, session); err != nil || again.Runtime != job.Runtime {
		t.Errorf("the session has %+v, %v; want %s", again, err, job.Runtime)
	}
}

// A state folder whose path gVisor would take for a list is refused before anything is made.
func TestStatePath(t *testing.T) {
	for _, name := range []string{"a,b", "a:b"} {
		_, err := OpenState(filepath.Join(t.TempDir(), name), "")
		if err == nil || !strings.Contains(err.Error(), "colon or a comma") || !strings.Contains(err.Error(), "SBX_LOCAL_STATE") {
			t.Errorf("%s: %v, want a refusal that says what to do", name, err)
		}
	}
}

// Sockets have short paths, however long the state's own is; a runtime folder that is not ours is not used.
func TestStateRuntime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30), "state")
	st, err := OpenState(dir, filepath.Join(t.TempDir(), strings.Repeat("x", 90)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(st.Runtime) })
	if err := st.makeRuntime(); err != nil {
		t.Fatal(err)
	}
	if n := len(st.proxySocket(uuid.NewString())); n > maxSocketPath {
		t.Errorf("socket path of %d bytes", n)
	}
	for _, d := range []string{st.Dir, st.Runtime} {
		if fi, err := os.Stat(d); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v; want mode 0700", d, fi.Mode(), err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("foreign folders can be made by root only")
	}
	foreign := filepath.Join(t.TempDir(), "state")
	if err := errors.Join(os.Mkdir(foreign, 0o700), os.Chown(foreign, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(foreign, ""); err == nil {
		t.Error("a state folder of another user was accepted")
	}
}

func TestLogFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "daemon.log")
	l, err := OpenLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := bytes.Repeat([]byte("x"), 64<<10)
	for range 3 * logLimit / len(line) {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	var total int64
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		fi, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		total += fi.Size()
	}
	if len(files) != 2 || total > 2*logLimit {
		t.Errorf("%d files of %d bytes, want 2 of at most %d", len(files), total, 2*logLimit)
	}
}

// A lock holds across engines of one state and ends with its context.
func TestLock(t *testing.T) {
	st := &State{Dir: t.TempDir()}
	a, b := &Engine{State: st}, &Engine{State: st}
	unlock, err := a.lock(t.Context(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.lock(ctx, "demo"); err == nil {
		t.Fatal("the lock was given twice")
	}
	unlock()
	unlock, err = b.lock(t.Context(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// The daemon outlives the command that started it, so it does not keep that one's credentials.
func TestWithoutCredentials(t *testing.T) {
	keep := []string{"PATH=/bin", "HOME=/home/dev", "SBX_LOCAL_STATE=/s", "HTTPS_PROXY=http://proxy:1", "DBUS_SESSION_BUS_ADDRESS=unix:path=/x", "OP_ACCOUNT=me", "EMPTY="}
	drop := []string{"GH_TOKEN=x", "GITHUB_TOKEN=", "AWS_SECRET_ACCESS_KEY=x", "OPENAI_API_KEY=x", "DB_PASSWORD=x", "MINE=ghp_" + strings.Repeat("a1B2", 9)}
	if got := withoutCredentials(slices.Concat(drop, keep)); !slices.Equal(got, keep) {
		t.Errorf("kept %q, want %q", got, keep)
	}
}
