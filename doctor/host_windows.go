package doctor

import "golang.org/x/sys/windows"

func freeDisk(dir string) (uint64, error) {
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free, total, all uint64
	err = windows.GetDiskFreeSpaceEx(path, &free, &total, &all)
	return free, err
}

// freeMemory is not asked on this system: x/sys has no call for it.
func freeMemory() (uint64, error) { return 0, errUnsure }

// holder is not known on this system, where the daemon listens on a named pipe.
func holder(string, string) (int, string, bool) { return 0, "", false }
