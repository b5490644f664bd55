package sbx

import (
	"slices"
	"strings"
)

// Environ returns the part of environ that an engine's command gets: an allow list of names, because a deny list lets
// the token with the unlisted name through (gh-aw-firewall#1481). It keeps what finds the user's state, home, temporary
// folder, proxy, certificates and desktop session, and what sbx documents for itself. It keeps no token, and not
// SSH_AUTH_SOCK: the engine would forward the agent behind it into sandboxes. The locale is replaced by C, because we
// read the text. Of a name that occurs more than once, the last counts.
func Environ(environ []string) []string {
	last := map[string]string{}
	for _, kv := range environ {
		name, _, ok := strings.Cut(kv, "=")
		if ok && name != "" && allowedEnv(name) {
			last[name] = kv
		}
	}
	out := make([]string, 0, len(last)+2)
	for _, kv := range last {
		out = append(out, kv)
	}
	slices.Sort(out)
	return append(out, "LANG=C", "LC_ALL=C")
}

func allowedEnv(name string) bool {
	upper := strings.ToUpper(name) // Windows does not tell case apart, and proxies come in both
	switch upper {
	case "HOME", "PATH", "USER", "LOGNAME", "TMPDIR", "TZ", "TERM", "COLORTERM", "NO_COLOR",
		"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
		"SSL_CERT_FILE", "SSL_CERT_DIR",
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
		"DBUS_SESSION_BUS_ADDRESS",
		"SBX_NO_TELEMETRY", "SBX_MCP_ENABLE", "SANDBOXD_LOG_LEVEL", "DOCKER_CLOUD_API_URL",
		"OP_ACCOUNT", "AWS_PROFILE", // names, read by secret set --ref
		// What a Windows program does not start or find its state without.
		"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "HOMEDRIVE", "HOMEPATH",
		"APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "USERNAME", "USERDOMAIN",
		"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE":
		return true
	}
	for _, prefix := range []string{"DOCKER_SANDBOXES_", "SANDBOXES_", "SBX_LOCAL_"} {
		if strings.HasPrefix(upper, prefix) {
			return !slices.ContainsFunc([]string{"TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "KEY"}, func(word string) bool {
				return strings.Contains(upper, word)
			}) && !slices.Contains(strings.Split(upper, "_"), "PAT") // not PATH
		}
	}
	return false
}
