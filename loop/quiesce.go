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

// endAll ends everything but itself and the first process, until there is nothing left to end: of a fork bomb some are born
// meanwhile. The shell starts nothing for it, since there may be no room for another process.
const endAll = `i=0; while [ $i -lt 5000 ] && kill -s KILL -1 2>/dev/null; do i=$((i + 1)); done; [ $i -lt 5000 ]`

// quiesce ends every process in the agent sandbox but the engine's own: the agent's may hide from a search by
// environment or descent, and must not change files behind the end state, or run into the next step. It reports whether it did;
// why not is noted.
func (r *run) quiesce(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, quiesceLimit)
	defer cancel()
	err := r.endOthers(limited)
	if err != nil && ctx.Err() == nil {
		r.log.Emit(events.Noted{Text: "what the agent left running could not be ended: " + err.Error()})
	}
	return err == nil
}

func (r *run) endOthers(ctx context.Context) error {
	if r.engineRef.Kind == pair.EngineLocal {
		code, err := r.guest().Run(ctx, guest.Command{Argv: []string{"sh", "-c", endAll}, User: "root", Dir: "/"})
		if err == nil && code != 0 {
			err = fmt.Errorf("exit %d", code)
		}
		return err
	}
	if r.inventory == "" {
		return nil
	}
	code, out, err := r.quiesceStep(ctx, "end", r.inventory)
	switch {
	case err == nil && code != 0:
		err = fmt.Errorf("exit %d: %s", code, lastLine(out))
	case err == nil && strings.HasPrefix(out, "restarted"):
		err = r.takeInventory(ctx)
	}
	return err
}

// quiesceStep runs the script: as root, since an agent with sudo has processes that its user cannot end.
func (r *run) quiesceStep(ctx context.Context, mode, stdin string) (int, string, error) {
	out := &guest.Tail{Limit: 256 << 10}
	c := guest.Command{Argv: []string{"sh", "-c", quiesceScript, quiesceName, mode}, User: "root", Dir: "/", Stdout: out}
	if stdin != "" {
		c.Stdin = strings.NewReader(stdin)
	}
	code, err := r.guest().Run(ctx, c)
	return code, out.String(), err
}
