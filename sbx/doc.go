// Package sbx drives Docker Sandboxes through its command, sbx, and any other engine that speaks the same command line
// (sbx-local). Arguments go in, values and typed errors come out; nobody else reads the engine's prose.
//
// # Making a client
//
// [Locate] finds an engine that is ready and says why; [New] takes a path. A [Client] is safe for concurrent use. It asks
// for the engine's version when a method depends on it, and keeps the answer. Versions 0.35 to 0.47 are supported; a newer
// one is driven like the newest known, with one warning. What the installed version cannot do is an [*UnsupportedError]
// before anything runs.
//
// # A call
//
// Each method starts the engine's command, without a terminal, with standard input closed unless the method has something
// to send, in a process group of its own, in an environment cut down by [Environ]. Each has a deadline ([Timeouts]), and
// ends soon after ctx does: interrupt, then after a grace time ([WithGrace]) kill. Output is bounded, its end kept. A
// question of the engine is never answered; it is recognised and becomes a [*PromptError] that names the command to run by
// hand.
//
// # Changes are read back
//
// Exit 0 is no proof. Every change is looked for afterwards with one read, and a change that is not there is a
// [*NotAppliedError]. A caller that makes several changes takes [Client.Unverified] for them, and then checks all with one
// read each: [Client.VerifyCreated], [Client.VerifyDenied], [Client.VerifyEnv], [Client.VerifyRules], [Client.VerifySecrets],
// [Client.VerifyRemoved].
//
// # Running commands in a sandbox
//
// [Client.Exec] returns what a command did; its exit code is data. That there is no such sandbox, that the program could
// not be started, that time was up, or that the engine's command was killed are errors, told apart from what the command
// itself may print or return. A call that is cut short ends the command in the sandbox too if [ExecSpec] KillTree is set.
// [Client.Attach] hands over the caller's terminal.
//
// # Errors
//
// An error matches one of the Err values of this package with errors.Is where its cause is known. A failed call is an
// [*ExitError] that keeps the end of what the engine said, with credentials masked; a text that is unknown, translated or
// empty has no kind and is shown as it is. [Hint] gives the command that helps.
//
// # Credentials
//
// Values are [secrets.Value], travel on standard input only, and are masked in everything that comes back. A value that
// sbx would take on its command line only is not supported: see [CustomSecret].
//
// # Sources
//
// Output formats, texts and version differences are those of sbx 0.35 to 0.47 as seen in public; fixtures/sbx/README.md
// says where each was seen. Sizes are bytes and times are UTC, whatever the engine prints.
package sbx
