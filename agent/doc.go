// Package agent drives coding-agent CLIs without a terminal inside a sandbox.
//
// An [Adapter] is what differs between them: command line, environment, files in the home folder, credential, and how the
// lines on standard output are read. [Run] runs one task in a sandbox, turns the lines into [Event] values as they arrive,
// bounds the run in time and silence, and ends all that it started. [Judge] says what came of it: a run that did nothing, was
// denied, was cut off or lacked a credential is not a success, whatever the exit code says (at least three of the CLIs exit
// 0 after such runs).
//
// The prompt goes by standard input or file, never in the argument list. No credential passes through this package: the
// environment of the sandbox holds a placeholder.
//
// Sources: the CLIs' behaviour is that of Copilot CLI 1.0.102, Claude Code 2.1.197 and 2.1.332, Codex 0.171.0, Gemini CLI
// 0.61.0, opencode 1.18.33 and pi 0.73.1, seen in runs against a scripted model server; recorded lines are in testdata.
package agent
