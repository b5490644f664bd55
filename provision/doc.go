// Package provision makes a pair: it computes the [Plan] without side effects, applies it, proves that the
// credentials and the network are split as planned, and rolls back what it made when any of that fails.
//
// How each credential reaches its host is a [Strategy]. Under service and custom the value stays outside the sandbox:
// the engine's proxy puts it into requests to the bound hosts, and the sandbox holds a placeholder.
package provision
