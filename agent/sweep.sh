# Ends every process of one run inside the sandbox: those that carry its mark in their environment, and what descends from
# them. A process group would not do: agents start shells in sessions of their own. Prints how many it ended.
# MARK is the variable's value; GRACE how long to wait between TERM and KILL, in tenths of a second; STATE the run's folder, which
# is removed at the end if a FINAL call says so, after the file USAGE in it was printed.
mark=$1 grace=$2 state=$3 final=$4 usage=$5

# Lists the processes, parents before children, in $found.
scan() {
	found=' '
	pairs=
	for f in $(grep -ls "SBXPAIR_STEP=$mark" /proc/[0-9]*/environ); do
		p=${f#/proc/}
		found="$found${p%/environ} "
	done
	for d in /proc/[0-9]*; do
		p=${d#/proc/}
		state= parent=
		while read -r key value _; do
			case $key in
			State:) state=$value ;;
			PPid:) parent=$value && break ;;
			esac
		done 2>/dev/null <"$d/status"
		[ "$state" = Z ] || [ -z "$parent" ] || pairs="$pairs $p:$parent"
	done
	grown=1
	while [ $grown = 1 ]; do
		grown=0
		for pair in $pairs; do
			p=${pair%:*} parent=${pair#*:}
			case $found in
			*" $p "*) ;;
			*" $parent "*) found="$found$p " grown=1 ;;
			esac
		done
	done
}

alive() {
	for p in $found; do
		[ -e "/proc/$p/environ" ] || continue
		read -r _ _ state _ 2>/dev/null <"/proc/$p/stat" || continue
		[ "$state" = Z ] || return 0
	done
	return 1
}

ended=0
round=0
while [ $round -lt 5 ]; do # what forks while we look is found in the next round
	scan
	[ "$found" = ' ' ] && break
	set -- $found
	[ $round = 0 ] && ended=$#
	if [ $round = 0 ] && [ "$grace" -gt 0 ]; then
		kill -TERM $found 2>/dev/null
		i=0
		while [ $i -lt "$grace" ] && alive; do
			sleep 0.1
			i=$((i + 1))
		done
		scan
	fi
	kill -KILL $found 2>/dev/null
	round=$((round + 1))
done
echo "ended $ended"
[ -n "$usage" ] && [ -f "$usage" ] && head -c 1048576 "$usage"
[ "$final" = final ] && rm -rf "$state"
exit 0
