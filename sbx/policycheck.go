package sbx

import (
	"context"
	"fmt"
	"strings"
)

// PolicyVerdict is what the engine says it would do with a connection.
type PolicyVerdict struct {
	Allowed  bool   `json:"allowed"`
	Target   string `json:"target"`
	Explicit bool   `json:"explicit,omitempty"` // denied by a rule, not for want of one
	Rule     string `json:"rule,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// PolicyCheck asks whether target (HOST[:PORT], port 443 by default) may be connected to: from a sandbox, or with "" by
// the global rules. It knows nothing of HTTP methods and paths, and says "denied" for host.docker.internal although a rule
// for localhost:PORT lets it pass (sbx-releases#546). "Could not check" is an error, never a verdict.
func (c *Client) PolicyCheck(ctx context.Context, sandbox, target string) (PolicyVerdict, error) {
	const op = "policy check"
	if err := checkResource(op, target); err != nil {
		return PolicyVerdict{}, err
	}
	args := []string{"policy", "check", "network", "--json"}
	if sandbox != "" {
		if err := checkNames(op, []string{sandbox}); err != nil {
			return PolicyVerdict{}, err
		}
		args = append(args, "--sandbox", sandbox)
	}
	args = append(args, target)
	res, err := c.start(ctx, op, c.timeouts.Query, Cmd{Args: args})
	if err != nil {
		return PolicyVerdict{}, err
	}
	if res.Code != 0 && res.Code != 1 {
		return PolicyVerdict{}, c.failure(op, res, args)
	}
	verdict, err := ParseVerdict(res.Stdout)
	switch {
	case err != nil && res.Code != 0:
		return PolicyVerdict{}, c.failure(op, res, args)
	case err != nil:
		return PolicyVerdict{}, fmt.Errorf("sbx %s: %w", op, err)
	case verdict.Allowed != (res.Code == 0):
		return PolicyVerdict{}, fmt.Errorf("sbx %s: %w", op, malformedIn(res.Stdout, "exit %d with a verdict of allowed=%t", res.Code, verdict.Allowed))
	}
	return verdict, nil
}

// ParseVerdict reads the output of "sbx policy check network", JSON or text.
func ParseVerdict(out []byte) (PolicyVerdict, error) { return showing(out, readVerdict, checkVerdict) }

func readVerdict(out []byte) (PolicyVerdict, error) {
	if looksJSON(out) {
		var doc struct {
			Allowed  *bool  `json:"allowed"`
			Target   string `json:"target"`
			DenyKind string `json:"deny_kind"`
			Rule     string `json:"rule"`
			Reason   string `json:"reason"`
		}
		if err := decodeJSON(out, "allowed", &doc); err != nil {
			return PolicyVerdict{}, err
		}
		if doc.Allowed == nil { // the last of two keys is what counts
			return PolicyVerdict{}, malformed("verdict without an answer")
		}
		return PolicyVerdict{*doc.Allowed, doc.Target, doc.DenyKind == "explicit", doc.Rule, doc.Reason}, nil
	}
	text := clean(out)
	if said := firstSpoiling(text); said != "" {
		return PolicyVerdict{}, spoilt(said)
	}
	for line := range strings.Lines(text) {
		word, target, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch word {
		case "Allowed", "Denied":
			return PolicyVerdict{Allowed: word == "Allowed", Target: target}, nil
		}
	}
	return PolicyVerdict{}, malformed("no verdict")
}
