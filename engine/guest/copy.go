package guest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sbxpair/sbxpair/engine/tarball"
)

// put unpacks the archive on stdin at dst, as docker cp decides: into dst if that is a folder, else as dst.
func put(dst, base string, contents bool, stdin io.Reader) error {
	r, err := tarball.NewReader(stdin)
	if err != nil {
		return err
	}
	return tarball.Place(r, dst, base, contents)
}

// get packs the file or folder at src to stdout. follow packs what a link at src leads to.
// What was left out is said on stderr.
func get(src string, follow bool, stdout, stderr io.Writer) error {
	if follow {
		real, err := filepath.EvalSymlinks(strings.TrimSuffix(src, "/."))
		if err != nil {
			return err
		}
		src = real
	}
	if _, err := os.Lstat(src); err != nil {
		return fmt.Errorf("could not find the file %s", src)
	}
	left, err := tarball.Write(stdout, src)
	if err == nil {
		fmt.Fprint(stderr, left)
	}
	return err
}
