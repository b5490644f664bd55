package sbx

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// sbx leaves a command running in the sandbox when its own process is ended (measured on 0.38 to 0.45). So a command with
// [ExecSpec] KillTree is started by a constant script that puts it into a process group of its own, with a random mark in
// its environment, which its descendants inherit; and ended by a second exec that kills every group with the mark in it.
// Nothing of the caller's is in either script: arguments arrive as arguments.

const (
	treeMarkName   = "SBXPAIR_TREE"
	treeMarkPrefix = "sbxpair-tree-"
	// treeStartName and treeEndName are what the scripts see as their own name; fixtures/fakesbx knows them by it.
	treeStartName = "sbxpair-exec"
	treeEndName   = "sbxpair-kill"
	// treeEndTimeout bounds the ending: an exec of sbx takes 0.2 to 0.5 s, more if the daemon is busy.
	treeEndTimeout = 20 * time.Second
)

// treeStart runs its arguments in place of itself, so that the exit status is theirs. A process that does not lead its group
// becomes the leader of a session; setsid of one that does would have to fork. A missing program is reported as the
// engine reports it.
const treeStart = `if ! command -v "$1" >/dev/null 2>&1; then
	printf 'OCI runtime exec failed: exec: "%s": not found in the sandbox\n' "$1"
	exit 127
fi
if { read -r stat <"/proc/$$/stat"; } 2>/dev/null; then
	stat=${stat##*) }; stat=${stat#* }; stat=${stat#* }
	if [ "${stat%% *}" != $$ ] && command -v setsid >/dev/null 2>&1; then exec setsid "$@"; fi
fi
exec "$@"`

// treeEnd kills every process whose environment has the mark, its first argument, with its whole group; and the session,
// if the mark's own process leads it. It looks again until it has found nothing twice, because a process may be starting
// another, and gives up after 40 looks. It prints how many processes had the mark and leaves with 1 if some have it still.
const treeEnd = `mark=$1 total=0 clear=0 look=0
read -r stat <"/proc/$$/stat" || exit 2
set -- ${stat##*) }
mygroup=$3 mysession=$4
while [ $look -lt 40 ] && [ $clear -lt 2 ]; do
	look=$((look+1)) found=0
	for f in $(grep -lF "$mark" /proc/[0-9]*/environ 2>/dev/null); do
		pid=${f#/proc/}; pid=${pid%/environ}
		{ read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
		set -- ${stat##*) }
		case $1 in Z|X) continue ;; esac
		found=$((found+1))
		if [ "$4" = "$pid" ] && [ "$4" != "$mysession" ]; then
			for s in /proc/[0-9]*/stat; do
				{ read -r stat <"$s"; } 2>/dev/null || continue
				p=${s#/proc/}; p=${p%/stat}
				set -- ${stat##*) }
				[ "$4" = "$pid" ] && [ "$p" -gt 1 ] && kill -s KILL "$p" 2>/dev/null
			done
			continue
		fi
		if [ "$3" -gt 1 ] && [ "$3" != "$mygroup" ]; then kill -s KILL -- "-$3" 2>/dev/null; fi
		kill -s KILL "$pid" 2>/dev/null
	done
	total=$((total+found))
	if [ $found = 0 ]; then clear=$((clear+1)); else clear=0; fi
	sleep 0.1
done
echo "$total"
[ $clear -ge 2 ]`

// tree is a command that can be ended with everything that it started.
type tree struct{ mark string }

func newTree() tree {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return tree{treeMarkPrefix + hex.EncodeToString(b[:])}
}

// wrap gives the specification of the call that starts the command.
func (t tree) wrap(spec ExecSpec) ExecSpec {
	spec.Env = append(append([]EnvVar{}, spec.Env...), EnvVar{treeMarkName, t.mark})
	spec.Argv = append([]string{"sh", "-c", treeStart, treeStartName}, quoteEmpty(spec.Argv)...)
	return spec
}

// endTree kills what is left. It has a time of its own, since that of the call is up.
func (c *Client) endTree(ctx context.Context, sandbox string, t tree) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), treeEndTimeout)
	defer cancel()
	box, err := c.Get(ctx, sandbox)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && box.Status == StatusStopped:
		return nil // nothing runs in it, and an exec would start it again
	case err != nil:
		return leftBehind(err)
	}
	// As root: the command may have changed its user.
	res, err := c.Exec(ctx, sandbox, ExecSpec{Argv: []string{"sh", "-c", treeEnd, treeEndName, t.mark}, User: "root", Dir: "/"})
	if err != nil {
		return leftBehind(err)
	}
	if res.Code != 0 {
		return leftBehind(execProblem(opExec, "end what the command started", res))
	}
	c.log.Debug("ended processes in the sandbox", "op", opExec, "count", strings.TrimSpace(string(res.Stdout)))
	return nil
}

func leftBehind(err error) error {
	return fmt.Errorf("processes of the command may be left in the sandbox: %w", err)
}
