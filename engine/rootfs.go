package engine

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sbxpair/sbxpair/engine/guest"
	"github.com/sbxpair/sbxpair/engine/lower"
)

// The sandbox's fixed places.
const (
	homeDir      = "/home/agent"
	shimDir      = "/etc/sbx/bin"
	caBundle     = "/etc/ssl/certs/ca-certificates.crt"
	caCert       = "/etc/sbx/proxy-ca.crt"
	guestPath    = shimDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	persistent   = "/etc/sandbox-persistent.sh"
	mountlessDir = homeDir + "/workspace"
)

// hostEtc is what a sandbox gets of the host's /etc: how programs find each other and words for numbers, nothing about
// this host or its users. Patterns are relative to /etc; only files that everyone may read are taken.
var hostEtc = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d/*", "localtime", "timezone", "mime.types", "magic", "services",
	"protocols", "rpc", "os-release", "lsb-release", "debian_version", "redhat-release", "alpine-release", "inputrc", "gai.conf",
	"locale.alias", "shells", "login.defs", "fonts/*", "fonts/conf.d/*", "python3*/*", "java-*/*", "java-*/*/*", "perl/*", "perl/*/*",
	"ssl/openssl.cnf", "pki/tls/openssl.cnf",
	"apt/sources.list", "apt/sources.list.d/*", "apt/trusted.gpg.d/*", "apt/keyrings/*", "dpkg/*", "dpkg/*/*", "debconf.conf",
}

// hostBundles are the places where distributions keep the bundle of trusted certificates.
var hostBundles = []string{caBundle, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// maxHostFile bounds a file taken from the host's /etc.
const maxHostFile = 4 << 20

// buildRoot makes the skeleton root in root, folders and links only, and returns what gVisor mounts over it and what is
// bound below its writable layer. The rest of the root comes from the disk's archive; see [Engine.writeDisk].
func (e *Engine) buildRoot(root string, r Record) ([]specs.Mount, []lower.Bind, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, nil, err
	}
	own := []string{
		"run/lock", "proc", "sys", "dev",
		"tmp/.X11-unix", // gVisor puts a tmpfs of its own, in memory, on a /tmp that is empty: this keeps it on the disk
	}
	if r.Image == "" {
		own = append(own, "etc", "home/agent/workspace", "root", "var/tmp", "var/log", "var/cache", "var/lib", "mnt", "media", "srv")
	}
	for _, dir := range own {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, nil, err
		}
	}
	if r.Image == "" {
		if err := link("../run", filepath.Join(root, "var/run")); err != nil {
			return nil, nil, err
		}
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "nodev", "noexec"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid"}},
	}
	bind := func(source, path string, file bool, options ...string) error {
		mounts = append(mounts, specs.Mount{Destination: path, Type: "bind", Source: source, Options: append(options, "nosuid", "nodev")})
		return mountPoint(filepath.Join(root, path), file)
	}
	for _, w := range r.Workspaces {
		mode := "rw"
		if w.ReadOnly {
			mode = "ro"
		}
		if err := bind(w.Source, w.Path, w.File, "rbind", mode); err != nil {
			return nil, nil, err
		}
	}
	if r.Clone != nil {
		if err := bind(r.Clone.Source, CloneSource, false, "rbind", "ro"); err != nil {
			return nil, nil, err
		}
	}
	if err := bind(e.State.ProxyDir(r.ID), guest.ProxyDir, false, "rbind", "ro", "noexec"); err != nil {
		return nil, nil, err
	}
	// The one file is bound, not its folder: the sandbox sees this program and nothing beside it.
	if err := bind(e.Self, guest.Path, true, "bind", "ro"); err != nil {
		return nil, nil, err
	}
	var binds []lower.Bind
	var err error
	if r.Image != "" {
		binds, err = imageBinds(e.State.imageRoot(r.Image), root, mounts)
	} else {
		binds, err = hostBinds(root)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range []string{"tmp", "var/tmp", "run/lock"} {
		if err := os.Chmod(filepath.Join(root, dir), 0o777|fs.ModeSticky); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
	return mounts, binds, nil
}

// ownDirs are the folders of a root that are never an image's.
var ownDirs = []string{"proc", "sys", "dev", "tmp", "run"}

// imageBinds shows the image's folders and files in the skeleton. Where something is mounted below a folder, the folder is
// the skeleton's own, so that no link of the image is on the way to a mount point: on the host it would lead anywhere.
func imageBinds(src, root string, mounts []specs.Mount) ([]lower.Bind, error) {
	var binds []lower.Bind
	var place func(rel string) error
	place = func(rel string) error {
		entries, err := os.ReadDir(filepath.Join(src, rel))
		if err != nil {
			return err
		}
		for _, en := range entries {
			rel := filepath.Join(rel, en.Name())
			if slices.Contains(ownDirs, rel) {
				continue
			}
			from, to := filepath.Join(src, rel), filepath.Join(root, rel)
			under := slices.ContainsFunc(mounts, func(m specs.Mount) bool { return below(m.Destination, "/"+rel) })
			exact := slices.ContainsFunc(mounts, func(m specs.Mount) bool { return m.Destination == "/"+rel })
			switch {
			case exact || under && !en.IsDir():
			case under:
				if err := place(rel); err != nil {
					return err
				}
			case en.IsDir():
				if err := os.Mkdir(to, 0o755); err != nil {
					return err
				}
				binds = append(binds, lower.Bind{Source: from, Target: to})
			case en.Type()&fs.ModeSymlink != 0:
				target, err := os.Readlink(from)
				if err != nil {
					return err
				}
				if err := os.Symlink(target, to); err != nil {
					return err
				}
			case en.Type().IsRegular():
				if err := os.WriteFile(to, nil, 0o644); err != nil {
					return err
				}
				binds = append(binds, lower.Bind{Source: from, Target: to})
			}
		}
		return nil
	}
	return binds, place("")
}

// hostDirs are the folders of the host that a sandbox without an image sees, below its writable layer: its programs, the links
// that choose between them, and the list of the packages that they came with, so that others can be installed over them.
var hostDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc/alternatives", "/var/lib/dpkg"}

// hostBinds makes the links of a merged /usr and lists what is a folder.
func hostBinds(root string) ([]lower.Bind, error) {
	var binds []lower.Bind
	for _, dir := range hostDirs {
		fi, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(dir)
			if err != nil {
				return nil, err
			}
			if err := link(target, filepath.Join(root, dir)); err != nil {
				return nil, err
			}
		case fi.IsDir():
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return nil, err
			}
			binds = append(binds, lower.Bind{Source: dir, Target: filepath.Join(root, dir)})
		}
	}
	return binds, nil
}

func mountPoint(path string, file bool) error {
	if !file {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

func link(target, path string) error {
	if err := os.Symlink(target, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// A tree is the content of a new sandbox's disk, by path: /etc, in one archive that gVisor unpacks in its own memory. That
// costs a tenth of what making some hundred files on the host and removing them again does.
type tree map[string]entry

type entry struct {
	mode fs.FileMode // with the type bits of folders and links
	data []byte
	link string
}

// add puts in an entry and the folders above it.
func (t tree) add(path string, en entry) {
	t[path] = en
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		if _, ok := t[dir]; !ok {
			t[dir] = entry{mode: fs.ModeDir | 0o755}
		}
	}
}

// write packs the tree: gVisor wants the header of every folder, the root's too.
func (t tree) write(w io.Writer) error {
	tw := tar.NewWriter(w)
	if err := t.entries(tw, map[string]bool{}); err != nil {
		return err
	}
	return tw.Close()
}

// entries writes what is not there yet, folders before what is in them.
func (t tree) entries(tw *tar.Writer, have map[string]bool) error {
	t["."] = entry{mode: fs.ModeDir | 0o755}
	now := time.Now().Truncate(time.Second)
	for _, path := range slices.Sorted(maps.Keys(t)) {
		if have[path] {
			continue
		}
		en := t[path]
		h := &tar.Header{Name: "./" + path, Mode: int64(en.mode.Perm()), ModTime: now, Typeflag: tar.TypeReg, Size: int64(len(en.data)), Linkname: en.link}
		switch {
		case en.mode.IsDir():
			h.Typeflag = tar.TypeDir
			if h.Name = "./" + path + "/"; path == "." {
				h.Name = "./"
			}
		case en.mode&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(en.data); err != nil {
			return err
		}
	}
	return nil
}

// writeDisk writes the archive from which the sandbox first starts. ca is the proxy's certificate (PEM), from the disk of
// the sandbox's template, or nil.
func (e *Engine) writeDisk(r Record, ca []byte, from io.Reader) error {
	t := tree{}
	if err := e.fill(t, r, ca, from != nil); err != nil {
		return err
	}
	f, err := os.OpenFile(e.upperTar(r.Name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 256<<10)
	if from != nil {
		err = t.mergeDisk(w, bufio.NewReaderSize(from, 256<<10))
	} else {
		err = t.write(w)
	}
	return errors.Join(err, w.Flush(), f.Close())
}

// fill adds the sandbox's own files. Over a saved disk those are what tells one sandbox from another; the rest is saved.
func (e *Engine) fill(t tree, r Record, ca []byte, saved bool) error {
	bundle, err := certificates(ca)
	if err != nil {
		return err
	}
	var img *os.Root
	if r.Image != "" {
		if img, err = os.OpenRoot(e.State.imageRoot(r.Image)); err != nil {
			return fmt.Errorf("image: %w", err)
		}
		defer img.Close()
		if data := readImage(img, strings.TrimPrefix(caBundle, "/")); data != nil {
			bundle = append(append(data, '\n'), ca...)
		}
	}
	t.addIdentity(r, ca, bundle)
	switch {
	case saved:
	case img != nil:
		t.addImage(img)
	default:
		if err := t.addHostEtc(); err != nil {
			return err
		}
		t.addEtc()
		t.addPackaging()
	}
	return nil
}

// readImage reads a file of an image, or nil: links may lead nowhere but inside.
func readImage(img *os.Root, name string) []byte {
	f, err := img.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxHostFile))
	if err != nil {
		return nil
	}
	return data
}

// addImage adds the user agent, and the places that it is promised, to an image.
func (t tree) addImage(img *os.Root) {
	shell := "/bin/sh"
	if fi, err := img.Stat("bin/bash"); err == nil && fi.Mode().IsRegular() {
		shell = "/bin/bash"
	}
	t.add("etc/passwd", entry{mode: 0o644, data: append([]byte("agent:x:0:0:agent:"+homeDir+":"+shell+"\n"), readImage(img, "etc/passwd")...)})
	t.add("etc/group", entry{mode: 0o644, data: append([]byte("agent:x:0:\n"), readImage(img, "etc/group")...)})
	t.add(strings.TrimPrefix(mountlessDir, "/"), entry{mode: fs.ModeDir | 0o755})
	t.add(strings.TrimPrefix(persistent, "/"), entry{mode: 0o644})
}

func (t tree) addHostEtc() error {
	for _, pattern := range hostEtc {
		matches, err := filepath.Glob("/etc/" + pattern)
		if err != nil {
			return err
		}
		for _, src := range matches {
			if err := t.addHostFile(src); err != nil {
				return err
			}
		}
	}
	return nil
}

// addHostFile takes a link as a link and a file that everyone may read as a file; anything else is left out.
func (t tree) addHostFile(src string) error {
	fi, err := os.Lstat(src)
	if err != nil {
		return nil // gone between the listing and now
	}
	path := strings.TrimPrefix(src, "/")
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(src)
		if err != nil {
			return err
		}
		t.add(path, entry{mode: fi.Mode(), link: target})
	case fi.Mode().IsRegular() && fi.Mode().Perm()&0o004 != 0 && fi.Size() <= maxHostFile:
		data, err := os.ReadFile(src)
		if err != nil {
			return err
		}
		if strings.HasPrefix(path, "etc/apt/") && urlPassword.Match(data) {
			return nil
		}
		t.add(path, entry{mode: fi.Mode().Perm() & 0o755, data: data})
	}
	return nil
}

// urlPassword finds a credential in the address of a package source.
var urlPassword = regexp.MustCompile(`://[^/\s]*@`)

// addPackaging adds what lets the host's package tool install over the host's packages: the ownerships that packages ask
// for name users that are not here, and no service is to be started.
func (t tree) addPackaging() {
	if fi, err := os.Stat("/var/lib/dpkg"); err != nil || !fi.IsDir() {
		return
	}
	for _, name := range []string{"statoverride", "lock", "lock-frontend", "triggers/Lock"} { // the locks are unreadable for all but the host's root
		t.add("var/lib/dpkg/"+name, entry{mode: 0o640})
	}
	t.add("usr/sbin/policy-rc.d", entry{mode: 0o755, data: []byte("#!/bin/sh\nexit 101\n")})
	t.add("etc/apt/apt.conf.d/90sandbox", entry{mode: 0o644, data: []byte("APT::Sandbox::User \"root\";\nDPkg::Options:: \"--force-confold\";\n")})
	t.add("etc/apt/preferences.d", entry{mode: fs.ModeDir | 0o755})
}

// addIdentity adds what makes the sandbox this one: its names, its proxy's certificate, and our programs.
func (t tree) addIdentity(r Record, ca, bundle []byte) {
	t.add("etc/hostname", entry{mode: 0o644, data: []byte(r.Name + "\n")})
	t.add("etc/hosts", entry{mode: 0o644, data: []byte("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\tgateway.docker.internal host.docker.internal\n127.0.0.1\t" + r.Name + "\n")})
	t.add("etc/resolv.conf", entry{mode: 0o644})
	t.add("etc/sbx/bin/sudo", entry{mode: 0o755, data: []byte(sudoShim)})
	t.add(strings.TrimPrefix(caCert, "/"), entry{mode: 0o644, data: ca})
	t.add(strings.TrimPrefix(caBundle, "/"), entry{mode: 0o644, data: bundle})
	t.add(strings.TrimPrefix(javaTrust, "/"), entry{mode: 0o644, data: javaKeyStore(bundle)})
}

// addEtc adds the generated part of /etc. The user agent is user 0 of gVisor's own kernel: a rootless sandbox has one
// user only, and so files in the workspace belong to the user who made the sandbox.
func (t tree) addEtc() {
	for name, text := range map[string]string{
		"passwd":                "agent:x:0:0:agent:" + homeDir + ":/bin/bash\nroot:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":                 "agent:x:0:\nroot:x:0:\nsudo:x:27:agent\nnogroup:x:65534:\n",
		"nsswitch.conf":         "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\n",
		"fstab":                 "",
		"environment":           "",
		"profile":               "export PATH=\"" + guestPath + "${PATH:+:$PATH}\"\nif [ -n \"$BASH_VERSION\" ]; then . /etc/bash.bashrc; fi\n",
		"bash.bashrc":           "[ -f " + persistent + " ] && . " + persistent + "\ncase $- in *i*) PS1='\\u@\\h:\\w\\$ ';; esac\n",
		"sandbox-persistent.sh": "",
	} {
		t.add(filepath.Join("etc", name), entry{mode: 0o644, data: []byte(text)})
	}
	t.add("etc/shadow", entry{mode: 0o640, data: []byte("agent:*:19000:0:99999:7:::\nroot:*:19000:0:99999:7:::\n")})
}

// sudoShim stands in for sudo: the user is user 0 already, so it drops sudo's options and runs the rest.
const sudoShim = `#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    -u|-g|-U|-h|-p|-C|-T|-r|-t|-D|-R) shift; [ $# -gt 0 ] && shift ;;
    --) shift; break ;;
    -i|-s) shift; [ $# -gt 0 ] || exec "${SHELL:-/bin/sh}" ;;
    -*) shift ;;
    *=*) export "$1"; shift ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || exit 0
exec "$@"
`

// certificates is the host's bundle of trusted certificates and the proxy's own.
func certificates(ca []byte) ([]byte, error) {
	for _, path := range hostBundles {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("trusted certificates: %w", err)
		}
		return append(append(data, '\n'), ca...), nil
	}
	return ca, nil // a host with no bundle trusts nobody; neither does its sandbox, but the proxy
}
