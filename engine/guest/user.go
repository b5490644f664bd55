package guest

import (
	"fmt"
	"io"
	"os/user"
)

// lookupUser prints "uid gid home" of a user of the sandbox.
func lookupUser(name string, stdout io.Writer) error {
	u, err := user.Lookup(name)
	if err != nil {
		return fmt.Errorf("unable to find user %s: no matching entries in passwd file", name)
	}
	_, err = fmt.Fprintln(stdout, u.Uid, u.Gid, u.HomeDir)
	return err
}

// lookupGroup prints the number of a group of the sandbox.
func lookupGroup(name string, stdout io.Writer) error {
	g, err := user.LookupGroup(name)
	if err != nil {
		return fmt.Errorf("unable to find group %s: no matching entries in group file", name)
	}
	_, err = fmt.Fprintln(stdout, g.Gid)
	return err
}
