package provision

import (
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/sbx"
)

// WithConfig fills in what the configuration says, for an engine of the given version. The rest is the caller's: Run,
// Engine, Repo, AgentEnv, Workspace, and Empty, which is dropped if the engine can do without it.
func (in Input) WithConfig(c config.Config, version sbx.Version) Input {
	in.Host, in.Fork, in.Agent, in.Provider = c.GitHub.Host, c.GitHub.Fork, c.Agent.Name, c.Agent.Provider
	in.Allow, in.Deny = c.Network.Allow, c.Network.Deny
	in.CPUs, in.MemoryMiB, in.Template = c.Sandbox.CPUs, c.Sandbox.MemoryMiB, c.Sandbox.Template
	in.Local = sbx.LocalOptions{Resolve: c.Local.Resolve, UpstreamCA: c.Local.UpstreamCA}
	in.Paths = c.Network.Rules == "paths" || c.Network.Rules == "auto" && version.Has(sbx.FeatureHTTPRules)
	in.DenyAtCreate = version.Has(sbx.FeatureDenyNetwork)
	if c.Agent.Strategy != "auto" {
		in.AgentStrategy = Strategy(c.Agent.Strategy)
	}
	for _, m := range c.Agent.Mounts {
		in.Mounts = append(in.Mounts, sbx.Workspace{Path: m.Path, ReadOnly: m.ReadOnly})
	}
	if c.Requests.Issue > 0 && in.Issues == "" {
		in.Issues = Wanted
	}
	in.Setup = c.Setup
	for _, dir := range c.Setup.Agent.Toolchains {
		in.Mounts = append(in.Mounts, sbx.Workspace{Path: dir, ReadOnly: true})
	}
	if version.Has(sbx.FeatureMountless) {
		in.Empty = ""
	}
	return in
}
