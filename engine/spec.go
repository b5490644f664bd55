package engine

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/engine/guest"
	"github.com/sbxpair/sbxpair/engine/lower"
)

// proxyURL is where programs find the proxy; process 1 forwards it to the host's socket.
const proxyURL = "http://gateway.docker.internal:3128"

// capabilities are those of gVisor's own kernel, which are not the host's: docker's default set.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP",
	"CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// capabilityBits is the same set, a bit each.
const capabilityBits = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER | 1<<unix.CAP_MKNOD | 1<<unix.CAP_SETGID |
	1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL | 1<<unix.CAP_AUDIT_WRITE

// baseEnv is the environment of every program in the sandbox, before secrets' placeholders and the user's own.
func baseEnv(r Record, ca []byte) []string {
	dir := r.Primary()
	if dir == "" {
		dir = mountlessDir
	}
	const noProxy = "localhost,127.0.0.1,::1,gateway.docker.internal"
	path := guestPath
	for _, kv := range r.ImageEnv {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = shimDir + ":" + p
		}
	}
	return []string{
		"PATH=" + path, "HOME=" + homeDir, "USER=agent", "LOGNAME=agent", "SHELL=/bin/bash", "LANG=C.UTF-8", "TERM=xterm-256color",
		"HTTP_PROXY=" + proxyURL, "HTTPS_PROXY=" + proxyURL, "http_proxy=" + proxyURL, "https_proxy=" + proxyURL,
		"NO_PROXY=" + noProxy, "no_proxy=" + noProxy,
		"SSL_CERT_FILE=" + caBundle, "NODE_EXTRA_CA_CERTS=" + caBundle, "REQUESTS_CA_BUNDLE=" + caBundle, "CURL_CA_BUNDLE=" + caBundle,
		"GIT_SSL_CAINFO=" + caBundle, "PROXY_CA_CERT_B64=" + base64.StdEncoding.EncodeToString(ca), "NODE_USE_ENV_PROXY=1",
		"JAVA_TOOL_OPTIONS=" + javaOptions,
		"WORKSPACE_DIR=" + dir, "SANDBOX_NAME=" + r.Name, "SANDBOX_ID=" + r.ID, "SANDBOX_VM_ID=" + r.Name,
		"BASH_ENV=" + persistent,
		"IS_SANDBOX=1", // agents that refuse to run as user 0 look for it
	}
}

// imageEnv is what an image may say of its programs' environment; ours goes over it.
func imageEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return !strings.Contains(kv, "=") || strings.Contains(kv, "\x00") })
}

// writeBundle writes the OCI bundle of r in its folder: root file system and config.json.
func (e *Engine) writeBundle(r Record) error {
	dir := e.State.SandboxDir(r.Name)
	root := filepath.Join(dir, "rootfs")
	mounts, binds, err := e.buildRoot(root, r)
	if err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	if err := lower.Write(e.bindsPath(r.Name), binds); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	spec := specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: []string{guest.Path, guest.Verb, "init"},
			Env:  []string{"PATH=" + guestPath, "HOME=" + homeDir, "GOMAXPROCS=2", "GOGC=50"},
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
		},
		Root:        &specs.Root{Path: root},
		Hostname:    r.Name,
		Mounts:      mounts,
		Annotations: map[string]string{"dev.gvisor.tar.rootfs.upper": e.upperTar(r.Name)},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	}
	if r.Limits == limitsCgroup {
		spec.Linux.CgroupsPath = cgroupPath(r)
		spec.Linux.Resources = resources(r, e.diskSize(r.Name))
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

// bindsPath is where the lower part of the root is noted for the process that puts it together.
func (e *Engine) bindsPath(name string) string {
	return filepath.Join(e.State.SandboxDir(name), "lower.json")
}

func (e *Engine) upperTar(name string) string {
	return filepath.Join(e.State.SandboxDir(name), "disk.tar")
}
