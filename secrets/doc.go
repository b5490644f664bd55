// Package secrets holds credential values and what must never happen to them: printing, guessing their kind from the
// wrong place, and letting them pass in text.
//
// A [Value] is a credential; a placeholder is the token-shaped text that a sandbox sees in its stead; a [Redactor]
// masks values in text and streams, in the forms that encoders give them; [Scan] finds credentials by their shape.
//
// The package is a leaf: anyone may import it, and it imports nothing of the house.
package secrets
