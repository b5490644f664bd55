// Package egress is the only way out of a sandbox: a proxy that decides on every connection and request, and that puts
// credentials in where the sandbox holds placeholders.
//
// One [Proxy] serves many sandboxes, each over a listener of its own, so that it knows who speaks without being told.
// It takes HTTP/1.1 in proxy form and CONNECT; inside a CONNECT that it looks into, HTTP/2 too.
//
// # What happens to a connection
//
// The host is brought into canonical form and decided on before anything is looked up. A name is then resolved once,
// each address is decided on again, and the address that passed is the one that is dialled. A connection is tunnelled
// untouched, but for a look at the TLS server name, unless its host has a credential bound to it or rules about methods
// and paths; then TLS ends here, with a certificate of the state folder's own CA, and begins anew to the server, whose
// certificate is verified. Denied connections get a page that says so.
//
// TLS server name and Host header must name the CONNECT target. Message framing is read strictly; messages are written
// anew. Bodies stream in both directions. A request's is never changed; an answer's only where it holds the credential that
// went out with the request, which is overwritten in its length. For that, such requests ask for no compression.
//
// A proxy that the machine itself needs is on the way where [Config.Upstream] says so. It looks names up for itself, so
// that addresses are decided on only as far as this machine can look them up too.
//
// # Credentials
//
// A service's credential is written where a request to one of its hosts has none or a placeholder; a custom one
// replaces its placeholder in any header. Only over TLS, or to loopback. A placeholder that is not known for the host,
// or someone else's credential on a bound host, stops the request.
//
// Every decision goes to the policy log once, with rule and reason.
package egress
