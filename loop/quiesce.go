package loop

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/pair"
)

//go:embed quiesce.sh
var quiesceScript string

// quiesceName is what the script sees as its own name; a stand-in for a sandbox that is no sandbox knows it by that.
const quiesceName = "sbxpair-quiesce"

// quiesceLimit bounds the ending of what a step left running.
const quiesceLimit = 30 * time.Second

// takeInventory remembers what runs in the agent sandbox before the agent does, so that [run.quiesce] can tell what is the
// engine's. Our own engine runs nothing there.
func (r *run) takeInventory(ctx context.Context) error {
	if r.engineRef.Kind == pair.EngineLocal {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, quiesceLimit)
	defer cancel()
	code, out, err := r.quiesceStep(ctx, "list", "")
	if err == nil && code != 0 {
		err = fmt.Errorf("exit %d: %s", code, lastLine(out))
	}
	if err != nil {
		return fmt.Errorf("list the processes of the agent sandbox: %w", err)
	}
	r.inventory = out
	return nil
}

// quiesce ends every process in the agent sandbox but the engine's own: the agent's may hide from a search by
// environment or descent, and must not change files behind the end state, or run into the next step.
func (r *run) quiesce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quiesceLimit)
	defer cancel()
	if r.engineRef.Kind == pair.EngineLocal {
		// The shell ends with the others, or is spared: its exit code says nothing.
		r.guest().Run(ctx, guest.Command{Argv: []string{"sh", "-c", "kill -KILL -1"}, Dir: "/"})
		return
	}
	if r.inventory == "" {
		return
	}
	code, out, err := r.quiesceStep(ctx, "end", r.inventory)
	switch {
	case err == nil && code != 0:
		err = fmt.Errorf("exit %d: %s", code, lastLine(out))
	case err == nil && strings.HasPrefix(out, "restarted"):
		err = r.takeInventory(ctx)
	}
	if err != nil && ctx.Err() == nil {
		r.log.Emit(events.Noted{Text: "what the agent left running could not be ended: " + err.Error()})
	}
}

// quiesceStep runs the script: as root, since an agent with sudo has processes that its user cannot end.
func (r *run) quiesceStep(ctx context.Context, mode, stdin string) (int, string, error) {
	out := &guest.Tail{Limit: 256 << 10}
	c := guest.Command{Argv: []string{"sh", "-c", quiesceScript, quiesceName, mode}, User: "root", Dir: "/", Stdout: out, Stderr: out}
	if stdin != "" {
		c.Stdin = strings.NewReader(stdin)
	}
	code, err := r.guest().Run(ctx, c)
	return code, out.String(), err
}
