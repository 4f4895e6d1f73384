#!/usr/bin/env bash
# Measures `make check` and `make test` by phase and by test binary, and prints the table of CONTRIBUTING.md: first from an empty target
# folder of its own (the tools outside of the checkout are kept), then again.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR=$work/target CARGO_INCREMENTAL=0
for round in cold warm; do
  export MULTINET_TIMES=$work/$round
  tests/tools/timed.sh 'all of it' sh -c 'make check && make test' >&2
done
awk -F '\t' '
  function clock(seconds) { return sprintf("%d:%02d", seconds / 60, seconds % 60) }
  FNR == NR { wall[$1] = $2; cpu[$1] = $3; names[count++] = $1; next }
  { warm_wall[$1] = $2; warm_cpu[$1] = $3 }
  END {
    print "| what | cold, wall | CPU | warm, wall | CPU |"
    print "|---|---|---|---|---|"
    for (i = 0; i < count; i++) {
      name = names[i]
      if (wall[name] < 5 && warm_wall[name] < 5) { rest += wall[name]; continue }
      printf "| %s | %s | %s | %s | %s |\n", name, clock(wall[name]), clock(cpu[name]), clock(warm_wall[name]), clock(warm_cpu[name])
    }
    printf "\nThe others took %d s together.\n", rest
  }' "$work/cold" "$work/warm"
