//go:build !linux && !darwin && !windows

package doctor

func freeDisk(string) (uint64, error)           { return 0, errUnsure }
func freeMemory() (uint64, error)               { return 0, errUnsure }
func holder(string, string) (int, string, bool) { return 0, "", false }
