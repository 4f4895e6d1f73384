#!/usr/bin/env bash
# Compares `multinet bench` with iperf3, UCX and a bare echo over TCP, in the same run, and writes the result into docs/benchmarks.md. Takes
# about ten minutes. With --quick, about one, and the result is only shown.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/tools/packages.sh build
tests/tools/packages.sh bench-client
# Who measures shares the cores with what is measured, and so is a release build, too.
profile=${BENCH_PROFILE:-release}
cargo build --profile "$profile" -p multinet-cli --bin multinet
cargo build --profile "$profile" -p multinet-tests --bin bench-client
folder=$profile
[ "$profile" != dev ] || folder=debug
bin=$(realpath "${CARGO_TARGET_DIR:-target}/$folder")
export MULTINET_BIN=$bin/multinet
part=$(mktemp)
trap 'rm -f "$part"' EXIT
timeout --kill-after=10 1800 "$bin/bench-client" "$@" >"$part"
if [ "${1:-}" = --quick ]; then
  cat "$part"
else
  tests/bench-page.sh bench-client <"$part"
fi
