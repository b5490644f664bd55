# Ends every process in the sandbox that was not there before the agent worked, whatever it did to its environment and its
# parents. MODE list prints what is there; MODE end reads that list again on standard input, and ends all else.
#
# A process is named by its number and the time it started. The first line names the machine's start in the same way: an
# engine that stopped and started the sandbox meanwhile ended everything with it, and what runs now is its own. It then says
# "restarted" and touches nothing.
mode=$1
boot=
read -r boot 2>/dev/null </proc/sys/kernel/random/boot_id
read -r stat </proc/1/stat || exit 1
set -- ${stat##*) }
boot=$boot/${20}

# This shell and what it descends from.
own=' '
at=$$
while [ "$at" -gt 1 ] && { read -r stat <"/proc/$at/stat"; } 2>/dev/null; do
	own="$own$at "
	set -- ${stat##*) }
	at=$2
done

# Lists the processes as NUMBER:START in $all.
look() {
	all=
	for d in /proc/[0-9]*; do
		{ read -r stat <"$d/stat"; } 2>/dev/null || continue
		set -- ${stat##*) }
		case $1 in Z | X) continue ;; esac
		all="$all ${d#/proc/}:${20}"
	done
}

if [ "$mode" = list ]; then
	look
	echo "$boot"
	for p in $all; do echo "$p"; done
	exit 0
fi

read -r before
known=' '
while read -r p; do known="$known$p "; done
if [ "$before" != "$boot" ]; then
	echo restarted
	exit 0
fi
ended=0 round=0 left=1
while [ $left -gt 0 ] && [ $round -lt 10 ]; do # what forks while we look is found in the next round
	left=0
	look
	for p in $all; do
		n=${p%:*}
		case $known in *" $p "*) continue ;; esac
		case $own in *" $n "*) continue ;; esac
		[ "$n" = 1 ] && continue
		kill -s KILL "$n" 2>/dev/null && left=$((left + 1))
	done
	ended=$((ended + left)) round=$((round + 1))
done
echo "ended $ended"
[ $left = 0 ]
