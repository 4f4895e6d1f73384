#!/usr/bin/env bash
# Compares `multinet bench` by RDMA with perftest and UCX over soft-RoCE, in one guest, and writes the result into docs/benchmarks.md.
# Takes about twenty minutes. With --quick, about four, and the result is only shown.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/tools/packages.sh build
tests/tools/packages.sh bench-rdma
# Who measures shares the cores with what is measured, and so is a release build, too.
profile=${BENCH_PROFILE:-release}
cargo build --profile "$profile" -p multinet-cli --bin multinet
cargo build --profile "$profile" -p multinet-tests --bin bench-rdma
folder=$profile
[ "$profile" != dev ] || folder=debug
bin=$(realpath "${CARGO_TARGET_DIR:-target}/$folder")
export MULTINET_BIN=$bin/multinet
part=$(mktemp)
trap 'rm -f "$part"' EXIT
timeout --kill-after=10 3600 "$bin/bench-rdma" "$@" >"$part"
if [ "${1:-}" = --quick ]; then
  cat "$part"
else
  tests/bench-page.sh bench-rdma <"$part"
fi
