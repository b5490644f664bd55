// Package workspace makes the copy of a repository that an agent works in, and brings back what the agent left.
//
// [Prepare] copies the committed state of the user's checkout into a folder of the run. It makes two things there: the
// work tree that is mounted into the agent sandbox ([Workspace.Dir]), and a bare repository that is never mounted
// ([Workspace.BaseRepo]). Both get their objects through git's pack protocol or as plain copies, never as hard links: a
// hard-linked object is writable through the mount, so an agent could change the user's own object store.
//
// [Workspace.Collect] runs a fixed script inside the sandbox that packs everything since the base commit, and
// [Workspace.Import] takes that stream apart on the host as hostile data. After Prepare has returned, no process of ours
// runs git, or opens a file, inside the work tree: its .git/config, hooks, attributes and names belong to the agent.
//
// Every git process runs without the user's and the system's configuration, with a private home, and with no protocol
// allowed but the one that the step needs.
//
// Errors: refusals are [*Error] and match one of the kinds with errors.Is; a stream that breaks a rule is a
// [*HostileError]. Sizes are bytes.
package workspace
