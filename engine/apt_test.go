package engine_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// Packages can be installed as on a machine of one's own, and stay over a stop.
func TestPackages(t *testing.T) {
	if _, err := os.Stat("/var/lib/dpkg/status"); err != nil {
		t.Skip("this host's packages are not dpkg's")
	}
	e, workspace := newEngine(t)
	r := create(t, e, "demo", workspace)
	sh(t, e, r, `set -e; mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin /tmp/p/etc; cd /tmp
printf 'Package: greet\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDepends: dpkg\nDescription: x\n' > p/DEBIAN/control
printf '#!/bin/sh\nset -e\necho ran > /var/lib/greet\n' > p/DEBIAN/postinst; chmod 755 p/DEBIAN/postinst
printf '#!/bin/sh\necho hello\n' > p/usr/bin/greet; chmod 755 p/usr/bin/greet; dpkg-deb -b p greet.deb
sudo dpkg -i greet.deb`)
	sh(t, e, r, "touch /opt/mark; dpkg -s greet | grep -q 'ok installed' && apt-get check >/dev/null && [ $(greet) = hello ]")
	if _, err := e.Stop(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	r, _, _, err := e.Ensure(t.Context(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, e, r, "greet; cat /var/lib/greet; ls /opt/mark; dpkg -s greet | grep -c 'ok installed'; sudo dpkg -r greet >/dev/null; test -e /usr/bin/greet || echo gone"); got != "hello\nran\n/opt/mark\n1\ngone" {
		t.Errorf("after a stop: %q", got)
	}
}

// apt-get installs from a package source that policy allows, by way of the proxy, and from no other.
func TestAptGet(t *testing.T) {
	if _, err := os.Stat("/usr/bin/apt-get"); err != nil {
		t.Skip("this host has no apt-get")
	}
	e, workspace := newEngine(t)
	srv := httptest.NewServer(http.FileServer(http.Dir(workspace)))
	t.Cleanup(srv.Close)
	for _, args := range [][]string{
		{"policy", "init", "deny-all"}, {"policy", "allow", "network", "packages.example.com"},
		{"create", "-q", "shell", "--name", "demo", "--resolve", "packages.example.com=" + srv.Listener.Addr().String(), workspace},
	} {
		if out, err := cli(t.Context(), e, args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	r, err := e.Get("demo")
	if err != nil {
		t.Fatal(err)
	}
	got := sh(t, e, r, `set -e; mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin
printf 'Package: greet\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDescription: x\n' > /tmp/p/DEBIAN/control
printf '#!/bin/sh\necho hello\n' > /tmp/p/usr/bin/greet; chmod 755 /tmp/p/usr/bin/greet; dpkg-deb -b /tmp/p greet.deb >/dev/null
{ cat /tmp/p/DEBIAN/control; echo "Filename: ./greet.deb"; echo "Size: $(stat -c %s greet.deb)"; echo "SHA256: $(sha256sum greet.deb | cut -d' ' -f1)"; } > Packages
rm -f /etc/apt/sources.list.d/*; echo 'deb [trusted=yes allow-insecure=yes] http://packages.example.com ./' > /etc/apt/sources.list
sudo apt-get update >/tmp/log 2>&1 && sudo DEBIAN_FRONTEND=noninteractive apt-get install -y greet >>/tmp/log 2>&1 || cat /tmp/log; greet
echo 'deb [trusted=yes allow-insecure=yes] http://other.example.com ./' > /etc/apt/sources.list
sudo apt-get update 2>&1 | grep -c '403' | sed 's/^[1-9].*/blocked/'`)
	if got != "hello\nblocked" {
		t.Errorf("got %q", got)
	}
}
