package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sbxpair/sbxpair/engine"
)

type check struct {
	Name    string `json:"name"`
	Status  string `json:"status"` // pass, warn, fail, skip
	Message string `json:"message"`
	Detail  string `json:"detail"`
	Hint    string `json:"hint"`
	group   string
}

type diagnosis struct {
	Version string  `json:"version"`
	Checks  []check `json:"checks"`
	Summary struct {
		Pass int `json:"pass"`
		Warn int `json:"warn"`
		Fail int `json:"fail"`
		Skip int `json:"skip"`
	} `json:"summary"`
}

func newDiagnoseCmd(a *app) *cobra.Command {
	var output string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diagnose",
		Short: "Check whether sandboxes can run here",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("invalid --output %q: give text or json", output)
			}
			return runDiagnose(cmd.Context(), a, asJSON || output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func runDiagnose(ctx context.Context, a *app, asJSON bool) error {
	d := diagnosis{Version: "1.0", Checks: a.checks(ctx)}
	for _, c := range d.Checks {
		switch c.Status {
		case "pass":
			d.Summary.Pass++
		case "warn":
			d.Summary.Warn++
		case "fail":
			d.Summary.Fail++
		default:
			d.Summary.Skip++
		}
	}
	if asJSON {
		if err := a.printJSON(d); err != nil {
			return err
		}
	} else {
		a.printDiagnosis(d)
	}
	if d.Summary.Fail > 0 {
		return exitError(1)
	}
	return nil
}

// bootTimeout bounds the sandbox that diagnose starts to see whether one starts.
const bootTimeout = 20 * time.Second

// checks looks at everything a sandbox needs. Names are those of sbx 0.47 where the thing is the same.
func (a *app) checks(ctx context.Context) []check {
	list := []check{
		{"CLI binary", "pass", "found", a.Self, "", "Installation"},
		{"Binary version", "pass", Version, "sbx-local " + a.Version, "", "Installation"},
	}
	e, err := a.engine()
	if err != nil {
		return append(list, check{"Storage directories", "fail", "not usable", err.Error(), "set SBX_LOCAL_STATE to a folder of yours", "Storage"})
	}
	health, err := e.DaemonHealth(ctx)
	socket := check{"Socket", "pass", "responsive", e.State.DaemonSocket(), "", "Connection"}
	match := check{"Version match", "pass", Version, "", "", "Connection"}
	switch {
	case err == nil:
		list = append(list, check{"Daemon", "pass", "healthy", "version " + health.Version, "", "Installation"})
		if text := a.otherBuild(health); text != "" {
			match = check{"Version match", "warn", "daemon is of another build", text, "sbx daemon restart (no sandbox is lost)", "Connection"}
		}
	case errors.Is(err, engine.ErrDaemon):
		list = append(list, check{"Daemon", "skip", "not running", "it starts by itself when a sandbox needs it", "", "Installation"})
		match.Status, match.Message, socket.Status, socket.Message = "skip", "no daemon", "skip", "no daemon"
	default:
		list = append(list, check{"Daemon", "fail", "does not answer", err.Error(), "sbx daemon restart", "Installation"})
	}
	list = append(list, virtualization(ctx, e), limits(e), check{"Storage directories", "pass", "all 1 paths present", e.State.Dir, "", "Storage"},
		writable(e.State), diskSpace(e.State), match, socket, a.policyCheck(),
		check{"Authentication", "pass", "not needed", "sbx-local has no accounts", "", "Connection"})
	return list
}

// virtualization boots a sandbox: nothing less tells whether one runs.
func virtualization(ctx context.Context, e *engine.Engine) check {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	err := e.BootTest(ctx)
	if err == nil {
		return check{"Virtualization", "pass", "supported", e.Isolation(), "", "Platform"}
	}
	if iso, ok := errors.AsType[*engine.IsolationError](err); ok {
		return check{"Virtualization", "fail", iso.Cause, iso.Detail, iso.Remedy, "Platform"}
	}
	return check{"Virtualization", "fail", "a sandbox does not start", err.Error(), "", "Platform"}
}

func limits(e *engine.Engine) check {
	if text := e.Limits(); text != "cgroup" {
		hint := "a machine or container with writable cgroups for cpu, memory and pids is needed for --cpus and --memory to hold"
		if e.Rootless {
			hint = "run as root for --cpus and --memory to hold"
		}
		return check{"Resource limits", "warn", "disk only", text, hint, "Platform"}
	}
	return check{"Resource limits", "pass", "enforced", "memory, cpu and threads by cgroups; disk", "", "Platform"}
}

func writable(st *engine.State) check {
	for _, dir := range []string{st.Dir, filepath.Dir(st.Runtime)} {
		f, err := os.CreateTemp(dir, "diagnose-*")
		if err != nil {
			return check{"Directory permissions", "fail", "not writable", err.Error(), "", "Storage"}
		}
		f.Close()
		os.Remove(f.Name())
	}
	return check{"Directory permissions", "pass", "all writable", "", "", "Storage"}
}

// lowDisk is where diagnose warns: a sandbox's tools and caches easily take this much.
const lowDisk = 2 << 30

func diskSpace(st *engine.State) check {
	var fs unix.Statfs_t
	if err := unix.Statfs(st.Dir, &fs); err != nil {
		return check{"Disk space", "fail", "unknown", err.Error(), "", "Storage"}
	}
	free := fs.Bavail * uint64(fs.Bsize)
	c := check{"Disk space", "pass", fmt.Sprintf("%.1fGiB free", float64(free)/(1<<30)), "", "", "Storage"}
	if free < lowDisk {
		c.Status, c.Hint = "warn", "free some space on the disk of "+filepath.Clean(st.Dir)
	}
	return c
}

func (a *app) policyCheck() check {
	store, err := a.ruleStore()
	if err == nil {
		var ok bool
		if ok, err = store.Initialised(); err == nil && ok {
			return check{"Network policy", "pass", "initialised", "", "", "Connection"}
		}
	}
	if err != nil {
		return check{"Network policy", "fail", "not readable", err.Error(), "sbx policy reset", "Connection"}
	}
	return check{"Network policy", "warn", "not initialised", "", "sbx policy init balanced", "Connection"}
}

func (a *app) printDiagnosis(d diagnosis) {
	rule := strings.Repeat("─", 40)
	fmt.Fprintf(a.Stdout, "sbx diagnose\n%s\n", rule)
	marks := map[string]string{"pass": "✓", "warn": "!", "fail": "✗", "skip": "-"}
	for _, group := range []string{"Installation", "Platform", "Storage", "Connection"} {
		fmt.Fprintf(a.Stdout, "\n  %s\n", group)
		for _, c := range d.Checks {
			if c.group != group {
				continue
			}
			fmt.Fprintf(a.Stdout, "  %s %s — %s\n", marks[c.Status], c.Name, c.Message)
			if c.Detail != "" {
				fmt.Fprintf(a.Stdout, "      %s\n", c.Detail)
			}
			if c.Hint != "" && c.Status != "pass" {
				fmt.Fprintf(a.Stdout, "      → %s\n", c.Hint)
			}
		}
	}
	parts := []string{fmt.Sprintf("%d passed", d.Summary.Pass)}
	for _, p := range []struct {
		n    int
		word string
	}{{d.Summary.Warn, "warnings"}, {d.Summary.Fail, "failed"}, {d.Summary.Skip, "skipped"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.word))
		}
	}
	fmt.Fprintf(a.Stdout, "\n%s\n  %s\n", rule, strings.Join(parts, ", "))
}
