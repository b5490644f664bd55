// Package sbx drives Docker Sandboxes through its command, sbx, and any other engine that speaks the same command line
// (sbx-local). Arguments go in, values and typed errors come out; nobody else reads the engine's prose.
//
// # Making a client
//
// [Locate] finds an engine that is ready and says why; [New] takes a path. A [Client] is safe for concurrent use. Before
// its first verb it asks for the engine's version, and keeps the answer: another tool of that name is an error that matches
// [ErrForeignTool]. Versions 0.35 to 0.47 are supported; a newer one is driven like the newest known, with one warning. What
// the installed version cannot do is an [*UnsupportedError] before anything runs.
//
// # A call
//
// Each method starts the engine's command, without a terminal that it could open, with standard input closed unless the method
// has something to send, in a process group of its own, in an environment cut down by [Environ]. Each has a deadline ([Timeouts]), and
// ends soon after ctx does: interrupt, then after a grace time ([WithGrace]) kill. Output is bounded, its end kept. A
// question of the engine is never answered; it is recognised and becomes a [*PromptError] that names the command to run by
// hand.
//
// # What there is
//
// Sandboxes: [Client.Create], [Client.Run] and [Client.KeepAlive], [Client.List], [Client.Get], [Client.Inspect], [Client.Stop],
// [Client.Remove], [Client.Prune]. Commands in them: [Client.Exec], [Client.Attach]. Files: [Client.CopyIn], [Client.CopyOut].
// Ports: [Client.Ports], [Client.Publish], [Client.Unpublish]. Network: [Client.PolicyInit], [Client.PolicyAllow],
// [Client.PolicyDeny], [Client.PolicyCheck], [Client.PolicyList], [Client.PolicyInspect], [Client.PolicyRemove],
// [Client.PolicyLog], [Client.PolicyReset]. Credentials: [Client.SecretSet], [Client.SecretSetCustom],
// [Client.SecretSetRegistry], [Client.SecretImport], [Client.SecretList], [Client.SecretRemove]. Images: [Client.TemplateSave],
// [Client.TemplateLoad], [Client.TemplateList], [Client.TemplateRemove]. The engine itself: [Client.Version],
// [Client.Diagnose], [Client.Settings], [Client.SetSetting], [Client.DaemonStatus] and its kin, [Client.Login],
// [Client.CheckSignedIn], [Client.Logout], [Client.Reset]. Each parser is there on its own too, for output that was kept:
// [ParseSandboxes], [ParseRules] and so on.
//
// # Changes are read back
//
// Exit 0 is no proof. Every change is looked for afterwards, mostly with one read, and a change that is not there is a
// [*NotAppliedError] that says what is missing. What no version shows (the size of a sandbox, the value of a secret, the
// contents of a copied file) cannot be, and the method says so. A caller that makes several changes takes [Client.Unverified] for them, and then checks all with one
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
// empty has no kind and is shown as it is. Output that cannot be read is a [*MalformedError] that shows its start. [Hint] gives the command that helps.
//
// # Credentials
//
// Values are [secrets.Value], travel on standard input only, and are masked in everything that comes back. In the place of a
// value the engine takes a command or a reference, which it resolves itself. A value that sbx would take on its command line
// only is not supported: see [CustomSecret].
//
// # Recording, and testing without an engine
//
// [WithRecorder] writes each call to a file, masked; [NewReplay] plays them. A [Runner] stands between a Client and the
// program, and can be anything: fixtures/fakesbx/fake has one that is a whole engine, without sandboxes.
//
// # Sources
//
// Output formats, texts and version differences are those of sbx 0.35 to 0.47 as seen in public; fixtures/sbx/README.md
// says where each was seen. Sizes are bytes and times are UTC, whatever the engine prints.
package sbx
