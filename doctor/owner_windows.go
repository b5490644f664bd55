package doctor

import "io/fs"

// ownerOf is not asked: what a program writes belongs to its user on this system.
func ownerOf(fs.FileInfo) (int, bool) { return 0, false }
