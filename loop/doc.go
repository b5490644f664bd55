// Package loop takes a run from its task to its receipt: preflight, workspace, pair, proof, the agent's work, end
// state, verify, gate, delivery, release. It knows nothing of terminals; what happens is told as events.
//
// Whatever ends a run (success, failure, a deadline, a cancelled context, a panic), the pair is released before [Run]
// returns, unless the caller asked to keep it. A panic comes back as a [pair.Crash].
package loop
