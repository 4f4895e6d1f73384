#!/usr/bin/env bash
# Runs every test: installs the tools, builds the tests, runs them, and runs those of multinet-verbs again with AddressSanitizer. Then
# prints times, and how many tests passed, failed or were skipped, and why. The exit status is 0 only if nothing failed.
#   tests/run.sh [SUITE…]   only these suites of pure, conformance, cluster, node, numaflow, client, frameworks and rdma
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

wanted=" $* "
wants() {
  local suite
  [ "$wanted" != "  " ] || return 0
  for suite in "$@"; do
    [[ $wanted != *" $suite "* ]] || return 0
  done
  return 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MULTINET_SKIP_LOG=$work/skipped
export MULTINET_TIMES=${MULTINET_TIMES:-$work/times}
: >"$MULTINET_SKIP_LOG"

timed() { tests/tools/timed.sh "$@"; }

timed 'packages' tests/tools/packages.sh || exit 1
if wants conformance cluster node numaflow client; then timed 'control plane' tests/tools/build.sh >/dev/null || exit 1; fi
if wants cluster; then
  timed 'helm' tests/tools/helm.sh >/dev/null || exit 1
  timed 'definitions' tests/tools/definitions.sh >/dev/null || exit 1
fi
if wants numaflow; then timed 'numaflow' tests/tools/numaflow.sh >/dev/null || exit 1; fi
if wants frameworks; then timed 'frameworks' tests/tools/frameworks.sh >/dev/null || exit 1; fi
if wants rdma; then timed 'guest' tests/tools/guest.sh >/dev/null || exit 1; fi
# One build for the tests, and for the programs and examples that they start. A separate build would enable other features of their
# dependencies, and compile those twice.
timed 'build tests' cargo test --workspace --no-run || exit 1
if wants node frameworks; then timed 'build image programs' tests/tools/image-programs.sh || exit 1; fi

# The cluster, node, numaflow and client suites mostly wait for control planes, nodes and pods; the others compute. The two kinds run at the same
# time. The guest of the rdma suite emulates its processor, so it runs alone afterwards.
waiting=(cluster node numaflow client)
apart=("${waiting[@]}" conformance frameworks rdma soak)
mapfile -t pure < <(cargo test --workspace --no-run 2>&1 |
  sed -nE 's#^ *Executable tests?/.*/deps/(.*)-[0-9a-f]+\)$#\1#p' | sort -u | grep -vxF "$(printf '%s\n' "${apart[@]}")")

host=$(rustc -vV | sed -n 's/^host: //p')
runner=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$host")_RUNNER
export "$runner=$PWD/tests/tools/runner.sh"

# Runs a command, and stores its output and its exit status: keep NAME COMMAND…
keep() {
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>&1
  echo $? >"$work/$name.status"
  tail -n 1 "$work/$name.log" >&2
}
suites() {
  cargo test --workspace --no-fail-fast "$@"
}

for suite in "${waiting[@]}"; do
  if wants "$suite"; then keep "$suite" suites --test "$suite"; fi
done &
if wants pure; then
  # multinet-dns-orders has modules of the server, whose tests run there.
  keep units suites --exclude multinet-dns-orders --lib --bins
  keep pure suites "${pure[@]/#/--test=}"
  keep docs suites --doc
  keep sanitizer timed 'sanitizer' tests/sanitize.sh
fi
if wants conformance; then keep conformance suites --test conformance; fi
if wants frameworks; then keep frameworks suites --test frameworks; fi
wait
if wants rdma; then keep rdma suites --test rdma; fi

log=$work/log
cat "$work"/*.log | tee "$log"
status=0
for file in "$work"/*.status; do
  [ "$(cat "$file")" -eq 0 ] || status=1
done

# cargo prints one "test result:" line per test binary.
read -r passed failed ignored < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p+0, f+0, i+0 }' "$log")
# A skipped test has passed for cargo.
skipped=$(wc -l <"$MULTINET_SKIP_LOG")
passed=$((passed - skipped))
# A test that is skipped for a reason outside of MULTINET_MAY_SKIP has failed.
unexpected() { grep -vE "${MULTINET_MAY_SKIP:-}" "$MULTINET_SKIP_LOG"; }
failed=$((failed + $(unexpected | wc -l)))
# A crashed test binary has no result line.
failed=$((failed + $(grep -c "process didn't exit successfully.*signal:" "$log")))
# The sanitizer reports leaks after all tests passed, and other errors instead of a result line.
failed=$((failed + $(grep -c '^SUMMARY: AddressSanitizer' "$log")))
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi

echo
echo "Longest phases (wall and CPU seconds):"
sort -t $'\t' -k 2,2nr "$MULTINET_TIMES" | awk -F '\t' '{ printf "  %6d %6d  %s\n", $2, $3, $1 }' | head -20
echo "Slowest tests:"
sed -nE 's/^test (.*) \.\.\. [a-zA-Z]+ <([0-9.]+)s>$/\2 \1/p' "$log" | sort -rn | head -10 | awk '{ printf "  %6.1f s  %s\n", $1, $2 }'
if [ "$failed" -gt 0 ]; then
  echo "Failed:"
  grep -E '^test .* FAILED( <.*>)?$|^error: could not compile|^error: test failed|^SUMMARY: AddressSanitizer' "$log" | sort -u | sed 's/^/  /'
  unexpected | sed 's/^/  skipped: /'
  echo "First lines of the failures (the full output is above):"
  grep -E -A4 "^Error: |^thread '.*panicked at" "$log" | grep -vE '^$|^Stack backtrace' | head -40 | sed 's/^/  /'
fi
if [ $((skipped + ignored)) -gt 0 ]; then
  echo "Skipped:"
  sort "$MULTINET_SKIP_LOG" | sed 's/^/  /'
  grep -E '^test .* \.\.\. ignored' "$log" | sort -u | sed 's/^test /  /'
fi
echo "$passed passed, $failed failed, $((skipped + ignored)) skipped"
[ "$failed" -eq 0 ]
