#!/usr/bin/env bash
# Replaces the lines between the markers of a target in docs/benchmarks.md with standard input: bench-page.sh TARGET <PART
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/benchmarks.md
begin="<!-- make $1: begin -->"
end="<!-- make $1: end -->"
for marker in "$begin" "$end"; do
  grep -qxF -- "$marker" "$page" || { echo "$page has no line $marker" >&2; exit 1; }
done
part=$(cat)
[ -n "$part" ] || { echo "bench-page.sh: standard input is empty" >&2; exit 1; }
new=$(mktemp)
trap 'rm -f "$new"' EXIT
{
  sed "/^$begin\$/q" "$page"
  printf '\n%s\n\n' "$part"
  sed -n "/^$end\$/,\$p" "$page"
} >"$new"
cat "$new" >"$page"
