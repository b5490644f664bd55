package loop

import (
	"encoding/json"
	"fmt"
	"os"
)

// Receipt is the short record of a run that stands beside its event log. LogHead is the hash of the log's last line:
// with it, a cut or altered log shows.
type Receipt struct {
	Result
	Repository string `json:"repository"`
	Base       string `json:"base,omitempty"`
	Head       string `json:"head,omitempty"`
	Engine     string `json:"engine"`
	Isolation  string `json:"isolation,omitempty"`
	Version    string `json:"sbxpair_version"`
	LogEvents  int64  `json:"log_events"`
	LogHead    string `json:"log_head"`
}

func writeReceipt(path string, r *run) error {
	receipt := Receipt{
		Result: r.result, Repository: r.repo, Base: r.state.End.Base, Head: r.state.End.Head,
		Engine: r.engineRef.Kind + " " + r.engineRef.Version, Isolation: r.engineRef.Isolation, Version: r.req.Version,
	}
	receipt.LogEvents, receipt.LogHead = r.log.Head()
	text, err := json.MarshalIndent(receipt, "", "  ")
	if err != nil {
		return fmt.Errorf("write receipt: %w", err)
	}
	if err := os.WriteFile(path, append(r.redact.Bytes(text), '\n'), 0o600); err != nil {
		return fmt.Errorf("write receipt: %w", err)
	}
	return nil
}
