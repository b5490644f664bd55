// Package pair holds a pair of sandboxes and its life: the lease that is written before anything exists, the names
// that follow from the run id, the registry of what must be undone, release, and pruning after a crash.
//
// Nothing is created without a [Lease] that names it; nothing is removed that no lease and no name of ours covers.
package pair
