// Package rules is the local engine's store of network rules, and its log of decisions.
//
// The rules are one file under the state folder, changed by commands under a lock and read by the daemon whenever it
// has changed. Every rule has an id of its own and one resource, so that one can be removed without touching another.
// The log is a file of JSON lines that the daemon appends to; it is bounded and outlives the daemon.
//
// Errors: [ErrUninitialised] before Init, [ErrInitialised] for a second Init, [ErrNotFound] for a rule that is not
// there, [*ConflictError] for a deny beside an equal allow. An unreadable store is an error, never an empty one.
//
// Source: shapes and texts are those of sbx 0.47.
package rules
