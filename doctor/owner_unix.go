//go:build unix

package doctor

import (
	"io/fs"
	"syscall"
)

// ownerOf is the number of the user to whom a file belongs.
func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
