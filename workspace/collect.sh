# Runs inside the agent sandbox and packs everything since BASE into a bundle on standard output, after a header of lines.
# Nothing of the agent's repository but its objects and refs is used: a fresh git folder beside it has neither the agent's
# configuration, hooks, filters and excludes, nor its index with flags, locks and caches. Text of the agent is never a word
# of this script; names leave it in git's own quotes.
set -u
work=$1 base=$2 max=$3 message=$4 shallow=$5 format=$6

fail() {
	code=$1
	shift
	printf '%s\n' "$*" >&2
	exit "$code"
}

for name in $(env | sed -n 's/^\(GIT_[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
unset CDPATH XDG_CONFIG_HOME
umask 022
cd "$work" || fail 20 "the workspace is gone"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/sbxpair-end.XXXXXX") || tmp=$(mktemp -d /var/tmp/sbxpair-end.XXXXXX) || fail 21 "no room for temporary files"
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/home" || fail 21 "no room for temporary files"
export HOME="$tmp/home" LC_ALL=C TZ=UTC
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1
export GIT_AUTHOR_NAME="$SBXPAIR_NAME" GIT_AUTHOR_EMAIL="$SBXPAIR_EMAIL" GIT_COMMITTER_NAME="$SBXPAIR_NAME" GIT_COMMITTER_EMAIL="$SBXPAIR_EMAIL"
command -v git >/dev/null || fail 22 "git is not installed in the sandbox"

theirs=$work/.git
new_repository() {
	unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
	rm -rf "$tmp/git" "$tmp/index"
	git init --quiet --bare --template= --object-format="$format" --initial-branch=none "$tmp/git" >&2 || fail 23 "cannot make a repository"
	mkdir -p "$tmp/git/info" "$tmp/git/objects/info"
	printf '%s\n' '* -text -ident -filter !working-tree-encoding' >"$tmp/git/info/attributes"
	export GIT_DIR="$tmp/git" GIT_WORK_TREE="$work" GIT_INDEX_FILE="$tmp/index"
	g config core.fileMode true
	g config core.symlinks true
}
g() {
	git -c core.bare=false -c core.hooksPath=/dev/null -c core.fsmonitor=false -c commit.gpgSign=false -c core.autocrlf=false -c core.safecrlf=false \
		-c core.quotePath=true -c gc.auto=0 -c core.preloadIndex=true -c advice.addEmbeddedRepo=false "$@" </dev/null
}
note() { printf 'note %s\n' "$*" >>"$tmp/header"; }

# Stages the work tree. Repositories inside it are left out and named: git would store a link to a commit that nobody has.
stage() {
	find . -name .git -prune -o \( -name .gitattributes -o -name .gitignore \) ! -type f ! -type d ! -type l -exec rm -f {} + -exec echo . \; >"$tmp/pipes" 2>/dev/null
	note "pipes $(($(wc -l <"$tmp/pipes")))"
	g ls-files --others --exclude-standard -z | tr '\n\000' '\001\n' | grep '/$' >"$tmp/nested"
	if [ -s "$tmp/nested" ]; then
		{
			echo ':/'
			sed 's/^/:(top,exclude,literal)/' "$tmp/nested"
		} | tr '\001\n' '\n\000' >"$tmp/spec"
		note "nested $(($(wc -l <"$tmp/nested")))"
		g add --all --ignore-errors --pathspec-from-file="$tmp/spec" --pathspec-file-nul 2>"$tmp/errors"
	else
		g add --all --ignore-errors . 2>"$tmp/errors"
	fi || {
		cat "$tmp/errors" >&2
		note "add-errors $(($(grep -c '^error:' "$tmp/errors")))"
	}
	note "unread $(($(grep -c '^warning: could not open directory' "$tmp/errors")))"
	tree=$(g write-tree) || fail 24 "cannot write the tree"
}

commit() { printf '%s\n' "$message" | git commit-tree "$tree" "$@"; }

: >"$tmp/header"
new_repository
kind=commits
# What is no plain file among the objects (a pipe, that git would read from for ever) makes them worthless.
for objects in "$theirs/objects" "$theirs/sbxpair-origin.git/objects"; do
	[ -d "$objects" ] && [ -z "$(find "$objects/" ! -type f ! -type d 2>/dev/null | head -n 1)" ] && printf '%s\n' "$objects"
done >"$tmp/git/objects/info/alternates"
if [ -d "$theirs/objects" ]; then
	[ "$shallow" = 1 ] && [ -f "$theirs/shallow" ] && cp "$theirs/shallow" "$tmp/git/shallow"
fi
if g read-tree "$base" 2>/dev/null && g rev-parse --quiet --verify "$base^{commit}" >/dev/null; then
	[ -d "$theirs/refs" ] && cp -R "$theirs/refs/." "$tmp/git/refs/" 2>/dev/null
	find "$tmp/git/refs" ! -type f ! -type d -exec rm -f {} +
	[ -f "$theirs/packed-refs" ] && cp "$theirs/packed-refs" "$tmp/git/packed-refs"
	g for-each-ref >/dev/null 2>&1 || rm -f "$tmp/git/packed-refs"
	g for-each-ref >/dev/null 2>&1 || {
		rm -rf "$tmp/git/refs"
		mkdir "$tmp/git/refs"
	}
	head= line=
	[ -f "$theirs/HEAD" ] && IFS= read -r line <"$theirs/HEAD"
	case $line in
	'ref: refs/'*) head=$(g rev-parse --quiet --verify "${line#ref: }^{commit}" 2>/dev/null) ;;
	[0-9a-f]*) head=$(g rev-parse --quiet --verify "$line^{commit}" 2>/dev/null) ;;
	esac
	parent=$base
	if [ -z "$head" ]; then
		note head-lost
	elif g merge-base --is-ancestor "$base" "$head" 2>/dev/null; then
		parent=$head
	elif g merge-base --is-ancestor "$head" "$base" 2>/dev/null; then
		note reset
	else
		note rewritten
	fi
	if [ "$parent" != "$base" ] && ! g rev-list --objects --quiet "$parent" "^$base" 2>/dev/null; then
		parent=$base # its commits are incomplete
		note rewritten
	fi
	g read-tree "$parent" || fail 24 "cannot read the tree"
	stage
	new=$parent
	if [ "$tree" != "$(g rev-parse "$parent^{tree}")" ]; then
		new=$(commit -p "$parent") || fail 24 "cannot commit"
	elif [ "$parent" = "$base" ]; then
		# HEAD holds nothing: the run's branch may, when the agent went back to another branch at the end.
		other=$(g rev-parse --quiet --verify "refs/heads/$SBXPAIR_BRANCH^{commit}" 2>/dev/null)
		if [ -n "$other" ] && [ "$other" != "$base" ] && g merge-base --is-ancestor "$base" "$other" 2>/dev/null &&
			g rev-list --objects --quiet "$other" "^$base" 2>/dev/null; then
			new=$other
			note elsewhere
		fi
	fi
	[ -e "$theirs/MERGE_HEAD" ] && note merging
	[ -d "$theirs/rebase-merge" ] || [ -d "$theirs/rebase-apply" ] && note rebasing
	g for-each-ref --count=50 --format='%(objectname) %(refname)' refs/heads refs/stash refs/remotes 2>/dev/null | while read -r sha ref; do
		n=$(g rev-list --count "$sha" --not "$new" "$base" 2>/dev/null) || continue
		[ "$n" -gt 0 ] && printf 'other %s %s\n' "$n" "$ref"
	done >>"$tmp/header"
	if [ -d "$theirs/sbxpair-origin.git/refs" ]; then # the local origin: what was pushed there
		(unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE && git -c safe.directory='*' --git-dir="$theirs/sbxpair-origin.git" \
			for-each-ref --count=50 --format='%(objectname) %(refname)' </dev/null 2>/dev/null) | while read -r sha ref; do
			[ "$sha" = "$base" ] && continue
			n=$(g rev-list --count "$sha" --not "$base" 2>/dev/null) || continue
			printf 'pushed %s %s %s\n' "$n" "$sha" "$ref"
		done >>"$tmp/header"
	fi
	rm -rf "$tmp/git/refs" "$tmp/git/packed-refs"
	mkdir "$tmp/git/refs"
	if [ "$new" = "$base" ]; then
		kind=empty
	else
		g update-ref refs/sbxpair/head "$new" && g bundle create --quiet "$tmp/bundle" refs/sbxpair/head "^$base" >&2 || kind=snapshot
	fi
else
	kind=snapshot
fi
if [ "$kind" = snapshot ]; then
	# The base commit is gone, or the objects are broken: the files are still there. The host puts them on the base.
	: >"$tmp/header"
	note objects-lost
	new_repository
	stage
	new=$(commit) || fail 24 "cannot commit"
	g update-ref refs/sbxpair/head "$new" && g bundle create --quiet "$tmp/bundle" refs/sbxpair/head >&2 || fail 25 "cannot pack the changes"
fi

size=0
[ "$kind" = empty ] || size=$(($(wc -c <"$tmp/bundle")))
g ls-files --others --ignored --exclude-standard --directory >"$tmp/ignored" 2>/dev/null
if [ "$size" -gt "$max" ]; then
	kind=too-large
	{
		if [ -e "$tmp/git/objects/info/alternates" ]; then
			g rev-list --objects "$new" "^$base"
		else
			g rev-list --objects "$new"
		fi
	} | git cat-file --batch-check='%(objecttype) %(objectsize) %(rest)' | grep '^blob' | sort -k2,2nr | head -n 10 | sed 's/^blob/large/' >>"$tmp/header"
fi
printf '%s\n' 'sbxpair-end-state 1' "kind $kind" "base $base" "head $new" "size $size"
cat "$tmp/header"
printf 'ignored %s\n' "$(($(wc -l <"$tmp/ignored")))"
head -n 50 "$tmp/ignored" | sed 's/^/ignored-path /'
echo end
case $kind in commits | snapshot) cat "$tmp/bundle" ;; esac
