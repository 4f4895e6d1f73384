#!/usr/bin/env bash
# Finds comments that break a rule of CONTRIBUTING.md, as far as patterns can: prose.sh [PATH…], by default in all Rust files.
set -euo pipefail
cd "$(dirname "$0")/../.."
if (($#)); then mapfile -t files < <(git ls-files -- "${@/%//}" "$@" | grep '\.rs$' | sort -u); else mapfile -t files < <(git ls-files '*.rs'); fi
status=0
find_bad() { # find_bad RULE PATTERN
  local found
  if found=$(grep -nHE -- "$2" "${files[@]}"); then
    echo "$1:" >&2
    echo "$found" >&2
    status=1
  fi
}
find_bad 'a doc comment begins with a verb, or with a noun phrase that names the thing' \
  '^ *(///|//!) (What|Who|Whom|Whose|Whoever|Whatever|That which)\b'
find_bad 'name the actor' '^ *//.*\b([Nn]obody|[Ss]omebody)\b'
if found=$(LC_ALL=C.UTF-8 grep -nHE '^.{101,}$' -- "${files[@]}" | grep -E '^[^:]*:[0-9]+: *//'); then
  echo 'comments wrap at 100 columns:' >&2
  echo "$found" >&2
  status=1
fi
exit $status
