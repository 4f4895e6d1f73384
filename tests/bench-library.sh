#!/usr/bin/env bash
# Compares `multinet bench` with others' programs, in the same run, and writes the result into docs/benchmarks.md: bench-library.sh bench-client
# (iperf3, UCX and a bare echo over TCP; ten minutes) or bench-rdma (perftest and UCX over soft-RoCE, in one guest; a quarter of an hour). With
# --quick behind it, a few minutes at most, and the result is only shown.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
shift
tests/tools/packages.sh build
tests/tools/packages.sh "$name"
# Who measures shares the cores with what is measured, and so is a release build, too.
profile=${BENCH_PROFILE:-release}
cargo build --profile "$profile" -p multinet-cli --bin multinet
cargo build --profile "$profile" -p multinet-tests --bin "$name"
folder=$profile
[ "$profile" != dev ] || folder=debug
bin=$(realpath "${CARGO_TARGET_DIR:-target}/$folder")
export MULTINET_BIN=$bin/multinet
part=$(mktemp)
trap 'rm -f "$part"' EXIT
timeout --kill-after=10 3600 "$bin/$name" "$@" >"$part"
if [ "${1:-}" = --quick ]; then
  cat "$part"
else
  tests/bench-page.sh "$name" <"$part"
fi
