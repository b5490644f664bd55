package loop

import (
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

// planInput reads a plan's input off the configuration. env is where the agent CLI looks for
// its credential, hosts are where it sends it.
func planInput(c config.Config, engine pair.EngineRef, run pair.RunID, repo, env string, hosts []string, work sbx.Workspace) provision.Input {
	in := provision.Input{
		Run: run, Engine: engine, Repo: repo, Host: c.GitHub.Host, Agent: c.Agent.Name, AgentEnv: env, BoundHosts: hosts, Workspace: work,
		Allow: c.Network.Allow, Deny: c.Network.Deny,
		CPUs: c.Sandbox.CPUs, MemoryMiB: c.Sandbox.MemoryMiB, Template: c.Sandbox.Template,
		Local: sbx.LocalOptions{Resolve: c.Local.Resolve, UpstreamCA: c.Local.UpstreamCA},
	}
	if c.Agent.Strategy != "auto" {
		in.AgentStrategy = provision.Strategy(c.Agent.Strategy)
	}
	for _, m := range c.Agent.Mounts {
		in.Mounts = append(in.Mounts, sbx.Workspace{Path: m.Path, ReadOnly: m.ReadOnly})
	}
	return in
}
