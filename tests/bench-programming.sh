#!/usr/bin/env bash
# Compares multinet-controller and multinet-dns with kube-controller-manager and CoreDNS, in the same run, and writes the result
# into docs/benchmarks.md. Takes about ten minutes. With --quick, a few minutes, and the result is only shown.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/tools/packages.sh
tests/tools/build.sh >/dev/null
# Who measures shares the cores with what is measured, and so is a release build, too.
cargo build --release -p multinet-controller -p multinet-dns
cargo build --release -p multinet-tests --bin bench-programming
bin=$(realpath "${CARGO_TARGET_DIR:-target}/release")
export MULTINET_CONTROLLER_BIN=$bin/multinet-controller MULTINET_DNS_BIN=$bin/multinet-dns
part=$(mktemp)
trap 'rm -f "$part"' EXIT
timeout --kill-after=10 1500 "$bin/bench-programming" "$@" >"$part"
if [ "${1:-}" = --quick ]; then
  cat "$part"
else
  tests/bench-page.sh bench-programming <"$part"
fi
