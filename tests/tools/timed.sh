#!/usr/bin/env bash
# Runs a command, and appends its seconds to the file $MULTINET_TIMES if that is set: timed.sh NAME COMMAND…
# A line is NAME, wall time, and CPU time of all processes that the command waited for, separated by tabs.
set -uo pipefail
name=$1
shift
[ -n "${MULTINET_TIMES:-}" ] || exec "$@"
took=$(mktemp)
exec 3>&2
TIMEFORMAT='%R %U %S'
{ time "$@" 2>&3; } 2>"$took"
status=$?
awk -v name="$name" '{ printf "%s\t%.0f\t%.0f\n", name, $1, $2 + $3 }' "$took" >>"$MULTINET_TIMES"
rm -f "$took"
exit "$status"
