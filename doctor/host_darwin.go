package doctor

import "golang.org/x/sys/unix"

func freeDisk(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// freeMemory counts free pages; the system gives up others when asked, so this errs towards a warning.
func freeMemory() (uint64, error) {
	pages, err := unix.SysctlUint32("vm.page_free_count")
	if err != nil {
		return 0, err
	}
	spec, err := unix.SysctlUint32("vm.page_speculative_count")
	if err != nil {
		return 0, err
	}
	pageSize, err := unix.SysctlUint32("vm.pagesize")
	if err != nil {
		return 0, err
	}
	return uint64(pages+spec) * uint64(pageSize), nil
}

// holder needs privileges on this system.
func holder(string, string) (int, string, bool) { return 0, "", false }
