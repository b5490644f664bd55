// Package github carries out typed GitHub operations from inside the github sandbox of a pair, and holds the gate
// that decides which of them an agent may have.
//
// Every byte to GitHub leaves the sandbox: a [Transport] hands each HTTP request to curl there, by exec, and
// [Deliver] runs git there. The host opens no connection to GitHub and needs no token: requests carry the engine's
// placeholder, and the engine's proxy puts the credential in on the way out.
//
// Nothing variable is ever a shell word. Scripts are constants; data goes by standard input and, where it has been
// checked against a narrow form first (a branch, a commit id, a URL), by environment.
//
// The gate ([Check], [CheckRequests]) and the text cleaning ([CleanTitle], [CleanBody]) are pure: values in, values
// out, refusals as values with reasons.
//
// Errors: see errors.go. A rate limit is an [*RateLimitError] whatever status carried it, a page of the sandbox's own
// proxy is an [*BlockedError] and never "forbidden by GitHub", and a request whose answer was lost is a
// [*NetworkError] with Sent set: look first, never repeat it blindly.
//
// Source of the outside facts: GitHub's REST documentation and OpenAPI description of November 2026 (API version
// 2022-11-28), go-github v62.0.0, git 2.39 and curl 7.88.
package github
