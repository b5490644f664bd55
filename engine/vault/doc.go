// Package vault is the local engine's store of credentials: service secrets, which belong to a provider that we know,
// and custom ones, where a placeholder stands for the value in requests to some hosts. Each is global or belongs to
// one sandbox; the sandbox's own wins.
//
// Values never enter a sandbox. It gets placeholders ([Store.Env]); the proxy asks for [Store.Bindings] and puts the
// values into requests. A binding opens no network: a rule must allow the host as well.
//
// Values are kept in one file, mode 0600 in a folder of mode 0700, or in a [Keyring], or not at all where a command fetches
// them.
//
// Source: services, hosts, texts and placeholders are those of sbx 0.47.
package vault
