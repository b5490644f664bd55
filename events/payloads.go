package events

import "time"

// Phase names a step of a run, in the order of design: each starts and ends with an event of its own.
type Phase string

// The phases of a run.
const (
	PhasePreflight Phase = "preflight"
	PhaseWorkspace Phase = "workspace"
	PhaseProvision Phase = "provision"
	PhaseProof     Phase = "proof"
	PhaseTask      Phase = "task" // reads the issue that is the task, where one is
	PhasePlan      Phase = "plan"
	PhaseExecute   Phase = "execute"
	PhaseEndState  Phase = "end-state"
	PhaseVerify    Phase = "verify"
	PhaseReview    Phase = "review"
	PhaseGate      Phase = "gate"
	PhaseDeliver   Phase = "deliver"
	PhaseRelease   Phase = "release"
)

// Phases lists the phases in the order in which a run goes through them. Those from execute to review come again when an
// attempt was rejected, and which of plan, verify and review there are is configuration.
func Phases() []Phase {
	return []Phase{PhasePreflight, PhaseWorkspace, PhaseProvision, PhaseProof, PhaseTask, PhasePlan, PhaseExecute, PhaseEndState, PhaseVerify,
		PhaseReview, PhaseGate, PhaseDeliver, PhaseRelease}
}

// RunStarted opens a log.
type RunStarted struct {
	Version    string `json:"version"` // of sbxpair
	Repository string `json:"repository"`
	Task       string `json:"task"`
	Engine     string `json:"engine"`
	EngineVer  string `json:"engine_version"`
	Isolation  string `json:"isolation,omitempty"`
	Agent      string `json:"agent"`
}

// Resumed says that a run is gone on with, on a fresh pair and under the configuration that it was started with.
type Resumed struct {
	Version string   `json:"version"`        // of sbxpair
	Attempt int      `json:"attempt"`        // the one that goes on; 0 before the first
	Done    []Phase  `json:"done,omitempty"` // its phases that were over already
	Drift   []Change `json:"drift,omitempty"`
	Given   []Change `json:"given,omitempty"` // limits that it has from here on in place of its own
}

// Change is a value of the configuration that differs today from what the run was started with. The run keeps its own.
type Change struct {
	Key string `json:"key"`
	Own string `json:"own"`
	Now string `json:"now"`
}

// PhaseStarted says that a phase begins.
type PhaseStarted struct {
	Phase   Phase `json:"phase"`
	Attempt int   `json:"attempt,omitempty"` // from 1, in the phases that come again
}

// PhaseEnded says how a phase ended; Error is empty after success.
type PhaseEnded struct {
	Phase   Phase         `json:"phase"`
	Attempt int           `json:"attempt,omitempty"`
	Took    time.Duration `json:"took_ns"`
	Detail  string        `json:"detail,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// Planned carries the plan of the pair as it was before anything was created.
type Planned struct {
	Plan any `json:"plan"`
}

// EngineCall is one call of the engine's command line.
type EngineCall struct {
	Op   string        `json:"op"`
	Took time.Duration `json:"took_ns"`
	Code int           `json:"code"`
}

// Probe is one question of the proof and its answer.
type Probe struct {
	Role   string `json:"role"`
	Name   string `json:"name"`
	Want   string `json:"want"`
	Got    string `json:"got"`
	Passed bool   `json:"passed"`
	Needed string `json:"needed,omitempty"` // permission that the question asks for
	Detail string `json:"detail,omitempty"` // what else the answer tells
}

// Proof is the evidence that the pair's credentials and policies are split as planned.
type Proof struct {
	Probes []Probe  `json:"probes"`
	Notes  []string `json:"notes,omitempty"` // what a person should know, such as a token that ends soon
	// Owners says by role whose token it is, where the host told.
	Owners map[string]string `json:"owners,omitempty"`
}

// AgentActed is one thing that the agent did: a turn, a tool call, a message.
type AgentActed struct {
	Type    string `json:"type"`
	Turn    int    `json:"turn,omitempty"`
	Tool    string `json:"tool,omitempty"`
	Success *bool  `json:"success,omitempty"`
	Text    string `json:"text,omitempty"` // cut to 4 KiB
}

// AgentEnded is the judged end of one session of the agent.
type AgentEnded struct {
	Phase   Phase         `json:"phase"`
	Attempt int           `json:"attempt,omitempty"`
	Outcome string        `json:"outcome"`
	Reason  string        `json:"reason,omitempty"`
	Exit    int           `json:"exit"` // -1 if it is not known
	Turns   int           `json:"turns"`
	Input   int64         `json:"input_tokens"` // cached ones included
	Output  int64         `json:"output_tokens"`
	Cached  int64         `json:"cached_tokens"`
	Took    time.Duration `json:"took_ns"`
}

// Spent is what all sessions of a run cost up to now. It comes when a session has ended and, where the agent's CLI says so
// meanwhile, after each of its model calls.
type Spent struct {
	Turns           int     `json:"turns"`
	Input           int64   `json:"input_tokens"` // cached ones included
	Cached          int64   `json:"cached_tokens"`
	Output          int64   `json:"output_tokens"`
	PremiumRequests float64 `json:"premium_requests,omitempty"` // of GitHub Copilot
	CostUSD         float64 `json:"cost_usd"`
	BlockedHosts    int     `json:"blocked_hosts"` // different ones that the pair was refused, when the last session ended
	// Unpriced lists models whose price is not known: what they cost is not part of CostUSD.
	Unpriced []string `json:"unpriced,omitempty"`
}

// Reviewed is the verdict of one review. Its words are the reviewing model's.
type Reviewed struct {
	Attempt  int       `json:"attempt"`
	Approved bool      `json:"approved"`
	Summary  string    `json:"summary"`
	Findings []Finding `json:"findings,omitempty"`
}

// Finding is one thing that a review found.
type Finding struct {
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Problem  string `json:"problem"`
	Required bool   `json:"required"` // it must be mended before the change can be accepted
}

// Verified is the result of one verify command.
type Verified struct {
	Attempt int           `json:"attempt,omitempty"`
	Command string        `json:"command"`
	Exit    int           `json:"exit"`
	Output  string        `json:"output"` // the tail, cut to 16 KiB
	Took    time.Duration `json:"took_ns"`
	// Transcript is the file with all that it printed, masked, up to 64 MiB.
	Transcript string `json:"transcript,omitempty"`
	// Detected says that nobody configured the command; BaseFails that it fails without the agent's change too, and so says nothing.
	Detected  bool `json:"detected,omitempty"`
	BaseFails bool `json:"base_fails,omitempty"`
}

// EndState sums up what the agent left.
type EndState struct {
	Base    string   `json:"base"`
	Head    string   `json:"head"`
	Commits int      `json:"commits"`
	Files   []string `json:"files"`
	Bytes   int      `json:"patch_bytes"`
	Pushed  []Push   `json:"pushed,omitempty"` // to the local origin of a tracked workspace; by the sandbox's word
	// Truncated says that there is more than the end state can hold: its patch or its list of files is cut.
	Truncated bool `json:"truncated,omitempty"`
	// Unfinished says that the agent did not get to its end: a limit, a cancellation or its own failure ended it. Nothing judged this,
	// and nothing delivers it; it is kept.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Push is a ref that the agent pushed to the local origin.
type Push struct {
	Ref     string `json:"ref"`
	SHA     string `json:"sha"`
	Commits int    `json:"commits"`
}

// Gated is the gate's verdict.
type Gated struct {
	Accepted bool     `json:"accepted"`
	Refusals []string `json:"refusals,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Tasked says that an issue is the task.
type Tasked struct {
	Issue int    `json:"issue"`
	URL   string `json:"url"`
	Task  string `json:"task"` // as the agent is given it
}

// Requested is one line that the agent asked with, the gate's verdict about it, and what came of it.
type Requested struct {
	Line     int      `json:"line"`
	What     string   `json:"kind"`
	Decision string   `json:"decision"`          // allow or refuse
	Reasons  []string `json:"reasons,omitempty"` // why it was refused
	Done     bool     `json:"done"`              // it stands on GitHub
	Number   int      `json:"number,omitempty"`  // of the issue or pull request
	URL      string   `json:"url,omitempty"`
	Dropped  []string `json:"dropped,omitempty"` // labels and people that GitHub left out
}

// Asked is what a person was asked before the delivery, and the answer.
type Asked struct {
	Reasons  []string `json:"reasons,omitempty"` // what the gate wanted a decision about
	Approved bool     `json:"approved"`
}

// Delivered says what now stands on GitHub.
type Delivered struct {
	Branch      string `json:"branch"`
	Commit      string `json:"commit"`
	PullRequest string `json:"pull_request"`
	Number      int    `json:"number"`
	Draft       bool   `json:"draft"`
	Comment     string `json:"comment,omitempty"`
	Fork        string `json:"fork,omitempty"`      // where the branch is, if not in the repository itself
	Issue       int    `json:"issue,omitempty"`     // that the pull request names
	Check       string `json:"check,omitempty"`     // check or status: as what the check is shown
	Artifacts   string `json:"artifacts,omitempty"` // address of the branch with the run's record
}

// Blocked is a host that a sandbox asked for and the policy refused.
type Blocked struct {
	Role   string `json:"role"`
	Host   string `json:"host"`
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// Granted says that further hosts were opened to a sandbox while the pair was in place.
type Granted struct {
	Role  string   `json:"role"`
	Hosts []string `json:"hosts"` // as rules name them
}

// Revoked says that hosts which were granted are closed again.
type Revoked struct {
	Role   string   `json:"role"`
	Hosts  []string `json:"hosts"`
	Reason string   `json:"reason,omitempty"`
}

// Rotated says that a role's credential was replaced, or removed, while the pair was in place.
type Rotated struct {
	Role    string `json:"role"`
	Removed bool   `json:"removed,omitempty"`
	Check   string `json:"check,omitempty"` // URL that was asked afterwards, from inside
	Got     string `json:"got"`             // its answer
}

// Noted is a warning or a remark that a person should see.
type Noted struct {
	Text string `json:"text"`
}

// Released says what was removed, and what could not be.
type Released struct {
	Removed []string `json:"removed"`
	Left    []string `json:"left,omitempty"`
}

// RunEnded closes a log.
type RunEnded struct {
	Outcome string        `json:"outcome"`
	Error   string        `json:"error,omitempty"`
	Took    time.Duration `json:"took_ns"`
}

func (RunStarted) Kind() string   { return "run.started" }
func (Resumed) Kind() string      { return "run.resumed" }
func (PhaseStarted) Kind() string { return "phase.started" }
func (PhaseEnded) Kind() string   { return "phase.ended" }
func (Planned) Kind() string      { return "planned" }
func (EngineCall) Kind() string   { return "engine.call" }
func (Proof) Kind() string        { return "proof" }
func (AgentActed) Kind() string   { return "agent.acted" }
func (AgentEnded) Kind() string   { return "agent.ended" }
func (Spent) Kind() string        { return "spent" }
func (Verified) Kind() string     { return "verified" }
func (Reviewed) Kind() string     { return "reviewed" }
func (EndState) Kind() string     { return "end-state" }
func (Gated) Kind() string        { return "gated" }
func (Tasked) Kind() string       { return "tasked" }
func (Requested) Kind() string    { return "requested" }
func (Asked) Kind() string        { return "asked" }
func (Delivered) Kind() string    { return "delivered" }
func (Blocked) Kind() string      { return "blocked" }
func (Granted) Kind() string      { return "granted" }
func (Revoked) Kind() string      { return "revoked" }
func (Rotated) Kind() string      { return "rotated" }
func (Noted) Kind() string        { return "noted" }
func (Released) Kind() string     { return "released" }
func (RunEnded) Kind() string     { return "run.ended" }
