package doctor

// About says what a check is for.
type About struct {
	ID      string
	Deep    bool
	Asks    string // what is looked at
	Affects string // the behaviour that depends on it
	Vital   bool   // a report in which it is [Unknown] is not green
}

// Catalogue lists all checks in the order in which they are made. A report leaves out those that do not apply to the
// engine, and says so of none.
func Catalogue() []About {
	return []About{
		{"token.agent", false, "is the agent's token there, of a kind that the agent CLI takes, readable by you alone", "the agent's login to its model", true},
		{"token.github", false, "the same of the GitHub token; a classic one reaches every repository of its owner", "reading the repository, pushing, the pull request", true},
		{"token.pair", false, "are the two tokens different ones", "the split: one token for both would put push rights into the agent sandbox", true},
		{"host.git", false, "git on this machine, 2.32 or newer", "the copy of the checkout, and taking in what the agent left", true},
		{"checkout", false, "can the folder be copied for a run: commits, uncommitted changes, submodules, linked work trees", "the agent's copy: a run refuses what it cannot copy whole", true},
		{"host.state", false, "can sbxpair keep its records", "every run: nothing is made before it is on record", true},
		{"host.disk", false, "free space where sbxpair and the engine keep their state", "creating a pair; the engine's own message for this is often another one", false},
		{"host.memory", false, "memory that is free for two sandboxes", "a sandbox that is killed in the middle of a run", false},
		{"engine", false, "which engine a run would take, and why", "every run", true},
		{"engine.sbx", false, "why sbx was not taken", "which engine a run takes", false},
		{"engine.sbx-local", false, "why sbx-local was not taken", "which engine a run takes", false},
		{"engine.path", false, "every program called sbx on the path: Docker's, and another tool of that name", "which program a run would start", false},
		{"engine.version", false, "version of the command and of its daemon; do they differ; are they known to sbxpair", "what the engine can do; a daemon of another version asks to stop every sandbox", true},
		{"engine.daemon", false, "does the daemon answer", "every engine call", true},
		{"engine.proxy", false, "where DOCKER_SANDBOXES_PROXY is set: was the daemon started with it", "the way out of every sandbox: set for the client alone, traffic goes around the proxy", false},
		{"engine.login", false, "is the engine signed in to Docker", "every engine call of sbx, also for sandboxes that exist", true},
		{"engine.keyring", false, "is there a key store, or are secrets kept in plain files", "login, secrets and the start of sandboxes, each of which fails in other words without one", true},
		{"policy.preset", false, "what the global network policy opens to every sandbox", "the proof of the split: a sandbox that reaches a host it must not is refused", true},
		{"policy.github", false, "what the engine itself answers for github.com without a rule of ours", "whether the agent sandbox could push", true},
		{"secrets.global", false, "secrets that the engine gives to every sandbox", "the split", true},
		{"ssh.agent", false, "does the engine forward an SSH agent, and who holds it: the daemon or the client", "the split: a forwarded agent signs for whoever asks inside", false},
		{"leftovers.pairs", false, "leases and sandboxes of runs whose process is dead", "memory, disk and money; tokens that stay bound to them", false},
		{"leftovers.secrets", false, "engine secrets of runs that are over", "tokens that stay in the engine's store", false},
		{"leftovers.files", false, "credential files of runs that are over", "tokens that stay on disk", false},
		{"pair", true, "is a pair made as a run makes it, from lease to read-back", "every run", true},
		{"split", true, "a run's own proof from inside both sandboxes", "the split", true},
		{"agent.login", true, "does the model's host accept the agent's token", "the agent's first turn", true},
		{"agent.overreach", true, "can the agent's token write to the repository", "the split: the agent sandbox may reach the API that its token is for", true},
		{"agent.cli", true, "is the agent CLI in the sandbox, and in which version", "the agent's start", true},
		{"workspace", true, "can the sandbox write to the mounted folder, and whose are the files on this machine", "the agent's work, and cleaning up after it", true},
		{"clock.agent", true, "the agent sandbox's clock beside this machine's", "certificates and tokens, which fail with a wrong clock", false},
		{"clock.github", true, "the same of the github sandbox", "certificates and tokens, which fail with a wrong clock", false},
		{"egress", true, "names, TCP and UDP past the proxy", "the split: only what goes through the proxy is judged", true},
		{"trust.curl", true, "does curl trust the proxy's certificate", "the proof, and every request to GitHub", true},
		{"trust.git", true, "does git", "the push", true},
		{"trust.node", true, "does node, and does it use the proxy by itself", "agent CLIs and builds that run on node", false},
		{"trust.python3", true, "does python3", "builds and tests that fetch something", false},
		{"trust.go", true, "does the go command", "builds and tests that fetch modules", false},
		{"github.login", true, "does GitHub accept the token, and, where the rules let that be asked, whose is it", "everything on GitHub", true},
		{"github.expiry", true, "when the token ends", "runs after that day", false},
		{"github.scopes", true, "the scopes of a classic token", "what is at stake if the token leaks", false},
		{"github.repository", true, "is the repository there for the token, and open for changes", "everything on GitHub", true},
		{"github.push", true, "would git let the token push (asked, not done)", "the branch of the run", true},
		{"github.issues", true, "may the token read issues", "issues, labels and comments", false},
		{"github.pulls", true, "may the token read and open pull requests", "the pull request of the run", false},
	}
}

func aboutOf(id string) (About, bool) {
	for _, a := range Catalogue() {
		if a.ID == id {
			return a, true
		}
	}
	return About{}, false
}
