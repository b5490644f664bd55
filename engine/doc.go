// Package engine runs sandboxes on this machine: one gVisor sandbox each, with no network but a unix socket to the
// egress proxy of a daemon.
//
// An [Engine] is a handle on a [State]; several processes may use one state at once. Mutations of one sandbox are
// serialised by a lock file, and each is recorded before it starts, so that the next command finishes or undoes what a
// crash left. gVisor is never linked here: [Engine.Self] is started as "_runsc" on the host and as "_guest" inside.
//
// Errors: [ErrNotFound], [ErrExists], [ErrNotRunning], *[NameError], *[WorkspaceError], *[IsolationError] when gVisor
// cannot run here, *[LaunchError] when a program could not be started. A guest's exit code is a value, not an error.
//
// The user agent is user 0 of gVisor's own kernel, where sbx has user 1000 with sudo: a rootless sandbox has one user, and
// so what is written in a workspace belongs to whoever made the sandbox. sudo is a shim that runs its arguments. User 0 has
// docker's default capabilities inside and none outside.
//
// Sizes are MiB, times UTC.
package engine
