//go:build !linux

package workspace

// limitMemory leaves it at git's own bound of a single allocation.
func limitMemory(int) {}
