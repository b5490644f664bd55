package sbx

// Feature names something that only some engines or versions have.
type Feature string

// Features that this package branches on.
const (
	FeatureDriven        Feature = "being driven"
	FeatureCreatePublish Feature = "published ports at create"
	FeatureDenyNetwork   Feature = "network denial at create"
	FeatureCreateEnv     Feature = "environment at create"
	FeatureMountless     Feature = "a sandbox without workspace"
	FeatureGlobalSecrets Feature = "secrets scoped by flag"
	FeatureSecretJSON    Feature = "secret ls --json"
	FeatureSecretSource  Feature = "secrets from a command or reference"
	FeatureRegistryScope Feature = "registry credentials"
	FeatureDiagnoseJSON  Feature = "diagnose as JSON"
	FeatureProtocolRules Feature = "network rules by protocol"
	FeatureHTTPRules     Feature = "network rules by HTTP method and path"
	FeaturePolicyInspect Feature = "policy inspect --json"
	FeaturePruneUntil    Feature = "prune by time"
	FeatureSafeCopy      Feature = "copying out of a sandbox that is not trusted"
	FeatureDaemonRestart Feature = "daemon restart"
	FeatureCloud         Feature = "hosted sandboxes (--cloud)"
	FeatureSkillsOff     Feature = "skills kept away at create"
	FeatureResolve       Feature = "host name overrides and a test certificate authority"
)

// gate says since when a feature is there. local means that only sbx-local has it, at any version; docker that sbx-local
// has not.
type gate struct {
	major, minor  int
	local, docker bool
	source        string
}

// gates is the one table of version differences. Facts: docker/docs reference data and release notes, sbx-go-sdk's
// coverage notes, measurements on 0.38, 0.39 and 0.47; see fixtures/sbx/README.md for the sources.
func gates() map[Feature]gate {
	return map[Feature]gate{
		FeatureDriven:        {minor: Oldest().Minor, source: "the oldest version with JSON listings, inspect and policy check"},
		FeatureCreatePublish: {minor: 37, source: "release 0.37"},
		FeatureDenyNetwork:   {minor: 38, source: "release 0.38"},
		FeatureCreateEnv:     {minor: 39, source: "measured on 0.39"},
		FeatureMountless:     {minor: 42, source: "release 0.42"},
		FeatureGlobalSecrets: {minor: 38, source: "release 0.38"},
		FeatureSecretJSON:    {minor: 42, source: "release 0.42; unknown flag at 0.38 (sbx-go-sdk)"},
		FeatureSecretSource:  {minor: 42, source: "documented with 0.42"},
		FeatureRegistryScope: {minor: 38, source: "release 0.38"},
		FeatureDiagnoseJSON:  {minor: 38, source: "release 0.38"},
		FeatureProtocolRules: {minor: 45, source: "documented with 0.45"},
		FeatureHTTPRules:     {minor: 45, source: "documented with 0.45, used on 0.47"},
		FeaturePolicyInspect: {minor: 42, source: "release 0.42"},
		FeaturePruneUntil:    {minor: 43, source: "release 0.43"},
		FeatureSafeCopy:      {minor: 38, source: "release 0.38 (CVE-2026-17106)"},
		FeatureDaemonRestart: {minor: 38, source: "release 0.38"},
		FeatureCloud:         {minor: 42, docker: true, source: "release 0.42"},
		FeatureSkillsOff:     {minor: 37, docker: true, source: "release 0.37"},
		FeatureResolve:       {local: true, source: "sbx-local"},
	}
}

// Has reports whether the installed engine has f. A development build or a version newer than we know has everything
// that the newest known has.
func (v Version) Has(f Feature) bool {
	g, ok := gates()[f]
	switch {
	case !ok:
		return false
	case g.local, g.docker && v.IsLocal():
		return g.local && v.IsLocal()
	case !v.Client.Known():
		return true
	}
	return v.Client.atLeast(g.major, g.minor)
}

// needs says what would have f, for people.
func needs(f Feature) string {
	g := gates()[f]
	if g.local {
		return EngineLocal
	}
	return "sbx " + Semver{Major: g.major, Minor: g.minor}.short() + " or later"
}

func (v Semver) short() string {
	full := v.String()
	return full[:len(full)-len(".0")]
}
